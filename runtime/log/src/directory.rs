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
//! Never: holds a lock that appends need while it syncs; retries a failed sync.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use millstream_protocol::Uuid;

use crate::catalogue::{Catalogue, TopicEntry, derive_id};
use crate::checkpoint::{self, Offsets};
use crate::durability::Durability;
use crate::error::LogError;
use crate::journal::{self, Journal};
use crate::partition::{PartitionLog, Recovery};
use crate::partition_config::PartitionConfig;
use crate::recovery::{self, Opening, RecoveryReport};
use crate::storage::{LockGuard, OpenMode, Storage};
use crate::{layout, meta};

const LOCK: &str = "lock";
const CLEAN_SHUTDOWN: &str = "clean-shutdown";
const RESERVE: &str = "reserve";

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
    checkpointing: Mutex<()>,
    /// The journal position that every partition knows to be durable.
    published: AtomicU64,
    closed: AtomicBool,
    lock: Mutex<Option<LockGuard>>,
}

struct Structure {
    catalogue: Catalogue,
    points: Offsets,
    log_starts: Offsets,
}

#[derive(Default)]
struct Topics {
    by_name: BTreeMap<String, Topic>,
    by_id: BTreeMap<(Uuid, i32), Arc<PartitionLog>>,
}

impl Topics {
    fn insert(&mut self, topic: Topic) {
        for (log, partition) in topic.partitions.iter().zip(0..) {
            self.by_id.insert((topic.id, partition), log.clone());
        }
        self.by_name.insert(topic.name.clone(), topic);
    }

