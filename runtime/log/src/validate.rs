//! Checks of batches before they are appended: what a client sends is walked once, and never
//! changed but for the broker's timestamp.
//!
//! Invariants: what passes is one well-formed v2 batch with consecutive offset deltas (a client's),
//! or markers only, or the broker's own batches.
//! Never: re-encodes records; looks at producer state.

use crate::append_error::AppendError;
use crate::partition::AppendOrigin;
use crate::partition_config::PartitionConfig;
use bytes::Bytes;
use millstream_protocol::{BatchSummary, RecordBatch, RecordView, TimestampType};

const NO_TIMESTAMP: i64 = -1;
/// Of the broker's own batches, where a topic does not take larger ones.
const OWN_BATCH_BYTES_MAX: usize = 16 << 20;

/// The batches of an append, checked and with the timestamps they will have in the log.
pub(crate) fn checked_batches(
    mut bytes: Bytes,
    origin: AppendOrigin,
    config: &PartitionConfig,
    now_ms: i64,
) -> Result<Vec<RecordBatch>, AppendError> {
    let is_client = matches!(origin, AppendOrigin::Client | AppendOrigin::LegacyClient);
    let mut batches = Vec::with_capacity(1);
    while !bytes.is_empty() {
        let batch = match RecordBatch::split_from(&mut bytes)? {
            Some(batch) => batch,
            // Not a whole batch: say what is wrong with it.
            None => RecordBatch::parse(std::mem::take(&mut bytes))?,
        };
        let batch = if is_client {
            checked_client_batch(batch, config, now_ms)?
        } else {
            check_own_batch(&batch, origin, config)?;
            batch
        };
        batches.push(batch);
    }
    if batches.is_empty() || (is_client && batches.len() > 1) {
        return Err(AppendError::InvalidRecord {
            rule: "exactly one record batch a partition",
        });
    }
    if config.log_append_time && !matches!(origin, AppendOrigin::Marker { .. }) {
        for batch in &mut batches {
            *batch = RecordBatch::parse(batch.with_log_append_time(now_ms))?;
        }
    }
    Ok(batches)
}

fn check_own_batch(
    batch: &RecordBatch,
    origin: AppendOrigin,
    config: &PartitionConfig,
) -> Result<(), AppendError> {
    let rule = match origin {
        AppendOrigin::Marker { .. } => {
            if batch.control()?.is_some() && batch.producer_id() >= 0 {
                return Ok(());
            }
            "a marker is a control batch of a producer"
        }
        _ if !batch.is_control() => return check_own_size(batch, config),
        _ => "a control batch needs a marker's origin",
    };
    Err(AppendError::InvalidRecord { rule })
}

/// What the broker itself has to write down is not for a small `max.message.bytes` to refuse: a
/// coordinator that cannot write can never go on. But clients bring what is in it.
fn check_own_size(batch: &RecordBatch, config: &PartitionConfig) -> Result<(), AppendError> {
    let (size_bytes, max_bytes) = (
        batch.size_bytes(),
        config.max_message_bytes.max(OWN_BATCH_BYTES_MAX),
    );
    if size_bytes > max_bytes {
        return Err(AppendError::TooLarge {
            size_bytes,
            max_bytes,
        });
    }
    Ok(())
}

fn checked_client_batch(
    batch: RecordBatch,
    config: &PartitionConfig,
    now_ms: i64,
) -> Result<RecordBatch, AppendError> {
    batch.verify_crc()?;
    if let Some(rule) = broken_rule(&batch) {
        return Err(AppendError::InvalidRecord { rule });
    }
    if batch.timestamp_type() == TimestampType::LogAppendTime {
        return Err(AppendError::InvalidTimestamp);
    }
    if batch.size_bytes() > config.max_message_bytes {
        let size_bytes = batch.size_bytes();
        return Err(AppendError::TooLarge {
            size_bytes,
            max_bytes: config.max_message_bytes,
        });
    }
    let summary = batch.validate_records(config.max_decompressed_bytes)?;
    if config.compact && summary.without_key > 0 {
        return Err(AppendError::WithoutKeys {
            indexes: records_where(&batch, config, |record| record.key.is_none())?,
        });
    }
    if config.log_append_time {
        return Ok(batch);
    }
    check_times(&batch, &summary, config, now_ms)?;
    // Look-ups by time go by the header, which some producers do not keep.
    Ok(if batch.max_timestamp() == summary.max_timestamp {
        batch
    } else {
        RecordBatch::parse(batch.with_max_timestamp(summary.max_timestamp))?
    })
}

/// A record without a time is taken at any time.
fn check_times(
    batch: &RecordBatch,
    summary: &BatchSummary,
    config: &PartitionConfig,
    now_ms: i64,
) -> Result<(), AppendError> {
    let earliest_ms = now_ms.saturating_sub(config.timestamp_before_max_ms);
    let latest_ms = now_ms.saturating_add(config.timestamp_after_max_ms);
    let is_outside = |timestamp: i64| {
        timestamp != NO_TIMESTAMP && !(earliest_ms..=latest_ms).contains(&timestamp)
    };
    if !is_outside(summary.min_timestamp) && !is_outside(summary.max_timestamp) {
        return Ok(());
    }
    let mut first = None;
    let indexes = records_where(batch, config, |record| {
        let outside = is_outside(record.timestamp);
        if outside {
            first.get_or_insert(record.timestamp);
        }
        outside
    })?;
    Err(AppendError::TimestampOutOfRange {
        timestamp_ms: first.unwrap_or(summary.max_timestamp),
        earliest_ms,
        latest_ms,
        indexes,
    })
}

/// The places of the records for which this holds.
fn records_where(
    batch: &RecordBatch,
    config: &PartitionConfig,
    mut holds: impl FnMut(&RecordView<'_>) -> bool,
) -> Result<Vec<i32>, AppendError> {
    let mut records = batch.records(config.max_decompressed_bytes)?;
    let mut indexes = Vec::new();
    let mut index = 0;
    while let Some(record) = records.next_view() {
        if holds(&record?) {
            indexes.push(index);
        }
        index += 1;
    }
    Ok(indexes)
}

fn broken_rule(batch: &RecordBatch) -> Option<&'static str> {
    let has_producer = batch.producer_id() >= 0;
    if batch.is_control() {
        Some("clients must not write control batches")
    } else if batch.base_offset() != 0 {
        Some("the base offset of a producer's batch is 0")
    } else if has_producer && (batch.base_sequence() < 0 || batch.producer_epoch() < 0) {
        Some("an idempotent producer's batch has an epoch and a sequence")
    } else if batch.is_transactional() && !has_producer {
        Some("a transactional batch has a producer id")
    } else {
        None
    }
}
