//! Static members: a restarted instance takes its predecessor's place.
//!
//! Invariants: every test drives the machine by events only.
//! Never: looks at wire types.

use millstream_protocol::ErrorCode;

use super::event::Protocol;
use super::machine_tests::{Room, SESSION_MS, claim, protocol, static_claim};
use super::state::GroupState;
use super::subscription::subscription;

#[test]
fn a_restarted_follower_gets_its_assignment_back_without_a_rebalance() {
    let mut room = Room::new();
    let [leader, before] = room.with_two([None, Some("i-2")]);
    let stored = room.stored;
    let token = room.send_static("i-2");
    let joined = room.joined(token);
    assert_eq!((joined.error, joined.generation), (ErrorCode::NONE, 2));
    assert_ne!(joined.member_id, before);
    assert!(!joined.skip_assignment);
    assert_eq!(joined.leader, leader);
    assert_eq!(room.stored, stored + 1, "a restart must know the new id");
    let sync = room.send_sync(&joined.member_id, 2, &[]);
    assert_eq!(room.synced(sync).assignment, "b");
    assert_eq!(room.heartbeat(claim(&leader, 2)), ErrorCode::NONE);
    assert_eq!(room.group.state(), GroupState::Stable);
}

#[test]
fn the_predecessor_is_fenced_in_everything_it_says() {
    let mut room = Room::new();
    let [_, before] = room.with_two([None, Some("i-2")]);
    let token = room.send_static("i-2");
    let now = room.joined(token).member_id;
    let old = static_claim(&before, "i-2", 2);
    assert_eq!(room.heartbeat(old.clone()), ErrorCode::FENCED_INSTANCE_ID);
    for transactional in [false, true] {
        let fenced = room.group.validate_commit(&old, transactional);
        assert_eq!(fenced, Err(ErrorCode::FENCED_INSTANCE_ID));
    }
    assert_eq!(
        room.leave(&[(&before, Some("i-2"))]),
        [ErrorCode::FENCED_INSTANCE_ID]
    );
    let again = room.send_again_as(&before, Some("i-2"));
    assert_eq!(room.joined(again).error, ErrorCode::FENCED_INSTANCE_ID);
    assert_eq!(
        room.heartbeat(static_claim(&now, "i-2", 2)),
        ErrorCode::NONE
    );
    assert_eq!(
        room.group
            .validate_commit(&static_claim(&now, "i-2", 2), true),
        Ok(())
    );
}

#[test]
fn a_restarted_leader_leads_on_and_is_told_to_bring_no_assignment() {
    let mut room = Room::new();
    let [_, follower] = room.with_two([Some("i-1"), None]);
    let token = room.send_static("i-1");
    let joined = room.joined(token);
    assert_eq!(joined.generation, 2);
    assert!(joined.skip_assignment);
    assert_eq!(joined.leader, joined.member_id);
    assert_eq!(joined.members.len(), 2);
    let sync = room.send_sync(&joined.member_id, 2, &[]);
    assert_eq!(room.synced(sync).assignment, "a");
    assert_eq!(room.heartbeat(claim(&follower, 2)), ErrorCode::NONE);
}

#[test]
fn a_restarted_leader_of_an_old_client_is_not_told_that_it_leads() {
    let mut room = Room::new();
    let [before, _] = room.with_two([Some("i-1"), None]);
    let token = room.send_join(|join| {
        join.group_instance_id = Some("i-1".to_owned());
        join.supports_skipping_assignment = false;
    });
    let joined = room.joined(token);
    assert_eq!(joined.leader, before);
    assert!(joined.members.is_empty() && !joined.skip_assignment);
    let sync = room.send_sync(&joined.member_id, 2, &[]);
    assert_eq!(room.synced(sync).assignment, "a");
}

#[test]
fn a_restarted_member_that_subscribes_to_something_else_rebalances_the_group() {
    let mut room = Room::new();
    let [leader, _] = room.with_two([None, Some("i-2")]);
    let token = room.send_join(|join| {
        join.group_instance_id = Some("i-2".to_owned());
        join.protocols = vec![protocol("range", &["orders", "returns"])];
    });
    assert!(room.waits(token));
    let first = room.send_again(&leader);
    assert_eq!(room.joined(first).generation, 3);
    assert_eq!(room.joined(token).generation, 3);
}

