//! The `cooperative-sticky` assignor: balanced shares that move as few partitions as they can.
//!
//! A partition that has to move is first taken from its owner and given to nobody; the owner joins
//! again without it, and the rebalance after that hands it on. So no partition ever has two owners.
//!
//! Invariants: when all members subscribe to the same topics, shares differ by at most one
//! partition; a partition claimed by several members of one generation is handed on only after all
//! of them have given it up; of two claims, the one of the newer generation counts.
//! Never: keep anything between rebalances but the generation that goes into the user data.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use bytes::Bytes;
use millstream_protocol::TopicPartition;

use super::{
    Assignment, Assignor, Member, MemberAssignment, PartitionCounts, RebalanceProtocol,
    assignments, balance, moved_while_owned,
};
use crate::GroupMetadata;

/// Generation of a member that does not tell one.
pub(super) const NO_GENERATION: i32 = -1;

/// Kafka's `cooperative-sticky` assignor. Fit for the eager protocol too, so that it can share a
/// list with `range`.
#[derive(Debug)]
pub struct CooperativeSticky {
    generation: AtomicI32,
}

impl Default for CooperativeSticky {
    fn default() -> Self {
        CooperativeSticky {
            generation: AtomicI32::new(NO_GENERATION),
        }
    }
}

impl Assignor for CooperativeSticky {
    fn name(&self) -> &str {
        "cooperative-sticky"
    }

    fn protocols(&self) -> &[RebalanceProtocol] {
        &[RebalanceProtocol::Cooperative, RebalanceProtocol::Eager]
    }

    /// The generation of the last assignment as a big-endian i32, for leaders that do not read it
    /// from the subscription itself (below version 2).
    fn user_data(&self, _topics: &[Arc<str>]) -> Option<Bytes> {
        let generation = self.generation.load(Ordering::Relaxed);
        Some(Bytes::copy_from_slice(&generation.to_be_bytes()))
    }

    fn assign(
        &self,
        partitions: &PartitionCounts,
        members: &[Member],
    ) -> Result<Vec<MemberAssignment>, String> {
        let (mut shares, transferring) = stick(partitions, members);
        for share in &mut shares {
            share.partitions.retain(|p| !transferring.contains(p));
        }
        Ok(shares)
    }

    fn on_assignment(&self, _assignment: &Assignment, group: &GroupMetadata) {
        self.generation
            .store(group.generation_id, Ordering::Relaxed);
    }
}

/// Balanced shares that move as few of the owned partitions as they can, and those that they take
/// from an owner.
pub(super) fn stick(
    partitions: &PartitionCounts,
    members: &[Member],
) -> (Vec<MemberAssignment>, BTreeSet<TopicPartition>) {
    let mut ordered: Vec<&Member> = members.iter().collect();
    ordered.sort_by(|a, b| a.member_id.cmp(&b.member_id));
    let partitions: &PartitionCounts = &partitions
        .iter()
        .filter(|(topic, _)| ordered.iter().any(|member| member.topics.contains(topic)))
        .map(|(topic, count)| (topic.clone(), *count))
        .collect();
    let claims = Claims::resolve(partitions, &ordered);
    if same_subscriptions(&ordered) {
        let (even, transferring) = EvenShares::new(partitions, &claims).build();
        return (assignments(&ordered, even), transferring);
    }
    let uneven = balance::shares(partitions, &ordered, &claims.owned, &claims.previous);
    let shares = assignments(&ordered, uneven);
    let transferring = moved_while_owned(members, &shares).into_iter().collect();
    (shares, transferring)
}

fn same_subscriptions(members: &[&Member]) -> bool {
    let topics = |m: &Member| m.topics.iter().cloned().collect::<BTreeSet<_>>();
    let Some(first) = members.first() else {
        return true;
    };
    let first = topics(first);
    members.iter().all(|m| topics(m) == first)
}

/// The generation that a member's claims count for.
fn generation_of(member: &Member) -> i32 {
    if member.generation_id >= 0 {
        return member.generation_id;
    }
    let bytes: Option<[u8; 4]> = member
        .user_data
        .as_ref()
        .and_then(|data| data.get(..4)?.try_into().ok());
    bytes.map_or(NO_GENERATION, i32::from_be_bytes)
}

/// Who may keep what, by position in the ordered member list.
struct Claims {
    owned: Vec<Vec<TopicPartition>>,
    /// Claimed by several members of one generation: nobody keeps it.
    contested: BTreeSet<TopicPartition>,
    /// Owner in an older generation, for partitions that are otherwise free.
    previous: BTreeMap<TopicPartition, usize>,
}

