//! How instances of one application share partitions: the group protocol `millstream`.
//!
//! The leader gives each member that reads a topic its fair share of it; what a member had before
//! stays with it where the share allows, so that a restarted or added instance moves as little as
//! possible.
//!
//! Invariants: every partition of every topic goes to exactly one member; the same input gives the
//! same answer.
//! Never: looks at load, clocks or randomness.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use millstream_client::GroupMetadata;
use millstream_client::consumer::assignor::{
    Assignment, Assignor, Member, MemberAssignment, PartitionCounts,
};
use millstream_protocol::TopicPartition;

/// Version of the user data; a reader takes any version and reads the fields it knows.
const USER_DATA_VERSION: i16 = 0;

#[derive(Debug, Default)]
pub(crate) struct StreamsAssignor {
    owned: Mutex<BTreeSet<TopicPartition>>,
}

impl Assignor for StreamsAssignor {
    fn name(&self) -> &str {
        "millstream"
    }

    /// `version i16, count u32, (topic length u16, topic, partition i32)*`: what this member had
    /// last.
    fn user_data(&self, _topics: &[Arc<str>]) -> Option<Bytes> {
        let owned = self.owned.lock().unwrap_or_else(PoisonError::into_inner);
        Some(encode(&owned))
    }

    fn assign(
        &self,
        partitions: &PartitionCounts,
        members: &[Member],
    ) -> Result<Vec<MemberAssignment>, String> {
        Ok(assign(partitions, members))
    }

    fn on_assignment(&self, assignment: &Assignment, _group: &GroupMetadata) {
        let mut owned = self.owned.lock().unwrap_or_else(PoisonError::into_inner);
        *owned = assignment.partitions.iter().cloned().collect();
    }
}

fn encode(owned: &BTreeSet<TopicPartition>) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_i16(USER_DATA_VERSION);
    bytes.put_u32(owned.len() as u32);
    for partition in owned {
        bytes.put_u16(partition.topic.len() as u16);
        bytes.put_slice(partition.topic.as_bytes());
        bytes.put_i32(partition.partition);
    }
    bytes.freeze()
}

/// What a member says it had; bytes that make no sense are no claim.
fn decode(mut bytes: Bytes) -> BTreeSet<TopicPartition> {
    let mut owned = BTreeSet::new();
    let mut read = || -> Option<()> {
        bytes.try_get_i16().ok()?;
        let count = bytes.try_get_u32().ok()?;
        for _ in 0..count {
            let length = usize::from(bytes.try_get_u16().ok()?);
            if bytes.remaining() < length {
                return None;
            }
            let topic = bytes.split_to(length);
            let topic = std::str::from_utf8(&topic).ok()?;
            let partition = bytes.try_get_i32().ok()?;
            owned.insert(TopicPartition::new(topic, partition));
        }
        Some(())
    };
    let _ = read();
    owned
}

fn assign(partitions: &PartitionCounts, members: &[Member]) -> Vec<MemberAssignment> {
    let mut members: Vec<&Member> = members.iter().collect();
    // Static members keep their place through a restart, when their member id changes.
    members.sort_by(|a, b| {
        let key = |m: &Member| (m.group_instance_id.clone(), m.member_id.clone());
        key(a).cmp(&key(b))
    });
    let mut shares: BTreeMap<&str, Vec<TopicPartition>> = BTreeMap::new();
    let claims: Vec<BTreeSet<TopicPartition>> = members
        .iter()
        .map(|m| m.user_data.clone().map(decode).unwrap_or_default())
        .collect();
    let mut offset = 0;
    for (topic, &count) in partitions {
        let readers: Vec<usize> = (0..members.len())
            .filter(|&at| {
                members
                    .get(at)
                    .is_some_and(|member| member.topics.contains(topic))
            })
            .collect();
        if readers.is_empty() {
            continue;
        }
        let given = share_topic(topic, count, &readers, &claims, offset);
        offset += usize::try_from(count).unwrap_or(0);
        for (partition, member) in given {
            let Some(member) = members.get(member) else {
                continue;
            };
            shares.entry(&member.member_id).or_default().push(partition);
        }
    }
    members
        .iter()
        .map(|member| MemberAssignment {
            member_id: member.member_id.clone(),
            partitions: shares.remove(member.member_id.as_str()).unwrap_or_default(),
            user_data: None,
        })
        .collect()
}

