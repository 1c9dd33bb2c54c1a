//! Stores how far a group has come, if and when the transaction commits.
//!
//! Invariants: generation -1 and an empty member id: a committer that is no member.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The offsets, the transaction and the membership.
    pub struct TxnOffsetCommitRequest(versions 0..=5, flexible 3..) {
        transactional_id: String, in 0..;
        group_id: String, in 0..;
        producer_id: i64, in 0..;
        producer_epoch: i16, in 0..;
        generation_id: i32 = -1, in 3..;
        member_id: String, in 3..;
        group_instance_id: Option<String>, in 3.., null 3..;
        topics: Vec<TxnOffsetCommitRequestTopic>, in 0..;
    }

    /// The offsets of one topic.
    pub struct TxnOffsetCommitRequestTopic {
        name: String, in 0..;
        partitions: Vec<TxnOffsetCommitRequestPartition>, in 0..;
    }

    /// The next offset to read in one partition.
    pub struct TxnOffsetCommitRequestPartition {
        partition_index: i32, in 0..;
        committed_offset: i64, in 0..;
        committed_leader_epoch: i32 = -1, in 2.., else dropped;
        committed_metadata: Option<String> = Some(String::new()), in 0.., null 0..;
    }

    /// What became of each offset.
    pub struct TxnOffsetCommitResponse(versions 0..=5, flexible 3..) {
        throttle_time_ms: i32, in 0..;
        topics: Vec<TxnOffsetCommitResponseTopic>, in 0..;
    }

    /// The outcomes of one topic.
    pub struct TxnOffsetCommitResponseTopic {
        name: String, in 0..;
        partitions: Vec<TxnOffsetCommitResponsePartition>, in 0..;
    }

    /// The outcome of one partition.
    pub struct TxnOffsetCommitResponsePartition {
        partition_index: i32, in 0..;
        error_code: ErrorCode, in 0..;
    }
}

impl Request for TxnOffsetCommitRequest {
    const API: ApiKey = ApiKey::TxnOffsetCommit;
    type Response = TxnOffsetCommitResponse;
}
