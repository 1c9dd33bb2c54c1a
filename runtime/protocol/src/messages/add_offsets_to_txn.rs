//! Adds a group's offsets to a transaction.
//!
//! Invariants: the offsets themselves come with TxnOffsetCommit.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The transaction and the group.
    pub struct AddOffsetsToTxnRequest(versions 0..=4, flexible 3..) {
        transactional_id: String, in 0..;
        producer_id: i64, in 0..;
        producer_epoch: i16, in 0..;
        group_id: String, in 0..;
    }

    /// Whether they were added.
    pub struct AddOffsetsToTxnResponse(versions 0..=4, flexible 3..) {
        throttle_time_ms: i32, in 0..;
        error_code: ErrorCode, in 0..;
    }
}

impl Request for AddOffsetsToTxnRequest {
    const API: ApiKey = ApiKey::AddOffsetsToTxn;
    type Response = AddOffsetsToTxnResponse;
}
