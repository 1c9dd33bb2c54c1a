//! Producer state of one partition: every producer's entry, and the transactions they have open.
//!
//! Invariants: the state is a function of the log: replaying the same batches gives the same state,
//! whatever was checked when they were appended.
//! Never: drops a producer whose transaction is open; is changed by a refused batch.

pub(crate) mod machine;
pub(crate) mod snapshot;

use crate::stable_offset::StableOffset;
use machine::{BatchEvent, BatchMark, MarkerEvent, ProducerEntry};
use millstream_protocol::{BatchError, RecordBatch};
use rustc_hash::FxHashMap;

/// What producers did on one partition.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProducerState {
    entries: FxHashMap<i64, ProducerEntry>,
    /// When a producer was last heard of by this process; not part of the state proper.
    heard_ms: FxHashMap<i64, i64>,
    /// Open transactions, and those whose marker is not below the high watermark.
    pub(crate) stable: StableOffset,
}

/// A transaction that a marker ended on this partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndedTransaction {
    pub(crate) producer_id: i64,
    pub(crate) first_offset: i64,
    pub(crate) marker_offset: i64,
    pub(crate) committed: bool,
}

/// The event of a batch that is to be appended, or was appended, at `base_offset`.
pub(crate) fn batch_event(batch: &RecordBatch, base_offset: i64, timestamp: i64) -> BatchEvent {
    BatchEvent {
        epoch: batch.producer_epoch(),
        transactional: batch.is_transactional(),
        mark: BatchMark {
            base_sequence: batch.base_sequence(),
            last_sequence: batch.last_sequence(),
            base_offset,
            last_offset: base_offset.saturating_add(i64::from(batch.last_offset_delta())),
            timestamp,
        },
    }
}

impl ProducerState {
    pub(crate) fn entry(&self, producer_id: i64) -> Option<&ProducerEntry> {
        self.entries.get(&producer_id)
    }

    /// All producers, by id.
    pub(crate) fn entries(&self) -> Vec<(i64, &ProducerEntry)> {
        let mut entries: Vec<_> = self
            .entries
            .iter()
            .map(|(id, entry)| (*id, entry))
            .collect();
        entries.sort_unstable_by_key(|(id, _)| *id);
        entries
    }

    pub(crate) fn insert(&mut self, producer_id: i64, entry: ProducerEntry) {
        if let Some(first_offset) = entry.open_since {
            self.stable.begin(first_offset, producer_id);
        }
        self.entries.insert(producer_id, entry);
    }

    /// Takes in a batch that is in the log now.
    pub(crate) fn apply_batch(&mut self, producer_id: i64, event: &BatchEvent) {
        let entry = self
            .entries
            .entry(producer_id)
            .or_insert_with(|| ProducerEntry::new(event.epoch));
        if let Some(first_offset) = entry.apply_batch(event) {
            self.stable.begin(first_offset, producer_id);
        }
    }

    /// Takes in a marker that is in the log now.
    pub(crate) fn apply_marker(
        &mut self,
        producer_id: i64,
        event: &MarkerEvent,
        committed: bool,
    ) -> Option<EndedTransaction> {
        let entry = self
            .entries
            .entry(producer_id)
            .or_insert_with(|| ProducerEntry::new(event.epoch));
        let first_offset = entry.apply_marker(event)?;
        self.stable.end(first_offset, event.offset);
        let marker_offset = event.offset;
        Some(EndedTransaction {
            producer_id,
            first_offset,
            marker_offset,
            committed,
        })
    }

    /// Takes in a batch as it lies in the log.
    pub(crate) fn replay(
        &mut self,
        batch: &RecordBatch,
    ) -> Result<Option<EndedTransaction>, BatchError> {
        let producer_id = batch.producer_id();
        if producer_id < 0 {
            return Ok(None);
        }
        let Some(marker) = batch.control()? else {
            let event = batch_event(batch, batch.base_offset(), batch.max_timestamp());
            self.apply_batch(producer_id, &event);
            return Ok(None);
        };
        let event = MarkerEvent {
            epoch: batch.producer_epoch(),
            coordinator_epoch: marker.coordinator_epoch(),
            offset: batch.base_offset(),
            timestamp: batch.max_timestamp(),
        };
        Ok(self.apply_marker(producer_id, &event, marker.is_commit()))
    }

    /// Remembers that this process heard of the producer.
    pub(crate) fn heard(&mut self, producer_id: i64, now_ms: i64) {
        self.heard_ms.insert(producer_id, now_ms);
    }

    /// Nobody could be heard of for a while: everybody's silence begins now.
    pub(crate) fn hear_all(&mut self, now_ms: i64) {
        let ids = self.entries.keys();
        self.heard_ms.extend(ids.map(|id| (*id, now_ms)));
    }

    /// Forgets producers that were silent for `expiration_ms` by their timestamps and by this
    /// process's clock. A producer that was never heard of here is heard of now.
    pub(crate) fn expire(&mut self, now_ms: i64, expiration_ms: i64) {
        let heard_ms = &mut self.heard_ms;
        self.entries.retain(|producer_id, entry| {
            let heard = *heard_ms.entry(*producer_id).or_insert(now_ms);
            let last = heard.max(entry.last_timestamp.min(now_ms));
            let keep = entry.open_since.is_some() || now_ms.saturating_sub(last) < expiration_ms;
            if !keep {
                heard_ms.remove(producer_id);
            }
            keep
        });
    }
}

/// Equal when replay would give the same: when the producers were last heard of does not count.
impl PartialEq for ProducerState {
    fn eq(&self, other: &ProducerState) -> bool {
        self.entries == other.entries && self.stable.open().eq(other.stable.open())
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
