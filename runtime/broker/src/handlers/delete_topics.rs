//! DeleteTopics 1–6, by name or by id.
//!
//! Deviations: the coordinators' topics cannot be deleted.
//!
//! Invariants: every topic of the request is answered; those that go, go together.
//! Never: deletes what is named more than once.

use crate::dispatch::RequestContext;
use crate::node::Node;
use millstream_protocol::messages::delete_topics::{DeletableTopicResult, DeleteTopicState};
use millstream_protocol::messages::{DeleteTopicsRequest, DeleteTopicsResponse};
use millstream_protocol::{ErrorCode, Uuid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A topic as the request names it, and what it is called, or why it stays.
struct Asked {
    name: Option<String>,
    topic_id: Uuid,
    outcome: Result<String, ErrorCode>,
}

/// Deletes the topics of the request.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: DeleteTopicsRequest,
) -> DeleteTopicsResponse {
    let by_name = |name| DeleteTopicState {
        name: Some(name),
        topic_id: Uuid::ZERO,
    };
    let states: Vec<DeleteTopicState> = if context.api_version >= 6 {
        request.topics
    } else {
        request.topic_names.into_iter().map(by_name).collect()
    };
    let mut asked = resolve_all(node, states);
    let names = asked.iter().filter_map(|asked| asked.outcome.clone().ok());
    let deleted = node.delete_topics(names.collect()).await;
    let named = asked.iter_mut().filter(|asked| asked.outcome.is_ok());
    for (asked, deleted) in named.zip(deleted) {
        if let Err(code) = deleted {
            asked.outcome = Err(code);
        }
    }
    DeleteTopicsResponse {
        responses: asked.into_iter().map(answer).collect(),
        ..Default::default()
    }
}

/// Finds the topics, each once: what is named twice, in whatever way, stays.
fn resolve_all(node: &Node, states: Vec<DeleteTopicState>) -> Vec<Asked> {
    let mut times: BTreeMap<(Option<String>, Uuid), usize> = BTreeMap::new();
    let key = |state: &DeleteTopicState| (state.name.clone(), state.topic_id);
    for state in &states {
        *times.entry(key(state)).or_default() += 1;
    }
    let mut asked: Vec<Asked> = Vec::new();
    for state in states {
        let Some(times) = times.remove(&key(&state)) else {
            continue;
        };
        let mut topic = resolve(node, state);
        if times > 1 {
            topic.outcome = Err(ErrorCode::INVALID_REQUEST);
        }
        asked.push(topic);
    }
    let mut found = BTreeSet::new();
    let twice: BTreeSet<String> = asked
        .iter()
        .filter_map(|asked| asked.outcome.as_ref().ok())
        .filter(|name| !found.insert(*name))
        .cloned()
        .collect();
    for asked in &mut asked {
        if matches!(&asked.outcome, Ok(name) if twice.contains(name)) {
            asked.outcome = Err(ErrorCode::INVALID_REQUEST);
        }
    }
    asked
}

fn resolve(node: &Node, state: DeleteTopicState) -> Asked {
    let DeleteTopicState { name, topic_id } = state;
    let (entry, unknown) = match (&name, topic_id) {
        (Some(name), Uuid::ZERO) => (
            node.partitions.topic(name),
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        ),
        (None, id) if id != Uuid::ZERO => {
            (node.partitions.topic_by_id(id), ErrorCode::UNKNOWN_TOPIC_ID)
        }
        _ => (None, ErrorCode::INVALID_REQUEST),
    };
    let outcome = match &entry {
        None => Err(unknown),
        Some(entry) if entry.is_internal() => Err(ErrorCode::INVALID_TOPIC_EXCEPTION),
        Some(entry) => Ok(entry.name.to_string()),
    };
    Asked {
        name: name.or_else(|| entry.as_ref().map(|entry| entry.name.to_string())),
        topic_id: entry.map_or(topic_id, |entry| entry.id),
        outcome,
    }
}

fn answer(asked: Asked) -> DeletableTopicResult {
    let error_code = asked.outcome.err().unwrap_or(ErrorCode::NONE);
    DeletableTopicResult {
        name: asked.name,
        topic_id: asked.topic_id,
        error_code,
        error_message: (!error_code.is_ok()).then(|| error_code.description().to_owned()),
    }
}
