//! OffsetDelete 0: a group forgets what it has committed, partition by partition.
//!
//! Invariants: answered once the tombstones are durable.
//! Never: takes an offset from members that read the topic.

use crate::dispatch::RequestContext;
use crate::node::Node;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::offset_delete::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use millstream_protocol::messages::{OffsetDeleteRequest, OffsetDeleteResponse};
use std::sync::Arc;

/// Deletes each offset.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: OffsetDeleteRequest,
) -> OffsetDeleteResponse {
    let partitions: Vec<(String, i32)> = request
        .topics
        .iter()
        .flat_map(|topic| {
            let indexes = topic.partitions.iter();
            indexes.map(|partition| (topic.name.clone(), partition.partition_index))
        })
        .filter(|(topic, index)| node.partition(topic, *index).is_some())
        .collect();
    let group_id = &request.group_id;
    let deleted = node.groups.delete_offsets(node, group_id, &partitions);
    let deleted = match deleted.await {
        Ok((refused, position)) => {
            let durable = node.groups.durable(node, position).await;
            durable.map(|()| refused)
        }
        Err(error) => Err(error),
    };
    let refused = match deleted {
        Ok(refused) => refused,
        Err(error_code) => {
            return OffsetDeleteResponse {
                error_code,
                ..Default::default()
            };
        }
    };
    let outcome = |topic: &str, index: i32| match node.partition(topic, index) {
        None => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        Some(_) if refused.contains(topic) => ErrorCode::GROUP_SUBSCRIBED_TO_TOPIC,
        Some(_) => ErrorCode::NONE,
    };
    let topics = request.topics.into_iter().map(|topic| {
        let partitions = topic.partitions.iter();
        OffsetDeleteResponseTopic {
            partitions: partitions
                .map(|partition| OffsetDeleteResponsePartition {
                    partition_index: partition.partition_index,
                    error_code: outcome(&topic.name, partition.partition_index),
                })
                .collect(),
            name: topic.name,
        }
    });
    OffsetDeleteResponse {
        topics: topics.collect(),
        ..Default::default()
    }
}
