//! DescribeProducers 0: who writes to a partition, and which transactions are open there.
//!
//! Invariants: errors are per partition.
//! Never: changes anything.

use std::sync::Arc;

use millstream_protocol::ErrorCode;
use millstream_protocol::messages::describe_producers::{
    PartitionResponse, ProducerState, TopicResponse,
};
use millstream_protocol::messages::{DescribeProducersRequest, DescribeProducersResponse};

use crate::dispatch::RequestContext;
use crate::node::Node;

/// Describes the producers of every partition that is asked for.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: DescribeProducersRequest,
) -> DescribeProducersResponse {
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let indexes = topic.partition_indexes.iter();
        let partitions = indexes
            .map(|index| describe(node, &topic.name, *index))
            .collect();
        topics.push(TopicResponse {
            name: topic.name,
            partitions,
        });
    }
    DescribeProducersResponse {
        topics,
        ..Default::default()
    }
}

fn describe(node: &Node, topic: &str, partition_index: i32) -> PartitionResponse {
    let Some(partition) = node.partition(topic, partition_index) else {
        let error_code = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
        return PartitionResponse {
            partition_index,
            error_code,
            error_message: Some(error_code.description().to_owned()),
            ..Default::default()
        };
    };
    let producers = partition.log().producers().into_iter();
    let active_producers = producers.map(|producer| ProducerState {
        producer_id: producer.producer_id,
        producer_epoch: i32::from(producer.producer_epoch),
        last_sequence: producer.last_sequence,
        last_timestamp: producer.last_timestamp,
        coordinator_epoch: producer.coordinator_epoch,
        current_txn_start_offset: producer.current_transaction_start_offset,
    });
    PartitionResponse {
        partition_index,
        active_producers: active_producers.collect(),
        ..Default::default()
    }
}
