//! The byte store that operators see, and the batch through which it is written.
//!
//! Invariants: keys are ordered bytewise; a batch is applied whole or not at all; an applied offset
//! never regresses.
//! Never: a write outside a batch.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use millstream_protocol::TopicPartition;

use crate::StateError;

/// A key and its new value; `None` deletes it.
pub type Write = (Bytes, Option<Bytes>);

/// Writes that become visible together with the offsets that they come from.
#[derive(Debug, Default, Clone)]
pub struct WriteBatch {
    writes: Vec<Write>,
    offsets: BTreeMap<TopicPartition, i64>,
}

impl WriteBatch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Stores `value` under `key`.
    pub fn put(&mut self, key: Bytes, value: Bytes) {
        self.writes.push((key, Some(value)));
    }

    /// Removes `key`; removing an absent key is fine.
    pub fn delete(&mut self, key: Bytes) {
        self.writes.push((key, None));
    }

    /// Records that everything of `partition` below `next_offset` (exclusive) is contained.
    pub fn set_offset(&mut self, partition: TopicPartition, next_offset: i64) {
        self.offsets.insert(partition, next_offset);
    }

    /// Whether the batch changes nothing at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.offsets.is_empty()
    }

    /// The writes in order, and the offsets (exclusive).
    #[must_use]
    pub fn into_parts(self) -> (Vec<Write>, BTreeMap<TopicPartition, i64>) {
        (self.writes, self.offsets)
    }

    /// The offsets (exclusive) that the batch carries.
    #[must_use]
    pub fn offsets(&self) -> &BTreeMap<TopicPartition, i64> {
        &self.offsets
    }
}

/// An ordered store of bytes.
pub trait KeyValueStore: Send + Sync + std::fmt::Debug {
    /// The store's name, as in the topology.
    fn name(&self) -> &str;

    /// The value under `key`.
    ///
    /// # Errors
    /// Where the backend cannot be read.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError>;

    /// Calls `visit` with every pair inside the bounds in key order, until it answers `false`.
    ///
    /// # Errors
    /// Where the backend cannot be read.
    fn range(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &Bytes) -> bool,
    ) -> Result<(), StateError>;

    /// Number of keys held; exact in memory, an estimate where the backend only has one.
    fn approximate_count(&self) -> u64;

    /// Applies the batch whole, offsets included.
    ///
    /// # Errors
    /// [`StateError::OffsetRegressed`], in which case nothing was applied.
    fn apply(&mut self, batch: WriteBatch) -> Result<(), StateError>;

    /// Offset (exclusive) up to which `partition` is contained; `None` where nothing was applied
    /// yet.
    fn applied_offset(&self, partition: &TopicPartition) -> Option<i64>;
}
