//! The group under members that come, go, stall, restart and are cut off, and a broker that
//! crashes: whatever they do, no partition has two owners, and it ends even and complete.
//!
//! Invariants: members do only what a client does with the answers that it got; a client that is
//! told to, lets go some time later; one that does not know whether it was heard takes nothing
//! before it has asked.
//! Never: random beyond proptest's seed.

use std::collections::{BTreeMap, BTreeSet};

use millstream_protocol::{ErrorCode, Uuid};
use proptest::prelude::*;

use super::event::{Beat, JOIN, LEAVE, PAUSE};
use super::machine_tests::{REBALANCE_MS, Room, SESSION_MS, quiet};
use super::member::Partitions;
use super::state::GroupState;

const CLIENTS: usize = 5;
const TOPICS: [&str; 3] = ["orders", "customers", "payments"];

/// One thing that a client does, or that happens to it.
#[derive(Clone, Debug)]
enum Act {
    /// It sends a heartbeat, and hears the answer or not.
    Beat {
        client: usize,
        heard: bool,
    },
    /// It lets go of what it was told to, or takes what it was given.
    Obey {
        client: usize,
    },
    /// It wants other topics.
    Subscribe {
        client: usize,
        topics: BTreeSet<usize>,
    },
    /// It leaves in order.
    Leave {
        client: usize,
    },
    /// It dies, and the next one with its name is another process.
    Die {
        client: usize,
    },
    /// A static one stops in order, to be back.
    Pause {
        client: usize,
    },
    Wait {
        ms: i64,
    },
    Grow {
        topic: usize,
    },
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    let client = 0..CLIENTS;
    let topics = prop::collection::btree_set(0..TOPICS.len(), 0..3);
    prop_oneof![
        12 => (client.clone(), prop::bool::weighted(0.85))
            .prop_map(|(client, heard)| Act::Beat { client, heard }),
        8 => client.clone().prop_map(|client| Act::Obey { client }),
        2 => (client.clone(), topics)
            .prop_map(|(client, topics)| Act::Subscribe { client, topics }),
        1 => client.clone().prop_map(|client| Act::Leave { client }),
        1 => client.clone().prop_map(|client| Act::Die { client }),
        1 => client.prop_map(|client| Act::Pause { client }),
        3 => (1..20_000_i64).prop_map(|ms| Act::Wait { ms }),
        1 => (0..TOPICS.len()).prop_map(|topic| Act::Grow { topic }),
        1 => Just(Act::Restart),
    ]
}

/// What a client believes. Even numbers are static members.
#[derive(Clone, Debug, Default)]
struct Client {
    number: usize,
    incarnation: usize,
    epoch: i32,
    topics: BTreeSet<usize>,
    owned: Partitions,
    told: Partitions,
    /// Its session would be over if it has not been heard since.
    heard_ms: i64,
    /// It does not know whether the last heartbeat arrived, so it says everything.
    unsure: bool,
    subscribed: bool,
    /// It was told an assignment, and has not answered with what it owns.
    owes_answer: bool,
}

impl Client {
    fn id(&self) -> String {
        format!("c{}-{}", self.number, self.incarnation)
    }

    /// Whether it says what it owns only when it has to: when it joins, does not know whether it
    /// was heard, or was told an assignment.
    fn is_terse(&self) -> bool {
        self.number.is_multiple_of(3)
    }

    fn is_static(&self) -> bool {
        self.number.is_multiple_of(2)
    }

    fn beat(&self, epoch: i32) -> Beat {
        let full = epoch == JOIN || self.unsure;
        let topics = self.topics.iter().map(|topic| TOPICS[*topic].to_owned());
        Beat {
            instance_id: self.is_static().then(|| format!("i{}", self.number)),
            rebalance_timeout_ms: full.then_some(REBALANCE_MS),
            topics: (full || !self.subscribed).then(|| topics.collect()),
            owned: (full || self.owes_answer || !self.is_terse()).then(|| self.owned.clone()),
            ..quiet(&self.id(), epoch)
        }
    }

