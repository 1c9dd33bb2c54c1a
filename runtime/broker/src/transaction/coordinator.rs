//! Every transactional id of this node, and what happens to them.
//!
//! An event runs under its id's lock from decision to last record: Prepare, markers and Complete
//! are appended back to back, and one sync makes them durable. Only then is the client answered.
//!
//! Invariants: a lock of an id is held over appends, never over an await.
//! Invariants: locks are taken in the order id, group, partition.
//! Never: decides; `machine` does.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use millstream_log::failpoint;
use millstream_protocol::{ErrorCode, TopicPartition};
use rustc_hash::FxHashMap;

use super::log::TransactionLog;
use super::machine::{Answer, Decision, Event, Machine};
use super::markers;
use super::model::{Identity, Transaction};
use super::producer_ids::ProducerIds;
use super::state::State;
use crate::node::Node;
use crate::{BrokerConfig, Clock};

/// Every transaction of this node.
#[derive(Debug)]
pub(crate) struct Coordinator {
    pub(super) clock: Clock,
    pub(super) verification_enabled: bool,
    pub(super) log: TransactionLog,
    pub(super) producer_ids: ProducerIds,
    timeout_ms_max: i32,
    slots: RwLock<FxHashMap<Arc<str>, Arc<Slot>>>,
    /// When open transactions time out, soonest first.
    deadlines: Mutex<BTreeSet<(i64, Arc<str>)>>,
    /// Decided transactions whose markers could not all be written.
    unfinished: Mutex<BTreeSet<Arc<str>>>,
}

/// One transactional id.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) transactional_id: Arc<str>,
    held: Mutex<Held>,
}

/// What is known of a transactional id, behind its lock.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// `None` before the first record, and when the id has been forgotten.
    pub(super) machine: Option<Machine>,
    /// This slot has left the map: look again.
    pub(super) left: bool,
    /// The journal position after the last record.
    pub(super) position: u64,
    deadline_ms: Option<i64>,
}

/// What a client hears, and the journal position that must be durable before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) answer: Answer,
    pub(super) position: u64,
}

