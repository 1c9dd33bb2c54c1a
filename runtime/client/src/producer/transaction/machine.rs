//! The states of a transactional producer: event in, state out.
//!
//! Invariants: a commit that was sent ends as a commit or by InitProducerId, never as an abort;
//! nothing leaves `FatalError`; records are accepted in `InTransaction` only.
//! Never: a clock, I/O, or a wait.
//!
//! ```text
//! Uninitialised -> Initialising -> Ready -> InTransaction -> Committing -> Ready
//! InTransaction or Committing -> AbortableError     (something failed the transaction)
//! InTransaction or AbortableError -> Aborting -> Ready, or -> Initialising for a new epoch
//! Committing -> Initialising                        (the outcome is asked for by a new epoch)
//! any -> FatalError
//! ```

use std::sync::Arc;

use crate::producer::idempotence::ProducerIdentity;

/// Where the producer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// `init_transactions` was not called.
    Uninitialised,
    /// A producer id and epoch were asked for.
    Initialising,
    /// No transaction is open.
    Ready,
    /// A transaction is open.
    InTransaction,
    /// A commit was, or is about to be, sent and has no final answer.
    Committing,
    /// An abort has no final answer.
    Aborting,
    /// The transaction has failed and must be aborted.
    AbortableError,
    /// The producer is of no use any more.
    FatalError,
}

impl State {
    /// Every state.
    pub const ALL: [State; 8] = [
        State::Uninitialised,
        State::Initialising,
        State::Ready,
        State::InTransaction,
        State::Committing,
        State::Aborting,
        State::AbortableError,
        State::FatalError,
    ];

    /// The state's name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Uninitialised => "uninitialised",
            Self::Initialising => "initialising",
            Self::Ready => "ready",
            Self::InTransaction => "in transaction",
            Self::Committing => "committing",
            Self::Aborting => "aborting",
            Self::AbortableError => "abortable error",
            Self::FatalError => "fatal error",
        }
    }
}

/// What happens to the producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `init_transactions` is called.
    Initialise,
    /// The coordinator gave an id and an epoch.
    Initialised,
    /// `begin_transaction` is called.
    Begin,
    /// A record is sent.
    Send,
    /// `send_offsets` is called.
    SendOffsets,
    /// `commit` is called and everything before it is acknowledged.
    Commit,
    /// The coordinator has committed.
    Committed,
    /// `abort` is called.
    Abort,
    /// The coordinator has aborted.
    Aborted,
    /// The abort needs a new epoch, so the coordinator is asked for one.
    Renew,
    /// Something failed the transaction.
    FailTransaction,
    /// Something failed the producer.
    FailProducer,
}

impl Event {
    /// Every event.
    pub const ALL: [Event; 12] = [
        Event::Initialise,
        Event::Initialised,
        Event::Begin,
        Event::Send,
        Event::SendOffsets,
        Event::Commit,
        Event::Committed,
        Event::Abort,
        Event::Aborted,
        Event::Renew,
        Event::FailTransaction,
        Event::FailProducer,
    ];

    /// The call that the event stands for, in messages.
    #[must_use]
    pub fn call(self) -> &'static str {
        match self {
            Self::Initialise | Self::Initialised | Self::Renew => "init_transactions()",
            Self::Begin => "begin_transaction()",
            Self::Send => "send()",
            Self::SendOffsets => "send_offsets()",
            Self::Commit | Self::Committed => "commit()",
            Self::Abort | Self::Aborted => "abort()",
            Self::FailTransaction | Self::FailProducer => "an error",
        }
    }
}

/// Why an event does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Where the producer stands.
    pub state: State,
    /// What to do instead.
    pub next_step: &'static str,
}

