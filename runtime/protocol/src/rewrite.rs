//! What log compaction does to a batch: fewer records, everything else that tells its place kept.
//!
//! Invariants: base and last offset, leader epoch, producer, epoch and sequences, timestamp type
//! and codec of a rewritten batch are those of the batch it was; records keep their offsets and
//! timestamps.
//! Never: decides which records stay.

use crate::batch::{
    BatchError, CONTROL, DELETE_HORIZON, HeaderFields, LOG_APPEND_TIME, ProducerStamp, RecordBatch,
    TimestampType, patch_prefix, write_header,
};
use crate::builder::{RecordFields, put_record};
use crate::compression::Compressor;
use bytes::{BufMut, Bytes, BytesMut};

/// Attributes that say nothing about how the records are stored.
const KEPT: i16 = LOG_APPEND_TIME | CONTROL;
const NO_TIMESTAMP: i64 = -1;

/// Rewrites batches one after another and keeps what is costly to set up.
#[derive(Debug, Default)]
pub struct BatchRewriter {
    compressor: Option<Compressor>,
    plain: BytesMut,
}

impl BatchRewriter {
    /// A rewriter that has set nothing up yet.
    #[must_use]
    pub fn new() -> BatchRewriter {
        BatchRewriter::default()
    }

    /// The batch with those of its records for which `kept` says `true`, by their index, and with
    /// this delete horizon (or the one it has, for `None`). At least one record must stay.
    pub fn with_records(
        &mut self,
        batch: &RecordBatch,
        kept: &[bool],
        delete_horizon_ms: Option<i64>,
        max_decompressed_bytes: usize,
    ) -> Result<Bytes, BatchError> {
        let horizon = delete_horizon_ms.or(batch.delete_horizon_ms());
        let mut base_timestamp = horizon;
        let (mut max_timestamp, mut record_count) = (NO_TIMESTAMP, 0);
        self.plain.clear();
        let mut records = batch.records(max_decompressed_bytes)?;
        let mut kept = kept.iter();
        while let Some(record) = records.next_view() {
            let record = record?;
            if kept.next() != Some(&true) {
                continue;
            }
            let base = *base_timestamp.get_or_insert(record.timestamp);
            let (header_count, headers) = record.encoded_headers();
            let offset_delta = record.offset.saturating_sub(batch.base_offset());
            put_record(
                &mut self.plain,
                &RecordFields {
                    timestamp_delta: record.timestamp.wrapping_sub(base),
                    offset_delta: i32::try_from(offset_delta).unwrap_or(i32::MAX),
                    key: record.key,
                    value: record.value,
                    header_count: header_count as usize,
                    headers,
                },
            );
            max_timestamp = max_timestamp.max(record.timestamp);
            record_count += 1;
        }
        if record_count == 0 {
            return Err(BatchError::Empty);
        }
        let codec = batch.compression();
        let compressor = match &mut self.compressor {
            Some(compressor) if compressor.codec() == codec => compressor,
            other => other.insert(Compressor::new(codec)),
        };
        let mut bytes = Vec::with_capacity(RecordBatch::HEADER_BYTES + self.plain.len());
        bytes.resize(RecordBatch::HEADER_BYTES, 0);
        compressor.compress(&self.plain, &mut bytes)?;
        let mut attributes = (batch.attributes() & KEPT) | i16::from(codec.code());
        if horizon.is_some() {
            attributes |= DELETE_HORIZON;
        }
        if batch.timestamp_type() == TimestampType::LogAppendTime {
            max_timestamp = batch.max_timestamp();
        }
        let fields = HeaderFields {
            attributes,
            last_offset_delta: batch.last_offset_delta(),
            base_timestamp: base_timestamp.unwrap_or(NO_TIMESTAMP),
            max_timestamp,
            stamp: batch.stamp(),
            record_count,
        };
        finished(bytes, &fields, batch)
    }

    /// The batch without its records: what it says of its producer and its offsets stays.
    pub fn without_records(&self, batch: &RecordBatch) -> Result<Bytes, BatchError> {
        header_alone(batch, batch.stamp(), batch.attributes() & KEPT)
    }

    /// A batch without records, producer or transaction that has the batch's offsets and time.
    pub fn placeholder(&self, batch: &RecordBatch) -> Result<Bytes, BatchError> {
        let attributes = batch.attributes() & LOG_APPEND_TIME;
        header_alone(batch, ProducerStamp::NONE, attributes)
    }
}

fn header_alone(
    batch: &RecordBatch,
    stamp: ProducerStamp,
    attributes: i16,
) -> Result<Bytes, BatchError> {
    let mut bytes = Vec::with_capacity(RecordBatch::HEADER_BYTES);
    bytes.put_bytes(0, RecordBatch::HEADER_BYTES);
    let fields = HeaderFields {
        attributes,
        last_offset_delta: batch.last_offset_delta(),
        base_timestamp: NO_TIMESTAMP,
        max_timestamp: batch.max_timestamp(),
        stamp,
        record_count: 0,
    };
    finished(bytes, &fields, batch)
}

/// Fills in the header and the place that the batch had in its log.
fn finished(
    mut bytes: Vec<u8>,
    fields: &HeaderFields,
    batch: &RecordBatch,
) -> Result<Bytes, BatchError> {
    write_header(&mut bytes, fields)?;
    if let Some(prefix) = bytes.first_chunk_mut() {
        patch_prefix(prefix, batch.base_offset(), batch.partition_leader_epoch());
    }
    Ok(Bytes::from(bytes))
}

#[cfg(test)]
#[path = "rewrite_tests.rs"]
mod tests;
