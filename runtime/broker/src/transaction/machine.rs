//! The pure state machine of one transactional id: event in, decision out.
//!
//! The coordinator feeds it one event at a time, appends the record that a decision asks for, and
//! only then applies it; so a failed append changes nothing.
//!
//! Invariants: a client never holds epoch 32767; a transaction that ends at 32766 moves on to a
//! new producer id with epoch 0.
//! Invariants: an identity that has been answered once is never answered to another instance.
//! Never: a clock, a lock, input or output; the time and fresh producer ids are arguments.

use millstream_protocol::{ErrorCode, TopicPartition};

use super::model::{CURRENT_VERSION, Identity, NO_EPOCH, NO_PRODUCER_ID, Transaction};
use super::state::State;

/// What happens to a transactional id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    /// An instance starts, or goes on after an error if it says who it was.
    InitProducerId {
        timeout_ms: i32,
        expected: Option<Identity>,
    },
    /// Partitions join the transaction, which opens it if none is open.
    AddPartitions {
        producer: Identity,
        partitions: &'a [TopicPartition],
        client_version: i16,
    },
    /// A client decides the outcome. From version 2 on every transaction bumps the epoch.
    EndTransaction {
        producer: Identity,
        commit: bool,
        client_version: i16,
    },
    /// The clock of deadlines, which shows `now_ms`, may have passed the transaction's.
    TimedOut { now_ms: i64 },
    /// Every marker of the decided transaction is in its partition.
    MarkersWritten,
    /// The id may have been idle for longer than this.
    Expire { idle_ms: i64 },
}

/// What the client hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// `NONE` or why not.
    pub(crate) error: ErrorCode,
    /// Who the producer is from now on; `Identity::NONE` where the request learns nothing.
    pub(crate) producer: Identity,
}

impl Answer {
    /// An answer that carries an error, or plain success, and no identity.
    pub(crate) fn code(error: ErrorCode) -> Answer {
        Answer {
            error,
            producer: Identity::NONE,
        }
    }

    fn success(producer: Identity) -> Answer {
        Answer {
            error: ErrorCode::NONE,
            producer,
        }
    }
}

/// What the machine decided on an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing changes.
    Answer(Answer),
    /// Log this, then `apply` it, then answer (after markers, where the new state is prepared).
    Transition {
        next: Box<Transaction>,
        answer: Answer,
    },
    /// The decision takes a producer id that was never used: ask again with one.
    NeedsProducerId,
    /// Log a tombstone, then forget the id.
    Forget,
}

/// One transactional id: what its last record says, and when its open transaction began on the
/// clock of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    transaction: Transaction,
    open_since_ms: i64,
}

impl Machine {
    /// An id seen for the first time: no epoch has been given out.
    pub(crate) fn new(producer_id: i64, now_ms: i64) -> Machine {
        Machine {
            transaction: Transaction::new(producer_id, now_ms),
            open_since_ms: now_ms,
        }
    }

    /// The machine that a record describes; an open transaction gets its whole timeout again.
    pub(crate) fn restore(transaction: Transaction, now_ms: i64) -> Machine {
        Machine {
            transaction,
            open_since_ms: now_ms,
        }
    }

    /// What the last record says.
    pub(crate) fn transaction(&self) -> &Transaction {
        &self.transaction
    }

    /// When the open transaction times out; `None` while none is open.
    pub(crate) fn deadline_ms(&self) -> Option<i64> {
        (self.transaction.state == State::Ongoing).then(|| {
            self.open_since_ms
                .saturating_add(i64::from(self.transaction.timeout_ms))
        })
    }

