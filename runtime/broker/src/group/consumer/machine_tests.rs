//! What members of a consumer group are told, step by step.
//!
//! Invariants: see the names of the tests. Every step is written down and read back, and the
//! group that comes out is the one that went in.
//! Never: real time.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_protocol::{ErrorCode, Uuid};

use super::assignor::Assignor;
use super::difference::{Stored, difference};
use super::event::{Beat, BeatReply, JOIN, LEAVE, Limits, PAUSE, Refusal, TopicShape, TopicTable};
use super::machine::ConsumerGroup;
use super::member::Partitions;
use super::record::ConsumerRecord;
use super::state::{GroupState, MemberState};
use crate::group::event::{Leaver, MemberClaim};
use crate::pattern::Pattern;

pub(super) const SESSION_MS: i64 = 45_000;
pub(super) const REBALANCE_MS: i32 = 60_000;

/// The topics of a test.
#[derive(Clone, Debug, Default)]
pub(super) struct Topics {
    shapes: BTreeMap<String, TopicShape>,
    version: u64,
}

impl Topics {
    pub(super) fn set(&mut self, name: &str, partition_count: i32) {
        let id = topic_id(name);
        let shape = TopicShape {
            id,
            partition_count,
        };
        self.shapes.insert(name.to_owned(), shape);
        self.version += 1;
    }

    pub(super) fn drop(&mut self, name: &str) {
        self.shapes.remove(name);
        self.version += 1;
    }
}

impl TopicTable for Topics {
    fn version(&self) -> u64 {
        self.version
    }

    fn shape(&self, name: &str) -> Option<TopicShape> {
        self.shapes.get(name).copied()
    }

    fn matching(&self, regex: &str) -> Arc<[Arc<str>]> {
        let pattern = Pattern::parse(regex).expect("a test's expression is one");
        let names = self.shapes.keys();
        names
            .filter(|name| pattern.matches(name))
            .map(|name| Arc::from(name.as_str()))
            .collect()
    }
}

pub(super) fn topic_id(name: &str) -> Uuid {
    let mut id = [0; 16];
    for (byte, of_name) in id.iter_mut().zip(name.bytes()) {
        *byte = of_name;
    }
    Uuid(id)
}

pub(super) fn partitions(name: &str, set: impl IntoIterator<Item = i32>) -> Partitions {
    let set: std::collections::BTreeSet<i32> = set.into_iter().collect();
    match set.is_empty() {
        true => Partitions::new(),
        false => [(topic_id(name), set)].into(),
    }
}

/// A group, its topics and its log.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) group: ConsumerGroup,
    pub(super) topics: Topics,
    pub(super) now_ms: i64,
    pub(super) limits: Limits,
    log: Stored,
    exists: bool,
}

impl Room {
    pub(super) fn new() -> Room {
        let mut topics = Topics::default();
        topics.set("orders", 6);
        Room {
            group: ConsumerGroup::default(),
            topics,
            now_ms: 0,
            limits: Limits {
                session_timeout_ms: i32::try_from(SESSION_MS).unwrap(),
                members_max: 10,
            },
            log: Stored::default(),
            exists: false,
        }
    }

    /// Applies a heartbeat as the shard does, and checks what it writes.
    pub(super) fn beat(&mut self, beat: &Beat) -> Result<BeatReply, Refusal> {
        let (now_ms, limits) = (self.now_ms, self.limits);
        if let Some(reply) = self.group.beat_quietly(now_ms, beat, limits, &self.topics) {
            return Ok(reply);
        }
        let mut after = self.group.clone();
        let reply = after.beat(now_ms, beat, limits, &self.topics)?;
        self.write(after);
        Ok(reply)
    }

    fn write(&mut self, after: ConsumerGroup) -> Vec<ConsumerRecord> {
        let before = self.exists.then_some(&self.group);
        let records = difference(before, Some(&after));
        for record in &records {
            let (key, value) = record.encode("g").expect("it has a form");
            let record_type = i16::from_be_bytes([key[0], key[1]]);
            let read = ConsumerRecord::decode(record_type, key, value).expect("it can be read");
            assert_eq!(read, ("g".to_owned(), record.clone()));
            self.log.apply(record.clone());
        }
        self.group = after;
        self.exists = true;
        let loaded = self
            .log
            .clone()
            .into_group(self.limits, 0)
            .expect("a group");
        assert_eq!(difference(Some(&self.group), Some(&loaded)), []);
        records
    }

