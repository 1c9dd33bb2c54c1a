//! Partition log: appends, reads and recovery of one partition on disk.
//!
//! Invariants: log start <= last stable offset <= high watermark <= log end, always; offsets are
//! given out without gaps and never twice; a refused or failed append changes nothing.
//! Never: calls the change listener, or reads records for a consumer, under its lock; waits.

mod append;
mod clean;
mod read;
mod recover;
mod replay;
mod state;

use crate::append_error::{AppendError, ReadError};
use crate::durability::Durability;
use crate::error::LogError;
use crate::journal::Journal;
use crate::partition_config::PartitionConfig;
use crate::storage::Storage;
use crate::validate::checked_batches;
use bytes::Bytes;
use millstream_protocol::Uuid;
use state::FlushWork;
pub(crate) use state::PartitionState;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// What a partition log needs from its directory.
#[derive(Clone, Debug)]
pub struct PartitionSetup {
    /// Where its files are.
    pub storage: Arc<dyn Storage>,
    /// The partition's directory; created when it is missing.
    pub directory: PathBuf,
    /// Id of the topic, for the journal.
    pub topic_id: Uuid,
    /// Number of the partition, for the journal.
    pub partition: i32,
    /// Settings.
    pub config: PartitionConfig,
    /// Where appends go as well, under `Durability::Sync`.
    pub journal: Option<Arc<Journal>>,
    /// When records count as durable.
    pub durability: Durability,
    /// What is known about how the files were left.
    pub recovery: Recovery,
}

/// How the files of a partition were left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// By `close`: they are trusted, and no log file is scanned.
    Clean,
    /// Otherwise. Everything below the offset was made durable, so damage there is an error; what
    /// is damaged beyond it is cut off.
    Unclean {
        /// What `flush` returned last; 0 when nothing is known.
        checkpoint_offset: i64,
    },
}

/// Whose batches are appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendOrigin {
    /// A client's: one batch, fully checked, duplicates recognised. A transactional batch of a
    /// producer without state must begin with sequence 0 (transaction version 2).
    Client,
    /// A client's under transaction version 0 or 1: without state any first sequence is taken.
    LegacyClient,
    /// The broker's own: no sequences.
    Coordinator,
    /// Transaction markers.
    Marker {
        /// Epoch of the transaction coordinator.
        coordinator_epoch: i32,
        /// 2 where the coordinator raises the producer's epoch for each marker.
        transaction_version: i16,
    },
}

/// Where an append went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Offset of the first record.
    pub base_offset: i64,
    /// Offset of the last record.
    pub last_offset: i64,
    /// The broker's time, where the topic stamps it; -1 under create time.
    pub log_append_time_ms: i64,
    /// First offset of the log.
    pub log_start_offset: i64,
    /// The append is durable once the journal is durable up to here; 0 without a journal.
    pub journal_position: u64,
    /// The batch was there already; offsets are those of the original.
    pub duplicate: bool,
}

/// The offsets that bound a log; ends are exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOffsets {
    /// First offset.
    pub log_start: i64,
    /// Below it every transaction has ended.
    pub last_stable: i64,
    /// Below it everything is durable, as the mode of the broker has it.
    pub high_watermark: i64,
    /// Offset that the next record gets.
    pub log_end: i64,
}

/// How far a read goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// To the end of the log.
    LogEnd,
    /// To the high watermark.
    HighWatermark,
    /// To the last stable offset, with the list of aborted transactions.
    LastStable,
}

/// What to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// From this offset on.
    pub offset: i64,
    /// At most so many bytes.
    pub max_bytes: usize,
    /// How far.
    pub isolation: Isolation,
    /// The first batch may be larger than `max_bytes`.
    pub at_least_one: bool,
}

/// An aborted transaction that overlaps what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// Whose.
    pub producer_id: i64,
    /// Of its first batch.
    pub first_offset: i64,
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadResult {
    /// Whole batches, each element one or more of them; the first may begin before the offset.
    pub batches: Vec<Bytes>,
    /// Under `Isolation::LastStable`: in the order of their markers.
    pub aborted: Vec<AbortedTransaction>,
    /// As they were when the read began.
    pub offsets: LogOffsets,
    /// Where to go on: behind the batches, or at the offset that was asked for if there are none.
    pub next_offset: i64,
}

/// What is known about a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerSummary {
    /// Whose.
    pub producer_id: i64,
    /// Its newest epoch.
    pub producer_epoch: i16,
    /// Sequence of its last record in that epoch; -1 for none.
    pub last_sequence: i32,
    /// Timestamp of its newest batch or marker.
    pub last_timestamp: i64,
    /// Coordinator epoch of its newest marker; -1 for none.
    pub coordinator_epoch: i32,
    /// First offset of its open transaction; -1 for none.
    pub current_transaction_start_offset: i64,
}

