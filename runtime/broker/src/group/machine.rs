//! The classic group as a pure machine: an event goes in, answers come out.
//!
//! Invariants:
//! - a generation has one leader and one protocol, which every one of its members supports;
//! - the generation number only rises;
//! - every token is answered once: at once, by the generation or assignment that it waits for, or
//!   when its member is removed, replaced or asks again;
//! - a static instance has one member id; whoever speaks for it under an older one is fenced.
//!
//! Never: clocks, I/O, offsets. Time is an argument; whoever owns the group writes its record
//! down when a step says `store` and gives the answers afterwards. On a failed write the owner
//! throws the changed copy away, so the group is as it was.
//!
//! What happens in which state is the table in `state.rs`; phases and timers are in `rebalance.rs`.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use millstream_protocol::ErrorCode;

use super::event::{
    Event, Join, JoinReply, JoinedMember, Leaver, MemberClaim, Protocol, Reply, Step, Sync,
    SyncReply, Token,
};
use super::member::Member;
use super::state::{GroupState, Reaction, Stimulus, react};
use super::subscription::asks_for_the_same;

/// What the broker's settings say about every group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupLimits {
    /// `group.initial.rebalance.delay.ms`: how long an empty group waits for more members.
    pub(crate) initial_rebalance_delay_ms: i64,
    /// `group.max.size`.
    pub(crate) members_max: usize,
}

impl Default for GroupLimits {
    fn default() -> Self {
        GroupLimits {
            initial_rebalance_delay_ms: 0,
            members_max: usize::MAX,
        }
    }
}

/// How long the first generation of an empty group may still be put off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FirstGeneration {
    pub(super) remaining_ms: i64,
    /// Somebody came since the delay began, so another one begins.
    pub(super) member_added: bool,
}

/// One classic group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(super) id: String,
    pub(super) limits: GroupLimits,
    pub(super) state: GroupState,
    /// When the group came into its state; -1 when it was never said.
    pub(super) state_since_ms: i64,
    pub(super) generation: i32,
    pub(super) protocol_type: Option<String>,
    pub(super) protocol: Option<String>,
    pub(super) leader: Option<String>,
    pub(super) members: BTreeMap<String, Member>,
    /// Instance id to member id.
    pub(super) static_ids: BTreeMap<String, String>,
    /// Ids that were given out and have not come back yet, with the time when they are forgotten.
    pub(super) pending_joins: BTreeMap<String, i64>,
    /// Members of the generation that have not asked for their assignment yet.
    pub(super) pending_syncs: BTreeSet<String>,
    /// The rebalance began in an empty group, so there is nobody to wait for.
    pub(super) first_generation: Option<FirstGeneration>,
    pub(super) join_deadline_ms: Option<i64>,
    pub(super) sync_deadline_ms: Option<i64>,
}

impl Group {
    /// A group without members.
    pub(crate) fn new(id: impl Into<String>, limits: GroupLimits, now_ms: i64) -> Self {
        Group {
            id: id.into(),
            limits,
            state: GroupState::Empty,
            state_since_ms: now_ms,
            generation: 0,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            static_ids: BTreeMap::new(),
            pending_joins: BTreeMap::new(),
            pending_syncs: BTreeSet::new(),
            first_generation: None,
            join_deadline_ms: None,
            sync_deadline_ms: None,
        }
    }

    pub(crate) fn state(&self) -> GroupState {
        self.state
    }

    /// Nobody is in the group or about to join.
    pub(crate) fn is_deserted(&self) -> bool {
        self.state == GroupState::Empty && self.pending_joins.is_empty()
    }

    /// Applies one event.
    pub(crate) fn apply(&mut self, now_ms: i64, event: Event) -> Step {
        let mut step = Step::default();
        match event {
            Event::Join(join) => self.join(now_ms, join, &mut step),
            Event::Sync(sync) => self.sync(now_ms, sync, &mut step),
            Event::Heartbeat { token, member } => {
                let error = self.heartbeat(now_ms, &member);
                step.replies.push((token, Reply::Heartbeat(error)));
            }
            Event::Leave { token, leavers } => self.leave(now_ms, token, &leavers, &mut step),
            Event::Delete { token } => {
                let error = match react(self.state, Stimulus::Delete) {
                    Reaction::Die => {
                        self.become_state(GroupState::Dead, now_ms);
                        ErrorCode::NONE
                    }
                    Reaction::Refuse(error) => error,
                    _ => ErrorCode::UNKNOWN_SERVER_ERROR,
                };
                step.replies.push((token, Reply::Delete(error)));
            }
            Event::Tick => self.tick(now_ms, &mut step),
        }
        step
    }

