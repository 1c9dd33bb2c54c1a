//! TxnOffsetCommit 0–5: a group's offsets become part of a producer's transaction; the stage
//! `commit` of an exactly-once job.
//!
//! ```text
//! check topics ─▶ check membership ─▶ in the transaction? ─▶ append as its data ─▶ durable
//! ─▶ answer
//! ```
//!
//! From version 5 on the partition of `__consumer_offsets` joins the transaction by this request;
//! before, AddOffsetsToTxn must have added it.
//!
//! Invariants: nothing shows before the transaction's marker; an abort leaves no trace.
//! Invariants: a member of an older generation, a fenced instance and a fenced producer change
//! nothing.
//! Never: commits a part of what passed the checks.

use super::offset_commit::check_offset;
use crate::dispatch::RequestContext;
use crate::group::{CommitProducer, MemberClaim, NewOffset};
use crate::node::Node;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::txn_offset_commit::{
    TxnOffsetCommitRequestTopic, TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use millstream_protocol::messages::{TxnOffsetCommitRequest, TxnOffsetCommitResponse};
use std::sync::Arc;

/// Appends every offset that can be committed to the transaction.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: TxnOffsetCommitRequest,
) -> TxnOffsetCommitResponse {
    let mut offsets = Vec::new();
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        topics.push(check(node, topic, &mut offsets));
    }
    let claim = MemberClaim {
        member_id: request.member_id,
        group_instance_id: request.group_instance_id,
        generation: request.generation_id,
    };
    let producer = CommitProducer {
        transactional_id: request.transactional_id,
        producer_id: request.producer_id,
        producer_epoch: request.producer_epoch,
        api_version: context.api_version,
    };
    let group_id = &request.group_id;
    let committed = node
        .groups
        .commit_in_transaction(node, group_id, &claim, &producer, &offsets);
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
    TxnOffsetCommitResponse {
        topics,
        ..Default::default()
    }
}

/// Sorts one topic's partitions into offsets to commit and answers that are errors already.
fn check(
    node: &Node,
    topic: TxnOffsetCommitRequestTopic,
    offsets: &mut Vec<NewOffset>,
) -> TxnOffsetCommitResponseTopic {
    let TxnOffsetCommitRequestTopic { name, partitions } = topic;
    let entry = node
        .partitions
        .topic(&name)
        .ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let mut responses = Vec::with_capacity(partitions.len());
    for partition in partitions {
        let partition_index = partition.partition_index;
        let metadata = partition.committed_metadata.unwrap_or_default();
        let checked = entry.as_ref().map_err(|error| *error).and_then(|entry| {
            check_offset(node, entry, partition_index, &metadata)?;
            Ok(entry.id)
        });
        let error_code = match checked {
            Ok(topic_id) => {
                offsets.push(NewOffset {
                    topic: name.clone(),
                    topic_id,
                    partition: partition_index,
                    offset: partition.committed_offset,
                    leader_epoch: partition.committed_leader_epoch,
                    metadata,
                });
                ErrorCode::NONE
            }
            Err(error) => error,
        };
        responses.push(TxnOffsetCommitResponsePartition {
            partition_index,
            error_code,
        });
    }
    TxnOffsetCommitResponseTopic {
        name,
        partitions: responses,
    }
}
