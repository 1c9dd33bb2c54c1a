//! Gives out producer ids and epochs; with a transactional id it fences earlier producers.
//!
//! Invariants: producer id and epoch are -1 for a producer that has none yet.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// Who asks.
    pub struct InitProducerIdRequest(versions 0..=5, flexible 2..) {
        transactional_id: Option<String> = Some(String::new()), in 0.., null 0..;
        transaction_timeout_ms: i32, in 0..;
        producer_id: i64 = -1, in 3..;
        producer_epoch: i16 = -1, in 3..;
    }

    /// The producer id and epoch to use from now on.
    pub struct InitProducerIdResponse(versions 0..=5, flexible 2..) {
        throttle_time_ms: i32, in 0..;
        error_code: ErrorCode, in 0..;
        producer_id: i64 = -1, in 0..;
        producer_epoch: i16, in 0..;
    }
}

impl Request for InitProducerIdRequest {
    const API: ApiKey = ApiKey::InitProducerId;
    type Response = InitProducerIdResponse;
}