    fn remove(&mut self, name: &str) -> Option<Topic> {
        let topic = self.by_name.remove(name)?;
        self.by_id.retain(|(id, _), _| *id != topic.id);
        Some(topic)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these locks guard is replaced as a whole, so a panicking holder leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a failure leaves files in an unknown state. A full disk refuses a write before anything
/// is acknowledged; a sync that fails, for whatever reason, may have lost data.
fn is_final(error: &LogError) -> bool {
    match error {
        LogError::Io { .. } | LogError::Corrupt { .. } => true,
        LogError::StorageFull { action, .. } => *action == "sync",
        _ => false,
    }
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
        let guard = storage
            .lock(Path::new(LOCK))
            .map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => LogError::Locked {
                    directory: storage.describe(),
                },
                _ => LogError::io("lock", LOCK, error),
            })?;
        let cluster_id = meta::open(&*storage, config.cluster_id.as_deref(), || {
            let directory = storage.describe();
            let parts = [
                &config.seed.to_be_bytes()[..],
                &now_ms.to_be_bytes(),
                directory.as_bytes(),
            ];
            derive_id(&parts).to_string()
        })?;
        let was_clean = remove_if_there(&*storage, CLEAN_SHUTDOWN)?;
        remove_if_there(&*storage, RESERVE)?;
        let catalogue = match Catalogue::load(&*storage)? {
            Some(catalogue) => catalogue,
            None => {
                let fresh = Catalogue::default();
                fresh.store(&*storage)?;
                checkpoint::store(&*storage, checkpoint::RECOVERY_POINTS, &Offsets::new())?;
                fresh
            }
        };
        let recovered = recovery::recover(&storage, &catalogue, &config, was_clean)?;
        let mut topics = Topics::default();
        for topic in recovered.topics.into_values() {
            topics.insert(topic);
        }
        write_reserve(&*storage, config.reserve_bytes);
        let (points, log_starts) = (recovered.points, recovered.log_starts);
        let inner = Inner {
            storage,
            cluster_id,
            published: AtomicU64::new(recovered.journal.durable_position()),
            journal: recovered.journal,
            report: recovered.report,
            structure: Mutex::new(Structure {
                catalogue,
                points,
                log_starts,
            }),
            topics: RwLock::new(topics),
            checkpointing: Mutex::new(()),
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

    fn check(&self) -> Result<(), LogError> {
        if self.inner.closed.load(Ordering::Acquire) {
            return Err(LogError::Closed);
        }
        self.inner.journal.check()
    }

    /// Stops the directory for good if this failure leaves files in an unknown state.
    fn note<T>(&self, result: Result<T, LogError>) -> Result<T, LogError> {
        if let Err(error) = &result
            && is_final(error)
        {
            self.inner.journal.poison(&error.to_string());
        }
        result
    }

    /// Creates a topic, durably: after a crash it is there with all its partitions, or not at all.
    pub fn create_topic(
        &self,
        name: &str,
        partitions: i32,
        configs: BTreeMap<String, String>,
    ) -> Result<Topic, LogError> {
        self.check()?;
        let inner = &*self.inner;
        let mut structure = lock(&inner.structure);
        structure.catalogue.check_new(name, partitions)?;
        let number = structure.catalogue.next_topic;
        let id = derive_id(&[
            inner.cluster_id.as_bytes(),
            &number.to_be_bytes(),
            name.as_bytes(),
        ]);
        let entry = TopicEntry {
            id,
            partitions,
            configs,
        };
        // A recovery point of an older topic of that name must not count for the new one.
        self.note(inner.forget_points(&mut structure, name))?;
        let directories: Vec<PathBuf> = (0..partitions)
            .map(|partition| layout::partition_directory(name, partition))
            .collect();
        let mut catalogue = structure.catalogue.clone();
        catalogue.next_topic = number + 1;
        catalogue.topics.insert(name.to_owned(), entry.clone());
        let created = inner
            .create_partitions(name, &entry, &directories)
            .and_then(|partitions| catalogue.store(&*inner.storage).map(|()| partitions));
        let partitions = match self.note(created) {
            Ok(partitions) => partitions,
            Err(error) => {
                if !self.poisoned() {
                    inner.discard(&directories);
                }
                return Err(error);
            }
        };
        structure.catalogue = catalogue;
        let topic = Topic {
            name: name.to_owned(),
            id,
            partitions,
            configs: entry.configs,
        };
        self.write_topics().insert(topic.clone());
        Ok(topic)
    }

    /// Deletes a topic and its records, durably: after a crash nothing of it is left.
    pub fn delete_topic(&self, name: &str) -> Result<(), LogError> {
        self.check()?;
        let inner = &*self.inner;
        let mut structure = lock(&inner.structure);
        let mut catalogue = structure.catalogue.clone();
        if catalogue.topics.remove(name).is_none() {
            return Err(LogError::UnknownTopic {
                name: name.to_owned(),
            });
        }
        self.note(catalogue.store(&*inner.storage))?;
        structure.catalogue = catalogue;
        let Some(topic) = self.write_topics().remove(name) else {
            return Ok(());
        };
        let mut directories = Vec::new();
        for (log, partition) in topic.partitions.iter().zip(0..) {
            // From now on it refuses appends; what it cannot write any more does not matter.
            let _closed = log.close();
            directories.push(layout::partition_directory(name, partition));
        }
        if let Err(error) = layout::remove(&*inner.storage, &directories) {
            tracing::warn!(topic = name, %error, "files stay until the next opening");
        }
        Ok(())
    }

    /// Makes appends durable as the mode says. Under `sync`: writes and syncs the journal, then
    /// tells the partitions. Under `interval`: syncs partition files. Otherwise nothing. Returns
    /// the durable journal position. Blocks; called by one sync loop.
    pub fn sync_journal(&self) -> Result<u64, LogError> {
        self.check()?;
        match self.durability() {
            Durability::Sync => self.publish(),
            Durability::Interval(_) => {
                for topic in self.topics() {
                    for log in &topic.partitions {
                        self.flush(&topic, log)?;
                    }
                }
                Ok(0)
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
        self.check()?;
        if !self.durability().syncs_files() {
            return Ok(());
        }
        let _one_at_a_time = lock(&self.inner.checkpointing);
        let position = self.inner.published.load(Ordering::Acquire);
        let mut flushed = Vec::new();
        for topic in self.topics() {
            for (log, partition) in topic.partitions.iter().zip(0..) {
                if let Some(end) = self.flush(&topic, log)? {
                    flushed.push(Flushed::of(&topic, partition, log, end, self.durability()));
                }
            }
        }
        self.note(self.inner.write_points(flushed))?;
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
        lock(&inner.lock).take();
        closed
    }

    fn shut_down(&self) -> Result<(), LogError> {
        let inner = &*self.inner;
        inner.journal.check()?;
        let _one_at_a_time = lock(&inner.checkpointing);
        // Room for what follows, in case the disk is full.
        remove_if_there(&*inner.storage, RESERVE)?;
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
        self.note(write_marker(&*inner.storage))
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

/// How far a partition's own files are synced.
struct Flushed {
    topic_id: Uuid,
    key: (String, i32),
    point: i64,
    log_start: i64,
}

impl Flushed {
    fn of(
        topic: &Topic,
        partition: i32,
        log: &PartitionLog,
        end: i64,
        durability: Durability,
    ) -> Flushed {
        let offsets = log.offsets();
        // Under `sync` the high watermark is what the journal made durable. A point above it would
        // keep records whose neighbours in the journal are lost.
        let point = match durability {
            Durability::Sync => end.min(offsets.high_watermark),
            _ => end,
        };
        let key = (topic.name.clone(), partition);
        Flushed {
            topic_id: topic.id,
            key,
            point,
            log_start: offsets.log_start,
        }
    }
}

impl Inner {
    fn create_partitions(
        &self,
        name: &str,
        entry: &TopicEntry,
        directories: &[PathBuf],
    ) -> Result<Vec<Arc<PartitionLog>>, LogError> {
        let root = Path::new("");
        layout::make_room(&*self.storage, name, directories)?;
        for path in directories {
            layout::create(&*self.storage, path, entry.id)?;
        }
        self.storage
            .sync_dir(root)
            .map_err(|error| LogError::io("sync", root, error))?;
        let (storage, config, journal) = (&self.storage, &self.config, &self.journal);
        let opening = Opening {
            storage,
            config,
            journal,
        };
        let open = |partition| opening.open_partition(name, entry, partition, Recovery::Clean);
        (0..entry.partitions).map(open).collect()
    }

    /// Removes what a creation that failed has left; what cannot be removed goes at the next
    /// opening.
    fn discard(&self, directories: &[PathBuf]) {
        let there: Vec<PathBuf> = directories
            .iter()
            .filter(|path| self.storage.exists(path).unwrap_or(false))
            .cloned()
            .collect();
        if let Err(error) = layout::remove(&*self.storage, &there) {
            tracing::warn!(%error, "directories of a topic that was not created stay for now");
        }
    }

    /// Removes a topic's entries from the checkpoint files.
    fn forget_points(&self, structure: &mut Structure, name: &str) -> Result<(), LogError> {
        let mut points = structure.points.clone();
        let mut log_starts = structure.log_starts.clone();
        points.retain(|(topic, _), _| topic != name);
        log_starts.retain(|(topic, _), _| topic != name);
        self.store_points(structure, points, log_starts)
    }

    fn write_points(&self, flushed: Vec<Flushed>) -> Result<(), LogError> {
        let mut structure = lock(&self.structure);
        let (mut points, mut log_starts) = (Offsets::new(), Offsets::new());
        for entry in flushed {
            // The topic may have been deleted, and another created under its name.
            let current = structure.catalogue.topics.get(&entry.key.0);
            if current.is_some_and(|topic| topic.id == entry.topic_id) {
                points.insert(entry.key.clone(), entry.point);
                log_starts.insert(entry.key, entry.log_start);
            }
        }
        self.store_points(&mut structure, points, log_starts)
    }

    fn store_points(
        &self,
        structure: &mut Structure,
        points: Offsets,
        log_starts: Offsets,
    ) -> Result<(), LogError> {
        if log_starts != structure.log_starts {
            checkpoint::store(&*self.storage, checkpoint::LOG_START_OFFSETS, &log_starts)?;
            structure.log_starts = log_starts;
        }
        if points != structure.points {
            checkpoint::store(&*self.storage, checkpoint::RECOVERY_POINTS, &points)?;
            structure.points = points;
        }
        Ok(())
    }
}

/// Removes a file durably; says whether it was there.
fn remove_if_there(storage: &dyn Storage, name: &str) -> Result<bool, LogError> {
    let root = Path::new("");
    match storage.remove_file(Path::new(name)) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(LogError::io("remove", name, error)),
    }
    storage
        .sync_dir(root)
        .map_err(|error| LogError::io("sync", root, error))?;
    Ok(true)
}

/// Keeps room for a clean stop on a disk that fills up. Without it everything else still works.
fn write_reserve(storage: &dyn Storage, size_bytes: usize) {
    if size_bytes == 0 {
        return;
    }
    let written = storage
        .open(Path::new(RESERVE), OpenMode::Write)
        .and_then(|file| file.write_at(&[&vec![0; size_bytes]], 0));
    if let Err(error) = written {
        tracing::warn!(%error, size_bytes, "no room for the reserve: a clean stop may fail");
    }
}

fn write_marker(storage: &dyn Storage) -> Result<(), LogError> {
    let io = |error| LogError::io("write", CLEAN_SHUTDOWN, error);
    let file = storage
        .open(Path::new(CLEAN_SHUTDOWN), OpenMode::Write)
        .map_err(io)?;
    file.write_at(&[b"version=1\n"], 0).map_err(io)?;
    file.sync_data().map_err(io)?;
    storage.sync_dir(Path::new("")).map_err(io)
}
