//! Append: producer checks, offsets, one vectored write, the journal, and only then the state.
//!
//! Invariants: a batch reaches state, indexes and journal only after it was written; the journal
//! gets a partition's batches in the order of their offsets.
//! Never: changes a byte of a batch beyond its 17-byte prefix.

use super::state::PartitionState;
use super::{AppendOrigin, Appended, PartitionLog};
use crate::append_error::AppendError;
use crate::error::LogError;
use crate::index::transaction::AbortedEntry;
use crate::partition_config::PartitionConfig;
use crate::producer_state::machine::{
    BatchEvent, BatchMark, Checks, MarkerEvent, ProducerEntry, Verdict, check_batch, check_marker,
};
use crate::producer_state::{EndedTransaction, batch_event};
use crate::segment::{BatchPlace, Segment};
use crate::tail::TailBatch;
use bytes::Bytes;
use millstream_protocol::{ControlMarker, RecordBatch, Uuid, patch_prefix};

const PREFIX_BYTES: usize = 17;

/// A batch that passed, with what it will do to its producer's state.
enum Change {
    None,
    Batch(i64, BatchEvent),
    Marker(i64, MarkerEvent, bool),
}

/// What the checks of a whole append say.
enum Checked {
    New(Vec<Change>),
    Duplicate(BatchMark),
}

impl PartitionState {
    pub(super) fn append(
        &mut self,
        log: &PartitionLog,
        config: &PartitionConfig,
        batches: &[RecordBatch],
        origin: AppendOrigin,
        now_ms: i64,
    ) -> Result<Appended, AppendError> {
        self.check_online()?;
        if let Some(journal) = &log.journal {
            journal.check()?;
        }
        let base_offset = self.log_end;
        let log_append_time_ms = if config.log_append_time { now_ms } else { -1 };
        let changes = match self.check(batches, origin)? {
            Checked::New(changes) => changes,
            Checked::Duplicate(original) => {
                return Ok(Appended {
                    base_offset: original.base_offset,
                    last_offset: original.last_offset,
                    log_append_time_ms: if config.log_append_time {
                        original.timestamp
                    } else {
                        -1
                    },
                    log_start_offset: self.log_start,
                    // The original may still be on its way to the disk.
                    journal_position: self.journal_position,
                    duplicate: true,
                });
            }
        };
        let (parts, placed) = self.placed(batches)?;
        self.roll_if_due(log, config, &parts, &placed, now_ms)?;
        self.write(log, base_offset, parts, &placed)?;
        for (change, batch) in changes.into_iter().zip(&placed) {
            self.apply(log, change, now_ms);
            self.epochs.observe(batch.leader_epoch, batch.base_offset);
        }
        self.publish(log);
        Ok(Appended {
            base_offset,
            last_offset: self.log_end - 1,
            log_append_time_ms,
            log_start_offset: self.log_start,
            journal_position: self.journal_position,
            duplicate: false,
        })
    }

    /// Judges all batches on copies; nothing is changed.
    fn check(&self, batches: &[RecordBatch], origin: AppendOrigin) -> Result<Checked, AppendError> {
        let mut changes = Vec::with_capacity(batches.len());
        // What earlier batches of the same append do to their producers.
        let mut ahead: Vec<(i64, ProducerEntry)> = Vec::new();
        let mut offset = self.log_end;
        for batch in batches {
            let producer_id = batch.producer_id();
            let next_offset = offset + i64::from(batch.last_offset_delta()) + 1;
            if producer_id < 0 {
                changes.push(Change::None);
                offset = next_offset;
                continue;
            }
            let copied = ahead.iter().rposition(|(id, _)| *id == producer_id);
            let entry = match copied.and_then(|index| ahead.get(index)) {
                Some((_, entry)) => Some(entry),
                None => self.producers.entry(producer_id),
            };
            let change = match (origin, batch.control()?) {
                (
                    AppendOrigin::Marker {
                        coordinator_epoch,
                        transaction_version,
                    },
                    Some(marker),
                ) => {
                    let event = marker_event(batch, marker, offset, coordinator_epoch)?;
                    check_marker(entry, &event, transaction_version)
                        .map_err(|refusal| refused(refusal, batch, event.coordinator_epoch))?;
                    Change::Marker(producer_id, event, marker.is_commit())
                }
                _ => {
                    let event = batch_event(batch, offset, batch.max_timestamp());
                    match check_batch(entry, &event, checks_of(origin)) {
                        Verdict::Append => Change::Batch(producer_id, event),
                        Verdict::Duplicate(original) => return Ok(Checked::Duplicate(original)),
                        Verdict::Refuse(refusal) => return Err(refused(refusal, batch, -1)),
                    }
                }
            };
            if batches.len() > 1 {
                let mut copy = entry
                    .cloned()
                    .unwrap_or_else(|| ProducerEntry::new(batch.producer_epoch()));
                match &change {
                    Change::Batch(_, event) => {
                        copy.apply_batch(event);
                    }
                    Change::Marker(_, event, _) => {
                        copy.apply_marker(event);
                    }
                    Change::None => {}
                }
                ahead.push((producer_id, copy));
            }
            changes.push(change);
            offset = next_offset;
        }
        Ok(Checked::New(changes))
    }

