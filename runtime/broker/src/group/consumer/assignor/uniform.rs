//! Even: members keep what they had, the rest goes to those with least, and then partitions move
//! until no move makes it more even.
//!
//! ```text
//! keep ─▶ give out ─▶ while some chain of readers leads from one with much to one with two
//!                     less: each of the chain hands one partition on
//! ```
//!
//! Invariants: members that read the same topics differ by one partition at most; nothing moves
//! that need not move for that.
//! Never: moves a partition between members that differ by one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use millstream_protocol::Uuid;

use super::Subscriber;
use crate::group::consumer::member::Partitions;

pub(super) fn assign(
    members: &[Subscriber<'_>],
    partition_counts: &BTreeMap<Uuid, i32>,
) -> Vec<Partitions> {
    let mut plan = Plan::new(members, partition_counts);
    plan.keep(members);
    plan.give_out(partition_counts);
    while plan.even_out() {}
    plan.held
}

struct Plan {
    /// The members, by their index, that read the same topics.
    readers: Vec<Vec<usize>>,
    /// Which of those read a topic. Most groups have one set for all their topics, so that a
    /// search looks at its members once and not once a topic.
    readers_of: BTreeMap<Uuid, usize>,
    /// What a member is to have, by its index.
    held: Vec<Partitions>,
    /// How many partitions that are of topics of each set of readers.
    held_of: Vec<BTreeMap<usize, usize>>,
    /// How many that are.
    load: Vec<usize>,
    /// Partitions that nobody has.
    free: Partitions,
}

impl Plan {
    fn new(members: &[Subscriber<'_>], partition_counts: &BTreeMap<Uuid, i32>) -> Plan {
        let mut by_topic: BTreeMap<Uuid, Vec<usize>> = BTreeMap::new();
        for (index, member) in members.iter().enumerate() {
            for topic in &member.topics {
                by_topic.entry(*topic).or_default().push(index);
            }
        }
        let mut sets: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
        let mut readers_of = BTreeMap::new();
        for (topic, readers) in by_topic {
            let next = sets.len();
            readers_of.insert(topic, *sets.entry(readers).or_insert(next));
        }
        let mut readers = vec![Vec::new(); sets.len()];
        for (set, index) in sets {
            if let Some(place) = readers.get_mut(index) {
                *place = set;
            }
        }
        let free = partition_counts
            .iter()
            .filter(|(topic, _)| readers_of.contains_key(topic))
            .map(|(topic, count)| (*topic, (0..*count).collect::<BTreeSet<i32>>()));
        Plan {
            free: free.collect(),
            held: vec![Partitions::new(); members.len()],
            held_of: vec![BTreeMap::new(); members.len()],
            load: vec![0; members.len()],
            readers,
            readers_of,
        }
    }

    fn keep(&mut self, members: &[Subscriber<'_>]) {
        for (index, member) in members.iter().enumerate() {
            let had = member.had.iter();
            for (topic, partitions) in had.filter(|(topic, _)| member.topics.contains(topic)) {
                for partition in partitions {
                    let free = self.free.get_mut(topic);
                    if free.is_some_and(|free| free.remove(partition)) {
                        self.give(index, *topic, *partition);
                    }
                }
            }
        }
    }

    fn give_out(&mut self, partition_counts: &BTreeMap<Uuid, i32>) {
        for topic in partition_counts.keys() {
            let free = self.free.remove(topic).unwrap_or_default();
            for partition in free {
                let set = self.readers_of.get(topic).copied().unwrap_or(usize::MAX);
                let readers = self.readers(set).iter().copied();
                if let Some(reader) = readers.min_by_key(|reader| self.load(*reader)) {
                    self.give(reader, *topic, partition);
                }
            }
        }
    }

    fn readers(&self, set: usize) -> &[usize] {
        self.readers.get(set).map_or(&[], Vec::as_slice)
    }

    /// Makes the plan more even by one chain of moves, if there is one.
    fn even_out(&mut self) -> bool {
        let mut givers: Vec<usize> = (0..self.load.len()).collect();
        givers.sort_by_key(|member| std::cmp::Reverse(self.load(*member)));
        let least = self.load.iter().min().copied().unwrap_or(0);
        // Whom a giver reaches in vain: they have no more to give than it, and reach no others.
        let mut in_vain = BTreeSet::new();
        for giver in givers {
            if self.load(giver) < least + 2 {
                return false;
            }
            if in_vain.contains(&giver) {
                continue;
            }
            match self.chain_from(giver, least) {
                Ok(chain) => {
                    for handover in chain {
                        self.hand_over(handover);
                    }
                    return true;
                }
                Err(reached) => in_vain.extend(reached),
            }
        }
        false
    }

    /// The shortest chain of moves to the reachable member with least, if that has two less;
    /// otherwise all who were reached. Nobody has less than `least`, so that the search ends there.
    fn chain_from(
        &self,
        giver: usize,
        least: usize,
    ) -> Result<Vec<Handover>, impl Iterator<Item = usize> + use<>> {
        let mut reached_by: BTreeMap<usize, Option<Handover>> = BTreeMap::from([(giver, None)]);
        let mut seen = BTreeSet::new();
        let mut queue = VecDeque::from([giver]);
        let mut taker = giver;
        'search: while let Some(from) = queue.pop_front() {
            let sets = self.held_of.get(from).into_iter().flat_map(BTreeMap::keys);
            for set in sets.copied().filter(|set| seen.insert(*set)) {
                for to in self.readers(set).iter().copied() {
                    if reached_by.contains_key(&to) {
                        continue;
                    }
                    reached_by.insert(to, Some(Handover { from, to, set }));
                    queue.push_back(to);
                    if self.load(to) < self.load(taker) {
                        taker = to;
                    }
                    if self.load(taker) <= least {
                        break 'search;
                    }
                }
            }
        }
        if self.load(taker) + 2 > self.load(giver) {
            return Err(reached_by.into_keys());
        }
        let mut chain = Vec::new();
        while let Some(Some(handover)) = reached_by.get(&taker) {
            chain.push(*handover);
            taker = handover.from;
        }
        Ok(chain)
    }

    fn hand_over(&mut self, Handover { from, to, set }: Handover) {
        let Some(held) = self.held.get_mut(from) else {
            return;
        };
        let of_set = |topic: &Uuid| self.readers_of.get(topic) == Some(&set);
        let Some((&topic, partitions)) = held.iter_mut().find(|(topic, _)| of_set(topic)) else {
            return;
        };
        let Some(partition) = partitions.pop_last() else {
            return;
        };
        if partitions.is_empty() {
            held.remove(&topic);
        }
        if let Some(held_of) = self.held_of.get_mut(from)
            && let Some(count) = held_of.get_mut(&set)
        {
            *count -= 1;
            if *count == 0 {
                held_of.remove(&set);
            }
        }
        if let Some(load) = self.load.get_mut(from) {
            *load -= 1;
        }
        self.give(to, topic, partition);
    }

    fn give(&mut self, member: usize, topic: Uuid, partition: i32) {
        let (Some(held), Some(held_of), Some(load), Some(set)) = (
            self.held.get_mut(member),
            self.held_of.get_mut(member),
            self.load.get_mut(member),
            self.readers_of.get(&topic),
        ) else {
            return;
        };
        held.entry(topic).or_default().insert(partition);
        *held_of.entry(*set).or_default() += 1;
        *load += 1;
    }

    fn load(&self, member: usize) -> usize {
        self.load.get(member).copied().unwrap_or(0)
    }
}

/// One step of a chain.
#[derive(Clone, Copy, Debug)]
struct Handover {
    from: usize,
    to: usize,
    /// Which set of readers the topic of the partition has.
    set: usize,
}
