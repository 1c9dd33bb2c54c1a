//! Producer state machine: may this producer append this batch or marker here, and what is known
//! about it afterwards. Pure: an entry and an event in, a verdict out.
//!
//! Invariants: epochs never go back; within an epoch sequences are consecutive and wrap from
//! 2^31 - 1 to 0; at most one transaction is open; the window holds the last five batches.
//! Never: changes an entry while checking; reads a clock; knows a file.
//!
//! ```text
//!                 transactional batch                  marker (any epoch that passes)
//!   [no transaction] ────────────────> [open since o] ───────────────> [no transaction]
//!        │  ^                             │  ^
//!        └──┘ batch, empty marker         └──┘ transactional batch of the same epoch
//! ```

use std::collections::VecDeque;

/// Batches whose retries are recognised: the most that an idempotent client has in flight.
pub(crate) const WINDOW_BATCHES: usize = 5;

/// One batch of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchMark {
    pub(crate) base_sequence: i32,
    pub(crate) last_sequence: i32,
    pub(crate) base_offset: i64,
    pub(crate) last_offset: i64,
    pub(crate) timestamp: i64,
}

/// What is known about one producer on one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProducerEntry {
    pub(crate) epoch: i16,
    /// -1 before the first marker.
    pub(crate) coordinator_epoch: i32,
    /// Of the newest batch or marker.
    pub(crate) last_timestamp: i64,
    /// First offset of the open transaction.
    pub(crate) open_since: Option<i64>,
    pub(crate) window: VecDeque<BatchMark>,
}

/// A batch of records that wants to be appended, or was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchEvent {
    pub(crate) epoch: i16,
    pub(crate) transactional: bool,
    /// Sequences, offsets and timestamp; sequences are -1 where the broker itself appends.
    pub(crate) mark: BatchMark,
}

/// A transaction marker that wants to be appended, or was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MarkerEvent {
    pub(crate) epoch: i16,
    pub(crate) coordinator_epoch: i32,
    pub(crate) offset: i64,
    pub(crate) timestamp: i64,
}

/// How strictly a batch is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checks {
    /// Duplicates, epoch and sequence.
    Client,
    /// As `Client`, but without state a transactional batch may begin with any sequence.
    LegacyClient,
    /// The epoch alone: the broker's own records carry no sequence.
    Coordinator,
}

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is new.
    Append,
    /// It is there already: answer with these offsets, append nothing.
    Duplicate(BatchMark),
    /// It must not be appended.
    Refuse(Refusal),
}

/// Why a batch or marker is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The producer was fenced.
    StaleEpoch { current: i16 },
    /// A sequence that does not follow.
    Sequence { expected: Option<i32> },
    /// A batch outside the transaction that the producer has open.
    OutsideTransaction { open_since: i64 },
    /// The marker is from a deposed coordinator.
    StaleCoordinator { current: i32 },
}

/// The sequence after `last`.
pub(crate) fn sequence_after(last: i32) -> i32 {
    if last == i32::MAX {
        0
    } else {
        last.saturating_add(1)
    }
}

/// Judges a batch. The order of the checks is the order in which errors win.
pub(crate) fn check_batch(
    entry: Option<&ProducerEntry>,
    event: &BatchEvent,
    checks: Checks,
) -> Verdict {
    let is_client = checks != Checks::Coordinator;
    let base_sequence = event.mark.base_sequence;
    let Some(entry) = entry else {
        let must_begin = checks == Checks::Client && event.transactional;
        if must_begin && base_sequence != 0 {
            return Verdict::Refuse(Refusal::Sequence { expected: Some(0) });
        }
        return Verdict::Append;
    };
    if is_client && let Some(original) = entry.duplicate_of(event) {
        return Verdict::Duplicate(original);
    }
    if event.epoch < entry.epoch {
        return Verdict::Refuse(Refusal::StaleEpoch {
            current: entry.epoch,
        });
    }
    if is_client {
        let expected = if event.epoch == entry.epoch {
            entry.next_sequence()
        } else {
            0
        };
        if base_sequence != expected {
            return Verdict::Refuse(Refusal::Sequence {
                expected: Some(expected),
            });
        }
    }
    match entry.open_since {
        Some(open_since) if !event.transactional => {
            Verdict::Refuse(Refusal::OutsideTransaction { open_since })
        }
        _ => Verdict::Append,
    }
}

/// Judges a marker. Transaction version 2 raises the epoch for each marker, so there an equal epoch
/// is the retry of a marker that was written, and fine only while nothing is open.
pub(crate) fn check_marker(
    entry: Option<&ProducerEntry>,
    event: &MarkerEvent,
    transaction_version: i16,
) -> Result<(), Refusal> {
    let Some(entry) = entry else { return Ok(()) };
    let is_stale = event.epoch < entry.epoch;
    let is_late =
        transaction_version >= 2 && event.epoch == entry.epoch && entry.open_since.is_some();
    if is_stale || is_late {
        return Err(Refusal::StaleEpoch {
            current: entry.epoch,
        });
    }
    if event.coordinator_epoch < entry.coordinator_epoch {
        return Err(Refusal::StaleCoordinator {
            current: entry.coordinator_epoch,
        });
    }
    Ok(())
}

impl ProducerEntry {
    /// A producer of which nothing was appended yet.
    pub(crate) fn new(epoch: i16) -> ProducerEntry {
        ProducerEntry {
            epoch,
            coordinator_epoch: -1,
            last_timestamp: -1,
            open_since: None,
            window: VecDeque::with_capacity(WINDOW_BATCHES),
        }
    }

    /// Sequence of the newest batch of this epoch, -1 before the first.
    pub(crate) fn last_sequence(&self) -> i32 {
        self.window.back().map_or(-1, |mark| mark.last_sequence)
    }

    fn next_sequence(&self) -> i32 {
        sequence_after(self.last_sequence())
    }

    fn duplicate_of(&self, event: &BatchEvent) -> Option<BatchMark> {
        if event.epoch != self.epoch || event.mark.base_sequence < 0 {
            return None;
        }
        let wanted = (event.mark.base_sequence, event.mark.last_sequence);
        self.window
            .iter()
            .find(|mark| (mark.base_sequence, mark.last_sequence) == wanted)
            .copied()
    }

    fn enter_epoch(&mut self, epoch: i16) {
        if epoch != self.epoch {
            self.epoch = epoch;
            self.window.clear();
        }
    }

    /// Takes in a batch that was appended. Returns the first offset when it opens a transaction.
    pub(crate) fn apply_batch(&mut self, event: &BatchEvent) -> Option<i64> {
        self.enter_epoch(event.epoch);
        if event.mark.base_sequence >= 0 {
            if self.window.len() == WINDOW_BATCHES {
                self.window.pop_front();
            }
            self.window.push_back(event.mark);
        }
        self.last_timestamp = event.mark.timestamp;
        if event.transactional && self.open_since.is_none() {
            self.open_since = Some(event.mark.base_offset);
            return self.open_since;
        }
        None
    }

    /// Takes in a marker that was appended. Returns the first offset of the transaction it ends.
    pub(crate) fn apply_marker(&mut self, event: &MarkerEvent) -> Option<i64> {
        self.enter_epoch(event.epoch);
        self.coordinator_epoch = event.coordinator_epoch;
        self.last_timestamp = event.timestamp;
        self.open_since.take()
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
