//! CreateTopics 2–7.
//!
//! Deviations: replication factor 1 or -1 only.
//!
//! Invariants: every topic of the request is answered, each with its own error and message; those
//! that are created are created together.
//! Never: creates anything when `validate_only` is set.

use super::{REPLICATION_FACTOR, repeated};
use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::refused::Refused;
use crate::topic_settings::{self, Effective};
use crate::topics::{PARTITIONS_MAX, invalid_topic_name};
use millstream_log::NewTopic;
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

/// The id, once it is there, and what was planned.
type Outcome = Result<(Uuid, Plan), Refused>;

/// Creates the topics of the request.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: CreateTopicsRequest,
) -> CreateTopicsResponse {
    if partitions_asked_for(node, &request) > i64::from(PARTITIONS_MAX) {
        return too_many(node, request);
    }
    let repeated = repeated(request.topics.iter().map(|topic| topic.name.clone()));
    let mut outcomes = Vec::new();
    let mut answered = BTreeSet::new();
    for topic in request.topics {
        if !answered.insert(topic.name.clone()) {
            continue;
        }
        let planned = if repeated.contains(&topic.name) {
            let message = "the request names this topic more than once";
            Err(Refused::invalid(message))
        } else {
            plan(node, &topic).map(|plan| (Uuid::ZERO, plan))
        };
        outcomes.push((topic.name, planned));
    }
    if request.validate_only {
        refuse_collisions(node, &mut outcomes);
    } else {
        create(node, &mut outcomes).await;
    }
    let answers = outcomes.into_iter();
    CreateTopicsResponse {
        topics: answers
            .map(|(name, outcome)| answer(node, name, outcome))
            .collect(),
        ..Default::default()
    }
}

/// How many partitions the whole request asks for.
fn partitions_asked_for(node: &Node, request: &CreateTopicsRequest) -> i64 {
    let counts = request.topics.iter().map(|topic| {
        let assigned = i64::try_from(topic.assignments.len()).unwrap_or(i64::MAX);
        match (assigned, topic.num_partitions) {
            (0, -1) => i64::from(node.config.num_partitions),
            (0, count) => i64::from(count.max(0)),
            (assigned, _) => assigned,
        }
    });
    counts.fold(0, i64::saturating_add)
}

fn too_many(node: &Node, request: CreateTopicsRequest) -> CreateTopicsResponse {
    let names: BTreeSet<String> = request.topics.into_iter().map(|topic| topic.name).collect();
    let refused = |name| {
        let message = "Excessively large number of partitions per request.";
        let refused = refused(ErrorCode::POLICY_VIOLATION, message);
        answer(node, name, Err(refused))
    };
    CreateTopicsResponse {
        topics: names.into_iter().map(refused).collect(),
        ..Default::default()
    }
}

/// Creates what is planned, all at once, and says what became of it.
async fn create(node: &Arc<Node>, outcomes: &mut [(String, Outcome)]) {
    let planned = outcomes.iter().filter_map(|(name, planned)| {
        let (_, plan) = planned.as_ref().ok()?;
        Some(NewTopic {
            name: name.clone(),
            partitions: plan.partitions,
            configs: plan.configs.clone(),
        })
    });
    let created = node.create_topics(planned.collect()).await;
    let planned = outcomes.iter_mut().filter(|(_, planned)| planned.is_ok());
    for ((name, outcome), created) in planned.zip(created) {
        match (created, outcome) {
            (Ok(entry), Ok((id, _))) => *id = entry.id,
            (Ok(_), Err(_)) => {}
            (Err(code), outcome) => *outcome = Err(not_created(name, code)),
        }
    }
}

/// What creating would refuse: a name that differs from a topic's, or from one of the request that
/// comes before it, in '.' and '_' only.
fn refuse_collisions(node: &Node, outcomes: &mut [(String, Outcome)]) {
    let folded = |name: &str| name.replace('.', "_");
    let names = node.partitions.names();
    let mut taken: BTreeSet<String> = names.iter().map(|name| folded(name)).collect();
    let planned = outcomes.iter_mut().filter(|(_, planned)| planned.is_ok());
    for (name, outcome) in planned {
        if !taken.insert(folded(name)) {
            *outcome = Err(not_created(name, ErrorCode::INVALID_TOPIC_EXCEPTION));
        }
    }
}

fn exists(name: &str) -> Refused {
    let message = format!("topic '{name}' already exists");
    refused(ErrorCode::TOPIC_ALREADY_EXISTS, message)
}

fn not_created(name: &str, code: ErrorCode) -> Refused {
    let message = match code {
        ErrorCode::TOPIC_ALREADY_EXISTS => return exists(name),
        ErrorCode::INVALID_TOPIC_EXCEPTION => {
            "another topic's name differs from this one in '.' and '_' only"
        }
        _ => "the topic could not be stored; see the broker's log",
    };
    refused(code, message)
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
    if node.partitions.topic(&topic.name).is_some() {
        return Err(exists(&topic.name));
    }
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

fn answer(node: &Node, name: String, outcome: Outcome) -> CreatableTopicResult {
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
