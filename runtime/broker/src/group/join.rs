//! Joining a group: new members, members that come again, static members that were restarted.
//!
//! Invariants: a join is answered at once or parked with its member, never both.
//! Invariants: a static member that is replaced loses its id before its successor has one.
//! Never: forms a generation; `rebalance.rs` does.

use bytes::Bytes;
use millstream_protocol::ErrorCode;

use super::event::{Join, Protocol, Reply, Step, SyncReply, Token};
use super::machine::{Group, PendingJoin, refuse_join};
use super::member::Member;
use super::state::{GroupState, Reaction, Stimulus, react};
use super::subscription::asks_for_the_same;

/// A new member whose join is parked this long is taken for gone: it has no id to send heartbeats
/// with, and its connection may have been lost.
const NEW_MEMBER_JOIN_TIMEOUT_MS: i64 = 5 * 60 * 1000;

/// Most bytes of ids that a group has given out and not seen again: some thousands of ids.
const PENDING_BYTES_MAX: usize = 512 << 10;

impl Group {
    pub(super) fn join(&mut self, now_ms: i64, join: Join, step: &mut Step) {
        let error = if self.state == GroupState::Dead {
            Some(ErrorCode::COORDINATOR_NOT_AVAILABLE)
        } else if !self.supports(&join.protocol_type, &join.protocols) {
            Some(ErrorCode::INCONSISTENT_GROUP_PROTOCOL)
        } else {
            None
        };
        if let Some(error) = error {
            refuse_join(step, join.token, join.member_id, error);
        } else if !self.has_room_for(&join.member_id) {
            self.pending_joins.remove(&join.member_id);
            refuse_join(step, join.token, "", ErrorCode::GROUP_MAX_SIZE_REACHED);
        } else if join.member_id.is_empty() {
            self.join_without_id(now_ms, join, step);
        } else {
            self.join_with_id(now_ms, join, step);
        }
    }

    /// While members join again, those who have are counted, so that the last ones are turned away
    /// when the limit was lowered.
    fn has_room_for(&self, member_id: &str) -> bool {
        let member = self.members.get(member_id);
        match self.state {
            GroupState::Empty | GroupState::Dead => true,
            GroupState::PreparingRebalance => {
                let joined = self
                    .members
                    .values()
                    .filter(|member| member.join.is_some())
                    .count();
                member.is_some_and(|member| member.join.is_some())
                    || joined < self.limits.members_max
            }
            GroupState::CompletingRebalance | GroupState::Stable => {
                member.is_some() || self.members.len() < self.limits.members_max
            }
        }
    }

    fn join_without_id(&mut self, now_ms: i64, join: Join, step: &mut Step) {
        let predecessor = join
            .group_instance_id
            .as_ref()
            .and_then(|instance_id| self.static_ids.get(instance_id))
            .cloned();
        if let Some(predecessor) = predecessor {
            self.replace_static(now_ms, &predecessor, join, step);
        } else if join.group_instance_id.is_none() && join.requires_known_member_id {
            let member_id = join.candidate_member_id;
            self.keep_in_mind(now_ms, &member_id, join.session_timeout_ms);
            refuse_join(step, join.token, member_id, ErrorCode::MEMBER_ID_REQUIRED);
        } else {
            let member_id = join.candidate_member_id.clone();
            self.add_member(now_ms, member_id, join, step);
        }
    }

    /// Waits for an id that is given out now. Where there are too many, the oldest are forgotten:
    /// whose id that was asks for another.
    fn keep_in_mind(&mut self, now_ms: i64, member_id: &str, session_timeout_ms: i32) {
        let mut bytes: usize = self.pending_joins.keys().map(String::len).sum();
        while bytes + member_id.len() > PENDING_BYTES_MAX {
            let oldest = self.pending_joins.iter();
            let oldest = oldest.min_by_key(|(_, pending)| pending.given_at_ms);
            let Some(oldest) = oldest.map(|(member_id, _)| member_id.clone()) else {
                break;
            };
            bytes -= oldest.len();
            self.pending_joins.remove(&oldest);
        }
        let pending = PendingJoin {
            given_at_ms: now_ms,
            forget_at_ms: now_ms.saturating_add(i64::from(session_timeout_ms)),
        };
        self.pending_joins.insert(member_id.to_owned(), pending);
    }

