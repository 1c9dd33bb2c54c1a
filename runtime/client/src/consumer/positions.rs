//! Where the consumer stands in each of its partitions, and what is buffered for it. Pure state:
//! the fetcher asks what to fetch and puts answers in, `poll` takes records out.
//!
//! ```text
//!                committed offset found          leader or its epoch changed
//! Unset ------------------------------------> At ---------------------------> Validating
//!   |  none: auto.offset.reset                ^ | <----- still in the log ------+   |
//!   +--------------------> Resetting ---------+ | <----- diverged, with policy -+   |
//!   |  policy none           ^    offset found  | out of range                      |
//!   +--> Stuck <-------------+------------------+         lost, or no policy        |
//!                            +------------------------------------------------------+
//!   seek: from anywhere to At, or to Validating where the seek names an epoch
//! ```
//!
//! Invariants: an answer counts only if it was asked for under the present version of its
//! partition; seek, reset, validation and reassignment raise the version and drop the buffer. A
//! position is never ahead of what was handed out or stepped over. Nothing is fetched from a
//! position that is being validated. Buffered bytes of a partition pass
//! `max.partition.fetch.bytes` by one answer at most.
//! Never: clocks, I/O, async.

mod buffers;
mod leaders;
mod replicas;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use millstream_protocol::{TopicPartition, Uuid};

pub(crate) use self::buffers::BufferLimits;
pub(crate) use self::leaders::{Doubt, Leader};
use super::error::ConsumerError;
use super::fetched::FetchedPartition;
use crate::cluster::NodeId;

/// Which point of a log to go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Landmark {
    Earliest,
    Latest,
    /// The first record that is not older than this, else the end, which is asked for first: what
    /// is written between both questions is young.
    Ago(Duration),
    /// The same, with the end that was answered.
    AgoElse(Duration, i64),
}

/// An offset, and the epoch of the leader that wrote the record before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) offset: i64,
    pub(crate) epoch: Option<i32>,
}

impl From<i64> for At {
    fn from(offset: i64) -> Self {
        At {
            offset,
            epoch: None,
        }
    }
}

/// Where a partition stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// Not known yet: the committed offset, or what the reset policy says.
    Unset,
    /// To be asked of the leader.
    Resetting(Landmark),
    /// The next record to hand out.
    At(At),
    /// As `At`, but the leader is to say first that its log still holds what was read.
    Validating(At),
    /// Nothing will happen before a seek.
    Stuck,
}

impl Position {
    fn at(self) -> Option<At> {
        match self {
            Position::At(at) | Position::Validating(at) => Some(at),
            _ => None,
        }
    }
}

/// The ends of a partition as the last answer told them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogOffsets {
    pub(crate) log_start: i64,
    pub(crate) last_stable: i64,
    pub(crate) high_watermark: i64,
}

/// What is on its way for a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    Nothing,
    Question,
    /// By its number.
    Fetch(u64),
}

#[derive(Debug)]
struct PartitionState {
    position: Position,
    version: u64,
    paused: bool,
    asking: Asking,
    /// Nothing is asked before this time.
    not_before_ms: i64,
    buffer: VecDeque<FetchedPartition>,
    offsets: Option<LogOffsets>,
    /// As the metadata showed it when `learn` looked last.
    leader: Option<Leader>,
    /// Read from instead of the leader.
    replica: Option<replicas::Replica>,
    /// Why nothing happens before a seek.
    stuck: Option<ConsumerError>,
    /// Of the topic that the position is about; zero while it is not known.
    topic_id: Uuid,
    behind: leaders::Behind,
}

impl PartitionState {
    fn new(version: u64) -> Self {
        PartitionState {
            position: Position::Unset,
            version,
            paused: false,
            asking: Asking::Nothing,
            not_before_ms: i64::MIN,
            buffer: VecDeque::new(),
            offsets: None,
            leader: None,
            replica: None,
            stuck: None,
            topic_id: Uuid::ZERO,
            behind: leaders::Behind::default(),
        }
    }

    /// Drops what was fetched and makes answers under way count no more.
    fn restart(&mut self, position: Position, version: u64) {
        self.position = position;
        self.stuck = None;
        self.version = version;
        self.asking = Asking::Nothing;
        self.not_before_ms = i64::MIN;
        self.buffer.clear();
    }

    fn is_free(&self, now_ms: i64) -> bool {
        self.asking == Asking::Nothing && self.not_before_ms <= now_ms
    }
}

/// A question for one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) topic_partition: TopicPartition,
    /// Ask under this version, answer under it.
    pub(crate) version: u64,
    /// The position; -1 where there is none.
    pub(crate) offset: i64,
}

/// Errors that are kept for `poll`; those beyond repeat themselves anyhow.
const ERRORS_MAX: usize = 16;

