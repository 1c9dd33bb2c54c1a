//! A broker's data directory: its topics, their journal, and when what is in it is durable.
//!
//! ```text
//! open --> recovered --> serving --close--> closed (marker written last)
//!                           |--failed write or sync--> poisoned (open again)
//! ```
//!
//! Invariants: one process at a time (`lock`); a topic is visible only while the catalogue names it
//! durably; a checkpoint covers nothing that the journal had not made durable, or a power cut could
//! keep one half of a transaction.
//! Never: holds a lock that appends need while it syncs, but for the log start and a snapshot when
//! records are deleted; retries a failed sync.

mod compact;
mod deletion;
mod files;
mod points;
mod settings;
mod topics;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use millstream_protocol::Uuid;

use crate::catalogue::{Catalogue, derive_id};
use crate::checkpoint::{self, Offsets};
use crate::durability::Durability;
use crate::error::LogError;
use crate::failpoint;
use crate::journal::{self, Journal};
use crate::meta;
use crate::partition::PartitionLog;
use crate::partition_config::PartitionConfig;
use crate::recovery::{self, RecoveryReport};
use crate::storage::{LockGuard, Storage};
use compact::Uncleanable;
pub use compact::{CompactedPartition, CompactionReport, UncompactedPartition};
use deletion::Retired;
use points::Flushed;
use topics::Topics;
pub use topics::{NewTopic, Outcomes};

/// How a directory is opened.
#[derive(Clone, Debug)]
pub struct DirectoryConfig {
    /// What an acknowledgement promises. Default `sync`.
    pub durability: Durability,
    /// The cluster id a fresh directory gets and an old one must have; `None` makes or takes one.
    pub cluster_id: Option<String>,
    /// Seed of the cluster id that is made.
    pub seed: u64,
    /// Settings of partitions, where their topic has none of its own.
    pub partition: PartitionConfig,
    /// Size at which journal files are rolled, in bytes. Default 64 MiB.
    pub journal_file_bytes: u64,
    /// Size of the file that is given back to a full disk so that a clean stop still works, in
    /// bytes. Default 256 KiB; 0 keeps none.
    pub reserve_bytes: usize,
    /// `log.cleaner.dedupe.buffer.size`: memory for the keys of one compaction, while it runs.
    /// Default 64 MiB (Kafka: 128 MiB, always).
    pub compaction_map_bytes_max: usize,
}

impl Default for DirectoryConfig {
    fn default() -> Self {
        DirectoryConfig {
            durability: Durability::Sync,
            cluster_id: None,
            seed: 0,
            partition: PartitionConfig::default(),
            journal_file_bytes: journal::FILE_BYTES_MAX,
            reserve_bytes: 256 * 1024,
            compaction_map_bytes_max: 64 << 20,
        }
    }
}

/// A topic with its open partitions.
#[derive(Clone, Debug)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// Its id; a topic of the same name that is created later has another one.
    pub id: Uuid,
    /// Its partitions, by number.
    pub partitions: Vec<Arc<PartitionLog>>,
    /// Its own settings, under Kafka's names.
    pub configs: BTreeMap<String, String>,
}

/// A broker's data directory. Clones are the same directory.
#[derive(Clone)]
pub struct LogDirectory {
    inner: Arc<Inner>,
}

struct Inner {
    storage: Arc<dyn Storage>,
    config: DirectoryConfig,
    cluster_id: String,
    journal: Arc<Journal>,
    report: RecoveryReport,
    /// Held while topics come and go and while checkpoint files are written.
    structure: Mutex<Structure>,
    topics: RwLock<Topics>,
    /// What holds for partitions whose topic has no setting of its own.
    defaults: RwLock<PartitionConfig>,
    checkpointing: Mutex<()>,
    compacting: Mutex<()>,
    /// Held while files of deleted topics are removed.
    erasing: Mutex<()>,
    uncleanable: Mutex<Uncleanable>,
    /// The journal position that every partition knows to be durable.
    published: AtomicU64,
    closed: AtomicBool,
    lock: Mutex<Option<LockGuard>>,
}

