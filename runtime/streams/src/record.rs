//! A record on its way through the operators, and where it came from.
//!
//! Invariants: a record is moved from operator to operator, never boxed and never copied behind the
//! user's back.
//! Never: knows whether its source was a broker or a test.

use std::sync::Arc;

use bytes::Bytes;
use millstream_protocol::Headers;

/// A typed record between two operators.
#[derive(Debug, Clone)]
pub struct Record<K, V> {
    /// The key.
    pub key: K,
    /// The value.
    pub value: V,
    /// Milliseconds since the epoch; what a sink writes as the record's timestamp.
    pub timestamp: i64,
    /// Headers, passed on from the source unless an operator changes them.
    pub headers: Headers,
}

impl<K, V> Record<K, V> {
    /// The same record with another value.
    pub fn with_value<W>(self, value: W) -> Record<K, W> {
        Record {
            key: self.key,
            value,
            timestamp: self.timestamp,
            headers: self.headers,
        }
    }
}

/// A record as it was read, before its key and value are deserialised.
#[derive(Debug, Clone)]
pub(crate) struct SourceRecord {
    /// Offset in the partition.
    pub offset: i64,
    /// Milliseconds since the epoch.
    pub timestamp: i64,
    /// Raw key.
    pub key: Option<Bytes>,
    /// Raw value.
    pub value: Option<Bytes>,
    /// Headers in order, repeated keys kept.
    pub headers: Headers,
}

/// Where the record that is being processed came from.
#[derive(Debug, Clone)]
pub struct RecordContext {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) timestamp: i64,
    pub(crate) stream_time: i64,
}

impl RecordContext {
    /// Topic that the record was read from.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Partition that the record was read from.
    #[must_use]
    pub fn partition(&self) -> i32 {
        self.partition
    }

    /// Offset of the source record.
    #[must_use]
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// Timestamp of the source record, in milliseconds since the epoch.
    #[must_use]
    pub fn timestamp(&self) -> i64 {
        self.timestamp
    }

    /// The highest timestamp that this task has seen, in milliseconds since the epoch. It survives
    /// restarts: it is part of what a commit records.
    #[must_use]
    pub fn stream_time(&self) -> i64 {
        self.stream_time
    }
}
