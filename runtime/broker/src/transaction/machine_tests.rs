//! The machine, cell by cell and by the ids of the fault catalogue.
//!
//! Invariants: every state meets every event here.
//! Never: needs a broker; `broker_tests` shows the same through requests.

use millstream_protocol::{ErrorCode, TopicPartition};

use super::machine::{Answer, Decision, Event, Machine};
use super::model::{CURRENT_VERSION, Identity, LAST_CLIENT_EPOCH, NO_EPOCH, Transaction};
use super::record;
use super::state::State;

const TIMEOUT_MS: i32 = 60_000;

/// Executes decisions as the coordinator does, with or without the markers.
pub(super) struct Driver {
    pub(super) machine: Machine,
    pub(super) now_ms: i64,
    next_producer_id: i64,
}

pub(super) fn partition(index: i32) -> TopicPartition {
    TopicPartition::new("out", index)
}

impl Driver {
    pub(super) fn new() -> Driver {
        Driver {
            machine: Machine::new(7, 1_000),
            now_ms: 1_000,
            next_producer_id: 100,
        }
    }

    /// An initialised producer that stands at this epoch.
    pub(super) fn at_epoch(epoch: i16) -> Driver {
        let mut driver = Driver::new();
        assert_eq!(driver.init(None).error, ErrorCode::NONE);
        let transaction = Transaction {
            epoch,
            ..driver.machine.transaction().clone()
        };
        driver.machine = Machine::restore(transaction, driver.now_ms);
        driver
    }

    /// Decides, applies, answers; leaves the markers to the caller.
    pub(super) fn step(&mut self, event: Event<'_>) -> Answer {
        let mut decision = self.machine.decide(event, self.now_ms, None);
        if decision == Decision::NeedsProducerId {
            self.next_producer_id += 1;
            decision = self
                .machine
                .decide(event, self.now_ms, Some(self.next_producer_id));
        }
        match decision {
            Decision::Answer(answer) => answer,
            Decision::Transition { next, answer } => {
                self.machine.apply(*next, self.now_ms);
                answer
            }
            Decision::NeedsProducerId => panic!("asked twice for a producer id"),
            Decision::Forget => panic!("forgets the id"),
        }
    }

    pub(super) fn init(&mut self, expected: Option<Identity>) -> Answer {
        self.step(Event::InitProducerId {
            timeout_ms: TIMEOUT_MS,
            expected,
        })
    }

    pub(super) fn add(&mut self, producer: Identity) -> ErrorCode {
        let partitions = [partition(0)];
        self.step(Event::AddPartitions {
            producer,
            partitions: &partitions,
            client_version: 2,
        })
        .error
    }

    pub(super) fn end(&mut self, producer: Identity, commit: bool) -> Answer {
        self.step(Event::EndTransaction {
            producer,
            commit,
            client_version: CURRENT_VERSION,
        })
    }

    fn end_old(&mut self, producer: Identity, commit: bool) -> ErrorCode {
        self.step(Event::EndTransaction {
            producer,
            commit,
            client_version: 0,
        })
        .error
    }

    pub(super) fn markers(&mut self) {
        self.step(Event::MarkersWritten);
    }

    pub(super) fn time_out(&mut self) {
        self.now_ms += i64::from(TIMEOUT_MS) + 1;
        let now_ms = self.now_ms;
        self.step(Event::TimedOut { now_ms });
    }

    /// What a restart leaves: the record, written and read.
    pub(super) fn reload(&mut self) {
        let (key, value) = record::encode("id", self.machine.transaction()).unwrap();
        let read = record::decode(&key, Some(&value)).unwrap();
        let record::Entry::Transaction {
            transactional_id,
            transaction: Some(read),
        } = read
        else {
            panic!("not a transaction: {read:?}");
        };
        assert_eq!(&*transactional_id, "id");
        assert_eq!(&*read, self.machine.transaction());
        self.machine = Machine::restore(*read, self.now_ms);
    }

    pub(super) fn state(&self) -> State {
        self.machine.transaction().state
    }

    pub(super) fn identity(&self) -> Identity {
        self.machine.transaction().identity()
    }
}

