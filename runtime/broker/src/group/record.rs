//! The records of `__consumer_offsets`, in Kafka's schema.
//!
//! ```text
//! key   = i16 record type (0, 1 offset, 2 group, 3–8 consumer group), then the fields of the type
//! value = i16 version, then the fields of the version; no value is a tombstone
//! ```
//!
//! Invariants: what is written reads back the same, metadata and assignments byte for byte.
//! Never: guesses at a record that it does not know; that is an error, so that nothing is loaded
//! in part.

use bytes::Bytes;
use millstream_protocol::{DecodeError, Decoder, EncodeError, Message, Uuid, message};

use super::consumer::record::{ConsumerRecord, ConsumerRecordError};
use super::offsets::CommittedOffset;

message! {
    /// The key of a committed offset. Kafka reads types 0 and 1 and writes 1.
    pub struct OffsetCommitKey(versions 0..=1) {
        group: String, in 0..;
        topic: String, in 0..;
        partition: i32, in 0..;
    }
}

message! {
    /// A committed offset.
    pub struct OffsetCommitValue(versions 0..=4, flexible 4..) {
        offset: i64, in 0..;
        leader_epoch: i32 = -1, in 3.., else dropped;
        metadata: String, in 0..;
        commit_timestamp: i64, in 0..;
        expire_timestamp: i64 = -1, in 1..=1, else dropped;
        topic_id: Uuid, in 4.., tag 0, else dropped;
    }
}

message! {
    /// The key of a group's membership.
    pub struct GroupMetadataKey(versions 2..=2) {
        group: String, in 2..;
    }
}

message! {
    /// A group's membership: the generation whose assignment was brought last.
    pub struct GroupMetadataValue(versions 0..=4, flexible 4..) {
        protocol_type: String, in 0..;
        generation: i32, in 0..;
        protocol: Option<String>, in 0.., null 0..;
        leader: Option<String>, in 0.., null 0..;
        current_state_timestamp: i64 = -1, in 2.., else dropped;
        members: Vec<MemberMetadata>, in 0..;
    }

    /// One member of the generation.
    pub struct MemberMetadata {
        member_id: String, in 0..;
        group_instance_id: Option<String>, in 3.., null 3.., else dropped;
        client_id: String, in 0..;
        client_host: String, in 0..;
        rebalance_timeout: i32 = -1, in 1.., else dropped;
        session_timeout: i32, in 0..;
        subscription: Bytes, in 0..;
        assignment: Bytes, in 0..;
    }
}

const OFFSET_KEY: i16 = 1;
const GROUP_KEY: i16 = 2;
const GROUP_VALUE: i16 = 3;

/// What one record says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GroupRecord {
    /// A committed offset, or its tombstone.
    Offset {
        group: String,
        topic: String,
        partition: i32,
        value: Option<OffsetCommitValue>,
    },
    /// A group's membership, or its tombstone.
    Group {
        group: String,
        value: Option<GroupMetadataValue>,
    },
    /// Something of a group of the consumer protocol.
    Consumer {
        group: String,
        record: ConsumerRecord,
    },
}

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GroupRecordError {
    /// Every record has a key.
    #[error("the record has no key")]
    NoKey,
    /// A newer broker, or another coordinator protocol, wrote it.
    #[error("record type {0} is not known; a newer broker or another group protocol wrote it")]
    UnknownType(i16),
    /// The key's bytes are not what its type says.
    #[error("key: {0}")]
    Key(DecodeError),
    /// The value's bytes are not what its version says.
    #[error("value: {0}")]
    Value(DecodeError),
    /// What is said of a consumer group cannot be read.
    #[error("consumer group: {0}")]
    Consumer(ConsumerRecordError),
}

impl GroupRecord {
    /// The key and the value as they are stored.
    pub(crate) fn encode(&self) -> Result<(Bytes, Option<Bytes>), EncodeError> {
        match self {
            GroupRecord::Offset {
                group,
                topic,
                partition,
                value,
            } => {
                let key = OffsetCommitKey {
                    group: group.clone(),
                    topic: topic.clone(),
                    partition: *partition,
                };
                let value = value
                    .as_ref()
                    .map(|value| value.to_versioned_bytes(value.version()));
                Ok((key.to_versioned_bytes(OFFSET_KEY)?, value.transpose()?))
            }
            GroupRecord::Group { group, value } => {
                let key = GroupMetadataKey {
                    group: group.clone(),
                };
                let value = value
                    .as_ref()
                    .map(|value| value.to_versioned_bytes(GROUP_VALUE));
                Ok((key.to_versioned_bytes(GROUP_KEY)?, value.transpose()?))
            }
            GroupRecord::Consumer { group, record } => record.encode(group),
        }
    }

    /// Reads a record.
    pub(crate) fn decode(
        key: Option<Bytes>,
        value: Option<Bytes>,
    ) -> Result<GroupRecord, GroupRecordError> {
        let key = key.ok_or(GroupRecordError::NoKey)?;
        let record_type = Decoder::from_bytes(key.clone())
            .i16()
            .map_err(GroupRecordError::Key)?;
        match record_type {
            0 | OFFSET_KEY => {
                let OffsetCommitKey {
                    group,
                    topic,
                    partition,
                } = read_key(key)?;
                Ok(GroupRecord::Offset {
                    group,
                    topic,
                    partition,
                    value: read_value(value)?,
                })
            }
            GROUP_KEY => {
                let GroupMetadataKey { group } = read_key(key)?;
                Ok(GroupRecord::Group {
                    group,
                    value: read_value(value)?,
                })
            }
            other if ConsumerRecord::has_type(other) => {
                let (group, record) = ConsumerRecord::decode(other, key, value)
                    .map_err(GroupRecordError::Consumer)?;
                Ok(GroupRecord::Consumer { group, record })
            }
            other => Err(GroupRecordError::UnknownType(other)),
        }
    }
}

