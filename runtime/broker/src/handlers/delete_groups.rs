//! DeleteGroups 0–2: groups without members go, with all their offsets.
//!
//! Invariants: answered once the tombstones are durable.
//! Never: deletes a group that has members.

use crate::dispatch::RequestContext;
use crate::node::Node;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::delete_groups::DeletableGroupResult;
use millstream_protocol::messages::{DeleteGroupsRequest, DeleteGroupsResponse};
use std::sync::Arc;

/// Deletes each group.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: DeleteGroupsRequest,
) -> DeleteGroupsResponse {
    let mut results = Vec::with_capacity(request.groups_names.len());
    for group_id in request.groups_names {
        let deleted = match node.groups.delete(node, &group_id) {
            Ok(position) => node.groups.durable(node, position).await,
            Err(error) => Err(error),
        };
        let error_code = deleted.err().unwrap_or(ErrorCode::NONE);
        results.push(DeletableGroupResult {
            group_id,
            error_code,
        });
    }
    DeleteGroupsResponse {
        results,
        ..Default::default()
    }
}
