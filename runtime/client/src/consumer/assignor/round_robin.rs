//! The `roundrobin` assignor: all partitions in one row, dealt out to the members in turn.
//!
//! Members stand in the order of [`Member::order_key`]; one that does not subscribe to a topic is
//! passed over, and the turn goes on behind the one that took a partition.
//!
//! Invariants: when all members subscribe to the same topics, shares differ by at most one
//! partition.
//! Never: looks at racks, or at what members had before.

use millstream_protocol::TopicPartition;

use super::{Assignor, Member, MemberAssignment, PartitionCounts, assignments, in_order};

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
        let ordered = in_order(members);
        let mut shares = vec![Vec::new(); ordered.len()];
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
                shares[turn].push(TopicPartition::new(topic.clone(), partition));
                turn = (turn + 1) % ordered.len();
            }
        }
        Ok(assignments(&ordered, shares))
    }
}
