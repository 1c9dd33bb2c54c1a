//! Builds one record batch after another into a buffer that it keeps.
//!
//! Invariants: offset deltas are 0, 1, 2, …; the buffer always starts with room for the header, so
//! an uncompressed batch is handed out without a copy.
//! Never: knows a producer id or sequence before `finish`, so a batch can be stamped when it is
//! sent.

use crate::batch::{BatchError, HeaderFields, ProducerStamp, RecordBatch, write_header};
use crate::compression::{Compression, Compressor};
use crate::record::{Headers, header_size_bytes, put_header};
use crate::zigzag;
use bytes::{BufMut, Bytes, BytesMut};

/// Most bytes that a record takes besides key, value and headers.
const RECORD_OVERHEAD_MAX: usize = 5 + 1 + zigzag::MAX_BYTES_I64 + 4 * zigzag::MAX_BYTES_I32;

/// Collects records and makes a batch of them; can be used again after `finish`.
#[derive(Debug)]
pub struct RecordBatchBuilder {
    compressor: Compressor,
    buffer: BytesMut,
    base_timestamp: i64,
    max_timestamp: i64,
    record_count: i32,
}

impl RecordBatchBuilder {
    /// An empty builder.
    #[must_use]
    pub fn new(compression: Compression) -> RecordBatchBuilder {
        RecordBatchBuilder::with_capacity(compression, RecordBatch::HEADER_BYTES)
    }

    /// An empty builder with room for batches of this many bytes.
    #[must_use]
    pub fn with_capacity(compression: Compression, capacity_bytes: usize) -> RecordBatchBuilder {
        let mut buffer = BytesMut::with_capacity(capacity_bytes.max(RecordBatch::HEADER_BYTES));
        buffer.put_bytes(0, RecordBatch::HEADER_BYTES);
        RecordBatchBuilder {
            compressor: Compressor::new(compression),
            buffer,
            base_timestamp: 0,
            max_timestamp: 0,
            record_count: 0,
        }
    }

    /// The codec of the batches.
    #[must_use]
    pub fn compression(&self) -> Compression {
        self.compressor.codec()
    }

    /// Adds a record and returns its offset delta.
    pub fn append(
        &mut self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
    ) -> i32 {
        if headers.is_empty() {
            return self.append_encoded(timestamp, key, value, 0, &[]);
        }
        let mut encoded = Vec::new();
        for (key, value) in headers {
            put_header(&mut encoded, key, *value);
        }
        self.append_encoded(timestamp, key, value, headers.len(), &encoded)
    }

    /// Adds a record with the headers of another one, which are copied as they are.
    pub fn append_with(
        &mut self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &Headers,
    ) -> i32 {
        let (count, encoded) = headers.encoded();
        self.append_encoded(timestamp, key, value, count as usize, encoded)
    }

    fn append_encoded(
        &mut self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        header_count: usize,
        headers: &[u8],
    ) -> i32 {
        let delta = self.record_count;
        if delta == 0 {
            self.base_timestamp = timestamp;
            self.max_timestamp = timestamp;
        }
        self.max_timestamp = self.max_timestamp.max(timestamp);
        self.record_count += 1;
        let fields = RecordFields {
            timestamp_delta: timestamp.wrapping_sub(self.base_timestamp),
            offset_delta: delta,
            key,
            value,
            header_count,
            headers,
        };
        put_record(&mut self.buffer, &fields);
        delta
    }

    /// Records added since the last batch.
    #[must_use]
    pub fn record_count(&self) -> i32 {
        self.record_count
    }

