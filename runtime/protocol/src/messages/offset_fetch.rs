//! Reads how far groups have come.
//!
//! Invariants:
//! - one group up to version 7, a list from 8 on; topics by id from 10 on
//! - null topics ask for all that the group has
//!
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;
use crate::primitives::Uuid;

message! {
    /// The groups and partitions asked for, and whether open transactions must be waited out.
    pub struct OffsetFetchRequest(versions 1..=10, flexible 6..) {
        group_id: String, in 0..=7;
        topics: Option<Vec<OffsetFetchRequestTopic>> = Some(Vec::new()), in 0..=7, null 2..=7;
        groups: Vec<OffsetFetchRequestGroup>, in 8..;
        require_stable: bool, in 7..;
    }

    /// The partitions of one topic, up to version 7.
    pub struct OffsetFetchRequestTopic {
        name: String, in 0..=7;
        partition_indexes: Vec<i32>, in 0..=7;
    }

    /// One group, from version 8 on.
    pub struct OffsetFetchRequestGroup {
        group_id: String, in 8..;
        member_id: Option<String>, in 9.., null 9.., else dropped;
        member_epoch: i32 = -1, in 9.., else dropped;
        topics: Option<Vec<OffsetFetchRequestTopics>> = Some(Vec::new()), in 8.., null 8..;
    }

    /// The partitions of one topic, from version 8 on.
    pub struct OffsetFetchRequestTopics {
        name: String, in 8..=9, else dropped;
        topic_id: Uuid, in 10.., else dropped;
        partition_indexes: Vec<i32>, in 8..;
    }

    /// The offsets found.
    pub struct OffsetFetchResponse(versions 1..=10, flexible 6..) {
        throttle_time_ms: i32, in 3.., else dropped;
        topics: Vec<OffsetFetchResponseTopic>, in 0..=7;
        error_code: ErrorCode, in 2..=7, else dropped;
        groups: Vec<OffsetFetchResponseGroup>, in 8..;
    }

    /// The offsets of one topic, up to version 7.
    pub struct OffsetFetchResponseTopic {
        name: String, in 0..=7;
        partitions: Vec<OffsetFetchResponsePartition>, in 0..=7;
    }

    /// The offset of one partition, up to version 7; -1 if there is none.
    pub struct OffsetFetchResponsePartition {
        partition_index: i32, in 0..=7;
        committed_offset: i64, in 0..=7;
        committed_leader_epoch: i32 = -1, in 5..=7, else dropped;
        metadata: Option<String> = Some(String::new()), in 0..=7, null 0..=7;
        error_code: ErrorCode, in 0..=7;
    }

    /// The offsets of one group, from version 8 on.
    pub struct OffsetFetchResponseGroup {
        group_id: String, in 8..;
        topics: Vec<OffsetFetchResponseTopics>, in 8..;
        error_code: ErrorCode, in 8..;
    }

    /// The offsets of one topic, from version 8 on.
    pub struct OffsetFetchResponseTopics {
        name: String, in 8..=9, else dropped;
        topic_id: Uuid, in 10.., else dropped;
        partitions: Vec<OffsetFetchResponsePartitions>, in 8..;
    }

    /// The offset of one partition, from version 8 on; -1 if there is none.
    pub struct OffsetFetchResponsePartitions {
        partition_index: i32, in 8..;
        committed_offset: i64, in 8..;
        committed_leader_epoch: i32 = -1, in 8.., else dropped;
        metadata: Option<String> = Some(String::new()), in 8.., null 8..;
        error_code: ErrorCode, in 8..;
    }
}

impl Request for OffsetFetchRequest {
    const API: ApiKey = ApiKey::OffsetFetch;
    type Response = OffsetFetchResponse;
}
