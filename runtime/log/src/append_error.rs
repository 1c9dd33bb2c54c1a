//! Why an append or a read was refused, with the error code that says it on the wire.
//!
//! Invariants: after any of these errors the log holds what it held before.
//! Never: leaves the reader without the producer, the offset or the limit that matters.

use crate::error::LogError;
use crate::producer_state::machine::Refusal;
use millstream_protocol::{BatchError, ErrorCode};

/// Why an append was refused. Nothing was appended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The bytes are no valid record batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The batch breaks a rule for new records.
    #[error("invalid record batch: {rule}")]
    InvalidRecord {
        /// The rule.
        rule: &'static str,
    },
    /// Records without a key, for a compacted topic.
    #[error("records of a compacted topic need keys: {} of the batch have none", indexes.len())]
    WithoutKeys {
        /// Their places in the batch.
        indexes: Vec<i32>,
    },
    /// The batch carries the broker's kind of timestamp.
    #[error("a producer's batch must carry create time, not log append time")]
    InvalidTimestamp,
    /// Records' times are too far from the broker's.
    #[error(
        "a record has timestamp {timestamp_ms}, and the topic takes {earliest_ms} to {latest_ms} \
         (message.timestamp.before.max.ms, message.timestamp.after.max.ms)"
    )]
    TimestampOutOfRange {
        /// Of the first such record.
        timestamp_ms: i64,
        /// The earliest that is taken at this time.
        earliest_ms: i64,
        /// The latest.
        latest_ms: i64,
        /// Places in the batch of all such records.
        indexes: Vec<i32>,
    },
    /// The batch is larger than `max.message.bytes`.
    #[error("record batch of {size_bytes} bytes exceeds max.message.bytes={max_bytes}")]
    TooLarge {
        /// Of the batch.
        size_bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// The producer was fenced: a newer epoch has appended here.
    #[error(
        "producer {producer_id} has epoch {epoch}, but {current_epoch} was seen on this partition"
    )]
    InvalidProducerEpoch {
        /// The producer.
        producer_id: i64,
        /// In the batch.
        epoch: i16,
        /// In the log.
        current_epoch: i16,
    },
    /// The batch does not follow the producer's last one.
    #[error(
        "producer {producer_id} (epoch {epoch}) sent sequence {sequence}, {expected:?} was to follow"
    )]
    OutOfOrderSequence {
        /// The producer.
        producer_id: i64,
        /// Its epoch.
        epoch: i16,
        /// First sequence of the batch.
        sequence: i32,
        /// What would have been accepted.
        expected: Option<i32>,
    },
    /// A batch outside the transaction that its producer has open here.
    #[error(
        "producer {producer_id} sent a batch outside its transaction, open since offset {open_since}"
    )]
    InvalidTransactionState {
        /// The producer.
        producer_id: i64,
        /// First offset of the open transaction.
        open_since: i64,
    },
    /// The marker is from a transaction coordinator that was replaced.
    #[error(
        "marker for producer {producer_id} has coordinator epoch {coordinator_epoch}, \
         {current_epoch} was seen on this partition"
    )]
    CoordinatorFenced {
        /// The producer.
        producer_id: i64,
        /// In the marker.
        coordinator_epoch: i32,
        /// In the log.
        current_epoch: i32,
    },
    /// The log cannot be written.
    #[error(transparent)]
    Storage(#[from] LogError),
}

impl AppendError {
    /// The error on the wire.
    #[must_use]
    pub fn error_code(&self) -> ErrorCode {
        match self {
            AppendError::Batch(error) => batch_error_code(error),
            AppendError::InvalidRecord { .. } | AppendError::WithoutKeys { .. } => {
                ErrorCode::INVALID_RECORD
            }
            AppendError::InvalidTimestamp | AppendError::TimestampOutOfRange { .. } => {
                ErrorCode::INVALID_TIMESTAMP
            }
            AppendError::TooLarge { .. } => ErrorCode::MESSAGE_TOO_LARGE,
            AppendError::InvalidProducerEpoch { .. } => ErrorCode::INVALID_PRODUCER_EPOCH,
            AppendError::OutOfOrderSequence { .. } => ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER,
            AppendError::InvalidTransactionState { .. } => ErrorCode::INVALID_TXN_STATE,
            AppendError::CoordinatorFenced { .. } => ErrorCode::TRANSACTION_COORDINATOR_FENCED,
            AppendError::Storage(_) => ErrorCode::KAFKA_STORAGE_ERROR,
        }
    }

    pub(crate) fn refused(
        refusal: Refusal,
        producer_id: i64,
        epoch: i16,
        sequence: i32,
        coordinator_epoch: i32,
    ) -> AppendError {
        match refusal {
            Refusal::StaleEpoch { current } => AppendError::InvalidProducerEpoch {
                producer_id,
                epoch,
                current_epoch: current,
            },
            Refusal::Sequence { expected } => AppendError::OutOfOrderSequence {
                producer_id,
                epoch,
                sequence,
                expected,
            },
            Refusal::OutsideTransaction { open_since } => AppendError::InvalidTransactionState {
                producer_id,
                open_since,
            },
            Refusal::StaleCoordinator { current } => AppendError::CoordinatorFenced {
                producer_id,
                coordinator_epoch,
                current_epoch: current,
            },
        }
    }
}

fn batch_error_code(error: &BatchError) -> ErrorCode {
    match error {
        BatchError::TooShort { .. }
        | BatchError::WrongLength { .. }
        | BatchError::UnsupportedMagic { .. }
        | BatchError::WrongCrc { .. } => ErrorCode::CORRUPT_MESSAGE,
        BatchError::UnknownCodec { .. } => ErrorCode::UNSUPPORTED_COMPRESSION_TYPE,
        BatchError::TooLargeDecompressed { .. } | BatchError::TooLarge { .. } => {
            ErrorCode::MESSAGE_TOO_LARGE
        }
        _ => ErrorCode::INVALID_RECORD,
    }
}

/// Why a read was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// There is no such offset.
    #[error("offset {offset} is outside {log_start}..={log_end}")]
    OffsetOutOfRange {
        /// What was asked for.
        offset: i64,
        /// First offset.
        log_start: i64,
        /// Offset after the last.
        log_end: i64,
    },
    /// A batch that lies in the log fails its checksum; nothing beyond it is handed out.
    #[error("record batch at offset {offset}, position {position} of {path}: {reason}")]
    Corrupt {
        /// Where reading stopped.
        offset: i64,
        /// The log file.
        path: String,
        /// In that file.
        position: u64,
        /// What is wrong.
        reason: String,
    },
    /// The log cannot be read.
    #[error(transparent)]
    Storage(#[from] LogError),
}

impl ReadError {
    /// The error on the wire.
    #[must_use]
    pub fn error_code(&self) -> ErrorCode {
        match self {
            ReadError::OffsetOutOfRange { .. } => ErrorCode::OFFSET_OUT_OF_RANGE,
            ReadError::Corrupt { .. } => ErrorCode::CORRUPT_MESSAGE,
            ReadError::Storage(_) => ErrorCode::KAFKA_STORAGE_ERROR,
        }
    }
}
