//! DeleteTopics 1–6, by name or by id.
//!
//! Deviations: the coordinators' topics cannot be deleted.
//!
//! Invariants: every topic of the request is answered.
//! Never: deletes what is named both by name and by id.

use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::topics::is_internal;
use millstream_protocol::messages::delete_topics::{DeletableTopicResult, DeleteTopicState};
use millstream_protocol::messages::{DeleteTopicsRequest, DeleteTopicsResponse};
use millstream_protocol::{ErrorCode, Uuid};
use std::sync::Arc;

/// Deletes each topic of the request.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: DeleteTopicsRequest,
) -> DeleteTopicsResponse {
    let by_name = |name| DeleteTopicState {
        name: Some(name),
        topic_id: Uuid::ZERO,
    };
    let states = if context.api_version >= 6 {
        request.topics
    } else {
        request.topic_names.into_iter().map(by_name).collect()
    };
    let mut responses = Vec::new();
    for state in states {
        responses.push(delete(node, state).await);
    }
    DeleteTopicsResponse {
        responses,
        ..Default::default()
    }
}

async fn delete(node: &Arc<Node>, state: DeleteTopicState) -> DeletableTopicResult {
    let DeleteTopicState { name, topic_id } = state;
    let (name, topic_id, outcome) = match (name, topic_id) {
        (Some(name), Uuid::ZERO) => {
            let id = node
                .partitions
                .topic(&name)
                .map_or(Uuid::ZERO, |entry| entry.id);
            let outcome = delete_named(node, &name).await;
            (Some(name), id, outcome)
        }
        (None, Uuid::ZERO) => (None, Uuid::ZERO, Err(ErrorCode::INVALID_REQUEST)),
        (None, id) => match node.partitions.topic_by_id(id) {
            None => (None, id, Err(ErrorCode::UNKNOWN_TOPIC_ID)),
            Some(entry) => (
                Some(entry.name.to_string()),
                id,
                delete_named(node, &entry.name).await,
            ),
        },
        (Some(name), id) => (Some(name), id, Err(ErrorCode::INVALID_REQUEST)),
    };
    let error_code = outcome.err().unwrap_or(ErrorCode::NONE);
    DeletableTopicResult {
        name,
        topic_id,
        error_code,
        error_message: (!error_code.is_ok()).then(|| error_code.description().to_owned()),
    }
}

async fn delete_named(node: &Arc<Node>, name: &str) -> Result<(), ErrorCode> {
    if is_internal(name) {
        return Err(ErrorCode::INVALID_TOPIC_EXCEPTION);
    }
    node.delete_topic(name).await
}
