//! Offsets of groups: committed plainly or in a transaction, fetched, deleted, expired.
//!
//! Invariants:
//! - memory has an offset only after its record is in the log, in the order of the log;
//! - what a fetch tells is durable before it is told;
//! - an offset that an open transaction may still change is neither shown to a reader that asks
//!   for stable ones nor expired.
//!
//! Never: answers a commit itself; the handler waits for the position that it gets.

use std::collections::BTreeMap;

use millstream_log::{AppendOrigin, failpoint};
use millstream_protocol::{ErrorCode, ProducerStamp, Uuid};

use super::consumer::{GroupState, Reaction, Stimulus, react};
use super::coordinator::Coordinator;
use super::event::{Event, MemberClaim, Reply, Token};
use super::machine::Group;
use super::offsets::CommittedOffset;
use super::record::{GroupRecord, OffsetCommitValue};
use super::shard::{Shard, ShardState, append_error, commit_error, encode};
use crate::node::Node;
use crate::transaction::{offset_commit_error, offset_commit_mode};

/// One offset that a client wants to commit.
#[derive(Clone, Debug)]
pub(crate) struct NewOffset {
    pub(crate) topic: String,
    pub(crate) topic_id: Uuid,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) leader_epoch: i32,
    pub(crate) metadata: String,
}

/// What is known of one partition's offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FetchedOffset {
    /// Nothing was committed.
    None,
    /// An open transaction may still change it, and the reader wants it stable.
    Unstable,
    /// The committed offset.
    Committed(CommittedOffset),
}

impl FetchedOffset {
    /// Whether it was committed for another topic than the one that has its name now.
    pub(crate) fn is_of_another(&self, topic_id: Uuid) -> bool {
        match self {
            FetchedOffset::Committed(offset) => differs(offset.topic_id, topic_id),
            FetchedOffset::None | FetchedOffset::Unstable => false,
        }
    }
}

/// Offsets by topic and partition.
pub(crate) type FetchedTopics = BTreeMap<String, Vec<(i32, FetchedOffset)>>;

/// The producer whose transaction carries a commit.
#[derive(Clone, Debug)]
pub(crate) struct CommitProducer {
    pub(crate) transactional_id: String,
    pub(crate) producer_id: i64,
    pub(crate) producer_epoch: i16,
    /// The version of TxnOffsetCommit that the client speaks: it decides about implicit adds and
    /// about the names of errors.
    pub(crate) api_version: i16,
}

impl Coordinator {
    /// Whether metadata is longer than `offset.metadata.max.bytes`, in characters as Kafka counts.
    pub(crate) fn metadata_is_too_large(&self, metadata: &str) -> bool {
        metadata.len() > self.offset_metadata_max
            && metadata.encode_utf16().count() > self.offset_metadata_max
    }

    /// OffsetCommit. Returns the journal position that must be durable before the answer.
    pub(crate) fn commit(
        &self,
        node: &Node,
        group_id: &str,
        claim: &MemberClaim,
        offsets: &[NewOffset],
        retention_ms: Option<i64>,
        api_version: i16,
    ) -> Result<u64, ErrorCode> {
        let shard = self.shard_of(group_id)?;
        let mut state = shard.lock();
        let partitions = by_id(&state, node, group_id, offsets);
        validate(&state, group_id, claim, Some(api_version), &partitions)?;
        if let Some(group) = state.groups.get_mut(group_id) {
            group.committed(node.now_ms(), &claim.member_id);
        }
        if offsets.is_empty() {
            return Ok(0);
        }
        let now_ms = node.wall_ms();
        let expire_ms = retention_ms.map(|retention_ms| now_ms.saturating_add(retention_ms));
        let records = to_records(group_id, offsets, now_ms, expire_ms);
        let appended = shard.append(&mut state, &records).map_err(commit_error)?;
        for (record, at) in records.into_iter().zip(appended.base_offset..) {
            let GroupRecord::Offset {
                group,
                topic,
                partition,
                value: Some(value),
            } = record
            else {
                continue;
            };
            state
                .offsets
                .commit(&group, &topic, partition, value.into_committed(at));
        }
        Ok(appended.journal_position)
    }

