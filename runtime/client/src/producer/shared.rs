//! What the handles of a producer and its sender's task have in common.
//!
//! Invariants: the accumulator's gate follows the transaction machine and `close`; the machine's
//! lock is taken before the accumulator's, never after.
//! Never: waits while a lock is held.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use millstream_protocol::ErrorCode;
use tokio::sync::Notify;

use super::accumulator::Accumulator;
use super::idempotence::ProducerIdentity;
use super::transaction::machine::{Event, Machine, Refusal, State};
use crate::error::{DeliveryError, UsageError};
use crate::security::SecurityError;

/// What the sender may send as, inside the open transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) identity: ProducerIdentity,
    /// Which transaction it is.
    pub(super) number: u64,
    /// Whether the broker adds partitions to the transaction by itself (version 2).
    pub(super) implicit_add: bool,
}

#[derive(Debug)]
pub(super) struct Shared {
    accumulator: Mutex<Accumulator>,
    /// Of a transactional producer.
    machine: Option<Mutex<Machine>>,
    pub(super) transactional_id: Option<Arc<str>>,
    implicit_add: AtomicBool,
    closed: AtomicBool,
    /// Why the producer failed, where client and broker do not trust each other.
    distrust: OnceLock<Arc<SecurityError>>,
    /// The first error of records that nobody waits for one by one.
    uncounted: Mutex<Option<DeliveryError>>,
    /// Wakes the sender's task.
    pub(super) wake: Notify,
    /// Wakes those who wait for buffer space.
    pub(super) space: Notify,
}

