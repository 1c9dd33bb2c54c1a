//! DeleteAcls 1–3: there are no access rules to delete, as on a Kafka without an authorizer.
//!
//! Invariants: one answer a filter.
//! Never: an empty list of deleted rules, which would read as success.

use super::NO_ACCESS_RULES;
use crate::dispatch::RequestContext;
use crate::node::Node;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::delete_acls::DeleteAclsFilterResult;
use millstream_protocol::messages::{DeleteAclsRequest, DeleteAclsResponse};
use std::sync::Arc;

/// Refuses each.
pub(crate) async fn handle(
    _node: &Arc<Node>,
    _context: &RequestContext,
    request: DeleteAclsRequest,
) -> DeleteAclsResponse {
    let refuse = |(place, _)| DeleteAclsFilterResult {
        error_code: ErrorCode::SECURITY_DISABLED,
        // Said once: an answer is not to be many times the size of its request.
        error_message: (place == 0).then(|| NO_ACCESS_RULES.to_owned()),
        ..Default::default()
    };
    DeleteAclsResponse {
        filter_results: request.filters.iter().enumerate().map(refuse).collect(),
        ..Default::default()
    }
}
