//! Where each key occurs last: built over the dirty part of a log, asked for every record.
//!
//! Invariants: keys are kept whole, so two of them are never taken for one; batches are mapped in
//! the order of the log, whole or not at all as far as `end` tells.
//! Never: grows beyond its limit, but for the first batch.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{BuildHasher, Hasher};

use millstream_protocol::{BatchError, RecordBatch};

/// What an entry takes besides its key: table, pointer, length, offset, allocation.
const ENTRY_BYTES: usize = 56;

/// SipHash behind a secret: keys that fall together cannot be prepared without it.
#[derive(Clone, Copy, Debug)]
struct Seeded(u64);

impl BuildHasher for Seeded {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}

type Keys = HashMap<Box<[u8]>, i64, Seeded>;

/// The last offset of each key.
#[derive(Debug)]
pub(crate) struct OffsetMap {
    last: Keys,
    size_bytes: usize,
    size_bytes_max: usize,
    end: i64,
    is_full: bool,
}

impl OffsetMap {
    /// An empty map of what lies at or beyond `start`, of about this size at most.
    pub(crate) fn new(start: i64, size_bytes_max: usize, seed: u64) -> OffsetMap {
        OffsetMap {
            last: Keys::with_hasher(Seeded(seed)),
            size_bytes: 0,
            size_bytes_max,
            end: start,
            is_full: false,
        }
    }

    /// Everything below was mapped.
    pub(crate) fn end(&self) -> i64 {
        self.end
    }

    /// Whether no further batch is taken.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Takes the records of the next batch, unless the map is full. Some of them may be in it then,
    /// which does no harm: records beyond the end are never judged by it.
    pub(crate) fn add(
        &mut self,
        batch: &RecordBatch,
        max_decompressed_bytes: usize,
    ) -> Result<(), BatchError> {
        let is_first = self.last.is_empty();
        let mut records = batch.records(max_decompressed_bytes)?;
        while let Some(record) = records.next_view() {
            let record = record?;
            let Some(key) = record.key else { continue };
            if let Some(last) = self.last.get_mut(key) {
                *last = record.offset;
                continue;
            }
            let size_bytes = self.size_bytes + key.len() + ENTRY_BYTES;
            if size_bytes > self.size_bytes_max && !is_first {
                self.is_full = true;
                return Ok(());
            }
            self.size_bytes = size_bytes;
            self.last.insert(key.into(), record.offset);
        }
        self.pass(batch.next_offset());
        Ok(())
    }

    /// There is nothing to map below this offset.
    pub(crate) fn pass(&mut self, offset: i64) {
        self.end = self.end.max(offset);
    }

    /// Whether the key occurs again behind this offset.
    pub(crate) fn is_superseded(&self, key: &[u8], offset: i64) -> bool {
        self.last.get(key).is_some_and(|last| *last > offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use millstream_protocol::{Compression, ProducerStamp, RecordBatchBuilder, patch_prefix};

    fn batch(base_offset: i64, keys: &[Option<&[u8]>]) -> RecordBatch {
        let mut builder = RecordBatchBuilder::new(Compression::None);
        for key in keys {
            builder.append(1, *key, Some(b"value"), &[]);
        }
        let mut bytes = builder.finish(ProducerStamp::NONE).unwrap().to_vec();
        patch_prefix(bytes.first_chunk_mut().unwrap(), base_offset, 0);
        RecordBatch::parse(Bytes::from(bytes)).unwrap()
    }

    #[test]
    fn the_last_offset_of_a_key_supersedes_those_before() {
        let mut map = OffsetMap::new(0, 1 << 20, 7);
        map.add(&batch(0, &[Some(b"a"), Some(b"b"), None]), 1 << 20)
            .unwrap();
        map.add(&batch(7, &[Some(b"a"), Some(b"")]), 1 << 20)
            .unwrap();
        assert_eq!(map.end(), 9);
        assert!(map.is_superseded(b"a", 0));
        assert!(!map.is_superseded(b"a", 7));
        assert!(!map.is_superseded(b"b", 1));
        assert!(!map.is_superseded(b"", 8));
        assert!(!map.is_superseded(b"c", 0));
    }

    #[test]
    fn a_full_map_ends_at_a_whole_batch_but_takes_one_whatever_its_size() {
        let mut map = OffsetMap::new(0, 2 * (ENTRY_BYTES + 1), 7);
        let three: [Option<&[u8]>; 3] = [Some(b"a"), Some(b"b"), Some(b"c")];
        map.add(&batch(0, &three), 1 << 20).unwrap();
        assert_eq!((map.end(), map.is_full()), (3, false));
        map.add(&batch(3, &three), 1 << 20).unwrap();
        assert_eq!((map.end(), map.is_full()), (6, false), "no new key");
        map.add(&batch(6, &[Some(b"a"), Some(b"d")]), 1 << 20)
            .unwrap();
        assert_eq!((map.end(), map.is_full()), (6, true));
    }

    #[test]
    fn two_seeds_put_keys_in_different_places() {
        let place = |seed: u64| Seeded(seed).hash_one(&b"key"[..]);
        assert_eq!(place(1), place(1));
        assert_ne!(place(1), place(2));
    }
}
