//! Lists what has settings: topics, brokers, groups.
//!
//! Invariants: version 0 asks for client metrics only; no types ask for all that there are.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The types of resources to list.
    pub struct ListConfigResourcesRequest(versions 0..=1, flexible 0..) {
        resource_types: Vec<i8>, in 1..;
    }

    /// The resources.
    pub struct ListConfigResourcesResponse(versions 0..=1, flexible 0..) {
        throttle_time_ms: i32, in 0..;
        error_code: ErrorCode, in 0..;
        config_resources: Vec<ConfigResource>, in 0..;
    }

    /// One resource; type 2 is a topic, 4 a broker, 16 client metrics, 32 a group.
    pub struct ConfigResource {
        resource_name: String, in 0..;
        resource_type: i8 = 16, in 1.., else dropped;
    }
}

impl Request for ListConfigResourcesRequest {
    const API: ApiKey = ApiKey::ListConfigResources;
    type Response = ListConfigResourcesResponse;
}
