//! OffsetCommit 2–10: a group writes down how far it has read; the stage `commit` of a consumer
//! that uses no transaction.
//!
//! ```text
//! check topics ─▶ check membership ─▶ append ─▶ turn released ─▶ durable ─▶ answer
//! ```
//!
//! Invariants: metadata is kept byte for byte.
//! Invariants: an offset that was answered for survives a power cut.
//! Never: commits a part of what passed the checks.

use crate::dispatch::RequestContext;
use crate::group::{MemberClaim, NewOffset};
use crate::node::Node;
use crate::topics::TopicEntry;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::offset_commit::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic, OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
};
use millstream_protocol::messages::{OffsetCommitRequest, OffsetCommitResponse};
use std::sync::Arc;

/// The first version that names topics by id.
const TOPIC_ID_VERSION: i16 = 10;

/// Commits every offset that can be committed.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: OffsetCommitRequest,
) -> OffsetCommitResponse {
    let mut offsets = Vec::new();
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        topics.push(check(node, context.api_version, topic, &mut offsets));
    }
    let claim = MemberClaim {
        member_id: request.member_id,
        group_instance_id: request.group_instance_id,
        generation: request.generation_id_or_member_epoch,
    };
    let retention_ms = Some(request.retention_time_ms).filter(|retention_ms| *retention_ms >= 0);
    let group_id = &request.group_id;
    let committed = node.groups.commit(
        node,
        group_id,
        &claim,
        &offsets,
        retention_ms,
        context.api_version,
    );
    context.release_turn();
    let error = match committed {
        Ok(position) => node.groups.durable(node, position).await.err(),
        Err(error) => Some(error),
    };
    if let Some(error) = error {
        let partitions = topics.iter_mut().flat_map(|topic| &mut topic.partitions);
        for partition in partitions.filter(|partition| partition.error_code.is_ok()) {
            partition.error_code = error;
        }
    }
    OffsetCommitResponse {
        topics,
        ..Default::default()
    }
}

/// Sorts one topic's partitions into offsets to commit and answers that are errors already.
fn check(
    node: &Node,
    version: i16,
    topic: OffsetCommitRequestTopic,
    offsets: &mut Vec<NewOffset>,
) -> OffsetCommitResponseTopic {
    let OffsetCommitRequestTopic {
        name,
        topic_id,
        partitions,
    } = topic;
    let entry = if version >= TOPIC_ID_VERSION {
        node.partitions
            .topic_by_id(topic_id)
            .ok_or(ErrorCode::UNKNOWN_TOPIC_ID)
    } else {
        node.partitions
            .topic(&name)
            .ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
    };
    let mut responses = Vec::with_capacity(partitions.len());
    for partition in partitions {
        let partition_index = partition.partition_index;
        let checked = match &entry {
            Ok(entry) => new_offset(node, entry, partition),
            Err(error) => Err(*error),
        };
        let error_code = match checked {
            Ok(offset) => {
                offsets.push(offset);
                ErrorCode::NONE
            }
            Err(error) => error,
        };
        responses.push(OffsetCommitResponsePartition {
            partition_index,
            error_code,
        });
    }
    OffsetCommitResponseTopic {
        name,
        topic_id,
        partitions: responses,
    }
}

fn new_offset(
    node: &Node,
    entry: &TopicEntry,
    partition: OffsetCommitRequestPartition,
) -> Result<NewOffset, ErrorCode> {
    let metadata = partition.committed_metadata.unwrap_or_default();
    check_offset(node, entry, partition.partition_index, &metadata)?;
    Ok(NewOffset {
        topic: entry.name.to_string(),
        topic_id: entry.id,
        partition: partition.partition_index,
        offset: partition.committed_offset,
        leader_epoch: partition.committed_leader_epoch,
        metadata,
    })
}

/// What every commit of an offset is checked for, in a transaction or not.
pub(crate) fn check_offset(
    node: &Node,
    entry: &TopicEntry,
    partition: i32,
    metadata: &str,
) -> Result<(), ErrorCode> {
    if entry.partition(partition).is_none() {
        Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
    } else if node.groups.metadata_is_too_large(metadata) {
        Err(ErrorCode::OFFSET_METADATA_TOO_LARGE)
    } else {
        Ok(())
    }
}
