//! Deletes access rules.
//!
//! Invariants: null in a filter lets everything through.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// Which rules to delete.
    pub struct DeleteAclsRequest(versions 1..=3, flexible 2..) {
        filters: Vec<DeleteAclsFilter>, in 0..;
    }

    /// The rules that all of this holds for.
    pub struct DeleteAclsFilter {
        resource_type_filter: i8, in 0..;
        resource_name_filter: Option<String> = Some(String::new()), in 0.., null 0..;
        pattern_type_filter: i8 = 3, in 1..;
        principal_filter: Option<String> = Some(String::new()), in 0.., null 0..;
        host_filter: Option<String> = Some(String::new()), in 0.., null 0..;
        operation: i8, in 0..;
        permission_type: i8, in 0..;
    }

    /// What was deleted.
    pub struct DeleteAclsResponse(versions 1..=3, flexible 2..) {
        throttle_time_ms: i32, in 0..;
        filter_results: Vec<DeleteAclsFilterResult>, in 0..;
    }

    /// What one filter has deleted, in the order of the request.
    pub struct DeleteAclsFilterResult {
        error_code: ErrorCode, in 0..;
        error_message: Option<String> = Some(String::new()), in 0.., null 0..;
        matching_acls: Vec<DeleteAclsMatchingAcl>, in 0..;
    }

    /// One rule.
    pub struct DeleteAclsMatchingAcl {
        error_code: ErrorCode, in 0..;
        error_message: Option<String> = Some(String::new()), in 0.., null 0..;
        resource_type: i8, in 0..;
        resource_name: String, in 0..;
        pattern_type: i8 = 3, in 1..;
        principal: String, in 0..;
        host: String, in 0..;
        operation: i8, in 0..;
        permission_type: i8, in 0..;
    }
}

impl Request for DeleteAclsRequest {
    const API: ApiKey = ApiKey::DeleteAcls;
    type Response = DeleteAclsResponse;
}
