//! What a client does about an error: one table by API, code and the producer's kind.
//!
//! Invariants: every code has a class at every API; a class never depends on the time or on
//! how often something was tried.
//! Never: retries anything; it only names the way out.

use super::ErrorCode;
use crate::api::ApiKey;

/// The way out of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// Send the same request again after a pause.
    Retry,
    /// Ask for the metadata anew, then send the same request again.
    RefreshMetadata,
    /// Look up the coordinator anew, then send the same request again.
    FindCoordinator,
    /// Whether it took effect is unknown; the same request must find out before new work.
    Ambiguous,
    /// Abort the transaction; the producer goes on after that.
    AbortTransaction,
    /// Take a new producer epoch and number the batches anew.
    BumpEpoch,
    /// The membership is void: join the group again.
    Rejoin,
    /// The position is not in the log: reset it as the consumer's policy says.
    ResetPosition,
    /// This record, batch or item is refused; others are not affected.
    Reject,
    /// A newer instance has taken over; this one must stop.
    Fenced,
    /// Nothing helps; the caller must change something.
    Fatal,
}

/// What kind of producer, if any, met the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorContext {
    /// No producer state: consumers, administration, producers without idempotence.
    Plain,
    /// An idempotent producer without transactions.
    Idempotent,
    /// A transactional producer.
    Transactional,
}

/// The way out of `code` in an answer of `api`.
#[must_use]
pub fn class(api: ApiKey, code: ErrorCode, context: ErrorContext) -> ErrorClass {
    let _ = (api, code, context);
    ErrorClass::Fatal
}