#[test]
fn what_an_assignor_remembers_of_the_time_before_does_not_count_as_a_change() {
    let mut room = Room::new();
    let sticky = |data: &[u8]| {
        vec![Protocol {
            name: "range".to_owned(),
            metadata: subscription(&["orders"], data),
        }]
    };
    let first = room.send_join(|join| {
        join.group_instance_id = Some("i-1".to_owned());
        join.protocols = sticky(b"owned 1 2 3, generation 7");
    });
    let joined = room.joined(first);
    let sync = room.send_sync(&joined.member_id, 1, &[(&joined.member_id, "all")]);
    room.synced(sync);
    let token = room.send_join(|join| {
        join.group_instance_id = Some("i-1".to_owned());
        join.protocols = sticky(b"");
    });
    assert_eq!(room.joined(token).generation, 1);
}

#[test]
fn a_restart_that_changes_the_chosen_protocol_rebalances_the_group() {
    let mut room = Room::new();
    room.with_two([None, Some("i-2")]);
    let token = room.send_join(|join| {
        join.group_instance_id = Some("i-2".to_owned());
        join.protocols = vec![protocol("new", &["orders"]), protocol("range", &["orders"])];
    });
    // "range" is still the only common protocol, so nothing changes.
    assert_eq!(room.joined(token).generation, 2);

    let mut alone = Room::new();
    alone.with_one(Some("i-1"));
    let token = alone.send_join(|join| {
        join.group_instance_id = Some("i-1".to_owned());
        join.protocols = vec![protocol("new", &["orders"]), protocol("range", &["orders"])];
    });
    let joined = alone.joined(token);
    assert_eq!(
        (joined.generation, joined.protocol.as_deref()),
        (2, Some("new"))
    );
}

#[test]
fn a_restart_while_the_leader_assigns_rebalances_once_more() {
    let mut room = Room::new();
    let leader = room.with_one(None);
    let second = room.send_static("i-2");
    let first = room.send_again(&leader);
    room.joined(first);
    let before = room.joined(second).member_id;
    let parked = room.send_sync(&before, 2, &[]);
    let restarted = room.send_static("i-2");
    assert_eq!(room.synced(parked).error, ErrorCode::FENCED_INSTANCE_ID);
    assert!(room.waits(restarted));
    let first = room.send_again(&leader);
    assert_eq!(room.joined(first).generation, 3);
    assert_eq!(room.joined(restarted).generation, 3);
}

#[test]
fn a_parked_join_of_the_predecessor_is_fenced() {
    let mut room = Room::new();
    let [_, before] = room.with_two([None, Some("i-2")]);
    let third = room.send_new();
    let parked = room.send_again_as(&before, Some("i-2"));
    let restarted = room.send_static("i-2");
    assert_eq!(room.joined(parked).error, ErrorCode::FENCED_INSTANCE_ID);
    assert!(room.waits(restarted) && room.waits(third));
}

#[test]
fn a_static_member_that_is_away_keeps_its_place_until_its_session_ends() {
    let mut room = Room::new();
    let [leader, away] = room.with_two([None, Some("i-2")]);
    let first = room.send_again(&leader);
    assert!(room.waits(first));
    room.wait(i64::from(SESSION_MS) - 1);
    assert!(room.waits(first), "it may still come back");
    room.wait(1);
    let joined = room.joined(first);
    assert_eq!((joined.generation, joined.members.len()), (3, 1));
    let late = static_claim(&away, "i-2", 2);
    assert_eq!(room.heartbeat(late), ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn a_static_member_that_only_heartbeats_stays_in_the_generation_after_the_timeout() {
    let mut room = Room::new();
    let [leader, slow] = room.with_two([None, Some("i-2")]);
    let first = room.send_again(&leader);
    for _ in 0..7 {
        room.wait(9_000);
        room.heartbeat(static_claim(&slow, "i-2", 2));
    }
    let joined = room.joined(first);
    assert_eq!((joined.generation, joined.members.len()), (3, 2));
    // It holds its place, but it has to join again before it may go on.
    assert_eq!(
        room.heartbeat(static_claim(&slow, "i-2", 2)),
        ErrorCode::ILLEGAL_GENERATION
    );
}

#[test]
fn an_instance_that_is_not_in_the_group_is_unknown_rather_than_fenced() {
    let mut room = Room::new();
    let member = room.with_one(None);
    let claimed = static_claim(&member, "i-9", 1);
    assert_eq!(
        room.heartbeat(claimed.clone()),
        ErrorCode::UNKNOWN_MEMBER_ID
    );
    assert_eq!(
        room.group.validate_commit(&claimed, true),
        Err(ErrorCode::UNKNOWN_MEMBER_ID)
    );
}