impl Slot {
    pub(super) fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Coordinator {
    /// A coordinator that knows nothing yet.
    pub(crate) fn new(config: &BrokerConfig) -> Self {
        Self {
            clock: config.clock,
            verification_enabled: config.transaction_partition_verification_enable,
            log: TransactionLog::default(),
            producer_ids: ProducerIds::new(config.durability),
            timeout_ms_max: config.transaction_max_timeout_ms,
            slots: RwLock::default(),
            deadlines: Mutex::default(),
            unfinished: Mutex::default(),
        }
    }

    /// A producer id and epoch for a producer that starts, or goes on after an error.
    /// `release_turn` is called when the order of events is settled.
    pub(crate) async fn init_producer_id(
        &self,
        node: &Node,
        transactional_id: Option<&str>,
        timeout_ms: i32,
        expected: Option<Identity>,
        release_turn: impl FnOnce(),
    ) -> Answer {
        let pending = match transactional_id {
            None => self.idempotent_producer(),
            Some("") => Pending::code(ErrorCode::INVALID_REQUEST),
            Some(_) if timeout_ms <= 0 || timeout_ms > self.timeout_ms_max => {
                Pending::code(ErrorCode::INVALID_TRANSACTION_TIMEOUT)
            }
            Some(id) => self.handle(
                node,
                id,
                Event::InitProducerId {
                    timeout_ms,
                    expected,
                },
            ),
        };
        release_turn();
        settle(node, pending).await
    }

    /// Adds partitions to the producer's transaction, on request of a client before version 2.
    pub(crate) async fn add_partitions(
        &self,
        node: &Node,
        transactional_id: &str,
        producer: Identity,
        partitions: &[TopicPartition],
        client_version: i16,
        release_turn: impl FnOnce(),
    ) -> ErrorCode {
        let event = Event::AddPartitions {
            producer,
            partitions,
            client_version,
        };
        let pending = self.handle(node, transactional_id, event);
        release_turn();
        settle(node, pending).await.error
    }

    /// Commits or aborts. On success the markers are written and durable.
    pub(crate) async fn end_transaction(
        &self,
        node: &Node,
        transactional_id: &str,
        producer: Identity,
        commit: bool,
        client_version: i16,
        release_turn: impl FnOnce(),
    ) -> Answer {
        let event = Event::EndTransaction {
            producer,
            commit,
            client_version,
        };
        let pending = self.handle(node, transactional_id, event);
        release_turn();
        settle(node, pending).await
    }

    /// Where an id stands.
    pub(crate) fn describe(&self, transactional_id: &str) -> Option<Transaction> {
        let slot = self.slot(transactional_id)?;
        let held = slot.lock();
        held.machine
            .as_ref()
            .map(|machine| machine.transaction().clone())
    }

    /// All ids, in their order, as `select` sees them.
    pub(crate) fn list<T>(
        &self,
        mut select: impl FnMut(&str, &Transaction) -> Option<T>,
    ) -> Vec<T> {
        let selected = self.all_slots().into_iter().filter_map(|slot| {
            let held = slot.lock();
            let machine = held.machine.as_ref()?;
            select(&slot.transactional_id, machine.transaction())
        });
        selected.collect()
    }

    fn idempotent_producer(&self) -> Pending {
        match self.producer_ids.next(&self.log, self.clock.wall_ms()) {
            Ok((id, position)) => {
                let producer = Identity { id, epoch: 0 };
                Pending {
                    answer: Answer {
                        error: ErrorCode::NONE,
                        producer,
                    },
                    position,
                }
            }
            Err(error) => Pending::code(error),
        }
    }

    /// Runs one event of an id to its end, markers included.
    pub(super) fn handle(&self, node: &Node, transactional_id: &str, event: Event<'_>) -> Pending {
        if transactional_id.is_empty() {
            return Pending::code(ErrorCode::INVALID_REQUEST);
        }
        loop {
            let found = match event {
                Event::InitProducerId { .. } => Some(self.slot_or_new(transactional_id)),
                _ => self.slot(transactional_id),
            };
            let Some(slot) = found else {
                return Pending::code(ErrorCode::INVALID_PRODUCER_ID_MAPPING);
            };
            let mut held = slot.lock();
            if !held.left {
                return self.run(node, &slot, &mut held, event);
            }
        }
    }

    fn run(&self, node: &Node, slot: &Slot, held: &mut Held, event: Event<'_>) -> Pending {
        let answer = match self.step(slot, held, event) {
            Err(error) => Answer::code(error),
            // What could not be finished before is tried again by whoever asks, moved or not.
            Ok(Step { answer, moved }) => {
                let unfinished = held.is_prepared() && self.finish(node, slot, held).is_err();
                if moved && unfinished {
                    Answer::code(ErrorCode::CONCURRENT_TRANSACTIONS)
                } else {
                    answer
                }
            }
        };
        Pending {
            answer,
            position: held.position,
        }
    }

    /// One event, one decision, at most one record; on an error nothing has changed.
    pub(super) fn step(
        &self,
        slot: &Slot,
        held: &mut Held,
        event: Event<'_>,
    ) -> Result<Step, ErrorCode> {
        let now_ms = self.clock.wall_ms();
        let mut created = None;
        if held.machine.is_none() && matches!(event, Event::InitProducerId { .. }) {
            let (producer_id, _) = self.producer_ids.next(&self.log, now_ms)?;
            created = Some(Machine::new(producer_id, now_ms));
        }
        let machine = held.machine.as_ref().or(created.as_ref());
        let machine = machine.ok_or(ErrorCode::INVALID_PRODUCER_ID_MAPPING)?;
        let mut decision = machine.decide(event, now_ms, None);
        if matches!(decision, Decision::NeedsProducerId) {
            let (fresh, _) = self.producer_ids.next(&self.log, now_ms)?;
            decision = machine.decide(event, now_ms, Some(fresh));
        }
        match decision {
            Decision::Answer(answer) => Ok(Step {
                answer,
                moved: false,
            }),
            Decision::Transition { next, answer } => {
                let (before, after) = failpoints_around(next.state);
                failpoint::hit(before);
                held.position = self.log.append(&slot.transactional_id, &next, now_ms)?;
                failpoint::hit(after);
                if let Some(machine) = held.machine.as_mut().or(created.as_mut()) {
                    machine.apply(*next, self.clock.now_ms());
                }
                held.machine = held.machine.take().or(created);
                self.schedule(slot, held);
                Ok(Step {
                    answer,
                    moved: true,
                })
            }
            Decision::Forget => {
                held.position = self.log.append_tombstone(&slot.transactional_id, now_ms)?;
                held.machine = None;
                self.leave(slot, held);
                Ok(Step {
                    answer: Answer::code(ErrorCode::NONE),
                    moved: true,
                })
            }
            Decision::NeedsProducerId => Err(ErrorCode::COORDINATOR_NOT_AVAILABLE),
        }
    }

    /// Writes the markers of a decided transaction, then its last record. What fails is tried
    /// again by the timers, or by the client's retry once they were here.
    fn finish(&self, node: &Node, slot: &Slot, held: &mut Held) -> Result<(), ErrorCode> {
        let Some(machine) = &held.machine else {
            return Ok(());
        };
        let finished = markers::write_all(node, machine.transaction())
            .and_then(|()| self.step(slot, held, Event::MarkersWritten));
        if finished.is_err() {
            let mut unfinished = lock(&self.unfinished);
            unfinished.insert(slot.transactional_id.clone());
        }
        finished.map(|_| ())
    }

    /// Finishes what was decided and could not be finished before.
    pub(super) fn finish_prepared(&self, node: &Node, transactional_id: &str) {
        if let Some(slot) = self.slot(transactional_id) {
            let mut held = slot.lock();
            if held.is_prepared() {
                let _ = self.finish(node, &slot, &mut held);
            }
        }
    }

    /// Takes over what the log says of an id, at open.
    pub(super) fn restore(&self, transactional_id: Arc<str>, transaction: Option<Transaction>) {
        let slot = self.slot_or_new(&transactional_id);
        let mut held = slot.lock();
        held.machine = transaction.map(|it| Machine::restore(it, self.clock.now_ms()));
        if held.machine.is_none() {
            self.leave(&slot, &mut held);
        } else {
            self.schedule(&slot, &mut held);
        }
        if held.is_prepared() {
            lock(&self.unfinished).insert(transactional_id);
        } else {
            lock(&self.unfinished).remove(&transactional_id);
        }
    }

    /// Ids whose open transaction has passed its deadline.
    pub(super) fn timed_out(&self, now_ms: i64) -> Vec<Arc<str>> {
        let deadlines = lock(&self.deadlines);
        deadlines
            .iter()
            .take_while(|(deadline, _)| *deadline < now_ms)
            .map(|(_, transactional_id)| transactional_id.clone())
            .collect()
    }

    /// Ids that have a decided transaction with markers missing.
    pub(super) fn take_unfinished(&self) -> BTreeSet<Arc<str>> {
        std::mem::take(&mut *lock(&self.unfinished))
    }

    /// The slot of an id, if it is known.
    pub(super) fn slot(&self, transactional_id: &str) -> Option<Arc<Slot>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        slots.get(transactional_id).cloned()
    }

