//! The phases of a rebalance and everything that time does to a group.
//!
//! Invariants: PreparingRebalance with everybody joined does not outlast the event that completed
//! it; a deadline exists whenever somebody could be waited for without end.
//! Never: decides what a stimulus means; that is the table in `state.rs`.

use std::collections::BTreeMap;

use bytes::Bytes;
use millstream_protocol::ErrorCode;

use super::event::{Reply, Step, Sync, SyncReply};
use super::machine::{FirstGeneration, Group, refuse_join};
use super::state::{GroupState, Reaction, Stimulus, react};

impl Group {
    /// When the group wants its next `Event::Tick`; `None` while time cannot change it.
    pub(crate) fn next_deadline_ms(&self) -> Option<i64> {
        let members = self
            .members
            .values()
            .filter_map(|member| member.expires_at_ms());
        let pending = self.pending_joins.values();
        let pending = pending.map(|pending| pending.forget_at_ms);
        members
            .chain(pending)
            .chain(self.join_deadline_ms)
            .chain(self.sync_deadline_ms)
            .min()
    }

    pub(super) fn tick(&mut self, now_ms: i64, step: &mut Step) {
        let pending_before = self.pending_joins.len();
        self.pending_joins
            .retain(|_, pending| pending.forget_at_ms > now_ms);
        if self.pending_joins.len() < pending_before {
            self.maybe_complete_join(now_ms, step);
        }
        loop {
            let mut members = self.members.values();
            let expired = members
                .find(|member| {
                    member
                        .expires_at_ms()
                        .is_some_and(|deadline| deadline <= now_ms)
                })
                .map(|member| member.id.clone());
            let Some(member_id) = expired else { break };
            self.remove_member(&member_id, step);
            self.member_gone(now_ms, step);
        }
        if self
            .join_deadline_ms
            .is_some_and(|deadline| deadline <= now_ms)
        {
            self.join_deadline_ms = None;
            if self.put_off_first_generation(now_ms) {
                return;
            }
            if react(self.state, Stimulus::JoinTimeout) == Reaction::CompleteJoin {
                self.complete_join(now_ms, step);
            }
        }
        if self
            .sync_deadline_ms
            .is_some_and(|deadline| deadline <= now_ms)
        {
            self.sync_deadline_ms = None;
            if react(self.state, Stimulus::SyncTimeout) == Reaction::DropSilent {
                self.drop_silent(now_ms, step);
            }
        }
    }

    /// After one or more members were removed.
    pub(super) fn member_gone(&mut self, now_ms: i64, step: &mut Step) {
        let reaction = react(self.state, Stimulus::MemberGone);
        self.progress(now_ms, reaction, step);
    }

    /// Begins a rebalance or goes on with it.
    pub(super) fn progress(&mut self, now_ms: i64, reaction: Reaction, step: &mut Step) {
        match reaction {
            Reaction::StartRebalance => self.prepare_rebalance(now_ms, step),
            Reaction::AwaitOthers => self.maybe_complete_join(now_ms, step),
            _ => {}
        }
    }

    fn prepare_rebalance(&mut self, now_ms: i64, step: &mut Step) {
        if self.state == GroupState::CompletingRebalance {
            for member in self.members.values_mut() {
                member.assignment = Bytes::new();
                if let Some(token) = member.sync.take() {
                    member.refresh_session(now_ms);
                    let reply = SyncReply::refused(ErrorCode::REBALANCE_IN_PROGRESS);
                    step.replies.push((token, Reply::Sync(reply)));
                }
            }
        }
        self.pending_syncs.clear();
        self.sync_deadline_ms = None;
        let starts = self.state == GroupState::Empty;
        self.become_state(GroupState::PreparingRebalance, now_ms);
        let deadline_ms = self.rebalance_deadline_ms(now_ms);
        let delay_ms = self.limits.initial_rebalance_delay_ms;
        if starts {
            let remaining_ms = deadline_ms
                .saturating_sub(now_ms)
                .saturating_sub(delay_ms)
                .max(0);
            self.first_generation = Some(FirstGeneration {
                remaining_ms,
                member_added: false,
            });
            self.join_deadline_ms = Some(now_ms.saturating_add(delay_ms));
        } else {
            self.join_deadline_ms = Some(deadline_ms);
        }
        self.maybe_complete_join(now_ms, step);
    }

