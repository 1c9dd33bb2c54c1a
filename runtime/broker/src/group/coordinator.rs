//! Every group of this node: requests in, answers once they are durable.
//!
//! ```text
//! handler ─▶ ask ─▶ shard: machine ─▶ append ─▶ answers parked, or delivered with a position
//!    ◀──────────────── Node::durable(position) ◀───────────────┘
//! timers ─▶ tick ─▶ shard
//! ```
//!
//! A group lives in the shard of the partition of `__consumer_offsets` that its id hashes to. The
//! asker waits for durability itself, so an asker that goes away takes nobody's answer with it.
//!
//! Invariants: no lock is held over an await; no answer is given before what it tells is durable.
//! Never: decides; the machine does. Never: asks the transaction coordinator under a lock of its
//! own.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use millstream_log::Appended;
use millstream_protocol::ErrorCode;
use tokio::sync::{Notify, oneshot};

use super::consumer::{self, ConsumerGroup};
use super::event::{Event, Join, JoinReply, Leaver, MemberClaim, Reply, Sync, SyncReply, Token};
use super::machine::{Group, GroupLimits};
use super::member::Member;
use super::replay::Replay;
use super::shard::{Answered, Shard, append_error};
use super::state::GroupState;
use crate::node::{Node, Stage};
use crate::topics::{CONSUMER_OFFSETS_TOPIC, internal_partition_of};
use crate::{BrokerConfig, BrokerError};

/// Every group of this node.
#[derive(Debug)]
pub(crate) struct Coordinator {
    pub(super) limits: GroupLimits,
    consumer_members_max: usize,
    pub(super) offset_metadata_max: usize,
    pub(super) offsets_retention_ms: i64,
    shards: OnceLock<Vec<Shard>>,
    tokens: AtomicU64,
    /// When the timers look next; an earlier deadline wakes them.
    planned_ms: AtomicI64,
    pub(super) wake: Arc<Notify>,
}

/// A group as an administrator sees it.
#[derive(Debug)]
pub(crate) struct GroupView {
    /// The group's id.
    pub(crate) group_id: String,
    /// "Empty", "Stable", …
    pub(crate) state: &'static str,
    /// "consumer", …; empty for a group that only stores offsets.
    pub(crate) protocol_type: String,
    /// The chosen protocol; empty while there is none.
    pub(crate) protocol: String,
    /// Its members.
    pub(crate) members: Vec<MemberView>,
    /// Whether it is a group of the consumer protocol; its members are not told of here.
    pub(crate) is_consumer: bool,
}

/// A member as an administrator sees it.
#[derive(Debug)]
pub(crate) struct MemberView {
    pub(crate) member_id: String,
    pub(crate) group_instance_id: Option<String>,
    pub(crate) client_id: String,
    pub(crate) client_host: String,
    pub(crate) metadata: Bytes,
    pub(crate) assignment: Bytes,
}

impl Coordinator {
    /// A coordinator that has loaded nothing yet and refuses everything.
    pub(crate) fn new(config: &BrokerConfig) -> Self {
        Self {
            limits: GroupLimits {
                initial_rebalance_delay_ms: config.group_initial_rebalance_delay_ms.into(),
                members_max: config.group_max_size,
            },
            consumer_members_max: config.group_consumer_max_size,
            offset_metadata_max: config.offset_metadata_max_bytes,
            offsets_retention_ms: config.offsets_retention_ms,
            shards: OnceLock::new(),
            tokens: AtomicU64::new(0),
            planned_ms: AtomicI64::new(i64::MAX),
            wake: Arc::new(Notify::new()),
        }
    }

