//! What the coordinator wants a member to have: by topic id as it says it, by name as `poll` needs
//! it.
//!
//! Invariants: both sides name the same partitions; a topic whose name is not known is in neither.
//! Never: asks for names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use millstream_protocol::messages::consumer_group_heartbeat::{Assignment, TopicPartitions};
use millstream_protocol::{TopicPartition, Uuid};

use crate::cluster::Cluster;

/// Partitions by topic id; no topic without any.
pub(super) type ById = BTreeMap<Uuid, BTreeSet<i32>>;

/// A set of partitions under both names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub(super) ids: ById,
    names: BTreeMap<Uuid, Arc<str>>,
    /// By name.
    pub(crate) partitions: BTreeSet<TopicPartition>,
}

/// An assignment as it came.
pub(super) fn by_id(assignment: Assignment) -> ById {
    let mut wanted = ById::new();
    for topic in assignment.topic_partitions {
        if !topic.partitions.is_empty() {
            let partitions = wanted.entry(topic.topic_id).or_default();
            partitions.extend(topic.partitions);
        }
    }
    wanted
}

/// The same, to be sent.
pub(super) fn to_owned_partitions(ids: &ById) -> Vec<TopicPartitions> {
    ids.iter()
        .map(|(topic_id, partitions)| TopicPartitions {
            topic_id: *topic_id,
            partitions: partitions.iter().copied().collect(),
        })
        .collect()
}

impl Target {
    /// The part of `wanted` whose topics have a name here, and the ids of the others. What is held
    /// already keeps its name, whatever the metadata says meanwhile.
    pub(super) fn named(
        cluster: &Cluster,
        held: Option<&Target>,
        wanted: &ById,
    ) -> (Target, Vec<Uuid>) {
        let (mut target, mut nameless) = (Target::default(), Vec::new());
        for (topic_id, partitions) in wanted {
            let known = cluster.topic_name(*topic_id);
            let Some(name) = known.or_else(|| held?.names.get(topic_id).cloned()) else {
                nameless.push(*topic_id);
                continue;
            };
            let named = partitions
                .iter()
                .map(|partition| TopicPartition::new(name.clone(), *partition));
            target.partitions.extend(named);
            target.ids.insert(*topic_id, partitions.clone());
            target.names.insert(*topic_id, name);
        }
        (target, nameless)
    }
}