/// The table: where an event leads, or why it does not fit.
///
/// # Errors
/// Where the event does not fit the state.
pub fn next(state: State, event: Event) -> Result<State, Refusal> {
    use Event as E;
    use State as S;
    let to = match (state, event) {
        (S::FatalError, E::FailProducer | E::FailTransaction) => S::FatalError,
        (_, E::FailProducer) => S::FatalError,
        (S::Uninitialised | S::Initialising | S::Committing, E::Initialise) => S::Initialising,
        (S::Initialising, E::Initialised) => S::Ready,
        (S::Ready, E::Begin) => S::InTransaction,
        (S::InTransaction, E::Send | E::SendOffsets) => S::InTransaction,
        (S::InTransaction | S::Committing, E::Commit) => S::Committing,
        (S::Committing, E::Committed) => S::Ready,
        (S::InTransaction | S::AbortableError | S::Aborting, E::Abort) => S::Aborting,
        (S::Aborting, E::Aborted) => S::Ready,
        (S::Aborting, E::Renew) => S::Initialising,
        (S::InTransaction | S::Committing | S::AbortableError, E::FailTransaction) => {
            S::AbortableError
        }
        // Late answers of a transaction that is being, or has been, given up change nothing.
        (S::Aborting | S::Initialising | S::Ready | S::Uninitialised, E::FailTransaction) => state,
        _ => {
            return Err(Refusal {
                state,
                next_step: next_step(state),
            });
        }
    };
    Ok(to)
}

fn next_step(state: State) -> &'static str {
    match state {
        State::Uninitialised => "call init_transactions() first",
        State::Initialising => "call init_transactions() again until it succeeds",
        State::Ready => "call begin_transaction() first",
        State::InTransaction => "commit() or abort() the open transaction first",
        State::Committing => {
            "the commit may have happened: call commit() again, or init_transactions() and read \
             the committed offsets"
        }
        State::Aborting => "call abort() again until it succeeds",
        State::AbortableError => "the transaction has failed: call abort()",
        State::FatalError => "close the producer",
    }
}

/// The machine with what belongs to its state.
#[derive(Debug)]
pub struct Machine {
    state: State,
    /// Who the producer is, once it is initialised.
    pub identity: Option<ProducerIdentity>,
    /// Counts transactions that were begun.
    pub number: u64,
    /// Whether anything of the open transaction may have reached a broker.
    pub sent: bool,
    /// Whether the abort must bring a new epoch by InitProducerId: instead of EndTxn, or, before
    /// transaction version 2, after it.
    pub needs_new_epoch: bool,
    /// Whether a commit was sent whose answer is not known.
    pub in_doubt: bool,
    /// Whether offsets were sent without a final answer.
    pub offsets_pending: bool,
    /// Whether a newer producer has taken over.
    pub fenced: bool,
    /// The epoch of whoever took over, once known.
    pub newer_epoch: Option<i16>,
    /// What failed the transaction or the producer.
    pub cause: Option<Arc<str>>,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            state: State::Uninitialised,
            identity: None,
            number: 0,
            sent: false,
            needs_new_epoch: false,
            in_doubt: false,
            offsets_pending: false,
            fenced: false,
            newer_epoch: None,
            cause: None,
        }
    }
}

impl Machine {
    /// Where the producer stands.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Takes an event in.
    ///
    /// # Errors
    /// Where it does not fit; nothing changes then.
    pub fn apply(&mut self, event: Event) -> Result<(), Refusal> {
        let before = self.state;
        self.state = next(before, event)?;
        match event {
            Event::Begin => {
                self.number += 1;
                self.sent = false;
                self.needs_new_epoch = false;
                self.offsets_pending = false;
                self.cause = None;
            }
            Event::Initialised | Event::Committed | Event::Aborted => {
                self.sent = false;
                self.needs_new_epoch = false;
                self.in_doubt = false;
                self.cause = None;
            }
            Event::FailTransaction if before == State::Committing => self.in_doubt = false,
            _ => {}
        }
        Ok(())
    }

