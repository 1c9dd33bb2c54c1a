//! The bytes that members of a group exchange through the coordinator: subscriptions and
//! assignments, as Kafka's consumers write them.
//!
//! Invariants: topics and owned partitions are sorted; what a newer client writes is read as far
//! as it is known here.
//! Never: knows what user data means; that is the assignor's.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use millstream_protocol::messages::consumer_protocol::TopicPartitions;
use millstream_protocol::messages::{ConsumerProtocolAssignment, ConsumerProtocolSubscription};
use millstream_protocol::{DecodeError, EncodeError, Message, TopicPartition};

use super::assignor::{Assignment, Member, MemberAssignment};

/// The version that is written: with owned partitions, generation and rack.
const VERSION: i16 = 3;

/// What a member says about itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subscription<'a> {
    pub(crate) topics: &'a [Arc<str>],
    pub(crate) user_data: &'a Option<Bytes>,
    pub(crate) owned: &'a [TopicPartition],
    pub(crate) generation_id: i32,
    pub(crate) rack_id: &'a Option<String>,
}

impl Subscription<'_> {
    pub(crate) fn to_bytes(self) -> Result<Bytes, EncodeError> {
        let mut topics: Vec<String> = self.topics.iter().map(|topic| topic.to_string()).collect();
        topics.sort_unstable();
        topics.dedup();
        ConsumerProtocolSubscription {
            topics,
            user_data: self.user_data.clone(),
            owned_partitions: by_topic(self.owned),
            generation_id: self.generation_id,
            rack_id: self.rack_id.clone(),
        }
        .to_versioned_bytes(VERSION)
    }
}

/// Reads what another member says about itself.
pub(crate) fn member_from_bytes(
    member_id: String,
    group_instance_id: Option<String>,
    bytes: Bytes,
) -> Result<Member, DecodeError> {
    let subscription = ConsumerProtocolSubscription::from_bytes(bytes)?;
    Ok(Member {
        member_id,
        group_instance_id,
        topics: subscription.topics.into_iter().map(Arc::from).collect(),
        user_data: subscription.user_data,
        owned_partitions: flat(subscription.owned_partitions),
        generation_id: subscription.generation_id,
        rack_id: subscription.rack_id.filter(|rack| !rack.is_empty()),
    })
}

/// The bytes of one member's share.
pub(crate) fn assignment_to_bytes(share: &MemberAssignment) -> Result<Bytes, EncodeError> {
    ConsumerProtocolAssignment {
        assigned_partitions: by_topic(&share.partitions),
        user_data: share.user_data.clone(),
    }
    .to_versioned_bytes(VERSION)
}

/// Reads a share. No bytes are no partitions.
pub(crate) fn assignment_from_bytes(bytes: Bytes) -> Result<Assignment, DecodeError> {
    let assignment = ConsumerProtocolAssignment::from_bytes(bytes)?;
    Ok(Assignment {
        partitions: flat(assignment.assigned_partitions),
        user_data: assignment.user_data,
    })
}

fn by_topic(partitions: &[TopicPartition]) -> Vec<TopicPartitions> {
    let mut topics: BTreeMap<&Arc<str>, Vec<i32>> = BTreeMap::new();
    for partition in partitions {
        topics
            .entry(&partition.topic)
            .or_default()
            .push(partition.partition);
    }
    topics
        .into_iter()
        .map(|(topic, mut partitions)| {
            partitions.sort_unstable();
            TopicPartitions {
                topic: topic.to_string(),
                partitions,
            }
        })
        .collect()
}

fn flat(topics: Vec<TopicPartitions>) -> Vec<TopicPartition> {
    topics
        .into_iter()
        .flat_map(|topic| {
            let name: Arc<str> = topic.topic.into();
            topic
                .partitions
                .into_iter()
                .map(move |p| TopicPartition::new(name.clone(), p))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscription_has_the_bytes_that_kafkas_consumer_writes() {
        let subscription = Subscription {
            topics: &["b".into(), "a".into()],
            user_data: &Some(Bytes::from_static(&[9])),
            owned: &[TopicPartition::new("a", 1), TopicPartition::new("a", 0)],
            generation_id: 5,
            rack_id: &None,
        };
        let expected = [
            &[0, 3][..],                           // version
            &[0, 0, 0, 2, 0, 1, b'a', 0, 1, b'b'], // topics, sorted
            &[0, 0, 0, 1, 9],                      // user data
            &[0, 0, 0, 1, 0, 1, b'a'],             // owned: one topic
            &[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1], // its partitions, sorted
            &[0, 0, 0, 5],                         // generation
            &[0xff, 0xff],                         // no rack
        ]
        .concat();
        assert_eq!(subscription.to_bytes().unwrap(), expected);
    }

    #[test]
    fn an_assignment_has_the_bytes_that_kafkas_leader_writes() {
        let share = MemberAssignment {
            member_id: "m".to_owned(),
            partitions: vec![TopicPartition::new("a", 2)],
            user_data: None,
        };
        let bytes = assignment_to_bytes(&share).unwrap();
        let expected = [
            &[0, 3, 0, 0, 0, 1, 0, 1, b'a', 0, 0, 0, 1, 0, 0, 0, 2][..],
            &[0xff; 4],
        ]
        .concat();
        assert_eq!(bytes, expected);
        assert_eq!(
            assignment_from_bytes(bytes).unwrap().partitions,
            share.partitions
        );
        assert_eq!(
            assignment_from_bytes(Bytes::new()).unwrap(),
            Assignment::default()
        );
    }

    #[test]
    fn subscriptions_of_older_and_newer_members_are_read_and_garbage_is_an_error() {
        let v0 = Bytes::from_static(&[0, 0, 0, 0, 0, 1, 0, 1, b'a', 0xff, 0xff, 0xff, 0xff]);
        let member = member_from_bytes("m".to_owned(), None, v0).unwrap();
        assert_eq!((member.topics.len(), member.generation_id), (1, -1));
        let newer = Subscription {
            topics: &["a".into()],
            user_data: &None,
            owned: &[],
            generation_id: 1,
            rack_id: &Some("r".to_owned()),
        };
        let mut bytes = newer.to_bytes().unwrap().to_vec();
        bytes[1] = 9;
        bytes.extend_from_slice(b"new field");
        let member = member_from_bytes("m".to_owned(), None, bytes.into()).unwrap();
        assert_eq!(member.rack_id.as_deref(), Some("r"));
        let garbage = Bytes::from_static(&[0, 3, 0x7f, 0xff, 0xff, 0xff]);
        assert!(member_from_bytes("m".to_owned(), None, garbage).is_err());
    }
}
