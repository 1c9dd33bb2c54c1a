//! The `range` assignor: each topic's partitions in consecutive runs, one run a member.
//!
//! Members are ordered with the static ones first, by `group.instance.id`, then the others by
//! member id; the first members get one partition more where the count does not divide evenly.
//! Topics with the same count and subscribers are therefore co-partitioned.
//!
//! Invariants: shares of one topic differ by at most one partition.
//! Never: look at racks (Kafka's does, when both clients and brokers name theirs).

use millstream_protocol::TopicPartition;

use super::{Assignor, Member, MemberAssignment, PartitionCounts, assignments, in_order};

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
        let ordered = in_order(members);
        let mut shares = vec![Vec::new(); ordered.len()];
        for (topic, &count) in partitions {
            let takes = |position: &usize| ordered[*position].topics.contains(topic);
            let takers: Vec<usize> = (0..ordered.len()).filter(takes).collect();
            let Some((base, extra)) = quota(count, takers.len()) else {
                continue;
            };
            let mut next = 0;
            for (nth, taker) in takers.into_iter().enumerate() {
                let take = base + i32::from(nth < extra);
                let run = (next..next + take).map(|p| TopicPartition::new(topic.clone(), p));
                shares[taker].extend(run);
                next += take;
            }
        }
        Ok(assignments(&ordered, shares))
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
