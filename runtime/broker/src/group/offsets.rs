//! Committed offsets of one partition of `__consumer_offsets`, and those whose transaction is open.
//!
//! ```text
//! plain commit ───────────────────────▶ committed     the record with the highest log offset wins
//! transactional commit ──▶ pending ──commit──▶ committed
//!                             └──abort───▶ dropped
//! tombstone: drops the committed offset and every pending one before it
//! ```
//!
//! Invariants:
//! - what a key's offset is depends on records and markers and their log offsets only, not on when
//!   a marker is heard of: live = replayed = compacted;
//! - an offset is pending in as many transactions as have not ended.
//!
//! Never: the log itself, membership, time.

use std::collections::{BTreeMap, BTreeSet};

use millstream_protocol::Uuid;

/// One committed offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommittedOffset {
    /// The next offset to read.
    pub(crate) offset: i64,
    /// The leader epoch of the last record read; -1 if the client did not say.
    pub(crate) leader_epoch: i32,
    /// The client's own text, byte for byte.
    pub(crate) metadata: String,
    /// When it was committed.
    pub(crate) commit_timestamp_ms: i64,
    /// When the client itself wants it forgotten (OffsetCommit 2 to 4).
    pub(crate) expire_timestamp_ms: Option<i64>,
    /// The topic that the offset belongs to; zero if it is not known.
    pub(crate) topic_id: Uuid,
    /// Where its record lies in `__consumer_offsets`.
    pub(crate) record_offset: i64,
}

/// All offsets of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct GroupOffsets {
    committed: BTreeMap<String, BTreeMap<i32, CommittedOffset>>,
    /// By topic, partition and producer id.
    pending: BTreeMap<String, BTreeMap<i32, BTreeMap<i64, CommittedOffset>>>,
}

impl GroupOffsets {
    fn is_empty(&self) -> bool {
        self.committed.is_empty() && self.pending.is_empty()
    }
}

/// The offsets of every group of one partition of `__consumer_offsets`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offsets {
    groups: BTreeMap<String, GroupOffsets>,
    /// The groups that an open transaction has offsets for, by producer id.
    transactions: BTreeMap<i64, BTreeSet<String>>,
}

impl Offsets {
    /// A plain commit, or a transactional one whose transaction is known to have committed.
    pub(crate) fn commit(
        &mut self,
        group: &str,
        topic: &str,
        partition: i32,
        offset: CommittedOffset,
    ) {
        let committed = entry(&mut entry(&mut self.groups, group).committed, topic);
        match committed.get(&partition) {
            Some(present) if present.record_offset > offset.record_offset => {}
            _ => {
                committed.insert(partition, offset);
            }
        }
    }

    /// A commit that counts once the producer's transaction commits.
    pub(crate) fn commit_pending(
        &mut self,
        producer_id: i64,
        group: &str,
        topic: &str,
        partition: i32,
        offset: CommittedOffset,
    ) {
        let pending = entry(&mut entry(&mut self.groups, group).pending, topic);
        pending
            .entry(partition)
            .or_default()
            .insert(producer_id, offset);
        let groups = self.transactions.entry(producer_id).or_default();
        if !groups.contains(group) {
            groups.insert(group.to_owned());
        }
    }

    /// A tombstone: nothing that was committed or is pending for the partition counts any more.
    pub(crate) fn remove(&mut self, group: &str, topic: &str, partition: i32) {
        let Some(offsets) = self.groups.get_mut(group) else {
            return;
        };
        remove_partition(&mut offsets.committed, topic, partition);
        if let Some(owners) = remove_partition(&mut offsets.pending, topic, partition) {
            for producer_id in owners.into_keys() {
                self.forget_transaction(producer_id, group);
            }
        }
        self.forget_if_empty(group);
    }

    /// The transaction's marker lies at `marker_offset`: what the producer committed before it
    /// counts from now on, or never. Returns how many offsets were pending.
    pub(crate) fn end_transaction(
        &mut self,
        producer_id: i64,
        commit: bool,
        marker_offset: i64,
    ) -> usize {
        let mut ended = Vec::new();
        for group in self.transactions.get(&producer_id).into_iter().flatten() {
            let Some(offsets) = self.groups.get(group) else {
                continue;
            };
            for (topic, partitions) in &offsets.pending {
                for (partition, owners) in partitions {
                    if owners
                        .get(&producer_id)
                        .is_some_and(|o| o.record_offset < marker_offset)
                    {
                        ended.push((group.clone(), topic.clone(), *partition));
                    }
                }
            }
        }
        let count = ended.len();
        for (group, topic, partition) in ended {
            let Some(offset) = self.take_pending(producer_id, &group, &topic, partition) else {
                continue;
            };
            if commit {
                self.commit(&group, &topic, partition, offset);
            }
            self.forget_transaction(producer_id, &group);
            self.forget_if_empty(&group);
        }
        count
    }

