//! What an instance has committed so far, for summaries, tests and whoever waits for an offset.
//!
//! Invariants: it counts committed work only; numbers rise.
//! Never: read by the processing itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_protocol::TopicPartition;
use tokio::sync::watch;

/// A snapshot of an instance's committed work.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Commits that took effect.
    pub commits: u64,
    /// Transactions (or batches, at least once) that were given up and done again.
    pub rewinds: u64,
    /// Records read, by source topic.
    pub records_read: BTreeMap<Arc<str>, u64>,
    /// Records written, by topic; dead letters under their topic.
    pub records_written: BTreeMap<Arc<str>, u64>,
    /// Poison records that were skipped.
    pub records_skipped: u64,
    /// Committed offset (exclusive) of each partition that this instance has committed.
    pub committed: BTreeMap<TopicPartition, i64>,
    /// How long commits took, from the start of the flush until they were visible.
    pub commit_latency: Latency,
}

impl Progress {
    /// Whether every offset of `ends` (exclusive) was reached.
    #[must_use]
    pub fn reaches(&self, ends: &BTreeMap<TopicPartition, i64>) -> bool {
        ends.iter().all(|(partition, &end)| {
            end == 0
                || self
                    .committed
                    .get(partition)
                    .is_some_and(|&committed| committed >= end)
        })
    }
}

/// A histogram of durations with about 3 % resolution, from a microsecond to an hour.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Latency {
    buckets: BTreeMap<u16, u64>,
    count: u64,
}

impl Latency {
    const STEPS: u32 = 32;

    pub(crate) fn record(&mut self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros())
            .unwrap_or(u64::MAX)
            .max(1);
        *self.buckets.entry(Self::bucket(micros)).or_default() += 1;
        self.count += 1;
    }

    /// Exact below 32 µs, then 32 steps for each doubling.
    fn bucket(micros: u64) -> u16 {
        let steps = u64::from(Self::STEPS);
        if micros < steps {
            return micros as u16;
        }
        let doublings = micros.ilog2() - steps.ilog2();
        (steps * u64::from(doublings) + (micros >> doublings)) as u16
    }

    fn lower_bound(bucket: u16) -> u64 {
        let (bucket, steps) = (u64::from(bucket), u64::from(Self::STEPS));
        if bucket < 2 * steps {
            return bucket;
        }
        let doublings = bucket / steps - 1;
        (steps + bucket % steps) << doublings
    }

    /// How many durations were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The duration below which the fraction `quantile` (0 to 1) lies; zero where nothing was
    /// recorded.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Duration {
        let rank = (quantile * self.count as f64).ceil() as u64;
        let mut seen = 0;
        for (&bucket, &count) in &self.buckets {
            seen += count;
            if seen >= rank.max(1) {
                return Duration::from_micros(Self::lower_bound(bucket));
            }
        }
        Duration::ZERO
    }
}

/// What one commit adds.
#[derive(Debug, Default)]
pub(crate) struct CommitReport {
    pub(crate) offsets: Vec<(TopicPartition, i64)>,
    pub(crate) read: BTreeMap<Arc<str>, u64>,
    pub(crate) written: BTreeMap<Arc<str>, u64>,
    pub(crate) skipped: u64,
    pub(crate) took: Duration,
}

/// The writing end, shared by the workers.
#[derive(Debug, Clone)]
pub(crate) struct ProgressLog {
    state: Arc<Mutex<Progress>>,
    changed: Arc<watch::Sender<u64>>,
}

impl ProgressLog {
    pub(crate) fn new() -> Self {
        Self {
            state: Arc::default(),
            changed: Arc::new(watch::Sender::new(0)),
        }
    }

    pub(crate) fn committed(&self, report: CommitReport) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.commits += 1;
        state.committed.extend(report.offsets);
        for (topic, count) in report.read {
            *state.records_read.entry(topic).or_default() += count;
        }
        for (topic, count) in report.written {
            *state.records_written.entry(topic).or_default() += count;
        }
        state.records_skipped += report.skipped;
        state.commit_latency.record(report.took);
        drop(state);
        self.changed.send_modify(|version| *version += 1);
    }

    pub(crate) fn rewound(&self) {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .rewinds += 1;
    }

    pub(crate) fn snapshot(&self) -> Progress {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_the_resolution_of_the_buckets() {
        let mut latency = Latency::default();
        for micros in 1..=10_000_u64 {
            latency.record(Duration::from_micros(micros));
        }
        for (quantile, micros) in [(0.5, 5_000.0), (0.99, 9_900.0), (0.001, 10.0)] {
            let found = latency.quantile(quantile).as_micros() as f64;
            assert!(
                (found - micros).abs() / micros < 0.04,
                "{quantile}: {found}"
            );
        }
        assert_eq!(Latency::default().quantile(0.5), Duration::ZERO);
        for micros in [1, 31, 32, 33, 63, 64, 100, 1_000_000, 3_600_000_000] {
            let low = Latency::lower_bound(Latency::bucket(micros));
            assert!(
                low <= micros && micros - low <= micros / 31,
                "{micros} in {low}"
            );
        }
    }

    #[test]
    fn an_empty_partition_is_always_reached() {
        let mut progress = Progress::default();
        let ends = BTreeMap::from([
            (TopicPartition::new("t", 0), 0),
            (TopicPartition::new("t", 1), 5),
        ]);
        assert!(!progress.reaches(&ends));
        progress.committed.insert(TopicPartition::new("t", 1), 5);
        assert!(progress.reaches(&ends));
    }
}
