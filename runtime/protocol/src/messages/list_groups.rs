//! Lists the groups that a broker coordinates.
//!
//! Invariants: an empty filter lets everything through.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The states and types to list.
    pub struct ListGroupsRequest(versions 0..=5, flexible 3..) {
        states_filter: Vec<String>, in 4..;
        types_filter: Vec<String>, in 5..;
    }

    /// The groups.
    pub struct ListGroupsResponse(versions 0..=5, flexible 3..) {
        throttle_time_ms: i32, in 1.., else dropped;
        error_code: ErrorCode, in 0..;
        groups: Vec<ListedGroup>, in 0..;
    }

    /// One group.
    pub struct ListedGroup {
        group_id: String, in 0..;
        protocol_type: String, in 0..;
        group_state: String, in 4.., else dropped;
        group_type: String, in 5.., else dropped;
    }
}

impl Request for ListGroupsRequest {
    const API: ApiKey = ApiKey::ListGroups;
    type Response = ListGroupsResponse;
}