    pub(super) fn tick(&mut self) {
        let mut after = self.group.clone();
        after.tick(self.now_ms, &self.topics);
        self.write(after);
    }

    pub(super) fn wait(&mut self, ms: i64) {
        self.now_ms += ms;
        if self
            .group
            .next_deadline_ms()
            .is_some_and(|due| due <= self.now_ms)
        {
            self.tick();
        }
    }

    /// The broker is killed and comes back.
    pub(super) fn restart(&mut self) {
        let loaded = self.log.clone().into_group(self.limits, self.now_ms);
        self.group = loaded.unwrap_or_default();
    }

    fn join(&mut self, id: &str) -> BeatReply {
        self.beat(&join(id)).expect("it may join")
    }

    /// A member that owns what it was told and asks again.
    fn again(&mut self, id: &str, epoch: i32, owned: Partitions) -> BeatReply {
        self.beat(&owning(id, epoch, owned))
            .expect("it is believed")
    }
}

pub(super) fn join(id: &str) -> Beat {
    Beat {
        rebalance_timeout_ms: Some(REBALANCE_MS),
        topics: Some(vec!["orders".to_owned()]),
        owned: Some(Partitions::new()),
        ..quiet(id, JOIN)
    }
}

pub(super) fn quiet(id: &str, epoch: i32) -> Beat {
    Beat {
        member_id: id.to_owned(),
        member_epoch: epoch,
        client_id: "client".to_owned(),
        client_host: "/127.0.0.1".to_owned(),
        ..Beat::default()
    }
}

pub(super) fn owning(id: &str, epoch: i32, owned: Partitions) -> Beat {
    Beat {
        owned: Some(owned),
        ..quiet(id, epoch)
    }
}

fn of_instance(beat: Beat, instance: &str) -> Beat {
    Beat {
        instance_id: Some(instance.to_owned()),
        ..beat
    }
}

fn error(answer: Result<BeatReply, Refusal>) -> ErrorCode {
    answer.expect_err("it is refused").error
}

#[test]
fn the_first_member_gets_everything_at_epoch_one() {
    let mut room = Room::new();
    let reply = room.join("a");
    assert_eq!(reply.member_epoch, 1);
    assert_eq!(reply.assignment, Some(partitions("orders", 0..6)));
    assert_eq!(room.group.state(), GroupState::Stable);
    let before = room.group.clone();
    let reply = room.beat(&quiet("a", 1)).expect("quiet");
    assert_eq!((reply.member_epoch, reply.assignment), (1, None));
    assert_eq!(difference(Some(&before), Some(&room.group)), []);
}

#[test]
fn a_partition_is_given_only_after_its_owner_has_let_it_go() {
    let mut room = Room::new();
    room.join("a");
    let reply = room.join("b");
    assert_eq!(
        (reply.member_epoch, reply.assignment),
        (2, Some(Partitions::new()))
    );
    assert_eq!(room.group.state(), GroupState::Reconciling);

    let reply = room.beat(&quiet("a", 1)).expect("it is asked to give up");
    assert_eq!(reply.member_epoch, 1, "until it has given up");
    assert_eq!(reply.assignment, Some(partitions("orders", 0..3)));
    let reply = room.again("a", 1, partitions("orders", 0..6));
    assert_eq!(
        (reply.member_epoch, reply.assignment),
        (1, None),
        "it still owns them"
    );
    let reply = room.beat(&quiet("b", 2)).expect("it waits");
    assert_eq!((reply.member_epoch, reply.assignment), (2, None));

    let reply = room.again("a", 1, partitions("orders", 0..3));
    assert_eq!(reply.member_epoch, 2);
    let reply = room.beat(&quiet("b", 2)).expect("it gets them");
    assert_eq!(
        (reply.member_epoch, reply.assignment),
        (2, Some(partitions("orders", 3..6)))
    );
    assert_eq!(room.group.state(), GroupState::Stable);
}

