//! Describes groups of the consumer protocol: epochs, members, what they have and are to have.
//!
//! Invariants: a member's type is -1 (unknown), 0 (classic) or 1 (consumer), from version 1 on.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;
use crate::primitives::Uuid;

message! {
    /// The groups to describe.
    pub struct ConsumerGroupDescribeRequest(versions 0..=1, flexible 0..) {
        group_ids: Vec<String>, in 0..;
        include_authorized_operations: bool, in 0..;
    }

    /// The groups.
    pub struct ConsumerGroupDescribeResponse(versions 0..=1, flexible 0..) {
        throttle_time_ms: i32, in 0..;
        groups: Vec<DescribedGroup>, in 0..;
    }

    /// One group and its members.
    pub struct DescribedGroup {
        error_code: ErrorCode, in 0..;
        error_message: Option<String>, in 0.., null 0..;
        group_id: String, in 0..;
        group_state: String, in 0..;
        group_epoch: i32, in 0..;
        assignment_epoch: i32, in 0..;
        assignor_name: String, in 0..;
        members: Vec<Member>, in 0..;
        authorized_operations: i32 = i32::MIN, in 0..;
    }

    /// A member.
    pub struct Member {
        member_id: String, in 0..;
        instance_id: Option<String>, in 0.., null 0..;
        rack_id: Option<String>, in 0.., null 0..;
        member_epoch: i32, in 0..;
        client_id: String, in 0..;
        client_host: String, in 0..;
        subscribed_topic_names: Vec<String>, in 0..;
        subscribed_topic_regex: Option<String>, in 0.., null 0..;
        assignment: Assignment, in 0..;
        target_assignment: Assignment, in 0..;
        member_type: i8 = -1, in 1.., else dropped;
    }

    /// What a member has, or is to have.
    pub struct Assignment {
        topic_partitions: Vec<TopicPartitions>, in 0..;
    }

    /// Partitions of one topic.
    pub struct TopicPartitions {
        topic_id: Uuid, in 0..;
        topic_name: String, in 0..;
        partitions: Vec<i32>, in 0..;
    }
}

impl Request for ConsumerGroupDescribeRequest {
    const API: ApiKey = ApiKey::ConsumerGroupDescribe;
    type Response = ConsumerGroupDescribeResponse;
}