    /// Reads every partition of `__consumer_offsets`; from then on requests are answered. A record
    /// that cannot be read is an error, and nothing is served.
    pub(crate) async fn load(&self, node: &Arc<Node>) -> Result<(), BrokerError> {
        let topic = node.ensure_internal_topic(CONSUMER_OFFSETS_TOPIC).await?;
        let decompressed_max = node.config.decompressed_batch_bytes_max;
        let mut shards = Vec::with_capacity(topic.partitions.len());
        for (partition, index) in topic.partitions.iter().zip(0..) {
            let log = partition.log().clone();
            let read = move || Replay::read(&log, decompressed_max);
            let replay = node
                .config
                .placement
                .blocking(read)
                .await?
                .map_err(|corrupt| BrokerError::CorruptCoordinatorLog {
                    topic: CONSUMER_OFFSETS_TOPIC,
                    partition: index,
                    offset: corrupt.offset,
                    reason: corrupt.reason,
                })?;
            let records = replay.record_count;
            let consumer_limits = |group_id: &str| self.consumer_limits(node, group_id);
            let state = replay.finish(self.limits, consumer_limits, node.now_ms());
            tracing::debug!(
                partition = index,
                records,
                groups = state.groups.len() + state.consumers.len(),
                "groups loaded"
            );
            shards.push(Shard::new(partition.clone(), state));
        }
        if self.shards.set(shards).is_err() {
            tracing::error!("groups were loaded twice");
        }
        self.wake.notify_one();
        Ok(())
    }

    /// Asks a group and waits for its answer, however long it takes, and until the answer is
    /// durable. `release_turn` is called once the event has been taken.
    ///
    /// Cancellation-safe: the group has the event, and others get their answers all the same.
    pub(super) async fn ask(
        &self,
        node: &Node,
        group_id: &str,
        event: impl FnOnce(Token) -> Event,
        release_turn: impl FnOnce(),
    ) -> Result<Reply, ErrorCode> {
        let asked = self.submit(node, group_id, event);
        release_turn();
        let asked = asked?;
        let answer = tokio::select! {
            biased;
            answer = asked => answer,
            () = node.reached(Stage::Draining) => return Err(ErrorCode::NOT_COORDINATOR),
        };
        let Answered { reply, position } =
            answer.map_err(|_| ErrorCode::COORDINATOR_NOT_AVAILABLE)?;
        if !matches!(reply, Reply::Heartbeat(_)) {
            self.durable(node, position).await?;
        }
        Ok(reply)
    }

    /// What holds for a group of the consumer protocol now.
    pub(super) fn consumer_limits(&self, node: &Node, group_id: &str) -> consumer::Limits {
        consumer::Limits {
            session_timeout_ms: node.timeouts_of(group_id).session_ms,
            members_max: self.consumer_members_max,
        }
    }

    /// Waits until the journal is durable up to `position`; the error is what a client of a group
    /// is told. Cancellation-safe.
    pub(crate) async fn durable(&self, node: &Node, position: u64) -> Result<(), ErrorCode> {
        let durable = node.durable(position).await;
        durable.map_err(|error| append_error(error.error_code()))
    }

    fn submit(
        &self,
        node: &Node,
        group_id: &str,
        event: impl FnOnce(Token) -> Event,
    ) -> Result<oneshot::Receiver<Answered>, ErrorCode> {
        let shard = self.shard_of(group_id)?;
        let token = Token(self.tokens.fetch_add(1, Ordering::Relaxed));
        let now_ms = node.now_ms();
        let mut state = shard.lock();
        let answer = state.wait_for(token);
        let event = event(token);
        let topics = &node.partitions;
        let classic = shard.answer_for_consumers(&mut state, group_id, topics, event);
        let applied = classic.and_then(|event| match event {
            Some(event) => shard.apply(&mut state, group_id, self.limits, now_ms, event),
            None => Ok(None),
        });
        match applied {
            Ok(deadline_ms) => {
                drop(state);
                self.plan(deadline_ms);
                Ok(answer)
            }
            Err(error) => {
                state.forget(token);
                Err(error)
            }
        }
    }

    /// JoinGroup; an id for a new member is drawn here.
    pub(crate) async fn join(
        &self,
        node: &Node,
        group_id: &str,
        join: Join,
        release_turn: impl FnOnce(),
    ) -> JoinReply {
        let member_id = join.member_id.clone();
        let candidate_member_id = match self.shard_of(group_id) {
            Ok(shard) => new_member_id(node, shard, &join),
            Err(error) => return JoinReply::refused(member_id, error),
        };
        let join = Join {
            candidate_member_id,
            ..join
        };
        let event = |token| Event::Join(Join { token, ..join });
        match self.ask(node, group_id, event, release_turn).await {
            Ok(Reply::Join(reply)) => reply,
            Ok(_) => JoinReply::refused(member_id, ErrorCode::UNKNOWN_SERVER_ERROR),
            Err(error) => JoinReply::refused(member_id, error),
        }
    }

