//! Random histories of one transactional id against a small model of what clients may believe.
//!
//! Invariants checked after every step: an identity belongs to one instance; each identity ends
//! at most one transaction, one way; a success answer tells the truth; epochs never go back.
//! Never: mirrors the machine's rules; the model knows only ownership and outcomes.

use std::collections::BTreeMap;

use millstream_protocol::ErrorCode;
use proptest::prelude::*;

use super::machine::Answer;
use super::machine_tests::Driver;
use super::model::{Identity, LAST_CLIENT_EPOCH};
use super::state::State;

#[derive(Clone, Copy, Debug)]
enum Op {
    /// `own`: with the identity that the instance holds. `heard`: the answer arrives.
    Init {
        instance: usize,
        own: bool,
        heard: bool,
    },
    Add {
        instance: usize,
    },
    End {
        instance: usize,
        commit: bool,
        heard: bool,
    },
    /// A request sent before arrives once more, from a slow connection.
    Replay {
        index: prop::sample::Index,
    },
    Markers,
    TimeOut,
    Reload,
}

#[derive(Clone, Copy, Debug)]
enum Request {
    Init {
        instance: usize,
        expected: Option<Identity>,
    },
    Add {
        producer: Identity,
    },
    End {
        instance: usize,
        producer: Identity,
        commit: bool,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let instance = 0..3usize;
    prop_oneof![
        2 => (instance.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(instance, own, heard)| Op::Init { instance, own, heard }),
        6 => instance.clone().prop_map(|instance| Op::Add { instance }),
        6 => (instance, any::<bool>(), any::<bool>())
            .prop_map(|(instance, commit, heard)| Op::End { instance, commit, heard }),
        3 => any::<prop::sample::Index>().prop_map(|index| Op::Replay { index }),
        6 => Just(Op::Markers),
        1 => Just(Op::TimeOut),
        1 => Just(Op::Reload),
    ]
}

struct World {
    driver: Driver,
    held: [Option<Identity>; 3],
    sent: Vec<Request>,
    /// Who was told that it is this producer.
    owners: BTreeMap<Identity, usize>,
    /// How the transaction of this identity ended.
    outcomes: BTreeMap<Identity, bool>,
    open: Option<Identity>,
    highest: BTreeMap<i64, i16>,
}

impl World {
    fn new(epoch: i16) -> World {
        let driver = Driver::at_epoch(epoch);
        let first = driver.identity();
        World {
            driver,
            held: [Some(first), None, None],
            sent: Vec::new(),
            owners: BTreeMap::from([(first, 0)]),
            outcomes: BTreeMap::new(),
            open: None,
            highest: BTreeMap::new(),
        }
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Init {
                instance,
                own,
                heard,
            } => {
                let expected = if own { self.held[instance] } else { None };
                let answer = self.send(Request::Init { instance, expected });
                self.learn(instance, answer, heard);
            }
            Op::Add { instance } => {
                if let Some(producer) = self.held[instance] {
                    self.send(Request::Add { producer });
                }
            }
            Op::End {
                instance,
                commit,
                heard,
            } => {
                if let Some(producer) = self.held[instance] {
                    let answer = self.send(Request::End {
                        instance,
                        producer,
                        commit,
                    });
                    self.learn(instance, answer, heard);
                }
            }
            Op::Replay { index } => {
                if !self.sent.is_empty() {
                    let request = self.sent[index.index(self.sent.len())];
                    self.handle(request);
                }
            }
            Op::Markers => self.driver.markers(),
            Op::TimeOut => self.driver.time_out(),
            Op::Reload => self.driver.reload(),
        }
        self.observe();
    }

    fn send(&mut self, request: Request) -> Answer {
        self.sent.push(request);
        self.handle(request)
    }

    fn learn(&mut self, instance: usize, answer: Answer, heard: bool) {
        if heard && answer.error == ErrorCode::NONE && answer.producer != Identity::NONE {
            self.held[instance] = Some(answer.producer);
        }
    }

