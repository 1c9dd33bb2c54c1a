//! Tells what the data directories of a broker hold.
//!
//! Invariants: null topics ask for all of them; a size that is not known is -1.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The partitions to describe.
    pub struct DescribeLogDirsRequest(versions 1..=5, flexible 2..) {
        topics: Option<Vec<DescribableLogDirTopic>> = Some(Vec::new()), in 0.., null 0..;
    }

    /// Partitions of one topic.
    pub struct DescribableLogDirTopic {
        topic: String, in 0..;
        partitions: Vec<i32>, in 0..;
    }

    /// The directories.
    pub struct DescribeLogDirsResponse(versions 1..=5, flexible 2..) {
        throttle_time_ms: i32, in 0..;
        error_code: ErrorCode, in 3.., else dropped;
        results: Vec<DescribeLogDirsResult>, in 0..;
    }

    /// One directory and the volume that it is on.
    pub struct DescribeLogDirsResult {
        error_code: ErrorCode, in 0..;
        log_dir: String, in 0..;
        topics: Vec<DescribeLogDirsTopic>, in 0..;
        total_bytes: i64 = -1, in 4.., else dropped;
        usable_bytes: i64 = -1, in 4.., else dropped;
        is_cordoned: bool, in 5.., else dropped;
    }

    /// The partitions of one topic that are in it.
    pub struct DescribeLogDirsTopic {
        name: String, in 0..;
        partitions: Vec<DescribeLogDirsPartition>, in 0..;
    }

    /// The size of one partition.
    pub struct DescribeLogDirsPartition {
        partition_index: i32, in 0..;
        partition_size: i64, in 0..;
        offset_lag: i64, in 0..;
        is_future_key: bool, in 0..;
    }
}

impl Request for DescribeLogDirsRequest {
    const API: ApiKey = ApiKey::DescribeLogDirs;
    type Response = DescribeLogDirsResponse;
}
