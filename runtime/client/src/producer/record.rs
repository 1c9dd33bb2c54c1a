//! What goes into a producer and what comes back.
//!
//! Invariants: an offset names a record inside its partition only.
//! Never: holds state of a producer.

use std::sync::Arc;

use bytes::Bytes;

/// A record to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerRecord {
    /// Where it goes.
    pub topic: Arc<str>,
    /// The partition; `None` lets the key, or the sticky partitioner, choose.
    pub partition: Option<i32>,
    /// Milliseconds since 1970; `None` takes the time of the call.
    pub timestamp: Option<i64>,
    /// The key; records with equal keys go to one partition and keep their order.
    pub key: Option<Bytes>,
    /// The value; `None` is a tombstone.
    pub value: Option<Bytes>,
    /// Headers, in order; names may repeat.
    pub headers: Vec<(String, Option<Bytes>)>,
}

impl ProducerRecord {
    /// A record without key, value and headers.
    #[must_use]
    pub fn new(topic: impl Into<Arc<str>>) -> Self {
        Self {
            topic: topic.into(),
            partition: None,
            timestamp: None,
            key: None,
            value: None,
            headers: Vec::new(),
        }
    }

    /// Sets the partition.
    #[must_use]
    pub fn partition(mut self, partition: i32) -> Self {
        self.partition = Some(partition);
        self
    }

    /// Sets the timestamp, in milliseconds since 1970.
    #[must_use]
    pub fn timestamp(mut self, timestamp_ms: i64) -> Self {
        self.timestamp = Some(timestamp_ms);
        self
    }

    /// Sets the key.
    #[must_use]
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the value.
    #[must_use]
    pub fn value(mut self, value: impl Into<Bytes>) -> Self {
        self.value = Some(value.into());
        self
    }

    /// Adds a header behind the others.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: Option<Bytes>) -> Self {
        self.headers.push((name.into(), value));
        self
    }
}

/// Where an acknowledged record lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordMetadata {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: i32,
    /// The offset inside the partition; -1 where the broker was not asked to say (`acks=0`).
    pub offset: i64,
    /// The record's timestamp, or the broker's where the topic uses LogAppendTime.
    pub timestamp: i64,
}
