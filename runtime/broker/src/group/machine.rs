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
//! What happens in which state is the table in `state.rs`; joining is in `join.rs`, phases and
//! timers are in `rebalance.rs`.

use std::collections::{BTreeMap, BTreeSet};

use millstream_protocol::ErrorCode;

use super::event::{
    Event, JoinReply, JoinedMember, Leaver, MemberClaim, Reply, Step, Sync, SyncReply, Token,
};
use super::member::Member;
use super::state::{GroupState, Reaction, Stimulus, react};

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

/// An id that was given out to somebody who has not joined with it yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingJoin {
    pub(super) given_at_ms: i64,
    pub(super) forget_at_ms: i64,
}

/// One classic group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(super) id: String,
    pub(super) limits: GroupLimits,
    pub(super) state: GroupState,
    /// Wall time at which the group came into its state; -1 when it was never said.
    pub(super) state_since_ms: i64,
    /// How far the clock of what is written down is ahead of the one of deadlines.
    pub(super) wall_ahead_ms: i64,
    pub(super) generation: i32,
    pub(super) protocol_type: Option<String>,
    pub(super) protocol: Option<String>,
    pub(super) leader: Option<String>,
    pub(super) members: BTreeMap<String, Member>,
    /// Instance id to member id.
    pub(super) static_ids: BTreeMap<String, String>,
    /// Ids that were given out and have not come back yet.
    pub(super) pending_joins: BTreeMap<String, PendingJoin>,
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
            wall_ahead_ms: 0,
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

    /// A copy to which an event may happen. It has the ids that were given out, and this one has
    /// none of them until it is replaced, or takes them back: they are written down nowhere, and
    /// may be many.
    pub(super) fn copy_to_change(&mut self) -> Self {
        let pending_joins = std::mem::take(&mut self.pending_joins);
        Group {
            pending_joins,
            ..self.clone()
        }
    }

    /// What was changed is not to be: this group goes on with its ids.
    pub(super) fn take_pending_joins(&mut self, changed: Self) {
        self.pending_joins = changed.pending_joins;
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
    pub(super) fn validate_member(
        &self,
        member_id: &str,
        instance_id: Option<&str>,
    ) -> Result<(), ErrorCode> {
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

pub(super) fn refuse_join(
    step: &mut Step,
    token: Token,
    member_id: impl Into<String>,
    error: ErrorCode,
) {
    step.replies
        .push((token, Reply::Join(JoinReply::refused(member_id, error))));
}
