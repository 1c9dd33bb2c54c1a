//! IncrementalAlterConfigs 0–1: single settings of a resource are set, deleted, appended to,
//! subtracted from.
//!
//! Invariants: those of `config_changes`.
//! Never: changes anything when `validate_only` is set.

use super::config_changes::{self, Change, Operation, Outcome};
use crate::dispatch::RequestContext;
use crate::node::Node;
use millstream_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterConfigsResourceResponse, AlterableConfig,
};
use millstream_protocol::messages::{
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
};
use std::sync::Arc;

/// Changes each resource of the request.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let changes = request.resources.into_iter().map(change).collect();
    let outcomes = config_changes::carry_out(node, changes, request.validate_only).await;
    IncrementalAlterConfigsResponse {
        responses: outcomes.into_iter().map(answer).collect(),
        ..Default::default()
    }
}

fn change(resource: AlterConfigsResource) -> Change {
    let operation = |config: AlterableConfig| Operation {
        name: config.name,
        operation: config.config_operation,
        value: config.value,
    };
    Change {
        resource_type: resource.resource_type,
        resource_name: resource.resource_name,
        operations: resource.configs.into_iter().map(operation).collect(),
        replaces: false,
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
