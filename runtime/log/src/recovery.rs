//! Opening after a crash: partition files, the journal over them, and the cut behind it.
//!
//! ```text
//! sweep directories -> check journal -> open partitions -> replay frames -> cut -> sync files
//!   -> write checkpoints -> empty the journal
//! ```
//!
//! Invariants: nothing is changed before the whole journal was found acceptable; when a journal was
//! kept, a partition ends at its recovery point or its last good frame, whichever is later; a crash
//! at any point of recovery leads to the same result the next time.
//! Never: cuts below a recovery point; enqueues frames.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use millstream_protocol::{RecordBatch, Uuid};

use crate::catalogue::{Catalogue, TopicEntry};
use crate::checkpoint::{self, Offsets};
use crate::directory::{DirectoryConfig, Topic};
use crate::error::LogError;
use crate::failpoint;
use crate::journal::{Journal, JournalFrame, read_journal};
use crate::layout;
use crate::partition::{PartitionLog, PartitionSetup, Recovery};
use crate::retention::read_log_start;
use crate::storage::Storage;

/// What opening a directory found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The last run closed the directory; nothing had to be checked.
    pub was_clean: bool,
    /// The last run kept a journal, so whatever lay behind it was cut.
    pub had_journal: bool,
    /// Partitions that were opened.
    pub partitions: usize,
    /// Journal frames that were put over partition files.
    pub frames_replayed: u64,
    /// Journal frames of topics that are gone, or of records that a partition's own files hold
    /// durably or that were deleted there.
    pub frames_skipped: u64,
    /// Journal bytes behind its last good frame.
    pub journal_bytes_discarded: u64,
    /// Records that no acknowledgement covered, cut from partitions.
    pub records_cut: u64,
    /// Directories of topics whose creation or deletion a crash cut short.
    pub directories_removed: usize,
}

type Partitions = BTreeMap<(Uuid, i32), Arc<PartitionLog>>;

/// The state of a directory at the end of recovery.
pub(crate) struct Recovered {
    pub(crate) topics: BTreeMap<String, Topic>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) points: Offsets,
    pub(crate) log_starts: Offsets,
    pub(crate) report: RecoveryReport,
}

/// Opens every topic of the catalogue and leaves synced files and an empty journal.
pub(crate) fn recover(
    storage: &Arc<dyn Storage>,
    catalogue: &Catalogue,
    config: &DirectoryConfig,
    was_clean: bool,
) -> Result<Recovered, LogError> {
    let found = read_journal(&**storage, |_| Ok(()))?;
    let had_journal = !found.files.is_empty();
    let points = load_points(&**storage, had_journal)?;
    let log_starts =
        checkpoint::load(&**storage, checkpoint::LOG_START_OFFSETS)?.unwrap_or_default();
    let mut report = RecoveryReport {
        was_clean: was_clean && !had_journal,
        had_journal,
        journal_bytes_discarded: found.bytes_discarded,
        directories_removed: layout::sweep(&**storage, catalogue)?,
        ..RecoveryReport::default()
    };
    let journal = Arc::new(Journal::with_file_size(
        storage.clone(),
        &found,
        config.journal_file_bytes,
    ));
    let mut topics = BTreeMap::new();
    let mut partitions = Partitions::new();
    let mut synced = BTreeMap::new();
    for (name, entry) in &catalogue.topics {
        let opening = Opening {
            storage,
            config,
            journal: &journal,
        };
        let topic = opening.open_topic(name, entry, &points, report.was_clean)?;
        for (log, partition) in topic.partitions.iter().zip(0..) {
            partitions.insert((entry.id, partition), log.clone());
            let point = points.get(&(name.clone(), partition));
            synced.insert((entry.id, partition), point.copied().unwrap_or(0));
        }
        topics.insert(name.clone(), topic);
    }
    report.partitions = partitions.len();
    failpoint::hit("log.recovery.before-replay");
    let ends = replay(&**storage, &partitions, &synced, &mut report)?;
    failpoint::hit("log.recovery.after-replay");
    for (name, topic) in &topics {
        for (log, partition) in topic.partitions.iter().zip(0..) {
            let key = (name.clone(), partition);
            let point = points.get(&key).copied().unwrap_or(0);
            let end = ends.get(&(topic.id, partition)).copied().unwrap_or(0);
            settle(&key, log, point, had_journal.then_some(end), &mut report)?;
            give_up_again(&**storage, log, log_starts.get(&key).copied())?;
        }
    }
    failpoint::hit("log.recovery.before-points");
    let (points, log_starts) = finish(&**storage, &topics)?;
    failpoint::hit("log.recovery.before-clear");
    journal.clear()?;
    failpoint::hit("log.recovery.after-clear");
    if config.durability.is_journaled() {
        journal.begin()?;
    }
    Ok(Recovered {
        topics,
        journal,
        points,
        log_starts,
        report,
    })
}

