//! Ranges: each topic is cut into contiguous pieces, one a reader, the same way for every topic.
//!
//! Invariants: readers of a topic differ by one partition of it at most, the first having more.
//! Never: looks at what members had; static members come first so that their pieces stay.

use std::collections::BTreeMap;

use millstream_protocol::Uuid;

use super::Subscriber;
use crate::group::consumer::member::Partitions;

pub(super) fn assign(
    members: &[Subscriber<'_>],
    partition_counts: &BTreeMap<Uuid, i32>,
) -> Vec<Partitions> {
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by_key(|index| {
        let member = members.get(*index);
        member.map(|member| (member.instance_id.is_none(), member.instance_id, member.id))
    });
    let mut targets = vec![Partitions::new(); members.len()];
    for (topic, count) in partition_counts {
        let reads = |index: &&usize| {
            let member = members.get(**index);
            member.is_some_and(|member| member.topics.contains(topic))
        };
        let readers: Vec<usize> = order.iter().filter(reads).copied().collect();
        let reader_count = i32::try_from(readers.len()).unwrap_or(i32::MAX).max(1);
        let (share, more) = (count / reader_count, count % reader_count);
        let mut next = 0;
        for (reader, position) in readers.into_iter().zip(0..) {
            let end = next + share + i32::from(position < more);
            if let Some(target) = targets.get_mut(reader)
                && next < end
            {
                target.insert(*topic, (next..end).collect());
            }
            next = end;
        }
    }
    targets
}
