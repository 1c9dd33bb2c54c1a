//! Describes the brokers of the cluster.
//!
//! Invariants: every version is flexible.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// What to describe.
    pub struct DescribeClusterRequest(versions 0..=2, flexible 0..) {
        include_cluster_authorized_operations: bool, in 0..;
        endpoint_type: i8 = 1, in 1..;
        include_fenced_brokers: bool, in 2..;
    }

    /// The cluster.
    pub struct DescribeClusterResponse(versions 0..=2, flexible 0..) {
        throttle_time_ms: i32, in 0..;
        error_code: ErrorCode, in 0..;
        error_message: Option<String>, in 0.., null 0..;
        endpoint_type: i8 = 1, in 1..;
        cluster_id: String, in 0..;
        controller_id: i32 = -1, in 0..;
        brokers: Vec<DescribeClusterBroker>, in 0..;
        cluster_authorized_operations: i32 = i32::MIN, in 0..;
    }

    /// One broker and where it listens.
    pub struct DescribeClusterBroker {
        broker_id: i32, in 0..;
        host: String, in 0..;
        port: i32, in 0..;
        rack: Option<String>, in 0.., null 0..;
        is_fenced: bool, in 2..;
    }
}

impl Request for DescribeClusterRequest {
    const API: ApiKey = ApiKey::DescribeCluster;
    type Response = DescribeClusterResponse;
}
