//! What the log remembers about one transactional id.
//!
//! Invariants: `next_producer_id` is set only while prepared, and only when the epoch ran out.
//! Invariants: `partitions` is empty unless the state is `Ongoing` or prepared.
//! Never: decides anything; `machine` does.

use std::collections::BTreeSet;

use millstream_protocol::TopicPartition;

use super::state::State;

/// Stands for "no producer id".
pub(crate) const NO_PRODUCER_ID: i64 = -1;
/// Stands for "no epoch".
pub(crate) const NO_EPOCH: i16 = -1;
/// The highest epoch a client may hold; one more is kept so that it can always be fenced.
pub(crate) const LAST_CLIENT_EPOCH: i16 = i16::MAX - 1;
/// The transaction version that bumps the epoch at the end of every transaction.
pub(crate) const CURRENT_VERSION: i16 = 2;

/// A producer id together with its epoch: one life of one producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Identity {
    /// The producer id.
    pub(crate) id: i64,
    /// The epoch of that id.
    pub(crate) epoch: i16,
}

impl Identity {
    /// Nobody.
    pub(crate) const NONE: Identity = Identity {
        id: NO_PRODUCER_ID,
        epoch: NO_EPOCH,
    };
}

/// The content of the last record of a transactional id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transaction {
    /// The current producer id.
    pub(crate) producer_id: i64,
    /// The producer id before the last transition.
    pub(crate) previous_producer_id: i64,
    /// The producer id that takes over once the markers are written, when the epoch ran out.
    pub(crate) next_producer_id: i64,
    /// The current epoch; `NO_EPOCH` until the first was given out.
    pub(crate) epoch: i16,
    /// The epoch that the current owner held before; `NO_EPOCH` when there was another owner.
    pub(crate) last_epoch: i16,
    /// How long a transaction may stay open.
    pub(crate) timeout_ms: i32,
    /// Where the id stands.
    pub(crate) state: State,
    /// What the transaction writes to.
    pub(crate) partitions: BTreeSet<TopicPartition>,
    /// Wall time at which the transaction began; -1 when none has.
    pub(crate) start_ms: i64,
    /// Wall time of the last record.
    pub(crate) last_update_ms: i64,
    /// The transaction version of the client that made the last step.
    pub(crate) client_version: i16,
    /// The transaction was aborted by its timeout or by a new instance, not by its owner.
    pub(crate) ended_by_coordinator: bool,
}

impl Transaction {
    /// An id seen for the first time.
    pub(crate) fn new(producer_id: i64, now_ms: i64) -> Transaction {
        Transaction {
            producer_id,
            previous_producer_id: NO_PRODUCER_ID,
            next_producer_id: NO_PRODUCER_ID,
            epoch: NO_EPOCH,
            last_epoch: NO_EPOCH,
            timeout_ms: 0,
            state: State::Empty,
            partitions: BTreeSet::new(),
            start_ms: -1,
            last_update_ms: now_ms,
            client_version: 0,
            ended_by_coordinator: false,
        }
    }

    /// Who the producer is.
    pub(crate) fn identity(&self) -> Identity {
        Identity {
            id: self.producer_id,
            epoch: self.epoch,
        }
    }

    /// Who the same owner was before the last bump; `None` when it was another one.
    pub(crate) fn last_identity(&self) -> Option<Identity> {
        if self.last_epoch == NO_EPOCH {
            return None;
        }
        let rotated = self.epoch == 0;
        let id = if rotated {
            self.previous_producer_id
        } else {
            self.producer_id
        };
        Some(Identity {
            id,
            epoch: self.last_epoch,
        })
    }

    /// Who the producer will be when the markers are written.
    pub(crate) fn completed_identity(&self) -> Identity {
        if self.next_producer_id == NO_PRODUCER_ID {
            self.identity()
        } else {
            Identity {
                id: self.next_producer_id,
                epoch: 0,
            }
        }
    }

    /// Whether the next bump needs a new producer id.
    pub(crate) fn epoch_exhausted(&self) -> bool {
        self.epoch >= LAST_CLIENT_EPOCH
    }

    /// Whether all of these partitions are in the transaction.
    pub(crate) fn holds(&self, partitions: &[TopicPartition]) -> bool {
        partitions
            .iter()
            .all(|partition| self.partitions.contains(partition))
    }

    /// A copy in another state, written now.
    pub(crate) fn touched(&self, state: State, now_ms: i64) -> Transaction {
        Transaction {
            previous_producer_id: self.producer_id,
            state,
            last_update_ms: now_ms.max(self.last_update_ms),
            ..self.clone()
        }
    }

    /// A copy for an initialised producer: nothing open, its own timeout.
    pub(crate) fn begun_again(&self, timeout_ms: i32, now_ms: i64) -> Transaction {
        Transaction {
            timeout_ms,
            partitions: BTreeSet::new(),
            start_ms: -1,
            ended_by_coordinator: false,
            ..self.touched(State::Empty, now_ms)
        }
    }
}