#[test]
fn a_member_whose_answer_was_lost_is_believed_with_the_epoch_before() {
    let mut room = Room::new();
    room.join("a");
    room.join("b");
    room.beat(&quiet("a", 1)).expect("asked");
    let full = Beat {
        owned: Some(partitions("orders", 0..3)),
        member_epoch: 1,
        ..join("a")
    };
    assert_eq!(room.beat(&full).expect("moves on").member_epoch, 2);
    let reply = room.beat(&full).expect("believed again");
    assert_eq!(reply.member_epoch, 2);
    assert_eq!(
        reply.assignment,
        Some(partitions("orders", 0..3)),
        "it said everything"
    );
    let more = owning("a", 1, partitions("orders", 0..4));
    assert_eq!(error(room.beat(&more)), ErrorCode::FENCED_MEMBER_EPOCH);
    assert_eq!(
        error(room.beat(&quiet("a", 1))),
        ErrorCode::FENCED_MEMBER_EPOCH
    );
    assert_eq!(
        error(room.beat(&quiet("a", 3))),
        ErrorCode::FENCED_MEMBER_EPOCH
    );
    assert_eq!(
        error(room.beat(&quiet("c", 2))),
        ErrorCode::UNKNOWN_MEMBER_ID
    );
}

#[test]
fn a_known_member_that_joins_is_told_its_assignment_again_and_lets_go_of_nothing_by_that() {
    let mut room = Room::new();
    room.join("a");
    room.join("b");
    room.beat(&quiet("a", 1)).expect("asked to give up");
    // It may be an old join that was sent twice, while the member reads on.
    let reply = room.join("a");
    assert_eq!(
        (reply.member_epoch, reply.assignment),
        (1, Some(partitions("orders", 0..3)))
    );
    room.beat(&quiet("b", 2)).expect("waits");
    assert_eq!(room.group.members["b"].current.assigned, Partitions::new());
    room.again("a", 1, partitions("orders", 0..6));
    room.beat(&quiet("b", 2)).expect("waits");
    assert_eq!(room.group.members["b"].current.assigned, Partitions::new());
    // Once it says what it has, that is believed.
    let reply = room.again("a", 1, partitions("orders", 0..3));
    assert_eq!(reply.member_epoch, 2);
    let reply = room.beat(&quiet("b", 2)).expect("gets its share");
    assert_eq!(reply.assignment, Some(partitions("orders", 3..6)));
}

#[test]
fn a_static_member_that_is_away_is_not_waited_for_to_give_something_up() {
    let mut room = Room::new();
    room.beat(&of_instance(join("a"), "i")).expect("joins");
    room.join("b");
    let asked = of_instance(quiet("a", 1), "i");
    room.beat(&asked).expect("asked to give up");
    let away = of_instance(quiet("a", PAUSE), "i");
    room.beat(&away).expect("will be back");
    let held = |room: &Room| room.group.members["a"].clone();
    assert_eq!(held(&room).current.state, MemberState::Stable);
    assert_eq!(held(&room).rebalance_deadline_ms, None);
    room.restart();
    assert_eq!(held(&room).rebalance_deadline_ms, None);
    let reply = room.beat(&quiet("b", 2)).expect("gets its share");
    assert_eq!(reply.assignment, Some(partitions("orders", 3..6)));
}