    /// It owns nothing any more and has to join.
    fn begin_anew(&mut self) {
        self.epoch = JOIN;
        self.owned.clear();
        self.told.clear();
        self.unsure = false;
    }

    fn obey(&mut self) {
        let (owned, told) = (self.owned.clone(), self.told.clone());
        let kept = each(&owned).filter(|(topic, p)| has(&told, *topic, *p));
        let kept: Partitions = gather(kept);
        // What is to go goes first, and is told before anything is taken.
        self.owes_answer |= told != owned;
        self.owned = if kept == owned { told } else { kept };
    }
}

fn each(partitions: &Partitions) -> impl Iterator<Item = (Uuid, i32)> {
    let topics = partitions.iter();
    topics.flat_map(|(topic, set)| set.iter().map(|partition| (*topic, *partition)))
}

fn has(partitions: &Partitions, topic: Uuid, partition: i32) -> bool {
    partitions
        .get(&topic)
        .is_some_and(|set| set.contains(&partition))
}

fn gather(each: impl Iterator<Item = (Uuid, i32)>) -> Partitions {
    let mut partitions = Partitions::new();
    for (topic, partition) in each {
        partitions.entry(topic).or_default().insert(partition);
    }
    partitions
}

struct World {
    room: Room,
    clients: Vec<Client>,
    counts: BTreeMap<usize, i32>,
}

impl World {
    fn new() -> World {
        let mut room = Room::new();
        let counts = BTreeMap::from([(0, 6), (1, 3), (2, 5)]);
        for (topic, count) in &counts {
            room.topics.set(TOPICS[*topic], *count);
        }
        let client = |number| Client {
            number,
            topics: [0, 1, 2].into(),
            ..Client::default()
        };
        World {
            room,
            clients: (0..CLIENTS).map(client).collect(),
            counts,
        }
    }

    fn beat(&mut self, client: usize, heard: bool) {
        let now_ms = self.room.now_ms;
        let client = &mut self.clients[client];
        if client.unsure {
            // What it was told may not hold any more.
            client.told = client.owned.clone();
        }
        let beat = client.beat(client.epoch);
        let answer = self.room.beat(&beat);
        if !heard {
            client.unsure = true;
            return;
        }
        match answer {
            Ok(reply) => {
                client.epoch = reply.member_epoch;
                client.owes_answer = reply.assignment.is_some();
                client.told = reply.assignment.unwrap_or_else(|| client.told.clone());
                client.heard_ms = now_ms;
                client.unsure = false;
                client.subscribed = true;
            }
            Err(refusal) => match refusal.error {
                // Another process has the name, or holds it still: this one is over.
                ErrorCode::FENCED_INSTANCE_ID => {
                    client.begin_anew();
                    client.incarnation += 1;
                }
                _ => client.begin_anew(),
            },
        }
    }

