//! Creates topics.
//!
//! Invariants: -1 partitions or replicas asks for the broker's default.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;
use crate::primitives::Uuid;

message! {
    /// The topics to create.
    pub struct CreateTopicsRequest(versions 2..=7, flexible 5..) {
        topics: Vec<CreatableTopic>, in 0..;
        timeout_ms: i32 = 60000, in 0..;
        validate_only: bool, in 1..;
    }

    /// A topic to create.
    pub struct CreatableTopic {
        name: String, in 0..;
        num_partitions: i32, in 0..;
        replication_factor: i16, in 0..;
        assignments: Vec<CreatableReplicaAssignment>, in 0..;
        configs: Vec<CreatableTopicConfig>, in 0..;
    }

    /// The brokers that hold one partition.
    pub struct CreatableReplicaAssignment {
        partition_index: i32, in 0..;
        broker_ids: Vec<i32>, in 0..;
    }

    /// A setting of the new topic.
    pub struct CreatableTopicConfig {
        name: String, in 0..;
        value: Option<String> = Some(String::new()), in 0.., null 0..;
    }

    /// What became of each topic.
    pub struct CreateTopicsResponse(versions 2..=7, flexible 5..) {
        throttle_time_ms: i32, in 2..;
        topics: Vec<CreatableTopicResult>, in 0..;
    }

    /// The outcome of one topic.
    pub struct CreatableTopicResult {
        name: String, in 0..;
        topic_id: Uuid, in 7.., else dropped;
        error_code: ErrorCode, in 0..;
        error_message: Option<String>, in 1.., null 0..;
        topic_config_error_code: ErrorCode, in 5.., tag 0, else dropped;
        num_partitions: i32 = -1, in 5.., else dropped;
        replication_factor: i16 = -1, in 5.., else dropped;
        configs: Option<Vec<CreatableTopicConfigs>> = Some(Vec::new()),
            in 5.., null 5.., else dropped;
    }

    /// A setting of the topic as created.
    pub struct CreatableTopicConfigs {
        name: String, in 5..;
        value: Option<String> = Some(String::new()), in 5.., null 5..;
        read_only: bool, in 5..;
        config_source: i8 = -1, in 5.., else dropped;
        is_sensitive: bool, in 5..;
    }
}

impl Request for CreateTopicsRequest {
    const API: ApiKey = ApiKey::CreateTopics;
    type Response = CreateTopicsResponse;
}
