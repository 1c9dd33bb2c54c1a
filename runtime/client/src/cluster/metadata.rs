//! What the cluster looks like: brokers, topics, partitions, leaders.
//!
//! Invariants: a partition's leader epoch never goes back while the topic keeps its id.
//! Never: asks anybody; the cluster does and hands the answer in.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_protocol::messages::MetadataResponse;
use millstream_protocol::messages::metadata::MetadataResponseTopic;
use millstream_protocol::{ErrorCode, TopicPartition, Uuid};

use super::NodeId;
use crate::transport::BrokerAddress;

/// A partition as the metadata shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionMetadata {
    /// The leader; `None` while there is none.
    pub leader: Option<NodeId>,
    /// The leader's epoch; -1 where the broker does not say.
    pub leader_epoch: i32,
}

/// A leader that a broker named while it refused a request (KIP-951).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderHint {
    /// Whose leader.
    pub partition: TopicPartition,
    /// The leader.
    pub leader: NodeId,
    /// The leader's epoch.
    pub epoch: i32,
}

/// A topic as the metadata shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicMetadata {
    /// The topic's id; zero where the broker does not say.
    pub topic_id: Uuid,
    /// Whether the topic belongs to the broker itself.
    pub is_internal: bool,
    /// By partition number, without gaps.
    pub partitions: Vec<PartitionMetadata>,
}

/// A topic, with what only the cluster itself asks for.
#[derive(Debug, Default)]
struct KnownTopic {
    shown: TopicMetadata,
    /// By partition number: the brokers that hold a replica and are there.
    replicas: Vec<Vec<NodeId>>,
}

/// The cache.
#[derive(Debug, Default)]
pub(super) struct Metadata {
    pub(super) cluster_id: Option<String>,
    pub(super) controller: Option<NodeId>,
    pub(super) nodes: BTreeMap<NodeId, BrokerAddress>,
    topics: BTreeMap<Arc<str>, KnownTopic>,
    /// When somebody last wanted to know something of a topic.
    used_at_ms: BTreeMap<Arc<str>, i64>,
    /// What the last answer said about topics that it could not describe.
    errors: BTreeMap<Arc<str>, ErrorCode>,
    /// Counts answers; single flight compares it.
    pub(super) version: u64,
    /// Counts answers and hints: whoever keeps leaders compares it.
    pub(super) changes: u64,
    pub(super) refreshed_at_ms: i64,
}

impl Metadata {
    pub(super) fn topic(&self, topic: &str) -> Option<&TopicMetadata> {
        self.topics.get(topic).map(|topic| &topic.shown)
    }

    /// As [`Metadata::topic`], for somebody who uses the topic.
    pub(super) fn used(&mut self, topic: &str, now_ms: i64) -> Option<&TopicMetadata> {
        let (name, known) = self.topics.get_key_value(topic)?;
        match self.used_at_ms.get_mut(topic) {
            Some(used_at_ms) => *used_at_ms = now_ms,
            None => {
                self.used_at_ms.insert(Arc::clone(name), now_ms);
            }
        }
        Some(&known.shown)
    }

    /// Forgets the topics that nobody has used since, and what was said about others that are not
    /// asked for any more.
    pub(super) fn forget_unused(&mut self, since_ms: i64, asked: &[Arc<str>]) {
        let unused = self
            .used_at_ms
            .iter()
            .filter(|(_, at_ms)| **at_ms < since_ms);
        let unused: Vec<Arc<str>> = unused.map(|(topic, _)| Arc::clone(topic)).collect();
        for topic in unused {
            self.forget_topic(&topic);
        }
        let topics = &self.topics;
        self.errors
            .retain(|topic, _| topics.contains_key(topic) || asked.contains(topic));
    }

    pub(super) fn topic_name(&self, topic_id: Uuid) -> Option<&Arc<str>> {
        let mut topics = self.topics.iter();
        let found = topics.find(|(_, topic)| topic.shown.topic_id == topic_id);
        found.map(|(name, _)| name)
    }

    pub(super) fn error(&self, topic: &str) -> Option<ErrorCode> {
        self.errors.get(topic).copied()
    }

