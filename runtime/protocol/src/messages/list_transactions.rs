//! Lists the transactional ids that a broker coordinates.
//!
//! Invariants: an empty filter lets everything through.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The filters: states, producer ids, least duration, pattern.
    pub struct ListTransactionsRequest(versions 0..=2, flexible 0..) {
        state_filters: Vec<String>, in 0..;
        producer_id_filters: Vec<i64>, in 0..;
        duration_filter: i64 = -1, in 1..;
        transactional_id_pattern: Option<String>, in 2.., null 2..;
    }

    /// The transactional ids.
    pub struct ListTransactionsResponse(versions 0..=2, flexible 0..) {
        throttle_time_ms: i32, in 0..;
        error_code: ErrorCode, in 0..;
        unknown_state_filters: Vec<String>, in 0..;
        transaction_states: Vec<TransactionState>, in 0..;
    }

    /// One transactional id, its producer and state.
    pub struct TransactionState {
        transactional_id: String, in 0..;
        producer_id: i64, in 0..;
        transaction_state: String, in 0..;
    }
}

impl Request for ListTransactionsRequest {
    const API: ApiKey = ApiKey::ListTransactions;
    type Response = ListTransactionsResponse;
}