    /// The delay before a first generation begins again when it brought a new member.
    fn put_off_first_generation(&mut self, now_ms: i64) -> bool {
        let delay_ms = self.limits.initial_rebalance_delay_ms;
        match &mut self.first_generation {
            Some(first) if first.member_added && first.remaining_ms > 0 => {
                let next_ms = delay_ms.min(first.remaining_ms);
                first.member_added = false;
                first.remaining_ms = (first.remaining_ms - delay_ms).max(0);
                self.join_deadline_ms = Some(now_ms.saturating_add(next_ms));
                true
            }
            _ => false,
        }
    }

    fn maybe_complete_join(&mut self, now_ms: i64, step: &mut Step) {
        if self.state == GroupState::PreparingRebalance && self.has_everybody_joined() {
            self.complete_join(now_ms, step);
        }
    }

    /// Whoever was given an id is waited for as well. The start of a group waits for its delay, and
    /// for nobody else.
    fn has_everybody_joined(&self) -> bool {
        match self.first_generation {
            Some(_) => self.limits.initial_rebalance_delay_ms == 0,
            None => {
                self.members.values().all(|member| member.join.is_some())
                    && self.pending_joins.is_empty()
            }
        }
    }

    /// Forms the next generation with whoever has joined.
    fn complete_join(&mut self, now_ms: i64, step: &mut Step) {
        self.join_deadline_ms = None;
        self.first_generation = None;
        let missing: Vec<String> = self
            .members
            .values()
            .filter(|member| member.join.is_none() && !member.is_static())
            .map(|member| member.id.clone())
            .collect();
        for member_id in missing {
            self.remove_member(&member_id, step);
        }
        if !self.members.is_empty() && !self.elect_leader() {
            // Only static members are left and none of them has joined: their sessions decide.
            self.join_deadline_ms = Some(self.rebalance_deadline_ms(now_ms));
            return;
        }
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.pending_syncs.clear();
        if self.members.is_empty() {
            self.protocol = None;
            self.leader = None;
            self.become_state(GroupState::Empty, now_ms);
            step.store = true;
            return;
        }
        self.protocol = self.select_protocol();
        self.become_state(GroupState::CompletingRebalance, now_ms);
        self.answer_joins(now_ms, step);
        self.sync_deadline_ms = Some(self.rebalance_deadline_ms(now_ms));
    }

    fn answer_joins(&mut self, now_ms: i64, step: &mut Step) {
        let member_ids: Vec<String> = self.members.keys().cloned().collect();
        for member_id in member_ids {
            let reply = self.generation_reply(&member_id);
            if let Some(member) = self.members.get_mut(&member_id) {
                member.assignment = Bytes::new();
                if let Some(token) = member.join.take() {
                    member.refresh_session(now_ms);
                    member.is_new = false;
                    step.replies.push((token, Reply::Join(reply)));
                }
            }
            self.pending_syncs.insert(member_id);
        }
    }

    /// A leader that has not joined gives way to a member that has.
    fn elect_leader(&mut self) -> bool {
        let joined = |group: &Self, member_id: &str| {
            group
                .members
                .get(member_id)
                .is_some_and(|member| member.join.is_some())
        };
        if self
            .leader
            .as_deref()
            .is_some_and(|leader| joined(self, leader))
        {
            return true;
        }
        let next = self.members.values().find(|member| member.join.is_some());
        let Some(next) = next.map(|member| member.id.clone()) else {
            return false;
        };
        self.leader = Some(next);
        true
    }

