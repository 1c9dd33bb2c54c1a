//! Finds the broker that coordinates a group or a transactional id.
//!
//! Invariants: one key up to version 3, a list of keys from 4 on; key type 0 is a group, 1 a
//! transactional id.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The keys to look up.
    pub struct FindCoordinatorRequest(versions 0..=6, flexible 3..) {
        key: String, in 0..=3;
        key_type: i8, in 1..;
        coordinator_keys: Vec<String>, in 4..;
    }

    /// The coordinators.
    pub struct FindCoordinatorResponse(versions 0..=6, flexible 3..) {
        throttle_time_ms: i32, in 1.., else dropped;
        error_code: ErrorCode, in 0..=3;
        error_message: Option<String>, in 1..=3, null 1..=3, else dropped;
        node_id: i32, in 0..=3;
        host: String, in 0..=3;
        port: i32, in 0..=3;
        coordinators: Vec<Coordinator>, in 4..;
    }

    /// The coordinator of one key.
    pub struct Coordinator {
        key: String, in 4..;
        node_id: i32, in 4..;
        host: String, in 4..;
        port: i32, in 4..;
        error_code: ErrorCode, in 4..;
        error_message: Option<String>, in 4.., null 4.., else dropped;
    }
}

impl Request for FindCoordinatorRequest {
    const API: ApiKey = ApiKey::FindCoordinator;
    type Response = FindCoordinatorResponse;
}