    pub(super) fn topic_names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.topics.keys()
    }

    pub(super) fn partition(&self, partition: &TopicPartition) -> Option<&PartitionMetadata> {
        let index = usize::try_from(partition.partition).ok()?;
        self.topic(&partition.topic)?.partitions.get(index)
    }

    /// Whether a broker that is there has a replica of the partition.
    pub(super) fn has_replica(&self, partition: &TopicPartition, node: NodeId) -> bool {
        let replicas = usize::try_from(partition.partition).ok().and_then(|index| {
            let topic = self.topics.get(&partition.topic)?;
            topic.replicas.get(index)
        });
        self.nodes.contains_key(&node) && replicas.is_some_and(|nodes| nodes.contains(&node))
    }

    pub(super) fn forget_topic(&mut self, topic: &str) {
        self.topics.remove(topic);
        self.used_at_ms.remove(topic);
        self.errors.remove(topic);
    }

    /// Takes an answer over. A topic that the answer does not mention stays as it was.
    pub(super) fn apply(&mut self, response: &MetadataResponse, now_ms: i64) {
        if response.cluster_id.is_some() {
            self.cluster_id.clone_from(&response.cluster_id);
        }
        self.controller = Some(NodeId(response.controller_id)).filter(|node| node.0 >= 0);
        if !response.brokers.is_empty() {
            self.nodes = response
                .brokers
                .iter()
                .filter_map(|broker| {
                    let port = u16::try_from(broker.port).ok()?;
                    Some((
                        NodeId(broker.node_id),
                        BrokerAddress::new(broker.host.clone(), port),
                    ))
                })
                .collect();
        }
        for topic in &response.topics {
            let Some(name) = topic.name.as_deref() else {
                continue;
            };
            self.apply_topic(name, topic, now_ms);
        }
        self.version += 1;
        self.changes += 1;
        self.refreshed_at_ms = now_ms;
    }

    /// Takes over leaders that are newer than the known ones, of known partitions, on nodes whose
    /// address is known or is in `nodes`.
    pub(super) fn adopt(
        &mut self,
        hints: &[LeaderHint],
        nodes: Vec<(NodeId, BrokerAddress)>,
    ) -> usize {
        let known: BTreeMap<NodeId, BrokerAddress> = nodes.into_iter().collect();
        let mut adopted = 0;
        for hint in hints {
            if !known.contains_key(&hint.leader) && !self.nodes.contains_key(&hint.leader) {
                continue;
            }
            let partition = usize::try_from(hint.partition.partition).ok();
            let topic = self.topics.get_mut(&hint.partition.topic);
            let partition = topic.zip(partition).and_then(|(topic, index)| {
                let partitions = &mut topic.shown.partitions;
                partitions.get_mut(index)
            });
            if let Some(partition) = partition.filter(|known| known.leader_epoch < hint.epoch) {
                partition.leader = Some(hint.leader);
                partition.leader_epoch = hint.epoch;
                adopted += 1;
            }
        }
        if adopted > 0 {
            self.nodes.extend(known);
            self.changes += 1;
        }
        adopted
    }

    fn apply_topic(&mut self, name: &str, topic: &MetadataResponseTopic, now_ms: i64) {
        let name: Arc<str> = self
            .topics
            .get_key_value(name)
            .map_or_else(|| name.into(), |(k, _)| Arc::clone(k));
        if !topic.error_code.is_ok() {
            // A known topic keeps its leaders: an answer of a broker that has just started and
            // does not know the topic yet must not make records restart elsewhere.
            self.errors.insert(name, topic.error_code);
            return;
        }
        self.errors.remove(&name);
        self.used_at_ms.entry(Arc::clone(&name)).or_insert(now_ms);
        let known = self.topics.entry(name).or_default();
        if known.shown.topic_id != topic.topic_id {
            *known = KnownTopic::default();
        }
        known.shown.topic_id = topic.topic_id;
        known.shown.is_internal = topic.is_internal;
        let mut partitions: Vec<_> = topic.partitions.iter().collect();
        partitions.sort_unstable_by_key(|partition| partition.partition_index);
        for (index, partition) in partitions.into_iter().enumerate() {
            if i32::try_from(index) != Ok(partition.partition_index) {
                break;
            }
            let new = PartitionMetadata {
                leader: Some(NodeId(partition.leader_id)).filter(|node| node.0 >= 0),
                leader_epoch: partition.leader_epoch,
            };
            let shown = &mut known.shown.partitions;
            match shown.get_mut(index) {
                Some(old) if new.leader_epoch >= old.leader_epoch || new.leader_epoch < 0 => {
                    *old = new;
                }
                Some(_) => continue,
                None => shown.push(new),
            }
            let replicas = partition.replica_nodes.iter();
            let there = replicas.filter(|node| !partition.offline_replicas.contains(node));
            known.replicas.resize_with(shown.len(), Vec::new);
            if let Some(replicas) = known.replicas.get_mut(index) {
                *replicas = there.copied().map(NodeId).collect();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use millstream_protocol::messages::metadata::{
        MetadataResponseBroker, MetadataResponsePartition,
    };

    use super::*;

    fn answer(topic_id: Uuid, leaders: &[(i32, i32)]) -> MetadataResponse {
        let partitions = leaders
            .iter()
            .zip(0..)
            .map(
                |((leader_id, leader_epoch), index)| MetadataResponsePartition {
                    partition_index: index,
                    leader_id: *leader_id,
                    leader_epoch: *leader_epoch,
                    ..Default::default()
                },
            );
        MetadataResponse {
            brokers: vec![MetadataResponseBroker {
                node_id: 1,
                host: "h".into(),
                port: 9092,
                ..Default::default()
            }],
            topics: vec![MetadataResponseTopic {
                name: Some("orders".into()),
                topic_id,
                partitions: partitions.collect(),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    fn leader(metadata: &Metadata, partition: i32) -> Option<NodeId> {
        metadata
            .partition(&TopicPartition::new("orders", partition))
            .and_then(|p| p.leader)
    }

    #[test]
    fn an_older_leader_epoch_is_not_believed_unless_the_topic_is_a_new_one() {
        let mut metadata = Metadata::default();
        metadata.apply(&answer(Uuid([1; 16]), &[(1, 5)]), 0);
        metadata.apply(&answer(Uuid([1; 16]), &[(2, 4)]), 0);
        assert_eq!(leader(&metadata, 0), Some(NodeId(1)));
        metadata.apply(&answer(Uuid([1; 16]), &[(2, 6)]), 0);
        assert_eq!(leader(&metadata, 0), Some(NodeId(2)));
        metadata.apply(&answer(Uuid([2; 16]), &[(1, 0), (-1, 0)]), 0);
        assert_eq!(leader(&metadata, 0), Some(NodeId(1)));
        assert_eq!(leader(&metadata, 1), None);
    }

    #[test]
    fn a_replica_counts_while_its_broker_is_there() {
        let mut metadata = Metadata::default();
        let mut answer = answer(Uuid([1; 16]), &[(1, 5), (1, 5)]);
        let partition = &mut answer.topics[0].partitions[1];
        partition.replica_nodes = vec![3, 1, 2];
        partition.offline_replicas = vec![2];
        metadata.apply(&answer, 0);
        let has = |metadata: &Metadata, partition, node| {
            metadata.has_replica(&TopicPartition::new("orders", partition), NodeId(node))
        };
        // The third is no broker that the answer lists.
        let all = |metadata: &Metadata| [1, 2, 3].map(|node| has(metadata, 1, node));
        assert_eq!(all(&metadata), [true, false, false]);
        assert!(!has(&metadata, 0, 1) && !has(&metadata, 7, 1) && !has(&metadata, -1, 1));
        let another = answer.brokers[0].clone();
        answer.brokers.push(MetadataResponseBroker {
            node_id: 3,
            ..another
        });
        metadata.apply(&answer, 1);
        assert_eq!(all(&metadata), [true, false, true]);
        // What is older than what is known says nothing of replicas either.
        answer.topics[0].partitions[1].leader_epoch = 4;
        answer.topics[0].partitions[1].replica_nodes = vec![1];
        metadata.apply(&answer, 2);
        assert_eq!(all(&metadata), [true, false, true]);
    }

    #[test]
    fn a_hint_counts_if_it_is_newer_and_its_node_can_be_reached() {
        let mut metadata = Metadata::default();
        metadata.apply(&answer(Uuid([1; 16]), &[(1, 5)]), 0);
        let changes = metadata.changes;
        let hint = |partition, leader, epoch| LeaderHint {
            partition: TopicPartition::new("orders", partition),
            leader: NodeId(leader),
            epoch,
        };
        let two = || vec![(NodeId(2), BrokerAddress::new("two", 9092))];
        for (hint, nodes) in [
            (hint(0, 2, 5), two()),
            (hint(0, 2, 6), Vec::new()),
            (hint(1, 2, 6), two()),
        ] {
            assert_eq!(metadata.adopt(&[hint], nodes), 0);
        }
        assert_eq!(
            (leader(&metadata, 0), metadata.changes),
            (Some(NodeId(1)), changes)
        );
        assert_eq!(metadata.adopt(&[hint(0, 2, 6)], two()), 1);
        assert_eq!(leader(&metadata, 0), Some(NodeId(2)));
        assert!(metadata.nodes.contains_key(&NodeId(1)) && metadata.nodes.contains_key(&NodeId(2)));
        // An answer that is older than the hint is not believed.
        metadata.apply(&answer(Uuid([1; 16]), &[(1, 5)]), 1);
        assert_eq!(leader(&metadata, 0), Some(NodeId(2)));
    }

    #[test]
    fn b51_a_topic_that_seems_to_vanish_keeps_its_partitions() {
        let mut metadata = Metadata::default();
        metadata.apply(&answer(Uuid([1; 16]), &[(1, 5)]), 0);
        let mut gone = answer(Uuid::ZERO, &[]);
        gone.topics[0].error_code = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
        metadata.apply(&gone, 1);
        assert_eq!(leader(&metadata, 0), Some(NodeId(1)));
        assert_eq!(
            metadata.error("orders"),
            Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
        );
        metadata.apply(&answer(Uuid([1; 16]), &[(1, 5)]), 2);
        assert_eq!(metadata.error("orders"), None);
    }
}
