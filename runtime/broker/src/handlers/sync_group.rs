//! SyncGroup 0–5: the leader brings everybody's assignment, the others wait for theirs.
//!
//! Invariants: the connection's next request begins once the group has the event.
//! Never: reads an assignment.

use crate::dispatch::RequestContext;
use crate::group::{MemberClaim, Sync, SyncReply, Token};
use crate::node::Node;
use bytes::Bytes;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::{SyncGroupRequest, SyncGroupResponse};
use std::sync::Arc;

/// The first version in which a client has to name the protocol that it believes in.
const NAMED_PROTOCOL_VERSION: i16 = 5;

/// Answers with the member's assignment.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: SyncGroupRequest,
) -> SyncGroupResponse {
    let unnamed = request.protocol_type.is_none() || request.protocol_name.is_none();
    let error_code = if request.group_id.is_empty() {
        ErrorCode::INVALID_GROUP_ID
    } else if context.api_version >= NAMED_PROTOCOL_VERSION && unnamed {
        ErrorCode::INCONSISTENT_GROUP_PROTOCOL
    } else {
        ErrorCode::NONE
    };
    if !error_code.is_ok() {
        return SyncGroupResponse {
            error_code,
            ..Default::default()
        };
    }
    let assignments = request.assignments.into_iter();
    let sync = Sync {
        token: Token(0),
        member: MemberClaim {
            member_id: request.member_id,
            group_instance_id: request.group_instance_id,
            generation: request.generation_id,
        },
        protocol_type: request.protocol_type,
        protocol: request.protocol_name,
        assignments: assignments
            // By itself, not as a part of the frame, which may be much larger.
            .map(|given| (given.member_id, Bytes::copy_from_slice(&given.assignment)))
            .collect(),
    };
    let group_id = request.group_id;
    let syncs = node
        .groups
        .sync(node, &group_id, sync, || context.release_turn());
    let reply = tokio::select! {
        biased;
        reply = syncs => reply,
        // The group has the event; nobody is there for its answer.
        () = context.ending() => SyncReply::refused(ErrorCode::NOT_COORDINATOR),
    };
    SyncGroupResponse {
        error_code: reply.error,
        protocol_type: reply.protocol_type,
        protocol_name: reply.protocol,
        assignment: reply.assignment,
        ..Default::default()
    }
}
