//! Deletes groups and their offsets.
//!
//! Invariants: a group with members is not deleted.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The groups to delete.
    pub struct DeleteGroupsRequest(versions 0..=2, flexible 2..) {
        groups_names: Vec<String>, in 0..;
    }

    /// What became of each.
    pub struct DeleteGroupsResponse(versions 0..=2, flexible 2..) {
        throttle_time_ms: i32, in 0..;
        results: Vec<DeletableGroupResult>, in 0..;
    }

    /// The outcome of one group.
    pub struct DeletableGroupResult {
        group_id: String, in 0..;
        error_code: ErrorCode, in 0..;
    }
}

impl Request for DeleteGroupsRequest {
    const API: ApiKey = ApiKey::DeleteGroups;
    type Response = DeleteGroupsResponse;
}
