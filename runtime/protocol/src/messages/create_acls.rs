//! Makes access rules.
//!
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The rules to make.
    pub struct CreateAclsRequest(versions 1..=3, flexible 2..) {
        creations: Vec<AclCreation>, in 0..;
    }

    /// One rule.
    pub struct AclCreation {
        resource_type: i8, in 0..;
        resource_name: String, in 0..;
        resource_pattern_type: i8 = 3, in 1..;
        principal: String, in 0..;
        host: String, in 0..;
        operation: i8, in 0..;
        permission_type: i8, in 0..;
    }

    /// What became of them.
    pub struct CreateAclsResponse(versions 1..=3, flexible 2..) {
        throttle_time_ms: i32, in 0..;
        results: Vec<AclCreationResult>, in 0..;
    }

    /// What became of one rule, in the order of the request.
    pub struct AclCreationResult {
        error_code: ErrorCode, in 0..;
        error_message: Option<String> = Some(String::new()), in 0.., null 0..;
    }
}

impl Request for CreateAclsRequest {
    const API: ApiKey = ApiKey::CreateAcls;
    type Response = CreateAclsResponse;
}
