//! Offsets of groups, deleted on an administrator's word or with their topics.
//!
//! Invariants: memory loses an offset only after its tombstone is in the log.
//! Never: takes an offset of a topic that members of the group read, unless the topic is gone.

use std::collections::BTreeSet;

use millstream_protocol::ErrorCode;

use super::commits::{TOMBSTONES_MAX, partitions_of, tombstones};
use super::coordinator::Coordinator;
use super::machine::Group;
use super::shard::append_error;
use super::state::GroupState;
use super::subscription::subscribed_topics;
use crate::node::{Node, Stage};
use crate::resolution::View;

const CONSUMER: &str = "consumer";

impl Coordinator {
    /// There are no topics of these names: what groups committed says nothing about later ones.
    /// Returns the journal position that must be durable before that is certain, unless there was
    /// nothing to forget. After an error a part is forgotten.
    pub(crate) fn forget_topics(&self, names: &BTreeSet<&str>) -> Result<Option<u64>, ErrorCode> {
        let mut position = None;
        for shard in self.shards().unwrap_or_default() {
            let mut state = shard.lock();
            let offsets = &state.offsets;
            let has_some = |group: &&str| names.iter().any(|name| offsets.has_topic(group, name));
            let groups = offsets.groups().filter(has_some).map(str::to_owned);
            let groups: Vec<String> = groups.collect();
            for group_id in groups {
                let mut partitions = partitions_of(&state, &group_id);
                partitions.retain(|(topic, _)| names.contains(topic.as_str()));
                for chunk in partitions.chunks(TOMBSTONES_MAX) {
                    shard.append(&mut state, &tombstones(&group_id, chunk))?;
                    for (topic, partition) in chunk {
                        state.offsets.remove(&group_id, topic, *partition);
                    }
                    position = position.max(Some(state.position));
                }
            }
        }
        Ok(position)
    }

    /// OffsetDelete: forgets these partitions' offsets, but for topics that members read. Returns
    /// those topics, and the journal position that must be durable before the answer.
    /// Cancellation-safe.
    pub(crate) async fn delete_offsets(
        &self,
        node: &Node,
        group_id: &str,
        partitions: &[(String, i32)],
    ) -> Result<(BTreeSet<String>, u64), ErrorCode> {
        let mut unresolved = BTreeSet::new();
        loop {
            let view = tokio::select! {
                biased;
                view = node.resolve(&unresolved) => view?,
                () = node.reached(Stage::Draining) => return Err(ErrorCode::NOT_COORDINATOR),
            };
            match self.try_delete_offsets(group_id, partitions, &view)? {
                Attempt::Answered(in_use, position) => return Ok((in_use, position)),
                Attempt::Unresolved(expressions) => unresolved = expressions,
            }
        }
    }

    fn try_delete_offsets(
        &self,
        group_id: &str,
        partitions: &[(String, i32)],
        topics: &View<'_>,
    ) -> Result<Attempt, ErrorCode> {
        if group_id.is_empty() {
            return Err(ErrorCode::INVALID_GROUP_ID);
        }
        let shard = self.shard_of(group_id)?;
        let mut state = shard.lock();
        if !state.knows(group_id) {
            return Err(ErrorCode::GROUP_ID_NOT_FOUND);
        }
        let classic = state.groups.get(group_id);
        let subscribed = match state.consumers.get(group_id) {
            Some(group) => {
                let expressions = group.expressions();
                if !topics.covers(&expressions) {
                    return Ok(Attempt::Unresolved(expressions));
                }
                Subscribed::Topics(group.reads(topics))
            }
            None => classic.map_or(Ok(Subscribed::Nothing), subscribed)?,
        };
        let named = partitions.iter().map(|(topic, _)| topic.clone());
        let in_use: BTreeSet<String> = named.filter(|topic| subscribed.has(topic)).collect();
        let offsets = &state.offsets;
        let known = |(topic, index): &&(String, i32)| {
            offsets.get(group_id, topic, *index).is_some()
                || offsets.is_pending(group_id, topic, *index)
        };
        let mut gone: Vec<(String, i32)> = partitions
            .iter()
            .filter(|(topic, _)| !in_use.contains(topic))
            .filter(known)
            .cloned()
            .collect();
        gone.sort();
        gone.dedup();
        for chunk in gone.chunks(TOMBSTONES_MAX) {
            shard
                .append(&mut state, &tombstones(group_id, chunk))
                .map_err(append_error)?;
            for (topic, partition) in chunk {
                state.offsets.remove(group_id, topic, *partition);
            }
        }
        Ok(Attempt::Answered(in_use, state.position))
    }
}

/// What has become of a request to delete offsets.
enum Attempt {
    /// The topics that members read, and what must be durable.
    Answered(BTreeSet<String>, u64),
    /// It can only be answered by who knows what these expressions match.
    Unresolved(BTreeSet<String>),
}

/// What the members of a group read.
enum Subscribed {
    Nothing,
    Topics(BTreeSet<String>),
    /// A rebalance, or a subscription that cannot be read, leaves it open.
    Unknown,
}

impl Subscribed {
    fn has(&self, topic: &str) -> bool {
        match self {
            Self::Nothing => false,
            Self::Topics(topics) => topics.contains(topic),
            Self::Unknown => true,
        }
    }
}

/// What members read; an error for members of which that cannot be known.
fn subscribed(group: &Group) -> Result<Subscribed, ErrorCode> {
    match group.state() {
        GroupState::Empty => return Ok(Subscribed::Nothing),
        GroupState::Dead => return Err(ErrorCode::GROUP_ID_NOT_FOUND),
        _ if group.protocol_type.as_deref() != Some(CONSUMER) => {
            return Err(ErrorCode::NON_EMPTY_GROUP);
        }
        _ => {}
    }
    let Some(protocol) = &group.protocol else {
        return Ok(Subscribed::Unknown);
    };
    let mut topics = BTreeSet::new();
    for member in group.members.values() {
        let metadata = member.metadata(protocol);
        match metadata.and_then(|metadata| subscribed_topics(metadata)) {
            Some(subscribed) => topics.extend(subscribed),
            None => return Ok(Subscribed::Unknown),
        }
    }
    Ok(Subscribed::Topics(topics))
}
