//! What can go wrong with the broker as a whole, as its host sees it.
//!
//! Invariants: every message names the thing that failed and, where there is one, the next step.
//! Never: an answer to a request; those carry `ErrorCode`.

use millstream_log::LogError;
use millstream_protocol::ErrorCode;
use std::net::SocketAddr;

/// Why the broker could not start, listen, store or stop.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The log directory could not be opened, written or closed.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The address could not be bound.
    #[error("cannot listen on {address}: {source}; choose another port, or 0 for any free one")]
    Listen {
        /// The address that was asked for.
        address: SocketAddr,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A sync of the journal failed, so nothing more is acknowledged until the broker is opened
    /// again.
    #[error(
        "a sync of the journal failed: {reason}; free or repair the disk, then open the broker again"
    )]
    StorageFailed {
        /// What the failed sync said.
        reason: String,
    },
    /// An internal topic holds something that this broker cannot read; serving a part of it would
    /// lose data.
    #[error("{topic}-{partition} at offset {offset}: {reason}; restore the directory from a copy")]
    CorruptCoordinatorLog {
        /// The internal topic.
        topic: &'static str,
        /// Its partition.
        partition: i32,
        /// The offset of the record that cannot be read.
        offset: i64,
        /// What is wrong with it.
        reason: String,
    },
    /// The broker is being closed or has been halted.
    #[error("the broker has been stopped; open it again")]
    Stopped,
    /// There is no such setting.
    #[error("there is no setting {name}; {hint}")]
    UnknownSetting {
        /// As it was given.
        name: String,
        /// Which ones there are.
        hint: String,
    },
    /// A setting cannot be used.
    #[error("setting {name}: {reason}")]
    Config {
        /// The setting, in Kafka's spelling.
        name: &'static str,
        /// Why its value is refused.
        reason: String,
    },
}

impl BrokerError {
    /// The error code that a request gets which met this error.
    pub(crate) fn error_code(&self) -> ErrorCode {
        match self {
            Self::Log(_) | Self::StorageFailed { .. } => ErrorCode::KAFKA_STORAGE_ERROR,
            Self::CorruptCoordinatorLog { .. } | Self::Stopped => {
                ErrorCode::COORDINATOR_NOT_AVAILABLE
            }
            Self::Listen { .. } | Self::Config { .. } | Self::UnknownSetting { .. } => {
                ErrorCode::UNKNOWN_SERVER_ERROR
            }
        }
    }
}