    /// Every slot, in the order of the ids.
    pub(super) fn all_slots(&self) -> Vec<Arc<Slot>> {
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<Arc<Slot>> = slots.values().cloned().collect();
        drop(slots);
        all.sort_unstable_by(|one, other| one.transactional_id.cmp(&other.transactional_id));
        all
    }

    fn slot_or_new(&self, transactional_id: &str) -> Arc<Slot> {
        if let Some(slot) = self.slot(transactional_id) {
            return slot;
        }
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(transactional_id) {
            return slot.clone();
        }
        let transactional_id: Arc<str> = transactional_id.into();
        let slot = Arc::new(Slot {
            transactional_id: transactional_id.clone(),
            held: Mutex::default(),
        });
        slots.insert(transactional_id, slot.clone());
        slot
    }

    /// Takes an id out of the map; whoever waits for its lock looks again.
    pub(super) fn leave(&self, slot: &Slot, held: &mut Held) {
        held.left = true;
        self.schedule(slot, held);
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        slots.remove(&slot.transactional_id);
    }

    fn schedule(&self, slot: &Slot, held: &mut Held) {
        let deadline_ms = held.machine.as_ref().and_then(Machine::deadline_ms);
        if deadline_ms == held.deadline_ms {
            return;
        }
        let mut deadlines = lock(&self.deadlines);
        if let Some(old) = held.deadline_ms {
            deadlines.remove(&(old, slot.transactional_id.clone()));
        }
        if let Some(new) = deadline_ms {
            deadlines.insert((new, slot.transactional_id.clone()));
        }
        held.deadline_ms = deadline_ms;
    }
}

/// What one event did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    answer: Answer,
    moved: bool,
}

impl Step {
    /// The error code of the answer as a result.
    pub(super) fn result(self) -> Result<(), ErrorCode> {
        if self.answer.error == ErrorCode::NONE {
            Ok(())
        } else {
            Err(self.answer.error)
        }
    }
}

impl Held {
    fn is_prepared(&self) -> bool {
        self.machine
            .as_ref()
            .is_some_and(|machine| machine.transaction().state.is_prepared())
    }
}

impl Pending {
    fn code(error: ErrorCode) -> Pending {
        Pending {
            answer: Answer::code(error),
            position: 0,
        }
    }
}

/// The points at which a test may end the process, around the record of a state.
fn failpoints_around(state: State) -> (&'static str, &'static str) {
    match state {
        State::PrepareCommit | State::PrepareAbort => {
            ("broker.before-prepare", "broker.after-prepare")
        }
        State::CompleteCommit | State::CompleteAbort => {
            ("broker.before-complete", "broker.after-complete")
        }
        State::Empty | State::Ongoing | State::Dead | State::PrepareEpochFence => {
            ("broker.before-transition", "broker.after-transition")
        }
    }
}

/// Waits until what an answer rests on is durable. If that fails the outcome is unknown, and the
/// client has to ask again.
async fn settle(node: &Node, pending: Pending) -> Answer {
    match node.durable(pending.position).await {
        Ok(()) => pending.answer,
        Err(error) => {
            tracing::warn!(%error, "a decided transaction event is not durable");
            Answer::code(ErrorCode::NOT_COORDINATOR)
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
impl Coordinator {
    /// Puts an idle id at an epoch that would take hours of transactions to reach.
    pub(super) fn set_epoch_for_test(&self, transactional_id: &str, epoch: i16) {
        let transaction = self.describe(transactional_id).expect("known");
        self.restore(
            transactional_id.into(),
            Some(Transaction {
                epoch,
                ..transaction
            }),
        );
    }
}