    /// Decides on an event; `now_ms` is wall time, which goes into the record. `fresh` is an unused
    /// producer id, consumed only by a `Transition` and needed only after `NeedsProducerId`.
    pub(crate) fn decide(&self, event: Event<'_>, now_ms: i64, fresh: Option<i64>) -> Decision {
        match event {
            Event::InitProducerId {
                timeout_ms,
                expected,
            } => self.init(timeout_ms, expected, now_ms, fresh),
            Event::AddPartitions {
                producer,
                partitions,
                client_version,
            } => self.add(producer, partitions, client_version, now_ms),
            Event::EndTransaction {
                producer,
                commit,
                client_version,
            } => {
                if client_version >= CURRENT_VERSION {
                    self.end(producer, commit, now_ms, fresh)
                } else {
                    self.end_without_bump(producer, commit, client_version, now_ms)
                }
            }
            Event::TimedOut { now_ms: passed_ms } => match self.deadline_ms() {
                Some(deadline) if deadline < passed_ms => self.fence(true, now_ms, fresh),
                _ => reply(ErrorCode::NONE),
            },
            Event::MarkersWritten => self.complete(now_ms),
            Event::Expire { idle_ms } => {
                let idle_since = self.transaction.last_update_ms;
                if self.transaction.state.is_idle() && now_ms.saturating_sub(idle_since) >= idle_ms
                {
                    Decision::Forget
                } else {
                    reply(ErrorCode::NONE)
                }
            }
        }
    }

    /// Takes over a transition whose record has been appended; `now_ms` is of the clock of
    /// deadlines.
    pub(crate) fn apply(&mut self, next: Transaction, now_ms: i64) {
        let from = self.transaction.state;
        assert!(next.state.can_follow(from), "{from:?} -> {:?}", next.state);
        assert!(next.epoch >= 0, "an epoch of {} was given out", next.epoch);
        assert!(
            next.producer_id != self.transaction.producer_id
                || next.epoch >= self.transaction.epoch,
            "the epoch of producer id {} went back",
            next.producer_id
        );
        if next.state == State::Ongoing && from != State::Ongoing {
            self.open_since_ms = now_ms;
        }
        self.transaction = next;
    }

    /// Whether data of this producer may go to these partitions, without changing anything.
    pub(crate) fn verify(&self, producer: Identity, partitions: &[TopicPartition]) -> ErrorCode {
        let current = &self.transaction;
        if let Some(error) = self.rejects(producer) {
            error
        } else if current.state.is_prepared() {
            ErrorCode::CONCURRENT_TRANSACTIONS
        } else if current.state == State::Ongoing && current.holds(partitions) {
            ErrorCode::NONE
        } else {
            ErrorCode::TRANSACTION_ABORTABLE
        }
    }

    fn rejects(&self, producer: Identity) -> Option<ErrorCode> {
        if producer.id != self.transaction.producer_id {
            Some(ErrorCode::INVALID_PRODUCER_ID_MAPPING)
        } else if producer.epoch != self.transaction.epoch {
            Some(ErrorCode::PRODUCER_FENCED)
        } else {
            None
        }
    }

    fn init(
        &self,
        timeout_ms: i32,
        expected: Option<Identity>,
        now_ms: i64,
        fresh: Option<i64>,
    ) -> Decision {
        let current = &self.transaction;
        let known = current.epoch != NO_EPOCH;
        // An id that expired is given out anew to whoever held it: its old state is gone.
        let expected = expected.filter(|_| known);
        let last = current.last_identity();
        if let Some(expected) = expected
            && expected.id != current.producer_id
            && Some(expected) != last
        {
            return reply(ErrorCode::PRODUCER_FENCED);
        }
        match current.state {
            State::PrepareCommit | State::PrepareAbort | State::Dead | State::PrepareEpochFence => {
                reply(ErrorCode::CONCURRENT_TRANSACTIONS)
            }
            State::Ongoing => match expected {
                Some(expected) if expected != current.identity() => {
                    reply(ErrorCode::PRODUCER_FENCED)
                }
                _ => self.fence(expected.is_some(), now_ms, fresh),
            },
            State::Empty | State::CompleteCommit | State::CompleteAbort => {
                let mut next = current.begun_again(timeout_ms, now_ms);
                if expected.is_some() && expected == last {
                    // A retry whose first answer was lost: the same answer again.
                    next.last_epoch = current.last_epoch;
                    next.previous_producer_id = current.previous_producer_id;
                } else if expected.is_some_and(|expected| expected != current.identity()) {
                    return reply(ErrorCode::PRODUCER_FENCED);
                } else {
                    next.last_epoch = if expected.is_some() {
                        current.epoch
                    } else {
                        NO_EPOCH
                    };
                    if current.epoch_exhausted() {
                        let Some(fresh) = fresh else {
                            return Decision::NeedsProducerId;
                        };
                        next.producer_id = fresh;
                        next.epoch = 0;
                    } else {
                        next.epoch = current.epoch + 1;
                    }
                }
                transition(next, |next| Answer::success(next.identity()))
            }
        }
    }

