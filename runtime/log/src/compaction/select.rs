//! What of a log is worth cleaning, and when the segment that is written must end for it. Pure.
//!
//! Kafka cleans closed segments only, and closes them by size and by the records' timestamps, so a
//! small topic is never compacted. Here the cleaner ends the active segment as well:
//!
//! - when its first record is older than `max.compaction.lag.ms`;
//! - when it holds `ROLL_BYTES` or more and would make the log dirty enough to be cleaned, unless
//!   `min.compaction.lag.ms` keeps its newest record from being compacted anyway.
//!
//! Invariants: the end is where a segment ends, at most the bound.
//! Never: looks at records.

use crate::partition_config::PartitionConfig;
use std::ops::Range;

/// From this size on the active segment is worth a roll of its own.
pub(crate) const ROLL_BYTES: u64 = 1 << 20;

/// What is known about a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentFacts {
    pub(crate) base_offset: i64,
    pub(crate) size_bytes: u64,
    /// Of the first batch.
    pub(crate) first_timestamp: Option<i64>,
    pub(crate) largest_timestamp: Option<i64>,
}

/// The part of a log that can be cleaned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// What lies below was cleaned before.
    pub(crate) first_dirty: i64,
    /// What lies at or beyond must not be touched.
    pub(crate) end: i64,
    pub(crate) clean_bytes: u64,
    pub(crate) dirty_bytes: u64,
    /// Some of it is older than `max.compaction.lag.ms`.
    pub(crate) is_overdue: bool,
}

impl Candidate {
    /// The dirty part of what can be cleaned.
    pub(crate) fn dirty_ratio(&self) -> f64 {
        ratio(self.clean_bytes, self.dirty_bytes)
    }

    /// Whether to clean it now.
    pub(crate) fn is_due(&self, config: &PartitionConfig) -> bool {
        self.dirty_bytes > 0
            && (self.is_overdue || self.dirty_ratio() > config.min_cleanable_dirty_ratio)
    }
}

fn ratio(clean_bytes: u64, dirty_bytes: u64) -> f64 {
    match clean_bytes + dirty_bytes {
        0 => 0.0,
        total => dirty_bytes as f64 / total as f64,
    }
}

/// Where cleaning begins: at the checkpoint, unless it is not of this log.
pub(crate) fn first_dirty(checkpoint: Option<i64>, log_start: i64, log_end: i64) -> i64 {
    checkpoint
        .filter(|offset| (log_start..=log_end).contains(offset))
        .unwrap_or(log_start)
}

/// What can be cleaned below `bound`; the last segment is the one that is written.
pub(crate) fn candidate(
    segments: &[SegmentFacts],
    first_dirty: i64,
    bound: i64,
    config: &PartitionConfig,
    now_ms: i64,
) -> Candidate {
    let mut found = Candidate {
        first_dirty,
        end: first_dirty,
        clean_bytes: 0,
        dirty_bytes: 0,
        is_overdue: false,
    };
    let ends = segments.iter().skip(1).map(|segment| segment.base_offset);
    for (segment, end) in segments.iter().zip(ends) {
        if end <= first_dirty {
            found.clean_bytes += segment.size_bytes;
            continue;
        }
        if end > bound || is_too_young(segment, config, now_ms) {
            break;
        }
        found.end = end;
        found.dirty_bytes += segment.size_bytes;
        found.is_overdue |= is_overdue(segment, config, now_ms);
    }
    found
}

/// Whether the active segment is to end now, so that what is in it can be cleaned.
pub(crate) fn must_roll(
    segments: &[SegmentFacts],
    first_dirty: i64,
    config: &PartitionConfig,
    now_ms: i64,
) -> bool {
    let Some((active, closed)) = segments.split_last() else {
        return false;
    };
    if active.size_bytes == 0 || is_too_young(active, config, now_ms) {
        return false;
    }
    if is_overdue(active, config, now_ms) {
        return true;
    }
    let ends = segments.iter().skip(1).map(|segment| segment.base_offset);
    let (mut clean_bytes, mut dirty_bytes) = (0, active.size_bytes);
    for (segment, end) in closed.iter().zip(ends) {
        match end <= first_dirty {
            true => clean_bytes += segment.size_bytes,
            false => dirty_bytes += segment.size_bytes,
        }
    }
    let is_worth_it = ratio(clean_bytes, dirty_bytes) > config.min_cleanable_dirty_ratio;
    active.size_bytes >= ROLL_BYTES && is_worth_it
}

fn is_too_young(segment: &SegmentFacts, config: &PartitionConfig, now_ms: i64) -> bool {
    let newest = segment.largest_timestamp.unwrap_or(i64::MIN);
    config.min_compaction_lag_ms > 0 && newest > now_ms.saturating_sub(config.min_compaction_lag_ms)
}

fn is_overdue(segment: &SegmentFacts, config: &PartitionConfig, now_ms: i64) -> bool {
    let first = segment.first_timestamp.filter(|timestamp| *timestamp > 0);
    first.is_some_and(|first| first < now_ms.saturating_sub(config.max_compaction_lag_ms))
}