    /// The bytes with offsets and leader epoch in place: as prefix and rest for one batch, in one
    /// piece for several. The batches say what they say in the log.
    fn placed(
        &self,
        batches: &[RecordBatch],
    ) -> Result<([Bytes; 2], Vec<PlacedBatch>), AppendError> {
        let mut offset = self.log_end;
        let mut placed = Vec::with_capacity(batches.len());
        let mut prefixes = Vec::with_capacity(batches.len());
        for batch in batches {
            let mut prefix = [0; PREFIX_BYTES];
            if let Some(start) = batch.bytes().first_chunk::<PREFIX_BYTES>() {
                prefix = *start;
            }
            patch_prefix(&mut prefix, offset, self.leader_epoch);
            prefixes.push(prefix);
            let rest = batch.bytes().slice(PREFIX_BYTES..);
            placed.push(PlacedBatch {
                base_offset: offset,
                last_offset: offset + i64::from(batch.last_offset_delta()),
                leader_epoch: self.leader_epoch,
                max_timestamp: batch.max_timestamp(),
                parts: [Bytes::copy_from_slice(&prefix), rest],
            });
            offset += i64::from(batch.last_offset_delta()) + 1;
        }
        if let [only] = placed.as_slice() {
            return Ok((only.parts.clone(), placed));
        }
        let mut whole = Vec::with_capacity(batches.iter().map(RecordBatch::size_bytes).sum());
        for batch in &placed {
            whole.extend_from_slice(&batch.parts[0]);
            whole.extend_from_slice(&batch.parts[1]);
        }
        Ok(([Bytes::from(whole), Bytes::new()], placed))
    }

    fn roll_if_due(
        &mut self,
        log: &PartitionLog,
        config: &PartitionConfig,
        parts: &[Bytes; 2],
        placed: &[PlacedBatch],
        now_ms: i64,
    ) -> Result<(), LogError> {
        let size_bytes = (parts[0].len() + parts[1].len()) as u64;
        let last_offset = placed
            .last()
            .map_or(self.log_end, |batch| batch.last_offset);
        let newest = placed
            .iter()
            .map(|batch| batch.max_timestamp)
            .max()
            .unwrap_or(now_ms);
        let (topic_id, storage) = (log.topic_id, log.storage.as_ref());
        let active = self.active();
        if active.size_bytes() == 0 {
            return Ok(());
        }
        let too_large = active.size_bytes() + size_bytes > config.segment_bytes;
        let age_max = config.segment_ms_max() - jitter_ms(config, topic_id, active.base_offset());
        let too_old = active
            .first_timestamp()
            .is_some_and(|first| newest.saturating_sub(first) > age_max);
        let index_full = active.index_bytes(storage)? >= config.segment_index_bytes;
        if too_large || too_old || index_full || !active.takes_offset(last_offset) {
            self.roll(log)?;
        }
        Ok(())
    }

    /// Ends the active segment and begins the next one at the log end. An error leaves the active
    /// segment in place.
    pub(crate) fn roll(&mut self, log: &PartitionLog) -> Result<(), LogError> {
        let storage = log.storage.as_ref();
        let base_offset = self.log_end;
        self.active().seal(storage)?;
        self.write_snapshot(log)?;
        let segment = Segment::create(storage, &log.directory, base_offset)?;
        self.segments.push(segment);
        self.names_changed = true;
        Ok(())
    }

    /// Writes the bytes, takes them up in everything but the producer state, and hands them to the
    /// journal.
    fn write(
        &mut self,
        log: &PartitionLog,
        base_offset: i64,
        parts: [Bytes; 2],
        placed: &[PlacedBatch],
    ) -> Result<(), LogError> {
        self.write_unjournaled(log, base_offset, &parts, placed)?;
        if let Some(journal) = &log.journal {
            self.journal_position =
                journal.enqueue(log.topic_id, log.partition, base_offset, parts);
        }
        Ok(())
    }

