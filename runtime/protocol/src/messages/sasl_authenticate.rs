//! Carries one message of a SASL mechanism and the answer to it.
//!
//! Invariants: the bytes are the mechanism's.
//! Never: more than the table of fields; meaning is the broker's and the client's.

use crate::api::{ApiKey, Request};
use crate::error::ErrorCode;
use crate::message;
use crate::primitives::SecretBytes;

message! {
    /// What the client says; in PLAIN that is the password.
    pub struct SaslAuthenticateRequest(versions 0..=2, flexible 2..) {
        auth_bytes: SecretBytes, in 0..;
    }

    /// What the broker says, and for how long it believes the client.
    pub struct SaslAuthenticateResponse(versions 0..=2, flexible 2..) {
        error_code: ErrorCode, in 0..;
        error_message: Option<String> = Some(String::new()), in 0.., null 0..;
        auth_bytes: SecretBytes, in 0..;
        session_lifetime_ms: i64, in 1.., else dropped;
    }
}

impl Request for SaslAuthenticateRequest {
    const API: ApiKey = ApiKey::SaslAuthenticate;
    type Response = SaslAuthenticateResponse;
}
