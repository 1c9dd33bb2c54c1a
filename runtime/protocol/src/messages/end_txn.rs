//! Commits or aborts a transaction.
//!
//! Invariants: from version 5 on the answer gives the producer id and epoch for the next
//! transaction.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The transaction, and how it ends.
    pub struct EndTxnRequest(versions 0..=5, flexible 3..) {
        transactional_id: String, in 0..;
        producer_id: i64, in 0..;
        producer_epoch: i16, in 0..;
        committed: bool, in 0..;
    }

    /// Whether it has ended.
    pub struct EndTxnResponse(versions 0..=5, flexible 3..) {
        throttle_time_ms: i32, in 0..;
        error_code: ErrorCode, in 0..;
        producer_id: i64 = -1, in 5.., else dropped;
        producer_epoch: i16 = -1, in 5.., else dropped;
    }
}

impl Request for EndTxnRequest {
    const API: ApiKey = ApiKey::EndTxn;
    type Response = EndTxnResponse;
}
