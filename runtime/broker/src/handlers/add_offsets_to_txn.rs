//! AddOffsetsToTxn 0–4: the offsets of a group join a transaction (clients before version 2).
//!
//! Invariants: what joins is the partition of `__consumer_offsets` that holds the group.
//! Never: looks at the group itself; TxnOffsetCommit checks its members.

use std::sync::Arc;

use millstream_protocol::messages::{AddOffsetsToTxnRequest, AddOffsetsToTxnResponse};
use millstream_protocol::{ErrorCode, TopicPartition};

use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::topics::{CONSUMER_OFFSETS_TOPIC, internal_partition_of};
use crate::transaction::Identity;

/// The first version whose clients know PRODUCER_FENCED.
const FENCED_VERSION: i16 = 2;

/// Adds the group's offsets partition.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: AddOffsetsToTxnRequest,
) -> AddOffsetsToTxnResponse {
    let Some(offsets) = node.partitions.topic(CONSUMER_OFFSETS_TOPIC) else {
        let error_code = ErrorCode::COORDINATOR_NOT_AVAILABLE;
        return AddOffsetsToTxnResponse {
            error_code,
            ..Default::default()
        };
    };
    let count = i32::try_from(offsets.partitions.len()).unwrap_or(i32::MAX);
    let index = internal_partition_of(&request.group_id, count);
    let partitions = [TopicPartition::new(CONSUMER_OFFSETS_TOPIC, index)];
    let producer = Identity {
        id: request.producer_id,
        epoch: request.producer_epoch,
    };
    let error = node
        .transactions
        .add_partitions(
            node,
            &request.transactional_id,
            producer,
            &partitions,
            0,
            || {
                context.release_turn();
            },
        )
        .await;
    let older = context.api_version < FENCED_VERSION && error == ErrorCode::PRODUCER_FENCED;
    let error_code = if older {
        ErrorCode::INVALID_PRODUCER_EPOCH
    } else {
        error
    };
    AddOffsetsToTxnResponse {
        error_code,
        ..Default::default()
    }
}
