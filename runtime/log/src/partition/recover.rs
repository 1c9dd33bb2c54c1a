//! Opening: from the files that are there to the state of a log, whatever stopped the last process.
//!
//! Invariants: a scanned segment's batches have good CRCs and consecutive offsets; nothing below
//! the checkpoint is ever cut; after `Recovery::Clean` no log file is read from its start.
//! Never: trusts an index or snapshot that does not fit its log.

use super::append::aborted_entry;
use super::state::PartitionState;
use super::{PartitionSetup, Recovery};
use crate::compaction::manifest;
use crate::error::LogError;
use crate::layout::METADATA;
use crate::leader_epoch::LeaderEpochs;
use crate::producer_state::{ProducerState, snapshot};
use crate::retention::{read_log_start, write_log_start};
use crate::segment::{BatchPlace, Scanned, Segment, base_offset_of, check_place, follows};
use crate::storage::Storage;
use millstream_protocol::RecordBatch;
use std::path::{Path, PathBuf};

pub(super) fn open(setup: &PartitionSetup) -> Result<PartitionState, LogError> {
    let storage = setup.storage.as_ref();
    let directory = &setup.directory;
    storage
        .create_dir_all(directory)
        .map_err(|error| LogError::io("create", directory, error))?;
    let names_before = names(storage, directory)?;
    let compaction = manifest::settle(storage, directory)?;
    let log_start = read_log_start(storage, directory)?;
    let segments = open_segments(storage, directory, log_start)?;
    let mut state = PartitionState::new(segments, LeaderEpochs::load(storage, directory)?);
    let is_new = is_new(&names_before, &state);
    // A log that was closed has synced its names, unless nothing was ever written to it.
    state.names_changed =
        is_new || setup.recovery != Recovery::Clean || names(storage, directory)? != names_before;
    let nothing_durable = Recovery::Unclean {
        checkpoint_offset: 0,
    };
    state.metadata_unsynced = (is_new || setup.recovery == nothing_durable)
        && names_before.iter().any(|name| name == METADATA);
    state.cleaned_below = compaction.cleaned_below;
    let opening = Opening {
        setup,
        storage,
        directory,
        is_new,
    };
    opening.recover(&mut state, log_start)?;
    Ok(state)
}

/// Whether there is nothing but what the creation of a partition puts there, or a part of it.
fn is_new(names_before: &[String], state: &PartitionState) -> bool {
    let is_created = |name: &String| name == METADATA || base_offset_of(name) == Some(0);
    let is_empty = |segment: &Segment| segment.base_offset() == 0 && segment.size_bytes() == 0;
    names_before.iter().all(is_created) && state.segments.iter().all(is_empty)
}

fn names(storage: &dyn Storage, directory: &Path) -> Result<Vec<String>, LogError> {
    storage
        .list(directory)
        .map_err(|error| LogError::io("list", directory, error))
}

/// The segments whose log files are there, or a first one; index files without a log go.
fn open_segments(
    storage: &dyn Storage,
    directory: &Path,
    log_start: i64,
) -> Result<Vec<Segment>, LogError> {
    let names = names(storage, directory)?;
    let mut bases: Vec<i64> = names
        .iter()
        .filter_map(|name| base_offset_of(name))
        .collect();
    bases.sort_unstable();
    for name in &names {
        let index = name
            .split_once('.')
            .filter(|(_, kind)| ["index", "timeindex", "txnindex"].contains(kind))
            .and_then(|(digits, _)| digits.parse::<i64>().ok());
        if index.is_some_and(|base| bases.binary_search(&base).is_err()) {
            let path = directory.join(name);
            storage
                .remove_file(&path)
                .map_err(|error| LogError::io("remove", &path, error))?;
        }
    }
    if bases.is_empty() {
        return Ok(vec![Segment::create(storage, directory, log_start)?]);
    }
    let mut segments = Vec::with_capacity(bases.len());
    for (index, base) in bases.iter().enumerate() {
        let segment = Segment::open(storage, directory, *base)?;
        // Retention was cut short: the log start was moved, the segment stayed.
        if bases.get(index + 1).is_some_and(|next| *next <= log_start) {
            segment.remove(storage)?;
        } else {
            segments.push(segment);
        }
    }
    Ok(segments)
}

struct Opening<'a> {
    setup: &'a PartitionSetup,
    storage: &'a dyn Storage,
    directory: &'a PathBuf,
    /// Nothing was ever written: there is nothing to scan, and nothing to build again.
    is_new: bool,
}

