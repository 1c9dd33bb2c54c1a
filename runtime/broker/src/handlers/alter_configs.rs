//! AlterConfigs 0–2: the older way, in which a resource's settings are replaced as a whole.
//!
//! Invariants: those of `config_changes`.
//! Never: changes anything when `validate_only` is set.

use super::config_changes::{self, Change, Operation, Outcome, SET};
use crate::dispatch::RequestContext;
use crate::node::Node;
use millstream_protocol::messages::alter_configs::{
    AlterConfigsResource, AlterConfigsResourceResponse, AlterableConfig,
};
use millstream_protocol::messages::{AlterConfigsRequest, AlterConfigsResponse};
use std::sync::Arc;

/// Gives each resource of the request its new settings.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: AlterConfigsRequest,
) -> AlterConfigsResponse {
    let changes = request.resources.into_iter().map(change).collect();
    let outcomes = config_changes::carry_out(node, changes, request.validate_only).await;
    AlterConfigsResponse {
        responses: outcomes.into_iter().map(answer).collect(),
        ..Default::default()
    }
}

fn change(resource: AlterConfigsResource) -> Change {
    let set = |config: AlterableConfig| Operation {
        name: config.name,
        operation: SET,
        value: config.value,
    };
    Change {
        resource_type: resource.resource_type,
        resource_name: resource.resource_name,
        operations: resource.configs.into_iter().map(set).collect(),
        replaces: true,
    }
}

fn answer(outcome: Outcome) -> AlterConfigsResourceResponse {
    AlterConfigsResourceResponse {
        error_code: outcome.error_code,
        error_message: outcome.error_message,
        resource_type: outcome.resource_type,
        resource_name: outcome.resource_name,
    }
}
