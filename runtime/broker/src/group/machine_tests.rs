//! The group machine seen from outside: what members are told, rebalance by rebalance.
//!
//! Invariants: every test drives the machine by events only.
//! Never: looks at wire types.

use bytes::Bytes;
use millstream_protocol::ErrorCode;

use super::event::{
    Event, Join, JoinReply, Leaver, MemberClaim, Protocol, Reply, Step, Sync, SyncReply, Token,
};
use super::machine::{Group, GroupLimits};
use super::state::GroupState;
use super::subscription::subscription;

/// A group, its time, and everything that it has answered.
pub(super) struct Room {
    pub(super) group: Group,
    pub(super) now_ms: i64,
    next_token: u64,
    pub(super) replies: Vec<(Token, Reply)>,
    pub(super) stored: usize,
}

pub(super) const SESSION_MS: i32 = 10_000;
pub(super) const REBALANCE_MS: i32 = 60_000;

impl Room {
    pub(super) fn new() -> Self {
        Self::with_limits(GroupLimits::default())
    }

    pub(super) fn with_limits(limits: GroupLimits) -> Self {
        let group = Group::new("g", limits, 0);
        Room {
            group,
            now_ms: 0,
            next_token: 0,
            replies: Vec::new(),
            stored: 0,
        }
    }

    /// Tokens name members here, so a room after a restart begins further up.
    pub(super) fn skip_tokens(&mut self, count: u64) {
        self.next_token += count;
    }

    pub(super) fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    pub(super) fn apply(&mut self, event: Event) {
        let Step { replies, store } = self.group.apply(self.now_ms, event);
        self.replies.extend(replies);
        self.stored += usize::from(store);
    }

    pub(super) fn wait(&mut self, ms: i64) {
        self.now_ms += ms;
        self.apply(Event::Tick);
    }

    pub(super) fn send_join(&mut self, change: impl FnOnce(&mut Join)) -> Token {
        let token = self.token();
        let mut join = join(token);
        change(&mut join);
        self.apply(Event::Join(join));
        token
    }

    /// A dynamic member of an old client joins, which needs no id before.
    pub(super) fn send_new(&mut self) -> Token {
        self.send_join(|_| {})
    }

    pub(super) fn send_static(&mut self, instance: &str) -> Token {
        self.send_join(|join| join.group_instance_id = Some(instance.to_owned()))
    }

    pub(super) fn send_again(&mut self, member: &str) -> Token {
        self.send_join(|join| join.member_id = member.to_owned())
    }

    pub(super) fn send_sync(
        &mut self,
        member: &str,
        generation: i32,
        assignments: &[(&str, &str)],
    ) -> Token {
        let token = self.token();
        let assignments = assignments
            .iter()
            .map(|(member, part)| {
                (
                    (*member).to_owned(),
                    Bytes::copy_from_slice(part.as_bytes()),
                )
            })
            .collect();
        self.apply(Event::Sync(Sync {
            token,
            member: claim(member, generation),
            protocol_type: None,
            protocol: None,
            assignments,
        }));
        token
    }