    /// Whether a commit of offsets may be accepted from who says it.
    ///
    /// A transactional commit without any id is accepted (clients before TxnOffsetCommit 3 send
    /// none) and so is any commit without membership into a group that has no members.
    pub(crate) fn validate_commit(
        &self,
        claim: &MemberClaim,
        transactional: bool,
    ) -> Result<(), ErrorCode> {
        if self.state == GroupState::Dead {
            return Err(ErrorCode::COORDINATOR_NOT_AVAILABLE);
        }
        if claim.generation < 0 && self.state == GroupState::Empty {
            return Ok(());
        }
        let claims_membership = claim.generation >= 0
            || !claim.member_id.is_empty()
            || claim.group_instance_id.is_some();
        if claims_membership {
            self.validate_member(&claim.member_id, claim.group_instance_id.as_deref())?;
            if claim.generation != self.generation {
                return Err(ErrorCode::ILLEGAL_GENERATION);
            }
        } else if !transactional && self.state != GroupState::Empty {
            return Err(ErrorCode::UNKNOWN_MEMBER_ID);
        }
        if !transactional && self.state == GroupState::CompletingRebalance {
            return Err(ErrorCode::REBALANCE_IN_PROGRESS);
        }
        Ok(())
    }

    /// A plain commit of offsets is a sign of life.
    pub(crate) fn committed(&mut self, now_ms: i64, member_id: &str) {
        if matches!(
            self.state,
            GroupState::Stable | GroupState::PreparingRebalance
        ) && let Some(member) = self.members.get_mut(member_id)
        {
            member.refresh_session(now_ms);
        }
    }

    fn join(&mut self, now_ms: i64, join: Join, step: &mut Step) {
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
            let forget_at_ms = now_ms.saturating_add(i64::from(join.session_timeout_ms));
            self.pending_joins.insert(member_id.clone(), forget_at_ms);
            refuse_join(step, join.token, member_id, ErrorCode::MEMBER_ID_REQUIRED);
        } else {
            let member_id = join.candidate_member_id.clone();
            self.add_member(now_ms, member_id, join, step);
        }
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

    fn sync(&mut self, now_ms: i64, sync: Sync, step: &mut Step) {
        let token = sync.token;
        let reply = match self.validate_sync(&sync) {
            Err(error) => SyncReply::refused(error),
            Ok(stimulus) => match react(self.state, stimulus) {
                Reaction::AwaitAssignment => return self.park_sync(&sync, step),
                Reaction::StoreAssignment => return self.store_assignment(now_ms, sync, step),
                Reaction::AnswerAssignment => {
                    self.has_synced(&sync.member.member_id);
                    self.assignment_reply(&sync.member.member_id)
                }
                Reaction::Refuse(error) => SyncReply::refused(error),
                _ => SyncReply::refused(ErrorCode::UNKNOWN_SERVER_ERROR),
            },
        };
        step.replies.push((token, Reply::Sync(reply)));
    }

