//! Finds offsets by timestamp, and the ends of logs.
//!
//! Invariants: timestamp -1 asks for the end (last stable offset if isolated), -2 for the start, -3
//! for the newest timestamp.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The timestamps to look up.
    pub struct ListOffsetsRequest(versions 1..=11, flexible 6..) {
        replica_id: i32, in 0..;
        isolation_level: i8, in 2..;
        topics: Vec<ListOffsetsTopic>, in 0..;
        timeout_ms: i32, in 10.., else dropped;
    }

    /// The look-ups in one topic.
    pub struct ListOffsetsTopic {
        name: String, in 0..;
        partitions: Vec<ListOffsetsPartition>, in 0..;
    }

    /// The look-up in one partition.
    pub struct ListOffsetsPartition {
        partition_index: i32, in 0..;
        current_leader_epoch: i32 = -1, in 4.., else dropped;
        timestamp: i64, in 0..;
    }

    /// The offsets found.
    pub struct ListOffsetsResponse(versions 1..=11, flexible 6..) {
        throttle_time_ms: i32, in 2.., else dropped;
        topics: Vec<ListOffsetsTopicResponse>, in 0..;
    }

    /// The offsets of one topic.
    pub struct ListOffsetsTopicResponse {
        name: String, in 0..;
        partitions: Vec<ListOffsetsPartitionResponse>, in 0..;
    }

    /// The offset in one partition; -1 where there is none.
    pub struct ListOffsetsPartitionResponse {
        partition_index: i32, in 0..;
        error_code: ErrorCode, in 0..;
        timestamp: i64 = -1, in 1..;
        offset: i64 = -1, in 1..;
        leader_epoch: i32 = -1, in 4..;
    }
}

impl Request for ListOffsetsRequest {
    const API: ApiKey = ApiKey::ListOffsets;
    type Response = ListOffsetsResponse;
}
