//! CreateTopics 2–7.
//!
//! Deviations: replication factor 1 or -1 only.
//!
//! Invariants: every topic of the request is answered, each with its own error and message.
//! Never: creates anything when `validate_only` is set.

use super::REPLICATION_FACTOR;
use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::refused::Refused;
use crate::topic_settings::{self, Effective};
use crate::topics::{PARTITIONS_MAX, invalid_topic_name};
use millstream_protocol::messages::create_topics::{
    CreatableTopic, CreatableTopicConfigs, CreatableTopicResult,
};
use millstream_protocol::messages::{CreateTopicsRequest, CreateTopicsResponse};
use millstream_protocol::{ErrorCode, Uuid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is to be created.
struct Plan {
    partitions: i32,
    configs: BTreeMap<String, String>,
}

/// Creates each topic of the request.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: CreateTopicsRequest,
) -> CreateTopicsResponse {
    let mut seen = BTreeSet::new();
    let mut repeated = BTreeSet::new();
    for topic in &request.topics {
        if !seen.insert(topic.name.clone()) {
            repeated.insert(topic.name.clone());
        }
    }
    let mut topics = Vec::new();
    for topic in request.topics {
        if !seen.remove(&topic.name) {
            continue;
        }
        let outcome = if repeated.contains(&topic.name) {
            Err(refused(
                ErrorCode::INVALID_REQUEST,
                "the request names this topic more than once",
            ))
        } else {
            create(node, &topic, request.validate_only).await
        };
        topics.push(answer(node, topic.name, outcome));
    }
    CreateTopicsResponse {
        topics,
        ..Default::default()
    }
}

async fn create(
    node: &Arc<Node>,
    topic: &CreatableTopic,
    validate_only: bool,
) -> Result<(Uuid, Plan), Refused> {
    let plan = plan(node, topic)?;
    let exists = || {
        refused(
            ErrorCode::TOPIC_ALREADY_EXISTS,
            format!("topic '{}' already exists", topic.name),
        )
    };
    if node.partitions.topic(&topic.name).is_some() {
        return Err(exists());
    }
    if validate_only {
        return Ok((Uuid::ZERO, plan));
    }
    match node
        .create_topic(&topic.name, plan.partitions, plan.configs.clone())
        .await
    {
        Ok(entry) => Ok((entry.id, plan)),
        Err(ErrorCode::TOPIC_ALREADY_EXISTS) => Err(exists()),
        Err(code @ ErrorCode::INVALID_TOPIC_EXCEPTION) => Err(refused(
            code,
            "another topic's name differs from this one in '.' and '_' only",
        )),
        Err(code) => Err(refused(
            code,
            "the topic could not be stored; see the broker's log",
        )),
    }
}

/// Checks a topic and fills in the defaults.
fn plan(node: &Node, topic: &CreatableTopic) -> Result<Plan, Refused> {
    if let Some(reason) = invalid_topic_name(&topic.name) {
        return Err(refused(ErrorCode::INVALID_TOPIC_EXCEPTION, reason));
    }
    if !topic.assignments.is_empty() && topic.replication_factor != -1 {
        return Err(refused(
            ErrorCode::INVALID_REQUEST,
            "give either a replication factor or assignments",
        ));
    }
    if !matches!(topic.replication_factor, -1 | 1) {
        return Err(refused(
            ErrorCode::INVALID_REPLICATION_FACTOR,
            format!(
                "unable to replicate the partition {} time(s): there is one broker; \
                 give 1, or -1 for the default",
                topic.replication_factor
            ),
        ));
    }
    let partitions = match (topic.num_partitions, topic.assignments.len()) {
        (-1, 0) => node.config.num_partitions,
        (1..=PARTITIONS_MAX, 0) => topic.num_partitions,
        (count, 0) => {
            return Err(refused(
                ErrorCode::INVALID_PARTITIONS,
                format!("{count} partitions: give 1 to {PARTITIONS_MAX}, or -1 for the default"),
            ));
        }
        (-1, _) => assigned_partitions(node, topic)?,
        _ => {
            return Err(refused(
                ErrorCode::INVALID_REQUEST,
                "give either a number of partitions or assignments",
            ));
        }
    };
    let mut configs = BTreeMap::new();
    for config in &topic.configs {
        let Some(value) = &config.value else {
            return Err(refused(
                ErrorCode::INVALID_CONFIG,
                format!("setting '{}' has no value", config.name),
            ));
        };
        configs.insert(config.name.clone(), value.clone());
    }
    let configs = topic_settings::checked(&configs, &node.layers())
        .map_err(|message| refused(ErrorCode::INVALID_CONFIG, message))?;
    Ok(Plan {
        partitions,
        configs,
    })
}

/// The number of partitions in an assignment that this one broker can fulfil.
fn assigned_partitions(node: &Node, topic: &CreatableTopic) -> Result<i32, Refused> {
    let mut indexes = BTreeSet::new();
    for assignment in &topic.assignments {
        if assignment.broker_ids != [node.config.node_id]
            || !indexes.insert(assignment.partition_index)
        {
            return Err(refused(
                ErrorCode::INVALID_REPLICA_ASSIGNMENT,
                format!(
                    "partition {} must be assigned once, to broker {}",
                    assignment.partition_index, node.config.node_id
                ),
            ));
        }
    }
    let count = indexes.len().min(PARTITIONS_MAX as usize) as i32;
    if indexes.into_iter().ne(0..count) {
        return Err(refused(
            ErrorCode::INVALID_REPLICA_ASSIGNMENT,
            format!("partitions must be numbered from 0, at most {PARTITIONS_MAX}"),
        ));
    }
    Ok(count)
}

fn refused(code: ErrorCode, message: impl Into<String>) -> Refused {
    Refused::new(code, message)
}

fn answer(
    node: &Node,
    name: String,
    outcome: Result<(Uuid, Plan), Refused>,
) -> CreatableTopicResult {
    match outcome {
        Ok((topic_id, plan)) => CreatableTopicResult {
            name,
            topic_id,
            error_message: None,
            num_partitions: plan.partitions,
            replication_factor: REPLICATION_FACTOR,
            configs: Some(
                topic_settings::effective(&node.layers(), &plan.configs)
                    .map(config)
                    .collect(),
            ),
            ..Default::default()
        },
        Err(Refused { code, message }) => CreatableTopicResult {
            name,
            error_code: code,
            error_message: Some(message),
            ..Default::default()
        },
    }
}

fn config(effective: Effective) -> CreatableTopicConfigs {
    CreatableTopicConfigs {
        name: effective.setting.name.to_owned(),
        value: Some(effective.value),
        config_source: effective.source as i8,
        ..Default::default()
    }
}