impl Opening<'_> {
    fn recover(&self, state: &mut PartitionState, log_start: i64) -> Result<(), LogError> {
        let scan_from = self.first_to_scan(state)?;
        if scan_from == state.segments.len() {
            let active = state.active();
            active.resume(self.storage)?;
            state.log_end = end_of(active, self.storage)?;
            state.producers = replayed(self.storage, self.directory, state)?;
            let at_end = state.log_end..=state.log_end;
            let newest = snapshot::load(self.storage, self.directory, at_end)?;
            state.snapshot_at = newest.map(|(offset, _)| offset);
        } else {
            self.scan(state, scan_from)?;
        }
        self.check_reaches_checkpoint(state)?;
        state.log_start = state.log_start.max(log_start);
        if state.log_start > state.log_end {
            // The records between were given up and then lost: go on behind them.
            let fresh = Segment::create(self.storage, self.directory, state.log_start)?;
            for segment in std::mem::replace(&mut state.segments, vec![fresh]) {
                segment.remove(self.storage)?;
            }
            state.log_end = state.log_start;
            state.producers = ProducerState::default();
            state.snapshot_at = None;
            write_log_start(self.storage, self.directory, state.log_start)?;
        }
        state.epochs.truncate(state.log_end.max(1));
        self.observe_first_epoch(state)?;
        state.leader_epoch = state.epochs.latest().max(0);
        state.raise_high_watermark(state.log_end);
        for segment in &mut state.segments {
            state.has_aborted |= !segment.aborted(self.storage)?.is_empty();
        }
        self.prune_snapshots(state)
    }

    /// The first segment whose log file must be read as a whole.
    fn first_to_scan(&self, state: &PartitionState) -> Result<usize, LogError> {
        if self.is_new {
            return Ok(state.segments.len());
        }
        let mut first = match self.setup.recovery {
            Recovery::Clean => state.segments.len(),
            // From the last record below the checkpoint on: the segment behind it may have been
            // missing last time, so that a recovery that was cut short was rebuilding this one.
            Recovery::Unclean { checkpoint_offset } => state.segment_index(checkpoint_offset - 1),
        };
        for (index, segment) in state.segments.iter().enumerate().take(first) {
            if !segment.has_plausible_indexes(self.storage)? {
                if segment.size_bytes() > 0 {
                    tracing::warn!(path = ?segment.path(), "rebuilding indexes");
                }
                first = index;
                break;
            }
        }
        Ok(first)
    }

    fn checkpoint(&self) -> i64 {
        match self.setup.recovery {
            Recovery::Clean => i64::MAX,
            Recovery::Unclean { checkpoint_offset } => checkpoint_offset,
        }
    }

    /// Reads the segments from `first` on, rebuilds their indexes, and cuts off what is damaged.
    fn scan(&self, state: &mut PartitionState, first: usize) -> Result<(), LogError> {
        self.check_contiguous(state, first)?;
        let start = state.segments.get(first).map_or(0, Segment::base_offset);
        state.log_end = start;
        state.producers = replayed(self.storage, self.directory, state)?;
        for index in first..state.segments.len() {
            let expected = state.log_end;
            let Some(segment) = state.segments.get_mut(index) else {
                break;
            };
            let begins = segment.base_offset();
            let damage = if follows(begins, expected, state.cleaned_below) {
                state.log_end = begins;
                self.scan_segment(state, index)?
            } else {
                let reason = format!("a segment begins at {begins}, {expected} was to follow");
                Some((0, reason))
            };
            if let Some((position, reason)) = damage {
                self.cut(state, index, position, reason)?;
                break;
            }
        }
        Ok(())
    }

    /// Segments that are not scanned end where the next one begins, but for what compaction took.
    fn check_contiguous(&self, state: &mut PartitionState, first: usize) -> Result<(), LogError> {
        let cleaned_below = state.cleaned_below;
        let bases: Vec<i64> = state
            .segments
            .iter()
            .skip(1)
            .map(Segment::base_offset)
            .collect();
        for (segment, next) in state.segments.iter_mut().zip(bases).take(first) {
            let end = end_of(segment, self.storage)?;
            if !follows(next, end, cleaned_below) {
                let reason = format!("it ends at offset {end}, the next segment begins at {next}");
                return Err(LogError::corrupt(
                    segment.path(),
                    segment.size_bytes(),
                    reason,
                ));
            }
        }
        Ok(())
    }

    /// Reads one segment; where it is damaged, the position and the reason.
    fn scan_segment(
        &self,
        state: &mut PartitionState,
        index: usize,
    ) -> Result<Option<(u64, String)>, LogError> {
        let Some(segment) = state.segments.get_mut(index) else {
            return Ok(None);
        };
        segment.begin_rebuild(self.storage)?;
        let interval_bytes = self.setup.config.index_interval_bytes;
        let file = segment.log().clone();
        let path = segment.path().to_owned();
        let size_bytes = segment.size_bytes();
        let mut scan = crate::segment::BatchScan::over(file.as_ref(), &path, 0, size_bytes);
        loop {
            let (position, batch) = match scan.next()? {
                Scanned::Batch(position, batch) => (position, batch),
                Scanned::End => return Ok(None),
                Scanned::Damaged(position, reason) => return Ok(Some((position, reason))),
            };
            if let Err(reason) = check_place(&batch, state.log_end, state.cleaned_below) {
                return Ok(Some((position, reason)));
            }
            let ended = match state.producers.replay(&batch) {
                Ok(ended) => ended,
                Err(error) => return Ok(Some((position, error.to_string()))),
            };
            segment.index_batch(&BatchPlace::of(&batch, position), interval_bytes);
            if let Some(ended) = ended.filter(|ended| !ended.committed) {
                let stable = state
                    .producers
                    .stable
                    .first_open_or(ended.marker_offset + 1);
                segment.add_aborted(self.storage, aborted_entry(ended, stable));
            }
            state
                .epochs
                .observe(batch.partition_leader_epoch(), batch.base_offset());
            state.log_end = batch.next_offset();
        }
    }

    /// Cuts the log at the damage, unless that was made durable.
    fn cut(
        &self,
        state: &mut PartitionState,
        index: usize,
        position: u64,
        reason: String,
    ) -> Result<(), LogError> {
        let path = state
            .segments
            .get(index)
            .map_or(self.directory.as_path(), Segment::path);
        if state.log_end < self.checkpoint() {
            return Err(LogError::corrupt(path, position, reason));
        }
        tracing::warn!(?path, position, reason, "cutting the log here");
        let keep = if position == 0 {
            index.max(1)
        } else {
            index + 1
        };
        while state.segments.len() > keep
            && let Some(segment) = state.segments.pop()
        {
            segment.remove(self.storage)?;
        }
        if index < keep {
            let log_end = state.log_end;
            state.active().truncate(self.storage, position, log_end)?;
        }
        Ok(())
    }

    fn check_reaches_checkpoint(&self, state: &PartitionState) -> Result<(), LogError> {
        let Recovery::Unclean { checkpoint_offset } = self.setup.recovery else {
            return Ok(());
        };
        let last = state.segments.last();
        match last.filter(|_| state.log_end < checkpoint_offset) {
            None => Ok(()),
            Some(last) => {
                let end = state.log_end;
                let reason =
                    format!("the log ends at offset {end}, {checkpoint_offset} was made durable");
                Err(LogError::corrupt(last.path(), last.size_bytes(), reason))
            }
        }
    }

    /// A lost epoch file is begun again from the first batch.
    fn observe_first_epoch(&self, state: &mut PartitionState) -> Result<(), LogError> {
        if state.epochs.latest() >= 0 {
            return Ok(());
        }
        let first = state
            .segments
            .first()
            .map(|segment| segment.scan(0).next())
            .transpose()?;
        if let Some(Scanned::Batch(_, batch)) = first {
            state
                .epochs
                .observe(batch.partition_leader_epoch(), batch.base_offset());
        }
        Ok(())
    }

    /// Snapshots beyond the log end are of records that are gone; they must not come back.
    fn prune_snapshots(&self, state: &PartitionState) -> Result<(), LogError> {
        let newest = snapshot::list(self.storage, self.directory)?
            .first()
            .copied();
        if newest.is_some_and(|newest| newest > state.log_end) {
            snapshot::prune(self.storage, self.directory, state.log_end)?;
            if self.setup.durability.syncs_files() {
                self.storage
                    .sync_dir(self.directory)
                    .map_err(|error| LogError::io("sync", self.directory, error))?;
            }
        }
        Ok(())
    }
}