struct Structure {
    catalogue: Catalogue,
    points: Offsets,
    log_starts: Offsets,
    /// Up to where each partition was compacted.
    cleaned: Offsets,
    /// Directories that no topic has any more.
    retired: Retired,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these locks guard is replaced as a whole: a panicking holder leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The topics that there are, durably also where there were none yet.
fn load_catalogue(storage: &dyn Storage) -> Result<Catalogue, LogError> {
    if let Some(catalogue) = Catalogue::load(storage)? {
        return Ok(catalogue);
    }
    let fresh = Catalogue::default();
    fresh.store(storage)?;
    checkpoint::store(storage, checkpoint::RECOVERY_POINTS, &Offsets::new())?;
    Ok(fresh)
}

impl LogDirectory {
    /// Opens a directory, or makes a fresh one, and recovers what is in it. Takes its lock.
    pub fn open(
        storage: Arc<dyn Storage>,
        config: DirectoryConfig,
        now_ms: i64,
    ) -> Result<LogDirectory, LogError> {
        let root = Path::new("");
        storage
            .create_dir_all(root)
            .map_err(|error| LogError::io("create", root, error))?;
        let guard = files::take_lock(&*storage)?;
        let cluster_id = meta::open(&*storage, config.cluster_id.as_deref(), || {
            let directory = storage.describe();
            let parts = [
                &config.seed.to_be_bytes()[..],
                &now_ms.to_be_bytes(),
                directory.as_bytes(),
            ];
            derive_id(&parts).to_string()
        })?;
        let was_clean = files::remove_if_there(&*storage, files::CLEAN_SHUTDOWN)?;
        files::remove_if_there(&*storage, files::RESERVE)?;
        let catalogue = load_catalogue(&*storage)?;
        let recovered = recovery::recover(&storage, &catalogue, &config, was_clean)?;
        let mut topics = Topics::default();
        for topic in recovered.topics.into_values() {
            topics.insert(topic);
        }
        files::write_reserve(&*storage, config.reserve_bytes);
        let cleaned = compact::load_cleaned(&*storage)?;
        let inner = Inner {
            storage,
            cluster_id,
            published: AtomicU64::new(recovered.journal.durable_position()),
            journal: recovered.journal,
            report: recovered.report,
            structure: Mutex::new(Structure {
                catalogue,
                points: recovered.points,
                log_starts: recovered.log_starts,
                cleaned,
                retired: Retired::default(),
            }),
            topics: RwLock::new(topics),
            defaults: RwLock::new(config.partition.clone()),
            checkpointing: Mutex::new(()),
            compacting: Mutex::new(()),
            erasing: Mutex::new(()),
            uncleanable: Mutex::default(),
            closed: AtomicBool::new(false),
            lock: Mutex::new(Some(guard)),
            config,
        };
        tracing::info!(
            directory = inner.storage.describe(),
            cluster_id = inner.cluster_id,
            durability = %inner.config.durability,
            promise = inner.config.durability.promise(),
            recovery = ?inner.report,
            "data directory is open"
        );
        Ok(LogDirectory {
            inner: Arc::new(inner),
        })
    }

    /// The id of the cluster that the directory belongs to.
    pub fn cluster_id(&self) -> &str {
        &self.inner.cluster_id
    }

    /// Where it is: a path, or the name of a storage that has none.
    pub fn path(&self) -> String {
        self.inner.storage.describe()
    }

    /// What opening found and did.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.inner.report
    }

    /// What an acknowledgement promises.
    pub fn durability(&self) -> Durability {
        self.inner.config.durability
    }

    /// The journal, for positions; it stays empty unless the durability is `sync`.
    pub fn journal(&self) -> &Arc<Journal> {
        &self.inner.journal
    }

    /// Whether a failed write or sync has stopped the directory.
    pub fn poisoned(&self) -> bool {
        self.inner.journal.poisoned()
    }

    /// All topics, by name.
    pub fn topics(&self) -> Vec<Topic> {
        self.read_topics().by_name.values().cloned().collect()
    }

    /// The topic of that name.
    pub fn topic(&self, name: &str) -> Option<Topic> {
        self.read_topics().by_name.get(name).cloned()
    }

    /// One partition of a topic.
    pub fn partition(&self, topic: &str, partition: i32) -> Option<Arc<PartitionLog>> {
        let topics = self.read_topics();
        let index = usize::try_from(partition).ok()?;
        topics.by_name.get(topic)?.partitions.get(index).cloned()
    }

