//! The group machine under random members: whatever they do, nobody is forgotten and no two lead.
//!
//! Invariants: the members only know what they were answered.
//! Never: random beyond proptest's seed.

use std::collections::BTreeMap;

use millstream_protocol::ErrorCode;
use proptest::prelude::*;

use super::event::{Event, Reply, Token};
use super::machine::{Group, GroupLimits};
use super::machine_tests::{Room, claim, protocol};
use super::state::GroupState;

/// One thing that one of four clients does, or that time does.
#[derive(Clone, Debug)]
enum Act {
    Join {
        client: usize,
        changes: bool,
        instance: bool,
    },
    Sync {
        client: usize,
    },
    Heartbeat {
        client: usize,
    },
    Leave {
        client: usize,
    },
    Forget {
        client: usize,
    },
    Wait {
        ms: i64,
    },
}

fn act() -> impl Strategy<Value = Act> {
    let client = 0..4_usize;
    prop_oneof![
        4 => (client.clone(), prop::bool::weighted(0.2), any::<bool>())
            .prop_map(|(client, changes, instance)| Act::Join { client, changes, instance }),
        5 => client.clone().prop_map(|client| Act::Sync { client }),
        2 => client.clone().prop_map(|client| Act::Heartbeat { client }),
        1 => client.clone().prop_map(|client| Act::Leave { client }),
        1 => client.prop_map(|client| Act::Forget { client }),
        3 => (1..15_000_i64).prop_map(|ms| Act::Wait { ms }),
    ]
}

/// What a client believes after the answers it got.
#[derive(Clone, Debug, Default)]
struct Client {
    member_id: String,
    generation: i32,
    leads: bool,
}

/// What holds over the whole history.
#[derive(Default)]
struct History {
    clients: [Client; 4],
    /// Who asked, in which generation.
    asked: BTreeMap<Token, (usize, i32)>,
    answered: BTreeMap<Token, usize>,
    /// Who brought a generation's assignment.
    assigned_by: BTreeMap<i32, bytes::Bytes>,
    highest_generation: i32,
}

impl History {
    fn observe(&mut self, room: &mut Room) {
        for (token, reply) in std::mem::take(&mut room.replies) {
            *self.answered.entry(token).or_default() += 1;
            let Some((client, generation)) = self.asked.get(&token).copied() else {
                continue;
            };
            let client = &mut self.clients[client];
            let joined = match reply {
                Reply::Join(joined) => joined,
                Reply::Sync(synced) => {
                    if synced.error.is_ok() && !synced.assignment.is_empty() {
                        let owner = self.assigned_by.entry(generation).or_default();
                        if owner.is_empty() {
                            *owner = synced.assignment.clone();
                        }
                        assert_eq!(*owner, synced.assignment, "two leaders in {generation}");
                    }
                    continue;
                }
                _ => continue,
            };
            if joined.error == ErrorCode::MEMBER_ID_REQUIRED {
                client.member_id = joined.member_id;
            } else if joined.error.is_ok() {
                assert!(
                    joined.generation >= client.generation,
                    "a member never goes back"
                );
                client.leads = joined.leader == joined.member_id;
                client.member_id = joined.member_id;
                client.generation = joined.generation;
                assert_eq!(Some(&joined.leader), room.group.leader.as_ref());
            } else if joined.error != ErrorCode::REBALANCE_IN_PROGRESS {
                client.member_id.clear();
            }
        }
        let generation = room.group.generation;
        assert!(
            generation >= self.highest_generation,
            "the generation only rises"
        );
        self.highest_generation = generation;
        check_group(&room.group);
    }
}

