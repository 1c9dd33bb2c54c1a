//! Where the consumer stands in each of its partitions, and what is buffered for it. Pure state:
//! the fetcher asks what to fetch and puts answers in, `poll` takes records out.
//!
//! ```text
//!                committed offset found
//! Unset ------------------------------------> At(offset) <----- seek, from anywhere
//!   |  none: auto.offset.reset                  ^    |
//!   +--------------------> Resetting -----------+    | out of range
//!   |  policy none            ^       offset found   |
//!   +--> Stuck <--------------+----------------------+
//! ```
//!
//! Invariants: an answer counts only if it was asked for under the present version of its
//! partition; seek, reset and reassignment raise the version and drop the buffer. A position is
//! never ahead of what was handed out or stepped over. Buffered bytes of a partition pass
//! `max.partition.fetch.bytes` by one answer at most.
//! Never: clocks, I/O, async.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use millstream_protocol::TopicPartition;

use super::error::ConsumerError;
use super::fetched::FetchedPartition;
use super::records::{ConsumerRecords, PartitionRecords};

/// Which end of a log to go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LogEnd {
    Earliest,
    Latest,
}

/// Where a partition stands.
#[derive(Clone, Debug)]
pub(crate) enum Position {
    /// Not known yet: the committed offset, or what the reset policy says.
    Unset,
    /// To be asked of the leader.
    Resetting(LogEnd),
    /// The next record to hand out.
    At(i64),
    /// Nothing will happen before a seek.
    Stuck,
}

/// The ends of a partition as the last answer told them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogOffsets {
    pub(crate) log_start: i64,
    pub(crate) last_stable: i64,
    pub(crate) high_watermark: i64,
}

#[derive(Debug)]
struct PartitionState {
    position: Position,
    version: u64,
    paused: bool,
    /// A fetch or a look-up for this version is on its way.
    busy: bool,
    /// Nothing is asked before this time.
    not_before_ms: i64,
    buffer: VecDeque<FetchedPartition>,
    offsets: Option<LogOffsets>,
}

impl PartitionState {
    fn new(version: u64) -> Self {
        PartitionState {
            position: Position::Unset,
            version,
            paused: false,
            busy: false,
            not_before_ms: i64::MIN,
            buffer: VecDeque::new(),
            offsets: None,
        }
    }

    fn buffered_bytes(&self) -> usize {
        self.buffer.iter().map(FetchedPartition::size_bytes).sum()
    }

    /// The offset after what is buffered.
    fn fetch_offset(&self) -> Option<i64> {
        match self.position {
            Position::At(offset) => Some(
                self.buffer
                    .back()
                    .map_or(offset, FetchedPartition::end_offset),
            ),
            _ => None,
        }
    }

    /// Drops what was fetched and makes answers under way count no more.
    fn restart(&mut self, position: Position, version: u64) {
        self.position = position;
        self.version = version;
        self.busy = false;
        self.not_before_ms = i64::MIN;
        self.buffer.clear();
    }
}

/// A question for one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) topic_partition: TopicPartition,
    /// Ask under this version, answer under it.
    pub(crate) version: u64,
    pub(crate) offset: i64,
}

/// How much may be buffered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferLimits {
    pub(crate) partition_bytes: usize,
    /// Of all partitions that are not paused.
    pub(crate) total_bytes: usize,
}

/// Errors that are kept for `poll`; those beyond repeat themselves anyhow.
const ERRORS_MAX: usize = 16;

/// All partitions of a consumer.
#[derive(Debug)]
pub(crate) struct Positions {
    partitions: BTreeMap<TopicPartition, PartitionState>,
    next_version: u64,
    limits: BufferLimits,
    /// The partition that `poll` took from last; the next poll begins behind it.
    last_taken: Option<TopicPartition>,
    /// To be reported by `poll`, once each.
    errors: VecDeque<ConsumerError>,
}

impl Positions {
    pub(crate) fn new(limits: BufferLimits) -> Self {
        Positions {
            partitions: BTreeMap::new(),
            next_version: 0,
            limits,
            last_taken: None,
            errors: VecDeque::new(),
        }
    }

    fn version(&mut self) -> u64 {
        self.next_version += 1;
        self.next_version
    }

    /// Makes `wanted` the assignment. Partitions that stay keep position, pause and buffer.
    pub(crate) fn assign(&mut self, wanted: &BTreeSet<TopicPartition>) {
        self.partitions
            .retain(|partition, _| wanted.contains(partition));
        for partition in wanted {
            if !self.partitions.contains_key(partition) {
                let version = self.version();
                self.partitions
                    .insert(partition.clone(), PartitionState::new(version));
            }
        }
    }

