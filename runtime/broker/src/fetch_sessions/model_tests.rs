//! Sessions against a client that only knows what it was told: whatever is left out must be as the
//! client believes.
//!
//! Invariants: the logs are numbers; a client's view is compared with them after every answer.
//! Never: random beyond proptest's seed.

use super::Session;
use super::cache::{Begun, Cache, INITIAL_EPOCH, NO_SESSION};
use bytes::Bytes;
use millstream_protocol::messages::fetch::{
    FetchPartition, FetchTopic, ForgottenTopic, PartitionData,
};
use millstream_protocol::{ErrorCode, Uuid};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const PARTITIONS: i32 = 5;
/// Lost answers leave sessions behind.
const SLOTS: usize = 1_000;

#[derive(Debug, Clone)]
enum Act {
    Append(i32),
    Stabilize(i32),
    Trim(i32),
    Fail(i32, bool),
    /// The client reads from now on, or no longer.
    Want(i32, bool),
    /// A fetch with room for so many records. The answer may be lost, or the request dropped.
    Fetch {
        room: i64,
        lost: bool,
        dropped: bool,
    },
    /// The broker forgets all sessions.
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    let index = 0..PARTITIONS;
    prop_oneof![
        4 => index.clone().prop_map(Act::Append),
        2 => index.clone().prop_map(Act::Stabilize),
        1 => index.clone().prop_map(Act::Trim),
        1 => (index.clone(), any::<bool>()).prop_map(|(index, fails)| Act::Fail(index, fails)),
        2 => (index, any::<bool>()).prop_map(|(index, wanted)| Act::Want(index, wanted)),
        8 => (0..4_i64, prop::bool::weighted(0.1), prop::bool::weighted(0.1))
            .prop_map(|(room, lost, dropped)| Act::Fetch { room, lost, dropped }),
        1 => Just(Act::Restart),
    ]
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Log {
    end: i64,
    stable: i64,
    start: i64,
    fails: bool,
}

/// What a client believes of a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Belief {
    offset: i64,
    log: Log,
}

#[derive(Debug)]
struct World {
    by_id: bool,
    logs: Vec<Log>,
    cache: Cache,
    ids: u64,
    // The client's side.
    id: i32,
    epoch: i32,
    /// What the broker was asked in this session.
    asked: BTreeMap<i32, i64>,
    wanted: BTreeSet<i32>,
    beliefs: BTreeMap<i32, Belief>,
    /// Reads in a row in which a partition had records and got none.
    starved: BTreeMap<i32, usize>,
}

impl World {
    fn new(by_id: bool) -> Self {
        Self {
            by_id,
            logs: vec![Log::default(); PARTITIONS as usize],
            cache: Cache::new(SLOTS),
            ids: 0,
            id: NO_SESSION,
            epoch: INITIAL_EPOCH,
            asked: BTreeMap::new(),
            wanted: (0..PARTITIONS).collect(),
            beliefs: BTreeMap::new(),
            starved: BTreeMap::new(),
        }
    }