impl Shared {
    pub(super) fn new(mut accumulator: Accumulator, transactional_id: Option<Arc<str>>) -> Self {
        let machine = transactional_id.as_ref().map(|_| Machine::default());
        if let (Some(machine), Some(id)) = (&machine, &transactional_id) {
            accumulator.set_gate(gate(machine, id));
        }
        Self {
            accumulator: Mutex::new(accumulator),
            machine: machine.map(Mutex::new),
            transactional_id,
            implicit_add: AtomicBool::new(true),
            closed: AtomicBool::new(false),
            distrust: OnceLock::new(),
            uncounted: Mutex::default(),
            wake: Notify::new(),
            space: Notify::new(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Accumulator> {
        self.accumulator
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads or changes the machine; the gate follows. `None` without transactions.
    pub(super) fn with_machine<T>(&self, act: impl FnOnce(&mut Machine) -> T) -> Option<T> {
        let machine = self.machine.as_ref()?;
        let mut machine = machine.lock().unwrap_or_else(PoisonError::into_inner);
        let before = machine.state();
        let result = act(&mut machine);
        if machine.state() != before {
            let closed = self.closed.load(Ordering::Relaxed);
            if let Some(id) = self.transactional_id.as_ref().filter(|_| !closed) {
                self.lock().set_gate(gate(&machine, id));
            }
            drop(machine);
            self.wake.notify_one();
            self.space.notify_waiters();
        }
        Some(result)
    }

    /// Takes an event into the machine.
    pub(super) fn apply(&self, event: Event) -> Result<(), Refusal> {
        self.with_machine(|machine| machine.apply(event))
            .unwrap_or(Ok(()))
    }

    pub(super) fn state(&self) -> Option<State> {
        self.with_machine(|machine| machine.state())
    }

    pub(super) fn ticket(&self) -> Option<Ticket> {
        let implicit_add = self.implicit_add();
        self.with_machine(|machine| {
            let number = machine.number;
            machine.sending_as().map(|identity| Ticket {
                identity,
                number,
                implicit_add,
            })
        })?
    }

    pub(super) fn implicit_add(&self) -> bool {
        self.implicit_add.load(Ordering::Relaxed)
    }

    pub(super) fn set_implicit_add(&self, implicit_add: bool) {
        self.implicit_add.store(implicit_add, Ordering::Relaxed);
    }

    /// Something of the open transaction goes out.
    pub(super) fn note_sent(&self) {
        self.with_machine(|machine| machine.sent = true);
    }

    /// The open transaction fails, if there is one.
    pub(super) fn fail_transaction(&self, cause: &Arc<str>) {
        self.with_machine(|machine| machine.fail_transaction(cause));
    }

    /// The producer fails.
    pub(super) fn fail_producer(&self, cause: &Arc<str>) {
        if self
            .with_machine(|machine| machine.fail_producer(cause))
            .is_none()
        {
            self.lock().set_gate(Some(UsageError::Failed {
                cause: Arc::clone(cause),
            }));
        }
    }

    /// The producer fails, since client and broker do not trust each other.
    pub(super) fn distrust(&self, refusal: &Arc<SecurityError>) {
        let _ = self.distrust.set(Arc::clone(refusal));
        self.fail_producer(&refusal.to_string().into());
        if !self.closed.load(Ordering::Relaxed) {
            self.lock().set_gate(Some(UsageError::Security {
                error: Arc::clone(refusal),
            }));
        }
    }

    /// Why the producer failed, if that is it.
    pub(super) fn distrusted(&self) -> Option<&Arc<SecurityError>> {
        self.distrust.get()
    }

    /// A newer producer has taken over.
    pub(super) fn fence(&self, cause: &Arc<str>) {
        self.with_machine(|machine| {
            machine.fenced = true;
            machine.fail_producer(cause);
        });
    }

    /// The abort has to bring a new epoch.
    pub(super) fn need_new_epoch(&self) {
        self.with_machine(|machine| machine.needs_new_epoch = true);
    }

    /// As [`Shared::need_new_epoch`], where the end of a transaction does not bring one anyway.
    /// Where it does, a Kafka that was started again knows better what to say to an abort than to
    /// a producer that asks with the epoch before: it has forgotten whose that was.
    pub(super) fn need_new_epoch_before_version_2(&self) {
        if !self.implicit_add() {
            self.need_new_epoch();
        }
    }

    /// What a refusal that fails the transaction says about its abort.
    pub(super) fn note_refusal(&self, code: ErrorCode) {
        match code {
            // The coordinator has forgotten the id, and with it every transaction; or a successor
            // has it. Asked for an epoch, it says which.
            ErrorCode::INVALID_PRODUCER_ID_MAPPING => {
                self.with_machine(|machine| {
                    machine.sent = false;
                    machine.needs_new_epoch = true;
                });
            }
            ErrorCode::INVALID_PRODUCER_EPOCH => self.need_new_epoch_before_version_2(),
            _ => {}
        }
    }

    pub(super) fn transaction_has_failed(&self) -> bool {
        matches!(
            self.state(),
            Some(State::AbortableError | State::FatalError)
        )
    }

    pub(super) fn is_ending(&self) -> bool {
        self.state() == Some(State::Aborting)
    }

    /// No record is accepted any more.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.lock().set_gate(Some(UsageError::Closed));
        self.space.notify_waiters();
        self.wake.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub(super) fn note_uncounted(&self, error: &DeliveryError) {
        let mut first = self
            .uncounted
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| error.clone());
    }

    pub(super) fn take_uncounted(&self) -> Option<DeliveryError> {
        self.uncounted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

/// What senders of records are told in a state of the machine.
fn gate(machine: &Machine, id: &Arc<str>) -> Option<UsageError> {
    let transactional_id = Arc::clone(id);
    let cause = || machine.cause.clone().unwrap_or_else(|| "unknown".into());
    match machine.state() {
        State::InTransaction => None,
        State::AbortableError => Some(UsageError::TransactionFailed {
            transactional_id,
            cause: cause(),
        }),
        State::FatalError => Some(UsageError::Failed { cause: cause() }),
        state => Some(UsageError::NoTransaction {
            transactional_id,
            state: state.name(),
        }),
    }
}