/// Shares one topic out: first what was claimed, up to the fair share, then the rest in turn.
/// `offset` rotates who gets the larger shares, so that many small topics do not all fall to the
/// first member.
fn share_topic(
    topic: &Arc<str>,
    count: i32,
    readers: &[usize],
    claims: &[BTreeSet<TopicPartition>],
    offset: usize,
) -> Vec<(TopicPartition, usize)> {
    let total = usize::try_from(count).unwrap_or(0);
    let (base, larger) = (total / readers.len(), total % readers.len());
    let mut room: Vec<(usize, usize)> = (0..readers.len())
        .map(|turn| {
            let reader = readers
                .get((turn + offset) % readers.len())
                .copied()
                .unwrap_or(0);
            (reader, base + usize::from(turn < larger))
        })
        .collect();
    let mut given = Vec::with_capacity(total);
    let mut free = Vec::new();
    for index in 0..count {
        let partition = TopicPartition::new(Arc::clone(topic), index);
        let keeper = room.iter_mut().find(|(reader, left)| {
            *left > 0
                && claims
                    .get(*reader)
                    .is_some_and(|claim| claim.contains(&partition))
        });
        match keeper {
            Some((reader, left)) => {
                *left -= 1;
                given.push((partition, *reader));
            }
            None => free.push(partition),
        }
    }
    for partition in free {
        if let Some((reader, left)) = room.iter_mut().find(|(_, left)| *left > 0) {
            *left -= 1;
            given.push((partition, *reader));
        }
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: &str, owned: &[i32]) -> Member {
        let owned = owned
            .iter()
            .map(|&p| TopicPartition::new("orders", p))
            .collect();
        Member {
            member_id: id.to_owned(),
            topics: vec!["orders".into()],
            user_data: Some(encode(&owned)),
            ..Member::default()
        }
    }

    fn shares(count: i32, members: &[Member]) -> BTreeMap<String, Vec<i32>> {
        let counts = PartitionCounts::from([(Arc::from("orders"), count)]);
        let mut all = Vec::new();
        let mut result = BTreeMap::new();
        for share in assign(&counts, members) {
            let mut partitions: Vec<i32> = share.partitions.iter().map(|p| p.partition).collect();
            partitions.sort_unstable();
            all.extend(partitions.clone());
            result.insert(share.member_id, partitions);
        }
        all.sort_unstable();
        assert_eq!(
            all,
            (0..count).collect::<Vec<_>>(),
            "each partition has one owner"
        );
        result
    }

    #[test]
    fn shares_are_fair_and_what_a_member_had_stays_with_it() {
        let alone = shares(4, &[member("a", &[])]);
        assert_eq!(alone["a"], [0, 1, 2, 3]);
        let joined = shares(4, &[member("a", &[0, 1, 2, 3]), member("b", &[])]);
        assert_eq!(
            (&joined["a"][..], &joined["b"][..]),
            (&[0, 1][..], &[2, 3][..])
        );
        let kept = shares(4, &[member("a", &[1, 2]), member("b", &[0, 3])]);
        assert_eq!((&kept["a"][..], &kept["b"][..]), (&[1, 2][..], &[0, 3][..]));
        let more = shares(
            2,
            &[member("a", &[]), member("b", &[0, 1]), member("c", &[])],
        );
        assert_eq!(more.values().map(Vec::len).max(), Some(1));
    }

    #[test]
    fn user_data_round_trips_and_nonsense_is_no_claim() {
        let owned = BTreeSet::from([TopicPartition::new("a", 1), TopicPartition::new("b", 0)]);
        assert_eq!(decode(encode(&owned)), owned);
        assert!(decode(Bytes::from_static(b"\0\0\xff\xff\xff\xff\0\x09ab")).is_empty());
    }
}
