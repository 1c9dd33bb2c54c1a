//! One partition of `__consumer_offsets` and everything that it holds: groups and offsets.
//!
//! Invariants:
//! - what is in memory is in the log: a change is appended first and seen afterwards, under one
//!   lock, so memory changes in the order of the log;
//! - an answer carries the journal position that must be durable before it is given.
//!
//! An id has a classic group or a consumer group, never both.
//!
//! Never: awaits; takes another lock while it holds its own than the partition's and, to read, that
//! of the table of topics, whose holders take none.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use millstream_log::{AppendOrigin, Appended};
use millstream_protocol::{Compression, ErrorCode, ProducerStamp, RecordBatchBuilder};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use super::consumer::{ConsumerGroup, difference};
use super::event::{Event, Reply, Step, Token};
use super::machine::{Group, GroupLimits};
use super::offsets::Offsets;
use super::record::GroupRecord;
use crate::partition::Partition;

/// An answer, and the journal position that must be durable before it is given.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) reply: Reply,
    pub(super) position: u64,
}

/// What the groups of one partition are.
#[derive(Debug, Default)]
pub(super) struct ShardState {
    pub(super) groups: BTreeMap<String, Group>,
    pub(super) consumers: BTreeMap<String, ConsumerGroup>,
    pub(super) offsets: Offsets,
    /// Since when each consumer group without members has had none, in wall time.
    pub(super) empty_since_ms: BTreeMap<String, i64>,
    /// The journal position after the last append of offsets, groups or markers.
    pub(super) position: u64,
    /// The journal position after the last append of a group.
    pub(super) group_position: u64,
    waiters: FxHashMap<Token, oneshot::Sender<Answered>>,
}

/// One partition's groups.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) partition: Arc<Partition>,
    state: Mutex<ShardState>,
}