#[test]
fn a_commit_under_a_passed_epoch_counts_for_what_the_member_has_had_since() {
    let mut room = Room::new();
    let commits = |room: &Room, epoch, set: std::ops::Range<i32>, transactional| {
        let claim = MemberClaim {
            member_id: "a".to_owned(),
            group_instance_id: None,
            generation: epoch,
        };
        let set: Vec<_> = set
            .map(|partition| (topic_id("orders"), partition))
            .collect();
        room.group
            .validate_commit(&claim, transactional, true, &set)
    };
    let stale = Err(ErrorCode::STALE_MEMBER_EPOCH);
    room.join("a");
    room.join("b");
    room.beat(&quiet("a", 1)).expect("asked to give up");
    // What it has still to give up is its own until then.
    assert_eq!(commits(&room, 1, 0..6, false), Ok(()));
    room.again("a", 1, partitions("orders", 0..3));
    for _ in 0..2 {
        assert_eq!(commits(&room, 2, 0..6, false), Ok(()));
        assert_eq!(commits(&room, 1, 0..3, false), Ok(()));
        assert_eq!(commits(&room, 1, 0..3, true), Ok(()));
        assert_eq!(commits(&room, 1, 0..4, false), stale);
        let illegal = Err(ErrorCode::ILLEGAL_GENERATION);
        assert_eq!(commits(&room, 1, 3..4, true), illegal);
        assert_eq!(commits(&room, 0, 0..1, false), stale);
        assert_eq!(commits(&room, 3, 0..1, false), stale);
        room.restart();
    }
    // It gets back what another had in between.
    room.beat(&quiet("b", LEAVE)).expect("leaves");
    room.beat(&quiet("a", 2)).expect("gets all");
    assert_eq!(room.group.members["a"].current.epoch, 3);
    assert_eq!(commits(&room, 2, 0..3, false), Ok(()));
    assert_eq!(commits(&room, 2, 0..4, false), stale);
    // Who joins again has nothing to do with what it read before.
    room.join("a");
    assert_eq!(commits(&room, 2, 0..1, false), stale);
    assert_eq!(commits(&room, 3, 0..6, false), Ok(()));
}

#[test]
fn who_leaves_or_is_silent_or_does_not_let_go_loses_its_partitions() {
    let mut room = Room::new();
    room.join("a");
    room.join("b");
    let reply = room.beat(&quiet("a", LEAVE)).expect("leaves");
    assert_eq!(reply.member_epoch, LEAVE);
    assert_eq!(room.group.state(), GroupState::Assigning);
    let reply = room.beat(&quiet("b", 2)).expect("gets all");
    assert_eq!(
        (reply.member_epoch, reply.assignment),
        (3, Some(partitions("orders", 0..6)))
    );

    room.join("c");
    room.beat(&quiet("b", 3)).expect("asked to give up");
    room.wait(SESSION_MS - 1);
    room.beat(&quiet("b", 3)).expect("alive, but it holds on");
    room.wait(1);
    assert_eq!(
        error(room.beat(&quiet("c", 4))),
        ErrorCode::UNKNOWN_MEMBER_ID,
        "silent"
    );
    room.join("d");
    room.wait(i64::from(REBALANCE_MS) - SESSION_MS);
    assert_eq!(
        error(room.beat(&quiet("b", 3))),
        ErrorCode::UNKNOWN_MEMBER_ID,
        "holds on"
    );
    let epoch = room.group.members["d"].current.epoch;
    let reply = room.beat(&quiet("d", epoch)).expect("gets all");
    assert_eq!(reply.assignment, Some(partitions("orders", 0..6)));
    room.wait(SESSION_MS);
    assert_eq!(room.group.state(), GroupState::Empty);
    assert_eq!(room.group.next_deadline_ms(), None);
}

