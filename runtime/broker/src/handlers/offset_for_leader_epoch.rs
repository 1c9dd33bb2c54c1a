//! OffsetForLeaderEpoch 2–4: lets a consumer check that its position is still in the log it read.
//!
//! Deviations: none; there is one leader epoch, and it lasts.
//!
//! Invariants: an epoch that is not known is answered with -1 for both epoch and end.
//! Never: waits.

use super::{LEADER_EPOCH, check_leader_epoch};
use crate::dispatch::RequestContext;
use crate::node::Node;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::offset_for_leader_epoch::{
    EpochEndOffset, OffsetForLeaderPartition, OffsetForLeaderTopicResult,
};
use millstream_protocol::messages::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};
use std::sync::Arc;

/// Answers each partition.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: OffsetForLeaderEpochRequest,
) -> OffsetForLeaderEpochResponse {
    let topics = request
        .topics
        .into_iter()
        .map(|topic| OffsetForLeaderTopicResult {
            partitions: topic
                .partitions
                .iter()
                .map(|asked| {
                    look_up(node, &topic.topic, asked).unwrap_or_else(|error_code| EpochEndOffset {
                        error_code,
                        partition: asked.partition,
                        ..Default::default()
                    })
                })
                .collect(),
            topic: topic.topic,
        });
    OffsetForLeaderEpochResponse {
        topics: topics.collect(),
        ..Default::default()
    }
}

fn look_up(
    node: &Node,
    topic: &str,
    asked: &OffsetForLeaderPartition,
) -> Result<EpochEndOffset, ErrorCode> {
    let partition = node
        .partition(topic, asked.partition)
        .ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    check_leader_epoch(asked.current_leader_epoch)?;
    let log = partition.log();
    // The leader's own epoch is known before the first batch is written in it.
    let known = log.end_offset_for_epoch(asked.leader_epoch).or_else(|| {
        (asked.leader_epoch == LEADER_EPOCH).then(|| (LEADER_EPOCH, log.offsets().log_end))
    });
    let (leader_epoch, end_offset) = known.unwrap_or((-1, -1));
    Ok(EpochEndOffset {
        error_code: ErrorCode::NONE,
        partition: asked.partition,
        leader_epoch,
        end_offset,
    })
}
