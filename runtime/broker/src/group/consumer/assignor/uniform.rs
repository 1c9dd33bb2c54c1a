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
    /// Members that read a topic, by their index.
    readers: BTreeMap<Uuid, Vec<usize>>,
    /// What a member is to have, by its index.
    held: Vec<Partitions>,
    /// How many that are.
    load: Vec<usize>,
    /// Partitions that nobody has.
    free: Partitions,
}

impl Plan {
    fn new(members: &[Subscriber<'_>], partition_counts: &BTreeMap<Uuid, i32>) -> Plan {
        let mut readers: BTreeMap<Uuid, Vec<usize>> = BTreeMap::new();
        for (index, member) in members.iter().enumerate() {
            for topic in &member.topics {
                readers.entry(*topic).or_default().push(index);
            }
        }
        let free = partition_counts
            .iter()
            .filter(|(topic, _)| readers.contains_key(topic))
            .map(|(topic, count)| (*topic, (0..*count).collect::<BTreeSet<i32>>()));
        Plan {
            free: free.collect(),
            held: vec![Partitions::new(); members.len()],
            load: vec![0; members.len()],
            readers,
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
            let readers = self.readers.get(topic).cloned().unwrap_or_default();
            for partition in free {
                let least = readers.iter().min_by_key(|reader| self.load(**reader));
                if let Some(reader) = least {
                    self.give(*reader, *topic, partition);
                }
            }
        }
    }

    /// Makes the plan more even by one chain of moves, if there is one.
    fn even_out(&mut self) -> bool {
        let mut givers: Vec<usize> = (0..self.load.len()).collect();
        givers.sort_by_key(|member| std::cmp::Reverse(self.load(*member)));
        let least = self.load.iter().min().copied().unwrap_or(0);
        for giver in givers {
            if self.load(giver) < least + 2 {
                return false;
            }
            let chain = self.chain_from(giver);
            if !chain.is_empty() {
                for Handover { from, to, topic } in chain {
                    self.hand_over(from, to, topic);
                }
                return true;
            }
        }
        false
    }

    /// The shortest chain of moves to the reachable member with least, if that has two less.
    fn chain_from(&self, giver: usize) -> Vec<Handover> {
        let mut reached_by: BTreeMap<usize, Option<Handover>> = BTreeMap::from([(giver, None)]);
        let mut seen_topics = BTreeSet::new();
        let mut queue = VecDeque::from([giver]);
        let mut taker = giver;
        while let Some(from) = queue.pop_front() {
            let topics = self.held.get(from).into_iter().flat_map(Partitions::keys);
            for topic in topics.filter(|topic| seen_topics.insert(**topic)) {
                for to in self.readers.get(topic).into_iter().flatten().copied() {
                    if reached_by.contains_key(&to) {
                        continue;
                    }
                    let topic = *topic;
                    reached_by.insert(to, Some(Handover { from, to, topic }));
                    queue.push_back(to);
                    if self.load(to) < self.load(taker) {
                        taker = to;
                    }
                }
            }
        }
        if self.load(taker) + 2 > self.load(giver) {
            return Vec::new();
        }
        let mut chain = Vec::new();
        while let Some(Some(handover)) = reached_by.get(&taker) {
            chain.push(*handover);
            taker = handover.from;
        }
        chain
    }

    fn hand_over(&mut self, from: usize, to: usize, topic: Uuid) {
        let Some(held) = self.held.get_mut(from) else {
            return;
        };
        let Some(partitions) = held.get_mut(&topic) else {
            return;
        };
        let Some(partition) = partitions.pop_last() else {
            return;
        };
        if partitions.is_empty() {
            held.remove(&topic);
        }
        if let Some(load) = self.load.get_mut(from) {
            *load -= 1;
        }
        self.give(to, topic, partition);
    }

    fn give(&mut self, member: usize, topic: Uuid, partition: i32) {
        if let (Some(held), Some(load)) = (self.held.get_mut(member), self.load.get_mut(member)) {
            held.entry(topic).or_default().insert(partition);
            *load += 1;
        }
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
    topic: Uuid,
}