fn check_group(group: &Group) {
    assert_eq!(
        group.members.is_empty(),
        group.leader.is_none(),
        "{group:?}"
    );
    if let Some(leader) = &group.leader {
        assert!(
            group.members.contains_key(leader),
            "the leader is a member: {group:?}"
        );
    }
    for (instance_id, member_id) in &group.static_ids {
        let member = group.members.get(member_id);
        assert_eq!(
            member.and_then(|member| member.instance_id.as_ref()),
            Some(instance_id)
        );
    }
    if group.state == GroupState::Empty {
        assert!(group.members.is_empty());
    }
    if group.state == GroupState::Stable || group.state == GroupState::Empty {
        let parked = group
            .members
            .values()
            .any(|m| m.join.is_some() || m.sync.is_some());
        assert!(
            !parked,
            "nobody waits in a group that has nothing to wait for: {group:?}"
        );
    }
    let waits = group
        .members
        .values()
        .any(|m| m.join.is_some() || m.sync.is_some());
    assert!(
        !waits || group.next_deadline_ms().is_some(),
        "a wait without end: {group:?}"
    );
}

fn perform(room: &mut Room, history: &mut History, act: &Act) {
    match act {
        Act::Join {
            client,
            changes,
            instance,
        } => {
            let known = history.clients[*client].clone();
            let token = room.send_join(|join| {
                join.member_id.clone_from(&known.member_id);
                join.requires_known_member_id = !*instance;
                join.group_instance_id = instance.then(|| format!("i-{client}"));
                if *changes {
                    join.protocols = vec![protocol("range", &["orders", "returns"])];
                }
            });
            history.asked.insert(token, (*client, known.generation));
        }
        Act::Sync { client } => {
            let known = history.clients[*client].clone();
            let member_ids: Vec<String> = room.group.members.keys().cloned().collect();
            let parts: Vec<(&str, &str)> = if known.leads {
                member_ids
                    .iter()
                    .map(|member_id| (&**member_id, &*known.member_id))
                    .collect()
            } else {
                Vec::new()
            };
            let token = room.send_sync(&known.member_id, known.generation, &parts);
            history.asked.insert(token, (*client, known.generation));
        }
        Act::Heartbeat { client } => {
            let known = &history.clients[*client];
            let member = claim(&known.member_id, known.generation);
            let token = room.token();
            history.asked.insert(token, (*client, known.generation));
            room.apply(Event::Heartbeat { token, member });
        }
        Act::Leave { client } => {
            let member_id = std::mem::take(&mut history.clients[*client].member_id);
            room.leave(&[(&member_id, None)]);
        }
        Act::Forget { client } => history.clients[*client].member_id.clear(),
        Act::Wait { ms } => room.wait(*ms),
    }
}

proptest! {
    #[test]
    fn every_request_is_answered_once_and_every_generation_has_one_leader(
        acts in prop::collection::vec(act(), 1..120)
    ) {
        let mut room = Room::new();
        let mut history = History::default();
        for act in &acts {
            perform(&mut room, &mut history, act);
            history.observe(&mut room);
        }
        // Left alone, the group answers whoever still waits, and ends up empty.
        while let Some(deadline_ms) = room.group.next_deadline_ms() {
            let wait_ms = (deadline_ms - room.now_ms).max(0);
            room.wait(wait_ms);
            history.observe(&mut room);
        }
        prop_assert_eq!(room.group.state(), GroupState::Empty);
        for token in history.asked.keys() {
            prop_assert_eq!(history.answered.get(token), Some(&1), "{:?}", token);
        }
    }

    #[test]
    fn time_is_only_needed_where_the_group_says_so(
        acts in prop::collection::vec(act(), 1..60)
    ) {
        let mut room = Room::with_limits(GroupLimits::default());
        let mut history = History::default();
        for act in &acts {
            perform(&mut room, &mut history, act);
            history.observe(&mut room);
            let due = room.group.next_deadline_ms();
            if due.is_none_or(|due| due > room.now_ms) {
                let mut ticked = room.group.clone();
                let step = ticked.apply(room.now_ms, Event::Tick);
                prop_assert!(step.replies.is_empty() && !step.store);
                prop_assert_eq!(&ticked, &room.group, "a tick before the deadline does nothing");
            }
        }
    }
}
