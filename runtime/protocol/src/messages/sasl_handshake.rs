//! Chooses the way by which a client proves who it is.
//!
//! Invariants: none of the versions is flexible.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;

message! {
    /// The mechanism. From version 1 on its bytes travel in SaslAuthenticate.
    pub struct SaslHandshakeRequest(versions 0..=1) {
        mechanism: String, in 0..;
    }

    /// Whether it is one of the broker's, which are all listed.
    pub struct SaslHandshakeResponse(versions 0..=1) {
        error_code: ErrorCode, in 0..;
        mechanisms: Vec<String>, in 0..;
    }
}

impl Request for SaslHandshakeRequest {
    const API: ApiKey = ApiKey::SaslHandshake;
    type Response = SaslHandshakeResponse;
}
