//! Transaction index: the aborted transactions whose marker lies in the segment.
//!
//! ```text
//! version i16 | producer id i64 | first offset i64 | last offset i64 | last stable offset i64
//! ```
//!
//! Invariants: last offsets (the markers') grow; 34 bytes an entry.
//! Never: lists a transaction without batches.

use super::{Entry, field};

const VERSION: i16 = 0;

/// One aborted transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AbortedEntry {
    pub(crate) producer_id: i64,
    /// Of its first batch.
    pub(crate) first_offset: i64,
    /// Of its marker.
    pub(crate) last_offset: i64,
    /// The last stable offset once the marker counts: later entries begin at or beyond it.
    pub(crate) last_stable_offset: i64,
}

impl Entry for AbortedEntry {
    const BYTES: usize = 34;

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        for number in [
            self.producer_id,
            self.first_offset,
            self.last_offset,
            self.last_stable_offset,
        ] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
    }

    fn decode(bytes: &[u8]) -> Option<AbortedEntry> {
        let version = i16::from_be_bytes(field(bytes, 0)?);
        let entry = AbortedEntry {
            producer_id: i64::from_be_bytes(field(bytes, 2)?),
            first_offset: i64::from_be_bytes(field(bytes, 10)?),
            last_offset: i64::from_be_bytes(field(bytes, 18)?),
            last_stable_offset: i64::from_be_bytes(field(bytes, 26)?),
        };
        (version == VERSION && entry.first_offset <= entry.last_offset).then_some(entry)
    }

    fn follows(&self, previous: &AbortedEntry) -> bool {
        self.last_offset > previous.last_offset
    }
}

/// Adds the transactions that overlap `from..upper` to `found`; `true` when no later entry can.
pub(crate) fn collect(
    entries: &[AbortedEntry],
    from: i64,
    upper: i64,
    found: &mut Vec<AbortedEntry>,
) -> bool {
    let start = entries.partition_point(|entry| entry.last_offset < from);
    for entry in entries.get(start..).unwrap_or_default() {
        if entry.first_offset < upper {
            found.push(*entry);
        }
        if entry.last_stable_offset >= upper {
            return true;
        }
    }
    false
}
