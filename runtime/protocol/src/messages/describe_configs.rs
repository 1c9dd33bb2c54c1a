//! Reads the settings of topics and brokers.
//!
//! Invariants: null keys ask for all settings; resource type 2 is a topic, 4 a broker.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The resources and keys.
    pub struct DescribeConfigsRequest(versions 1..=4, flexible 4..) {
        resources: Vec<DescribeConfigsResource>, in 0..;
        include_synonyms: bool, in 1..;
        include_documentation: bool, in 3..;
    }

    /// One resource.
    pub struct DescribeConfigsResource {
        resource_type: i8, in 0..;
        resource_name: String, in 0..;
        configuration_keys: Option<Vec<String>> = Some(Vec::new()), in 0.., null 0..;
    }

    /// Their settings.
    pub struct DescribeConfigsResponse(versions 1..=4, flexible 4..) {
        throttle_time_ms: i32, in 0..;
        results: Vec<DescribeConfigsResult>, in 0..;
    }

    /// The settings of one resource.
    pub struct DescribeConfigsResult {
        error_code: ErrorCode, in 0..;
        error_message: Option<String>, in 0.., null 0..;
        resource_type: i8, in 0..;
        resource_name: String, in 0..;
        configs: Vec<DescribeConfigsResourceResult>, in 0..;
    }

    /// One setting, its value and where that comes from.
    pub struct DescribeConfigsResourceResult {
        name: String, in 0..;
        value: Option<String> = Some(String::new()), in 0.., null 0..;
        read_only: bool, in 0..;
        config_source: i8 = -1, in 1..;
        is_sensitive: bool, in 0..;
        synonyms: Vec<DescribeConfigsSynonym>, in 1..;
        config_type: i8, in 3.., else dropped;
        documentation: Option<String> = Some(String::new()), in 3.., null 0.., else dropped;
    }

    /// Another place where the value could come from.
    pub struct DescribeConfigsSynonym {
        name: String, in 1..;
        value: Option<String> = Some(String::new()), in 1.., null 0..;
        source: i8, in 1..;
    }
}

impl Request for DescribeConfigsRequest {
    const API: ApiKey = ApiKey::DescribeConfigs;
    type Response = DescribeConfigsResponse;
}
