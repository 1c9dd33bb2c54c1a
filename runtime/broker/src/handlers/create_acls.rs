//! CreateAcls 1–3: access rules cannot be made, as on a Kafka without an authorizer.
//!
//! Invariants: one answer a rule.
//! Never: takes a rule; nothing here would keep it.

use super::NO_ACCESS_RULES;
use crate::dispatch::RequestContext;
use crate::node::Node;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::create_acls::AclCreationResult;
use millstream_protocol::messages::{CreateAclsRequest, CreateAclsResponse};
use std::sync::Arc;

/// Refuses each.
pub(crate) async fn handle(
    _node: &Arc<Node>,
    _context: &RequestContext,
    request: CreateAclsRequest,
) -> CreateAclsResponse {
    let refuse = |(place, _)| AclCreationResult {
        error_code: ErrorCode::SECURITY_DISABLED,
        // Said once: an answer is not to be many times the size of its request.
        error_message: (place == 0).then(|| NO_ACCESS_RULES.to_owned()),
    };
    CreateAclsResponse {
        results: request.creations.iter().enumerate().map(refuse).collect(),
        ..Default::default()
    }
}