    /// Writes the bytes and takes them up in everything but producer state and journal.
    pub(super) fn write_unjournaled(
        &mut self,
        log: &PartitionLog,
        base_offset: i64,
        parts: &[Bytes; 2],
        placed: &[PlacedBatch],
    ) -> Result<(), LogError> {
        assert_eq!(
            base_offset, self.log_end,
            "invariant: offsets are given out without gaps"
        );
        let interval_bytes = log.config().index_interval_bytes;
        let active = self.active();
        let mut position = match active.write(&[&parts[0], &parts[1]]) {
            Ok(position) => position,
            Err((error, restored)) => {
                if !restored {
                    self.take_offline(format!("{error}, and the file could not be cut back"));
                }
                return Err(error);
            }
        };
        for batch in placed {
            let size_bytes = (batch.parts[0].len() + batch.parts[1].len()) as u64;
            let place = BatchPlace {
                position,
                size_bytes,
                last_offset: batch.last_offset,
                max_timestamp: batch.max_timestamp,
            };
            self.active().index_batch(&place, interval_bytes);
            position += size_bytes;
            self.tail.push(TailBatch {
                base_offset: batch.base_offset,
                next_offset: batch.last_offset + 1,
                parts: batch.parts.clone(),
            });
            self.log_end = batch.last_offset + 1;
        }
        Ok(())
    }

    fn apply(&mut self, log: &PartitionLog, change: Change, now_ms: i64) {
        match change {
            Change::None => {}
            Change::Batch(producer_id, event) => {
                self.producers.heard(producer_id, now_ms);
                self.producers.apply_batch(producer_id, &event);
            }
            Change::Marker(producer_id, event, committed) => {
                self.producers.heard(producer_id, now_ms);
                if let Some(ended) = self.producers.apply_marker(producer_id, &event, committed) {
                    self.transaction_ended(log, ended);
                }
            }
        }
    }

    /// Lists an aborted transaction for readers.
    pub(super) fn transaction_ended(&mut self, log: &PartitionLog, ended: EndedTransaction) {
        if ended.committed {
            return;
        }
        let entry = aborted_entry(
            ended,
            self.producers.stable.first_open_or(ended.marker_offset + 1),
        );
        self.has_aborted = true;
        self.names_changed = true;
        self.active().add_aborted(log.storage.as_ref(), entry);
    }

    /// Lets readers see what was appended, as the mode has it.
    fn publish(&mut self, log: &PartitionLog) {
        if log.durability.is_journaled() && log.journal.is_some() {
            self.undurable
                .push_back((self.journal_position, self.log_end));
        } else {
            self.raise_high_watermark(self.log_end);
        }
    }
}

/// How much earlier than others this segment ends: the same whenever it is asked.
fn jitter_ms(config: &PartitionConfig, topic_id: Uuid, base_offset: i64) -> i64 {
    let most = config.segment_jitter_ms.min(config.segment_ms_max());
    if most <= 0 {
        return 0;
    }
    let seed = [topic_id.0.as_slice(), &base_offset.to_be_bytes()].concat();
    i64::from(crc_fast::crc32_iscsi(&seed)) % most
}

/// A batch as it goes into the log.
pub(super) struct PlacedBatch {
    pub(super) base_offset: i64,
    pub(super) last_offset: i64,
    pub(super) leader_epoch: i32,
    pub(super) max_timestamp: i64,
    pub(super) parts: [Bytes; 2],
}

impl PlacedBatch {
    /// A batch whose prefix is in place already.
    pub(super) fn of(batch: &RecordBatch) -> PlacedBatch {
        PlacedBatch {
            base_offset: batch.base_offset(),
            last_offset: batch.last_offset(),
            leader_epoch: batch.partition_leader_epoch(),
            max_timestamp: batch.max_timestamp(),
            parts: [
                batch.bytes().slice(..PREFIX_BYTES),
                batch.bytes().slice(PREFIX_BYTES..),
            ],
        }
    }
}

pub(super) fn aborted_entry(ended: EndedTransaction, last_stable_offset: i64) -> AbortedEntry {
    AbortedEntry {
        producer_id: ended.producer_id,
        first_offset: ended.first_offset,
        last_offset: ended.marker_offset,
        last_stable_offset,
    }
}

fn checks_of(origin: AppendOrigin) -> Checks {
    match origin {
        AppendOrigin::Client => Checks::Client,
        AppendOrigin::LegacyClient => Checks::LegacyClient,
        AppendOrigin::Coordinator | AppendOrigin::Marker { .. } => Checks::Coordinator,
    }
}

fn marker_event(
    batch: &RecordBatch,
    marker: ControlMarker,
    offset: i64,
    coordinator_epoch: i32,
) -> Result<MarkerEvent, AppendError> {
    if marker.coordinator_epoch() != coordinator_epoch {
        return Err(AppendError::InvalidRecord {
            rule: "a marker carries the epoch of the coordinator that sent it",
        });
    }
    Ok(MarkerEvent {
        epoch: batch.producer_epoch(),
        coordinator_epoch,
        offset,
        timestamp: batch.max_timestamp(),
    })
}

fn refused(
    refusal: crate::producer_state::machine::Refusal,
    batch: &RecordBatch,
    coordinator_epoch: i32,
) -> AppendError {
    let (id, epoch) = (batch.producer_id(), batch.producer_epoch());
    AppendError::refused(refusal, id, epoch, batch.base_sequence(), coordinator_epoch)
}
