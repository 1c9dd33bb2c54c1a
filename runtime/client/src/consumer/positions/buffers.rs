//! What may be fetched, what was fetched, and what `poll` takes of it.
//!
//! Invariants: partitions take turns in coming first; what paused partitions hold is bounded as
//! well, and what is dropped of it is fetched again after they go on.
//! Never: allocates for a partition that has nothing new.

use std::ops::Bound;

use millstream_protocol::TopicPartition;

use super::{Asking, At, LogOffsets, PartitionState, Position, Positions, Target};
use crate::cluster::NodeId;
use crate::consumer::error::ConsumerError;
use crate::consumer::fetch_session::Asked;
use crate::consumer::fetched::FetchedPartition;
use crate::consumer::records::{ConsumerRecords, PartitionRecords};

/// How much may be buffered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferLimits {
    pub(crate) partition_bytes: usize,
    /// Of all partitions that are not paused.
    pub(crate) total_bytes: usize,
    /// Of all partitions that are paused.
    pub(crate) paused_bytes: usize,
}

impl PartitionState {
    fn buffered_bytes(&self) -> usize {
        self.buffer.iter().map(FetchedPartition::size_bytes).sum()
    }

    /// The offset after what is buffered.
    fn fetch_offset(&self) -> Option<i64> {
        match self.position {
            Position::At(at) => Some(
                self.buffer
                    .back()
                    .map_or(at.offset, FetchedPartition::end_offset),
            ),
            _ => None,
        }
    }

    /// What to ask `node` for, if anything.
    fn wants(&self, now_ms: i64, node: NodeId, limit: usize) -> Option<Asked> {
        let leader = self.leader?;
        if self.source(now_ms) != Some(node) || self.paused || !self.is_free(now_ms) {
            return None;
        }
        let offset = self.fetch_offset()?;
        let room = self.buffer.is_empty() || self.buffered_bytes() < limit;
        room.then_some(Asked {
            topic_id: leader.topic_id,
            offset,
            leader_epoch: leader.epoch,
        })
    }
}

impl Positions {
    /// Whether more may be buffered. Drops what paused partitions hold beyond their bound.
    pub(crate) fn has_room(&mut self) -> bool {
        // Nobody takes what waits in paused partitions now: it must not stop the others.
        let (mut going, mut paused) = (0, 0);
        for state in self.partitions.values() {
            let sum = if state.paused {
                &mut paused
            } else {
                &mut going
            };
            *sum += state.buffered_bytes();
        }
        if paused > self.limits.paused_bytes {
            self.shed(paused);
        }
        going < self.limits.total_bytes
    }

    /// Drops the youngest answers of paused partitions until the rest is within its bound.
    fn shed(&mut self, mut held: usize) {
        for (partition, state) in self.partitions.iter_mut().rev() {
            if !state.paused {
                continue;
            }
            let before = held;
            while held > self.limits.paused_bytes
                && let Some(answer) = state.buffer.pop_back()
            {
                held -= answer.size_bytes();
            }
            if held < before {
                tracing::debug!(%partition, bytes = before - held, "paused for long: dropped");
                // What is on its way would leave a gap.
                self.next_version += 1;
                state.version = self.next_version;
                state.asking = Asking::Nothing;
            }
        }
    }

    /// The nodes that partitions may be fetched from.
    pub(crate) fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// Whether anything is to be fetched from `node` now.
    pub(crate) fn wants(&self, now_ms: i64, node: NodeId) -> bool {
        let limit = self.limits.partition_bytes;
        self.partitions
            .values()
            .any(|state| state.wants(now_ms, node, limit).is_some())
    }

    /// Partitions to fetch from `node` now, in order; marks them as being in fetch number `fetch`.
    pub(crate) fn begin_fetch(
        &mut self,
        now_ms: i64,
        node: NodeId,
        fetch: u64,
    ) -> impl Iterator<Item = (&TopicPartition, Asked)> {
        let limit = self.limits.partition_bytes;
        self.partitions
            .iter_mut()
            .filter_map(move |(partition, state)| {
                let asked = state.wants(now_ms, node, limit)?;
                state.asking = Asking::Fetch(fetch);
                Some((partition, asked))
            })
    }

    /// The partition as a target, where it is still in fetch number `fetch`.
    pub(crate) fn in_fetch(
        &self,
        partition: &TopicPartition,
        fetch: u64,
        offset: i64,
    ) -> Option<Target> {
        let state = self.partitions.get(partition)?;
        (state.asking == Asking::Fetch(fetch)).then(|| Target {
            topic_partition: partition.clone(),
            version: state.version,
            offset,
        })
    }

    /// A fetch has ended: whatever it said nothing about may be fetched again at `again_ms`.
    pub(crate) fn end_fetch(&mut self, fetch: u64, again_ms: i64) {
        for state in self.partitions.values_mut() {
            if state.asking == Asking::Fetch(fetch) {
                state.asking = Asking::Nothing;
                state.not_before_ms = again_ms;
            }
        }
        self.unsettled |= again_ms > i64::MIN;
    }

    /// The partitions of a fetch that are still in it.
    pub(crate) fn all_in_fetch(&self, fetch: u64) -> Vec<Target> {
        let all = self.partitions.iter();
        all.filter(|(_, state)| state.asking == Asking::Fetch(fetch))
            .map(|(partition, state)| Target {
                topic_partition: partition.clone(),
                version: state.version,
                offset: state.fetch_offset().unwrap_or(-1),
            })
            .collect()
    }

    /// A fetch was answered. The answer is dropped where it is stale.
    pub(crate) fn fetched(
        &mut self,
        target: &Target,
        answer: Option<FetchedPartition>,
        offsets: LogOffsets,
    ) {
        if let Some(state) = self.current(target) {
            state.asking = Asking::Nothing;
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
        let mut next = start;
        while records.len() < max_records
            && let Some(answer) = state.buffer.front_mut()
        {
            let drained = answer.drain(max_records - records.len(), &mut records);
            next.advance(answer.next_offset(), answer.last_epoch());
            if let Err(wrong) = drained {
                // Asked for again from here: the damage may have happened on the way.
                state.restart(Position::At(next), version);
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
            next.advance(answer.end_offset(), answer.last_epoch());
            state.buffer.pop_front();
        }
        if next.offset == start.offset {
            return Ok(None);
        }
        state.position = Position::At(next);
        Ok(Some(PartitionRecords {
            topic_partition: partition.clone(),
            records,
            next_offset: next.offset,
            leader_epoch: next.epoch,
        }))
    }
}

impl At {
    /// Moves on to `offset`, if that is further; the record before it was written in `epoch`.
    fn advance(&mut self, offset: i64, epoch: Option<i32>) {
        if offset > self.offset {
            *self = At { offset, epoch };
        }
    }
}