    /// Whether no record was added since the last batch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.record_count == 0
    }

    /// Bytes that the batch would take now if it were not compressed.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// The most that a record can add to a batch.
    #[must_use]
    pub fn record_size_bytes_max(
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
    ) -> usize {
        let headers: usize = headers
            .iter()
            .map(|(key, value)| header_size_bytes(key, *value))
            .sum();
        RECORD_OVERHEAD_MAX + key.map_or(0, <[u8]>::len) + value.map_or(0, <[u8]>::len) + headers
    }

    /// Whether a record of at most `record_size_bytes` still fits a batch of `batch_size_bytes`.
    /// The first record always does.
    #[must_use]
    pub fn would_fit(&self, record_size_bytes: usize, batch_size_bytes: usize) -> bool {
        self.is_empty() || self.size_bytes().saturating_add(record_size_bytes) <= batch_size_bytes
    }

    /// Forgets the records added since the last batch.
    pub fn clear(&mut self) {
        self.record_count = 0;
        self.buffer.clear();
        self.buffer.put_bytes(0, RecordBatch::HEADER_BYTES);
    }

    /// Makes the batch (base offset 0) and starts the next one. The records are gone even when it
    /// fails.
    pub fn finish(&mut self, stamp: ProducerStamp) -> Result<Bytes, BatchError> {
        if self.is_empty() {
            return Err(BatchError::Empty);
        }
        let fields = HeaderFields {
            attributes: i16::from(self.compression().code()),
            last_offset_delta: self.record_count - 1,
            base_timestamp: self.base_timestamp,
            max_timestamp: self.max_timestamp,
            stamp,
            record_count: self.record_count,
        };
        if self.compression() == Compression::None {
            let done = write_header(&mut self.buffer, &fields);
            let batch = self.buffer.split().freeze();
            // The next batch will be about as large: room for it is made once.
            self.buffer.reserve(batch.len());
            self.clear();
            return done.map(|()| batch);
        }
        let mut batch = Vec::with_capacity(RecordBatch::HEADER_BYTES + self.buffer.len() / 2);
        batch.resize(RecordBatch::HEADER_BYTES, 0);
        let plain = self
            .buffer
            .get(RecordBatch::HEADER_BYTES..)
            .unwrap_or_default();
        let done = self
            .compressor
            .compress(plain, &mut batch)
            .and_then(|()| write_header(&mut batch, &fields));
        self.clear();
        done.map(|()| Bytes::from(batch))
    }
}

/// What a record's bytes are made of.
pub(crate) struct RecordFields<'a> {
    pub(crate) timestamp_delta: i64,
    pub(crate) offset_delta: i32,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) value: Option<&'a [u8]>,
    pub(crate) header_count: usize,
    pub(crate) headers: &'a [u8],
}

/// Appends the bytes of one record.
#[inline]
pub(crate) fn put_record(buffer: &mut BytesMut, fields: &RecordFields<'_>) {
    let key_length = fields.key.map_or(-1, |key| key.len() as i64);
    let value_length = fields.value.map_or(-1, |value| value.len() as i64);
    let key = fields.key.unwrap_or_default();
    let value = fields.value.unwrap_or_default();
    let header_count = fields.header_count as i64;
    let body = 1
        + zigzag::size_i64(fields.timestamp_delta)
        + zigzag::size_i32(fields.offset_delta)
        + zigzag::size_i64(key_length)
        + key.len()
        + zigzag::size_i64(value_length)
        + value.len()
        + zigzag::size_i64(header_count)
        + fields.headers.len();
    let start = buffer.len();
    let end = start + zigzag::size_i64(body as i64) + body;
    buffer.resize(end, 0);
    let mut rest = buffer.get_mut(start..).unwrap_or_default();
    rest = zigzag::write(rest, body as i64);
    rest = zigzag::write(rest, 0); // attributes: none are defined
    rest = zigzag::write(rest, fields.timestamp_delta);
    rest = zigzag::write(rest, i64::from(fields.offset_delta));
    rest = zigzag::write(rest, key_length);
    rest = copy(rest, key);
    rest = zigzag::write(rest, value_length);
    rest = copy(rest, value);
    rest = zigzag::write(rest, header_count);
    copy(rest, fields.headers);
}

/// Copies `bytes` to the start of `target` and returns what is left of it.
#[inline]
fn copy<'a>(target: &'a mut [u8], bytes: &[u8]) -> &'a mut [u8] {
    let (start, rest) = target.split_at_mut(bytes.len().min(target.len()));
    start.copy_from_slice(bytes.get(..start.len()).unwrap_or_default());
    rest
}

#[cfg(test)]
#[path = "builder_tests.rs"]
mod tests;
