//! WriteTxnMarkers 1–2: ends a transaction on partitions, on an operator's word.
//!
//! It is how a hanging transaction, one that no coordinator knows of, is aborted. The transaction
//! coordinator writes its own markers directly.
//!
//! Deviations: an epoch above the coordinator's own is refused; Kafka takes any.
//!
//! Invariants: answers when every marker is durable.
//! Never: tells the transaction coordinator.

use std::sync::Arc;

use millstream_protocol::messages::write_txn_markers::{
    WritableTxnMarker, WritableTxnMarkerPartitionResult, WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
};
use millstream_protocol::messages::{WriteTxnMarkersRequest, WriteTxnMarkersResponse};
use millstream_protocol::{ErrorCode, TopicPartition};

use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::transaction::{COORDINATOR_EPOCH, Identity, Marker, write_marker};

/// Writes every marker to every partition that it names.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: WriteTxnMarkersRequest,
) -> WriteTxnMarkersResponse {
    let mut position = 0;
    let mut markers: Vec<WritableTxnMarkerResult> = request
        .markers
        .iter()
        .map(|marker| write(node, marker, &mut position))
        .collect();
    context.release_turn();
    if let Err(error) = node.durable(position).await {
        let written = markers
            .iter_mut()
            .flat_map(|marker| &mut marker.topics)
            .flat_map(|topic| &mut topic.partitions)
            .filter(|partition| partition.error_code.is_ok());
        for partition in written {
            partition.error_code = error.error_code();
        }
    }
    WriteTxnMarkersResponse { markers }
}

fn write(node: &Node, request: &WritableTxnMarker, position: &mut u64) -> WritableTxnMarkerResult {
    let marker = Marker {
        producer: Identity {
            id: request.producer_id,
            epoch: request.producer_epoch,
        },
        commit: request.transaction_result,
        coordinator_epoch: request.coordinator_epoch,
        transaction_version: i16::from(request.transaction_version),
    };
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in &request.topics {
        let name: Arc<str> = topic.name.as_str().into();
        let mut partitions = Vec::with_capacity(topic.partition_indexes.len());
        for &partition_index in &topic.partition_indexes {
            let partition = TopicPartition::new(name.clone(), partition_index);
            let written = if request.coordinator_epoch > COORDINATOR_EPOCH {
                Err(ErrorCode::TRANSACTION_COORDINATOR_FENCED)
            } else {
                write_marker(node, &partition, marker)
            };
            let error_code = match written {
                Ok(written) => {
                    *position = (*position).max(written);
                    ErrorCode::NONE
                }
                Err(error) => error,
            };
            partitions.push(WritableTxnMarkerPartitionResult {
                partition_index,
                error_code,
            });
        }
        topics.push(WritableTxnMarkerTopicResult {
            name: topic.name.clone(),
            partitions,
        });
    }
    WritableTxnMarkerResult {
        producer_id: request.producer_id,
        topics,
    }
}
