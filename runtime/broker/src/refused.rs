//! Why a part of a request is refused: the code, and what its user gets to read.
//!
//! Invariants: the message names what was asked for and what would do.
//! Never: `ErrorCode::NONE`.

use millstream_protocol::ErrorCode;

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) code: ErrorCode,
    pub(crate) message: String,
}

impl From<ErrorCode> for Refused {
    fn from(code: ErrorCode) -> Self {
        Self::new(code, code.description())
    }
}

impl Refused {
    /// A refusal for this reason.
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// A request that contradicts itself or the broker's rules.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::INVALID_REQUEST, message)
    }

    /// There is no such topic.
    pub(crate) fn unknown_topic(name: &str) -> Self {
        let message = format!("topic '{name}' does not exist");
        Self::new(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, message)
    }

    /// What cannot be carried out, for a reason that is in the log.
    pub(crate) fn failed(code: ErrorCode) -> Self {
        Self::new(code, "it could not be stored; see the broker's log")
    }

    /// Code and message of an answer.
    pub(crate) fn parts<T>(outcome: Result<T, Refused>) -> (ErrorCode, Option<String>) {
        match outcome {
            Ok(_) => (ErrorCode::NONE, None),
            Err(refused) => (refused.code, Some(told(refused.message))),
        }
    }
}

/// Longest text of an error, in bytes: a client reads no string of more than 32,767.
const TOLD_BYTES_MAX: usize = 2 << 10;

/// A text as it is told: it may quote what a client has sent.
pub(crate) fn told(mut message: String) -> String {
    if message.len() > TOLD_BYTES_MAX {
        let end = message.floor_char_boundary(TOLD_BYTES_MAX);
        message.truncate(end);
        message.push('…');
    }
    message
}
