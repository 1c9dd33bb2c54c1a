//! Changes single settings of topics and brokers.
//!
//! Invariants: operation 0 sets, 1 deletes, 2 appends to a list, 3 subtracts from one.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The changes of each resource.
    pub struct IncrementalAlterConfigsRequest(versions 0..=1, flexible 1..) {
        resources: Vec<AlterConfigsResource>, in 0..;
        validate_only: bool, in 0..;
    }

    /// One resource; type 2 is a topic, 4 a broker.
    pub struct AlterConfigsResource {
        resource_type: i8, in 0..;
        resource_name: String, in 0..;
        configs: Vec<AlterableConfig>, in 0..;
    }

    /// A change of one setting.
    pub struct AlterableConfig {
        name: String, in 0..;
        config_operation: i8, in 0..;
        value: Option<String> = Some(String::new()), in 0.., null 0..;
    }

    /// What became of each resource.
    pub struct IncrementalAlterConfigsResponse(versions 0..=1, flexible 1..) {
        throttle_time_ms: i32, in 0..;
        responses: Vec<AlterConfigsResourceResponse>, in 0..;
    }

    /// The outcome of one resource.
    pub struct AlterConfigsResourceResponse {
        error_code: ErrorCode, in 0..;
        error_message: Option<String> = Some(String::new()), in 0.., null 0..;
        resource_type: i8, in 0..;
        resource_name: String, in 0..;
    }
}

impl Request for IncrementalAlterConfigsRequest {
    const API: ApiKey = ApiKey::IncrementalAlterConfigs;
    type Response = IncrementalAlterConfigsResponse;
}