    pub(super) fn heartbeat(&mut self, claim: MemberClaim) -> ErrorCode {
        let token = self.token();
        self.apply(Event::Heartbeat {
            token,
            member: claim,
        });
        match self.take(token) {
            Some(Reply::Heartbeat(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn leave(&mut self, leavers: &[(&str, Option<&str>)]) -> Vec<ErrorCode> {
        let token = self.token();
        let leavers = leavers
            .iter()
            .map(|(member_id, instance)| Leaver {
                member_id: (*member_id).to_owned(),
                group_instance_id: instance.map(str::to_owned),
            })
            .collect();
        self.apply(Event::Leave { token, leavers });
        match self.take(token) {
            Some(Reply::Leave(errors)) => errors,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn take(&mut self, token: Token) -> Option<Reply> {
        let place = self
            .replies
            .iter()
            .position(|(answered, _)| *answered == token)?;
        Some(self.replies.remove(place).1)
    }

    pub(super) fn waits(&self, token: Token) -> bool {
        self.replies.iter().all(|(answered, _)| *answered != token)
    }

    pub(super) fn joined(&mut self, token: Token) -> JoinReply {
        match self.take(token) {
            Some(Reply::Join(reply)) => reply,
            other => panic!("{token:?}: {other:?}"),
        }
    }

    pub(super) fn synced(&mut self, token: Token) -> SyncReply {
        match self.take(token) {
            Some(Reply::Sync(reply)) => reply,
            other => panic!("{token:?}: {other:?}"),
        }
    }

    /// One member, alone and stable, in generation 1. Returns its id.
    pub(super) fn with_one(&mut self, instance: Option<&str>) -> String {
        let token = match instance {
            Some(instance) => self.send_static(instance),
            None => self.send_new(),
        };
        let joined = self.joined(token);
        assert!(joined.error.is_ok());
        let sync = self.send_sync(
            &joined.member_id,
            joined.generation,
            &[(&joined.member_id, "all")],
        );
        assert_eq!(self.synced(sync).assignment, "all");
        joined.member_id
    }

    /// A leader and a follower, stable, in generation 2.
    pub(super) fn with_two(&mut self, instances: [Option<&str>; 2]) -> [String; 2] {
        let leader = self.with_one(instances[0]);
        let second = match instances[1] {
            Some(instance) => self.send_static(instance),
            None => self.send_new(),
        };
        let first = self.send_again_as(&leader, instances[0]);
        let first = self.joined(first);
        let second = self.joined(second);
        assert_eq!((first.generation, second.generation), (2, 2));
        assert_eq!((&*first.leader, &*second.leader), (&*leader, &*leader));
        let follower = second.member_id;
        let waiting = self.send_sync(&follower, 2, &[]);
        assert!(self.waits(waiting));
        let leads = self.send_sync(&leader, 2, &[(&leader, "a"), (&follower, "b")]);
        assert_eq!(self.synced(leads).assignment, "a");
        assert_eq!(self.synced(waiting).assignment, "b");
        assert_eq!(self.group.state(), GroupState::Stable);
        [leader, follower]
    }

    pub(super) fn send_again_as(&mut self, member: &str, instance: Option<&str>) -> Token {
        self.send_join(|join| {
            join.member_id = member.to_owned();
            join.group_instance_id = instance.map(str::to_owned);
        })
    }
}

pub(super) fn join(token: Token) -> Join {
    Join {
        token,
        member_id: String::new(),
        group_instance_id: None,
        candidate_member_id: format!("member-{}", token.0),
        requires_known_member_id: false,
        supports_skipping_assignment: true,
        client_id: "client".to_owned(),
        client_host: "host".to_owned(),
        session_timeout_ms: SESSION_MS,
        rebalance_timeout_ms: REBALANCE_MS,
        protocol_type: "consumer".to_owned(),
        protocols: vec![protocol("range", &["orders"])],
    }
}

pub(super) fn protocol(name: &str, topics: &[&str]) -> Protocol {
    Protocol {
        name: name.to_owned(),
        metadata: subscription(topics, b""),
    }
}

pub(super) fn claim(member: &str, generation: i32) -> MemberClaim {
    MemberClaim {
        member_id: member.to_owned(),
        group_instance_id: None,
        generation,
    }
}

pub(super) fn static_claim(member: &str, instance: &str, generation: i32) -> MemberClaim {
    MemberClaim {
        group_instance_id: Some(instance.to_owned()),
        ..claim(member, generation)
    }
}

#[test]
fn the_first_member_leads_a_generation_of_its_own_at_once() {
    let mut room = Room::new();
    let token = room.send_new();
    let joined = room.joined(token);
    assert_eq!(joined.error, ErrorCode::NONE);
    assert_eq!(joined.generation, 1);
    assert_eq!(joined.leader, joined.member_id);
    assert_eq!(joined.protocol.as_deref(), Some("range"));
    assert_eq!(joined.protocol_type.as_deref(), Some("consumer"));
    assert_eq!(joined.members.len(), 1);
    assert_eq!(room.group.state(), GroupState::CompletingRebalance);
    assert_eq!(
        room.stored, 0,
        "nothing is written before there is an assignment"
    );
}

#[test]
fn a_new_dynamic_member_has_to_come_back_with_its_id() {
    let mut room = Room::new();
    let token = room.send_join(|join| join.requires_known_member_id = true);
    let answer = room.joined(token);
    assert_eq!(answer.error, ErrorCode::MEMBER_ID_REQUIRED);
    assert_eq!(room.group.state(), GroupState::Empty);
    let again = room.send_join(|join| {
        join.requires_known_member_id = true;
        join.member_id.clone_from(&answer.member_id);
    });
    let joined = room.joined(again);
    assert_eq!(
        (joined.error, joined.member_id),
        (ErrorCode::NONE, answer.member_id)
    );
}

#[test]
fn an_id_that_never_comes_back_is_forgotten_and_holds_up_nobody_for_longer() {
    let mut room = Room::new();
    let leader = room.with_one(None);
    let token = room.send_join(|join| join.requires_known_member_id = true);
    let lost = room.joined(token).member_id;
    let waiting = room.send_again(&leader);
    assert!(room.waits(waiting), "whoever was given an id is waited for");
    room.wait(i64::from(SESSION_MS));
    assert_eq!(room.joined(waiting).generation, 2);
    let late = room.send_again(&lost);
    assert_eq!(room.joined(late).error, ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn a_second_member_rebalances_the_group_and_both_get_their_part() {
    let mut room = Room::new();
    let leader = room.with_one(None);
    let second = room.send_new();
    assert!(room.waits(second));
    assert_eq!(
        room.heartbeat(claim(&leader, 1)),
        ErrorCode::REBALANCE_IN_PROGRESS
    );
    let first = room.send_again(&leader);
    let first = room.joined(first);
    let second = room.joined(second);
    assert_eq!((first.generation, second.generation), (2, 2));
    assert_eq!(first.members.len(), 2, "the leader sees everybody");
    assert!(second.members.is_empty(), "a follower sees nobody");
    assert_eq!(room.stored, 1);
}

#[test]
fn whoever_does_not_join_again_in_time_is_left_behind() {
    let mut room = Room::new();
    let [leader, follower] = room.with_two([None, None]);
    let third = room.send_new();
    let first = room.send_again(&leader);
    for _ in 0..6 {
        room.wait(9_000);
        assert_eq!(
            room.heartbeat(claim(&follower, 2)),
            ErrorCode::REBALANCE_IN_PROGRESS
        );
    }
    assert!(room.waits(first) && room.waits(third));
    room.wait(6_000);
    assert_eq!(room.joined(first).members.len(), 2);
    assert_eq!(room.joined(third).generation, 3);
    assert_eq!(
        room.heartbeat(claim(&follower, 2)),
        ErrorCode::UNKNOWN_MEMBER_ID
    );
}

#[test]
fn a_leader_that_is_late_gives_way_to_a_member_that_is_not() {
    let mut room = Room::new();
    let [leader, follower] = room.with_two([None, None]);
    let third = room.send_new();
    let second = room.send_again(&follower);
    room.wait(9_000);
    assert_eq!(
        room.heartbeat(claim(&leader, 2)),
        ErrorCode::REBALANCE_IN_PROGRESS
    );
    room.wait(10_000);
    let second = room.joined(second);
    let third = room.joined(third);
    assert_eq!(second.leader, third.leader);
    assert!(second.leader == second.member_id || third.leader == third.member_id);
}

#[test]
fn a_session_ends_without_a_sign_of_life_and_not_before() {
    let mut room = Room::new();
    let [leader, follower] = room.with_two([None, None]);
    room.wait(9_999);
    assert_eq!(room.heartbeat(claim(&leader, 2)), ErrorCode::NONE);
    assert_eq!(room.group.next_deadline_ms(), Some(10_000));
    room.wait(1);
    assert_eq!(
        room.heartbeat(claim(&follower, 2)),
        ErrorCode::UNKNOWN_MEMBER_ID
    );
    assert_eq!(
        room.heartbeat(claim(&leader, 2)),
        ErrorCode::REBALANCE_IN_PROGRESS
    );
}

#[test]
fn the_last_member_leaves_an_empty_group_of_a_later_generation() {
    let mut room = Room::new();
    let member = room.with_one(None);
    let stored = room.stored;
    assert_eq!(room.leave(&[(&member, None)]), [ErrorCode::NONE]);
    assert_eq!(room.group.state(), GroupState::Empty);
    assert_eq!(room.group.generation, 2);
    assert_eq!(
        room.stored,
        stored + 1,
        "a restart must not bring the member back"
    );
    assert_eq!(room.group.next_deadline_ms(), None);
}

#[test]
fn leaving_is_answered_for_each_leaver_and_by_instance_alone_too() {
    let mut room = Room::new();
    let [leader, _] = room.with_two([None, Some("i-2")]);
    let errors = room.leave(&[
        ("nobody", None),
        ("", Some("i-2")),
        ("", Some("i-9")),
        ("", None),
    ]);
    assert_eq!(
        errors,
        [
            ErrorCode::UNKNOWN_MEMBER_ID,
            ErrorCode::NONE,
            ErrorCode::UNKNOWN_MEMBER_ID,
            ErrorCode::UNKNOWN_MEMBER_ID
        ]
    );
    assert_eq!(
        room.heartbeat(claim(&leader, 2)),
        ErrorCode::REBALANCE_IN_PROGRESS
    );
}

#[test]
fn a_member_that_leaves_has_its_parked_requests_answered() {
    let mut room = Room::new();
    let leader = room.with_one(None);
    let second = room.send_new();
    let second_id = format!("member-{}", second.0);
    assert_eq!(room.leave(&[(&second_id, None)]), [ErrorCode::NONE]);
    assert_eq!(room.joined(second).error, ErrorCode::UNKNOWN_MEMBER_ID);
    let first = room.send_again(&leader);
    assert_eq!(room.joined(first).generation, 2);
}

#[test]
fn requests_of_other_generations_and_unknown_members_are_refused() {
    let mut room = Room::new();
    let member = room.with_one(None);
    assert_eq!(
        room.heartbeat(claim(&member, 0)),
        ErrorCode::ILLEGAL_GENERATION
    );
    assert_eq!(
        room.heartbeat(claim(&member, 2)),
        ErrorCode::ILLEGAL_GENERATION
    );
    assert_eq!(room.heartbeat(claim("x", 1)), ErrorCode::UNKNOWN_MEMBER_ID);
    let sync = room.send_sync(&member, 2, &[]);
    assert_eq!(room.synced(sync).error, ErrorCode::ILLEGAL_GENERATION);
    let sync = room.send_sync("x", 1, &[]);
    assert_eq!(room.synced(sync).error, ErrorCode::UNKNOWN_MEMBER_ID);
    let join = room.send_again("x");
    assert_eq!(room.joined(join).error, ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn a_protocol_that_not_all_support_is_refused() {
    let mut room = Room::new();
    room.with_one(None);
    let other_type = room.send_join(|join| join.protocol_type = "connect".to_owned());
    let other_name = room.send_join(|join| join.protocols = vec![protocol("sticky", &["orders"])]);
    for token in [other_type, other_name] {
        assert_eq!(
            room.joined(token).error,
            ErrorCode::INCONSISTENT_GROUP_PROTOCOL
        );
    }
    let mut empty = Room::new();
    let none = empty.send_join(|join| join.protocols = Vec::new());
    assert_eq!(
        empty.joined(none).error,
        ErrorCode::INCONSISTENT_GROUP_PROTOCOL
    );
}

#[test]
fn sync_checks_the_protocol_that_a_client_names() {
    let mut room = Room::new();
    let member = room.with_one(None);
    for (protocol_type, protocol, error) in [
        (Some("consumer"), Some("range"), ErrorCode::NONE),
        (
            Some("connect"),
            Some("range"),
            ErrorCode::INCONSISTENT_GROUP_PROTOCOL,
        ),
        (
            Some("consumer"),
            Some("sticky"),
            ErrorCode::INCONSISTENT_GROUP_PROTOCOL,
        ),
    ] {
        let token = room.token();
        room.apply(Event::Sync(Sync {
            token,
            member: claim(&member, 1),
            protocol_type: protocol_type.map(str::to_owned),
            protocol: protocol.map(str::to_owned),
            assignments: Vec::new(),
        }));
        assert_eq!(room.synced(token).error, error);
    }
}

#[test]
fn the_protocol_with_the_most_votes_among_the_common_ones_wins() {
    let mut room = Room::new();
    let names = |names: &[&str]| -> Vec<Protocol> {
        names
            .iter()
            .map(|name| protocol(name, &["orders"]))
            .collect()
    };
    let leader = room.send_join(|join| join.protocols = names(&["a", "b", "c"]));
    let leader = room.joined(leader);
    assert_eq!(leader.protocol.as_deref(), Some("a"));
    let second = room.send_join(|join| join.protocols = names(&["b", "c", "a"]));
    let third = room.send_join(|join| join.protocols = names(&["x", "b", "a"]));
    let first = room.send_join(|join| {
        join.member_id.clone_from(&leader.member_id);
        join.protocols = names(&["a", "b", "c"]);
    });
    for token in [first, second, third] {
        assert_eq!(room.joined(token).protocol.as_deref(), Some("b"));
    }
}

#[test]
fn a_follower_that_repeats_its_join_disturbs_nobody_but_a_leader_rebalances() {
    let mut room = Room::new();
    let [leader, follower] = room.with_two([None, None]);
    let again = room.send_again(&follower);
    assert_eq!(room.joined(again).generation, 2);
    assert_eq!(room.group.state(), GroupState::Stable);
    let again = room.send_again(&leader);
    assert!(room.waits(again));
    assert_eq!(room.group.state(), GroupState::PreparingRebalance);
}

#[test]
fn a_repeated_join_answers_the_one_before_so_that_nothing_waits_for_ever() {
    let mut room = Room::new();
    let [leader, _] = room.with_two([None, None]);
    let given_up = room.send_again(&leader);
    let again = room.send_again(&leader);
    assert_eq!(
        room.joined(given_up).error,
        ErrorCode::REBALANCE_IN_PROGRESS
    );
    assert!(room.waits(again));
}

#[test]
fn a_join_during_completing_rebalance_sends_the_waiting_syncs_back_to_join() {
    let mut room = Room::new();
    let leader = room.with_one(None);
    let second = room.send_new();
    let first = room.send_again(&leader);
    room.joined(first);
    let follower = room.joined(second).member_id;
    let waiting = room.send_sync(&follower, 2, &[]);
    let third = room.send_new();
    assert_eq!(room.synced(waiting).error, ErrorCode::REBALANCE_IN_PROGRESS);
    assert!(room.waits(third));
}

#[test]
fn a_member_that_never_syncs_is_removed_after_the_rebalance_timeout() {
    let mut room = Room::new();
    let leader = room.with_one(None);
    let second = room.send_new();
    let first = room.send_again(&leader);
    room.joined(first);
    let silent = room.joined(second).member_id;
    let leads = room.send_sync(&leader, 2, &[]);
    assert!(room.synced(leads).error.is_ok());
    for _ in 0..7 {
        room.wait(9_000);
        room.heartbeat(claim(&silent, 2));
        room.heartbeat(claim(&leader, 2));
    }
    assert_eq!(
        room.heartbeat(claim(&silent, 2)),
        ErrorCode::UNKNOWN_MEMBER_ID
    );
    assert_eq!(room.group.state(), GroupState::PreparingRebalance);
}

#[test]
fn a_new_member_whose_join_is_parked_too_long_is_taken_for_gone() {
    let mut room = Room::new();
    let [leader, follower] = room.with_two([None, None]);
    let third = room.send_join(|join| join.rebalance_timeout_ms = 1_000_000);
    let first = room.send_again(&leader);
    for _ in 0..34 {
        assert!(room.waits(third));
        room.wait(9_000);
        assert_eq!(
            room.heartbeat(claim(&follower, 2)),
            ErrorCode::REBALANCE_IN_PROGRESS
        );
    }
    assert_eq!(room.joined(third).error, ErrorCode::UNKNOWN_MEMBER_ID);
    assert!(room.waits(first));
}

#[test]
fn a_parked_join_keeps_its_member_alive() {
    let mut room = Room::new();
    let [leader, follower] = room.with_two([None, None]);
    let first = room.send_again(&leader);
    for _ in 0..5 {
        room.wait(9_000);
        room.heartbeat(claim(&follower, 2));
    }
    assert!(
        room.waits(first),
        "45 s without a heartbeat, but the group owes the answer"
    );
    let second = room.send_again(&follower);
    assert!(room.joined(first).error.is_ok());
    assert!(room.joined(second).error.is_ok());
}

#[test]
fn the_group_turns_members_away_above_its_size() {
    let mut room = Room::with_limits(GroupLimits {
        members_max: 1,
        ..GroupLimits::default()
    });
    let member = room.with_one(None);
    let second = room.send_new();
    assert_eq!(room.joined(second).error, ErrorCode::GROUP_MAX_SIZE_REACHED);
    assert_eq!(room.heartbeat(claim(&member, 1)), ErrorCode::NONE);
}

#[test]
fn an_initial_delay_gathers_members_and_is_extended_by_each_new_one() {
    let limits = GroupLimits {
        initial_rebalance_delay_ms: 3_000,
        ..GroupLimits::default()
    };
    let mut room = Room::with_limits(limits);
    let first = room.send_new();
    room.wait(2_000);
    let second = room.send_new();
    room.wait(1_000);
    assert!(
        room.waits(first) && room.waits(second),
        "somebody came, so it waits again"
    );
    room.wait(3_000);
    assert_eq!(
        (
            room.joined(first).generation,
            room.joined(second).generation
        ),
        (1, 1)
    );
}

#[test]
fn a_deleted_group_must_be_empty_and_answers_nobody_afterwards() {
    let mut room = Room::new();
    let member = room.with_one(None);
    let token = room.token();
    room.apply(Event::Delete { token });
    assert_eq!(
        room.take(token),
        Some(Reply::Delete(ErrorCode::NON_EMPTY_GROUP))
    );
    room.leave(&[(&member, None)]);
    let token = room.token();
    room.apply(Event::Delete { token });
    assert_eq!(room.take(token), Some(Reply::Delete(ErrorCode::NONE)));
    assert_eq!(room.group.state(), GroupState::Dead);
    let join = room.send_new();
    assert_eq!(
        room.joined(join).error,
        ErrorCode::COORDINATOR_NOT_AVAILABLE
    );
    assert_eq!(
        room.leave(&[(&member, None)]),
        [ErrorCode::COORDINATOR_NOT_AVAILABLE]
    );
    let dead = ErrorCode::COORDINATOR_NOT_AVAILABLE;
    assert_eq!(room.group.validate_commit(&claim("", -1), false), Err(dead));
}

#[test]
fn ids_that_nobody_joins_with_are_bounded_and_the_oldest_are_forgotten_first() {
    let mut room = Room::new();
    let give = |room: &mut Room, id: String| {
        room.now_ms += 1;
        room.send_join(|join| {
            join.requires_known_member_id = true;
            join.candidate_member_id = id;
            join.session_timeout_ms = 1_800_000;
        });
    };
    for number in 0..10_000 {
        give(&mut room, format!("{number:0>1000}"));
    }
    let kept: Vec<_> = room.group.pending_joins.keys().cloned().collect();
    let bytes: usize = kept.iter().map(String::len).sum();
    assert!(bytes <= 512 << 10, "{bytes}");
    assert_eq!(kept.last(), Some(&format!("{:0>1000}", 9_999)));
    assert_eq!(kept.len(), (512 << 10) / 1_000);
    // One that is larger than all of them has its place, too.
    give(&mut room, "x".repeat(600 << 10));
    assert_eq!(room.group.pending_joins.len(), 1);
}

#[test]
fn a_group_that_is_to_change_hands_over_the_ids_that_it_has_given_out_and_may_get_them_back() {
    let mut room = Room::new();
    room.send_join(|join| {
        join.requires_known_member_id = true;
        join.candidate_member_id = "given".to_owned();
    });
    let before = room.group.clone();
    let copy = room.group.copy_to_change();
    assert_eq!(copy, before);
    assert!(room.group.pending_joins.is_empty(), "moved, not copied");
    room.group.take_pending_joins(copy);
    assert_eq!(room.group, before);
}
