//! Settings of one partition, under Kafka's names.
//!
//! Invariants: what is parsed is in range, so the log need not check again.
//! Never: changes under a partition; new settings are a new value, put in force as a whole.

use std::collections::BTreeMap;

/// Settings of one partition; the defaults are Kafka's.
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionConfig {
    /// `segment.bytes`: a log file of this size is followed by a new one. Default 1 GiB.
    pub segment_bytes: u64,
    /// `segment.ms`: a log file whose first record is this old is followed by a new one. 7 days.
    pub segment_ms: i64,
    /// `segment.jitter.ms`: by up to so much earlier, so that not all partitions do so at once. 0.
    pub segment_jitter_ms: i64,
    /// `segment.index.bytes`: an index of this size is followed by a new segment. Default 10 MiB.
    pub segment_index_bytes: u64,
    /// `index.interval.bytes`: bytes of log between two index entries. Default 4096.
    pub index_interval_bytes: u64,
    /// `retention.ms`: older segments are deleted; -1 keeps them. Default 7 days.
    pub retention_ms: i64,
    /// `retention.bytes`: the oldest segments are deleted beyond this size; -1 keeps them.
    pub retention_bytes: i64,
    /// `max.message.bytes`: largest record batch, compressed. Default 1048588.
    pub max_message_bytes: usize,
    /// `message.timestamp.type` is `LogAppendTime` instead of `CreateTime`.
    pub log_append_time: bool,
    /// `message.timestamp.before.max.ms`: how far a record's time may lie behind the broker's.
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms`: how far it may lie ahead. Default 1 hour.
    pub timestamp_after_max_ms: i64,
    /// `cleanup.policy` contains `compact`: records need keys.
    pub compact: bool,
    /// `cleanup.policy` contains `delete`: retention applies.
    pub delete: bool,
    /// `min.cleanable.dirty.ratio`: part of a compacted log that must be new before it is cleaned.
    /// Default 0.5.
    pub min_cleanable_dirty_ratio: f64,
    /// `min.compaction.lag.ms`: records younger than this are not compacted. Default 0.
    pub min_compaction_lag_ms: i64,
    /// `max.compaction.lag.ms`: records older than this are compacted whatever the ratio is; the
    /// segment that is written ends in time for it. Default never.
    pub max_compaction_lag_ms: i64,
    /// `delete.retention.ms`: how long tombstones, and markers of transactions without records,
    /// stay after compaction met them first. Default 1 day.
    pub delete_retention_ms: i64,
    /// What one batch may decompress to. Default 64 MiB. A setting of the broker.
    pub max_decompressed_bytes: usize,
    /// `producer.id.expiration.ms`: silence after which a producer is forgotten. Default 1 day.
    pub producer_id_expiration_ms: i64,
    /// Secret of this process, behind which the keys of a compacted log are hashed. Default 0.
    pub hash_seed: u64,
}

/// `internal.segment.bytes`, in tests: `segment.bytes` below what users may ask for.
const INTERNAL_SEGMENT_BYTES: &str = "internal.segment.bytes";
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

impl Default for PartitionConfig {
    fn default() -> Self {
        PartitionConfig {
            segment_bytes: 1 << 30,
            segment_ms: 7 * DAY_MS,
            segment_jitter_ms: 0,
            segment_index_bytes: 10 << 20,
            index_interval_bytes: 4096,
            retention_ms: 7 * DAY_MS,
            retention_bytes: -1,
            max_message_bytes: 1_048_588,
            log_append_time: false,
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: 60 * 60 * 1000,
            compact: false,
            delete: true,
            min_cleanable_dirty_ratio: 0.5,
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: i64::MAX,
            delete_retention_ms: DAY_MS,
            max_decompressed_bytes: 64 << 20,
            producer_id_expiration_ms: DAY_MS,
            hash_seed: 0,
        }
    }
}

/// A topic setting whose value cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}={value} is not valid: {expected}")]
pub struct InvalidConfig {
    /// Kafka's name of the setting.
    pub name: String,
    /// What was given.
    pub value: String,
    /// What would be accepted.
    pub expected: &'static str,
}

impl PartitionConfig {
    /// These settings with a topic's own put over them. Names that do not concern the log are
    /// passed over.
    pub fn with_configs(
        mut self,
        configs: &BTreeMap<String, String>,
    ) -> Result<PartitionConfig, InvalidConfig> {
        // A size for tests counts more than the one that users are held to.
        let (last, first): (Vec<_>, Vec<_>) = configs
            .iter()
            .partition(|(name, _)| *name == INTERNAL_SEGMENT_BYTES);
        for (name, value) in first.into_iter().chain(last) {
            self.set(name, value).map_err(|expected| InvalidConfig {
                name: name.clone(),
                value: value.clone(),
                expected,
            })?;
        }
        Ok(self)
    }

    /// How old the first record of a segment may become before the next one begins: a compacted
    /// log must not keep records in the segment that is written beyond their lag.
    pub(crate) fn segment_ms_max(&self) -> i64 {
        if self.compact {
            self.segment_ms.min(self.max_compaction_lag_ms)
        } else {
            self.segment_ms
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), &'static str> {
        match name {
            "segment.bytes" | INTERNAL_SEGMENT_BYTES => {
                self.segment_bytes = number(value, 14, i32::MAX.into())?.unsigned_abs();
            }
            "segment.ms" => self.segment_ms = number(value, 1, i64::MAX)?,
            "segment.jitter.ms" => self.segment_jitter_ms = number(value, 0, i64::MAX)?,
            "segment.index.bytes" => {
                self.segment_index_bytes = number(value, 4, i32::MAX.into())?.unsigned_abs();
            }
            "message.timestamp.before.max.ms" => {
                self.timestamp_before_max_ms = number(value, 0, i64::MAX)?;
            }
            "message.timestamp.after.max.ms" => {
                self.timestamp_after_max_ms = number(value, 0, i64::MAX)?;
            }
            "index.interval.bytes" => {
                self.index_interval_bytes = number(value, 0, i32::MAX.into())?.unsigned_abs();
            }
            "retention.ms" => self.retention_ms = number(value, -1, i64::MAX)?,
            "retention.bytes" => self.retention_bytes = number(value, -1, i64::MAX)?,
            "max.message.bytes" => {
                let bytes = number(value, 0, i32::MAX.into())?.unsigned_abs();
                self.max_message_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            }
            "min.cleanable.dirty.ratio" => {
                self.min_cleanable_dirty_ratio = value
                    .parse()
                    .ok()
                    .filter(|ratio| (0.0..=1.0).contains(ratio))
                    .ok_or("a number from 0 to 1")?;
            }
            "min.compaction.lag.ms" => self.min_compaction_lag_ms = number(value, 0, i64::MAX)?,
            "max.compaction.lag.ms" => self.max_compaction_lag_ms = number(value, 1, i64::MAX)?,
            "delete.retention.ms" => self.delete_retention_ms = number(value, 0, i64::MAX)?,
            "message.timestamp.type" => {
                self.log_append_time = match value {
                    "CreateTime" => false,
                    "LogAppendTime" => true,
                    _ => return Err("CreateTime or LogAppendTime"),
                };
            }
            "cleanup.policy" => {
                let policies = value.split(',').map(str::trim);
                // An empty list keeps everything.
                let policies: Vec<&str> = policies.filter(|policy| !policy.is_empty()).collect();
                if !policies
                    .iter()
                    .all(|policy| ["compact", "delete"].contains(policy))
                {
                    return Err("delete, compact or both");
                }
                self.compact = policies.contains(&"compact");
                self.delete = policies.contains(&"delete");
            }
            _ => {}
        }
        Ok(())
    }
}

fn number(value: &str, least: i64, most: i64) -> Result<i64, &'static str> {
    value
        .parse()
        .ok()
        .filter(|number| (least..=most).contains(number))
        .ok_or("an integer in Kafka's range")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(pairs: &[(&str, &str)]) -> Result<PartitionConfig, InvalidConfig> {
        let configs = pairs
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
        PartitionConfig::default().with_configs(&configs)
    }

    #[test]
    fn a_topics_settings_replace_the_defaults() {
        let config = parsed(&[
            ("segment.bytes", "1000"),
            ("retention.ms", "-1"),
            ("cleanup.policy", "compact, delete"),
            ("message.timestamp.type", "LogAppendTime"),
            ("min.insync.replicas", "1"),
        ])
        .unwrap();
        assert_eq!((config.segment_bytes, config.retention_ms), (1000, -1));
        assert!(config.compact && config.delete && config.log_append_time);
        assert!(!parsed(&[("cleanup.policy", "compact")]).unwrap().delete);
        let kept = parsed(&[("cleanup.policy", "")]).unwrap();
        assert!(!kept.compact && !kept.delete);
        let tiny = [("segment.bytes", "5000"), ("internal.segment.bytes", "20")];
        assert_eq!(parsed(&tiny).unwrap().segment_bytes, 20);
        let config = parsed(&[
            ("cleanup.policy", "compact"),
            ("min.cleanable.dirty.ratio", "0.25"),
            ("min.compaction.lag.ms", "7"),
            ("max.compaction.lag.ms", "9000"),
            ("delete.retention.ms", "0"),
        ])
        .unwrap();
        assert_eq!(config.min_cleanable_dirty_ratio, 0.25);
        assert_eq!(
            (config.min_compaction_lag_ms, config.delete_retention_ms),
            (7, 0)
        );
        assert_eq!(config.segment_ms_max(), 9_000);
    }

    #[test]
    fn a_value_out_of_range_is_refused_by_name() {
        for (name, value) in [
            ("segment.bytes", "3000000000"),
            ("segment.ms", "0"),
            ("retention.ms", "-2"),
            ("max.message.bytes", "x"),
            ("cleanup.policy", "shred"),
            ("message.timestamp.type", "Now"),
            ("min.cleanable.dirty.ratio", "1.01"),
            ("min.cleanable.dirty.ratio", "NaN"),
            ("min.compaction.lag.ms", "-1"),
            ("max.compaction.lag.ms", "0"),
            ("delete.retention.ms", "-1"),
        ] {
            assert_eq!(parsed(&[(name, value)]).unwrap_err().name, name);
        }
    }
}