#[test]
fn a_static_member_comes_back_to_its_partitions_without_a_rebalance() {
    let mut room = Room::new();
    room.beat(&of_instance(join("a"), "i")).expect("joins");
    room.join("b");
    room.beat(&of_instance(quiet("a", 1), "i")).expect("asked");
    let owned = partitions("orders", 0..3);
    let beat = of_instance(owning("a", 1, owned.clone()), "i");
    room.beat(&beat).expect("gives up");
    room.beat(&quiet("b", 2)).expect("gets its half");
    let early = room.beat(&of_instance(join("z"), "i"));
    assert_eq!(error(early), ErrorCode::UNRELEASED_INSTANCE_ID);
    room.beat(&of_instance(quiet("a", PAUSE), "i"))
        .expect("will be back");
    let reply = room.beat(&quiet("b", 2)).expect("nothing moves");
    assert_eq!((reply.member_epoch, reply.assignment), (2, None));
    room.restart();

    let reply = room.beat(&of_instance(join("z"), "i")).expect("is back");
    assert_eq!((reply.member_epoch, reply.assignment), (2, Some(owned)));
    let fenced = room.beat(&of_instance(quiet("a", 2), "i"));
    assert_eq!(error(fenced), ErrorCode::FENCED_INSTANCE_ID);
    assert_eq!(
        error(room.beat(&quiet("a", 2))),
        ErrorCode::UNKNOWN_MEMBER_ID
    );
    let nobody = room.beat(&of_instance(quiet("z", LEAVE), "other"));
    assert_eq!(error(nobody), ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(room.group.state(), GroupState::Stable);
    assert_eq!(room.group.epoch, 2);
}

#[test]
fn a_static_member_that_does_not_come_back_loses_its_place_with_its_session() {
    let mut room = Room::new();
    room.beat(&of_instance(join("a"), "i")).expect("joins");
    room.beat(&of_instance(quiet("a", PAUSE), "i"))
        .expect("goes");
    room.wait(SESSION_MS - 1);
    assert_eq!(room.group.members.len(), 1);
    room.wait(1);
    assert_eq!(room.group.state(), GroupState::Empty);
    assert_eq!(
        room.beat(&of_instance(join("z"), "i"))
            .expect("new")
            .member_epoch,
        3
    );
}

#[test]
fn a_member_that_takes_another_instance_id_gives_up_the_one_before() {
    let mut room = Room::new();
    room.beat(&of_instance(join("a"), "i")).expect("joins");
    room.beat(&of_instance(join("a"), "j")).expect("anew");
    let held = room.beat(&of_instance(join("b"), "j"));
    assert_eq!(error(held), ErrorCode::UNRELEASED_INSTANCE_ID);
    let ids = room.group.static_ids.clone();
    room.restart();
    assert_eq!(room.group.static_ids, ids, "as it is read back");
    room.beat(&of_instance(join("b"), "i")).expect("it is free");
}

#[test]
fn topics_that_come_grow_and_go_are_seen_at_the_next_heartbeat() {
    let mut room = Room::new();
    room.topics.drop("orders");
    let reply = room.join("a");
    assert_eq!(reply.assignment, Some(Partitions::new()));
    room.topics.set("orders", 2);
    let reply = room.beat(&quiet("a", 1)).expect("sees it");
    assert_eq!(
        (reply.member_epoch, reply.assignment),
        (2, Some(partitions("orders", 0..2)))
    );
    room.topics.set("orders", 3);
    let reply = room.beat(&quiet("a", 2)).expect("sees it");
    assert_eq!(
        (reply.member_epoch, reply.assignment),
        (3, Some(partitions("orders", 0..3)))
    );
    room.topics.set("unrelated", 3);
    assert_eq!(room.beat(&quiet("a", 3)).expect("quiet").member_epoch, 3);
    room.topics.drop("orders");
    let reply = room.beat(&quiet("a", 3)).expect("is to let go");
    assert_eq!(
        (reply.member_epoch, reply.assignment),
        (3, Some(Partitions::new()))
    );
    let reply = room.again("a", 3, Partitions::new());
    assert_eq!(reply.member_epoch, 4);
}

#[test]
fn an_expression_follows_the_topics_that_match_it() {
    let mut room = Room::new();
    let regex = Beat {
        topics: None,
        regex: Some("o.*s".to_owned()),
        ..join("a")
    };
    let reply = room.beat(&regex).expect("joins");
    assert_eq!(reply.assignment, Some(partitions("orders", 0..6)));
    room.topics.set("payments", 2);
    assert_eq!(room.beat(&quiet("a", 1)).expect("quiet").member_epoch, 1);
    room.topics.set("others", 2);
    room.restart();
    let reply = room.beat(&quiet("a", 1)).expect("sees it");
    let mut both = partitions("orders", 0..6);
    both.extend(partitions("others", 0..2));
    assert_eq!((reply.member_epoch, reply.assignment), (2, Some(both)));
    let none = Beat {
        regex: Some(String::new()),
        ..quiet("a", 2)
    };
    let reply = room.beat(&none).expect("reads nothing");
    assert_eq!(reply.assignment, Some(Partitions::new()));
}

#[test]
fn a_changed_subscription_takes_what_is_not_read_any_more_at_once() {
    let mut room = Room::new();
    room.topics.set("customers", 2);
    room.join("a");
    let changed = Beat {
        topics: Some(vec!["customers".to_owned()]),
        ..quiet("a", 1)
    };
    let reply = room.beat(&changed).expect("is to let go");
    assert_eq!(
        (reply.member_epoch, reply.assignment),
        (1, Some(Partitions::new()))
    );
    let both = Beat {
        topics: Some(vec!["customers".to_owned(), "orders".to_owned()]),
        ..owning("a", 1, Partitions::new())
    };
    let reply = room.beat(&both).expect("has let go");
    let mut everything = partitions("orders", 0..6);
    everything.extend(partitions("customers", 0..2));
    assert_eq!(reply.assignment, Some(everything));
    assert_eq!(room.group.members["a"].current.state, MemberState::Stable);
}

#[test]
fn a_group_is_full_for_newcomers_only_and_votes_for_its_assignor() {
    let mut room = Room::new();
    room.limits.members_max = 2;
    let range = |id: &str| Beat {
        assignor: Some(Assignor::Range),
        ..join(id)
    };
    assert_eq!(room.group.assignor(), Assignor::Uniform);
    room.beat(&range("a")).expect("joins");
    room.join("b");
    assert_eq!(room.group.assignor(), Assignor::Range);
    assert_eq!(
        error(room.beat(&join("c"))),
        ErrorCode::GROUP_MAX_SIZE_REACHED
    );
    room.join("a");
    assert_eq!(room.group.members.len(), 2);
}

#[test]
fn commits_and_fetches_need_the_current_epoch() {
    let mut room = Room::new();
    let claim = |id: &str, generation| MemberClaim {
        member_id: id.to_owned(),
        group_instance_id: None,
        generation,
    };
    let nobody = claim("", -1);
    let first = [(topic_id("orders"), 0)];
    assert_eq!(
        room.group.validate_commit(&nobody, false, true, &first),
        Ok(())
    );
    room.join("a");
    let group = &room.group;
    assert_eq!(
        group.validate_commit(&claim("a", 1), false, true, &first),
        Ok(())
    );
    assert_eq!(
        group.validate_commit(&claim("a", 1), true, false, &first),
        Ok(())
    );
    assert_eq!(group.validate_commit(&nobody, true, false, &first), Ok(()));
    for (claim, transactional, knows_epochs, expected) in [
        (&nobody, false, true, ErrorCode::UNKNOWN_MEMBER_ID),
        (&claim("b", 1), false, true, ErrorCode::UNKNOWN_MEMBER_ID),
        (&claim("a", 0), false, true, ErrorCode::STALE_MEMBER_EPOCH),
        (&claim("a", 2), false, true, ErrorCode::STALE_MEMBER_EPOCH),
        (&claim("a", 2), true, false, ErrorCode::ILLEGAL_GENERATION),
        (&claim("a", 1), false, false, ErrorCode::UNSUPPORTED_VERSION),
    ] {
        let answer = group.validate_commit(claim, transactional, knows_epochs, &first);
        assert_eq!(answer, Err(expected), "{claim:?}");
    }
    assert_eq!(group.validate_fetch(None, -1), Ok(()));
    assert_eq!(group.validate_fetch(Some("a"), 1), Ok(()));
    assert_eq!(
        group.validate_fetch(Some("a"), 0),
        Err(ErrorCode::STALE_MEMBER_EPOCH)
    );
    assert_eq!(
        group.validate_fetch(Some("b"), 1),
        Err(ErrorCode::UNKNOWN_MEMBER_ID)
    );
    assert_eq!(
        group.validate_fetch(None, 1),
        Err(ErrorCode::UNKNOWN_MEMBER_ID)
    );
}

#[test]
fn an_administrator_removes_members_by_id_or_instance() {
    let mut room = Room::new();
    room.beat(&of_instance(join("a"), "i")).expect("joins");
    room.join("b");
    let leaver = |id: &str, instance: Option<&str>| Leaver {
        member_id: id.to_owned(),
        group_instance_id: instance.map(str::to_owned),
    };
    let leavers = [
        leaver("b", Some("i")),
        leaver("", Some("i")),
        leaver("c", None),
        leaver("b", None),
        leaver("b", None),
    ];
    let mut after = room.group.clone();
    let answers = after.expel(&leavers, &room.topics);
    let unknown = ErrorCode::UNKNOWN_MEMBER_ID;
    let fenced = ErrorCode::FENCED_INSTANCE_ID;
    assert_eq!(
        answers,
        [fenced, ErrorCode::NONE, unknown, ErrorCode::NONE, unknown]
    );
    assert_eq!((after.state(), after.epoch), (GroupState::Empty, 3));
}

#[test]
fn a_group_that_is_deleted_leaves_tombstones_for_all_that_was_written() {
    let mut room = Room::new();
    room.join("a");
    let mut log = Stored::default();
    for record in difference(None, Some(&room.group)) {
        log.apply(record);
    }
    assert!(log.clone().into_group(room.limits, 0).is_some());
    for record in difference(Some(&room.group), None) {
        log.apply(record);
    }
    assert_eq!(log, Stored::default());
}

/// A client that is told nothing yet says everything with every heartbeat, as librdkafka does.
fn all_of_it(id: &str, epoch: i32, topics: &[&str]) -> Beat {
    Beat {
        topics: Some(topics.iter().map(|topic| (*topic).to_owned()).collect()),
        member_epoch: epoch,
        ..join(id)
    }
}

#[test]
fn a_member_whose_leave_was_lost_and_that_joins_and_subscribes_again_gets_its_target() {
    let mut room = Room::new();
    room.topics.set("customers", 4);
    room.topics.set("payments", 2);
    room.join("a");
    room.again("a", 1, partitions("orders", 0..6));
    // Its leave is lost. It owns nothing, and the group does not know that.
    let reply = room
        .beat(&all_of_it("a", JOIN, &["customers"]))
        .expect("joins");
    assert_eq!(reply.assignment, Some(Partitions::new()));
    let mut epoch = reply.member_epoch;
    for topics in [&["payments"][..], &["orders", "payments"], &["customers"]] {
        let reply = room.beat(&all_of_it("a", epoch, topics));
        epoch = reply.expect("is believed").member_epoch;
    }
    // What the answers before gave it is taken back first.
    let reply = room
        .beat(&all_of_it("a", epoch, &["customers"]))
        .expect("is believed");
    assert_eq!(reply.assignment, Some(partitions("customers", 0..4)));
    assert_eq!(room.group.state(), GroupState::Stable);
    // And it may leave in order, and come back as somebody new.
    room.beat(&quiet("a", LEAVE)).expect("leaves");
    let reply = room
        .beat(&all_of_it("a", JOIN, &["orders"]))
        .expect("joins");
    assert_eq!(reply.assignment, Some(partitions("orders", 0..6)));
}

#[test]
fn an_old_join_that_is_read_late_does_not_take_back_a_subscription() {
    let mut room = Room::new();
    room.topics.set("customers", 4);
    room.beat(&all_of_it("a", JOIN, &["orders"]))
        .expect("joins");
    // The answer is lost; the member joins again, has its partitions, and then reads otherwise.
    let reply = room.beat(&all_of_it("a", JOIN, &["orders"]));
    let mut epoch = reply.expect("joins").member_epoch;
    room.again("a", epoch, partitions("orders", 0..6));
    let mut answered = Partitions::new();
    for _ in 0..3 {
        let beat = Beat {
            owned: Some(answered),
            ..all_of_it("a", epoch, &["customers"])
        };
        let reply = room.beat(&beat).expect("is believed");
        epoch = reply.member_epoch;
        answered = reply.assignment.expect("is told");
    }
    assert_eq!(answered, partitions("customers", 0..4));
    let late = room.beat(&all_of_it("a", JOIN, &["orders"]));
    assert_eq!(error(late), ErrorCode::FENCED_MEMBER_EPOCH);
    let reply = room.again("a", epoch, partitions("customers", 0..4));
    assert_eq!(reply.member_epoch, epoch);
    let assigned = &room.group.members["a"].current.assigned;
    assert_eq!(*assigned, partitions("customers", 0..4));
    // One that says the same is an old one, or of a member whose answer was lost: it is told.
    let same = room.beat(&all_of_it("a", JOIN, &["customers"]));
    assert_eq!(
        same.expect("is told").assignment,
        Some(partitions("customers", 0..4))
    );
}
