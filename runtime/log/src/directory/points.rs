//! What a checkpoint says about each partition, and how it reaches the checkpoint files.
//!
//! Invariants: a recovery point is at most the high watermark under `sync`; entries are those of
//! topics that the catalogue has at the time of writing.
//! Never: writes a file whose content would be the same.

use std::collections::BTreeSet;

use millstream_protocol::Uuid;

use super::{Inner, Structure, Topic, lock};
use crate::checkpoint::{self, Offsets};
use crate::durability::Durability;
use crate::error::LogError;
use crate::partition::PartitionLog;

/// How far a partition's own files are synced.
pub(super) struct Flushed {
    topic_id: Uuid,
    key: (String, i32),
    point: i64,
    log_start: i64,
}

impl Flushed {
    pub(super) fn of(
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
            // Nothing was synced: the next start reads all of it, and syncs it if it has to.
            Durability::Memory => 0,
            Durability::Interval(_) | Durability::Os => end,
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
    /// Removes these topics' entries from the checkpoint files.
    pub(super) fn forget_points(
        &self,
        structure: &mut Structure,
        names: &BTreeSet<&str>,
    ) -> Result<(), LogError> {
        let mut points = structure.points.clone();
        let mut log_starts = structure.log_starts.clone();
        points.retain(|(topic, _), _| !names.contains(topic.as_str()));
        log_starts.retain(|(topic, _), _| !names.contains(topic.as_str()));
        let mut cleaned = structure.cleaned.clone();
        cleaned.retain(|(topic, _), _| !names.contains(topic.as_str()));
        self.store_cleaned(structure, cleaned)?;
        self.store_points(structure, points, log_starts)
    }

    pub(super) fn write_points(&self, flushed: Vec<Flushed>) -> Result<(), LogError> {
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
