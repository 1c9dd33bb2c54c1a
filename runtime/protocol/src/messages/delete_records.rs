//! Deletes the records below an offset.
//!
//! Invariants: offset -1 deletes up to the high watermark.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The offsets to delete up to.
    pub struct DeleteRecordsRequest(versions 0..=2, flexible 2..) {
        topics: Vec<DeleteRecordsTopic>, in 0..;
        timeout_ms: i32, in 0..;
    }

    /// The offsets in one topic.
    pub struct DeleteRecordsTopic {
        name: String, in 0..;
        partitions: Vec<DeleteRecordsPartition>, in 0..;
    }

    /// The offset in one partition.
    pub struct DeleteRecordsPartition {
        partition_index: i32, in 0..;
        offset: i64, in 0..;
    }

    /// Where the logs start now.
    pub struct DeleteRecordsResponse(versions 0..=2, flexible 2..) {
        throttle_time_ms: i32, in 0..;
        topics: Vec<DeleteRecordsTopicResult>, in 0..;
    }

    /// The starts in one topic.
    pub struct DeleteRecordsTopicResult {
        name: String, in 0..;
        partitions: Vec<DeleteRecordsPartitionResult>, in 0..;
    }

    /// The start of one partition.
    pub struct DeleteRecordsPartitionResult {
        partition_index: i32, in 0..;
        low_watermark: i64, in 0..;
        error_code: ErrorCode, in 0..;
    }
}

impl Request for DeleteRecordsRequest {
    const API: ApiKey = ApiKey::DeleteRecords;
    type Response = DeleteRecordsResponse;
}
