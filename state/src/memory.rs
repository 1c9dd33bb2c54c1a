//! The store that lives in memory: an ordered map, rebuilt from its topic at every start.
//!
//! Invariants: as [`crate::KeyValueStore`] demands; the conformance suite is its test.
//! Never: survives the process.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use millstream_protocol::TopicPartition;

use crate::{KeyValueStore, StateError, WriteBatch};

/// An ordered map of bytes with the offsets up to which it is filled.
#[derive(Debug, Default)]
pub struct MemoryStore {
    name: String,
    entries: BTreeMap<Bytes, Bytes>,
    offsets: BTreeMap<TopicPartition, i64>,
}

impl MemoryStore {
    /// An empty store called `name`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }
}

impl KeyValueStore for MemoryStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StateError> {
        Ok(self.entries.get(key).cloned())
    }

    fn range(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &Bytes) -> bool,
    ) -> Result<(), StateError> {
        if is_empty_range(from, to) {
            return Ok(());
        }
        for (key, value) in self.entries.range::<[u8], _>((from, to)) {
            if !visit(key, value) {
                break;
            }
        }
        Ok(())
    }

    fn approximate_count(&self) -> u64 {
        self.entries.len() as u64
    }

    fn apply(&mut self, batch: WriteBatch) -> Result<(), StateError> {
        for (partition, &offset) in batch.offsets() {
            let applied = self.offsets.get(partition).copied().unwrap_or(i64::MIN);
            if offset < applied {
                return Err(StateError::OffsetRegressed {
                    store: self.name.clone(),
                    partition: partition.clone(),
                    applied,
                    offset,
                });
            }
        }
        let (writes, offsets) = batch.into_parts();
        for (key, value) in writes {
            match value {
                Some(value) => self.entries.insert(key, value),
                None => self.entries.remove(&key),
            };
        }
        self.offsets.extend(offsets);
        Ok(())
    }

    fn applied_offset(&self, partition: &TopicPartition) -> Option<i64> {
        self.offsets.get(partition).copied()
    }
}

/// `BTreeMap::range` panics on an inverted or doubly excluded range; such a range simply holds
/// nothing.
fn is_empty_range(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to))
        | (Bound::Excluded(from), Bound::Included(to)) => from >= to,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_store_passes_the_conformance_suite() {
        crate::conformance::run(|| Box::new(MemoryStore::new("customers")));
    }
}