    /// SyncGroup.
    pub(crate) async fn sync(
        &self,
        node: &Node,
        group_id: &str,
        sync: Sync,
        release_turn: impl FnOnce(),
    ) -> SyncReply {
        let event = |token| Event::Sync(Sync { token, ..sync });
        match self.ask(node, group_id, event, release_turn).await {
            Ok(Reply::Sync(reply)) => reply,
            Ok(_) => SyncReply::refused(ErrorCode::UNKNOWN_SERVER_ERROR),
            Err(error) => SyncReply::refused(error),
        }
    }

    /// Heartbeat.
    pub(crate) async fn heartbeat(
        &self,
        node: &Node,
        group_id: &str,
        member: MemberClaim,
    ) -> ErrorCode {
        let event = |token| Event::Heartbeat { token, member };
        match self.ask(node, group_id, event, || {}).await {
            Ok(Reply::Heartbeat(error)) | Err(error) => error,
            Ok(_) => ErrorCode::UNKNOWN_SERVER_ERROR,
        }
    }

    /// LeaveGroup: one code a leaver.
    pub(crate) async fn leave(
        &self,
        node: &Node,
        group_id: &str,
        leavers: Vec<Leaver>,
        release_turn: impl FnOnce(),
    ) -> Result<Vec<ErrorCode>, ErrorCode> {
        let event = |token| Event::Leave { token, leavers };
        match self.ask(node, group_id, event, release_turn).await? {
            Reply::Leave(errors) => Ok(errors),
            _ => Err(ErrorCode::UNKNOWN_SERVER_ERROR),
        }
    }

    /// Every group that has members or offsets, by id.
    pub(crate) fn list(&self) -> Result<Vec<GroupView>, ErrorCode> {
        let mut groups = Vec::new();
        for shard in self.shards()? {
            let state = shard.lock();
            let ids = state.groups.keys().chain(state.consumers.keys());
            let ids = ids.map(String::as_str).chain(state.offsets.groups());
            let ids: BTreeSet<&str> = ids.collect();
            groups.extend(ids.into_iter().map(|id| match state.consumers.get(id) {
                Some(group) => consumer_view(id, group),
                None => view(id, state.groups.get(id)),
            }));
        }
        groups.sort_by(|a, b| a.group_id.cmp(&b.group_id));
        Ok(groups)
    }

    /// One group, if it has members or offsets and is none of the consumer protocol.
    pub(crate) fn describe(&self, group_id: &str) -> Result<Option<GroupView>, ErrorCode> {
        let state = self.shard_of(group_id)?.lock();
        let known = state.knows(group_id) && !state.consumers.contains_key(group_id);
        Ok(known.then(|| view(group_id, state.groups.get(group_id))))
    }

    /// Appends a marker to a partition of `__consumer_offsets`: the producer's offsets before it
    /// count from now on, or never. No commit comes between the marker and what it does, and
    /// nobody is told of that before the marker is durable.
    pub(crate) fn append_marker<E>(
        &self,
        offsets_partition: i32,
        producer_id: i64,
        commit: bool,
        append: impl FnOnce() -> Result<Appended, E>,
    ) -> Result<Appended, E> {
        let index = usize::try_from(offsets_partition).ok();
        let shard = index.and_then(|index| self.shards.get()?.get(index));
        let Some(shard) = shard else {
            tracing::error!(
                offsets_partition,
                producer_id,
                "marker of a partition that is not loaded"
            );
            return append();
        };
        let mut state = shard.lock();
        let appended = append()?;
        state.position = state.position.max(appended.journal_position);
        let offsets = &mut state.offsets;
        let count = offsets.end_transaction(producer_id, commit, appended.base_offset);
        drop(state);
        tracing::debug!(
            offsets_partition,
            producer_id,
            commit,
            count,
            "transactional offsets ended"
        );
        Ok(appended)
    }

