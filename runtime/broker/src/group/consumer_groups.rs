//! Groups of the consumer protocol, asked: heartbeats and descriptions, and what becomes of a
//! request of the classic protocol that names one.
//!
//! Invariants: a group changes its protocol only while it has no members; an answer that tells of
//! a change carries the journal position that must be durable before it.
//! Never: decides; the machine does.

use std::collections::BTreeSet;

use millstream_protocol::ErrorCode;

use super::consumer::{
    Beat, BeatReply, ConsumerGroup, Member, Partitions, Reaction, Refusal, Stimulus, TopicShape,
    TopicTable, react,
};
use super::coordinator::Coordinator;
use super::event::{Event, JoinReply, Reply, Step, SyncReply};
use super::shard::{Shard, ShardState};
use crate::node::{Node, Stage};
use crate::resolution::{Names, View};
use crate::topics::PartitionTable;

/// A group of the consumer protocol as an administrator sees it.
#[derive(Debug)]
pub(crate) struct ConsumerGroupView {
    pub(crate) state: &'static str,
    pub(crate) epoch: i32,
    pub(crate) assignment_epoch: i32,
    pub(crate) assignor: &'static str,
    pub(crate) members: Vec<ConsumerMemberView>,
}

/// One of its members: the id, what it has, and what it is to have.
#[derive(Debug)]
pub(crate) struct ConsumerMemberView {
    pub(crate) id: String,
    pub(crate) member: Member,
    pub(crate) target: Partitions,
}

impl TopicTable for PartitionTable {
    fn version(&self) -> u64 {
        PartitionTable::version(self)
    }

    /// What the expression matched when a member was last heard of.
    fn matching(&self, regex: &str) -> Names {
        self.resolutions.names(regex).unwrap_or_default()
    }

    fn shape(&self, name: &str) -> Option<TopicShape> {
        let topic = self.topic(name)?;
        Some(TopicShape {
            id: topic.id,
            partition_count: i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX),
        })
    }
}

/// More different regular expressions than these are refused in one group.
const EXPRESSIONS_MAX: usize = 100;

/// What has become of a heartbeat.
enum Attempt {
    Answered(BeatReply, u64),
    /// It can only be answered by who knows what these expressions match.
    Unresolved(BTreeSet<String>),
}

impl Coordinator {
    /// ConsumerGroupHeartbeat. Returns the answer, and the journal position that must be durable
    /// before it is given. Cancellation-safe.
    pub(crate) async fn beat(
        &self,
        node: &Node,
        group_id: &str,
        beat: &Beat,
    ) -> Result<(BeatReply, u64), Refusal> {
        let mut unresolved = BTreeSet::new();
        loop {
            let view = tokio::select! {
                biased;
                view = node.resolve(&unresolved) => view.map_err(failed)?,
                () = node.reached(Stage::Draining) => {
                    return Err(failed(ErrorCode::NOT_COORDINATOR));
                }
            };
            match self.attempt(node, group_id, beat, &view)? {
                Attempt::Answered(reply, position) => return Ok((reply, position)),
                Attempt::Unresolved(expressions) => unresolved = expressions,
            }
        }
    }

    fn attempt(
        &self,
        node: &Node,
        group_id: &str,
        beat: &Beat,
        topics: &View<'_>,
    ) -> Result<Attempt, Refusal> {
        let shard = self.shard_of(group_id).map_err(failed)?;
        let now_ms = node.now_ms();
        let limits = self.consumer_limits(node, group_id);
        let mut state = shard.lock();
        if let Some(group) = state.consumers.get_mut(group_id)
            && let Some(reply) = group.beat_quietly(now_ms, beat, limits, &node.partitions)
        {
            return Ok(Attempt::Answered(reply, 0));
        }
        let mut group = consumer_group(&state, group_id, beat)?;
        let expressions = expressions(&group, beat)?;
        if !topics.covers(&expressions) {
            return Ok(Attempt::Unresolved(expressions));
        }
        let reply = group.beat(now_ms, beat, limits, topics)?;
        let deadline_ms = group.next_deadline_ms();
        shard
            .replace(&mut state, group_id, Some(group))
            .map_err(failed)?;
        let position = state.group_position;
        drop(state);
        self.plan(deadline_ms);
        Ok(Attempt::Answered(reply, position))
    }

