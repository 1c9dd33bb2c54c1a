//! Hands in the leader's assignments and gets one's own.
//!
//! Invariants: only the leader sends assignments.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use bytes::Bytes;

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The generation, and the assignments if the member leads it.
    pub struct SyncGroupRequest(versions 0..=5, flexible 4..) {
        group_id: String, in 0..;
        generation_id: i32, in 0..;
        member_id: String, in 0..;
        group_instance_id: Option<String>, in 3.., null 3..;
        protocol_type: Option<String>, in 5.., null 5.., else dropped;
        protocol_name: Option<String>, in 5.., null 5.., else dropped;
        assignments: Vec<SyncGroupRequestAssignment>, in 0..;
    }

    /// What one member is assigned.
    pub struct SyncGroupRequestAssignment {
        member_id: String, in 0..;
        assignment: Bytes, in 0..;
    }

    /// What the member is assigned.
    pub struct SyncGroupResponse(versions 0..=5, flexible 4..) {
        throttle_time_ms: i32, in 1.., else dropped;
        error_code: ErrorCode, in 0..;
        protocol_type: Option<String>, in 5.., null 5.., else dropped;
        protocol_name: Option<String>, in 5.., null 5.., else dropped;
        assignment: Bytes, in 0..;
    }
}

impl Request for SyncGroupRequest {
    const API: ApiKey = ApiKey::SyncGroup;
    type Response = SyncGroupResponse;
}