    /// Lets time pass for every group that asked for it. Returns when the next one does.
    pub(super) fn tick(&self, node: &Node, now_ms: i64) -> i64 {
        // Whoever sets a deadline while this looks wakes the timers, and they look again.
        self.planned_ms.store(i64::MAX, Ordering::SeqCst);
        let mut next_ms = i64::MAX;
        for shard in self.shards.get().into_iter().flatten() {
            let mut state = shard.lock();
            let is_due = |group: &Group| group.next_deadline_ms().is_some_and(|due| due <= now_ms);
            let due = state.groups.values().filter(|group| is_due(group));
            let due: Vec<String> = due.map(|group| group.id.clone()).collect();
            let mut soonest_ms = now_ms.saturating_add(1);
            for group_id in due {
                let applied = shard.apply(&mut state, &group_id, self.limits, now_ms, Event::Tick);
                if applied.is_err() {
                    // It is tried again; the log is in trouble and has said so.
                    soonest_ms = now_ms.saturating_add(RETRY_MS);
                }
            }
            if shard
                .tick_consumers(&mut state, now_ms, &node.partitions)
                .is_err()
            {
                soonest_ms = now_ms.saturating_add(RETRY_MS);
            }
            let consumers = state.consumers.values();
            let consumers = consumers.filter_map(ConsumerGroup::next_deadline_ms);
            let classic = state.groups.values().filter_map(Group::next_deadline_ms);
            let deadlines = classic.chain(consumers);
            // A deadline may have come up and passed in this very tick.
            next_ms = deadlines
                .map(|due_ms| if due_ms > now_ms { due_ms } else { soonest_ms })
                .fold(next_ms, i64::min);
        }
        self.planned_ms.store(next_ms, Ordering::SeqCst);
        next_ms
    }

    pub(super) fn plan(&self, deadline_ms: Option<i64>) {
        if deadline_ms.is_some_and(|due| due < self.planned_ms.load(Ordering::SeqCst)) {
            self.wake.notify_one();
        }
    }

    pub(super) fn shards(&self) -> Result<&[Shard], ErrorCode> {
        let shards = self
            .shards
            .get()
            .ok_or(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS)?;
        Ok(shards)
    }

    pub(super) fn shard_of(&self, group_id: &str) -> Result<&Shard, ErrorCode> {
        let shards = self.shards()?;
        let count = i32::try_from(shards.len()).unwrap_or(i32::MAX);
        let index = usize::try_from(internal_partition_of(group_id, count)).ok();
        index
            .and_then(|index| shards.get(index))
            .ok_or(ErrorCode::COORDINATOR_NOT_AVAILABLE)
    }
}

/// How long the timers wait before they try again what the log has refused.
const RETRY_MS: i64 = 1_000;

/// An id that no member had before: random, and behind that the time and the length of the log,
/// since a seeded source says the same again after a restart.
fn new_member_id(node: &Node, shard: &Shard, join: &Join) -> String {
    let name = join.group_instance_id.as_deref().unwrap_or(&join.client_id);
    let now = node.now_ms().cast_unsigned();
    let end = shard.partition.offsets().log_end.cast_unsigned();
    format!(
        "{name}-{:016x}{:016x}",
        node.random_u64(),
        now.rotate_left(20) ^ end
    )
}

fn view(group_id: &str, group: Option<&Group>) -> GroupView {
    let Some(group) = group else {
        return GroupView {
            group_id: group_id.to_owned(),
            state: GroupState::Empty.name(),
            protocol_type: String::new(),
            protocol: String::new(),
            members: Vec::new(),
            is_consumer: false,
        };
    };
    let stable = group.state() == GroupState::Stable;
    let protocol = group
        .protocol
        .clone()
        .filter(|_| stable)
        .unwrap_or_default();
    let member = |member: &Member| MemberView {
        member_id: member.id.clone(),
        group_instance_id: member.instance_id.clone(),
        client_id: member.client_id.clone(),
        client_host: member.client_host.clone(),
        metadata: member.metadata(&protocol).cloned().unwrap_or_default(),
        assignment: if stable {
            member.assignment.clone()
        } else {
            Bytes::new()
        },
    };
    GroupView {
        group_id: group_id.to_owned(),
        state: group.state().name(),
        protocol_type: group.protocol_type.clone().unwrap_or_default(),
        members: group.members.values().map(member).collect(),
        protocol,
        is_consumer: false,
    }
}

fn consumer_view(group_id: &str, group: &ConsumerGroup) -> GroupView {
    GroupView {
        group_id: group_id.to_owned(),
        state: group.state().name(),
        protocol_type: "consumer".to_owned(),
        protocol: group.assignor().name().to_owned(),
        members: Vec::new(),
        is_consumer: true,
    }
}