    /// The protocol that all members support and most of them want most; the leader's order
    /// decides between equals.
    pub(super) fn select_protocol(&self) -> Option<String> {
        let leader = self
            .leader
            .as_deref()
            .and_then(|leader| self.members.get(leader));
        let order = leader.or_else(|| self.members.values().next())?;
        let candidates: Vec<&str> = order
            .protocols
            .iter()
            .map(|protocol| protocol.name.as_str())
            .filter(|name| self.members.values().all(|member| member.supports(name)))
            .collect();
        let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
        for member in self.members.values() {
            let mut wanted = member
                .protocols
                .iter()
                .map(|protocol| protocol.name.as_str());
            if let Some(vote) = wanted.find(|name| candidates.contains(name)) {
                *votes.entry(vote).or_default() += 1;
            }
        }
        let most = votes.values().copied().max()?;
        let winner = candidates
            .into_iter()
            .find(|name| votes.get(name) == Some(&most));
        winner.map(str::to_owned)
    }

    pub(super) fn park_sync(&mut self, sync: &Sync, step: &mut Step) {
        let member_id = &sync.member.member_id;
        self.has_synced(member_id);
        if let Some(member) = self.members.get_mut(member_id)
            && let Some(older) = member.sync.replace(sync.token)
        {
            let reply = SyncReply::refused(ErrorCode::REBALANCE_IN_PROGRESS);
            step.replies.push((older, Reply::Sync(reply)));
        }
    }

    pub(super) fn has_synced(&mut self, member_id: &str) {
        self.pending_syncs.remove(member_id);
        if self.pending_syncs.is_empty() {
            self.sync_deadline_ms = None;
        }
    }

    /// The leader has brought the assignment: everybody who waits gets its part.
    pub(super) fn store_assignment(&mut self, now_ms: i64, sync: Sync, step: &mut Step) {
        self.park_sync(&sync, step);
        let mut assignments: BTreeMap<String, Bytes> = sync.assignments.into_iter().collect();
        let member_ids: Vec<String> = self.members.keys().cloned().collect();
        self.become_state(GroupState::Stable, now_ms);
        for member_id in member_ids {
            let mut waiting = None;
            if let Some(member) = self.members.get_mut(&member_id) {
                member.assignment = assignments.remove(&member_id).unwrap_or_default();
                waiting = member.sync.take();
                if waiting.is_some() {
                    member.refresh_session(now_ms);
                }
            }
            if let Some(token) = waiting {
                step.replies
                    .push((token, Reply::Sync(self.assignment_reply(&member_id))));
            }
        }
        step.store = true;
    }

    /// Members that have not asked for their assignment in time are gone.
    fn drop_silent(&mut self, now_ms: i64, step: &mut Step) {
        let silent = std::mem::take(&mut self.pending_syncs);
        if silent.is_empty() {
            return;
        }
        for member_id in &silent {
            self.remove_member(member_id, step);
        }
        self.prepare_rebalance(now_ms, step);
    }

    /// Removes a member; whatever it waits for is answered so that it starts anew.
    pub(super) fn remove_member(&mut self, member_id: &str, step: &mut Step) {
        self.pending_syncs.remove(member_id);
        let Some(member) = self.members.remove(member_id) else {
            return;
        };
        if let Some(token) = member.join {
            refuse_join(step, token, "", ErrorCode::UNKNOWN_MEMBER_ID);
        }
        if let Some(token) = member.sync {
            let reply = SyncReply::refused(ErrorCode::UNKNOWN_MEMBER_ID);
            step.replies.push((token, Reply::Sync(reply)));
        }
        if let Some(instance_id) = &member.instance_id {
            self.static_ids.remove(instance_id);
        }
        if self.leads(member_id) {
            self.leader = self.members.keys().next().cloned();
        }
    }

    fn rebalance_deadline_ms(&self, now_ms: i64) -> i64 {
        let timeouts = self
            .members
            .values()
            .map(|member| i64::from(member.rebalance_timeout_ms));
        now_ms.saturating_add(timeouts.max().unwrap_or(0))
    }

    pub(super) fn become_state(&mut self, next: GroupState, now_ms: i64) {
        assert!(
            self.state.may_become(next),
            "group {} may not go from {} to {}",
            self.id,
            self.state.name(),
            next.name()
        );
        self.state = next;
        self.state_since_ms = now_ms.saturating_add(self.wall_ahead_ms);
    }
}