/// A transaction without a marker yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenTransaction {
    /// Whose.
    pub producer_id: i64,
    /// Its epoch.
    pub producer_epoch: i16,
    /// Of its first batch.
    pub first_offset: i64,
    /// Timestamp of its newest batch.
    pub last_timestamp: i64,
}

type ChangeListener = Arc<dyn Fn() + Send + Sync>;

/// One partition on disk.
pub struct PartitionLog {
    storage: Arc<dyn Storage>,
    directory: PathBuf,
    topic_id: Uuid,
    partition: i32,
    config: RwLock<Arc<PartitionConfig>>,
    journal: Option<Arc<Journal>>,
    durability: Durability,
    state: Mutex<PartitionState>,
    /// Held while files that readers may use get or lose their names: by retention, by compaction,
    /// and by a log that closes. Taken before the other locks.
    names: Mutex<()>,
    /// Held while files are synced, so that two flushes do not count each other's work.
    flushing: Mutex<()>,
    listener: RwLock<Option<ChangeListener>>,
}

impl fmt::Debug for PartitionLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PartitionLog")
            .field("directory", &self.directory)
            .field("offsets", &self.offsets())
            .finish_non_exhaustive()
    }
}

impl PartitionLog {
    /// Opens the log from its own files, which are created when there are none.
    pub fn open(setup: PartitionSetup) -> Result<PartitionLog, LogError> {
        let state = recover::open(&setup)?;
        Ok(PartitionLog {
            storage: setup.storage,
            directory: setup.directory,
            topic_id: setup.topic_id,
            partition: setup.partition,
            config: RwLock::new(Arc::new(setup.config)),
            journal: setup.journal,
            durability: setup.durability,
            state: Mutex::new(state),
            names: Mutex::new(()),
            flushing: Mutex::new(()),
            listener: RwLock::new(None),
        })
    }

    fn lock(&self) -> MutexGuard<'_, PartitionState> {
        // A panic under the lock is a broken invariant: the state takes itself offline before it
        // asserts anything, so those who come later are refused.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> MutexGuard<'_, ()> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a change under the lock and tells the listener afterwards if offsets moved.
    fn change<T>(&self, change: impl FnOnce(&mut PartitionState) -> T) -> T {
        let (result, moved) = {
            let mut state = self.lock();
            let before = state.offsets();
            let result = change(&mut state);
            (result, state.offsets() != before)
        };
        if moved {
            let listener = self
                .listener
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            if let Some(listener) = listener {
                listener();
            }
        }
        result
    }