    /// The transaction fails, with the first cause kept.
    pub fn fail_transaction(&mut self, cause: &Arc<str>) {
        if self.apply(Event::FailTransaction).is_ok() && self.state == State::AbortableError {
            self.cause.get_or_insert_with(|| Arc::clone(cause));
        }
    }

    /// The producer fails, with the first fatal cause kept.
    pub fn fail_producer(&mut self, cause: &Arc<str>) {
        let already = self.state == State::FatalError;
        if self.apply(Event::FailProducer).is_ok() && !already {
            self.cause = Some(Arc::clone(cause));
        }
    }

    /// Who may send records now, if anybody.
    #[must_use]
    pub fn sending_as(&self) -> Option<ProducerIdentity> {
        self.identity.filter(|_| self.state == State::InTransaction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows: states in the order of `State::ALL`. Columns: events in the order of `Event::ALL`.
    /// U I R T C A E F name states, `.` a refusal.
    const TABLE: [&str; 8] = [
        // Ini Ied Beg Snd Off Com Ced Abo Aed Ren FTx FPr
        "   I   .   .   .   .   .   .   .   .   .   U   F", // Uninitialised
        "   I   R   .   .   .   .   .   .   .   .   I   F", // Initialising
        "   .   .   T   .   .   .   .   .   .   .   R   F", // Ready
        "   .   .   .   T   T   C   .   A   .   .   E   F", // InTransaction
        "   I   .   .   .   .   C   R   .   .   .   E   F", // Committing
        "   .   .   .   .   .   .   .   A   R   I   A   F", // Aborting
        "   .   .   .   .   .   .   .   A   .   .   E   F", // AbortableError
        "   .   .   .   .   .   .   .   .   .   .   F   F", // FatalError
    ];

    #[test]
    fn every_cell_of_the_table() {
        let named = |letter: &str| match letter {
            "U" => Some(State::Uninitialised),
            "I" => Some(State::Initialising),
            "R" => Some(State::Ready),
            "T" => Some(State::InTransaction),
            "C" => Some(State::Committing),
            "A" => Some(State::Aborting),
            "E" => Some(State::AbortableError),
            "F" => Some(State::FatalError),
            _ => None,
        };
        for (state, row) in State::ALL.into_iter().zip(TABLE) {
            let cells: Vec<_> = row.split_whitespace().collect();
            assert_eq!(cells.len(), Event::ALL.len());
            for (event, cell) in Event::ALL.into_iter().zip(cells) {
                let found = next(state, event);
                assert_eq!(found.ok(), named(cell), "{state:?} × {event:?}");
                if let Err(refusal) = found {
                    assert_eq!(refusal.state, state);
                }
            }
        }
    }

    #[test]
    fn b40_a_failed_producer_stays_failed_with_its_first_cause() {
        let mut machine = Machine::default();
        machine.fail_producer(&"fenced".into());
        machine.fail_transaction(&"late".into());
        machine.fail_producer(&"later".into());
        assert_eq!(machine.cause.as_deref(), Some("fenced"));
        for event in Event::ALL {
            let _ = machine.apply(event);
            assert_eq!(machine.state(), State::FatalError);
        }
    }

    #[test]
    fn a_failed_transaction_keeps_its_cause_until_it_is_aborted() {
        let mut machine = Machine::default();
        for event in [Event::Initialise, Event::Initialised, Event::Begin] {
            machine.apply(event).unwrap();
        }
        machine.fail_transaction(&"first".into());
        machine.fail_transaction(&"second".into());
        assert_eq!(machine.cause.as_deref(), Some("first"));
        let refusal = machine.apply(Event::Commit).unwrap_err();
        assert!(refusal.next_step.contains("abort()"));
        machine.apply(Event::Abort).unwrap();
        machine.apply(Event::Aborted).unwrap();
        assert_eq!(machine.cause, None);
        machine.fail_transaction(&"late".into());
        assert_eq!(
            (machine.state(), machine.cause.clone()),
            (State::Ready, None)
        );
    }
}
