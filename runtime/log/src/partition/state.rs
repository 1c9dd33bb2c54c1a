//! The state of one partition that its lock protects.
//!
//! Invariants: segments are never empty and lie one behind the other; the last one is written;
//! `undurable` holds the appends that the journal has not made durable, in order.
//! Never: does anything after a failure but read, or anything at all after `close`: by then its
//! names in the directory may be those of a later topic, or another process may work there.

use super::{LogOffsets, OpenTransaction, PartitionLog, ProducerSummary};
use crate::error::LogError;
use crate::layout::METADATA;
use crate::leader_epoch::LeaderEpochs;
use crate::producer_state::machine::ProducerEntry;
use crate::producer_state::{ProducerState, snapshot};
use crate::segment::Segment;
use crate::storage::{OpenMode, StorageFile};
use crate::tail::Tail;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct PartitionState {
    pub(crate) segments: Vec<Segment>,
    pub(crate) log_start: i64,
    pub(crate) log_end: i64,
    pub(crate) high_watermark: i64,
    pub(crate) producers: ProducerState,
    pub(super) epochs: LeaderEpochs,
    pub(super) leader_epoch: i32,
    /// (Journal position, offset after the append.)
    pub(super) undurable: VecDeque<(u64, i64)>,
    /// Of the latest append.
    pub(super) journal_position: u64,
    pub(crate) tail: Tail,
    /// Between batches that lie below, offsets may be missing: compaction took them.
    pub(crate) cleaned_below: i64,
    /// Below it every transaction has ended by a marker that the partition's own files hold
    /// durably.
    pub(super) synced_stable: i64,
    /// How often compaction has replaced segments.
    pub(super) swaps: u64,
    /// Whether any transaction was ever aborted here: spares readers the look-up.
    pub(super) has_aborted: bool,
    offline: Option<Offline>,
    /// Files other than segments' that were written but not synced.
    pub(super) unsynced: Vec<(PathBuf, Arc<dyn StorageFile>)>,
    /// Whether names in the directory changed since it was synced.
    pub(crate) names_changed: bool,
    /// Whether the directory's own name may not be durable.
    parent_unsynced: bool,
    /// Whether the file that names the topic may not be durable. It is before any record counts as
    /// synced.
    pub(super) metadata_unsynced: bool,
    /// Where the newest snapshot is, if it is known to be good: it holds while nothing is appended.
    pub(crate) snapshot_at: Option<i64>,
}

/// Why a log takes no more changes.
#[derive(Clone, Debug)]
enum Offline {
    /// What could not be undone.
    Failed(String),
    /// It was closed, by the end of its topic or of its directory.
    Closed,
}

/// What a flush has to sync.
#[derive(Debug, Default)]
pub(super) struct FlushWork {
    pub(super) files: Vec<(PathBuf, Arc<dyn StorageFile>)>,
    pub(super) directories: Vec<PathBuf>,
    pub(super) end_offset: i64,
    pub(super) stable_offset: i64,
}

impl PartitionState {
    pub(super) fn new(segments: Vec<Segment>, epochs: LeaderEpochs) -> PartitionState {
        let start = segments.first().map_or(0, Segment::base_offset);
        PartitionState {
            segments,
            log_start: start,
            log_end: start,
            high_watermark: start,
            producers: ProducerState::default(),
            leader_epoch: epochs.latest().max(0),
            epochs,
            undurable: VecDeque::new(),
            journal_position: 0,
            tail: Tail::default(),
            cleaned_below: 0,
            synced_stable: start,
            swaps: 0,
            has_aborted: false,
            offline: None,
            unsynced: Vec::new(),
            names_changed: false,
            parent_unsynced: true,
            metadata_unsynced: false,
            snapshot_at: None,
        }
    }