    /// TxnOffsetCommit: the offsets count once the producer's transaction commits. Returns the
    /// journal position that must be durable before the answer.
    ///
    /// Membership is looked at before the transaction is touched, and again when nothing can end
    /// the transaction before the offsets are in the log.
    pub(crate) fn commit_in_transaction(
        &self,
        node: &Node,
        group_id: &str,
        claim: &MemberClaim,
        producer: &CommitProducer,
        offsets: &[NewOffset],
    ) -> Result<u64, ErrorCode> {
        let shard = self.shard_of(group_id)?;
        let asked = {
            let state = shard.lock();
            let partitions = by_id(&state, node, group_id, offsets);
            validate(&state, group_id, claim, None, &partitions)?;
            partitions
        };
        if offsets.is_empty() {
            return Ok(0);
        }
        let version = producer.api_version;
        let partitions = [shard.partition.name().clone()];
        let records = to_records(group_id, offsets, node.wall_ms(), None);
        let committed = node.transactions.within_transaction(
            &producer.transactional_id,
            producer.producer_id,
            producer.producer_epoch,
            &partitions,
            offset_commit_mode(version),
            || append_pending(shard, (group_id, claim, &asked), producer, records),
        );
        committed
            .flatten()
            .map_err(|error| offset_commit_error(error, version))
    }

    /// Whether a member may be told offsets: the check of OffsetFetch 9 and later. Nobody in
    /// particular may always ask, and so may members of groups that have no epochs.
    pub(crate) fn may_fetch(
        &self,
        group_id: &str,
        member_id: Option<&str>,
        member_epoch: i32,
    ) -> Result<(), ErrorCode> {
        let state = self.shard_of(group_id)?.lock();
        let group = state.consumers.get(group_id);
        group.map_or(Ok(()), |group| {
            group.validate_fetch(member_id, member_epoch)
        })
    }

    /// OffsetFetch of the partitions that the client names.
    pub(crate) fn fetch(
        &self,
        group_id: &str,
        partitions: impl IntoIterator<Item = (String, Uuid, i32)>,
        require_stable: bool,
    ) -> Result<(Vec<FetchedOffset>, u64), ErrorCode> {
        let state = self.shard_of(group_id)?.lock();
        let look = |(topic, topic_id, partition): (String, Uuid, i32)| {
            let fetched = look_up(&state, group_id, &topic, partition, require_stable);
            if fetched.is_of_another(topic_id) {
                FetchedOffset::None
            } else {
                fetched
            }
        };
        Ok((partitions.into_iter().map(look).collect(), state.position))
    }

    /// OffsetFetch of everything, by topic. A partition that has only an offset of an open
    /// transaction is listed for a reader that wants stable ones: it is not known to have none.
    pub(crate) fn fetch_all(
        &self,
        group_id: &str,
        require_stable: bool,
    ) -> Result<(FetchedTopics, u64), ErrorCode> {
        let state = self.shard_of(group_id)?.lock();
        let mut topics = FetchedTopics::new();
        for (topic, partitions) in state.offsets.partitions(group_id) {
            for partition in partitions {
                let fetched = look_up(&state, group_id, topic, partition, require_stable);
                if fetched != FetchedOffset::None {
                    topics
                        .entry(topic.to_owned())
                        .or_default()
                        .push((partition, fetched));
                }
            }
        }
        Ok((topics, state.position))
    }

    /// DeleteGroups: the group, if it has no members, with all its offsets. Returns the journal
    /// position that must be durable before the answer.
    pub(crate) fn delete(&self, node: &Node, group_id: &str) -> Result<u64, ErrorCode> {
        let shard = self.shard_of(group_id)?;
        let mut state = shard.lock();
        if !state.knows(group_id) {
            return Err(ErrorCode::GROUP_ID_NOT_FOUND);
        }
        let now_ms = node.now_ms();
        if let Some(group) = state.consumers.get(group_id)
            && let Reaction::Refuse(error) = react(group.state(), Stimulus::Delete)
        {
            return Err(error);
        }
        if let Some(group) = state.groups.get(group_id) {
            let step = group
                .clone()
                .apply(now_ms, Event::Delete { token: Token(0) });
            for (_, reply) in step.replies {
                if let Reply::Delete(error) = reply
                    && !error.is_ok()
                {
                    return Err(error);
                }
            }
        }
        for chunk in partitions_of(&state, group_id).chunks(TOMBSTONES_MAX) {
            shard
                .append(&mut state, &tombstones(group_id, chunk))
                .map_err(append_error)?;
            for (topic, partition) in chunk {
                state.offsets.remove(group_id, topic, *partition);
            }
        }
        if state.consumers.contains_key(group_id) {
            shard.replace(&mut state, group_id, None)?;
            return Ok(state.position);
        }
        let tombstone = GroupRecord::Group {
            group: group_id.to_owned(),
            value: None,
        };
        shard
            .append(&mut state, &[tombstone])
            .map_err(append_error)?;
        state.groups.remove(group_id);
        Ok(state.position)
    }

