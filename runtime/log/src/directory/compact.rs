//! One round of compaction over a data directory: the dirtiest logs first, as far as they are due.
//!
//! ```text
//! end active segments where that pays ──▶ checkpoint, if what is due is not synced yet
//!   ──▶ by dirty ratio: clean one log ──▶ cleaner-offset-checkpoint ──▶ the next one
//! ```
//!
//! Invariants: only what a recovery point covers is cleaned, so that no journal frame is ever put
//! over it; a log that cannot be read is passed over from then on, and the others go on.
//! Never: two rounds at once; trusts the checkpoint of the cleaner for more than where to begin.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_protocol::Uuid;

use super::{LogDirectory, Structure, Topic, lock};
use crate::checkpoint::{self, CLEANER_OFFSETS, Offsets};
use crate::compaction::select::Candidate;
use crate::error::LogError;
use crate::partition::PartitionLog;

/// What a round did to one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactedPartition {
    /// The topic.
    pub topic: String,
    /// The partition's number.
    pub partition: i32,
    /// Where the part began that was new since the last round.
    pub first_dirty: i64,
    /// Where the next round begins.
    pub next_dirty: i64,
    /// Size of the segments that were read.
    pub bytes_before: u64,
    /// Size of those in their place.
    pub bytes_after: u64,
    /// Records read, markers included.
    pub records_read: u64,
    /// Records that stayed.
    pub records_kept: u64,
}

/// A partition that compaction could not clean, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UncompactedPartition {
    /// The topic.
    pub topic: String,
    /// The partition's number.
    pub partition: i32,
    /// What went wrong.
    pub reason: String,
}

/// What one round of compaction did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactionReport {
    /// In the order of cleaning.
    pub compacted: Vec<CompactedPartition>,
    /// What failed for the moment and is tried again in the next round.
    pub failed: Vec<UncompactedPartition>,
    /// What is damaged, and passed over until the directory is opened again.
    pub uncleanable: Vec<UncompactedPartition>,
}

/// Partitions that are passed over, by topic and number.
pub(super) type Uncleanable = BTreeMap<(Uuid, i32), UncompactedPartition>;

/// A partition of a compacted topic.
struct Compacted {
    topic: Topic,
    partition: i32,
    log: Arc<PartitionLog>,
}

impl Compacted {
    fn key(&self) -> (String, i32) {
        (self.topic.name.clone(), self.partition)
    }

    fn failed(&self, error: &LogError) -> UncompactedPartition {
        UncompactedPartition {
            topic: self.topic.name.clone(),
            partition: self.partition,
            reason: error.to_string(),
        }
    }
}

impl LogDirectory {
    /// Compacts what is due. Appends and reads go on meanwhile. Blocks, as long as it takes to read
    /// and write the logs that are due; uses memory for `compaction_map_bytes_max` of keys at most.
    pub fn compact(&self, now_ms: i64) -> Result<CompactionReport, LogError> {
        self.check()?;
        let _one_at_a_time = lock(&self.inner.compacting);
        let mut report = CompactionReport::default();
        let logs = self.compacted_logs();
        self.make_room(&logs, now_ms)?;
        let mut due: Vec<(Candidate, &Compacted)> = Vec::new();
        for log in &logs {
            match self.candidate(log, now_ms, true) {
                Ok(candidate) if candidate.is_due(&log.log.config()) => due.push((candidate, log)),
                Ok(_) | Err(LogError::Closed) => {}
                Err(error) => report.failed.push(log.failed(&error)),
            }
        }
        due.sort_by(|(a, _), (b, _)| b.dirty_ratio().total_cmp(&a.dirty_ratio()));
        for (candidate, log) in due {
            let map_bytes_max = self.inner.config.compaction_map_bytes_max;
            match log.log.clean(&candidate, map_bytes_max, now_ms) {
                Ok(cleaned) => {
                    self.remember(log, cleaned.next_dirty)?;
                    let done = CompactedPartition {
                        topic: log.topic.name.clone(),
                        partition: log.partition,
                        first_dirty: candidate.first_dirty,
                        next_dirty: cleaned.next_dirty,
                        bytes_before: cleaned.bytes_before,
                        bytes_after: cleaned.bytes_after,
                        records_read: cleaned.judged.records_read,
                        records_kept: cleaned.judged.records_kept,
                    };
                    tracing::debug!(?done, "compacted");
                    report.compacted.push(done);
                }
                Err(LogError::Closed) => self.check()?,
                Err(error @ LogError::Corrupt { .. }) => {
                    let failed = log.failed(&error);
                    tracing::error!(?failed, "not compacted any more: the log is damaged");
                    let key = (log.topic.id, log.partition);
                    lock(&self.inner.uncleanable).insert(key, failed.clone());
                    report.uncleanable.push(failed);
                }
                Err(error) => {
                    report.failed.push(log.failed(&error));
                    if log.log.check_online().is_err() {
                        self.note(Err(error))?;
                    }
                }
            }
        }
        Ok(report)
    }

