//! From the records of `__consumer_offsets` to groups and offsets, as they were.
//!
//! Invariants: batches are taken in the order of the log; a record that cannot be read stops the
//! load, so that nothing is ever loaded in part.
//! Never: reads the disk itself; keeps a value that a later record replaces.

use std::collections::BTreeMap;

use millstream_log::{Isolation, PartitionLog, ReadRequest};
use millstream_protocol::RecordBatch;

use super::consumer::{Limits, Stored};
use super::machine::{Group, GroupLimits};
use super::offsets::Offsets;
use super::record::{GroupMetadataValue, GroupRecord};
use super::shard::ShardState;

const READ_BYTES: usize = 4 << 20;

/// A record that cannot be read, and what is wrong with it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Corrupt {
    pub(super) offset: i64,
    pub(super) reason: String,
}

/// What has been read so far.
#[derive(Debug, Default)]
pub(super) struct Replay {
    groups: BTreeMap<String, GroupMetadataValue>,
    /// With the time of the last record of each. Where nobody is left, that is when the last one
    /// went: nothing is written of an empty group.
    consumers: BTreeMap<String, (Stored, i64)>,
    offsets: Offsets,
    /// Records read.
    pub(super) record_count: u64,
}

impl Replay {
    /// Reads a whole partition, from its start to its end.
    pub(super) fn read(log: &PartitionLog, decompressed_max: usize) -> Result<Replay, Corrupt> {
        let mut replay = Replay::default();
        let bounds = log.offsets();
        let mut next = bounds.log_start;
        while next < bounds.log_end {
            let request = ReadRequest {
                offset: next,
                max_bytes: READ_BYTES,
                isolation: Isolation::LogEnd,
                at_least_one: true,
            };
            let corrupt = |reason: String| Corrupt {
                offset: next,
                reason,
            };
            let read = log
                .read(request)
                .map_err(|error| corrupt(error.to_string()))?;
            let before = next;
            for mut bytes in read.batches {
                while let Some(batch) =
                    RecordBatch::split_from(&mut bytes).map_err(|error| Corrupt {
                        offset: next,
                        reason: error.to_string(),
                    })?
                {
                    replay.batch(&batch, decompressed_max)?;
                    next = batch.next_offset();
                }
            }
            if next == before {
                return Err(Corrupt {
                    offset: next,
                    reason: "no batch is readable here".to_owned(),
                });
            }
        }
        Ok(replay)
    }

    /// Takes one batch.
    pub(super) fn batch(
        &mut self,
        batch: &RecordBatch,
        decompressed_max: usize,
    ) -> Result<(), Corrupt> {
        let at = batch.base_offset();
        let corrupt = |reason: &dyn std::fmt::Display| Corrupt {
            offset: at,
            reason: reason.to_string(),
        };
        batch.verify_crc().map_err(|error| corrupt(&error))?;
        if batch.is_control() {
            if let Some(marker) = batch.control().map_err(|error| corrupt(&error))? {
                self.offsets
                    .end_transaction(batch.producer_id(), marker.is_commit(), at);
            }
            return Ok(());
        }
        let producer_id = batch.is_transactional().then(|| batch.producer_id());
        for record in batch
            .records(decompressed_max)
            .map_err(|error| corrupt(&error))?
        {
            let record = record.map_err(|error| corrupt(&error))?;
            let read = GroupRecord::decode(record.key, record.value);
            let read = read.map_err(|error| Corrupt {
                offset: record.offset,
                reason: error.to_string(),
            })?;
            self.record((record.offset, record.timestamp), producer_id, read);
        }
        Ok(())
    }

    fn record(
        &mut self,
        (offset, timestamp): (i64, i64),
        producer_id: Option<i64>,
        record: GroupRecord,
    ) {
        self.record_count += 1;
        match record {
            GroupRecord::Offset {
                group,
                topic,
                partition,
                value,
            } => {
                let offsets = &mut self.offsets;
                match (value, producer_id) {
                    (None, _) => offsets.remove(&group, &topic, partition),
                    (Some(value), None) => {
                        offsets.commit(&group, &topic, partition, value.into_committed(offset));
                    }
                    (Some(value), Some(producer_id)) => {
                        let value = value.into_committed(offset);
                        offsets.commit_pending(producer_id, &group, &topic, partition, value);
                    }
                }
            }
            GroupRecord::Group {
                group,
                value: Some(value),
            } => {
                self.groups.insert(group, value);
            }
            GroupRecord::Group { group, value: None } => {
                self.groups.remove(&group);
            }
            GroupRecord::Consumer { group, record } => {
                let (stored, told_ms) = self.consumers.entry(group).or_default();
                stored.apply(record);
                *told_ms = timestamp;
            }
        }
    }

    /// The groups as they are now that everything has been read; sessions begin at `now_ms`.
    pub(super) fn finish(
        self,
        classic: GroupLimits,
        consumer: impl Fn(&str) -> Limits,
        now_ms: i64,
    ) -> ShardState {
        let group = |(id, value): (String, GroupMetadataValue)| {
            (id.clone(), Group::from_record(id, value, classic, now_ms))
        };
        let consumers = self.consumers.into_iter();
        let consumers = consumers.filter_map(|(id, (stored, told_ms))| {
            let limits = consumer(&id);
            Some((id, (stored.into_group(limits, now_ms)?, told_ms)))
        });
        let groups = self.groups.into_iter().map(group).collect();
        ShardState::loaded(groups, consumers, self.offsets)
    }
}