impl Shard {
    pub(super) fn new(partition: Arc<Partition>, state: ShardState) -> Self {
        Shard {
            partition,
            state: Mutex::new(state),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ShardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends records that belong to no transaction.
    pub(super) fn append(
        &self,
        state: &mut ShardState,
        records: &[GroupRecord],
    ) -> Result<Appended, ErrorCode> {
        let batch = encode(records, ProducerStamp::NONE, self.partition.wall_ms())?;
        let appended = self.partition.append(batch, AppendOrigin::Coordinator);
        let appended = appended.map_err(|error| {
            tracing::warn!(partition = %self.partition.name(), %error, "group append failed");
            error.error_code()
        })?;
        state.position = state.position.max(appended.journal_position);
        Ok(appended)
    }

    /// Applies an event to a group and delivers what it answers. Returns when the group wants its
    /// next tick, or the error of a failed append, after which the group is as it was.
    pub(super) fn apply(
        &self,
        state: &mut ShardState,
        group_id: &str,
        limits: GroupLimits,
        now_ms: i64,
        event: Event,
    ) -> Result<Option<i64>, ErrorCode> {
        if let (Event::Heartbeat { .. }, Some(group)) = (&event, state.groups.get_mut(group_id)) {
            // Nothing to write down and no earlier deadline: no need for a copy.
            let step = group.apply(now_ms, event);
            state.deliver(step);
            return Ok(None);
        }
        let mut group = match state.groups.get_mut(group_id) {
            Some(group) => group.copy_to_change(),
            None => Group::new(group_id, limits, now_ms),
        };
        group.wall_ahead_ms = self.partition.ahead_ms();
        let step = group.apply(now_ms, event);
        if step.store {
            let value = Some(group.to_record());
            let record = GroupRecord::Group {
                group: group_id.to_owned(),
                value,
            };
            if let Err(error) = self.append(state, &[record]) {
                if let Some(unchanged) = state.groups.get_mut(group_id) {
                    unchanged.take_pending_joins(group);
                }
                return Err(append_error(error));
            }
            state.group_position = state.position;
        }
        let deadline_ms = group.next_deadline_ms();
        if group.is_deserted() && group.generation == 0 {
            // Nobody ever was in it, so there is nothing to remember.
            state.groups.remove(group_id);
        } else {
            state.groups.insert(group_id.to_owned(), group);
        }
        state.deliver(step);
        Ok(deadline_ms)
    }
}

impl Shard {
    /// Writes down what has changed of a consumer group, and then lets it be seen. After an error
    /// the group is as it was.
    pub(super) fn replace(
        &self,
        state: &mut ShardState,
        group_id: &str,
        after: Option<ConsumerGroup>,
    ) -> Result<(), ErrorCode> {
        let classic = state.groups.contains_key(group_id) && after.is_some();
        let tombstone = classic.then(|| GroupRecord::Group {
            group: group_id.to_owned(),
            value: None,
        });
        let records = difference(state.consumers.get(group_id), after.as_ref());
        let records = records.into_iter().map(|record| GroupRecord::Consumer {
            group: group_id.to_owned(),
            record,
        });
        let records: Vec<GroupRecord> = tombstone.into_iter().chain(records).collect();
        if !records.is_empty() {
            self.append(state, &records).map_err(append_error)?;
            state.group_position = state.position;
        }
        if classic {
            state.groups.remove(group_id);
        }
        match &after {
            Some(group) if group.members.is_empty() => {
                let since_ms = &mut state.empty_since_ms;
                let now_ms = self.partition.wall_ms();
                since_ms.entry(group_id.to_owned()).or_insert(now_ms);
            }
            _ => drop(state.empty_since_ms.remove(group_id)),
        }
        match after {
            Some(after) => state.consumers.insert(group_id.to_owned(), after),
            None => state.consumers.remove(group_id),
        };
        Ok(())
    }
}

impl ShardState {
    /// What a log has said; of each consumer group also when for the last time.
    pub(super) fn loaded(
        groups: BTreeMap<String, Group>,
        consumers: impl Iterator<Item = (String, (ConsumerGroup, i64))>,
        offsets: Offsets,
    ) -> Self {
        let mut state = ShardState {
            groups,
            offsets,
            ..ShardState::default()
        };
        for (id, (group, told_ms)) in consumers {
            if group.members.is_empty() {
                state.empty_since_ms.insert(id.clone(), told_ms);
            }
            state.consumers.insert(id, group);
        }
        state
    }

    /// Where the answer to `token` will arrive.
    pub(super) fn wait_for(&mut self, token: Token) -> oneshot::Receiver<Answered> {
        let (sender, receiver) = oneshot::channel();
        self.waiters.insert(token, sender);
        receiver
    }

    /// Nobody waits for `token` any more.
    pub(super) fn forget(&mut self, token: Token) {
        self.waiters.remove(&token);
    }

    /// Whether the group has members, offsets or both.
    pub(super) fn knows(&self, group_id: &str) -> bool {
        self.groups.contains_key(group_id)
            || self.consumers.contains_key(group_id)
            || self.offsets.knows(group_id)
    }

    pub(super) fn deliver(&mut self, step: Step) {
        let position = self.group_position;
        for (token, reply) in step.replies {
            if let Some(waiter) = self.waiters.remove(&token) {
                // A waiter that has gone away needs no answer.
                let _ = waiter.send(Answered { reply, position });
            }
        }
    }
}

/// One batch of records, stamped for a transaction or for none.
pub(super) fn encode(
    records: &[GroupRecord],
    stamp: ProducerStamp,
    now_ms: i64,
) -> Result<Bytes, ErrorCode> {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    for record in records {
        let (key, value) = record.encode().map_err(|error| {
            tracing::warn!(%error, "a group's record has no form");
            ErrorCode::INVALID_COMMIT_OFFSET_SIZE
        })?;
        builder.append(now_ms, Some(&key), value.as_deref(), &[]);
    }
    builder.finish(stamp).map_err(|error| {
        tracing::warn!(%error, "a batch of group records cannot be built");
        ErrorCode::INVALID_COMMIT_OFFSET_SIZE
    })
}

/// What a member is told when its group could not be written down.
pub(super) fn append_error(code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
        | ErrorCode::NOT_ENOUGH_REPLICAS
        | ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND
        | ErrorCode::REQUEST_TIMED_OUT => ErrorCode::COORDINATOR_NOT_AVAILABLE,
        ErrorCode::NOT_LEADER_OR_FOLLOWER | ErrorCode::KAFKA_STORAGE_ERROR => {
            ErrorCode::NOT_COORDINATOR
        }
        ErrorCode::MESSAGE_TOO_LARGE
        | ErrorCode::RECORD_LIST_TOO_LARGE
        | ErrorCode::INVALID_COMMIT_OFFSET_SIZE => ErrorCode::UNKNOWN_SERVER_ERROR,
        other => other,
    }
}

/// What a client is told when its offsets could not be written down.
pub(super) fn commit_error(code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::MESSAGE_TOO_LARGE
        | ErrorCode::RECORD_LIST_TOO_LARGE
        | ErrorCode::INVALID_COMMIT_OFFSET_SIZE => ErrorCode::INVALID_COMMIT_OFFSET_SIZE,
        other => append_error(other),
    }
}
