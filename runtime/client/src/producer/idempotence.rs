//! Producer ids, epochs and sequences: what makes a repeated batch harmless.
//!
//! Invariants: sequences of a partition rise without gap inside one (producer id, epoch); a batch
//! keeps its bytes over retries; it is numbered anew only when it is proved that no log has it: no
//! attempt can have been appended, or the log lacks an earlier batch, and logs have no gaps.
//! Never: takes a new epoch while the fate of a batch of the partition is open.
//!
//! ```text
//!  new batch ─► in flight ─► acknowledged, or rejected (then the lane is broken)
//!                 │  ▲
//!                 ▼  │ the lowest sequence first, alone
//!              waiting          broken lane, nothing undecided ─► new epoch, sequences from 0
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use millstream_protocol::{BatchError, ProducerStamp, RecordBatch};

use super::delivery::BatchState;
use crate::cluster::NodeId;

/// Who a producer is to the brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerIdentity {
    /// The producer id.
    pub producer_id: i64,
    /// Its epoch.
    pub epoch: i16,
}

/// Where a stamped batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    InFlight,
    Waiting { not_before_ms: i64 },
}

/// A stamped batch whose fate is open.
#[derive(Debug)]
pub(super) struct Outstanding {
    pub(super) state: Arc<BatchState>,
    pub(super) bytes: Bytes,
    pub(super) base_sequence: i32,
    pub(super) record_count: i32,
    pub(super) created_ms: i64,
    pub(super) attempts: u32,
    /// Whether an attempt may have been appended without an answer.
    pub(super) in_doubt: bool,
    pub(super) stage: Stage,
    /// Where the last attempt went.
    pub(super) node: Option<NodeId>,
    /// How the last attempt ended.
    pub(super) last: Arc<str>,
}

/// What a partition's lane wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for an answer or for a time.
    Nothing { until_ms: Option<i64> },
    /// Send the batch at this place again.
    Retry(usize),
    /// Send a new batch.
    New,
    /// Take a new epoch and number what is left anew.
    Bump,
}

/// One partition's stamped batches, in the order of their sequences.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) identity: Option<ProducerIdentity>,
    next_sequence: i32,
    pub(super) outstanding: VecDeque<Outstanding>,
    /// A batch failed, so that a sequence is missing.
    pub(super) broken: bool,
    /// The first sequence of a failed batch that no log has: none has what follows it either.
    missing: Option<i32>,
    /// Whether its batches are those of transactions, of which no broker takes any but the first
    /// one first.
    transactional: bool,
}

impl Lane {
    /// What may be sent now.
    pub(super) fn next(&self, now_ms: i64) -> Next {
        let due = |index: usize, not_before_ms: i64| {
            if not_before_ms <= now_ms {
                Next::Retry(index)
            } else {
                Next::Nothing {
                    until_ms: Some(not_before_ms),
                }
            }
        };
        let in_flight = self
            .outstanding
            .iter()
            .any(|batch| batch.stage == Stage::InFlight);
        if self.broken && self.identity.is_some() {
            if in_flight {
                return Next::Nothing { until_ms: None };
            }
            let doubtful = self
                .outstanding
                .iter()
                .enumerate()
                .find(|(_, batch)| batch.in_doubt);
            return match doubtful {
                Some((
                    index,
                    Outstanding {
                        stage: Stage::Waiting { not_before_ms },
                        ..
                    },
                )) => due(index, *not_before_ms),
                Some(_) => Next::Nothing { until_ms: None },
                None => Next::Bump,
            };
        }
        match self.outstanding.front() {
            None => Next::New,
            Some(Outstanding {
                stage: Stage::Waiting { not_before_ms },
                ..
            }) => due(0, *not_before_ms),
            Some(first) => {
                let waits = |batch: &Outstanding| batch.stage != Stage::InFlight;
                // A Kafka takes any sequence of a producer that it does not know. Were the first
                // batch refused, as where the partition is just being made, the second one would
                // be taken before it; so it waits for the first one's answer.
                let unknown = self.identity.is_some() && first.base_sequence == 0;
                if self.outstanding.iter().any(waits) || (unknown && !self.transactional) {
                    Next::Nothing { until_ms: None }
                } else {
                    Next::New
                }
            }
        }
    }

    /// Follows the producer to its current identity where nothing of an older one is open.
    pub(super) fn adopt(&mut self, identity: Option<ProducerIdentity>) {
        if self.identity != identity && self.outstanding.is_empty() {
            self.identity = identity;
            self.next_sequence = 0;
            self.broken = false;
            self.missing = None;
        }
    }