    fn add(
        &self,
        producer: Identity,
        partitions: &[TopicPartition],
        client_version: i16,
        now_ms: i64,
    ) -> Decision {
        let current = &self.transaction;
        if let Some(error) = self.rejects(producer) {
            return reply(error);
        }
        match current.state {
            State::PrepareCommit | State::PrepareAbort | State::Dead | State::PrepareEpochFence => {
                reply(ErrorCode::CONCURRENT_TRANSACTIONS)
            }
            State::Ongoing if current.holds(partitions) => reply(ErrorCode::NONE),
            State::Ongoing | State::Empty | State::CompleteCommit | State::CompleteAbort => {
                let mut next = current.touched(State::Ongoing, now_ms);
                if current.state != State::Ongoing {
                    next.start_ms = now_ms;
                }
                next.partitions.extend(partitions.iter().cloned());
                next.client_version = client_version;
                next.ended_by_coordinator = false;
                transition(next, |_| Answer::code(ErrorCode::NONE))
            }
        }
    }

    fn end(&self, producer: Identity, commit: bool, now_ms: i64, fresh: Option<i64>) -> Decision {
        let current = &self.transaction;
        let retried =
            current.client_version >= CURRENT_VERSION && current.last_identity() == Some(producer);
        let same_outcome = match current.state {
            State::PrepareCommit | State::CompleteCommit => commit,
            _ => !commit,
        };
        match current.state {
            State::PrepareCommit | State::PrepareAbort if retried && same_outcome => {
                reply(ErrorCode::CONCURRENT_TRANSACTIONS)
            }
            State::CompleteCommit | State::CompleteAbort if retried && same_outcome => {
                Decision::Answer(Answer::success(current.identity()))
            }
            State::PrepareCommit
            | State::PrepareAbort
            | State::CompleteCommit
            | State::CompleteAbort
                if retried =>
            {
                reply(self.opposite_outcome(commit))
            }
            State::PrepareCommit | State::PrepareAbort => {
                reply(self.rejects(producer).unwrap_or(ErrorCode::PRODUCER_FENCED))
            }
            State::Dead | State::PrepareEpochFence => reply(ErrorCode::CONCURRENT_TRANSACTIONS),
            State::Empty | State::Ongoing | State::CompleteCommit | State::CompleteAbort => {
                if let Some(error) = self.rejects(producer) {
                    reply(error)
                } else if commit && current.state != State::Ongoing {
                    reply(ErrorCode::INVALID_TXN_STATE)
                } else {
                    self.prepare(commit, now_ms, fresh)
                }
            }
        }
    }

    /// A commit that lost against a timeout or a fence is not the client's mistake.
    fn opposite_outcome(&self, commit: bool) -> ErrorCode {
        if commit && self.transaction.ended_by_coordinator {
            ErrorCode::PRODUCER_FENCED
        } else {
            ErrorCode::INVALID_TXN_STATE
        }
    }

