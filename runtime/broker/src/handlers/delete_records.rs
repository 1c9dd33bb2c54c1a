//! DeleteRecords 0–2: gives up the records below an offset; -1 stands for the high watermark.
//!
//! Deviations: records of an open transaction are kept (Kafka deletes up to the high watermark).
//!
//! Invariants: the low watermark answered is the log start from now on.
//! Never: deletes from the coordinators' topics.

use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::topics::is_internal;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::delete_records::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use millstream_protocol::messages::{DeleteRecordsRequest, DeleteRecordsResponse};
use std::sync::Arc;

/// `offset` that stands for the high watermark.
const HIGH_WATERMARK: i64 = -1;

/// Deletes in each partition of the request.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: DeleteRecordsRequest,
) -> DeleteRecordsResponse {
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for asked in topic.partitions {
            let index = asked.partition_index;
            let deleted = delete(node, &topic.name, index, asked.offset).await;
            partitions.push(DeleteRecordsPartitionResult {
                partition_index: index,
                low_watermark: *deleted.as_ref().unwrap_or(&-1),
                error_code: deleted.err().unwrap_or(ErrorCode::NONE),
            });
        }
        topics.push(DeleteRecordsTopicResult {
            name: topic.name,
            partitions,
        });
    }
    DeleteRecordsResponse {
        topics,
        ..Default::default()
    }
}

async fn delete(node: &Node, topic: &str, index: i32, offset: i64) -> Result<i64, ErrorCode> {
    if is_internal(topic) {
        return Err(ErrorCode::INVALID_TOPIC_EXCEPTION);
    }
    let partition = node
        .partition(topic, index)
        .ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    let config = partition.log().config();
    if config.compact && !config.delete {
        // Records go only when newer ones take their place.
        return Err(ErrorCode::POLICY_VIOLATION);
    }
    let offset = match offset {
        HIGH_WATERMARK => partition.offsets().high_watermark,
        0.. => offset,
        _ => return Err(ErrorCode::OFFSET_OUT_OF_RANGE),
    };
    let log = partition.log().clone();
    let deleted = node
        .config
        .placement
        .blocking(move || log.delete_records_before(offset))
        .await
        .map_err(|error| error.error_code())?;
    match deleted {
        Ok(Some(log_start)) => Ok(log_start),
        Ok(None) => Err(ErrorCode::OFFSET_OUT_OF_RANGE),
        Err(error) => {
            tracing::error!(partition = %partition.name(), %error, "records not deleted");
            Err(ErrorCode::KAFKA_STORAGE_ERROR)
        }
    }
}