/// A driver in each state that a machine can rest in; epoch 5 owns the transaction of each.
fn resting(state: State) -> (Driver, Identity) {
    let mut driver = Driver::at_epoch(5);
    let owner = driver.identity();
    let commit = matches!(state, State::PrepareCommit | State::CompleteCommit);
    if state != State::Empty {
        assert_eq!(driver.add(owner), ErrorCode::NONE);
    }
    if !matches!(state, State::Empty | State::Ongoing) {
        assert_eq!(driver.end(owner, commit).error, ErrorCode::NONE);
    }
    if matches!(state, State::CompleteCommit | State::CompleteAbort) {
        driver.markers();
    }
    assert_eq!(driver.state(), state);
    (driver, owner)
}

const RESTING: [State; 6] = [
    State::Empty,
    State::Ongoing,
    State::PrepareCommit,
    State::PrepareAbort,
    State::CompleteCommit,
    State::CompleteAbort,
];

#[test]
fn every_state_meets_init_producer_id() {
    use ErrorCode as E;
    use State as S;
    // state, error and following state of a new instance, of the owner, of an older epoch
    let stay = |state| (E::CONCURRENT_TRANSACTIONS, state);
    let table = [
        (
            S::Empty,
            (E::NONE, S::Empty),
            (E::NONE, S::Empty),
            (E::PRODUCER_FENCED, S::Empty),
        ),
        (
            S::Ongoing,
            (E::CONCURRENT_TRANSACTIONS, S::PrepareAbort),
            (E::CONCURRENT_TRANSACTIONS, S::PrepareAbort),
            (E::PRODUCER_FENCED, S::Ongoing),
        ),
        (
            S::PrepareCommit,
            stay(S::PrepareCommit),
            stay(S::PrepareCommit),
            stay(S::PrepareCommit),
        ),
        (
            S::PrepareAbort,
            stay(S::PrepareAbort),
            stay(S::PrepareAbort),
            stay(S::PrepareAbort),
        ),
        (
            S::CompleteCommit,
            (E::NONE, S::Empty),
            (E::NONE, S::Empty),
            (E::PRODUCER_FENCED, S::CompleteCommit),
        ),
        (
            S::CompleteAbort,
            (E::NONE, S::Empty),
            (E::NONE, S::Empty),
            (E::PRODUCER_FENCED, S::CompleteAbort),
        ),
    ];
    for (state, new, owner, older) in table {
        for (row, who) in [(new, 0), (owner, 1), (older, 2)] {
            let (mut driver, owner) = resting(state);
            let expected = match who {
                0 => None,
                1 => Some(owner),
                _ => Some(Identity {
                    epoch: owner.epoch - 1,
                    ..owner
                }),
            };
            let answer = driver.init(expected);
            assert_eq!(
                (answer.error, driver.state()),
                row,
                "{state:?} caller {who}"
            );
        }
    }
}

#[test]
fn every_state_meets_add_partitions() {
    use State as S;
    for state in RESTING {
        let (mut driver, _) = resting(state);
        let current = driver.identity();
        let error = driver.add(current);
        let expected = match state {
            S::PrepareCommit | S::PrepareAbort => (ErrorCode::CONCURRENT_TRANSACTIONS, state),
            _ => (ErrorCode::NONE, S::Ongoing),
        };
        assert_eq!((error, driver.state()), expected, "{state:?}");

        let (mut driver, _) = resting(state);
        let older = Identity {
            epoch: current.epoch - 1,
            ..current
        };
        assert_eq!(driver.add(older), ErrorCode::PRODUCER_FENCED, "{state:?}");
        let other = Identity {
            id: current.id + 1,
            ..current
        };
        assert_eq!(
            driver.add(other),
            ErrorCode::INVALID_PRODUCER_ID_MAPPING,
            "{state:?}"
        );
        assert_eq!(driver.state(), state);
    }
}

/// A state, and the error and following state of: current commit, current abort, retried commit,
/// retried abort. "Retried" is the identity from before the last bump.
type EndRow = (State, [(ErrorCode, State); 4]);