/// Recovery points. They decide what is cut, so they must be there when a journal is.
fn load_points(storage: &dyn Storage, is_needed: bool) -> Result<Offsets, LogError> {
    match checkpoint::load(storage, checkpoint::RECOVERY_POINTS) {
        Ok(Some(points)) => Ok(points),
        Ok(None) if is_needed => Err(LogError::corrupt(
            checkpoint::RECOVERY_POINTS,
            0,
            "it is missing, and without it acknowledged records cannot be told from others",
        )),
        Ok(None) => Ok(Offsets::new()),
        Err(error) => Err(error),
    }
}

/// What every partition of a directory is opened with.
pub(crate) struct Opening<'directory> {
    pub(crate) storage: &'directory Arc<dyn Storage>,
    pub(crate) config: &'directory DirectoryConfig,
    pub(crate) journal: &'directory Arc<Journal>,
}

impl Opening<'_> {
    fn open_topic(
        &self,
        name: &str,
        entry: &TopicEntry,
        points: &Offsets,
        is_clean: bool,
    ) -> Result<Topic, LogError> {
        let mut partitions = Vec::new();
        for partition in 0..entry.partitions {
            let path = layout::partition_directory(name, partition);
            let point = points
                .get(&(name.to_owned(), partition))
                .copied()
                .unwrap_or(0);
            let io = |error| LogError::io("look for", &path, error);
            if self.storage.exists(&path).map_err(io)? {
                layout::check(&**self.storage, &path, entry.id, point > 0)?;
            } else if point == 0 {
                tracing::warn!(
                    topic = name,
                    partition,
                    "creating a partition's lost directory"
                );
                layout::create(&**self.storage, &path, entry.id)?;
            } else {
                let reason = format!("the directory is missing, with {point} durable records");
                return Err(LogError::corrupt(path, 0, reason));
            }
            let recovery = match is_clean {
                true => Recovery::Clean,
                false => Recovery::Unclean {
                    checkpoint_offset: point,
                },
            };
            partitions.push(self.open_partition(name, entry, partition, recovery)?);
        }
        let (id, configs) = (entry.id, entry.configs.clone());
        Ok(Topic {
            name: name.to_owned(),
            id,
            partitions,
            configs,
        })
    }

    pub(crate) fn open_partition(
        &self,
        name: &str,
        entry: &TopicEntry,
        partition: i32,
        recovery: Recovery,
    ) -> Result<Arc<PartitionLog>, LogError> {
        let config = self.config.partition.clone().with_configs(&entry.configs);
        let journaled = self.config.durability.is_journaled();
        PartitionLog::open(PartitionSetup {
            storage: self.storage.clone(),
            directory: layout::partition_directory(name, partition),
            topic_id: entry.id,
            partition,
            config: config.map_err(|invalid| LogError::InvalidConfig {
                name: format!("{} of topic {name}", invalid.name),
                reason: invalid.to_string(),
            })?,
            journal: journaled.then(|| self.journal.clone()),
            durability: self.config.durability,
            recovery,
        })
        .map(Arc::new)
    }
}

