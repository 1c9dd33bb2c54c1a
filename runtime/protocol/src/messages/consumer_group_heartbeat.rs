//! Joins a group of the consumer protocol, stays in it, takes and gives up partitions, leaves it.
//!
//! Invariants:
//! - member epoch 0 joins, -1 leaves, -2 is a static member that will be back
//! - null is what has not changed since the last heartbeat
//!
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;
use crate::primitives::Uuid;

message! {
    /// What the member wants, and what it owns.
    pub struct ConsumerGroupHeartbeatRequest(versions 0..=1, flexible 0..) {
        group_id: String, in 0..;
        member_id: String, in 0..;
        member_epoch: i32, in 0..;
        instance_id: Option<String>, in 0.., null 0..;
        rack_id: Option<String>, in 0.., null 0..;
        rebalance_timeout_ms: i32 = -1, in 0..;
        subscribed_topic_names: Option<Vec<String>>, in 0.., null 0..;
        subscribed_topic_regex: Option<String>, in 1.., null 1..;
        server_assignor: Option<String>, in 0.., null 0..;
        topic_partitions: Option<Vec<TopicPartitions>>, in 0.., null 0..;
    }

    /// Partitions of one topic.
    pub struct TopicPartitions {
        topic_id: Uuid, in 0..;
        partitions: Vec<i32>, in 0..;
    }

    /// The member's epoch, and what it may use when that has changed.
    pub struct ConsumerGroupHeartbeatResponse(versions 0..=1, flexible 0..) {
        throttle_time_ms: i32, in 0..;
        error_code: ErrorCode, in 0..;
        error_message: Option<String>, in 0.., null 0..;
        member_id: Option<String>, in 0.., null 0..;
        member_epoch: i32, in 0..;
        heartbeat_interval_ms: i32, in 0..;
        assignment: Option<Assignment>, in 0.., null 0..;
    }

    /// Everything that the member may use now.
    pub struct Assignment {
        topic_partitions: Vec<TopicPartitions>, in 0..;
    }
}

impl Request for ConsumerGroupHeartbeatRequest {
    const API: ApiKey = ApiKey::ConsumerGroupHeartbeat;
    type Response = ConsumerGroupHeartbeatResponse;
}