impl Claims {
    fn resolve(partitions: &PartitionCounts, members: &[&Member]) -> Claims {
        let mut best: BTreeMap<&TopicPartition, (i32, usize)> = BTreeMap::new();
        let mut contested = BTreeSet::new();
        let mut older: BTreeMap<TopicPartition, (i32, usize)> = BTreeMap::new();
        for (index, member) in members.iter().enumerate() {
            let generation = generation_of(member);
            for partition in member
                .owned_partitions
                .iter()
                .filter(|p| exists(partitions, p))
            {
                match best.get(partition).copied() {
                    Some((other, _)) if other > generation => {
                        let entry = older
                            .entry(partition.clone())
                            .or_insert((generation, index));
                        *entry = (*entry).max((generation, index));
                    }
                    Some((other, _)) if other == generation => {
                        contested.insert(partition.clone());
                    }
                    newer => {
                        if let Some(loser) = newer {
                            older.insert(partition.clone(), loser);
                            contested.remove(partition);
                        }
                        best.insert(partition, (generation, index));
                    }
                }
            }
        }
        let mut owned = vec![Vec::new(); members.len()];
        for (partition, (_, index)) in best {
            if !contested.contains(partition) && members[index].topics.contains(&partition.topic) {
                owned[index].push(partition.clone());
            }
        }
        let previous = older
            .into_iter()
            .map(|(p, (_, index))| (p, index))
            .collect();
        Claims {
            owned,
            contested,
            previous,
        }
    }
}

fn exists(partitions: &PartitionCounts, partition: &TopicPartition) -> bool {
    partitions
        .get(&partition.topic)
        .is_some_and(|count| (0..*count).contains(&partition.partition))
}

/// The case of equal subscriptions: everybody gets `total / members` or one more.
struct EvenShares<'a> {
    partitions: &'a PartitionCounts,
    claims: &'a Claims,
    floor: usize,
    /// How many members may hold one more than the floor, and how many do.
    larger_allowed: usize,
    larger: usize,
    shares: Vec<Vec<TopicPartition>>,
    /// Members below the floor, then members at the floor that may still get one more.
    below: VecDeque<usize>,
    level: VecDeque<usize>,
    /// Partitions that an owner has to give up.
    taken_from: BTreeMap<TopicPartition, usize>,
}

impl<'a> EvenShares<'a> {
    fn new(partitions: &'a PartitionCounts, claims: &'a Claims) -> Self {
        let members = claims.owned.len();
        let total: usize = partitions
            .values()
            .map(|count| usize::try_from(*count).unwrap_or(0))
            .sum();
        EvenShares {
            partitions,
            claims,
            floor: total.checked_div(members).unwrap_or(0),
            larger_allowed: total.checked_rem(members).unwrap_or(0),
            larger: 0,
            shares: vec![Vec::new(); members],
            below: VecDeque::new(),
            level: VecDeque::new(),
            taken_from: BTreeMap::new(),
        }
    }

    fn build(mut self) -> (Vec<Vec<TopicPartition>>, BTreeSet<TopicPartition>) {
        for index in 0..self.shares.len() {
            self.keep_owned(index);
        }
        let kept: BTreeSet<TopicPartition> = self.shares.iter().flatten().cloned().collect();
        let free: Vec<TopicPartition> = self
            .partitions
            .iter()
            .flat_map(|(topic, count)| {
                (0..*count).map(move |p| TopicPartition::new(topic.clone(), p))
            })
            .filter(|p| !kept.contains(p))
            .collect();
        let mut transferring = BTreeSet::new();
        for partition in free {
            let Some(index) = self.next_taker() else {
                break;
            };
            let moves = self
                .taken_from
                .get(&partition)
                .is_some_and(|owner| *owner != index);
            if moves || self.claims.contested.contains(&partition) {
                transferring.insert(partition.clone());
            }
            self.give(index, partition);
        }
        (self.shares, transferring)
    }

    /// A member keeps what it owns, up to what an even share allows it.
    fn keep_owned(&mut self, index: usize) {
        let mut owned = self.claims.owned[index].clone();
        owned.sort_by(|a, b| (a.partition, &a.topic).cmp(&(b.partition, &b.topic)));
        let keep = if owned.len() < self.floor {
            self.below.push_back(index);
            owned.len()
        } else if owned.len() > self.floor && self.larger < self.larger_allowed {
            self.larger += 1;
            if self.larger == self.larger_allowed {
                self.level.clear();
            }
            self.floor + 1
        } else {
            if self.larger < self.larger_allowed {
                self.level.push_back(index);
            }
            self.floor
        };
        for given_up in owned.drain(keep..) {
            self.taken_from.insert(given_up, index);
        }
        self.shares[index] = owned;
    }

    /// Turn by turn among those below the floor; then one more for those at it.
    fn next_taker(&mut self) -> Option<usize> {
        self.below.pop_front().or_else(|| self.level.pop_front())
    }

    fn give(&mut self, index: usize, partition: TopicPartition) {
        self.shares[index].push(partition);
        let held = self.shares[index].len();
        if held < self.floor {
            self.below.push_back(index);
        } else if held == self.floor {
            self.level.push_back(index);
        }
    }
}