    /// Clients before transaction version 2: the epoch stays, so a retry and the end of the next
    /// transaction look the same.
    fn end_without_bump(
        &self,
        producer: Identity,
        commit: bool,
        client_version: i16,
        now_ms: i64,
    ) -> Decision {
        let current = &self.transaction;
        if let Some(error) = self.rejects(producer) {
            return reply(error);
        }
        match (current.state, commit) {
            (State::Ongoing, _) => {
                let state = if commit {
                    State::PrepareCommit
                } else {
                    State::PrepareAbort
                };
                let mut next = current.touched(state, now_ms);
                next.client_version = client_version;
                transition(next, |_| Answer::code(ErrorCode::NONE))
            }
            (State::CompleteCommit, true) | (State::CompleteAbort, false) => reply(ErrorCode::NONE),
            (State::PrepareCommit, true)
            | (State::PrepareAbort, false)
            | (State::Dead | State::PrepareEpochFence, _) => {
                reply(ErrorCode::CONCURRENT_TRANSACTIONS)
            }
            (
                State::Empty
                | State::CompleteCommit
                | State::CompleteAbort
                | State::PrepareCommit
                | State::PrepareAbort,
                _,
            ) => reply(ErrorCode::INVALID_TXN_STATE),
        }
    }

    /// Decides the outcome and bumps the epoch. Markers carry the bumped epoch, so whatever the
    /// old one still sends is behind them.
    fn prepare(&self, commit: bool, now_ms: i64, fresh: Option<i64>) -> Decision {
        let current = &self.transaction;
        let state = if commit {
            State::PrepareCommit
        } else {
            State::PrepareAbort
        };
        let mut next = current.touched(state, now_ms);
        if current.epoch_exhausted() {
            let Some(fresh) = fresh else {
                return Decision::NeedsProducerId;
            };
            next.next_producer_id = fresh;
        }
        if current.state != State::Ongoing {
            next.start_ms = now_ms;
        }
        next.epoch = current.epoch + 1;
        next.last_epoch = current.epoch;
        next.client_version = CURRENT_VERSION;
        next.ended_by_coordinator = false;
        transition(next, |next| Answer::success(next.completed_identity()))
    }

    /// Ends an open transaction against its owner: `Ongoing` to `PrepareEpochFence` to
    /// `PrepareAbort` in one record. The owner may go on with the bumped epoch only where
    /// `keep_owner` says so, that is after a timeout or its own InitProducerId.
    fn fence(&self, keep_owner: bool, now_ms: i64, fresh: Option<i64>) -> Decision {
        debug_assert!(State::PrepareEpochFence.can_follow(self.transaction.state));
        match self.prepare(false, now_ms, fresh) {
            Decision::Transition { mut next, .. } => {
                next.ended_by_coordinator = true;
                if !keep_owner {
                    next.last_epoch = NO_EPOCH;
                }
                let answer = Answer::code(ErrorCode::CONCURRENT_TRANSACTIONS);
                Decision::Transition { next, answer }
            }
            other => other,
        }
    }

    fn complete(&self, now_ms: i64) -> Decision {
        let current = &self.transaction;
        let state = match current.state {
            State::PrepareCommit => State::CompleteCommit,
            State::PrepareAbort => State::CompleteAbort,
            _ => return reply(ErrorCode::NONE),
        };
        let mut next = current.touched(state, now_ms);
        let identity = current.completed_identity();
        next.producer_id = identity.id;
        next.epoch = identity.epoch;
        next.next_producer_id = NO_PRODUCER_ID;
        next.partitions.clear();
        transition(next, |_| Answer::code(ErrorCode::NONE))
    }
}

fn reply(error: ErrorCode) -> Decision {
    Decision::Answer(Answer::code(error))
}

fn transition(next: Transaction, answer: impl FnOnce(&Transaction) -> Answer) -> Decision {
    let answer = answer(&next);
    Decision::Transition {
        next: Box::new(next),
        answer,
    }
}
