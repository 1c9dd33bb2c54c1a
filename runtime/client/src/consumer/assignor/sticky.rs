//! The `sticky` assignor: the shares of `cooperative-sticky` under the eager protocol. Members give
//! everything up before they join, so what they had travels in their user data.
//!
//! Invariants: as `cooperative-sticky`; no partition is held back, since nobody holds any.
//! Never: fails on user data that it cannot read: such a member had nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use millstream_protocol::TopicPartition;

use super::cooperative_sticky::{NO_GENERATION, stick};
use super::{Assignment, Assignor, Member, MemberAssignment, PartitionCounts};
use crate::GroupMetadata;

/// Kafka's `sticky` assignor (eager protocol).
#[derive(Debug, Default)]
pub struct Sticky {
    last: Mutex<Option<Had>>,
}

/// What a member had, and in which generation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Had {
    partitions: Vec<TopicPartition>,
    generation: i32,
}

impl Assignor for Sticky {
    fn name(&self) -> &str {
        "sticky"
    }

    /// The last assignment and its generation (version 1 of the data); nothing before the first.
    fn user_data(&self, _topics: &[std::sync::Arc<str>]) -> Option<Bytes> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().and_then(Had::to_bytes)
    }

    fn assign(
        &self,
        partitions: &PartitionCounts,
        members: &[Member],
    ) -> Result<Vec<MemberAssignment>, String> {
        let had = |member: &Member| {
            let had = member.user_data.clone().and_then(Had::from_bytes);
            let had = had.unwrap_or(Had {
                partitions: Vec::new(),
                generation: NO_GENERATION,
            });
            Member {
                owned_partitions: had.partitions,
                generation_id: had.generation,
                user_data: None,
                ..member.clone()
            }
        };
        let members: Vec<Member> = members.iter().map(had).collect();
        Ok(stick(partitions, &members).0)
    }

    fn on_assignment(&self, assignment: &Assignment, group: &GroupMetadata) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some(Had {
            partitions: assignment.partitions.clone(),
            generation: group.generation_id,
        });
    }
}

impl Had {
    /// `None` where a name or a count does not fit its field.
    fn to_bytes(&self) -> Option<Bytes> {
        let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
        for partition in &self.partitions {
            let partitions = topics.entry(&partition.topic).or_default();
            partitions.push(partition.partition);
        }
        let mut bytes = BytesMut::new();
        bytes.put_i32(i32::try_from(topics.len()).ok()?);
        for (topic, partitions) in topics {
            bytes.put_i16(i16::try_from(topic.len()).ok()?);
            bytes.put_slice(topic.as_bytes());
            bytes.put_i32(i32::try_from(partitions.len()).ok()?);
            for partition in partitions {
                bytes.put_i32(partition);
            }
        }
        bytes.put_i32(self.generation);
        Some(bytes.freeze())
    }

    /// Version 1 ends in the generation, version 0 has none.
    fn from_bytes(mut bytes: Bytes) -> Option<Had> {
        let mut partitions = Vec::new();
        for _ in 0..bytes.try_get_i32().ok()? {
            let length = usize::try_from(bytes.try_get_i16().ok()?).ok()?;
            if bytes.remaining() < length {
                return None;
            }
            let name = bytes.split_to(length);
            let topic: std::sync::Arc<str> = std::str::from_utf8(&name).ok()?.into();
            for _ in 0..bytes.try_get_i32().ok()? {
                let partition = bytes.try_get_i32().ok()?;
                partitions.push(TopicPartition::new(topic.clone(), partition));
            }
        }
        let generation = bytes.try_get_i32().unwrap_or(NO_GENERATION);
        Some(Had {
            partitions,
            generation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_data_has_the_bytes_of_kafkas_version_1_and_version_0_is_read() {
        let assignor = Sticky::default();
        assert_eq!(assignor.user_data(&[]), None);
        let assignment = Assignment {
            partitions: vec![TopicPartition::new("a", 2), TopicPartition::new("a", 5)],
            user_data: None,
        };
        let group = GroupMetadata {
            generation_id: 9,
            ..GroupMetadata::without_membership("g")
        };
        assignor.on_assignment(&assignment, &group);
        let bytes = assignor.user_data(&[]).unwrap();
        let expected = [
            &[0, 0, 0, 1, 0, 1, b'a', 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 5][..],
            &[0, 0, 0, 9],
        ]
        .concat();
        assert_eq!(bytes, expected);
        let mut had = Had::from_bytes(bytes.clone()).unwrap();
        assert_eq!((had.partitions.len(), had.generation), (2, 9));
        had.generation = NO_GENERATION;
        let version_0 = bytes.slice(..bytes.len() - 4);
        assert_eq!(Had::from_bytes(version_0), Some(had));
    }

    #[test]
    fn user_data_that_cannot_be_read_is_that_of_a_member_that_had_nothing() {
        for garbage in [
            &[][..],
            &[0, 0, 0, 1],
            &[0, 0, 0, 1, 0x7f, 0xff, b'a'],
            &[0, 0, 0, 1, 0, 1, 0xff, 0, 0, 0, 0],
            &[0, 0, 0, 1, 0, 1, b'a', 0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 1],
        ] {
            assert_eq!(Had::from_bytes(Bytes::copy_from_slice(garbage)), None);
        }
    }
}