    pub(crate) fn assigned(&self) -> impl Iterator<Item = &TopicPartition> {
        self.partitions.keys()
    }

    /// Known positions of all partitions.
    pub(crate) fn all(&self) -> Vec<(TopicPartition, i64)> {
        self.partitions
            .iter()
            .filter_map(|(partition, state)| match state.position {
                Position::At(offset) => Some((partition.clone(), offset)),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn position(&self, partition: &TopicPartition) -> Option<i64> {
        match self.partitions.get(partition)?.position {
            Position::At(offset) => Some(offset),
            _ => None,
        }
    }

    pub(crate) fn offsets(&self, partition: &TopicPartition) -> Option<LogOffsets> {
        self.partitions.get(partition)?.offsets
    }

    /// Moves to `position`; `false` where the partition is not assigned.
    pub(crate) fn restart(&mut self, partition: &TopicPartition, position: Position) -> bool {
        let version = self.version();
        match self.partitions.get_mut(partition) {
            Some(state) => {
                state.restart(position, version);
                true
            }
            None => false,
        }
    }

    /// Stops or starts handing out and fetching; `false` where the partition is not assigned.
    pub(crate) fn set_paused(&mut self, partition: &TopicPartition, paused: bool) -> bool {
        match self.partitions.get_mut(partition) {
            Some(state) => {
                state.paused = paused;
                true
            }
            None => false,
        }
    }

    pub(crate) fn paused(&self) -> impl Iterator<Item = &TopicPartition> {
        self.partitions
            .iter()
            .filter(|(_, state)| state.paused)
            .map(|(partition, _)| partition)
    }

    fn begin(
        &mut self,
        now_ms: i64,
        mut pick: impl FnMut(&TopicPartition, &PartitionState) -> Option<i64>,
    ) -> Vec<Target> {
        self.partitions
            .iter_mut()
            .filter(|(_, state)| !state.busy && state.not_before_ms <= now_ms)
            .filter_map(|(partition, state)| {
                let offset = pick(partition, state)?;
                state.busy = true;
                Some(Target {
                    topic_partition: partition.clone(),
                    version: state.version,
                    offset,
                })
            })
            .collect()
    }

    /// Partitions whose starting point is to be looked up; marks them as being asked for.
    pub(crate) fn begin_initial(&mut self, now_ms: i64) -> Vec<Target> {
        self.begin(now_ms, |_, state| {
            matches!(state.position, Position::Unset).then_some(-1)
        })
    }

    /// Partitions to ask their leader for one end of the log; marks them as being asked for.
    pub(crate) fn begin_reset(&mut self, now_ms: i64, end: LogEnd) -> Vec<Target> {
        self.begin(now_ms, |_, state| match state.position {
            Position::Resetting(wanted) if wanted == end => Some(-1),
            _ => None,
        })
    }

    /// Partitions to fetch now, within the buffer's limits and where `may` says so; marks them as
    /// being fetched.
    pub(crate) fn begin_fetch(
        &mut self,
        now_ms: i64,
        mut may: impl FnMut(&TopicPartition) -> bool,
    ) -> Vec<Target> {
        // What waits in paused partitions is bounded by each one's own limit, and nobody takes it
        // now: it must not stop the others.
        let buffered: usize = self
            .partitions
            .values()
            .filter(|state| !state.paused)
            .map(PartitionState::buffered_bytes)
            .sum();
        if buffered >= self.limits.total_bytes {
            return Vec::new();
        }
        let limit = self.limits.partition_bytes;
        self.begin(now_ms, |partition, state| {
            let room = state.buffer.is_empty() || state.buffered_bytes() < limit;
            let offset = state.fetch_offset().filter(|_| room && !state.paused)?;
            may(partition).then_some(offset)
        })
    }

    /// The earliest time at which a partition that waits may be asked for again.
    pub(crate) fn next_retry_ms(&self, now_ms: i64) -> Option<i64> {
        self.partitions
            .values()
            .filter(|state| !state.busy && state.not_before_ms > now_ms)
            .map(|state| state.not_before_ms)
            .min()
    }

    fn current(&mut self, target: &Target) -> Option<&mut PartitionState> {
        self.partitions
            .get_mut(&target.topic_partition)
            .filter(|state| state.version == target.version)
    }

    /// Whether an answer to `target` still counts.
    pub(crate) fn is_current(&mut self, target: &Target) -> bool {
        self.current(target).is_some()
    }

    /// The question ended without an answer that can be used: ask again, not before `again_ms`.
    pub(crate) fn release(&mut self, target: &Target, again_ms: i64) {
        if let Some(state) = self.current(target) {
            state.busy = false;
            state.not_before_ms = again_ms;
        }
    }

    /// A starting point, or an end of the log, is known now.
    pub(crate) fn found(&mut self, target: &Target, position: Position) {
        if let Some(state) = self.current(target) {
            state.position = position;
            state.busy = false;
            state.not_before_ms = i64::MIN;
        }
    }

    /// Gives up until a seek; `poll` reports the error.
    pub(crate) fn fail(&mut self, target: &Target, error: ConsumerError) {
        if let Some(state) = self.current(target) {
            state.position = Position::Stuck;
            state.busy = false;
            self.errors.push_back(error);
        }
    }

    /// Reports an error once while the question stays open.
    pub(crate) fn report(&mut self, target: &Target, error: ConsumerError) {
        if self.is_current(target) && self.errors.len() < ERRORS_MAX {
            self.errors.push_back(error);
        }
    }

    /// A fetch was answered. The answer is dropped where it is stale.
    pub(crate) fn fetched(
        &mut self,
        target: &Target,
        answer: Option<FetchedPartition>,
        offsets: LogOffsets,
    ) {
        if let Some(state) = self.current(target) {
            state.busy = false;
            state.not_before_ms = i64::MIN;
            state.offsets = Some(offsets);
            state.buffer.extend(answer);
        }
    }

    /// Takes up to `max_records` records out of the buffers and moves the positions behind them.
    /// Partitions take turns in coming first.
    pub(crate) fn take(&mut self, max_records: usize) -> Result<ConsumerRecords, ConsumerError> {
        let mut taken = ConsumerRecords::default();
        let mut left = max_records;
        for partition in self.ready() {
            if left == 0 {
                break;
            }
            match self.take_from(&partition, left) {
                Ok(Some(records)) => {
                    left -= records.records.len();
                    taken.partitions.push(records);
                    self.last_taken = Some(partition);
                }
                Ok(None) => {}
                // What was taken from others must be handed out first.
                Err(error) if taken.partitions.is_empty() => return Err(error),
                Err(error) => {
                    self.errors.push_back(error);
                    return Ok(taken);
                }
            }
        }
        match self.errors.pop_front() {
            Some(error) if taken.partitions.is_empty() => Err(error),
            Some(error) => {
                self.errors.push_front(error);
                Ok(taken)
            }
            None => Ok(taken),
        }
    }

    /// Partitions with something in the buffer, in turn.
    fn ready(&self) -> Vec<TopicPartition> {
        let first = self
            .last_taken
            .as_ref()
            .map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self
            .partitions
            .range::<TopicPartition, _>((first, Bound::Unbounded));
        let before = self
            .last_taken
            .as_ref()
            .map(|last| self.partitions.range(..=last.clone()));
        behind
            .chain(before.into_iter().flatten())
            .filter(|(_, state)| !state.paused && !state.buffer.is_empty())
            .map(|(partition, _)| partition.clone())
            .collect()
    }

    fn take_from(
        &mut self,
        partition: &TopicPartition,
        max_records: usize,
    ) -> Result<Option<PartitionRecords>, ConsumerError> {
        let version = self.version();
        let Some(state) = self.partitions.get_mut(partition) else {
            return Ok(None);
        };
        let Position::At(start) = state.position else {
            return Ok(None);
        };
        let mut records = Vec::new();
        let mut next_offset = start;
        while records.len() < max_records
            && let Some(answer) = state.buffer.front_mut()
        {
            let drained = answer.drain(max_records - records.len(), &mut records);
            next_offset = next_offset.max(answer.next_offset());
            if let Err(wrong) = drained {
                // Asked for again from here: the damage may have happened on the way.
                state.restart(Position::At(next_offset), version);
                let error = ConsumerError::Damaged {
                    topic_partition: partition.clone(),
                    offset: wrong.offset,
                    cause: wrong.cause,
                };
                if records.is_empty() {
                    return Err(error);
                }
                self.errors.push_back(error);
                break;
            }
            if !answer.is_drained() {
                break;
            }
            next_offset = next_offset.max(answer.end_offset());
            state.buffer.pop_front();
        }
        if next_offset == start {
            return Ok(None);
        }
        state.position = Position::At(next_offset);
        Ok(Some(PartitionRecords {
            topic_partition: partition.clone(),
            records,
            next_offset,
        }))
    }
}
