//! What `poll` hands out: records by partition, and how far each partition has got.
//!
//! Invariants: the offsets of one [`PartitionRecords`] rise; all of them are below its
//! `next_offset`; `next_offset` may lie further on, past control and aborted records.
//! Never: copies keys or values; they are slices of the fetch answer (or of the decompressed
//! batch) and keep it in memory as long as they live.

use std::sync::Arc;

use bytes::Bytes;
use millstream_protocol::{Headers, TopicPartition};

/// One record as an application gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerRecord {
    /// Where it was read.
    pub topic: Arc<str>,
    /// Where it was read.
    pub partition: i32,
    /// Its offset in the partition.
    pub offset: i64,
    /// Milliseconds since 1970: the producer's, or the broker's where the topic says so.
    pub timestamp: i64,
    /// `None` is null, which is not the same as empty.
    pub key: Option<Bytes>,
    /// `None` is null: a deletion on a compacted topic.
    pub value: Option<Bytes>,
    /// Headers in order, repeated keys kept.
    pub headers: Headers,
}

impl ConsumerRecord {
    /// The partition that the record was read from.
    #[must_use]
    pub fn topic_partition(&self) -> TopicPartition {
        TopicPartition::new(Arc::clone(&self.topic), self.partition)
    }
}

/// Records of one partition, in offset order.
///
/// `records` may be empty: then the partition moved over control or aborted records only, and
/// `next_offset` says how far. Committing `next_offset` is what lets a group reach the end of a log
/// that ends in transaction markers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionRecords {
    /// Which partition.
    pub topic_partition: TopicPartition,
    /// Its records.
    pub records: Vec<ConsumerRecord>,
    /// The consumer's new position: the offset to commit once all of these are processed.
    pub next_offset: i64,
    /// The epoch of the leader that wrote the last record before `next_offset`, where it is known:
    /// to be committed with it, so that a log that has lost the record is noticed.
    pub leader_epoch: Option<i32>,
}

/// The outcome of one `poll`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerRecords {
    /// At most one entry a partition.
    pub partitions: Vec<PartitionRecords>,
}

impl ConsumerRecords {
    /// Whether there is no record. Positions may still have moved: see `partitions`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.partitions
            .iter()
            .all(|partition| partition.records.is_empty())
    }

    /// Records of all partitions together.
    #[must_use]
    pub fn len(&self) -> usize {
        self.partitions
            .iter()
            .map(|partition| partition.records.len())
            .sum()
    }

    /// All records, partition by partition.
    pub fn iter(&self) -> impl Iterator<Item = &ConsumerRecord> {
        self.partitions
            .iter()
            .flat_map(|partition| &partition.records)
    }

    /// The records of one partition; empty when the poll had none of it.
    #[must_use]
    pub fn of(&self, topic_partition: &TopicPartition) -> &[ConsumerRecord] {
        self.partitions
            .iter()
            .find(|partition| partition.topic_partition == *topic_partition)
            .map_or(&[], |partition| &partition.records)
    }
}

impl IntoIterator for ConsumerRecords {
    type Item = ConsumerRecord;
    type IntoIter = IntoRecords;

    fn into_iter(self) -> IntoRecords {
        IntoRecords {
            partitions: self.partitions.into_iter(),
            current: Vec::new().into_iter(),
        }
    }
}

/// Iterator over the records of one poll.
#[derive(Debug)]
pub struct IntoRecords {
    partitions: std::vec::IntoIter<PartitionRecords>,
    current: std::vec::IntoIter<ConsumerRecord>,
}

impl Iterator for IntoRecords {
    type Item = ConsumerRecord;

    fn next(&mut self) -> Option<ConsumerRecord> {
        loop {
            if let Some(record) = self.current.next() {
                return Some(record);
            }
            self.current = self.partitions.next()?.records.into_iter();
        }
    }
}
