//! Time index: the largest timestamp seen up to an offset, sparse.
//!
//! ```text
//! timestamp i64 | relative offset i32      (12 bytes)
//! ```
//!
//! Invariants: timestamps grow, offsets do not fall; every batch up to an entry's offset has at
//! most the entry's timestamp.
//! Never: holds a timestamp that no batch has.

use super::{Entry, field};

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeEntry {
    /// Largest timestamp so far.
    pub(crate) timestamp: i64,
    /// Last offset of the batch that has it, less the segment's base offset.
    pub(crate) relative_offset: i32,
}

impl Entry for TimeEntry {
    const BYTES: usize = 12;

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.timestamp.to_be_bytes());
        bytes.extend_from_slice(&self.relative_offset.to_be_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<TimeEntry> {
        let entry = TimeEntry {
            timestamp: i64::from_be_bytes(field(bytes, 0)?),
            relative_offset: i32::from_be_bytes(field(bytes, 8)?),
        };
        (entry.relative_offset >= 0).then_some(entry)
    }

    fn follows(&self, previous: &TimeEntry) -> bool {
        self.timestamp > previous.timestamp && self.relative_offset >= previous.relative_offset
    }
}

/// The relative offset from which batches may have a timestamp of at least `timestamp`.
pub(crate) fn offset_before(entries: &[TimeEntry], timestamp: i64) -> i64 {
    let at_least = entries.partition_point(|entry| entry.timestamp < timestamp);
    let entry = at_least.checked_sub(1).and_then(|index| entries.get(index));
    entry.map_or(0, |entry| entry.relative_offset.into())
}
