//! Finds where leader epochs end, to notice a truncated log.
//!
//! Invariants: an end offset of -1: the epoch is not known.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The epochs asked for.
    pub struct OffsetForLeaderEpochRequest(versions 2..=4, flexible 4..) {
        replica_id: i32 = -2, in 3.., else dropped;
        topics: Vec<OffsetForLeaderTopic>, in 0..;
    }

    /// The epochs in one topic.
    pub struct OffsetForLeaderTopic {
        topic: String, in 0..;
        partitions: Vec<OffsetForLeaderPartition>, in 0..;
    }

    /// The epoch in one partition.
    pub struct OffsetForLeaderPartition {
        partition: i32, in 0..;
        current_leader_epoch: i32 = -1, in 2..;
        leader_epoch: i32, in 0..;
    }

    /// Where they end.
    pub struct OffsetForLeaderEpochResponse(versions 2..=4, flexible 4..) {
        throttle_time_ms: i32, in 2..;
        topics: Vec<OffsetForLeaderTopicResult>, in 0..;
    }

    /// The ends in one topic.
    pub struct OffsetForLeaderTopicResult {
        topic: String, in 0..;
        partitions: Vec<EpochEndOffset>, in 0..;
    }

    /// The end in one partition.
    pub struct EpochEndOffset {
        error_code: ErrorCode, in 0..;
        partition: i32, in 0..;
        leader_epoch: i32 = -1, in 1..;
        end_offset: i64 = -1, in 0..;
    }
}

impl Request for OffsetForLeaderEpochRequest {
    const API: ApiKey = ApiKey::OffsetForLeaderEpoch;
    type Response = OffsetForLeaderEpochResponse;
}
