//! CreatePartitions 0–3: a topic gets more partitions, never fewer.
//!
//! Deviations: the coordinators' topics do not grow: an id's partition follows from their number.
//!
//! Invariants: every topic of the request is answered, each with its own error and message.
//! Never: changes anything when `validate_only` is set.

use super::repeated;
use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::refused::Refused;
use crate::topics::is_internal;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::create_partitions::{
    CreatePartitionsTopic, CreatePartitionsTopicResult,
};
use millstream_protocol::messages::{CreatePartitionsRequest, CreatePartitionsResponse};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Enlarges the topics of the request.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: CreatePartitionsRequest,
) -> CreatePartitionsResponse {
    let repeated = repeated(request.topics.iter().map(|topic| topic.name.clone()));
    let mut outcomes = Vec::new();
    let mut answered = BTreeSet::new();
    for topic in request.topics {
        if !answered.insert(topic.name.clone()) {
            continue;
        }
        let checked = if repeated.contains(&topic.name) {
            let message = "the request names this topic more than once";
            Err(Refused::invalid(message))
        } else {
            check(node, &topic)
        };
        outcomes.push((topic.name, checked.map(|()| topic.count)));
    }
    if !request.validate_only {
        grow(node, &mut outcomes).await;
    }
    let results = outcomes.into_iter().map(|(name, outcome)| {
        let (error_code, error_message) = Refused::parts(outcome);
        CreatePartitionsTopicResult {
            name,
            error_code,
            error_message,
        }
    });
    CreatePartitionsResponse {
        results: results.collect(),
        ..Default::default()
    }
}

/// Enlarges the topics that can be, all at once, and says what became of them.
async fn grow(node: &Arc<Node>, outcomes: &mut [(String, Result<i32, Refused>)]) {
    let totals = outcomes.iter().filter_map(|(name, checked)| {
        let total = checked.as_ref().ok()?;
        Some((name.clone(), *total))
    });
    let grown = node.grow_topics(totals.collect()).await;
    let checked = outcomes.iter_mut().filter(|(_, checked)| checked.is_ok());
    for ((_, outcome), grown) in checked.zip(grown) {
        if let Err(refused) = grown {
            *outcome = Err(refused);
        }
    }
}

fn check(node: &Arc<Node>, topic: &CreatePartitionsTopic) -> Result<(), Refused> {
    if is_internal(&topic.name) {
        let message = format!("the partitions of '{}' are the coordinator's", topic.name);
        return Err(Refused::new(ErrorCode::INVALID_TOPIC_EXCEPTION, message));
    }
    // What is asked for without the assignments comes first, as their number depends on it.
    node.check_growth(&topic.name, topic.count)?;
    check_assignments(node, topic)
}

/// Each new partition can only be assigned to this node.
fn check_assignments(node: &Node, topic: &CreatePartitionsTopic) -> Result<(), Refused> {
    let Some(assignments) = &topic.assignments else {
        return Ok(());
    };
    let count = node
        .partitions
        .topic(&topic.name)
        .map_or(0, |entry| entry.partitions.len());
    let added = usize::try_from(topic.count)
        .unwrap_or(0)
        .saturating_sub(count);
    let this = [node.config.node_id];
    let fits = assignments.len() == added
        && assignments
            .iter()
            .all(|assignment| assignment.broker_ids == this);
    if fits {
        return Ok(());
    }
    let message = format!(
        "{added} new partition(s) need as many assignments, each to broker {} alone",
        node.config.node_id
    );
    let code = ErrorCode::INVALID_REPLICA_ASSIGNMENT;
    Err(Refused::new(code, message))
}
