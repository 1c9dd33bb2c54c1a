//! Heartbeat 0–4: a member says that it is alive, and hears whether to join again.
//!
//! Invariants: costs no append and no wait.
//! Never: ends a session; time does.

use crate::dispatch::RequestContext;
use crate::group::MemberClaim;
use crate::node::Node;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::{HeartbeatRequest, HeartbeatResponse};
use std::sync::Arc;

/// Refreshes the member's session.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: HeartbeatRequest,
) -> HeartbeatResponse {
    let error_code = if request.group_id.is_empty() {
        ErrorCode::INVALID_GROUP_ID
    } else {
        let member = MemberClaim {
            member_id: request.member_id,
            group_instance_id: request.group_instance_id,
            generation: request.generation_id,
        };
        node.groups.heartbeat(node, &request.group_id, member).await
    };
    HeartbeatResponse {
        error_code,
        ..Default::default()
    }
}