    /// The stamp of a new batch; uses up its sequences.
    pub(super) fn stamp(&mut self, record_count: i32, transactional: bool) -> ProducerStamp {
        let Some(identity) = self.identity else {
            return ProducerStamp::NONE;
        };
        self.transactional = transactional;
        let base_sequence = self.next_sequence;
        self.next_sequence = sequence_after(base_sequence, record_count);
        ProducerStamp {
            producer_id: identity.producer_id,
            producer_epoch: identity.epoch,
            base_sequence,
            transactional,
        }
    }

    /// The batch with this stamp, the last one, was never made: its sequences are the next again.
    pub(super) fn take_back(&mut self, stamp: ProducerStamp) {
        if self.identity.is_some() {
            self.next_sequence = stamp.base_sequence;
        }
    }

    /// Takes a new identity and numbers everything that is left from 0.
    pub(super) fn renumber(&mut self, identity: ProducerIdentity) -> Result<(), BatchError> {
        self.identity = Some(identity);
        self.next_sequence = 0;
        self.broken = false;
        self.missing = None;
        for index in 0..self.outstanding.len() {
            let Some(count) = self.outstanding.get(index).map(|batch| batch.record_count) else {
                break;
            };
            let stamp = self.stamp(count, false);
            if let Some(batch) = self.outstanding.get_mut(index) {
                batch.bytes = RecordBatch::parse(batch.bytes.clone())?.restamped(stamp);
                batch.base_sequence = stamp.base_sequence;
            }
        }
        Ok(())
    }

    pub(super) fn position(&self, batch_id: u64) -> Option<usize> {
        self.outstanding
            .iter()
            .position(|batch| batch.state.id == batch_id)
    }

    /// Takes a batch out, which failed or is in the log.
    pub(super) fn take(&mut self, batch_id: u64, failed: bool) -> Option<Outstanding> {
        let position = self.position(batch_id)?;
        let batch = self.outstanding.remove(position)?;
        self.broken |= failed && self.identity.is_some();
        if failed
            && !batch.in_doubt
            && self
                .missing
                .is_none_or(|at| precedes(batch.base_sequence, at))
        {
            self.missing = Some(batch.base_sequence);
        }
        Some(batch)
    }

    /// Whether a log that does not take the batch at `position`, since its sequence is not the
    /// next one, cannot have it. Brokers remember the last few batches only, after a restart just
    /// one: the same is said of a batch that is in the log and was forgotten.
    pub(super) fn is_proved_absent(&self, position: usize) -> bool {
        let Some(batch) = self.outstanding.get(position) else {
            return false;
        };
        let before = self.outstanding.iter().take(position);
        let mut absent = before.filter(|batch| batch.stage != Stage::InFlight && !batch.in_doubt);
        let missing = self
            .missing
            .is_some_and(|at| precedes(at, batch.base_sequence));
        !batch.in_doubt || missing || absent.next().is_some()
    }

    /// Whether a batch is on its way to another broker than this one. What it may have appended
    /// there is decided before more is sent: accepted here, later batches would push it out of the
    /// memory by which brokers recognise what is sent again.
    pub(super) fn is_under_way_elsewhere(&self, leader: NodeId) -> bool {
        let mut under_way = self.outstanding.iter();
        under_way.any(|batch| batch.stage == Stage::InFlight && batch.node != Some(leader))
    }

    pub(super) fn any_in_flight(&self) -> bool {
        self.outstanding
            .iter()
            .any(|batch| batch.stage == Stage::InFlight)
    }
}

/// The sequence that follows `count` records from `base`; wraps after 2³¹−1.
pub(super) fn sequence_after(base: i32, count: i32) -> i32 {
    base.wrapping_add(count) & i32::MAX
}

/// Whether a sequence comes before another one, both of batches that are close to each other.
fn precedes(first: i32, second: i32) -> bool {
    first != second && (second.wrapping_sub(first) & i32::MAX) < 1 << 30
}

#[cfg(test)]
mod tests {
    use millstream_protocol::{Compression, RecordBatchBuilder, TopicPartition};

    use super::*;

    const FIRST: ProducerIdentity = ProducerIdentity {
        producer_id: 7,
        epoch: 0,
    };