    /// One group, if it is one of the consumer protocol.
    pub(crate) fn describe_consumers(
        &self,
        group_id: &str,
    ) -> Result<Option<ConsumerGroupView>, ErrorCode> {
        let state = self.shard_of(group_id)?.lock();
        let Some(group) = state.consumers.get(group_id) else {
            return Ok(None);
        };
        let member = |(id, member): (&String, &Member)| ConsumerMemberView {
            id: id.clone(),
            member: member.clone(),
            target: group.targets.get(id).cloned().unwrap_or_default(),
        };
        Ok(Some(ConsumerGroupView {
            state: group.state().name(),
            epoch: group.epoch,
            assignment_epoch: group.assignment_epoch,
            assignor: group.assignor().name(),
            members: group.members.iter().map(member).collect(),
        }))
    }
}

fn failed(error: ErrorCode) -> Refusal {
    Refusal::new(error, error.to_string())
}

/// The expressions of a group, with that of a heartbeat.
fn expressions(group: &ConsumerGroup, beat: &Beat) -> Result<BTreeSet<String>, Refusal> {
    let others = group.expressions_but(&beat.member_id);
    let new = beat.regex.clone().filter(|regex| !regex.is_empty());
    if others.len() >= EXPRESSIONS_MAX && new.as_ref().is_some_and(|regex| !others.contains(regex))
    {
        let message = format!(
            "the members of the group have {EXPRESSIONS_MAX} different regular expressions already"
        );
        return Err(Refusal::new(ErrorCode::INVALID_REQUEST, message));
    }
    let mut expressions = group.expressions();
    expressions.extend(new);
    Ok(expressions)
}

/// The group that a heartbeat means, to be changed: the one that there is, or a new one.
fn consumer_group(
    state: &ShardState,
    group_id: &str,
    beat: &Beat,
) -> Result<ConsumerGroup, Refusal> {
    if let Some(group) = state.consumers.get(group_id) {
        return Ok(group.clone());
    }
    let missing = |message: String| Refusal::new(ErrorCode::GROUP_ID_NOT_FOUND, message);
    let classic = state.groups.get(group_id);
    if classic.is_some_and(|group| !group.is_deserted()) {
        return Err(missing(format!(
            "group {group_id} has members of the classic protocol; it can be used with the \
             consumer protocol once they have left"
        )));
    }
    match react(super::consumer::GroupState::Dead, stimulus(beat)) {
        Reaction::Admit => Ok(ConsumerGroup::default()),
        _ => Err(missing(format!("consumer group {group_id} does not exist"))),
    }
}

fn stimulus(beat: &Beat) -> Stimulus {
    match beat.member_epoch {
        0 => Stimulus::Join,
        _ => Stimulus::Beat,
    }
}

impl Shard {
    /// Answers a request of the classic protocol that names a consumer group. Returns the event if
    /// it is for a classic group, be it one that takes the name now.
    pub(super) fn answer_for_consumers(
        &self,
        state: &mut ShardState,
        group_id: &str,
        topics: &dyn TopicTable,
        event: Event,
    ) -> Result<Option<Event>, ErrorCode> {
        let Some(group) = state.consumers.get(group_id) else {
            return Ok(Some(event));
        };
        let unknown = ErrorCode::UNKNOWN_MEMBER_ID;
        let reply = match event {
            Event::Join(join) => match react(group.state(), Stimulus::ClassicJoin) {
                Reaction::Refuse(error) => {
                    let reply = JoinReply::refused(join.member_id, error);
                    (join.token, Reply::Join(reply))
                }
                _ => {
                    self.replace(state, group_id, None)?;
                    return Ok(Some(Event::Join(join)));
                }
            },
            Event::Leave { token, leavers } => {
                let mut group = group.clone();
                let answers = group.expel(&leavers, topics);
                self.replace(state, group_id, Some(group))?;
                (token, Reply::Leave(answers))
            }
            Event::Sync(sync) => (sync.token, Reply::Sync(SyncReply::refused(unknown))),
            Event::Heartbeat { token, .. } => (token, Reply::Heartbeat(unknown)),
            Event::Delete { .. } | Event::Tick => return Ok(None),
        };
        let replies = vec![reply];
        state.deliver(Step {
            replies,
            store: false,
        });
        Ok(None)
    }

    /// Lets time pass for every consumer group that asked for it; those before an error have it
    /// behind them.
    pub(super) fn tick_consumers(
        &self,
        state: &mut ShardState,
        now_ms: i64,
        topics: &dyn TopicTable,
    ) -> Result<(), ErrorCode> {
        let due = state.consumers.iter().filter(|(_, group)| {
            let deadline_ms = group.next_deadline_ms();
            deadline_ms.is_some_and(|due_ms| due_ms <= now_ms)
        });
        let due: Vec<String> = due.map(|(id, _)| id.clone()).collect();
        for group_id in due {
            let Some(mut group) = state.consumers.get(&group_id).cloned() else {
                continue;
            };
            group.tick(now_ms, topics);
            self.replace(state, &group_id, Some(group))?;
        }
        Ok(())
    }
}
