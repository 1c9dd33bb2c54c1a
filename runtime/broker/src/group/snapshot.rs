//! A group as its record: what a restarted broker knows of members and generations.
//!
//! Invariants: a stable group is the same group after a restart, sessions counted anew.
//! Never: a rebalance under way; after a restart the group is in its last stored generation.

use std::collections::{BTreeMap, BTreeSet};

use super::event::Protocol;
use super::machine::{Group, GroupLimits};
use super::member::Member;
use super::record::{GroupMetadataValue, MemberMetadata};
use super::state::GroupState;

impl Group {
    /// The group's value in `__consumer_offsets`.
    pub(crate) fn to_record(&self) -> GroupMetadataValue {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let member = |member: &Member| MemberMetadata {
            member_id: member.id.clone(),
            group_instance_id: member.instance_id.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            rebalance_timeout: member.rebalance_timeout_ms,
            session_timeout: member.session_timeout_ms,
            subscription: member.metadata(protocol).cloned().unwrap_or_default(),
            assignment: member.assignment.clone(),
        };
        GroupMetadataValue {
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            current_state_timestamp: self.state_since_ms,
            members: self.members.values().map(member).collect(),
        }
    }

    /// The group that a record tells of.
    pub(crate) fn from_record(
        id: String,
        value: GroupMetadataValue,
        limits: GroupLimits,
        now_ms: i64,
    ) -> Self {
        let protocol = value.protocol.clone().unwrap_or_default();
        let member = |stored: MemberMetadata| {
            let rebalance_timeout_ms = match stored.rebalance_timeout {
                // Version 0 has none: the session is what the members agreed on.
                unset if unset < 0 => stored.session_timeout,
                set => set,
            };
            let mut member = Member {
                id: stored.member_id,
                instance_id: stored.group_instance_id,
                client_id: stored.client_id,
                client_host: stored.client_host,
                session_timeout_ms: stored.session_timeout,
                rebalance_timeout_ms,
                protocols: vec![Protocol {
                    name: protocol.clone(),
                    metadata: stored.subscription,
                }],
                assignment: stored.assignment,
                session_deadline_ms: 0,
                is_new: false,
                join: None,
                sync: None,
            };
            member.refresh_session(now_ms);
            (member.id.clone(), member)
        };
        let members: BTreeMap<String, Member> = value.members.into_iter().map(member).collect();
        let static_ids = members
            .values()
            .filter_map(|member| Some((member.instance_id.clone()?, member.id.clone())))
            .collect();
        let leader = value.leader.filter(|leader| members.contains_key(leader));
        let stable = !members.is_empty();
        Group {
            id,
            limits,
            state: if stable {
                GroupState::Stable
            } else {
                GroupState::Empty
            },
            state_since_ms: value.current_state_timestamp,
            wall_ahead_ms: 0,
            generation: value.generation,
            protocol_type: Some(value.protocol_type).filter(|kind| !kind.is_empty()),
            protocol: value.protocol.filter(|_| stable),
            leader: leader.or_else(|| members.keys().next().cloned()),
            members,
            static_ids,
            pending_joins: BTreeMap::new(),
            pending_syncs: BTreeSet::new(),
            first_generation: None,
            join_deadline_ms: None,
            sync_deadline_ms: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use millstream_protocol::ErrorCode;

    use super::super::machine_tests::{Room, SESSION_MS, claim, static_claim};
    use super::*;

    fn restarted(room: &Room, now_ms: i64) -> Room {
        let mut after = Room::new();
        let record = room.group.to_record();
        after.now_ms = now_ms;
        after.group = Group::from_record("g".to_owned(), record, GroupLimits::default(), now_ms);
        after.skip_tokens(1_000);
        after
    }

    #[test]
    fn members_go_on_after_a_restart_without_a_rebalance() {
        let mut room = Room::new();
        let [leader, follower] = room.with_two([None, Some("i-2")]);
        let mut after = restarted(&room, 1_000_000);
        assert_eq!(after.group.state(), GroupState::Stable);
        assert_eq!(after.heartbeat(claim(&leader, 2)), ErrorCode::NONE);
        assert_eq!(
            after.heartbeat(static_claim(&follower, "i-2", 2)),
            ErrorCode::NONE
        );
        let sync = after.send_sync(&follower, 2, &[]);
        assert_eq!(after.synced(sync).assignment, "b");
        let static_back = after.send_static("i-2");
        assert_eq!(after.joined(static_back).generation, 2);
    }

    #[test]
    fn sessions_are_counted_from_the_restart() {
        let mut room = Room::new();
        let [leader, _] = room.with_two([None, None]);
        let mut after = restarted(&room, 1_000_000);
        after.wait(i64::from(SESSION_MS) - 1);
        assert_eq!(after.heartbeat(claim(&leader, 2)), ErrorCode::NONE);
        after.wait(1);
        assert_eq!(
            after.heartbeat(claim(&leader, 2)),
            ErrorCode::REBALANCE_IN_PROGRESS
        );
    }

    #[test]
    fn generations_go_on_rising_after_a_restart_of_an_empty_group() {
        let mut room = Room::new();
        let member = room.with_one(None);
        room.leave(&[(&member, None)]);
        let mut after = restarted(&room, 5);
        assert_eq!(after.group.state(), GroupState::Empty);
        assert_eq!(
            after.heartbeat(claim(&member, 1)),
            ErrorCode::UNKNOWN_MEMBER_ID
        );
        let token = after.send_new();
        assert_eq!(after.joined(token).generation, 3);
    }
}