    fn lane(batches: u64) -> Lane {
        let mut lane = Lane::default();
        lane.adopt(Some(FIRST));
        for id in 0..batches {
            let mut builder = RecordBatchBuilder::new(Compression::None);
            for _ in 0..3 {
                builder.append(0, None, Some(b"v"), &[]);
            }
            let stamp = lane.stamp(3, false);
            lane.outstanding.push_back(Outstanding {
                state: Arc::new(BatchState::new(id, TopicPartition::new("t", 0), 0)),
                bytes: builder.finish(stamp).unwrap(),
                base_sequence: stamp.base_sequence,
                record_count: 3,
                created_ms: 0,
                attempts: 1,
                in_doubt: false,
                stage: Stage::InFlight,
                node: Some(NodeId(1)),
                last: "".into(),
            });
        }
        lane
    }

    fn wait(lane: &mut Lane, index: usize, not_before_ms: i64, in_doubt: bool) {
        lane.outstanding[index].stage = Stage::Waiting { not_before_ms };
        lane.outstanding[index].in_doubt = in_doubt;
    }

    // Row 9.
    #[test]
    fn sequences_start_at_zero_rise_without_gap_and_wrap() {
        let lane = lane(3);
        let sequences: Vec<_> = lane.outstanding.iter().map(|b| b.base_sequence).collect();
        assert_eq!(sequences, [0, 3, 6]);
        assert_eq!(sequence_after(i32::MAX - 2, 5), 2);
        assert_eq!(sequence_after(i32::MAX, 1), 0);
    }

    #[test]
    fn the_first_batch_of_a_producer_goes_alone_but_in_a_transaction() {
        let mut lane = lane(1);
        let nothing = Next::Nothing { until_ms: None };
        assert_eq!(lane.next(0), nothing, "it may be refused");
        lane.stamp(1, true);
        assert_eq!(lane.next(0), Next::New);
        lane.stamp(1, false);
        lane.outstanding[0].base_sequence = 3;
        assert_eq!(lane.next(0), Next::New, "the one before was taken");
    }

    #[test]
    fn a_failed_head_goes_first_and_alone() {
        let mut lane = lane(4);
        lane.outstanding.pop_front();
        assert_eq!(lane.next(0), Next::New);
        wait(&mut lane, 1, 50, false);
        assert_eq!(
            lane.next(60),
            Next::Nothing { until_ms: None },
            "the head is still out"
        );
        wait(&mut lane, 0, 50, true);
        assert_eq!(lane.next(10), Next::Nothing { until_ms: Some(50) });
        assert_eq!(lane.next(50), Next::Retry(0));
        lane.outstanding[0].stage = Stage::InFlight;
        assert_eq!(
            lane.next(60),
            Next::Nothing { until_ms: None },
            "the second waits for it"
        );
        lane.outstanding.pop_front();
        assert_eq!(lane.next(60), Next::Retry(0));
    }

    #[test]
    fn b39_a_broken_lane_takes_a_new_epoch_only_when_nothing_is_undecided() {
        let mut lane = lane(5);
        // The third of five was rejected; the first is waiting and in doubt, the others in flight.
        lane.outstanding.remove(2);
        lane.broken = true;
        wait(&mut lane, 0, 0, true);
        assert_eq!(lane.next(0), Next::Nothing { until_ms: None });
        for index in 1..4 {
            wait(&mut lane, index, 0, index == 3);
        }
        let before = lane.outstanding[0].bytes.clone();
        assert_eq!(lane.next(0), Next::Retry(0), "asked with the bytes it had");
        assert_eq!(lane.outstanding[0].bytes, before);
        lane.outstanding.pop_front();
        assert_eq!(
            lane.next(0),
            Next::Retry(2),
            "the last one is in doubt as well"
        );
        wait(&mut lane, 2, 0, false);
        assert_eq!(lane.next(0), Next::Bump);
        lane.renumber(ProducerIdentity {
            producer_id: 7,
            epoch: 1,
        })
        .unwrap();
        assert_eq!(lane.next(0), Next::Retry(0));
        for (index, batch) in lane.outstanding.iter().enumerate() {
            let parsed = RecordBatch::parse(batch.bytes.clone()).unwrap();
            parsed.verify_crc().unwrap();
            assert_eq!(parsed.producer_epoch(), 1);
            assert_eq!(parsed.base_sequence(), i32::try_from(index).unwrap() * 3);
        }
    }

    #[test]
    fn b50_another_identity_is_adopted_only_when_nothing_of_the_old_one_is_open() {
        let mut lane = lane(1);
        let second = ProducerIdentity {
            producer_id: 7,
            epoch: 1,
        };
        lane.adopt(Some(second));
        assert_eq!(lane.identity, Some(FIRST));
        lane.outstanding.clear();
        lane.adopt(Some(second));
        assert_eq!(
            (lane.identity, lane.stamp(1, false).base_sequence),
            (Some(second), 0)
        );
    }
}
