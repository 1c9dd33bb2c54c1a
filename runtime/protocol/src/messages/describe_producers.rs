//! Describes the producers that partitions have a state of.
//!
//! Invariants: a transaction's start offset of -1: none is open.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The partitions.
    pub struct DescribeProducersRequest(versions 0..=0, flexible 0..) {
        topics: Vec<TopicRequest>, in 0..;
    }

    /// Partitions of one topic.
    pub struct TopicRequest {
        name: String, in 0..;
        partition_indexes: Vec<i32>, in 0..;
    }

    /// Their producers.
    pub struct DescribeProducersResponse(versions 0..=0, flexible 0..) {
        throttle_time_ms: i32, in 0..;
        topics: Vec<TopicResponse>, in 0..;
    }

    /// The producers of one topic.
    pub struct TopicResponse {
        name: String, in 0..;
        partitions: Vec<PartitionResponse>, in 0..;
    }

    /// The producers of one partition.
    pub struct PartitionResponse {
        partition_index: i32, in 0..;
        error_code: ErrorCode, in 0..;
        error_message: Option<String>, in 0.., null 0..;
        active_producers: Vec<ProducerState>, in 0..;
    }

    /// What a partition knows of one producer.
    pub struct ProducerState {
        producer_id: i64, in 0..;
        producer_epoch: i32, in 0..;
        last_sequence: i32 = -1, in 0..;
        last_timestamp: i64 = -1, in 0..;
        coordinator_epoch: i32, in 0..;
        current_txn_start_offset: i64 = -1, in 0..;
    }
}

impl Request for DescribeProducersRequest {
    const API: ApiKey = ApiKey::DescribeProducers;
    type Response = DescribeProducersResponse;
}
