//! Keeps a membership alive, and learns of a rebalance.
//!
//! Invariants: a response carries nothing but the error code.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The membership.
    pub struct HeartbeatRequest(versions 0..=4, flexible 4..) {
        group_id: String, in 0..;
        generation_id: i32, in 0..;
        member_id: String, in 0..;
        group_instance_id: Option<String>, in 3.., null 3..;
    }

    /// Whether it still holds.
    pub struct HeartbeatResponse(versions 0..=4, flexible 4..) {
        throttle_time_ms: i32, in 1.., else dropped;
        error_code: ErrorCode, in 0..;
    }
}

impl Request for HeartbeatRequest {
    const API: ApiKey = ApiKey::Heartbeat;
    type Response = HeartbeatResponse;
}
