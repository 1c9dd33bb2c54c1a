//! Adds partitions to topics.
//!
//! Invariants: the count is the new total.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The topics to enlarge.
    pub struct CreatePartitionsRequest(versions 0..=3, flexible 2..) {
        topics: Vec<CreatePartitionsTopic>, in 0..;
        timeout_ms: i32, in 0..;
        validate_only: bool, in 0..;
    }

    /// One topic and its new number of partitions.
    pub struct CreatePartitionsTopic {
        name: String, in 0..;
        count: i32, in 0..;
        assignments: Option<Vec<CreatePartitionsAssignment>> = Some(Vec::new()), in 0.., null 0..;
    }

    /// The brokers of one new partition.
    pub struct CreatePartitionsAssignment {
        broker_ids: Vec<i32>, in 0..;
    }

    /// What became of each topic.
    pub struct CreatePartitionsResponse(versions 0..=3, flexible 2..) {
        throttle_time_ms: i32, in 0..;
        results: Vec<CreatePartitionsTopicResult>, in 0..;
    }

    /// The outcome of one topic.
    pub struct CreatePartitionsTopicResult {
        name: String, in 0..;
        error_code: ErrorCode, in 0..;
        error_message: Option<String>, in 0.., null 0..;
    }
}

impl Request for CreatePartitionsRequest {
    const API: ApiKey = ApiKey::CreatePartitions;
    type Response = CreatePartitionsResponse;
}
