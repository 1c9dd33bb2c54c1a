//! Deletes committed offsets of a group, partition by partition.
//!
//! Invariants: no version is flexible.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The partitions whose offsets are to go.
    pub struct OffsetDeleteRequest(versions 0..=0) {
        group_id: String, in 0..;
        topics: Vec<OffsetDeleteRequestTopic>, in 0..;
    }

    /// Partitions of one topic.
    pub struct OffsetDeleteRequestTopic {
        name: String, in 0..;
        partitions: Vec<OffsetDeleteRequestPartition>, in 0..;
    }

    /// One partition.
    pub struct OffsetDeleteRequestPartition {
        partition_index: i32, in 0..;
    }

    /// What became of each partition.
    pub struct OffsetDeleteResponse(versions 0..=0) {
        error_code: ErrorCode, in 0..;
        throttle_time_ms: i32, in 0..;
        topics: Vec<OffsetDeleteResponseTopic>, in 0..;
    }

    /// The outcomes in one topic.
    pub struct OffsetDeleteResponseTopic {
        name: String, in 0..;
        partitions: Vec<OffsetDeleteResponsePartition>, in 0..;
    }

    /// The outcome of one partition.
    pub struct OffsetDeleteResponsePartition {
        partition_index: i32, in 0..;
        error_code: ErrorCode, in 0..;
    }
}

impl Request for OffsetDeleteRequest {
    const API: ApiKey = ApiKey::OffsetDelete;
    type Response = OffsetDeleteResponse;
}