/// The offset after the last batch of a segment that was closed cleanly.
fn end_of(segment: &mut Segment, storage: &dyn Storage) -> Result<i64, LogError> {
    let from = segment.position_for(storage, i64::MAX)?;
    let mut end = segment.base_offset();
    let mut scan = segment.scan(from);
    loop {
        match scan.next()? {
            Scanned::Batch(position, batch) => {
                batch
                    .verify_crc()
                    .map_err(|e| LogError::corrupt(segment.path(), position, e.to_string()))?;
                end = batch.next_offset();
            }
            Scanned::End => return Ok(end),
            Scanned::Damaged(position, reason) => {
                return Err(LogError::corrupt(segment.path(), position, reason));
            }
        }
    }
}

/// Producer state at the log end: the newest good snapshot, and the batches since.
pub(super) fn replayed(
    storage: &dyn Storage,
    directory: &Path,
    state: &mut PartitionState,
) -> Result<ProducerState, LogError> {
    let log_end = state.log_end;
    // A snapshot from within what was compacted may know of a transaction whose end is gone.
    let oldest = state.cleaned_below;
    let (mut offset, mut producers) =
        snapshot::load(storage, directory, oldest..=log_end)?.unwrap_or_default();
    let first = state.segment_index(offset);
    for segment in state.segments.iter_mut().skip(first) {
        // Compaction may have taken the last offsets before the log end.
        if segment.base_offset() >= log_end {
            break;
        }
        let from = segment.position_for(storage, offset - 1)?;
        let mut scan = segment.scan(from);
        loop {
            let (position, batch): (u64, RecordBatch) = match scan.next()? {
                Scanned::Batch(position, batch) => (position, batch),
                Scanned::End => break,
                Scanned::Damaged(position, reason) => {
                    return Err(LogError::corrupt(segment.path(), position, reason));
                }
            };
            if batch.base_offset() >= log_end {
                break;
            }
            if batch.base_offset() >= offset {
                producers.replay(&batch).map_err(|error| {
                    LogError::corrupt(segment.path(), position, error.to_string())
                })?;
                offset = batch.next_offset();
            }
        }
    }
    producers.stable.on_high_watermark(log_end);
    Ok(producers)
}
