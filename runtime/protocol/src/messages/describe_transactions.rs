//! Describes transactions by transactional id.
//!
//! Invariants: a start time of -1: no transaction is open.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The transactional ids.
    pub struct DescribeTransactionsRequest(versions 0..=0, flexible 0..) {
        transactional_ids: Vec<String>, in 0..;
    }

    /// Their transactions.
    pub struct DescribeTransactionsResponse(versions 0..=0, flexible 0..) {
        throttle_time_ms: i32, in 0..;
        transaction_states: Vec<TransactionState>, in 0..;
    }

    /// One transaction: its producer, state and partitions.
    pub struct TransactionState {
        error_code: ErrorCode, in 0..;
        transactional_id: String, in 0..;
        transaction_state: String, in 0..;
        transaction_timeout_ms: i32, in 0..;
        transaction_start_time_ms: i64, in 0..;
        producer_id: i64, in 0..;
        producer_epoch: i16, in 0..;
        topics: Vec<TopicData>, in 0..;
    }

    /// Partitions of one topic.
    pub struct TopicData {
        topic: String, in 0..;
        partitions: Vec<i32>, in 0..;
    }
}

impl Request for DescribeTransactionsRequest {
    const API: ApiKey = ApiKey::DescribeTransactions;
    type Response = DescribeTransactionsResponse;
}