    /// Checked in release as well: a violation would show wrong data to consumers.
    pub(crate) fn offsets(&self) -> LogOffsets {
        let unstable = self.producers.stable.first_unstable().unwrap_or(i64::MAX);
        let last_stable = self.high_watermark.min(unstable).max(self.log_start);
        assert!(
            self.log_start <= last_stable
                && last_stable <= self.high_watermark
                && self.high_watermark <= self.log_end,
            "invariant: log start {} <= stable {last_stable} <= high watermark {} <= log end {}",
            self.log_start,
            self.high_watermark,
            self.log_end,
        );
        LogOffsets {
            log_start: self.log_start,
            last_stable,
            high_watermark: self.high_watermark,
            log_end: self.log_end,
        }
    }

    /// Whether the log may be changed. Whatever writes, or removes a file, asks first.
    pub(crate) fn check_online(&self) -> Result<(), LogError> {
        match &self.offline {
            None => Ok(()),
            Some(Offline::Failed(reason)) => Err(LogError::Poisoned {
                reason: reason.clone(),
            }),
            Some(Offline::Closed) => Err(LogError::Closed),
        }
    }

    /// Whether the log may be read: its names in the directory are still its own.
    pub(super) fn check_open(&self) -> Result<(), LogError> {
        match &self.offline {
            Some(Offline::Closed) => Err(LogError::Closed),
            None | Some(Offline::Failed(_)) => Ok(()),
        }
    }

    pub(crate) fn take_offline(&mut self, reason: String) {
        if self.offline.is_none() {
            tracing::error!(reason, "partition log taken offline");
            self.offline = Some(Offline::Failed(reason));
        }
    }

    /// The segment that is written.
    pub(super) fn active(&mut self) -> &mut Segment {
        self.segments
            .last_mut()
            .expect("invariant: a log has a segment")
    }

    /// Index of the segment that holds `offset`, or would.
    pub(super) fn segment_index(&self, offset: i64) -> usize {
        self.segments
            .partition_point(|segment| segment.base_offset() <= offset)
            .saturating_sub(1)
    }

    pub(super) fn on_durable(&mut self, journal_position: u64) {
        while let Some((position, next_offset)) = self.undurable.front().copied() {
            if position > journal_position {
                break;
            }
            self.undurable.pop_front();
            self.raise_high_watermark(next_offset);
        }
    }

    pub(super) fn raise_high_watermark(&mut self, offset: i64) {
        self.high_watermark = self.high_watermark.max(offset);
        self.producers.stable.on_high_watermark(self.high_watermark);
    }

    pub(super) fn producer(&self, producer_id: i64) -> Option<ProducerSummary> {
        self.producers
            .entry(producer_id)
            .map(|entry| summary(producer_id, entry))
    }

    pub(super) fn producers(&self) -> Vec<ProducerSummary> {
        let entries = self.producers.entries();
        entries
            .into_iter()
            .map(|(id, entry)| summary(id, entry))
            .collect()
    }

    pub(super) fn open_transactions(&self) -> Vec<OpenTransaction> {
        let open = self.producers.stable.open();
        open.filter_map(|(first_offset, producer_id)| {
            let entry = self.producers.entry(producer_id)?;
            Some(OpenTransaction {
                producer_id,
                producer_epoch: entry.epoch,
                first_offset,
                last_timestamp: entry.last_timestamp,
            })
        })
        .collect()
    }

    pub(super) fn leader_epoch(&self) -> i32 {
        self.leader_epoch
    }

    pub(super) fn end_offset_for_epoch(&self, epoch: i32) -> Option<(i32, i64)> {
        self.epochs.end_offset(epoch, self.log_end)
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.segments.iter().map(Segment::size_bytes).sum()
    }

    /// Writes a producer snapshot at the log end.
    pub(super) fn write_snapshot(&mut self, log: &PartitionLog) -> Result<(), LogError> {
        let storage = log.storage.as_ref();
        let directory = &log.directory;
        let path = snapshot::write(storage, directory, self.log_end, &self.producers)?;
        snapshot::prune(storage, directory, self.log_end)?;
        let file = storage
            .open(&path, OpenMode::Write)
            .map_err(|error| LogError::io("open", &path, error))?;
        self.written(path, file);
        self.snapshot_at = Some(self.log_end);
        Ok(())
    }

    /// Somebody else has synced the name of this log's directory.
    pub(super) fn note_parent_synced(&mut self) {
        self.parent_unsynced = false;
    }