    fn read_topics(&self) -> std::sync::RwLockReadGuard<'_, Topics> {
        self.inner
            .topics
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn write_topics(&self) -> std::sync::RwLockWriteGuard<'_, Topics> {
        self.inner
            .topics
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// For a change of what the directory has; none begins once it is closed or poisoned.
    fn lock_structure(&self) -> Result<MutexGuard<'_, Structure>, LogError> {
        let structure = lock(&self.inner.structure);
        // Closing takes the same lock for its last words: nothing is written behind them.
        self.check()?;
        Ok(structure)
    }

    fn check(&self) -> Result<(), LogError> {
        if self.inner.closed.load(Ordering::Acquire) {
            return Err(LogError::Closed);
        }
        self.inner.journal.check()
    }

    /// Stops the directory for good if this failure leaves files in an unknown state.
    fn note<T>(&self, result: Result<T, LogError>) -> Result<T, LogError> {
        if let Err(error) = &result
            && error.is_final()
        {
            self.inner.journal.poison(&error.to_string());
        }
        result
    }

    /// Makes appends durable as the mode says. Under `sync`: writes and syncs the journal, then
    /// tells the partitions. Under `interval`: syncs partition files; after an error that does not
    /// poison the directory the next call makes up for it. Otherwise nothing. Returns the durable
    /// journal position. Blocks; called by one sync loop.
    pub fn sync_journal(&self) -> Result<u64, LogError> {
        self.check()?;
        match self.durability() {
            Durability::Sync => self.publish(),
            Durability::Interval(_) => {
                let mut outcome = Ok(0);
                for topic in self.topics() {
                    for log in &topic.partitions {
                        match self.flush(&topic, log) {
                            Err(error) if error.is_final() => return Err(error),
                            // What one partition lacks does not keep the others from the disk.
                            Err(error) => outcome = outcome.and(Err(error)),
                            Ok(_) => {}
                        }
                    }
                }
                outcome
            }
            Durability::Os | Durability::Memory => Ok(0),
        }
    }

    fn publish(&self) -> Result<u64, LogError> {
        let inner = &*self.inner;
        let mut touched = Vec::new();
        let position = inner.journal.write_and_sync_noting(&mut touched)?;
        let logs: Vec<Arc<PartitionLog>> = {
            let topics = self.read_topics();
            touched
                .iter()
                .filter_map(|key| topics.by_id.get(key).cloned())
                .collect()
        };
        for log in logs {
            log.on_durable(position);
        }
        inner.published.fetch_max(position, Ordering::AcqRel);
        Ok(position)
    }

    /// Syncs a partition's files; `None` when its topic was deleted meanwhile.
    fn flush(&self, topic: &Topic, log: &PartitionLog) -> Result<Option<i64>, LogError> {
        match log.flush() {
            Ok(end) => Ok(Some(end)),
            Err(_) if self.topic(&topic.name).is_none_or(|now| now.id != topic.id) => Ok(None),
            Err(error) => self.note(Err(error)),
        }
    }

    /// Syncs partition files, writes how far that reaches, and frees the journal below it. Appends
    /// go on meanwhile.
    pub fn checkpoint(&self) -> Result<(), LogError> {
        if !self.durability().syncs_files() {
            return self.check();
        }
        let _one_at_a_time = lock(&self.inner.checkpointing);
        self.check()?;
        let position = self.inner.published.load(Ordering::Acquire);
        let mut flushed = Vec::new();
        for topic in self.topics() {
            for (log, partition) in topic.partitions.iter().zip(0..) {
                if let Some(end) = self.flush(&topic, log)? {
                    flushed.push(Flushed::of(&topic, partition, log, end, self.durability()));
                }
            }
        }
        failpoint::hit("log.checkpoint.before-points");
        self.note(self.inner.write_points(flushed))?;
        failpoint::hit("log.checkpoint.before-recycle");
        self.note(self.inner.journal.recycle(position))
    }

    /// Closes in order: everything synced, the journal emptied, the marker that says so written
    /// last, the lock given back. The directory is not used afterwards.
    pub fn close(&self, _now_ms: i64) -> Result<(), LogError> {
        let inner = &*self.inner;
        if inner.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let closed = self.shut_down();
        // Also where nothing was written: another process finds no change half done.
        let _structure = lock(&inner.structure);
        lock(&inner.lock).take();
        closed
    }

    fn shut_down(&self) -> Result<(), LogError> {
        let inner = &*self.inner;
        // Nobody removes files once the lock is given back.
        let _erasing = lock(&inner.erasing);
        inner.journal.check()?;
        let _one_at_a_time = lock(&inner.checkpointing);
        self.erase_before_close()?;
        // Room for what follows, in case the disk is full.
        files::remove_if_there(&*inner.storage, files::RESERVE)?;
        let mut ended = Vec::new();
        for topic in self.topics() {
            for (log, partition) in topic.partitions.iter().zip(0..) {
                let end = self.note(log.close())?;
                ended.push((topic.clone(), partition, log.clone(), end));
            }
        }
        // Appends are refused by now, so this is the last group.
        if self.durability() == Durability::Sync {
            self.publish()?;
        }
        let flushed = ended
            .iter()
            .map(|(topic, partition, log, end)| {
                Flushed::of(topic, *partition, log, *end, self.durability())
            })
            .collect();
        self.note(inner.write_points(flushed))?;
        self.note(inner.journal.clear())?;
        if !self.durability().syncs_files() {
            // The next start may be in a mode that relies on what was not synced.
            return Ok(());
        }
        self.note(files::write_marker(&*inner.storage))
    }
}

impl fmt::Debug for LogDirectory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LogDirectory")
            .field("storage", &self.inner.storage)
            .field("durability", &self.inner.config.durability)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
