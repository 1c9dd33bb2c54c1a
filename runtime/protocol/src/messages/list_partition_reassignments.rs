//! Lists the partitions that are moving to other brokers.
//!
//! Invariants: null topics ask for all of them.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The partitions to list.
    pub struct ListPartitionReassignmentsRequest(versions 0..=0, flexible 0..) {
        timeout_ms: i32 = 60000, in 0..;
        topics: Option<Vec<ListPartitionReassignmentsTopics>> = None, in 0.., null 0..;
    }

    /// Partitions of one topic.
    pub struct ListPartitionReassignmentsTopics {
        name: String, in 0..;
        partition_indexes: Vec<i32>, in 0..;
    }

    /// Those that are moving.
    pub struct ListPartitionReassignmentsResponse(versions 0..=0, flexible 0..) {
        throttle_time_ms: i32, in 0..;
        error_code: ErrorCode, in 0..;
        error_message: Option<String> = Some(String::new()), in 0.., null 0..;
        topics: Vec<OngoingTopicReassignment>, in 0..;
    }

    /// Those of one topic.
    pub struct OngoingTopicReassignment {
        name: String, in 0..;
        partitions: Vec<OngoingPartitionReassignment>, in 0..;
    }

    /// One partition and where it moves.
    pub struct OngoingPartitionReassignment {
        partition_index: i32, in 0..;
        replicas: Vec<i32>, in 0..;
        adding_replicas: Vec<i32>, in 0..;
        removing_replicas: Vec<i32>, in 0..;
    }
}

impl Request for ListPartitionReassignmentsRequest {
    const API: ApiKey = ApiKey::ListPartitionReassignments;
    type Response = ListPartitionReassignmentsResponse;
}