fn read_key<M: Message>(key: Bytes) -> Result<M, GroupRecordError> {
    M::from_versioned_bytes(key)
        .map(|(_, key)| key)
        .map_err(GroupRecordError::Key)
}

fn read_value<M: Message>(value: Option<Bytes>) -> Result<Option<M>, GroupRecordError> {
    let value = value.map(M::from_versioned_bytes).transpose();
    value
        .map(|value| value.map(|(_, value)| value))
        .map_err(GroupRecordError::Value)
}

impl OffsetCommitValue {
    /// As Kafka does it: only version 1 has an expiry of its own, only version 4 the topic's id.
    fn version(&self) -> i16 {
        if self.expire_timestamp >= 0 {
            1
        } else if self.topic_id == Uuid::ZERO {
            3
        } else {
            4
        }
    }

    /// The offset as the coordinator keeps it, read from a record at `record_offset`.
    pub(crate) fn into_committed(self, record_offset: i64) -> CommittedOffset {
        CommittedOffset {
            offset: self.offset,
            leader_epoch: self.leader_epoch,
            metadata: self.metadata,
            commit_timestamp_ms: self.commit_timestamp,
            expire_timestamp_ms: (self.expire_timestamp >= 0).then_some(self.expire_timestamp),
            topic_id: self.topic_id,
            record_offset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;

    fn roundtrip(record: &GroupRecord) -> GroupRecord {
        let (key, value) = record.encode().expect("it can be written");
        GroupRecord::decode(Some(key), value).expect("it can be read")
    }

    fn value() -> OffsetCommitValue {
        OffsetCommitValue {
            offset: 42,
            leader_epoch: 7,
            metadata: "AgAAAZx0PYo=".to_owned(),
            commit_timestamp: 1_700_000_000_000,
            ..OffsetCommitValue::default()
        }
    }

    fn offset(value: Option<OffsetCommitValue>) -> GroupRecord {
        GroupRecord::Offset {
            group: "g".to_owned(),
            topic: "t".to_owned(),
            partition: 3,
            value,
        }
    }

    #[test]
    fn records_read_back_as_they_were_written() {
        for value in [
            None,
            Some(value()),
            Some(OffsetCommitValue {
                topic_id: Uuid([9; 16]),
                ..value()
            }),
            Some(OffsetCommitValue {
                expire_timestamp: 5,
                leader_epoch: -1,
                ..value()
            }),
        ] {
            let record = offset(value);
            assert_eq!(roundtrip(&record), record);
        }
        let member = MemberMetadata {
            member_id: "m".to_owned(),
            group_instance_id: Some("i".to_owned()),
            client_id: "c".to_owned(),
            client_host: "/127.0.0.1".to_owned(),
            rebalance_timeout: 60_000,
            session_timeout: 45_000,
            subscription: Bytes::from_static(b"\x00\x01sub"),
            assignment: Bytes::from_static(b"\x00\x01assigned"),
        };
        let value = GroupMetadataValue {
            protocol_type: "consumer".to_owned(),
            generation: 4,
            protocol: Some("range".to_owned()),
            leader: Some("m".to_owned()),
            current_state_timestamp: 9,
            members: vec![member],
        };
        for value in [None, Some(value)] {
            let record = GroupRecord::Group {
                group: "g".to_owned(),
                value,
            };
            assert_eq!(roundtrip(&record), record);
        }
    }

    #[test]
    fn the_bytes_of_an_offset_are_kafkas() {
        let (key, stored) = offset(Some(value())).encode().expect("it can be written");
        assert_eq!(&key[..], b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x03");
        let stored = stored.expect("a value");
        let mut expected = BytesMut::new();
        expected.extend_from_slice(&3_i16.to_be_bytes());
        expected.extend_from_slice(&42_i64.to_be_bytes());
        expected.extend_from_slice(&7_i32.to_be_bytes());
        expected.extend_from_slice(&12_i16.to_be_bytes());
        expected.extend_from_slice(b"AgAAAZx0PYo=");
        expected.extend_from_slice(&1_700_000_000_000_i64.to_be_bytes());
        assert_eq!(stored, expected.freeze());
    }

    #[test]
    fn c2_what_is_not_known_or_cut_short_is_an_error() {
        let (key, stored) = offset(Some(value())).encode().expect("it can be written");
        let stored = stored.expect("a value");
        for end in 0..key.len() {
            GroupRecord::decode(Some(key.slice(..end)), None).expect_err("a key cut short");
        }
        for end in 0..stored.len() {
            let cut = Some(stored.slice(..end));
            GroupRecord::decode(Some(key.clone()), cut).expect_err("a value cut short");
        }
        let newer = Bytes::from_static(b"\x00\x09\x00\x01g");
        let error = GroupRecord::decode(Some(newer), None).expect_err("another type");
        assert!(error.to_string().contains("record type 9"), "{error}");
        let newer = Bytes::from_static(b"\x00\x05");
        GroupRecord::decode(Some(key), Some(newer)).expect_err("a version of the future");
        GroupRecord::decode(None, None).expect_err("no key");
    }
}
