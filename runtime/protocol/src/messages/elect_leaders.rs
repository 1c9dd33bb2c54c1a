//! Elects leaders of partitions.
//!
//! Invariants: null partitions ask for all of them; election type 0 is the preferred leader, 1 any.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The partitions that are to get a leader.
    pub struct ElectLeadersRequest(versions 0..=2, flexible 2..) {
        election_type: i8, in 1..;
        topic_partitions: Option<Vec<TopicPartitions>> = Some(Vec::new()), in 0.., null 0..;
        timeout_ms: i32 = 60000, in 0..;
    }

    /// Partitions of one topic.
    pub struct TopicPartitions {
        topic: String, in 0..;
        partitions: Vec<i32>, in 0..;
    }

    /// What became of each partition.
    pub struct ElectLeadersResponse(versions 0..=2, flexible 2..) {
        throttle_time_ms: i32, in 0..;
        error_code: ErrorCode, in 1..;
        replica_election_results: Vec<ReplicaElectionResult>, in 0..;
    }

    /// The outcomes in one topic.
    pub struct ReplicaElectionResult {
        topic: String, in 0..;
        partition_result: Vec<PartitionResult>, in 0..;
    }

    /// The outcome of one partition.
    pub struct PartitionResult {
        partition_id: i32, in 0..;
        error_code: ErrorCode, in 0..;
        error_message: Option<String> = Some(String::new()), in 0.., null 0..;
    }
}

impl Request for ElectLeadersRequest {
    const API: ApiKey = ApiKey::ElectLeaders;
    type Response = ElectLeadersResponse;
}