/// Neighbours that become one segment, as ranges of indexes: not larger than a segment may be, and
/// within the offsets that one can name.
pub(crate) fn groups(segments: &[(Range<i64>, u64)], segment_bytes: u64) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let (mut base, mut size_bytes) = (0, 0);
    for (index, (offsets, bytes)) in segments.iter().enumerate() {
        let fits =
            size_bytes + bytes <= segment_bytes && offsets.end - 1 - base <= i64::from(i32::MAX);
        match groups.last_mut() {
            Some(group) if fits => {
                group.end = index + 1;
                size_bytes += bytes;
            }
            _ => {
                groups.push(index..index + 1);
                (base, size_bytes) = (offsets.start, *bytes);
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400_000;

    fn compact() -> PartitionConfig {
        PartitionConfig {
            compact: true,
            delete: false,
            ..PartitionConfig::default()
        }
    }

    /// Segments of 100 offsets and these sizes; segment n has timestamps n * 1000 to n * 1000 + 9.
    fn segments(sizes: &[u64]) -> Vec<SegmentFacts> {
        let facts = sizes
            .iter()
            .enumerate()
            .map(|(n, size_bytes)| SegmentFacts {
                base_offset: n as i64 * 100,
                size_bytes: *size_bytes,
                first_timestamp: Some(n as i64 * 1000),
                largest_timestamp: Some(n as i64 * 1000 + 9),
            });
        facts.collect()
    }

    #[test]
    fn closed_segments_below_the_bound_are_dirty_from_the_checkpoint_on() {
        let segments = segments(&[10, 20, 30, 40, 5]);
        let all = candidate(&segments, 0, i64::MAX, &compact(), DAY);
        assert_eq!((all.end, all.clean_bytes, all.dirty_bytes), (400, 0, 100));
        let rest = candidate(&segments, 200, 399, &compact(), DAY);
        assert_eq!(
            (rest.end, rest.clean_bytes, rest.dirty_bytes),
            (300, 30, 30)
        );
        assert_eq!(rest.dirty_ratio(), 0.5);
        assert!(!rest.is_due(&compact()), "the ratio must be exceeded");
        let middle = candidate(&segments, 150, 300, &compact(), DAY);
        assert_eq!((middle.clean_bytes, middle.dirty_bytes), (10, 50));
        assert!(middle.is_due(&compact()));
        let nothing = candidate(&segments, 400, i64::MAX, &compact(), DAY);
        assert_eq!((nothing.end, nothing.dirty_bytes), (400, 0));
        let eager = PartitionConfig {
            min_cleanable_dirty_ratio: 0.0,
            ..compact()
        };
        assert!(!nothing.is_due(&eager));
    }

    #[test]
    fn young_segments_wait_and_old_ones_are_overdue() {
        let segments = segments(&[10, 10, 10, 10]);
        let lag = PartitionConfig {
            min_compaction_lag_ms: 500,
            ..compact()
        };
        assert_eq!(candidate(&segments, 0, i64::MAX, &lag, 1_508).end, 100);
        assert_eq!(candidate(&segments, 0, i64::MAX, &lag, 1_509).end, 200);
        let overdue = PartitionConfig {
            max_compaction_lag_ms: 500,
            min_cleanable_dirty_ratio: 1.0,
            ..compact()
        };
        let found = candidate(&segments, 100, i64::MAX, &overdue, 1_500);
        assert!(!found.is_due(&overdue));
        assert!(candidate(&segments, 100, i64::MAX, &overdue, 1_501).is_due(&overdue));
    }

    #[test]
    fn a_checkpoint_that_is_not_of_this_log_means_all_of_it() {
        assert_eq!(first_dirty(None, 5, 90), 5);
        assert_eq!(first_dirty(Some(50), 5, 90), 50);
        assert_eq!(first_dirty(Some(4), 5, 90), 5);
        assert_eq!(first_dirty(Some(91), 5, 90), 5);
    }

    #[test]
    fn the_active_segment_ends_when_it_is_worth_it_or_overdue_and_not_while_it_is_young() {
        let roll = |sizes: &[u64], first_dirty, config: &PartitionConfig, now_ms| {
            must_roll(&segments(sizes), first_dirty, config, now_ms)
        };
        let config = compact();
        assert!(!roll(&[ROLL_BYTES - 1], 0, &config, DAY));
        assert!(roll(&[ROLL_BYTES], 0, &config, DAY));
        assert!(!roll(&[ROLL_BYTES, ROLL_BYTES], 100, &config, DAY));
        assert!(roll(&[ROLL_BYTES, ROLL_BYTES + 1], 100, &config, DAY));
        assert!(!roll(&[5, 0], 0, &config, DAY));
        let lag = PartitionConfig {
            max_compaction_lag_ms: 500,
            ..compact()
        };
        assert!(!roll(&[5, 5], 0, &lag, 1_500));
        assert!(roll(&[5, 5], 0, &lag, 1_501));
        let young = PartitionConfig {
            min_compaction_lag_ms: 600,
            ..lag
        };
        assert!(!roll(&[5, 5], 0, &young, 1_501));
    }

    #[test]
    fn neighbours_share_a_segment_as_far_as_size_and_offsets_allow() {
        let sized = |sizes: &[u64]| -> Vec<(Range<i64>, u64)> {
            let of = |(n, size): (usize, &u64)| (n as i64 * 100..(n as i64 + 1) * 100, *size);
            sizes.iter().enumerate().map(of).collect()
        };
        assert_eq!(
            groups(&sized(&[60, 40, 1, 99, 200, 1]), 100),
            [0..2, 2..4, 4..5, 5..6]
        );
        assert_eq!(groups(&[], 100), []);
        let far = i64::from(i32::MAX);
        let wide = [(0..far, 1), (far..far + 1, 1), (far + 1..far + 9, 1)];
        assert_eq!(groups(&wide, 100), [0..2, 2..3]);
    }
}