fn end_transaction_table() -> [EndRow; 6] {
    use ErrorCode as E;
    use State as S;
    let fenced = |state| (E::PRODUCER_FENCED, state);
    let invalid = |state| (E::INVALID_TXN_STATE, state);
    [
        (
            S::Empty,
            [
                invalid(S::Empty),
                (E::NONE, S::PrepareAbort),
                fenced(S::Empty),
                fenced(S::Empty),
            ],
        ),
        (
            S::Ongoing,
            [
                (E::NONE, S::PrepareCommit),
                (E::NONE, S::PrepareAbort),
                fenced(S::Ongoing),
                fenced(S::Ongoing),
            ],
        ),
        (
            S::PrepareCommit,
            [
                fenced(S::PrepareCommit),
                fenced(S::PrepareCommit),
                (E::CONCURRENT_TRANSACTIONS, S::PrepareCommit),
                invalid(S::PrepareCommit),
            ],
        ),
        (
            S::PrepareAbort,
            [
                fenced(S::PrepareAbort),
                fenced(S::PrepareAbort),
                invalid(S::PrepareAbort),
                (E::CONCURRENT_TRANSACTIONS, S::PrepareAbort),
            ],
        ),
        (
            S::CompleteCommit,
            [
                invalid(S::CompleteCommit),
                (E::NONE, S::PrepareAbort),
                (E::NONE, S::CompleteCommit),
                invalid(S::CompleteCommit),
            ],
        ),
        (
            S::CompleteAbort,
            [
                invalid(S::CompleteAbort),
                (E::NONE, S::PrepareAbort),
                invalid(S::CompleteAbort),
                (E::NONE, S::CompleteAbort),
            ],
        ),
    ]
}

#[test]
fn every_state_meets_end_transaction_with_and_against_its_outcome() {
    for (state, cells) in end_transaction_table() {
        for (column, cell) in cells.into_iter().enumerate() {
            let (mut driver, _) = resting(state);
            let current = driver.identity();
            let who = if column < 2 {
                current
            } else {
                Identity {
                    epoch: current.epoch - 1,
                    ..current
                }
            };
            let answer = driver.end(who, column % 2 == 0);
            assert_eq!(
                (answer.error, driver.state()),
                cell,
                "{state:?} column {column}"
            );
        }
    }
}

#[test]
fn every_state_meets_end_transaction_of_an_older_client() {
    use ErrorCode as E;
    use State as S;
    for (state, commit, abort) in [
        (S::Empty, E::INVALID_TXN_STATE, E::INVALID_TXN_STATE),
        (S::Ongoing, E::NONE, E::NONE),
        (
            S::PrepareCommit,
            E::CONCURRENT_TRANSACTIONS,
            E::INVALID_TXN_STATE,
        ),
        (
            S::PrepareAbort,
            E::INVALID_TXN_STATE,
            E::CONCURRENT_TRANSACTIONS,
        ),
        (S::CompleteCommit, E::NONE, E::INVALID_TXN_STATE),
        (S::CompleteAbort, E::INVALID_TXN_STATE, E::NONE),
    ] {
        for (is_commit, error) in [(true, commit), (false, abort)] {
            let mut driver = Driver::at_epoch(5);
            let owner = driver.identity();
            if state != S::Empty {
                driver.add(owner);
            }
            if !matches!(state, S::Empty | S::Ongoing) {
                let committed = matches!(state, S::PrepareCommit | S::CompleteCommit);
                assert_eq!(driver.end_old(owner, committed), E::NONE);
            }
            if matches!(state, S::CompleteCommit | S::CompleteAbort) {
                driver.markers();
            }
            assert_eq!(driver.state(), state);
            assert_eq!(
                driver.end_old(owner, is_commit),
                error,
                "{state:?} {is_commit}"
            );
            assert_eq!(driver.identity(), owner, "an older client keeps its epoch");
            let older = Identity { epoch: 4, ..owner };
            assert_eq!(driver.end_old(older, is_commit), E::PRODUCER_FENCED);
        }
    }
}

