//! FindCoordinator 0–6: who coordinates a group or a transactional id. Always this node.
//!
//! Deviations: share groups (key type 2, version 6) are not served: INVALID_REQUEST.
//!
//! Invariants: every key of the request is answered, in its order.
//! Never: looks a key up; a single node coordinates all of them.

use crate::dispatch::RequestContext;
use crate::node::Node;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::find_coordinator::Coordinator;
use millstream_protocol::messages::{FindCoordinatorRequest, FindCoordinatorResponse};
use std::sync::Arc;

/// The first version that asks for several keys at once.
const BATCH_VERSION: i16 = 4;
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;

/// Answers this node for every key.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: FindCoordinatorRequest,
) -> FindCoordinatorResponse {
    let keys = if context.api_version >= BATCH_VERSION {
        request.coordinator_keys
    } else {
        vec![request.key]
    };
    let mut coordinators: Vec<Coordinator> = keys
        .into_iter()
        .map(|key| match request.key_type {
            GROUP => found(node, context, key),
            TRANSACTION if !key.is_empty() => found(node, context, key),
            _ => refused(key),
        })
        .collect();
    if context.api_version >= BATCH_VERSION {
        return FindCoordinatorResponse {
            coordinators,
            ..Default::default()
        };
    }
    let only = coordinators.pop().unwrap_or_default();
    FindCoordinatorResponse {
        error_code: only.error_code,
        error_message: only.error_message,
        node_id: only.node_id,
        host: only.host,
        port: only.port,
        ..Default::default()
    }
}

fn found(node: &Node, context: &RequestContext, key: String) -> Coordinator {
    let (host, port) = node.advertised(context.reached_at);
    Coordinator {
        key,
        node_id: node.config.node_id,
        host,
        port,
        ..Default::default()
    }
}

fn refused(key: String) -> Coordinator {
    let error_code = ErrorCode::INVALID_REQUEST;
    let error_message = Some(error_code.description().to_owned());
    Coordinator {
        key,
        node_id: -1,
        port: -1,
        error_code,
        error_message,
        ..Default::default()
    }
}
