//! DescribeAcls 1–3: there are no access rules on this broker, and that is what it says.
//!
//! Invariants: answered as Kafka answers without an authorizer, which tools understand.
//! Never: an empty list, which would read as "nobody may do anything".

use super::NO_ACCESS_RULES;
use crate::dispatch::RequestContext;
use crate::node::Node;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::{DescribeAclsRequest, DescribeAclsResponse};
use std::sync::Arc;

/// Refuses.
pub(crate) async fn handle(
    _node: &Arc<Node>,
    _context: &RequestContext,
    _request: DescribeAclsRequest,
) -> DescribeAclsResponse {
    DescribeAclsResponse {
        error_code: ErrorCode::SECURITY_DISABLED,
        error_message: Some(NO_ACCESS_RULES.to_owned()),
        ..Default::default()
    }
}