    /// Forgets offsets that nobody has used for the retention time, and groups that have nothing
    /// left. `now_ms` is wall time, as everything is that it is compared with.
    pub(super) fn expire(&self, now_ms: i64) {
        for shard in self.shards().unwrap_or_default() {
            let mut state = shard.lock();
            let known = state.groups.keys().chain(state.consumers.keys());
            let known = known.map(String::as_str).chain(state.offsets.groups());
            let known: std::collections::BTreeSet<String> = known.map(str::to_owned).collect();
            for group_id in known {
                if self
                    .expire_group(shard, &mut state, &group_id, now_ms)
                    .is_err()
                {
                    return;
                }
            }
        }
    }

    fn expire_group(
        &self,
        shard: &Shard,
        state: &mut ShardState,
        group_id: &str,
        now_ms: i64,
    ) -> Result<(), ErrorCode> {
        let consumers = state.consumers.get(group_id);
        if consumers.is_some_and(|group| group.state() != GroupState::Empty) {
            return Ok(());
        }
        let group = state.groups.get(group_id);
        if group.is_some_and(|group| !group.is_deserted()) {
            return Ok(());
        }
        let classic = group.filter(|group| group.protocol_type.is_some());
        let classic_ms = classic.map(|group| group.state_since_ms);
        let consumers_ms = state.empty_since_ms.get(group_id).copied();
        let empty_since_ms = classic_ms.or(consumers_ms).unwrap_or(i64::MIN);
        let expired: Vec<(String, i32)> = state
            .offsets
            .committed(group_id)
            .filter(|(topic, partition, offset)| {
                let last_used_ms = offset.commit_timestamp_ms.max(empty_since_ms);
                let kept_until_ms = last_used_ms.saturating_add(self.offsets_retention_ms);
                offset.expire_timestamp_ms.unwrap_or(kept_until_ms) <= now_ms
                    && !state.offsets.is_pending(group_id, topic, *partition)
            })
            .map(|(topic, partition, _)| (topic.to_owned(), partition))
            .collect();
        for chunk in expired.chunks(TOMBSTONES_MAX) {
            shard.append(state, &tombstones(group_id, chunk))?;
            for (topic, partition) in chunk {
                state.offsets.remove(group_id, topic, *partition);
            }
        }
        if !state.offsets.knows(group_id) && state.consumers.contains_key(group_id) {
            shard.replace(state, group_id, None)?;
        }
        if !state.offsets.knows(group_id) && state.groups.contains_key(group_id) {
            let tombstone = GroupRecord::Group {
                group: group_id.to_owned(),
                value: None,
            };
            shard.append(state, &[tombstone])?;
            state.groups.remove(group_id);
        }
        Ok(())
    }
}

/// Most tombstones in one batch.
pub(super) const TOMBSTONES_MAX: usize = 1_000;

fn append_pending(
    shard: &Shard,
    (group_id, claim, asked): (&str, &MemberClaim, &[(Uuid, i32)]),
    producer: &CommitProducer,
    records: Vec<GroupRecord>,
) -> Result<u64, ErrorCode> {
    let mut state = shard.lock();
    validate(&state, group_id, claim, None, asked)?;
    let stamp = ProducerStamp {
        producer_id: producer.producer_id,
        producer_epoch: producer.producer_epoch,
        base_sequence: -1,
        transactional: true,
    };
    let batch = encode(&records, stamp, shard.partition.wall_ms()).map_err(commit_error)?;
    let appended = shard
        .partition
        .append(batch, AppendOrigin::Coordinator)
        .map_err(|error| {
            tracing::debug!(group_id, ?producer, %error, "transactional offsets refused");
            commit_error(error.error_code())
        })?;
    failpoint::hit("broker.after-offsets");
    state.position = state.position.max(appended.journal_position);
    for (record, at) in records.into_iter().zip(appended.base_offset..) {
        let GroupRecord::Offset {
            group,
            topic,
            partition,
            value: Some(value),
        } = record
        else {
            continue;
        };
        let value = value.into_committed(at);
        state
            .offsets
            .commit_pending(producer.producer_id, &group, &topic, partition, value);
    }
    Ok(appended.journal_position)
}