    /// The partition's directory, relative to the storage.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn storage(&self) -> &dyn Storage {
        self.storage.as_ref()
    }

    pub(crate) fn durability(&self) -> Durability {
        self.durability
    }

    /// The topic's id.
    #[must_use]
    pub fn topic_id(&self) -> Uuid {
        self.topic_id
    }

    /// Number of the partition in its topic.
    #[must_use]
    pub fn partition(&self) -> i32 {
        self.partition
    }

    /// The settings in force.
    #[must_use]
    pub fn config(&self) -> Arc<PartitionConfig> {
        self.config
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Puts other settings in force, for every append and retention that begins from now on.
    pub fn set_config(&self, config: PartitionConfig) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    /// Log start, last stable offset, high watermark and log end, taken together.
    #[must_use]
    pub fn offsets(&self) -> LogOffsets {
        self.lock().offsets()
    }

    /// Checks batches and appends them. Offsets in `batches` are replaced; the bytes are kept by
    /// reference and written as they are, save for prefix and append time.
    pub fn append(
        &self,
        batches: Bytes,
        origin: AppendOrigin,
        now_ms: i64,
    ) -> Result<Appended, AppendError> {
        let config = self.config();
        let batches = checked_batches(batches, origin, &config, now_ms)?;
        self.change(|state| state.append(self, &config, &batches, origin, now_ms))
    }

    /// The journal is durable up to this position: raises high watermark and last stable offset.
    pub fn on_durable(&self, journal_position: u64) {
        self.change(|state| state.on_durable(journal_position));
    }

    /// Reads whole batches. Nothing beyond the isolation's bound is handed out; an offset between
    /// the bound and the log end reads nothing.
    pub fn read(&self, request: ReadRequest) -> Result<ReadResult, ReadError> {
        read::read(self, request)
    }

    /// The first record, from the log start on, with a timestamp of at least `timestamp_ms`: its
    /// offset and timestamp.
    pub fn offset_for_timestamp(&self, timestamp_ms: i64) -> Result<Option<(i64, i64)>, ReadError> {
        read::offset_for_timestamp(self, timestamp_ms)
    }

    /// The record with the largest timestamp (the first such): its offset and timestamp.
    pub fn max_timestamp(&self) -> Result<Option<(i64, i64)>, ReadError> {
        read::max_timestamp(self)
    }

    /// What is known about a producer.
    #[must_use]
    pub fn producer(&self, producer_id: i64) -> Option<ProducerSummary> {
        self.lock().producer(producer_id)
    }

    /// All producers, by id.
    #[must_use]
    pub fn producers(&self) -> Vec<ProducerSummary> {
        self.lock().producers()
    }

    /// Transactions without a marker yet, in the order they began.
    #[must_use]
    pub fn open_transactions(&self) -> Vec<OpenTransaction> {
        self.lock().open_transactions()
    }

    /// Whether the producer has a transaction open here.
    #[must_use]
    pub fn has_open_transaction(&self, producer_id: i64) -> bool {
        self.lock()
            .producer(producer_id)
            .is_some_and(|producer| producer.current_transaction_start_offset >= 0)
    }

    /// Leader epoch of the next append.
    #[must_use]
    pub fn leader_epoch(&self) -> i32 {
        self.lock().leader_epoch()
    }

    /// The largest known leader epoch up to this one, and the offset where it ends.
    #[must_use]
    pub fn end_offset_for_epoch(&self, epoch: i32) -> Option<(i32, i64)> {
        self.lock().end_offset_for_epoch(epoch)
    }

    /// Size of the log files.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.lock().size_bytes()
    }

    /// Called, outside the lock, whenever an offset of `LogOffsets` moved. One listener: the last.
    pub fn set_change_listener(&self, listener: Arc<dyn Fn() + Send + Sync>) {
        *self
            .listener
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Some(listener);
    }

    /// Deletes segments that retention gives up, forgets silent producers, and returns memory.
    /// Returns how many segments were deleted.
    pub fn apply_retention(&self, now_ms: i64) -> Result<usize, LogError> {
        let _names = self.names();
        // A flush that is under way has a snapshot in its hands that may not be durable yet.
        let _serial = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        self.change(|state| crate::retention::apply(self, state, now_ms))
    }

    /// Nobody could write for a while: the silence of every producer begins now.
    pub fn hear_producers(&self, now_ms: i64) {
        self.lock().producers.hear_all(now_ms);
    }

    /// Gives up the records below `offset`, as far as the last stable offset allows, and returns
    /// the new log start; `None` when the offset is above the high watermark.
    pub fn delete_records_before(&self, offset: i64) -> Result<Option<i64>, LogError> {
        // No journal frame below the log start is replayed: what tells of the producers there has
        // to be durable in the partition's own files before.
        if self.flush()? < offset {
            return Ok(None);
        }
        let _names = self.names();
        self.change(|state| crate::retention::delete_before(self, state, offset))
    }

    /// Journal recovery: puts these batches at this offset, unless the same bytes are there. What
    /// other bytes are there is cut off first.
    pub fn replay(&self, base_offset: i64, bytes: Bytes) -> Result<(), LogError> {
        self.change(|state| state.replay(self, base_offset, bytes))
    }

    /// Recovery: cuts everything from this offset on.
    pub fn truncate_to(&self, offset: i64) -> Result<(), LogError> {
        self.change(|state| state.truncate_to(self, offset))
    }

    /// Makes everything appended so far durable in the partition's own files (under
    /// `Durability::Memory` it only writes what waits) and returns the offset up to which it is.
    /// After a failed sync the log is offline; what could not be written is tried again next time.
    pub fn flush(&self) -> Result<i64, LogError> {
        self.flush_files(false)
    }

    /// As `flush`, with everything that spares the next opening a scan. Appends are refused from
    /// then on. Returns the log end.
    pub fn close(&self) -> Result<i64, LogError> {
        let _names = self.names();
        self.flush_files(true)
    }

    /// Refuses everything from now on, and writes nothing more: the topic is deleted. Does not wait
    /// for a sync that is under way.
    pub(crate) fn retire(&self) {
        let _names = self.names();
        self.lock().retire();
    }

    /// The name of the log's directory is durable; it need not be synced again.
    pub(crate) fn note_parent_synced(&self) {
        self.lock().note_parent_synced();
    }

    fn flush_files(&self, close: bool) -> Result<i64, LogError> {
        let _serial = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        // The lock is given back before anything is synced: appends go on meanwhile.
        let work = self.lock().prepare_flush(self, close)?;
        if self.durability.syncs_files()
            && let Err(error) = self.sync(&work)
        {
            self.lock().take_offline(error.to_string());
            return Err(error);
        }
        let mut state = self.lock();
        state.synced_stable = state.synced_stable.max(work.stable_offset);
        Ok(work.end_offset)
    }

    fn sync(&self, work: &FlushWork) -> Result<(), LogError> {
        for (path, file) in &work.files {
            file.sync_data()
                .map_err(|error| LogError::io("sync", path, error))?;
        }
        for directory in &work.directories {
            self.storage
                .sync_dir(directory)
                .map_err(|error| LogError::io("sync", directory, error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