#[test]
fn every_state_meets_timeout_markers_and_expiry() {
    for state in RESTING {
        let (mut driver, _) = resting(state);
        driver.time_out();
        let after = if state == State::Ongoing {
            State::PrepareAbort
        } else {
            state
        };
        assert_eq!(driver.state(), after, "{state:?} times out");

        let (mut driver, _) = resting(state);
        driver.markers();
        let after = match state {
            State::PrepareCommit => State::CompleteCommit,
            State::PrepareAbort => State::CompleteAbort,
            other => other,
        };
        assert_eq!(driver.state(), after, "{state:?} has its markers");

        let (driver, _) = resting(state);
        let event = Event::Expire { idle_ms: 5_000 };
        let early = driver.machine.decide(event, driver.now_ms + 4_999, None);
        assert_ne!(early, Decision::Forget);
        let late = driver.machine.decide(event, driver.now_ms + 5_000, None);
        assert_eq!(
            late == Decision::Forget,
            state.is_idle(),
            "{state:?} expires"
        );
    }
}

#[test]
fn data_is_verified_against_owner_state_and_partitions() {
    for state in RESTING {
        let (driver, _) = resting(state);
        let current = driver.identity();
        let expected = match state {
            State::Ongoing => ErrorCode::NONE,
            State::PrepareCommit | State::PrepareAbort => ErrorCode::CONCURRENT_TRANSACTIONS,
            _ => ErrorCode::TRANSACTION_ABORTABLE,
        };
        assert_eq!(
            driver.machine.verify(current, &[partition(0)]),
            expected,
            "{state:?}"
        );
        let older = Identity {
            epoch: current.epoch - 1,
            ..current
        };
        let fenced = driver.machine.verify(older, &[partition(0)]);
        assert_eq!(fenced, ErrorCode::PRODUCER_FENCED);
    }
    let (driver, owner) = resting(State::Ongoing);
    let other = driver.machine.verify(owner, &[partition(0), partition(1)]);
    assert_eq!(other, ErrorCode::TRANSACTION_ABORTABLE);
}

#[test]
fn t3_a_retried_commit_waits_while_prepared_and_then_gets_the_bumped_pair() {
    let (mut driver, owner) = resting(State::Ongoing);
    let answer = driver.end(owner, true);
    assert_eq!(
        answer.producer,
        Identity {
            epoch: owner.epoch + 1,
            ..owner
        }
    );
    assert_eq!(
        driver.end(owner, true).error,
        ErrorCode::CONCURRENT_TRANSACTIONS
    );
    driver.reload();
    assert_eq!(
        driver.end(owner, true).error,
        ErrorCode::CONCURRENT_TRANSACTIONS
    );
    driver.markers();
    assert_eq!(driver.end(owner, true), answer);
    driver.reload();
    assert_eq!(driver.end(owner, true), answer);
}

#[test]
fn t4_b29_a_commit_that_lost_to_the_timeout_is_fenced_and_an_abort_goes_on() {
    let (mut driver, owner) = resting(State::Ongoing);
    driver.time_out();
    assert_eq!(driver.end(owner, true).error, ErrorCode::PRODUCER_FENCED);
    assert_eq!(
        driver.end(owner, false).error,
        ErrorCode::CONCURRENT_TRANSACTIONS
    );
    driver.markers();
    driver.reload();
    assert_eq!(driver.end(owner, true).error, ErrorCode::PRODUCER_FENCED);
    let answer = driver.end(owner, false);
    assert_eq!(answer.error, ErrorCode::NONE);
    assert_eq!(
        answer.producer,
        Identity {
            epoch: owner.epoch + 1,
            ..owner
        }
    );
    assert_eq!(driver.add(answer.producer), ErrorCode::NONE);
}

#[test]
fn t5_the_end_of_transaction_n_leaves_transaction_n_plus_1_alone() {
    let (mut driver, first) = resting(State::Ongoing);
    let second = driver.end(first, true).producer;
    driver.markers();
    assert_eq!(driver.add(second), ErrorCode::NONE);
    let before = driver.machine.clone();
    for commit in [true, false] {
        assert_eq!(driver.end(first, commit).error, ErrorCode::PRODUCER_FENCED);
    }
    assert_eq!(driver.machine, before);
}