    fn log(&mut self, index: i32) -> &mut Log {
        &mut self.logs[index as usize]
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Append(index) => self.log(index).end += 1,
            Act::Stabilize(index) => self.log(index).stable = self.log(index).end,
            Act::Trim(index) => self.log(index).start = self.log(index).end,
            Act::Fail(index, fails) => self.log(index).fails = fails,
            Act::Want(index, true) => {
                self.wanted.insert(index);
            }
            Act::Want(index, false) => {
                self.wanted.remove(&index);
            }
            Act::Restart => self.cache = Cache::new(SLOTS),
            Act::Fetch {
                room,
                lost,
                dropped,
            } => self.fetch(room, lost, dropped),
        }
    }

    /// What the client says: all of it, or what is not as the broker has it.
    fn says(&mut self) -> (Vec<FetchTopic>, Vec<ForgottenTopic>) {
        if self.epoch == INITIAL_EPOCH {
            self.asked.clear();
        }
        let (mut changed, mut forgotten) = (Vec::new(), Vec::new());
        for index in 0..PARTITIONS {
            let offset = self.beliefs.entry(index).or_default().offset;
            if !self.wanted.contains(&index) {
                if self.asked.remove(&index).is_some() {
                    forgotten.push(index);
                    // It knows nothing of one that it does not read.
                    self.beliefs.insert(
                        index,
                        Belief {
                            offset,
                            ..Belief::default()
                        },
                    );
                }
            } else if self.asked.insert(index, offset) != Some(offset) {
                changed.push(FetchPartition {
                    partition: index,
                    fetch_offset: offset,
                    ..FetchPartition::default()
                });
            }
        }
        let (topic, topic_id) = match self.by_id {
            true => (String::new(), Uuid([1; 16])),
            false => ("orders".to_owned(), Uuid::ZERO),
        };
        let changed = FetchTopic {
            topic: topic.clone(),
            topic_id,
            partitions: changed,
        };
        let forgotten = ForgottenTopic {
            topic,
            topic_id,
            partitions: forgotten,
        };
        (vec![changed], vec![forgotten])
    }

    fn fetch(&mut self, room: i64, lost: bool, dropped: bool) {
        let (changed, forgotten) = self.says();
        let is_full = self.epoch == INITIAL_EPOCH;
        let begun = self.cache.begin(self.id, self.epoch, self.by_id, 0);
        let (id, answer) = match begun {
            Begun::Refused(error) => {
                assert!(!is_full, "{error:?}");
                return self.begin_anew();
            }
            Begun::Sessionless => unreachable!("it is never asked for"),
            Begun::Initial => {
                let mut session = Session::new(self.by_id);
                session.change(&changed, &forgotten);
                assert_eq!(session.len(), self.wanted.len());
                let answer = self.read(&mut session, room, true);
                self.ids += 1;
                let id = self.ids;
                match dropped {
                    true => (NO_SESSION, answer),
                    false => (self.cache.keep(session, 0, || id), answer),
                }
            }
            Begun::Incremental(loan, mut session) => {
                session.change(&changed, &forgotten);
                let held: BTreeMap<_, _> = session
                    .parts()
                    .map(|(_, part)| (part.index, part.asked.offset))
                    .collect();
                assert_eq!(held, self.asked, "both ends hold the same");
                let answer = match dropped {
                    true => Vec::new(),
                    false => self.read(&mut session, room, false),
                };
                (self.cache.give_back(loan, session, 0), answer)
            }
        };
        if lost || dropped {
            return self.begin_anew();
        }
        self.learn(is_full, answer);
        self.id = id;
        self.epoch = if id == NO_SESSION {
            INITIAL_EPOCH
        } else {
            self.epoch + 1
        };
    }

    fn begin_anew(&mut self) {
        self.epoch = INITIAL_EPOCH;
    }

    /// Reads as the handler does, one record a partition.
    fn read(&mut self, session: &mut Session, room: i64, all: bool) -> Vec<PartitionData> {
        let mut room = room;
        if all {
            // The order begins anew.
            self.starved.clear();
        }
        let mut answer = Vec::new();
        let mut found = Vec::new();
        for (place, part) in session.parts() {
            let log = self.logs[part.index as usize];
            let mut data = PartitionData {
                partition_index: part.index,
                high_watermark: log.end,
                last_stable_offset: log.stable,
                log_start_offset: log.start,
                records: Some(Bytes::new()),
                ..PartitionData::default()
            };
            if log.fails {
                data.error_code = ErrorCode::KAFKA_STORAGE_ERROR;
            } else if part.asked.offset < log.end {
                let starved = self.starved.entry(part.index).or_default();
                *starved += usize::from(room > 0);
                assert!(
                    *starved <= PARTITIONS as usize + 1,
                    "{} starves",
                    part.index
                );
                if room > 0 {
                    *starved = 0;
                    room -= 1;
                    data.records = Some(Bytes::from_static(b"x"));
                }
            }
            if all || !part.told.knows(&data) {
                found.push((place, data));
            }
        }
        for (place, data) in found {
            session.answered(place, &data);
            answer.push(data);
        }
        answer
    }

    /// The client takes what it was told; the rest it believes to be as it was.
    fn learn(&mut self, is_full: bool, answer: Vec<PartitionData>) {
        let mut told = BTreeSet::new();
        for data in answer {
            let index = data.partition_index;
            assert!(told.insert(index), "once an answer");
            let belief = self.beliefs.entry(index).or_default();
            belief.log = Log {
                end: data.high_watermark,
                stable: data.last_stable_offset,
                start: data.log_start_offset,
                fails: !data.error_code.is_ok(),
            };
            belief.offset += data.records.map_or(0, |records| records.len() as i64);
        }
        for index in &self.wanted {
            assert!(!is_full || told.contains(index), "a full answer has all");
            let belief = self.beliefs[index];
            let log = self.logs[*index as usize];
            assert_eq!(belief.log.fails, log.fails, "partition {index}");
            assert!(
                !log.fails || told.contains(index),
                "errors are told each time"
            );
            assert_eq!(belief.log, log, "partition {index}");
        }
    }
}

#[test]
fn a_limit_of_bytes_goes_around() {
    let mut world = World::new(true);
    let fetch = Act::Fetch {
        room: 1,
        lost: false,
        dropped: false,
    };
    for round in 1..=3 {
        (0..PARTITIONS).for_each(|index| world.act(Act::Append(index)));
        (0..PARTITIONS).for_each(|index| world.act(Act::Append(index)));
        (0..PARTITIONS).for_each(|_| world.act(fetch.clone()));
        for index in 0..PARTITIONS {
            assert_eq!(world.beliefs[&index].offset, round, "partition {index}");
        }
    }
}

proptest! {
    #[test]
    fn what_is_left_out_is_as_the_client_believes(
        by_id in any::<bool>(),
        acts in prop::collection::vec(act(), 1..200),
    ) {
        let mut world = World::new(by_id);
        for act in acts {
            world.act(act);
        }
        // Left alone, the client reads everything there is.
        for index in 0..PARTITIONS {
            world.act(Act::Fail(index, false));
            world.act(Act::Want(index, true));
        }
        let fetch = Act::Fetch { room: 1, lost: false, dropped: false };
        let left: i64 = world.logs.iter().map(|log| log.end).sum();
        for _ in 0..left + 2 {
            world.act(fetch.clone());
        }
        for index in 0..PARTITIONS {
            prop_assert_eq!(world.beliefs[&index].offset, world.logs[index as usize].end);
        }
    }
}