    fn join_with_id(&mut self, now_ms: i64, join: Join, step: &mut Step) {
        let instance_id = join.group_instance_id.as_deref();
        if instance_id.is_none() && self.pending_joins.contains_key(&join.member_id) {
            let member_id = join.member_id.clone();
            return self.add_member(now_ms, member_id, join, step);
        }
        if let Err(error) = self.validate_member(&join.member_id, instance_id) {
            return refuse_join(step, join.token, join.member_id, error);
        }
        let leads = self.leads(&join.member_id);
        let Some(member) = self.members.get(&join.member_id) else {
            return refuse_join(
                step,
                join.token,
                join.member_id,
                ErrorCode::UNKNOWN_MEMBER_ID,
            );
        };
        let stimulus = if member.protocols != join.protocols {
            Stimulus::MemberChanges
        } else if leads {
            Stimulus::LeaderRejoins
        } else {
            Stimulus::FollowerRejoins
        };
        let member_id = join.member_id.clone();
        match react(self.state, stimulus) {
            Reaction::AnswerGeneration => {
                let reply = self.generation_reply(&member_id);
                step.replies.push((join.token, Reply::Join(reply)));
            }
            reaction @ (Reaction::StartRebalance | Reaction::AwaitOthers) => {
                self.update_member(&member_id, join, step);
                self.progress(now_ms, reaction, step);
            }
            Reaction::Refuse(error) => refuse_join(step, join.token, member_id, error),
            _ => refuse_join(step, join.token, member_id, ErrorCode::UNKNOWN_SERVER_ERROR),
        }
    }

    /// A restarted static member takes the place of its predecessor, who is fenced.
    fn replace_static(&mut self, now_ms: i64, predecessor: &str, join: Join, step: &mut Step) {
        let Some(mut member) = self.members.remove(predecessor) else {
            return refuse_join(step, join.token, "", ErrorCode::UNKNOWN_MEMBER_ID);
        };
        let fenced = ErrorCode::FENCED_INSTANCE_ID;
        if let Some(token) = member.join.take() {
            refuse_join(step, token, predecessor, fenced);
        }
        if let Some(token) = member.sync.take() {
            step.replies
                .push((token, Reply::Sync(SyncReply::refused(fenced))));
        }
        let member_id = join.candidate_member_id.clone();
        let leader_before = self.leader.clone().unwrap_or_default();
        if leader_before == predecessor {
            self.leader = Some(member_id.clone());
        }
        if let Some(instance_id) = &member.instance_id {
            self.static_ids
                .insert(instance_id.clone(), member_id.clone());
        }
        if self.pending_syncs.remove(predecessor) {
            self.pending_syncs.insert(member_id.clone());
        }
        let metadata_before = self
            .protocol
            .as_deref()
            .and_then(|protocol| member.metadata(protocol))
            .cloned();
        member.id.clone_from(&member_id);
        member.client_id.clone_from(&join.client_id);
        member.client_host.clone_from(&join.client_host);
        member.session_timeout_ms = join.session_timeout_ms;
        member.rebalance_timeout_ms = join.rebalance_timeout_ms;
        member.protocols.clone_from(&join.protocols);
        member.is_new = false;
        member.refresh_session(now_ms);
        self.members.insert(member_id.clone(), member);

        let stimulus = if self.takes_over_unchanged(&member_id, metadata_before.as_ref()) {
            Stimulus::StaticReturns
        } else {
            Stimulus::StaticChanges
        };
        match react(self.state, stimulus) {
            Reaction::KeepAssignment => {
                let mut reply = self.generation_reply(&member_id);
                if join.supports_skipping_assignment {
                    reply.skip_assignment = self.leads(&member_id);
                } else {
                    // It must not think that it leads, or it would bring a new assignment.
                    reply.leader = leader_before;
                    reply.members = Vec::new();
                }
                step.replies.push((join.token, Reply::Join(reply)));
                step.store = true;
            }
            reaction @ (Reaction::StartRebalance | Reaction::AwaitOthers) => {
                self.park_join(&member_id, join.token, step);
                self.progress(now_ms, reaction, step);
            }
            Reaction::Refuse(error) => refuse_join(step, join.token, member_id, error),
            _ => refuse_join(step, join.token, member_id, ErrorCode::UNKNOWN_SERVER_ERROR),
        }
    }