#[test]
fn t9_b21_an_empty_abort_after_a_commit_bumps_and_does_not_fence_its_producer() {
    let mut driver = Driver::at_epoch(5);
    let mut owner = driver.identity();
    for round in 0..3 {
        let answer = driver.end(owner, false);
        assert_eq!(answer.error, ErrorCode::NONE, "round {round}");
        driver.markers();
        assert_eq!(driver.state(), State::CompleteAbort);
        assert_eq!(
            answer.producer,
            Identity {
                epoch: owner.epoch + 1,
                ..owner
            }
        );
        owner = answer.producer;
        driver.add(owner);
        owner = driver.end(owner, true).producer;
        driver.markers();
        assert_eq!(driver.end(owner, true).error, ErrorCode::INVALID_TXN_STATE);
    }
}

#[test]
fn t10_b22_a_commit_at_the_last_epoch_moves_to_a_new_producer_id_and_a_retry_returns_it() {
    for commit in [true, false] {
        let mut driver = Driver::at_epoch(LAST_CLIENT_EPOCH);
        let owner = driver.identity();
        driver.add(owner);
        let answer = driver.end(owner, commit);
        assert_eq!(
            answer,
            Answer {
                error: ErrorCode::NONE,
                producer: answer.producer
            }
        );
        assert_ne!(answer.producer.id, owner.id);
        assert_eq!(answer.producer.epoch, 0);
        assert_eq!(
            driver.identity(),
            Identity {
                epoch: i16::MAX,
                ..owner
            },
            "the markers' epoch"
        );
        driver.reload();
        assert_eq!(
            driver.end(owner, commit).error,
            ErrorCode::CONCURRENT_TRANSACTIONS
        );
        driver.markers();
        driver.reload();
        assert_eq!(driver.end(owner, commit), answer);
        assert_eq!(
            driver.end(owner, !commit).error,
            ErrorCode::INVALID_TXN_STATE
        );
        assert_eq!(driver.add(owner), ErrorCode::INVALID_PRODUCER_ID_MAPPING);
        assert_eq!(driver.add(answer.producer), ErrorCode::NONE);
        let late = driver.end(owner, commit).error;
        assert_eq!(late, ErrorCode::INVALID_PRODUCER_ID_MAPPING);
    }
}

#[test]
fn b27_a_timeout_at_the_last_epoch_moves_on_and_a_late_abort_learns_the_new_pair() {
    let mut driver = Driver::at_epoch(LAST_CLIENT_EPOCH);
    let owner = driver.identity();
    driver.add(owner);
    driver.time_out();
    driver.markers();
    driver.reload();
    let answer = driver.end(owner, false);
    assert_eq!(answer.error, ErrorCode::NONE);
    assert_eq!(
        (answer.producer.epoch, answer.producer.id != owner.id),
        (0, true)
    );
    assert_eq!(driver.add(answer.producer), ErrorCode::NONE);
    assert_eq!(driver.end(answer.producer, true).error, ErrorCode::NONE);
}

#[test]
fn b23_init_at_the_last_epoch_of_an_open_transaction_never_makes_an_epoch_negative() {
    for own in [false, true] {
        let mut driver = Driver::at_epoch(LAST_CLIENT_EPOCH);
        let owner = driver.identity();
        driver.add(owner);
        let expected = own.then_some(owner);
        assert_eq!(
            driver.init(expected).error,
            ErrorCode::CONCURRENT_TRANSACTIONS
        );
        assert_eq!(driver.identity().epoch, i16::MAX, "bumped once");
        assert_eq!(
            driver.init(expected).error,
            ErrorCode::CONCURRENT_TRANSACTIONS
        );
        assert_eq!(driver.identity().epoch, i16::MAX, "and not again");
        driver.markers();
        let answer = driver.init(expected);
        assert_eq!(answer.error, ErrorCode::NONE);
        assert_ne!(answer.producer.id, owner.id);
        assert_eq!(answer.producer.epoch, i16::from(!own));
    }
}