    fn validate_sync(&self, sync: &Sync) -> Result<Stimulus, ErrorCode> {
        let claim = &sync.member;
        if self.state == GroupState::Dead {
            return Err(ErrorCode::COORDINATOR_NOT_AVAILABLE);
        }
        self.validate_member(&claim.member_id, claim.group_instance_id.as_deref())?;
        if claim.generation != self.generation {
            return Err(ErrorCode::ILLEGAL_GENERATION);
        }
        let differs = |theirs: &Option<String>, ours: &Option<String>| {
            theirs.is_some() && theirs.as_deref() != ours.as_deref()
        };
        if differs(&sync.protocol_type, &self.protocol_type)
            || differs(&sync.protocol, &self.protocol)
        {
            return Err(ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
        }
        if self.leads(&claim.member_id) {
            Ok(Stimulus::LeaderSyncs)
        } else {
            Ok(Stimulus::FollowerSyncs)
        }
    }

    fn heartbeat(&mut self, now_ms: i64, claim: &MemberClaim) -> ErrorCode {
        if self.state == GroupState::Dead {
            return ErrorCode::COORDINATOR_NOT_AVAILABLE;
        }
        if let Err(error) =
            self.validate_member(&claim.member_id, claim.group_instance_id.as_deref())
        {
            return error;
        }
        if claim.generation != self.generation {
            return ErrorCode::ILLEGAL_GENERATION;
        }
        if let Some(member) = self.members.get_mut(&claim.member_id) {
            member.refresh_session(now_ms);
        }
        match react(self.state, Stimulus::Heartbeat) {
            Reaction::Acknowledge => ErrorCode::NONE,
            Reaction::Refuse(error) => error,
            _ => ErrorCode::UNKNOWN_SERVER_ERROR,
        }
    }

    fn leave(&mut self, now_ms: i64, token: Token, leavers: &[Leaver], step: &mut Step) {
        let mut errors = Vec::with_capacity(leavers.len());
        for leaver in leavers {
            errors.push(match self.remove_leaver(leaver, step) {
                Ok(()) => ErrorCode::NONE,
                Err(error) => error,
            });
        }
        let any_left = errors.iter().any(|error| error.is_ok());
        step.replies.push((token, Reply::Leave(errors)));
        if any_left {
            self.member_gone(now_ms, step);
        }
    }

    fn remove_leaver(&mut self, leaver: &Leaver, step: &mut Step) -> Result<(), ErrorCode> {
        if self.state == GroupState::Dead {
            return Err(ErrorCode::COORDINATOR_NOT_AVAILABLE);
        }
        let instance_id = leaver.group_instance_id.as_deref();
        let member_id = if leaver.member_id.is_empty() {
            let by_instance = instance_id.and_then(|instance_id| self.static_ids.get(instance_id));
            by_instance.cloned().ok_or(ErrorCode::UNKNOWN_MEMBER_ID)?
        } else if self.pending_joins.remove(&leaver.member_id).is_some() {
            return Ok(());
        } else {
            self.validate_member(&leaver.member_id, instance_id)?;
            leaver.member_id.clone()
        };
        self.remove_member(&member_id, step);
        Ok(())
    }

    /// Checks that a request speaks for a member: known, and not fenced by a newer instance.
    fn validate_member(&self, member_id: &str, instance_id: Option<&str>) -> Result<(), ErrorCode> {
        if let Some(instance_id) = instance_id {
            match self.static_ids.get(instance_id) {
                None => return Err(ErrorCode::UNKNOWN_MEMBER_ID),
                Some(current) if current != member_id => {
                    return Err(ErrorCode::FENCED_INSTANCE_ID);
                }
                Some(_) => {}
            }
        }
        if self.members.contains_key(member_id) {
            Ok(())
        } else {
            Err(ErrorCode::UNKNOWN_MEMBER_ID)
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

    pub(super) fn leads(&self, member_id: &str) -> bool {
        self.leader.as_deref() == Some(member_id)
    }

    /// The answer to a join once the generation exists.
    pub(super) fn generation_reply(&self, member_id: &str) -> JoinReply {
        JoinReply {
            error: ErrorCode::NONE,
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            leader: self.leader.clone().unwrap_or_default(),
            member_id: member_id.to_owned(),
            skip_assignment: false,
            members: if self.leads(member_id) {
                self.joined_members()
            } else {
                Vec::new()
            },
        }
    }

    fn joined_members(&self) -> Vec<JoinedMember> {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let joined = |member: &Member| JoinedMember {
            member_id: member.id.clone(),
            group_instance_id: member.instance_id.clone(),
            metadata: member.metadata(protocol).cloned().unwrap_or_default(),
        };
        self.members.values().map(joined).collect()
    }

    /// The answer to a sync once the assignment exists.
    pub(super) fn assignment_reply(&self, member_id: &str) -> SyncReply {
        SyncReply {
            error: ErrorCode::NONE,
            protocol_type: self.protocol_type.clone(),
            protocol: self.protocol.clone(),
            assignment: self
                .members
                .get(member_id)
                .map(|member| member.assignment.clone())
                .unwrap_or_default(),
        }
    }
}

/// A new member whose join is parked this long is taken for gone: it has no id to send heartbeats
/// with, and its connection may have been lost.
pub(crate) const NEW_MEMBER_JOIN_TIMEOUT_MS: i64 = 5 * 60 * 1000;

pub(super) fn refuse_join(
    step: &mut Step,
    token: Token,
    member_id: impl Into<String>,
    error: ErrorCode,
) {
    step.replies
        .push((token, Reply::Join(JoinReply::refused(member_id, error))));
}
