//! Which producers may open a transaction in a partition: the guard that closes the gap between
//! asking the coordinator and appending.
//!
//! ```text
//! no entry ──begin──▶ guard g ──coordinator says yes──▶ append with g: entry gone, transaction
//! open
//!                        └── a marker of that producer ──▶ entry gone: an append with g is refused
//! ```
//!
//! Invariants: the first batch of a transaction is appended only under the guard that was verified;
//! a guard is never used twice.
//! Invariants: of a producer's batches that wait for verification, the lowest sequence is appended
//! first.
//! Never: asks the coordinator itself.

use millstream_protocol::{ErrorCode, ProducerStamp};
use rustc_hash::FxHashMap;

/// More producers than this are not kept waiting: the oldest guard is dropped, its batch is
/// retried.
const ENTRIES_MAX: usize = 10_000;

/// Names one verification; a later one of the same producer has another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Guard(u64);

#[derive(Debug)]
struct Entry {
    guard: Guard,
    epoch: i16,
    lowest_sequence: i32,
}

/// The verifications of one partition that have not led to an append yet.
#[derive(Debug, Default)]
pub(crate) struct VerificationTable {
    entries: FxHashMap<i64, Entry>,
    last: u64,
}

impl VerificationTable {
    /// Begins (or joins) the verification of a producer's next transaction here.
    pub(crate) fn begin(&mut self, stamp: ProducerStamp) -> Guard {
        let ProducerStamp {
            producer_id,
            producer_epoch,
            base_sequence,
            ..
        } = stamp;
        if let Some(entry) = self.entries.get_mut(&producer_id) {
            if entry.epoch == producer_epoch {
                entry.lowest_sequence = entry.lowest_sequence.min(base_sequence);
                return entry.guard;
            }
        } else if self.entries.len() >= ENTRIES_MAX {
            self.drop_oldest();
        }
        self.last += 1;
        let guard = Guard(self.last);
        let entry = Entry {
            guard,
            epoch: producer_epoch,
            lowest_sequence: base_sequence,
        };
        self.entries.insert(producer_id, entry);
        guard
    }

    /// Whether a batch may open a transaction under this guard.
    pub(crate) fn check(
        &self,
        stamp: ProducerStamp,
        guard: Option<Guard>,
        knows_producer: bool,
    ) -> Result<(), ErrorCode> {
        let entry = self.entries.get(&stamp.producer_id);
        match entry.filter(|entry| Some(entry.guard) == guard) {
            None => Err(ErrorCode::INVALID_TXN_STATE),
            Some(entry) if !knows_producer && stamp.base_sequence > entry.lowest_sequence => {
                Err(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER)
            }
            Some(_) => Ok(()),
        }
    }

    /// The producer's transaction has been opened or ended here: its guard is void.
    pub(crate) fn end(&mut self, producer_id: i64) {
        self.entries.remove(&producer_id);
    }

    fn drop_oldest(&mut self) {
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.guard);
        if let Some(producer_id) = oldest.map(|(producer_id, _)| *producer_id) {
            self.entries.remove(&producer_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(base_sequence: i32) -> ProducerStamp {
        ProducerStamp {
            producer_id: 7,
            producer_epoch: 1,
            base_sequence,
            transactional: true,
        }
    }

    #[test]
    fn a_marker_between_verification_and_append_voids_the_guard() {
        let mut table = VerificationTable::default();
        let guard = table.begin(stamp(0));
        table.end(7);
        let again = table.begin(stamp(0));
        assert_ne!(guard, again);
        let refused = table.check(stamp(0), Some(guard), true);
        assert_eq!(refused, Err(ErrorCode::INVALID_TXN_STATE));
        assert_eq!(table.check(stamp(0), Some(again), true), Ok(()));
    }

    #[test]
    fn an_unverified_append_is_refused() {
        let table = VerificationTable::default();
        assert_eq!(
            table.check(stamp(0), None, true),
            Err(ErrorCode::INVALID_TXN_STATE)
        );
    }

    #[test]
    fn a_later_batch_cannot_overtake_the_first_unverified_one() {
        let mut table = VerificationTable::default();
        let guard = table.begin(stamp(0));
        assert_eq!(table.begin(stamp(5)), guard);
        let overtaking = table.check(stamp(5), Some(guard), false);
        assert_eq!(overtaking, Err(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER));
        assert_eq!(table.check(stamp(0), Some(guard), false), Ok(()));
    }

    #[test]
    fn the_table_stays_small() {
        let mut table = VerificationTable::default();
        for producer_id in 0..20_000 {
            table.begin(ProducerStamp {
                producer_id,
                ..stamp(0)
            });
        }
        assert_eq!(table.entries.len(), ENTRIES_MAX);
        assert!(table.entries.contains_key(&19_999));
    }
}
