//! Sticky shares for groups whose members subscribe to different topics.
//!
//! Members keep what they own; free partitions go to the least loaded subscriber, scarce topics
//! first; then partitions move from fuller to emptier members while that narrows the gap.
//!
//! Invariants: in the result no partition can move to a subscriber that holds at least two fewer
//! than its owner. Every move lowers the sum of the squared loads, so the search ends.
//! Never: move a partition that somebody owned while one that nobody owned would do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use millstream_protocol::TopicPartition;

use super::{Member, PartitionCounts};

/// Shares by position in `members`. `owned` is what each may keep, `previous` who had a free
/// partition in an older generation.
pub(super) fn shares(
    partitions: &PartitionCounts,
    members: &[&Member],
    owned: &[Vec<TopicPartition>],
    previous: &BTreeMap<TopicPartition, usize>,
) -> Vec<Vec<TopicPartition>> {
    let mut balance = Balance::new(partitions, members, owned, previous);
    let fresh = balance.place_free();
    balance.level(&fresh);
    let all = balance.ordered.clone();
    balance.level(&all);
    balance
        .held
        .into_iter()
        .map(|held| held.into_iter().collect())
        .collect()
}

struct Balance<'a> {
    subscribers: BTreeMap<Arc<str>, Vec<usize>>,
    /// All partitions, those with the fewest subscribers first.
    ordered: Vec<TopicPartition>,
    held: Vec<BTreeSet<TopicPartition>>,
    owner: BTreeMap<TopicPartition, usize>,
    /// Who owned a partition before this rebalance.
    original: BTreeMap<TopicPartition, usize>,
    previous: &'a BTreeMap<TopicPartition, usize>,
}

impl<'a> Balance<'a> {
    fn new(
        partitions: &PartitionCounts,
        members: &[&Member],
        owned: &[Vec<TopicPartition>],
        previous: &'a BTreeMap<TopicPartition, usize>,
    ) -> Self {
        let subscribers: BTreeMap<Arc<str>, Vec<usize>> = partitions
            .keys()
            .map(|topic| {
                let takers = members
                    .iter()
                    .enumerate()
                    .filter(|(_, m)| m.topics.contains(topic));
                (topic.clone(), takers.map(|(index, _)| index).collect())
            })
            .collect();
        let mut topics: Vec<&Arc<str>> = partitions.keys().collect();
        topics.sort_by_key(|topic| {
            (
                subscribers.get(*topic).map_or(0, Vec::len),
                (*topic).clone(),
            )
        });
        let ordered = topics
            .into_iter()
            .flat_map(|topic| {
                let count = partitions.get(topic).copied().unwrap_or(0);
                (0..count).map(|p| TopicPartition::new(topic.clone(), p))
            })
            .collect();
        let original: BTreeMap<TopicPartition, usize> = owned
            .iter()
            .enumerate()
            .flat_map(|(index, list)| list.iter().map(move |p| (p.clone(), index)))
            .collect();
        let held = owned
            .iter()
            .map(|list| list.iter().cloned().collect())
            .collect();
        Balance {
            subscribers,
            ordered,
            held,
            owner: original.clone(),
            original,
            previous,
        }
    }

    /// Gives every free partition to its least loaded subscriber; returns those it placed.
    fn place_free(&mut self) -> Vec<TopicPartition> {
        let free: Vec<TopicPartition> = self
            .ordered
            .iter()
            .filter(|p| !self.owner.contains_key(p))
            .cloned()
            .collect();
        for partition in &free {
            if let Some(taker) = self.least_loaded(&partition.topic) {
                self.held[taker].insert(partition.clone());
                self.owner.insert(partition.clone(), taker);
            }
        }
        free
    }

    fn least_loaded(&self, topic: &Arc<str>) -> Option<usize> {
        let takers = self.subscribers.get(topic)?;
        takers
            .iter()
            .copied()
            .min_by_key(|index| (self.held[*index].len(), *index))
    }

    /// Moves partitions of `movable` (or others of the same topic and owner) until nothing helps.
    fn level(&mut self, movable: &[TopicPartition]) {
        let mut moved = true;
        while moved {
            moved = false;
            for partition in movable {
                let Some(&from) = self.owner.get(partition) else {
                    continue;
                };
                let Some(to) = self.better_owner(partition, from) else {
                    continue;
                };
                let chosen = self.cheapest_to_move(partition, from, to);
                self.held[from].remove(&chosen);
                self.held[to].insert(chosen.clone());
                self.owner.insert(chosen, to);
                moved = true;
            }
        }
    }

    fn better_owner(&self, partition: &TopicPartition, from: usize) -> Option<usize> {
        let load = self.held[from].len();
        let helps = |to: &usize| load > self.held[*to].len() + 1;
        let subscribes = |to: &&usize| {
            self.subscribers
                .get(&partition.topic)
                .is_some_and(|s| s.contains(to))
        };
        let before = self.previous.get(partition).filter(subscribes).copied();
        before
            .filter(helps)
            .or_else(|| self.least_loaded(&partition.topic).filter(helps))
    }

    /// Of the owner's partitions of this topic: one that the new owner had, else one that the
    /// present owner did not have before, else the partition itself.
    fn cheapest_to_move(
        &self,
        partition: &TopicPartition,
        from: usize,
        to: usize,
    ) -> TopicPartition {
        let same_topic = || {
            self.held[from]
                .iter()
                .filter(|p| p.topic == partition.topic)
        };
        same_topic()
            .find(|p| self.original.get(*p) == Some(&to))
            .or_else(|| same_topic().find(|p| self.original.get(*p) != Some(&from)))
            .unwrap_or(partition)
            .clone()
    }
}
