//! The records of a consumer group, in Kafka's schema: types 3 to 8 of `__consumer_offsets`.
//!
//! ```text
//! 3 group      epoch          5 group, member   profile
//! 6 group      target epoch   7 group, member   target       8 group, member   current
//! ```
//!
//! Invariants: what is written reads back the same; type 4, which older brokers of Kafka wrote, is
//! read and says nothing.
//! Never: decides what is written; that is `difference`'s.

use bytes::Bytes;
use millstream_protocol::{DecodeError, EncodeError, Message, Uuid, message};

use super::member::{Partitions, Since};
use super::state::MemberState;

message! {
    /// The key of what is said of a group.
    pub struct ConsumerGroupKey(versions 3..=6) {
        group: String, in 3..;
    }
}

message! {
    /// The key of what is said of a member.
    pub struct ConsumerGroupMemberKey(versions 5..=8) {
        group: String, in 5..;
        member_id: String, in 5..;
    }
}

message! {
    /// The group's epoch, and what its topics looked like then.
    pub struct ConsumerGroupMetadataValue(versions 0..=0, flexible 0..) {
        epoch: i32, in 0..;
        metadata_hash: i64, in 0.., tag 0;
    }
}

message! {
    /// What a member told of itself.
    pub struct ConsumerGroupMemberMetadataValue(versions 0..=0, flexible 0..) {
        instance_id: Option<String>, in 0.., null 0..;
        rack_id: Option<String>, in 0.., null 0..;
        client_id: String, in 0..;
        client_host: String, in 0..;
        subscribed_topic_names: Vec<String>, in 0..;
        subscribed_topic_regex: Option<String>, in 0.., null 0..;
        rebalance_timeout_ms: i32 = -1, in 0..;
        server_assignor: Option<String>, in 0.., null 0..;
    }
}

message! {
    /// The group epoch that the target was computed for.
    pub struct ConsumerGroupTargetAssignmentMetadataValue(versions 0..=0, flexible 0..) {
        assignment_epoch: i32, in 0..;
    }
}

message! {
    /// What a member is to have.
    pub struct ConsumerGroupTargetAssignmentMemberValue(versions 0..=0, flexible 0..) {
        topic_partitions: Vec<StoredPartitions>, in 0..;
    }

    /// Partitions of one topic.
    pub struct StoredPartitions {
        topic_id: Uuid, in 0..;
        partitions: Vec<i32>, in 0..;
    }
}

message! {
    /// How far a member has come.
    pub struct ConsumerGroupCurrentMemberAssignmentValue(versions 0..=0, flexible 0..) {
        member_epoch: i32, in 0..;
        previous_member_epoch: i32, in 0..;
        state: i8, in 0..;
        assigned_partitions: Vec<DatedPartitions>, in 0..;
        partitions_pending_revocation: Vec<DatedPartitions>, in 0..;
    }

    /// Partitions of one topic, and the member's epoch when it was given each. Kafka before 4.3
    /// does not write the latter.
    pub struct DatedPartitions {
        topic_id: Uuid, in 0..;
        partitions: Vec<i32>, in 0..;
        assignment_epochs: Option<Vec<i32>>, in 0.., null 0.., tag 0;
    }
}

const EPOCH: i16 = 3;
const TOPICS: i16 = 4;
const PROFILE: i16 = 5;
const TARGET_EPOCH: i16 = 6;
const TARGET: i16 = 7;
const CURRENT: i16 = 8;
const VALUE_VERSION: i16 = 0;

/// What one record says of a consumer group; no value is a tombstone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ConsumerRecord {
    /// The group.
    Epoch(Option<ConsumerGroupMetadataValue>),
    /// A member.
    Profile(String, Option<ConsumerGroupMemberMetadataValue>),
    /// The target's epoch.
    TargetEpoch(Option<ConsumerGroupTargetAssignmentMetadataValue>),
    /// A member's target.
    Target(String, Option<ConsumerGroupTargetAssignmentMemberValue>),
    /// Where a member is.
    Current(String, Option<ConsumerGroupCurrentMemberAssignmentValue>),
    /// What Kafka up to 4.0 kept of the topics.
    Topics,
}

/// Why a record of a consumer group could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConsumerRecordError {
    /// The bytes are not what they should be.
    #[error(transparent)]
    Bytes(#[from] DecodeError),
    /// A newer broker wrote it.
    #[error("member state {0} is not known")]
    MemberState(i8),
}

impl ConsumerRecord {
    /// Whether records of that type are these.
    pub(crate) fn has_type(record_type: i16) -> bool {
        (EPOCH..=CURRENT).contains(&record_type)
    }

