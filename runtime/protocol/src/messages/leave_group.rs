//! Ends memberships.
//!
//! Invariants: one member up to version 2, a list from 3 on.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// Who leaves.
    pub struct LeaveGroupRequest(versions 0..=5, flexible 4..) {
        group_id: String, in 0..;
        member_id: String, in 0..=2;
        members: Vec<MemberIdentity>, in 3..;
    }

    /// A member, by id or by group instance id.
    pub struct MemberIdentity {
        member_id: String, in 3..;
        group_instance_id: Option<String>, in 3.., null 3..;
        reason: Option<String>, in 5.., null 5.., else dropped;
    }

    /// What became of each.
    pub struct LeaveGroupResponse(versions 0..=5, flexible 4..) {
        throttle_time_ms: i32, in 1.., else dropped;
        error_code: ErrorCode, in 0..;
        members: Vec<MemberResponse>, in 3..;
    }

    /// The outcome of one member.
    pub struct MemberResponse {
        member_id: String, in 3..;
        group_instance_id: Option<String> = Some(String::new()), in 3.., null 3..;
        error_code: ErrorCode, in 3..;
    }
}

impl Request for LeaveGroupRequest {
    const API: ApiKey = ApiKey::LeaveGroup;
    type Response = LeaveGroupResponse;
}
