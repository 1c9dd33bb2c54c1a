//! ListOffsets 1–11.
//!
//! Deviations: none of the tiers that some of the special timestamps ask about exists, so they find
//! nothing.
//!
//! Invariants: never answers an offset beyond what the isolation level may read.
//! Never: waits.

use super::{LEADER_EPOCH, check_leader_epoch, repeated};
use crate::dispatch::RequestContext;
use crate::node::Node;
use millstream_log::ReadError;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::list_offsets::{
    ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsTopic, ListOffsetsTopicResponse,
};
use millstream_protocol::messages::{ListOffsetsRequest, ListOffsetsResponse};
use std::sync::Arc;

/// The first version whose answer tells the leader epoch.
const LEADER_EPOCH_VERSION: i16 = 4;
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
const EARLIEST_PENDING_UPLOAD: i64 = -6;
/// `isolation_level` of a reader of committed data.
const READ_COMMITTED: i8 = 1;

/// Answers each partition.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: ListOffsetsRequest,
) -> ListOffsetsResponse {
    let committed = request.isolation_level == READ_COMMITTED;
    let repeated = repeated(named(&request.topics));
    let look_up = |topic: &str, asked: &ListOffsetsPartition| {
        if repeated.contains(&(topic.to_owned(), asked.partition_index)) {
            return Err(ErrorCode::INVALID_REQUEST);
        }
        if !is_known(asked.timestamp, context.api_version) {
            return Err(ErrorCode::UNSUPPORTED_VERSION);
        }
        look_up(node, topic, asked, committed)
    };
    // Older versions have no field for it, and an answer that says too much cannot be encoded.
    let leader_epoch = if context.api_version >= LEADER_EPOCH_VERSION {
        LEADER_EPOCH
    } else {
        -1
    };
    let topics = request
        .topics
        .into_iter()
        .map(|topic| ListOffsetsTopicResponse {
            partitions: topic
                .partitions
                .iter()
                .map(|partition| match look_up(&topic.name, partition) {
                    Ok((offset, timestamp)) => ListOffsetsPartitionResponse {
                        partition_index: partition.partition_index,
                        error_code: ErrorCode::NONE,
                        timestamp,
                        offset,
                        leader_epoch: if offset < 0 { -1 } else { leader_epoch },
                    },
                    Err(error_code) => ListOffsetsPartitionResponse {
                        partition_index: partition.partition_index,
                        error_code,
                        ..Default::default()
                    },
                })
                .collect(),
            name: topic.name,
        });
    ListOffsetsResponse {
        topics: topics.collect(),
        ..Default::default()
    }
}

/// The partitions of the request.
fn named(topics: &[ListOffsetsTopic]) -> impl Iterator<Item = (String, i32)> {
    topics.iter().flat_map(|topic| {
        let indexes = topic.partitions.iter();
        indexes.map(|partition| (topic.name.clone(), partition.partition_index))
    })
}

/// Whether a version of the request knows this special timestamp, if it is one.
fn is_known(timestamp: i64, version: i16) -> bool {
    match timestamp {
        LATEST | EARLIEST | 0.. => true,
        MAX_TIMESTAMP => version >= 7,
        EARLIEST_LOCAL => version >= 8,
        LATEST_TIERED => version >= 9,
        EARLIEST_PENDING_UPLOAD => version >= 11,
        _ => false,
    }
}

/// Offset and timestamp; -1 for both where there is nothing.
fn look_up(
    node: &Node,
    topic: &str,
    asked: &ListOffsetsPartition,
    committed: bool,
) -> Result<(i64, i64), ErrorCode> {
    let partition = node
        .partition(topic, asked.partition_index)
        .ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    check_leader_epoch(asked.current_leader_epoch)?;
    let offsets = partition.offsets();
    let end = if committed {
        offsets.last_stable
    } else {
        offsets.high_watermark
    };
    let found = match asked.timestamp {
        LATEST => return Ok((end, -1)),
        EARLIEST | EARLIEST_LOCAL => return Ok((offsets.log_start, -1)),
        LATEST_TIERED | EARLIEST_PENDING_UPLOAD => None,
        MAX_TIMESTAMP => read(partition.log().max_timestamp())?,
        timestamp if timestamp >= 0 => read(partition.log().offset_for_timestamp(timestamp))?,
        _ => return Err(ErrorCode::UNSUPPORTED_VERSION),
    };
    Ok(found
        .filter(|(offset, _)| *offset < end)
        .unwrap_or((-1, -1)))
}

fn read(found: Result<Option<(i64, i64)>, ReadError>) -> Result<Option<(i64, i64)>, ErrorCode> {
    found.map_err(|error| {
        tracing::error!(%error, "look-up by time failed");
        error.error_code()
    })
}
