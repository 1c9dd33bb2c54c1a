//! Which batches and records stay: one batch after another, from the start of the log. Pure.
//!
//! ```text
//!              aborted ──────────────────────────────▶ dropped, or emptied if it must stay
//!   records ─┤ a later record of the key ────────────▶ dropped    (of the key's last record on
//!              no key (of a time without compaction) ─▶ dropped     nothing is dropped but:)
//!              tombstone past its delete horizon ─────▶ dropped
//!   marker ──┤ a batch of its transaction is left ────▶ stays
//!              spent: gets a delete horizon, and is ──▶ dropped behind it
//! ```
//!
//! Invariants: a record at or beyond the map's end stays; a batch of a live producer's window, the
//! marker that alone tells its epoch, and the last batch of the round stay, if only as a header.
//! Never: looks at a clock or a file.

use super::offset_map::OffsetMap;
use super::transactions::Transactions;
use crate::index::transaction::AbortedEntry;
use crate::producer_state::ProducerState;
use bytes::Bytes;
use millstream_protocol::{BatchError, BatchRewriter, RecordBatch};
use rustc_hash::{FxHashMap, FxHashSet};

/// What of the producers must be found again by replay: their state at the end of what is cleaned.
/// What they appended behind it may be lost to a power cut, and does not stand in for it.
#[derive(Debug, Default)]
pub(crate) struct LiveProducers {
    entries: FxHashMap<i64, LiveProducer>,
}

#[derive(Debug)]
struct LiveProducer {
    epoch: i16,
    /// Last offsets of the batches whose retries are recognised.
    window: Vec<i64>,
}

impl LiveProducers {
    /// Those in this state that were not forgotten meanwhile.
    pub(crate) fn of(state: &ProducerState, known: &FxHashSet<i64>) -> LiveProducers {
        let entries = state.entries().into_iter();
        let live = entries.filter(|(producer_id, _)| known.contains(producer_id));
        let live = live.map(|(producer_id, entry)| {
            let window = entry.window.iter().map(|mark| mark.last_offset).collect();
            let epoch = entry.epoch;
            (producer_id, LiveProducer { epoch, window })
        });
        LiveProducers {
            entries: live.collect(),
        }
    }

    /// Whether replay would miss this batch.
    fn need(&self, batch: &RecordBatch) -> bool {
        let Some(producer) = self.entries.get(&batch.producer_id()) else {
            return false;
        };
        if batch.is_control() {
            return producer.window.is_empty() && producer.epoch == batch.producer_epoch();
        }
        producer.window.contains(&batch.last_offset())
    }
}

/// What becomes of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It goes.
    Drop,
    /// It stays as it is.
    Keep,
    /// It is replaced by these bytes.
    Replace(Bytes),
}

/// What was judged so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    pub(crate) records_read: u64,
    pub(crate) records_kept: u64,
    /// Records without a key, which no compacted topic takes.
    pub(crate) records_without_key: u64,
}

/// One pass over a log.
#[derive(Debug)]
pub(crate) struct Filter<'a> {
    pub(crate) map: &'a OffsetMap,
    pub(crate) live: LiveProducers,
    pub(crate) transactions: Transactions,
    pub(crate) now_ms: i64,
    pub(crate) delete_retention_ms: i64,
    /// The batch that ends here stays, so that the log does not end before.
    pub(crate) round_end: i64,
    pub(crate) max_decompressed_bytes: usize,
    pub(crate) rewriter: BatchRewriter,
    pub(crate) judged: Judged,
}

impl Filter<'_> {
    /// Judges the next batch; the entry is one for the index of the segment that the batch goes to.
    pub(crate) fn judge(
        &mut self,
        batch: &RecordBatch,
    ) -> Result<(Fate, Option<AbortedEntry>), BatchError> {
        let must_stay = batch.next_offset() == self.round_end || self.live.need(batch);
        self.judged.records_read += batch.record_count().unsigned_abs() as u64;
        if batch.is_control() {
            let ended = self.transactions.on_marker(batch);
            let fate = self.judge_marker(batch, ended.is_spent, must_stay)?;
            self.judged.records_kept += u64::from(fate != Fate::Drop);
            return Ok((fate, ended.entry));
        }
        let fate = if self.transactions.on_batch(batch) {
            self.emptied(batch, must_stay)?
        } else {
            self.judge_records(batch, must_stay)?
        };
        Ok((fate, None))
    }

    fn judge_marker(
        &mut self,
        batch: &RecordBatch,
        is_spent: bool,
        must_stay: bool,
    ) -> Result<Fate, BatchError> {
        if batch.record_count() == 0 {
            // Another broker emptied it: it says nothing any more.
            return Ok(if must_stay { Fate::Keep } else { Fate::Drop });
        }
        if !is_spent {
            return Ok(Fate::Keep);
        }
        match batch.delete_horizon_ms() {
            Some(horizon) if horizon <= self.now_ms && !must_stay => Ok(Fate::Drop),
            Some(_) => Ok(Fate::Keep),
            None => {
                let kept = vec![true; batch.record_count().unsigned_abs() as usize];
                self.rewritten(batch, &kept, Some(self.horizon()))
            }
        }
    }

    fn judge_records(&mut self, batch: &RecordBatch, must_stay: bool) -> Result<Fate, BatchError> {
        let horizon = batch.delete_horizon_ms();
        let deletes = horizon.is_some_and(|horizon| horizon <= self.now_ms);
        let mut kept = Vec::with_capacity(batch.record_count().unsigned_abs() as usize);
        let mut has_tombstones = false;
        let mut records = batch.records(self.max_decompressed_bytes)?;
        while let Some(record) = records.next_view() {
            let record = record?;
            let keep = match record.key {
                _ if record.offset >= self.map.end() => true,
                None => {
                    self.judged.records_without_key += 1;
                    false
                }
                Some(_) if record.value.is_none() && deletes => false,
                Some(key) => !self.map.is_superseded(key, record.offset),
            };
            has_tombstones |= keep && record.value.is_none();
            kept.push(keep);
        }
        let count = kept.iter().filter(|keep| **keep).count();
        self.judged.records_kept += count as u64;
        if count == 0 {
            return self.emptied(batch, must_stay);
        }
        let new_horizon = (has_tombstones && horizon.is_none()).then(|| self.horizon());
        if count == kept.len() && new_horizon.is_none() {
            return Ok(Fate::Keep);
        }
        self.rewritten(batch, &kept, new_horizon)
    }

    fn horizon(&self) -> i64 {
        // Kafka takes no negative timestamp in this place.
        self.now_ms.saturating_add(self.delete_retention_ms).max(0)
    }

    fn rewritten(
        &mut self,
        batch: &RecordBatch,
        kept: &[bool],
        horizon: Option<i64>,
    ) -> Result<Fate, BatchError> {
        let max_bytes = self.max_decompressed_bytes;
        self.rewriter
            .with_records(batch, kept, horizon, max_bytes)
            .map(Fate::Replace)
    }

    /// A batch without records.
    fn emptied(&self, batch: &RecordBatch, must_stay: bool) -> Result<Fate, BatchError> {
        if !must_stay {
            return Ok(Fate::Drop);
        }
        if batch.record_count() == 0 {
            return Ok(Fate::Keep);
        }
        self.rewriter.without_records(batch).map(Fate::Replace)
    }
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
