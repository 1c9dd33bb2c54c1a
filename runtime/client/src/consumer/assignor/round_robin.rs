//! The `roundrobin` assignor: all partitions in one row, dealt out to the members in turn.
//!
//! Members stand in the order of [`Member::order_key`]; one that does not subscribe to a topic is
//! passed over, and the turn goes on behind the one that took a partition.
//!
//! Invariants: when all members subscribe to the same topics, shares differ by at most one
//! partition.
//! Never: looks at racks, or at what members had before.

use std::collections::BTreeMap;

use millstream_protocol::TopicPartition;

use super::{Assignor, Member, MemberAssignment, PartitionCounts};

/// Kafka's `roundrobin` assignor (eager protocol).
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin;

impl Assignor for RoundRobin {
    fn name(&self) -> &str {
        "roundrobin"
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
        let mut turn = 0;
        for (topic, &count) in partitions {
            let takes = |member: &&Member| member.topics.contains(topic);
            if !ordered.iter().any(takes) {
                continue;
            }
            for partition in 0..count {
                while !takes(&ordered[turn]) {
                    turn = (turn + 1) % ordered.len();
                }
                let share = shares.entry(&ordered[turn].member_id).or_default();
                share.push(TopicPartition::new(topic.clone(), partition));
                turn = (turn + 1) % ordered.len();
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