/// All partitions of a consumer.
#[derive(Debug)]
pub(crate) struct Positions {
    partitions: BTreeMap<TopicPartition, PartitionState>,
    next_version: u64,
    limits: BufferLimits,
    /// Set where a partition may have a question, or may wait for a time.
    unsettled: bool,
    /// Set where a partition's leader is not known.
    leaderless: bool,
    /// The leaders of all partitions, and the replicas that they named, once each.
    nodes: Vec<NodeId>,
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
            unsettled: false,
            leaderless: false,
            nodes: Vec::new(),
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
                self.unsettled = true;
                self.leaderless = true;
            }
        }
    }

    pub(crate) fn assigned(&self) -> impl Iterator<Item = &TopicPartition> {
        self.partitions.keys()
    }

    /// Known positions of all partitions.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&TopicPartition, At)> {
        self.partitions
            .iter()
            .filter_map(|(partition, state)| Some((partition, state.position.at()?)))
    }

    pub(crate) fn position(&self, partition: &TopicPartition) -> Option<i64> {
        let state = self.partitions.get(partition)?;
        state.position.at().map(|at| at.offset)
    }

    pub(crate) fn offsets(&self, partition: &TopicPartition) -> Option<LogOffsets> {
        self.partitions.get(partition)?.offsets
    }

    /// Moves to `position`; `false` where the partition is not assigned.
    pub(crate) fn restart(&mut self, partition: &TopicPartition, position: Position) -> bool {
        let version = self.version();
        let Some(state) = self.partitions.get_mut(partition) else {
            return false;
        };
        state.restart(position, version);
        self.leaderless |= state.doubt();
        self.unsettled = true;
        true
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

    fn begin<T>(
        &mut self,
        now_ms: i64,
        pick: impl Fn(&PartitionState) -> Option<T>,
    ) -> Vec<(Target, T)> {
        if !self.unsettled {
            return Vec::new();
        }
        self.partitions
            .iter_mut()
            .filter(|(_, state)| state.is_free(now_ms))
            .filter_map(|(partition, state)| {
                let picked = pick(state)?;
                state.asking = Asking::Question;
                let target = Target {
                    topic_partition: partition.clone(),
                    version: state.version,
                    offset: state.position.at().map_or(-1, |at| at.offset),
                };
                Some((target, picked))
            })
            .collect()
    }

    /// Partitions whose starting point is to be looked up; marks them as being asked for.
    pub(crate) fn begin_initial(&mut self, now_ms: i64) -> Vec<Target> {
        self.begin(now_ms, |state| {
            matches!(state.position, Position::Unset).then_some(())
        })
        .into_iter()
        .map(|(target, ())| target)
        .collect()
    }

    /// Partitions to ask their leader for a point of the log; marks them as being asked for.
    pub(crate) fn begin_reset(&mut self, now_ms: i64) -> Vec<(Target, Landmark)> {
        self.begin(now_ms, |state| match state.position {
            Position::Resetting(to) => Some(to),
            _ => None,
        })
    }

    /// The earliest time at which a partition that waits may be asked for again.
    pub(crate) fn next_retry_ms(&mut self, now_ms: i64) -> Option<i64> {
        if !self.unsettled {
            return None;
        }
        let mut next: Option<i64> = None;
        let mut questions = false;
        for state in self.partitions.values() {
            questions |= !matches!(state.position, Position::At(_) | Position::Stuck);
            if state.not_before_ms > now_ms {
                questions = true;
                if state.asking == Asking::Nothing {
                    let at = state.not_before_ms;
                    next = Some(next.map_or(at, |next| next.min(at)));
                }
            }
        }
        self.unsettled = questions;
        next
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
            state.asking = Asking::Nothing;
            state.not_before_ms = again_ms;
            self.unsettled = true;
        }
    }

    /// A starting point, or a point of the log, is known now.
    pub(crate) fn found(&mut self, target: &Target, position: Position) {
        if let Some(state) = self.current(target) {
            state.position = position;
            state.asking = Asking::Nothing;
            state.not_before_ms = i64::MIN;
            let leaderless = state.doubt();
            self.leaderless |= leaderless;
            self.unsettled = true;
        }
    }

    /// What a partition that is read waits for a seek with, if one does.
    pub(crate) fn stuck(&self) -> Option<ConsumerError> {
        let mut going = self.partitions.values().filter(|state| !state.paused);
        going.find_map(|state| state.stuck.clone())
    }

    /// Gives up until a seek; `poll` reports the error, and again where it has nothing else.
    pub(crate) fn fail(&mut self, target: &Target, error: ConsumerError) {
        if let Some(state) = self.current(target) {
            state.position = Position::Stuck;
            state.stuck = Some(error.clone());
            state.asking = Asking::Nothing;
            self.errors.push_back(error);
        }
    }

    /// Reports an error once while the question stays open.
    pub(crate) fn report(&mut self, target: &Target, error: ConsumerError) {
        if self.is_current(target) && self.errors.len() < ERRORS_MAX {
            self.errors.push_back(error);
        }
    }
}

#[cfg(test)]
mod tests;
