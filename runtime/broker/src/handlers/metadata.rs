//! Metadata 0–13: the one broker, its topics, and topics created on first use.
//!
//! Deviations: a topic created on first use is answered at once, without LEADER_NOT_AVAILABLE
//! first.
//!
//! Invariants: this node leads every partition, at leader epoch 0.
//! Never: creates an internal topic or one with an invalid name.

use super::{CLUSTER_OPERATIONS, LEADER_EPOCH, TOPIC_OPERATIONS};
use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::topics::{PARTITIONS_MAX, TopicEntry, invalid_topic_name, is_internal};
use millstream_log::NewTopic;
use millstream_protocol::messages::metadata::{
    MetadataRequestTopic, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use millstream_protocol::messages::{MetadataRequest, MetadataResponse};
use millstream_protocol::{ErrorCode, Uuid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Answers with the topics asked for, or all of them.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: MetadataRequest,
) -> MetadataResponse {
    let operations = request.include_topic_authorized_operations;
    let create = node.config.auto_create_topics_enable && request.allow_auto_topic_creation;
    let mut topics = Vec::new();
    // Before version 12 topics only go by name.
    let nameless = |topic: &MetadataRequestTopic| {
        context.api_version < 12 && (topic.name.is_none() || topic.topic_id != Uuid::ZERO)
    };
    match request.topics {
        Some(asked) if asked.iter().any(nameless) => {
            let refused = |topic| missing(context, topic, ErrorCode::INVALID_REQUEST);
            topics.extend(asked.into_iter().map(refused));
        }
        Some(asked) if context.api_version > 0 || !asked.is_empty() => {
            let mut seen = BTreeSet::new();
            let first =
                |topic: &MetadataRequestTopic| seen.insert((topic.topic_id, topic.name.clone()));
            let asked: Vec<MetadataRequestTopic> = asked.into_iter().filter(first).collect();
            let refused = match create {
                true => create_missing(node, &asked).await,
                false => BTreeMap::new(),
            };
            for topic in asked {
                topics.push(match find(node, &topic, &refused) {
                    Ok(entry) => describe(node, &entry, operations),
                    Err(error_code) => missing(context, topic, error_code),
                });
            }
        }
        _ => {
            let all = node.partitions.topics();
            topics.extend(all.iter().map(|entry| describe(node, entry, operations)));
        }
    }
    let (host, port) = node.advertised(context.reached_at);
    let cluster_operations = request.include_cluster_authorized_operations;
    MetadataResponse {
        brokers: vec![MetadataResponseBroker {
            node_id: node.config.node_id,
            host,
            port,
            rack: None,
        }],
        cluster_id: Some(node.directory.cluster_id().to_owned()),
        controller_id: node.config.node_id,
        topics,
        cluster_authorized_operations: if cluster_operations {
            CLUSTER_OPERATIONS
        } else {
            i32::MIN
        },
        ..Default::default()
    }
}

/// Creates the topics that are missing, all at once; those that cannot be, with the reason. Where
/// they are more than a request may create, the rest is left to the next request.
async fn create_missing(
    node: &Arc<Node>,
    asked: &[MetadataRequestTopic],
) -> BTreeMap<String, ErrorCode> {
    let names = asked.iter().filter(|topic| topic.topic_id == Uuid::ZERO);
    let names = names.filter_map(|topic| topic.name.as_deref());
    let created_max = (PARTITIONS_MAX / node.config.num_partitions.max(1)) as usize;
    let missing: Vec<NewTopic> = names
        .filter(|name| node.partitions.topic(name).is_none())
        .filter(|name| invalid_topic_name(name).is_none() && !is_internal(name))
        .take(created_max.max(1))
        .map(|name| NewTopic {
            name: name.to_owned(),
            partitions: node.config.num_partitions,
            configs: BTreeMap::new(),
        })
        .collect();
    if missing.is_empty() {
        // Nothing to wait for, whatever changes meanwhile.
        return BTreeMap::new();
    }
    let names: Vec<String> = missing.iter().map(|topic| topic.name.clone()).collect();
    let created = node.create_topics(missing).await;
    let refused = names.into_iter().zip(created);
    refused
        .filter_map(|(name, created)| Some((name, created.err()?)))
        .collect()
}

fn find(
    node: &Arc<Node>,
    topic: &MetadataRequestTopic,
    refused: &BTreeMap<String, ErrorCode>,
) -> Result<Arc<TopicEntry>, ErrorCode> {
    if topic.topic_id != Uuid::ZERO {
        return node
            .partitions
            .topic_by_id(topic.topic_id)
            .ok_or(ErrorCode::UNKNOWN_TOPIC_ID);
    }
    let name = topic.name.as_deref().unwrap_or_default();
    if let Some(entry) = node.partitions.topic(name) {
        return Ok(entry);
    }
    if invalid_topic_name(name).is_some() {
        return Err(ErrorCode::INVALID_TOPIC_EXCEPTION);
    }
    Err(match refused.get(name) {
        // Somebody else created it meanwhile, and it is gone again.
        None | Some(&ErrorCode::TOPIC_ALREADY_EXISTS) => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        Some(code) => *code,
    })
}

fn missing(
    context: &RequestContext,
    topic: MetadataRequestTopic,
    error_code: ErrorCode,
) -> MetadataResponseTopic {
    let named = topic.name.is_some() || context.api_version >= 12;
    MetadataResponseTopic {
        error_code,
        name: if named {
            topic.name
        } else {
            Some(String::new())
        },
        topic_id: topic.topic_id,
        ..Default::default()
    }
}

fn describe(node: &Node, entry: &TopicEntry, operations: bool) -> MetadataResponseTopic {
    let replicas = vec![node.config.node_id];
    let partition = |partition_index| MetadataResponsePartition {
        error_code: ErrorCode::NONE,
        partition_index,
        leader_id: node.config.node_id,
        leader_epoch: LEADER_EPOCH,
        replica_nodes: replicas.clone(),
        isr_nodes: replicas.clone(),
        offline_replicas: Vec::new(),
    };
    MetadataResponseTopic {
        error_code: ErrorCode::NONE,
        name: Some(entry.name.to_string()),
        topic_id: entry.id,
        is_internal: entry.is_internal(),
        partitions: (0..).take(entry.partitions.len()).map(partition).collect(),
        topic_authorized_operations: if operations {
            TOPIC_OPERATIONS
        } else {
            i32::MIN
        },
    }
}