    fn leave(&mut self, client: usize, epoch: i32) {
        let client = &mut self.clients[client];
        if client.epoch > 0 {
            client.owned.clear();
            // An answer is of no interest any more.
            let _ = self.room.beat(&client.beat(epoch));
        }
        client.begin_anew();
        client.incarnation += 1;
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Beat { client, heard } => self.beat(client, heard),
            Act::Obey { client } => self.clients[client].obey(),
            Act::Subscribe { client, topics } => {
                let client = &mut self.clients[client];
                client.topics = topics;
                client.subscribed = false;
            }
            Act::Leave { client } => self.leave(client, LEAVE),
            Act::Pause { client } if self.clients[client].is_static() => self.leave(client, PAUSE),
            Act::Pause { .. } => {}
            Act::Die { client } => {
                let client = &mut self.clients[client];
                client.begin_anew();
                client.incarnation += 1;
            }
            Act::Wait { ms } => self.wait(ms),
            Act::Grow { topic } => {
                let count = self.counts.get_mut(&topic).unwrap();
                *count += 1;
                self.room.topics.set(TOPICS[topic], *count);
            }
            Act::Restart => self.room.restart(),
        }
    }

    /// Time passes. A client that was not heard for a session, or that was slow to let go, stops
    /// by itself before the broker gives its partitions away.
    fn wait(&mut self, ms: i64) {
        let until = self.room.now_ms + ms;
        for client in &mut self.clients {
            let slow = self.room.group.members.get(&client.id());
            let slow = slow.and_then(|member| member.rebalance_deadline_ms);
            if client.heard_ms + SESSION_MS <= until || slow.is_some_and(|due| due <= until) {
                client.begin_anew();
            }
        }
        self.room.wait(ms);
    }

    /// No two clients use a partition, and none uses what the group thinks free.
    fn check(&self) {
        let mut owners: BTreeMap<(Uuid, i32), String> = BTreeMap::new();
        for (id, member) in &self.room.group.members {
            let current = &member.current;
            for partition in each(&current.assigned).chain(each(&current.pending_revocation)) {
                let before = owners.insert(partition, id.clone());
                assert_eq!(
                    before, None,
                    "{partition:?} has two owners: {before:?} and {id}"
                );
            }
        }
        let mut users: BTreeMap<(Uuid, i32), String> = BTreeMap::new();
        for client in &self.clients {
            for partition in each(&client.owned) {
                let before = users.insert(partition, client.id());
                assert_eq!(
                    before,
                    None,
                    "{partition:?} is used twice, also by {}",
                    client.id()
                );
            }
        }
    }

    /// Everybody lives and obeys for a while.
    fn settle(&mut self) {
        self.wait(2 * i64::from(REBALANCE_MS));
        for _ in 0..30 {
            for client in 0..CLIENTS {
                self.beat(client, true);
                self.check();
                self.clients[client].obey();
                self.check();
            }
        }
    }
}

/// Rounds of heartbeats in which everybody gets what it is to have: to let go and to say so, to
/// take what others have let go, and to be told of it all.
const ROUNDS_MAX: usize = 8;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn who_obeys_and_answers_gets_its_target_within_some_heartbeats(
        acts in prop::collection::vec(act(), 1..120),
    ) {
        let mut world = World::new();
        for act in acts {
            world.act(act);
        }
        // Whoever is gone for good is so by now; everybody else is heard all the while.
        for _ in 0..16 {
            (0..CLIENTS).for_each(|client| world.beat(client, true));
            world.wait(i64::from(REBALANCE_MS) / 15);
        }
        for client in 0..CLIENTS {
            let client = &mut world.clients[client];
            client.topics = [client.number % 3].into();
            client.subscribed = false;
        }
        for _ in 0..ROUNDS_MAX {
            for client in 0..CLIENTS {
                world.beat(client, true);
                world.clients[client].obey();
                world.check();
            }
        }
        let group = &world.room.group;
        prop_assert_eq!(group.state(), GroupState::Stable);
        for client in &world.clients {
            let target = group.targets.get(&client.id()).cloned().unwrap_or_default();
            prop_assert_eq!(&client.owned, &target, "{}", client.id());
        }
    }

    #[test]
    fn no_partition_has_two_owners_and_everybody_gets_what_it_is_to_have(
        acts in prop::collection::vec(act(), 1..120),
    ) {
        let mut world = World::new();
        for act in acts {
            world.act(act);
            world.check();
        }
        world.settle();
        let group = &world.room.group;
        prop_assert_eq!(group.state(), GroupState::Stable);
        prop_assert_eq!(group.members.len(), CLIENTS);
        let mut used = 0;
        for client in &world.clients {
            // Who reads nothing has no target.
            let target = group.targets.get(&client.id()).cloned().unwrap_or_default();
            prop_assert_eq!(&client.owned, &target);
            used += each(&client.owned).count();
        }
        let read = |topic: &usize| world.clients.iter().any(|client| client.topics.contains(topic));
        let all: i32 = world.counts.iter().filter(|(t, _)| read(t)).map(|(_, count)| count).sum();
        prop_assert_eq!(i32::try_from(used).unwrap(), all, "everything that is read is used");
        let alike = world.clients.windows(2).all(|pair| pair[0].topics == pair[1].topics);
        if alike {
            let sizes = world.clients.iter().map(|client| each(&client.owned).count());
            prop_assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
        }
    }
}