    /// The partitions that are passed over because they are damaged.
    pub fn uncleanable(&self) -> Vec<UncompactedPartition> {
        lock(&self.inner.uncleanable).values().cloned().collect()
    }

    fn compacted_logs(&self) -> Vec<Compacted> {
        let uncleanable = lock(&self.inner.uncleanable);
        let mut logs = Vec::new();
        for topic in self.topics() {
            for (log, partition) in topic.partitions.iter().zip(0..) {
                let is_passed_over = uncleanable.contains_key(&(topic.id, partition));
                if log.config().compact && !is_passed_over {
                    logs.push(Compacted {
                        topic: topic.clone(),
                        partition,
                        log: log.clone(),
                    });
                }
            }
        }
        logs
    }

    /// Ends segments and syncs them, where that lets what is due be cleaned.
    fn make_room(&self, logs: &[Compacted], now_ms: i64) -> Result<(), LogError> {
        let mut must_sync = false;
        for log in logs {
            let begun = lock(&self.inner.structure).cleaned.get(&log.key()).copied();
            let reaches = log
                .log
                .roll_for_cleaning(begun, now_ms)
                .and_then(|_| self.candidate(log, now_ms, false));
            let point = self.durable_end(log);
            // What fails here fails again where it is reported.
            must_sync |= reaches.is_ok_and(|candidate| {
                candidate.end > point && candidate.is_due(&log.log.config())
            });
        }
        if must_sync { self.checkpoint() } else { Ok(()) }
    }

    fn candidate(
        &self,
        log: &Compacted,
        now_ms: i64,
        is_synced: bool,
    ) -> Result<Candidate, LogError> {
        let begun = lock(&self.inner.structure).cleaned.get(&log.key()).copied();
        let durable_end = match is_synced {
            true => self.durable_end(log),
            false => i64::MAX,
        };
        log.log.cleanable(begun, durable_end, now_ms)
    }

    /// Below it recovery changes nothing: the recovery point on disk.
    fn durable_end(&self, log: &Compacted) -> i64 {
        if !self.durability().syncs_files() {
            return i64::MAX;
        }
        let points = &lock(&self.inner.structure).points;
        points.get(&log.key()).copied().unwrap_or(0)
    }

    /// Keeps where the next round begins.
    fn remember(&self, log: &Compacted, next_dirty: i64) -> Result<(), LogError> {
        let mut structure = self.lock_structure()?;
        let mut cleaned = structure.cleaned.clone();
        // Partitions of topics that are gone leave the file with this.
        cleaned.retain(|(topic, _), _| structure.catalogue.topics.contains_key(topic));
        let current = structure.catalogue.topics.get(&log.topic.name);
        if current.is_some_and(|topic| topic.id == log.topic.id) {
            cleaned.insert(log.key(), next_dirty);
        }
        self.note(self.inner.store_cleaned(&mut structure, cleaned))
    }
}

impl super::Inner {
    /// Replaces the checkpoint of the cleaner, unless it would be the same.
    pub(super) fn store_cleaned(
        &self,
        structure: &mut Structure,
        cleaned: Offsets,
    ) -> Result<(), LogError> {
        if cleaned != structure.cleaned {
            checkpoint::store(&*self.storage, CLEANER_OFFSETS, &cleaned)?;
            structure.cleaned = cleaned;
        }
        Ok(())
    }
}

/// Where compaction came to; what is damaged or missing only costs another pass over all.
pub(super) fn load_cleaned(storage: &dyn crate::storage::Storage) -> Result<Offsets, LogError> {
    match checkpoint::load(storage, CLEANER_OFFSETS) {
        Ok(offsets) => Ok(offsets.unwrap_or_default()),
        Err(LogError::Corrupt { reason, .. }) => {
            tracing::warn!(file = CLEANER_OFFSETS, reason, "compaction begins anew");
            Ok(Offsets::new())
        }
        Err(error) => Err(error),
    }
}