/// Puts the journal's frames over the partition files; returns where each partition's frames end.
/// What a partition's own files hold durably is left as it is: compaction may have changed it.
fn replay(
    storage: &dyn Storage,
    partitions: &Partitions,
    synced: &BTreeMap<(Uuid, i32), i64>,
    report: &mut RecoveryReport,
) -> Result<BTreeMap<(Uuid, i32), i64>, LogError> {
    let mut ends = BTreeMap::new();
    read_journal(storage, |frame| {
        let key = (frame.topic_id, frame.partition);
        let next_offset = next_offset(&frame)?;
        let Some(log) = partitions.get(&key) else {
            report.frames_skipped += 1;
            return Ok(());
        };
        ends.insert(key, next_offset);
        let point = synced.get(&key).copied().unwrap_or(0);
        if next_offset <= point.max(log.offsets().log_start) {
            report.frames_skipped += 1;
            return Ok(());
        }
        report.frames_replayed += 1;
        log.replay(frame.base_offset, frame.payload)?;
        Ok(())
    })?;
    Ok(ends)
}

/// The offset behind a frame's last batch.
fn next_offset(frame: &JournalFrame) -> Result<i64, LogError> {
    let damaged = |reason: String| LogError::corrupt(&frame.path, frame.file_position, reason);
    let mut left: Bytes = frame.payload.clone();
    let mut next_offset = None;
    while let Some(batch) =
        RecordBatch::split_from(&mut left).map_err(|error| damaged(error.to_string()))?
    {
        next_offset = Some(batch.next_offset());
    }
    next_offset.ok_or_else(|| damaged("the journal frame holds no record batch".to_owned()))
}

/// Cuts what no acknowledgement covers; refuses when acknowledged records are missing.
fn settle(
    (topic, partition): &(String, i32),
    log: &PartitionLog,
    point: i64,
    journal_end: Option<i64>,
    report: &mut RecoveryReport,
) -> Result<(), LogError> {
    let offsets = log.offsets();
    if offsets.log_end < point {
        return Err(LogError::corrupt(
            layout::partition_directory(topic, *partition),
            0,
            format!(
                "the log ends at offset {}, with {point} durable",
                offsets.log_end
            ),
        ));
    }
    let Some(journal_end) = journal_end else {
        return Ok(());
    };
    let end = point.max(journal_end).max(offsets.log_start);
    if end < offsets.log_end {
        report.records_cut += (offsets.log_end - end).unsigned_abs();
        tracing::info!(
            topic,
            partition,
            offset = end,
            log_end = offsets.log_end,
            "cutting records that were not acknowledged"
        );
        log.truncate_to(end)?;
    }
    Ok(())
}

/// Gives up the records below a log start that the partition's own files do not know, or that a
/// journal frame has brought back.
fn give_up_again(
    storage: &dyn Storage,
    log: &PartitionLog,
    checkpointed: Option<i64>,
) -> Result<(), LogError> {
    let own = read_log_start(storage, log.directory())?;
    let start = checkpointed.map_or(own, |start| start.max(own));
    if start > log.offsets().log_start {
        log.delete_records_before(start)?;
    }
    Ok(())
}

/// Syncs all partitions and says so in the checkpoints.
fn finish(
    storage: &dyn Storage,
    topics: &BTreeMap<String, Topic>,
) -> Result<(Offsets, Offsets), LogError> {
    let (mut points, mut log_starts) = (Offsets::new(), Offsets::new());
    layout::sync_names(storage)?;
    for (name, topic) in topics {
        for (log, partition) in topic.partitions.iter().zip(0..) {
            log.note_parent_synced();
            let end = log.flush()?;
            // Where nothing is synced, nothing is known to be durable.
            let point = if log.durability().syncs_files() {
                end
            } else {
                0
            };
            points.insert((name.clone(), partition), point);
            log_starts.insert((name.clone(), partition), log.offsets().log_start);
        }
    }
    checkpoint::store(storage, checkpoint::LOG_START_OFFSETS, &log_starts)?;
    checkpoint::store(storage, checkpoint::RECOVERY_POINTS, &points)?;
    Ok((points, log_starts))
}