    /// Makes the snapshot durable, and the names of the files: before everything goes that it could
    /// be made from again.
    pub(crate) fn sync_snapshot(&mut self, log: &PartitionLog) -> Result<(), LogError> {
        if !log.durability.syncs_files() {
            return Ok(());
        }
        let files = std::mem::take(&mut self.unsynced);
        let synced = files.iter().try_for_each(|(path, file)| {
            file.sync_data()
                .map_err(|error| LogError::io("sync", path, error))
        });
        let synced = synced.and_then(|()| {
            log.storage
                .sync_dir(&log.directory)
                .map_err(|error| LogError::io("sync", &log.directory, error))
        });
        if let Err(error) = &synced {
            self.take_offline(error.to_string());
        }
        synced
    }

    /// Takes no more changes, and is not read any more.
    pub(super) fn retire(&mut self) {
        self.offline = Some(Offline::Closed);
    }

    /// Whether nothing was ever written that a sync would have to keep: what a power cut takes of
    /// such a log is made again when it is opened.
    fn is_untouched(&self) -> bool {
        self.log_end == 0
            && self.unsynced.is_empty()
            && self.segments.iter().all(Segment::is_untouched)
    }

    /// Remembers a small file that must be synced.
    fn written(&mut self, path: PathBuf, file: Arc<dyn StorageFile>) {
        self.unsynced.retain(|(known, _)| *known != path);
        self.unsynced.push((path, file));
        self.names_changed = true;
    }

    /// Writes what waits in memory and says what must be synced for it to be durable. What cannot
    /// be written waits for the next time. A log that is to close does so in any case.
    pub(super) fn prepare_flush(
        &mut self,
        log: &PartitionLog,
        close: bool,
    ) -> Result<FlushWork, LogError> {
        let untouched = self.is_untouched();
        let written = self.check_online().and_then(|()| match untouched {
            true => Ok(()),
            false => self.write_waiting(log, close),
        });
        if close {
            self.retire();
        }
        written.map(|()| match untouched {
            true => FlushWork::default(),
            false => self.take_flush_work(log),
        })
    }

    fn write_waiting(&mut self, log: &PartitionLog, close: bool) -> Result<(), LogError> {
        let storage = log.storage.as_ref();
        if close {
            self.active().seal(storage)?;
            if self.snapshot_at != Some(self.log_end) {
                self.write_snapshot(log)?;
            }
        }
        if let Some((path, file)) = self.epochs.write(storage, &log.directory)? {
            self.written(path, file);
        }
        if self.metadata_unsynced {
            let path = log.directory.join(METADATA);
            let file = storage
                .open(&path, OpenMode::Write)
                .map_err(|error| LogError::io("open", &path, error))?;
            self.written(path, file);
            self.metadata_unsynced = false;
        }
        for segment in &mut self.segments {
            segment.write_indexes(storage)?;
        }
        Ok(())
    }

    /// What was written counts as synced from now on: a sync that fails is final.
    fn take_flush_work(&mut self, log: &PartitionLog) -> FlushWork {
        let mut files = std::mem::take(&mut self.unsynced);
        let mut directories = Vec::new();
        for segment in &mut self.segments {
            segment.take_unsynced(&mut files);
        }
        if std::mem::take(&mut self.names_changed) {
            directories.push(log.directory.clone());
        }
        if std::mem::take(&mut self.parent_unsynced) {
            directories.push(log.directory.parent().unwrap_or(Path::new("")).to_owned());
        }
        FlushWork {
            files,
            directories,
            end_offset: self.log_end,
            stable_offset: self.offsets().last_stable,
        }
    }
}

fn summary(producer_id: i64, entry: &ProducerEntry) -> ProducerSummary {
    ProducerSummary {
        producer_id,
        producer_epoch: entry.epoch,
        last_sequence: entry.last_sequence(),
        last_timestamp: entry.last_timestamp,
        coordinator_epoch: entry.coordinator_epoch,
        current_transaction_start_offset: entry.open_since.unwrap_or(-1),
    }
}
