//! Lists access rules.
//!
//! Invariants: null in a filter lets everything through.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The rules to list.
    pub struct DescribeAclsRequest(versions 1..=3, flexible 2..) {
        resource_type_filter: i8, in 0..;
        resource_name_filter: Option<String> = Some(String::new()), in 0.., null 0..;
        pattern_type_filter: i8 = 3, in 1..;
        principal_filter: Option<String> = Some(String::new()), in 0.., null 0..;
        host_filter: Option<String> = Some(String::new()), in 0.., null 0..;
        operation: i8, in 0..;
        permission_type: i8, in 0..;
    }

    /// The rules.
    pub struct DescribeAclsResponse(versions 1..=3, flexible 2..) {
        throttle_time_ms: i32, in 0..;
        error_code: ErrorCode, in 0..;
        error_message: Option<String> = Some(String::new()), in 0.., null 0..;
        resources: Vec<DescribeAclsResource>, in 0..;
    }

    /// The rules of one resource.
    pub struct DescribeAclsResource {
        resource_type: i8, in 0..;
        resource_name: String, in 0..;
        pattern_type: i8 = 3, in 1..;
        acls: Vec<AclDescription>, in 0..;
    }

    /// One rule.
    pub struct AclDescription {
        principal: String, in 0..;
        host: String, in 0..;
        operation: i8, in 0..;
        permission_type: i8, in 0..;
    }
}

impl Request for DescribeAclsRequest {
    const API: ApiKey = ApiKey::DescribeAcls;
    type Response = DescribeAclsResponse;
}
