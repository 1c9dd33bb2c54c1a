//! Stores how far a group has come.
//!
//! Invariants:
//! - topics go by name up to version 9, by id from 10 on
//! - generation -1 and an empty member id: a committer that is no member
//!
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;
use crate::primitives::Uuid;

message! {
    /// The offsets to store, and the membership that entitles to it.
    pub struct OffsetCommitRequest(versions 2..=10, flexible 8..) {
        group_id: String, in 0..;
        generation_id_or_member_epoch: i32 = -1, in 1..;
        member_id: String, in 1..;
        group_instance_id: Option<String>, in 7.., null 7..;
        retention_time_ms: i64 = -1, in 2..=4, else dropped;
        topics: Vec<OffsetCommitRequestTopic>, in 0..;
    }

    /// The offsets of one topic.
    pub struct OffsetCommitRequestTopic {
        name: String, in 0..=9, else dropped;
        topic_id: Uuid, in 10.., else dropped;
        partitions: Vec<OffsetCommitRequestPartition>, in 0..;
    }

    /// The next offset to read in one partition.
    pub struct OffsetCommitRequestPartition {
        partition_index: i32, in 0..;
        committed_offset: i64, in 0..;
        committed_leader_epoch: i32 = -1, in 6.., else dropped;
        committed_metadata: Option<String> = Some(String::new()), in 0.., null 0..;
    }

    /// What became of each offset.
    pub struct OffsetCommitResponse(versions 2..=10, flexible 8..) {
        throttle_time_ms: i32, in 3.., else dropped;
        topics: Vec<OffsetCommitResponseTopic>, in 0..;
    }

    /// The outcomes of one topic.
    pub struct OffsetCommitResponseTopic {
        name: String, in 0..=9, else dropped;
        topic_id: Uuid, in 10.., else dropped;
        partitions: Vec<OffsetCommitResponsePartition>, in 0..;
    }

    /// The outcome of one partition.
    pub struct OffsetCommitResponsePartition {
        partition_index: i32, in 0..;
        error_code: ErrorCode, in 0..;
    }
}

impl Request for OffsetCommitRequest {
    const API: ApiKey = ApiKey::OffsetCommit;
    type Response = OffsetCommitResponse;
}
