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

/// A topic as the request names it, and what it is called, with its id if it is named by that; or
/// why it stays.
struct Asked {
    name: Option<String>,
    topic_id: Uuid,
    outcome: Result<(String, Option<Uuid>), ErrorCode>,
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
    let topics = asked.iter().filter_map(|asked| asked.outcome.clone().ok());
    let deleted = node.delete_topics(topics.collect()).await;
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

/// Finds the topics: what is named twice, in whatever way, stays, and is answered once for its name
/// and once for its id.
fn resolve_all(node: &Node, states: Vec<DeleteTopicState>) -> Vec<Asked> {
    let mut times: BTreeMap<(Option<String>, Uuid), usize> = BTreeMap::new();
    let key = |state: &DeleteTopicState| (state.name.clone(), state.topic_id);
    for state in &states {
        *times.entry(key(state)).or_default() += 1;
    }
    // How often each topic is named, by its name and by its id.
    let mut mentions: BTreeMap<Uuid, usize> = BTreeMap::new();
    let mut asked: Vec<Asked> = Vec::new();
    for state in states {
        let is_ambiguous = state.name.is_some() == (state.topic_id != Uuid::ZERO);
        let times = match is_ambiguous {
            true => Some(1),
            false => times.remove(&key(&state)),
        };
        let Some(times) = times else { continue };
        let given = (state.name.clone(), state.topic_id);
        let mut topic = resolve(node, state);
        if topic.outcome.is_ok() {
            *mentions.entry(topic.topic_id).or_default() += times;
        }
        if times > 1 {
            // As it was named: which name belongs to which id is not told with this.
            (topic.name, topic.topic_id) = given;
            topic.outcome = Err(ErrorCode::INVALID_REQUEST);
        }
        asked.push(topic);
    }
    let mut answered = BTreeSet::new();
    asked.retain_mut(|asked| {
        let is_repeated = mentions
            .get(&asked.topic_id)
            .is_some_and(|times| *times > 1);
        if asked.outcome.is_err() || !is_repeated {
            return true;
        }
        asked.outcome = Err(ErrorCode::INVALID_REQUEST);
        answered.insert(asked.topic_id)
    });
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
    let by_id = name.is_none().then_some(topic_id);
    let outcome = match &entry {
        None => Err(unknown),
        Some(entry) if entry.is_internal() => Err(ErrorCode::INVALID_TOPIC_EXCEPTION),
        Some(entry) => Ok((entry.name.to_string(), by_id)),
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