    /// The committed offset of a partition.
    pub(crate) fn get(&self, group: &str, topic: &str, partition: i32) -> Option<&CommittedOffset> {
        self.groups
            .get(group)?
            .committed
            .get(topic)?
            .get(&partition)
    }

    /// Whether an open transaction may still change the partition's offset.
    pub(crate) fn is_pending(&self, group: &str, topic: &str, partition: i32) -> bool {
        let pending = self
            .groups
            .get(group)
            .and_then(|offsets| offsets.pending.get(topic));
        pending.is_some_and(|partitions| partitions.contains_key(&partition))
    }

    /// Whether an open transaction has offsets for the group.
    #[cfg(test)]
    pub(crate) fn has_pending(&self, group: &str) -> bool {
        self.groups
            .get(group)
            .is_some_and(|offsets| !offsets.pending.is_empty())
    }

    /// Whether anything is known of the group's offsets.
    pub(crate) fn knows(&self, group: &str) -> bool {
        self.groups.contains_key(group)
    }

    /// Every group that has offsets, committed or pending.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &str> {
        self.groups.keys().map(String::as_str)
    }

    /// Whether the group has offsets of the topic, committed or pending.
    pub(crate) fn has_topic(&self, group: &str, topic: &str) -> bool {
        let offsets = self.groups.get(group);
        offsets.is_some_and(|offsets| {
            offsets.committed.contains_key(topic) || offsets.pending.contains_key(topic)
        })
    }

    /// The committed offsets of a group, by topic and partition.
    pub(crate) fn committed<'a>(
        &'a self,
        group: &str,
    ) -> impl Iterator<Item = (&'a str, i32, &'a CommittedOffset)> + use<'a> {
        let topics = self
            .groups
            .get(group)
            .into_iter()
            .flat_map(|offsets| &offsets.committed);
        topics.flat_map(|(topic, partitions)| {
            partitions
                .iter()
                .map(move |(partition, offset)| (topic.as_str(), *partition, offset))
        })
    }

    /// Every partition that is committed or pending in a group, by topic and number.
    pub(crate) fn partitions(&self, group: &str) -> BTreeMap<&str, BTreeSet<i32>> {
        let mut all: BTreeMap<&str, BTreeSet<i32>> = BTreeMap::new();
        let Some(offsets) = self.groups.get(group) else {
            return all;
        };
        for (topic, partitions) in &offsets.committed {
            all.entry(topic).or_default().extend(partitions.keys());
        }
        for (topic, partitions) in &offsets.pending {
            all.entry(topic).or_default().extend(partitions.keys());
        }
        all
    }

    fn take_pending(
        &mut self,
        producer_id: i64,
        group: &str,
        topic: &str,
        partition: i32,
    ) -> Option<CommittedOffset> {
        let pending = &mut self.groups.get_mut(group)?.pending;
        let owners = pending.get_mut(topic)?.get_mut(&partition)?;
        let offset = owners.remove(&producer_id)?;
        if owners.is_empty() {
            remove_partition(pending, topic, partition);
        }
        Some(offset)
    }

    /// Keeps the index of open transactions as small as what is pending.
    fn forget_transaction(&mut self, producer_id: i64, group: &str) {
        let still = self.groups.get(group).is_some_and(|offsets| {
            let mut owners = offsets.pending.values().flat_map(BTreeMap::values);
            owners.any(|owners| owners.contains_key(&producer_id))
        });
        if still {
            return;
        }
        if let Some(groups) = self.transactions.get_mut(&producer_id) {
            groups.remove(group);
            if groups.is_empty() {
                self.transactions.remove(&producer_id);
            }
        }
    }

    fn forget_if_empty(&mut self, group: &str) {
        if self.groups.get(group).is_some_and(GroupOffsets::is_empty) {
            self.groups.remove(group);
        }
    }
}

/// Gets or creates without making a key of its own for one that is there.
fn entry<'a, V: Default>(map: &'a mut BTreeMap<String, V>, key: &str) -> &'a mut V {
    if !map.contains_key(key) {
        map.insert(key.to_owned(), V::default());
    }
    #[expect(
        clippy::unwrap_used,
        reason = "it was inserted above if it was missing"
    )]
    map.get_mut(key).unwrap()
}

fn remove_partition<V>(
    topics: &mut BTreeMap<String, BTreeMap<i32, V>>,
    topic: &str,
    partition: i32,
) -> Option<V> {
    let partitions = topics.get_mut(topic)?;
    let removed = partitions.remove(&partition);
    if partitions.is_empty() {
        topics.remove(topic);
    }
    removed
}