    /// The key and the value as they are stored.
    pub(crate) fn encode(&self, group: &str) -> Result<(Bytes, Option<Bytes>), EncodeError> {
        let of_group = |record_type| {
            let group = group.to_owned();
            ConsumerGroupKey { group }.to_versioned_bytes(record_type)
        };
        let of_member = |record_type, member_id: &String| {
            let key = ConsumerGroupMemberKey {
                group: group.to_owned(),
                member_id: member_id.clone(),
            };
            key.to_versioned_bytes(record_type)
        };
        Ok(match self {
            Self::Epoch(value) => (of_group(EPOCH)?, written(value.as_ref())?),
            Self::Topics => (of_group(TOPICS)?, None),
            Self::Profile(id, value) => (of_member(PROFILE, id)?, written(value.as_ref())?),
            Self::TargetEpoch(value) => (of_group(TARGET_EPOCH)?, written(value.as_ref())?),
            Self::Target(id, value) => (of_member(TARGET, id)?, written(value.as_ref())?),
            Self::Current(id, value) => (of_member(CURRENT, id)?, written(value.as_ref())?),
        })
    }

    /// Reads a record of one of these types: the group's id, and what is said of it.
    pub(crate) fn decode(
        record_type: i16,
        key: Bytes,
        value: Option<Bytes>,
    ) -> Result<(String, ConsumerRecord), ConsumerRecordError> {
        if matches!(record_type, EPOCH | TOPICS | TARGET_EPOCH) {
            let (_, ConsumerGroupKey { group }) = Message::from_versioned_bytes(key)?;
            let record = match record_type {
                EPOCH => Self::Epoch(read(value)?),
                TARGET_EPOCH => Self::TargetEpoch(read(value)?),
                _ => Self::Topics,
            };
            return Ok((group, record));
        }
        let (_, key) = ConsumerGroupMemberKey::from_versioned_bytes(key)?;
        let record = match record_type {
            PROFILE => Self::Profile(key.member_id, read(value)?),
            TARGET => Self::Target(key.member_id, read(value)?),
            _ => {
                let value: Option<ConsumerGroupCurrentMemberAssignmentValue> = read(value)?;
                let state = value.as_ref().map_or(0, |value| value.state);
                MemberState::from_i8(state).ok_or(ConsumerRecordError::MemberState(state))?;
                Self::Current(key.member_id, value)
            }
        };
        Ok((key.group, record))
    }
}

fn written<M: Message>(value: Option<&M>) -> Result<Option<Bytes>, EncodeError> {
    value
        .map(|value| value.to_versioned_bytes(VALUE_VERSION))
        .transpose()
}

fn read<M: Message>(value: Option<Bytes>) -> Result<Option<M>, DecodeError> {
    let value = value.map(M::from_versioned_bytes).transpose()?;
    Ok(value.map(|(_, value)| value))
}

/// Partitions as a record has them.
pub(super) fn to_stored(partitions: &Partitions) -> Vec<StoredPartitions> {
    let stored = |(topic_id, partitions): (&Uuid, &std::collections::BTreeSet<i32>)| {
        let partitions = partitions.iter().copied().collect();
        StoredPartitions {
            topic_id: *topic_id,
            partitions,
        }
    };
    partitions.iter().map(stored).collect()
}

/// Partitions as a record has them that tells their epochs.
pub(super) fn to_dated(partitions: &Partitions, since: &Since) -> Vec<DatedPartitions> {
    let epoch = |partition: &(Uuid, i32)| since.get(partition).copied().unwrap_or(0);
    let dated = |(topic_id, set): (&Uuid, &std::collections::BTreeSet<i32>)| DatedPartitions {
        topic_id: *topic_id,
        partitions: set.iter().copied().collect(),
        assignment_epochs: Some(set.iter().map(|p| epoch(&(*topic_id, *p))).collect()),
    };
    partitions.iter().map(dated).collect()
}

/// Partitions of such a record; those without an epoch are taken to have come with the last one.
pub(super) fn from_dated(
    dated: Vec<DatedPartitions>,
    member_epoch: i32,
    since: &mut Since,
) -> Partitions {
    let mut partitions = Partitions::new();
    for topic in dated {
        let epochs = topic.assignment_epochs.unwrap_or_default();
        for (index, partition) in topic.partitions.into_iter().enumerate() {
            let epoch = epochs.get(index).copied().unwrap_or(member_epoch);
            since.insert((topic.topic_id, partition), epoch);
            let set = partitions.entry(topic.topic_id).or_default();
            set.insert(partition);
        }
    }
    partitions
}

/// Partitions of a record.
pub(super) fn from_stored(stored: Vec<StoredPartitions>) -> Partitions {
    let mut partitions = Partitions::new();
    for topic in stored
        .into_iter()
        .filter(|topic| !topic.partitions.is_empty())
    {
        let set = partitions.entry(topic.topic_id).or_default();
        set.extend(topic.partitions);
    }
    partitions
}
