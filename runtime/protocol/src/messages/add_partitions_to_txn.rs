//! Adds partitions to a transaction, or verifies that they are in it.
//!
//! Invariants: a producer uses versions up to 3, with one transaction; brokers use 4 and later.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The partitions, by transaction.
    pub struct AddPartitionsToTxnRequest(versions 0..=5, flexible 3..) {
        transactions: Vec<AddPartitionsToTxnTransaction>, in 4..;
        v3_and_below_transactional_id: String, in 0..=3;
        v3_and_below_producer_id: i64, in 0..=3;
        v3_and_below_producer_epoch: i16, in 0..=3;
        v3_and_below_topics: Vec<AddPartitionsToTxnTopic>, in 0..=3;
    }

    /// The partitions of one transaction.
    pub struct AddPartitionsToTxnTransaction {
        transactional_id: String, in 4..;
        producer_id: i64, in 4..;
        producer_epoch: i16, in 4..;
        verify_only: bool, in 4..;
        topics: Vec<AddPartitionsToTxnTopic>, in 4..;
    }

    /// Partitions of one topic.
    pub struct AddPartitionsToTxnTopic {
        name: String, in 0..;
        partitions: Vec<i32>, in 0..;
    }

    /// What became of each partition.
    pub struct AddPartitionsToTxnResponse(versions 0..=5, flexible 3..) {
        throttle_time_ms: i32, in 0..;
        error_code: ErrorCode, in 4.., else dropped;
        results_by_transaction: Vec<AddPartitionsToTxnResult>, in 4..;
        results_by_topic_v3_and_below: Vec<AddPartitionsToTxnTopicResult>, in 0..=3;
    }

    /// The outcomes of one transaction.
    pub struct AddPartitionsToTxnResult {
        transactional_id: String, in 4..;
        topic_results: Vec<AddPartitionsToTxnTopicResult>, in 4..;
    }

    /// The outcomes of one topic.
    pub struct AddPartitionsToTxnTopicResult {
        name: String, in 0..;
        results_by_partition: Vec<AddPartitionsToTxnPartitionResult>, in 0..;
    }

    /// The outcome of one partition.
    pub struct AddPartitionsToTxnPartitionResult {
        partition_index: i32, in 0..;
        partition_error_code: ErrorCode, in 0..;
    }
}

impl Request for AddPartitionsToTxnRequest {
    const API: ApiKey = ApiKey::AddPartitionsToTxn;
    type Response = AddPartitionsToTxnResponse;
}