    /// The group would choose the same protocol again, and the member asks for what its
    /// predecessor asked for.
    fn takes_over_unchanged(&self, member_id: &str, before: Option<&Bytes>) -> bool {
        let Some(protocol) = self.protocol.as_deref() else {
            return false;
        };
        if self.select_protocol().as_deref() != Some(protocol) {
            return false;
        }
        let now = self
            .members
            .get(member_id)
            .and_then(|member| member.metadata(protocol));
        let protocol_type = self.protocol_type.as_deref().unwrap_or_default();
        match (before, now) {
            (Some(before), Some(now)) => asks_for_the_same(protocol_type, before, now),
            _ => false,
        }
    }

    fn add_member(&mut self, now_ms: i64, member_id: String, join: Join, step: &mut Step) {
        let reaction = react(self.state, Stimulus::NewMember);
        if let Reaction::Refuse(error) = reaction {
            return refuse_join(step, join.token, member_id, error);
        }
        if self.members.is_empty() {
            self.protocol_type = Some(join.protocol_type);
        }
        if let Some(instance_id) = &join.group_instance_id {
            self.static_ids
                .insert(instance_id.clone(), member_id.clone());
        }
        self.leader.get_or_insert_with(|| member_id.clone());
        self.pending_joins.remove(&member_id);
        let member = Member {
            id: member_id.clone(),
            instance_id: join.group_instance_id,
            client_id: join.client_id,
            client_host: join.client_host,
            session_timeout_ms: join.session_timeout_ms,
            rebalance_timeout_ms: join.rebalance_timeout_ms,
            protocols: join.protocols,
            assignment: Bytes::new(),
            session_deadline_ms: now_ms.saturating_add(NEW_MEMBER_JOIN_TIMEOUT_MS),
            is_new: true,
            join: Some(join.token),
            sync: None,
        };
        self.members.insert(member_id, member);
        if let Some(first) = &mut self.first_generation {
            first.member_added = true;
        }
        self.progress(now_ms, reaction, step);
    }

    fn update_member(&mut self, member_id: &str, join: Join, step: &mut Step) {
        if let Some(member) = self.members.get_mut(member_id) {
            member.protocols = join.protocols;
            member.session_timeout_ms = join.session_timeout_ms;
            member.rebalance_timeout_ms = join.rebalance_timeout_ms;
        }
        self.park_join(member_id, join.token, step);
    }

    /// Parks a join; an older one of the same member is answered, its client has given it up.
    fn park_join(&mut self, member_id: &str, token: Token, step: &mut Step) {
        if let Some(member) = self.members.get_mut(member_id)
            && let Some(older) = member.join.replace(token)
        {
            refuse_join(step, older, member_id, ErrorCode::REBALANCE_IN_PROGRESS);
        }
    }

    /// Whether a member with these protocols can be in the group together with the others.
    fn supports(&self, protocol_type: &str, protocols: &[Protocol]) -> bool {
        if self.state == GroupState::Empty {
            return !protocol_type.is_empty() && !protocols.is_empty();
        }
        self.protocol_type.as_deref() == Some(protocol_type)
            && protocols.iter().any(|protocol| {
                self.members
                    .values()
                    .all(|member| member.supports(&protocol.name))
            })
    }
}