#[test]
fn f1_a_second_instance_waits_for_the_abort_then_gets_a_higher_epoch_and_the_first_is_fenced() {
    let (mut driver, first) = resting(State::Ongoing);
    assert_eq!(driver.init(None).error, ErrorCode::CONCURRENT_TRANSACTIONS);
    assert_eq!(driver.state(), State::PrepareAbort);
    driver.markers();
    // Between the fence and the second try the first instance cannot come back.
    for commit in [true, false] {
        assert_eq!(driver.end(first, commit).error, ErrorCode::PRODUCER_FENCED);
    }
    assert_eq!(driver.init(Some(first)).error, ErrorCode::PRODUCER_FENCED);
    let answer = driver.init(None);
    assert_eq!(answer.error, ErrorCode::NONE);
    assert!(answer.producer.epoch > first.epoch);
    for commit in [true, false] {
        assert_eq!(driver.end(first, commit).error, ErrorCode::PRODUCER_FENCED);
    }
    assert_eq!(driver.add(first), ErrorCode::PRODUCER_FENCED);
    assert_eq!(driver.init(Some(first)).error, ErrorCode::PRODUCER_FENCED);
    assert_eq!(driver.identity(), answer.producer);
}

#[test]
fn f2_b28_a_retried_init_gets_the_same_pair_also_after_a_restart_and_a_rotation() {
    for epoch in [5, LAST_CLIENT_EPOCH] {
        let mut driver = Driver::at_epoch(epoch);
        let owner = driver.identity();
        let answer = driver.init(Some(owner));
        assert_eq!(answer.error, ErrorCode::NONE);
        assert_ne!(answer.producer, owner);
        for _ in 0..3 {
            driver.reload();
            assert_eq!(driver.init(Some(owner)), answer, "epoch {epoch}");
        }
        // Another instance ends that.
        assert_ne!(driver.init(None), answer);
        assert_eq!(driver.init(Some(owner)).error, ErrorCode::PRODUCER_FENCED);
    }
}

#[test]
fn an_owner_that_reinitialises_during_its_transaction_goes_on_with_the_bumped_epoch() {
    let (mut driver, owner) = resting(State::Ongoing);
    assert_eq!(
        driver.init(Some(owner)).error,
        ErrorCode::CONCURRENT_TRANSACTIONS
    );
    driver.markers();
    let answer = driver.init(Some(owner));
    assert_eq!(
        answer.producer,
        Identity {
            epoch: owner.epoch + 1,
            ..owner
        }
    );
    assert_eq!(driver.init(Some(owner)), answer);
}

#[test]
fn b18_an_id_without_an_epoch_accepts_whoever_comes_and_starts_at_zero() {
    for expected in [None, Some(Identity { id: 3, epoch: 9 })] {
        let mut driver = Driver::new();
        assert_eq!(driver.identity().epoch, NO_EPOCH);
        let answer = driver.init(expected);
        assert_eq!(answer.producer, Identity { id: 7, epoch: 0 });
        let idle = Event::Expire { idle_ms: 1 };
        assert_eq!(
            driver.machine.decide(idle, driver.now_ms + 1, None),
            Decision::Forget
        );
    }
}

#[test]
fn c6_a_restart_gives_an_open_transaction_its_whole_timeout_again() {
    let (mut driver, _) = resting(State::Ongoing);
    let began = driver.now_ms;
    assert_eq!(
        driver.machine.deadline_ms(),
        Some(began + i64::from(TIMEOUT_MS))
    );
    driver.now_ms += 3_600_000; // the wall clock jumped while the broker was down
    driver.reload();
    let now_ms = driver.now_ms;
    driver.step(Event::TimedOut { now_ms });
    assert_eq!(driver.state(), State::Ongoing);
    assert_eq!(
        driver.machine.deadline_ms(),
        Some(driver.now_ms + i64::from(TIMEOUT_MS))
    );
    driver.time_out();
    assert_eq!(driver.state(), State::PrepareAbort);
}

#[test]
fn the_timeout_counts_from_the_first_partition_and_is_exclusive() {
    let (mut driver, owner) = resting(State::Ongoing);
    driver.now_ms += i64::from(TIMEOUT_MS);
    let more = [partition(1)];
    driver.step(Event::AddPartitions {
        producer: owner,
        partitions: &more,
        client_version: 2,
    });
    let now_ms = driver.now_ms;
    driver.step(Event::TimedOut { now_ms });
    assert_eq!(driver.state(), State::Ongoing, "at the deadline");
    driver.now_ms += 1;
    let now_ms = driver.now_ms;
    driver.step(Event::TimedOut { now_ms });
    assert_eq!(driver.state(), State::PrepareAbort, "past the deadline");
}
