//! Joins a group and waits until its members are known.
//!
//! Invariants: only the leader of the group gets the members.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use bytes::Bytes;

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// Who joins, and which assignors the member knows.
    pub struct JoinGroupRequest(versions 0..=9, flexible 6..) {
        group_id: String, in 0..;
        session_timeout_ms: i32, in 0..;
        rebalance_timeout_ms: i32 = -1, in 1.., else dropped;
        member_id: String, in 0..;
        group_instance_id: Option<String>, in 5.., null 5..;
        protocol_type: String, in 0..;
        protocols: Vec<JoinGroupRequestProtocol>, in 0..;
        reason: Option<String>, in 8.., null 8.., else dropped;
    }

    /// An assignor and what the member tells it.
    pub struct JoinGroupRequestProtocol {
        name: String, in 0..;
        metadata: Bytes, in 0..;
    }

    /// The generation that the member is part of.
    pub struct JoinGroupResponse(versions 0..=9, flexible 6..) {
        throttle_time_ms: i32, in 2.., else dropped;
        error_code: ErrorCode, in 0..;
        generation_id: i32 = -1, in 0..;
        protocol_type: Option<String>, in 7.., null 7.., else dropped;
        protocol_name: Option<String> = Some(String::new()), in 0.., null 7..;
        leader: String, in 0..;
        skip_assignment: bool, in 9..;
        member_id: String, in 0..;
        members: Vec<JoinGroupResponseMember>, in 0..;
    }

    /// A member, for the leader to assign to.
    pub struct JoinGroupResponseMember {
        member_id: String, in 0..;
        group_instance_id: Option<String>, in 5.., null 5.., else dropped;
        metadata: Bytes, in 0..;
    }
}

impl Request for JoinGroupRequest {
    const API: ApiKey = ApiKey::JoinGroup;
    type Response = JoinGroupResponse;
}
