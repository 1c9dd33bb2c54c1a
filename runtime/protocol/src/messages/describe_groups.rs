//! Describes groups and their members.
//!
//! Invariants: a group that does not exist is described as dead, without an error, up to version 5.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use bytes::Bytes;

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The groups to describe.
    pub struct DescribeGroupsRequest(versions 0..=6, flexible 5..) {
        groups: Vec<String>, in 0..;
        include_authorized_operations: bool, in 3..;
    }

    /// The groups.
    pub struct DescribeGroupsResponse(versions 0..=6, flexible 5..) {
        throttle_time_ms: i32, in 1.., else dropped;
        groups: Vec<DescribedGroup>, in 0..;
    }

    /// One group and its members.
    pub struct DescribedGroup {
        error_code: ErrorCode, in 0..;
        error_message: Option<String>, in 6.., null 6..;
        group_id: String, in 0..;
        group_state: String, in 0..;
        protocol_type: String, in 0..;
        protocol_data: String, in 0..;
        members: Vec<DescribedGroupMember>, in 0..;
        authorized_operations: i32 = i32::MIN, in 3..;
    }

    /// A member, what it subscribed and what it was assigned.
    pub struct DescribedGroupMember {
        member_id: String, in 0..;
        group_instance_id: Option<String>, in 4.., null 4.., else dropped;
        client_id: String, in 0..;
        client_host: String, in 0..;
        member_metadata: Bytes, in 0..;
        member_assignment: Bytes, in 0..;
    }
}

impl Request for DescribeGroupsRequest {
    const API: ApiKey = ApiKey::DescribeGroups;
    type Response = DescribeGroupsResponse;
}
