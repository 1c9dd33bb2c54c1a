//! Describes topics page by page.
//!
//! Invariants: the response says in `next_cursor` where the next request goes on; null when it was
//! all.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;
use crate::primitives::Uuid;

message! {
    /// The topics to describe; none stands for all of them.
    pub struct DescribeTopicPartitionsRequest(versions 0..=0, flexible 0..) {
        topics: Vec<TopicRequest>, in 0..;
        response_partition_limit: i32 = 2000, in 0..;
        cursor: Option<Cursor> = None, in 0.., null 0..;
    }

    /// A topic by name.
    pub struct TopicRequest {
        name: String, in 0..;
    }

    /// The partition with which a page begins.
    pub struct Cursor {
        topic_name: String, in 0..;
        partition_index: i32, in 0..;
    }

    /// A page of topics.
    pub struct DescribeTopicPartitionsResponse(versions 0..=0, flexible 0..) {
        throttle_time_ms: i32, in 0..;
        topics: Vec<DescribeTopicPartitionsResponseTopic>, in 0..;
        next_cursor: Option<Cursor> = None, in 0.., null 0..;
    }

    /// A topic and its partitions on this page, or why it cannot be described.
    pub struct DescribeTopicPartitionsResponseTopic {
        error_code: ErrorCode, in 0..;
        name: Option<String> = Some(String::new()), in 0.., null 0..;
        topic_id: Uuid, in 0..;
        is_internal: bool, in 0..;
        partitions: Vec<DescribeTopicPartitionsResponsePartition>, in 0..;
        topic_authorized_operations: i32 = i32::MIN, in 0..;
    }

    /// A partition, its leader and its replicas.
    pub struct DescribeTopicPartitionsResponsePartition {
        error_code: ErrorCode, in 0..;
        partition_index: i32, in 0..;
        leader_id: i32, in 0..;
        leader_epoch: i32 = -1, in 0..;
        replica_nodes: Vec<i32>, in 0..;
        isr_nodes: Vec<i32>, in 0..;
        eligible_leader_replicas: Option<Vec<i32>> = None, in 0.., null 0..;
        last_known_elr: Option<Vec<i32>> = None, in 0.., null 0..;
        offline_replicas: Vec<i32>, in 0..;
    }
}

impl Request for DescribeTopicPartitionsRequest {
    const API: ApiKey = ApiKey::DescribeTopicPartitions;
    type Response = DescribeTopicPartitionsResponse;
}
