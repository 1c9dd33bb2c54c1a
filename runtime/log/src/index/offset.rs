//! Offset index: from the last offset of a batch to its position in the log file, sparse.
//!
//! ```text
//! relative offset i32 | position i32      (8 bytes; relative to the segment's base offset)
//! ```
//!
//! Invariants: both columns grow.
//! Never: has an entry for every batch.

use super::{Entry, field};

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OffsetEntry {
    /// Last offset of the batch less the segment's base offset.
    pub(crate) relative_offset: i32,
    /// Where the batch begins.
    pub(crate) position: i32,
}

impl Entry for OffsetEntry {
    const BYTES: usize = 8;

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.relative_offset.to_be_bytes());
        bytes.extend_from_slice(&self.position.to_be_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<OffsetEntry> {
        let entry = OffsetEntry {
            relative_offset: i32::from_be_bytes(field(bytes, 0)?),
            position: i32::from_be_bytes(field(bytes, 4)?),
        };
        (entry.relative_offset >= 0 && entry.position >= 0).then_some(entry)
    }

    fn follows(&self, previous: &OffsetEntry) -> bool {
        self.relative_offset > previous.relative_offset && self.position > previous.position
    }
}

/// Where to begin to look for an offset: at the last batch that is known to end at or before it.
pub(crate) fn position_for(entries: &[OffsetEntry], relative_offset: i64) -> u64 {
    let after =
        entries.partition_point(|entry| i64::from(entry.relative_offset) <= relative_offset);
    let entry = after.checked_sub(1).and_then(|index| entries.get(index));
    entry.map_or(0, |entry| entry.position.unsigned_abs().into())
}
