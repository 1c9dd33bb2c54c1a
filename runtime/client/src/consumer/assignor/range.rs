//! The `range` assignor: each topic's partitions in consecutive runs, one run a member.
//!
//! Members are ordered with the static ones first, by `group.instance.id`, then the others by
//! member id; the first members get one partition more where the count does not divide evenly.
//! Topics with the same count and subscribers are therefore co-partitioned.
//!
//! Invariants: shares of one topic differ by at most one partition.
//! Never: look at racks (Kafka's does, when both clients and brokers name theirs).

use std::collections::BTreeMap;

use millstream_protocol::TopicPartition;

use super::{Assignor, Member, MemberAssignment, PartitionCounts};

/// Kafka's `range` assignor (eager protocol).
#[derive(Clone, Copy, Debug, Default)]
pub struct Range;

impl Assignor for Range {
    fn name(&self) -> &str {
        "range"
    }

    fn assign(
        &self,
        partitions: &PartitionCounts,
        members: &[Member],
    ) -> Result<Vec<MemberAssignment>, String> {
        let mut ordered: Vec<&Member> = members.iter().collect();
        ordered.sort_by(|a, b| a.order_key().cmp(&b.order_key()));

        let mut shares: BTreeMap<&str, Vec<TopicPartition>> = members
            .iter()
            .map(|m| (m.member_id.as_str(), Vec::new()))
            .collect();
        for (topic, &count) in partitions {
            let takers: Vec<&Member> = ordered
                .iter()
                .copied()
                .filter(|m| m.topics.contains(topic))
                .collect();
            let Some((base, extra)) = quota(count, takers.len()) else {
                continue;
            };
            let mut next = 0;
            for (position, member) in takers.iter().enumerate() {
                let take = base + i32::from(position < extra);
                let share = shares.entry(member.member_id.as_str()).or_default();
                share.extend((next..next + take).map(|p| TopicPartition::new(topic.clone(), p)));
                next += take;
            }
        }
        Ok(shares
            .into_iter()
            .map(|(member_id, partitions)| MemberAssignment {
                member_id: member_id.to_owned(),
                partitions,
                user_data: None,
            })
            .collect())
    }
}

/// Partitions for everybody, and how many members get one more.
fn quota(count: i32, members: usize) -> Option<(i32, usize)> {
    let members = i32::try_from(members).ok().filter(|m| *m > 0)?;
    let count = count.max(0);
    Some((
        count / members,
        usize::try_from(count % members).unwrap_or(0),
    ))
}