/// The partitions of a commit by the ids of their topics, for a group that goes by these.
fn by_id(
    state: &ShardState,
    node: &Node,
    group_id: &str,
    offsets: &[NewOffset],
) -> Vec<(Uuid, i32)> {
    if !state.consumers.contains_key(group_id) {
        return Vec::new();
    }
    let id = |offset: &NewOffset| match offset.topic_id.is_zero() {
        // A topic that is not there has an id that nobody has.
        true => (node.partitions.topic(&offset.topic)).map_or(Uuid::ZERO, |topic| topic.id),
        false => offset.topic_id,
    };
    offsets
        .iter()
        .map(|offset| (id(offset), offset.partition))
        .collect()
}

/// Whether who commits may. A group that only stores offsets is one without members.
/// `api_version` is that of OffsetCommit; there is none in a transaction.
fn validate(
    state: &ShardState,
    group_id: &str,
    claim: &MemberClaim,
    api_version: Option<i16>,
    partitions: &[(Uuid, i32)],
) -> Result<(), ErrorCode> {
    let transactional = api_version.is_none();
    let knows_epochs = api_version.is_some_and(|version| version >= EPOCHS_VERSION);
    if let Some(group) = state.consumers.get(group_id) {
        return group.validate_commit(claim, transactional, knows_epochs, partitions);
    }
    match state.groups.get(group_id) {
        Some(group) => group.validate_commit(claim, transactional),
        None if claim.generation < 0 => Ok(()),
        None if state.offsets.knows(group_id) => {
            Group::new(group_id, Default::default(), 0).validate_commit(claim, transactional)
        }
        None if knows_epochs => Err(ErrorCode::GROUP_ID_NOT_FOUND),
        None => Err(ErrorCode::ILLEGAL_GENERATION),
    }
}

/// The first version of OffsetCommit whose clients know member epochs, and that a group may be
/// missing.
const EPOCHS_VERSION: i16 = 9;

fn look_up(
    state: &ShardState,
    group_id: &str,
    topic: &str,
    partition: i32,
    require_stable: bool,
) -> FetchedOffset {
    if require_stable && state.offsets.is_pending(group_id, topic, partition) {
        return FetchedOffset::Unstable;
    }
    match state.offsets.get(group_id, topic, partition) {
        Some(offset) => FetchedOffset::Committed(offset.clone()),
        None => FetchedOffset::None,
    }
}

fn differs(committed_for: Uuid, asked_for: Uuid) -> bool {
    committed_for != Uuid::ZERO && asked_for != Uuid::ZERO && committed_for != asked_for
}

pub(super) fn partitions_of(state: &ShardState, group_id: &str) -> Vec<(String, i32)> {
    let topics = state.offsets.partitions(group_id).into_iter();
    let partitions = topics.flat_map(|(topic, partitions)| {
        partitions
            .into_iter()
            .map(move |partition| (topic.to_owned(), partition))
    });
    partitions.collect()
}

pub(super) fn tombstones(group_id: &str, partitions: &[(String, i32)]) -> Vec<GroupRecord> {
    let tombstone = |(topic, partition): &(String, i32)| GroupRecord::Offset {
        group: group_id.to_owned(),
        topic: topic.clone(),
        partition: *partition,
        value: None,
    };
    partitions.iter().map(tombstone).collect()
}

fn to_records(
    group_id: &str,
    offsets: &[NewOffset],
    now_ms: i64,
    expire_ms: Option<i64>,
) -> Vec<GroupRecord> {
    let record = |offset: &NewOffset| GroupRecord::Offset {
        group: group_id.to_owned(),
        topic: offset.topic.clone(),
        partition: offset.partition,
        value: Some(OffsetCommitValue {
            offset: offset.offset,
            leader_epoch: offset.leader_epoch,
            metadata: offset.metadata.clone(),
            commit_timestamp: now_ms,
            expire_timestamp: expire_ms.unwrap_or(-1),
            topic_id: offset.topic_id,
        }),
    };
    offsets.iter().map(record).collect()
}