    fn handle(&mut self, request: Request) -> Answer {
        match request {
            Request::Init { instance, expected } => {
                let answer = self.driver.init(expected);
                self.granted(instance, answer);
                answer
            }
            Request::Add { producer } => {
                let before = self.driver.identity();
                let error = self.driver.add(producer);
                if error == ErrorCode::NONE {
                    assert_eq!(producer, before, "data of a stranger was let in");
                    assert!(
                        !self.outcomes.contains_key(&producer),
                        "{producer:?} begins twice"
                    );
                    self.open = Some(producer);
                }
                Answer {
                    error,
                    producer: Identity::NONE,
                }
            }
            Request::End {
                instance,
                producer,
                commit,
            } => {
                let open = self.open.filter(|_| self.driver.state() == State::Ongoing);
                let answer = self.driver.end(producer, commit);
                self.observe();
                if let (Some(open), State::PrepareCommit | State::PrepareAbort) =
                    (open, self.driver.state())
                {
                    assert_eq!(open, producer, "a stranger ended the transaction");
                }
                if answer.error == ErrorCode::NONE {
                    assert_ne!(
                        self.outcomes.get(&producer),
                        Some(&!commit),
                        "a false answer"
                    );
                    if commit {
                        assert_eq!(self.outcomes.get(&producer), Some(&true), "a false answer");
                    }
                    self.granted(instance, answer);
                }
                answer
            }
        }
    }

    /// An answer that names an identity makes the asker its only owner.
    fn granted(&mut self, instance: usize, answer: Answer) {
        if answer.error != ErrorCode::NONE {
            return;
        }
        let identity = answer.producer;
        assert!(
            (0..=LAST_CLIENT_EPOCH).contains(&identity.epoch),
            "{identity:?}"
        );
        let owner = *self.owners.entry(identity).or_insert(instance);
        assert_eq!(owner, instance, "{identity:?} was given to two instances");
    }

    /// Takes note of outcomes, and checks that epochs only grow.
    fn observe(&mut self) {
        let transaction = self.driver.machine.transaction();
        let identity = transaction.identity();
        let highest = self.highest.entry(identity.id).or_insert(identity.epoch);
        assert!(identity.epoch >= *highest, "{identity:?} after {highest}");
        *highest = identity.epoch;
        if transaction.state.is_prepared()
            && let Some(open) = self.open.take()
        {
            let commit = transaction.state == State::PrepareCommit;
            let earlier = self.outcomes.insert(open, commit);
            assert_eq!(earlier, None, "{open:?} ended twice");
            assert!(
                identity.epoch > open.epoch,
                "the markers' epoch closes the old one out"
            );
        }
        if transaction.state != State::Ongoing && !transaction.state.is_prepared() {
            assert!(transaction.partitions.is_empty());
            assert_eq!(transaction.next_producer_id, -1);
        }
    }

    /// Whatever happened, a new instance gets in after one abort.
    fn settle(&mut self) {
        self.driver.markers();
        if self.driver.init(None).error != ErrorCode::NONE {
            self.driver.markers();
            assert_eq!(self.driver.init(None).error, ErrorCode::NONE, "stuck");
        }
        let identity = self.driver.identity();
        assert_eq!(self.driver.add(identity), ErrorCode::NONE);
        assert_eq!(self.driver.end(identity, true).error, ErrorCode::NONE);
        self.driver.markers();
        assert_eq!(self.driver.state(), State::CompleteCommit);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..Default::default()
    })]

    #[test]
    fn no_history_confuses_owners_outcomes_or_epochs(
        epoch in prop_oneof![Just(5i16), 32_758..=LAST_CLIENT_EPOCH],
        ops in prop::collection::vec(op(), 1..60),
    ) {
        let mut world = World::new(epoch);
        for op in ops {
            world.run(op);
        }
        world.settle();
    }
}
