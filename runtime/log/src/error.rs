//! What can go wrong with a data directory, said so that the reader knows the file, the position
//! and the next step.
//!
//! Invariants: every variant has one Kafka error code (`error_code`) for the wire.
//! Never: carries a bare `io::Error` without the path and the action that failed.

use std::io;
use std::path::{Path, PathBuf};

use millstream_protocol::ErrorCode;
use thiserror::Error;

/// Why an operation on the data directory, its journal or its catalogue failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LogError {
    /// The operating system refused an operation.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was tried: "open", "write", "sync", …
        action: &'static str,
        /// The file or directory, relative to the data directory.
        path: PathBuf,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// The disk has no room left for a write; nothing acknowledged is affected.
    #[error(
        "no space left to {action} {path}: free disk space or delete topics, then start again; \
         everything acknowledged is kept"
    )]
    StorageFull {
        /// What was tried.
        action: &'static str,
        /// The file or directory, relative to the data directory.
        path: PathBuf,
    },
    /// An earlier write or sync failed, so nothing more is accepted until the directory is opened
    /// again.
    #[error(
        "the data directory stopped accepting writes after a failure ({reason}); check the disk \
         and start again: recovery keeps everything that was acknowledged"
    )]
    Poisoned {
        /// The first failure.
        reason: String,
    },
    /// Another process works in this directory.
    #[error(
        "data directory {directory} is in use by another process (its lock file is held); stop \
         that process or choose another directory"
    )]
    Locked {
        /// The directory.
        directory: String,
    },
    /// The directory was written by a newer version.
    #[error(
        "data directory {directory} has format version {found}, and this version reads up to \
         {supported}; start it with the version that wrote it, or a later one"
    )]
    NewerFormat {
        /// The directory.
        directory: String,
        /// The format version in `meta.properties`.
        found: u32,
        /// The newest format version that this code reads.
        supported: u32,
    },
    /// The directory belongs to another cluster than the one configured.
    #[error(
        "data directory {directory} belongs to cluster {found}, not {expected}; choose the \
         directory of cluster {expected} or leave the cluster id unset"
    )]
    OtherCluster {
        /// The directory.
        directory: String,
        /// The cluster id in `meta.properties`.
        found: String,
        /// The configured cluster id.
        expected: String,
    },
    /// A file that was made durable does not hold what it must.
    #[error(
        "{path} is damaged at position {position}: {reason}; opening is refused because data \
         below this point was acknowledged. Restore the file from a copy, or delete the topic's \
         directory and its catalogue entry to give its records up"
    )]
    Corrupt {
        /// The file, relative to the data directory.
        path: PathBuf,
        /// Where in the file, in bytes.
        position: u64,
        /// What is wrong there.
        reason: String,
    },
    /// The name cannot be a topic.
    #[error("{name:?} is not a legal topic name: {reason}")]
    InvalidTopic {
        /// The refused name.
        name: String,
        /// Which rule it breaks.
        reason: String,
    },
    /// A setting has no meaning.
    #[error("setting {name} is not usable: {reason}")]
    InvalidConfig {
        /// The setting.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A topic needs at least one partition.
    #[error("topic {name} cannot have {partitions} partitions: use 1 to 100000")]
    InvalidPartitions {
        /// The topic.
        name: String,
        /// The refused count.
        partitions: i32,
    },
    /// A topic of that name is there already.
    #[error("topic {name} exists already")]
    TopicExists {
        /// The topic.
        name: String,
    },
    /// No topic of that name is there.
    #[error("topic {name} does not exist")]
    UnknownTopic {
        /// The topic.
        name: String,
    },
    /// The topic of that id is not there, whatever has its name now.
    #[error("the topic of that id, {name}, does not exist any more")]
    UnknownTopicId {
        /// What it was called.
        name: String,
    },
    /// The directory was closed, or the topic deleted, while the caller still held it.
    #[error("the data directory is closed, or the topic was deleted")]
    Closed,
}

impl LogError {
    /// Wraps what the operating system said about `path`.
    pub fn io(action: &'static str, path: impl AsRef<Path>, source: io::Error) -> LogError {
        let path = path.as_ref().to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                LogError::StorageFull { action, path }
            }
            _ => LogError::Io {
                action,
                path,
                source,
            },
        }
    }

    /// Whether the failure leaves files in an unknown state. What cannot be created or written was
    /// not acknowledged; a sync that fails, for whatever reason, may have lost data that was.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            LogError::Io { action, .. } | LogError::StorageFull { action, .. } => {
                matches!(*action, "sync" | "rename")
            }
            _ => false,
        }
    }

    /// The code that says this on the wire.
    pub fn error_code(&self) -> ErrorCode {
        match self {
            LogError::InvalidTopic { .. } => ErrorCode::INVALID_TOPIC_EXCEPTION,
            LogError::InvalidPartitions { .. } => ErrorCode::INVALID_PARTITIONS,
            LogError::InvalidConfig { .. } => ErrorCode::INVALID_CONFIG,
            LogError::TopicExists { .. } => ErrorCode::TOPIC_ALREADY_EXISTS,
            LogError::UnknownTopic { .. } => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            LogError::UnknownTopicId { .. } => ErrorCode::UNKNOWN_TOPIC_ID,
            LogError::Io { .. }
            | LogError::StorageFull { .. }
            | LogError::Poisoned { .. }
            | LogError::Locked { .. }
            | LogError::NewerFormat { .. }
            | LogError::OtherCluster { .. }
            | LogError::Corrupt { .. }
            | LogError::Closed => ErrorCode::KAFKA_STORAGE_ERROR,
        }
    }

    /// Damage found at a position of a file.
    pub fn corrupt(path: impl AsRef<Path>, position: u64, reason: impl Into<String>) -> LogError {
        LogError::Corrupt {
            path: path.as_ref().to_owned(),
            position,
            reason: reason.into(),
        }
    }
}
