//! JoinGroup 0–9: a member asks to be part of a group's next generation, and waits for it.
//!
//! Deviations: a restarted static member whose subscription changed rebalances the group (Kafka
//! looks at the chosen protocol's name only). The first generation is not delayed unless
//! configured. A repeated join answers the one before with REBALANCE_IN_PROGRESS. A member whose
//! metadata are larger than 4 MiB is refused with INVALID_REQUEST.
//!
//! Invariants: the connection's end ends the wait, not the join.
//! Invariants: the connection's next request begins once the group has the event, so heartbeats
//! pass a join that waits.
//! Never: holds the answer back for others; the group gives it.

use crate::dispatch::RequestContext;
use crate::group::{Join, JoinReply, Protocol, Token};
use crate::node::Node;
use bytes::Bytes;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::join_group::JoinGroupResponseMember;
use millstream_protocol::messages::{JoinGroupRequest, JoinGroupResponse};
use std::sync::Arc;

/// What a member may say about itself. The group keeps it for as long as it has the member.
const METADATA_BYTES_MAX: usize = 4 << 20;

/// Joins, and answers when the generation exists.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: JoinGroupRequest,
) -> JoinGroupResponse {
    let version = context.api_version;
    if request.group_id.is_empty() {
        return refused(version, request.member_id, ErrorCode::INVALID_GROUP_ID);
    }
    let allowed =
        node.config.group_min_session_timeout_ms..=node.config.group_max_session_timeout_ms;
    if !allowed.contains(&request.session_timeout_ms) {
        return refused(
            version,
            request.member_id,
            ErrorCode::INVALID_SESSION_TIMEOUT,
        );
    }
    let metadata_bytes: usize = (request.protocols.iter())
        .map(|protocol| protocol.metadata.len() + protocol.name.len())
        .sum();
    if metadata_bytes > METADATA_BYTES_MAX {
        tracing::debug!(group_id = request.group_id, metadata_bytes, "join refused");
        return refused(version, request.member_id, ErrorCode::INVALID_REQUEST);
    }
    // Version 0 has one timeout for both.
    let rebalance_timeout_ms = if version >= 1 {
        request.rebalance_timeout_ms.max(0)
    } else {
        request.session_timeout_ms
    };
    let protocols = request.protocols.into_iter();
    let join = Join {
        token: Token(0),
        member_id: request.member_id,
        group_instance_id: request.group_instance_id,
        candidate_member_id: String::new(),
        requires_known_member_id: version >= 4,
        supports_skipping_assignment: version >= 9,
        client_id: context.client_id.clone().unwrap_or_default(),
        client_host: context.client_host(),
        session_timeout_ms: request.session_timeout_ms,
        rebalance_timeout_ms,
        protocol_type: request.protocol_type,
        protocols: protocols
            .map(|protocol| Protocol {
                name: protocol.name,
                // By itself, not as a part of the frame, which may be much larger.
                metadata: Bytes::copy_from_slice(&protocol.metadata),
            })
            .collect(),
    };
    let group_id = request.group_id;
    let member_id = join.member_id.clone();
    let joins = node
        .groups
        .join(node, &group_id, join, || context.release_turn());
    tokio::select! {
        biased;
        reply = joins => answer(version, reply),
        // The group has the event; nobody is there for its answer.
        () = context.ending() => refused(version, member_id, ErrorCode::NOT_COORDINATOR),
    }
}

fn answer(version: i16, reply: JoinReply) -> JoinGroupResponse {
    let members = reply
        .members
        .into_iter()
        .map(|member| JoinGroupResponseMember {
            member_id: member.member_id,
            group_instance_id: member.group_instance_id,
            metadata: member.metadata,
        });
    JoinGroupResponse {
        error_code: reply.error,
        generation_id: reply.generation,
        protocol_type: reply.protocol_type,
        protocol_name: nullable(version, reply.protocol),
        leader: reply.leader,
        skip_assignment: reply.skip_assignment,
        member_id: reply.member_id,
        members: members.collect(),
        ..Default::default()
    }
}

fn refused(version: i16, member_id: String, error_code: ErrorCode) -> JoinGroupResponse {
    let protocol_name = nullable(version, None);
    JoinGroupResponse {
        error_code,
        protocol_name,
        member_id,
        ..Default::default()
    }
}

/// The chosen protocol; before version 7 there was no null.
fn nullable(version: i16, protocol: Option<String>) -> Option<String> {
    if version >= 7 {
        protocol
    } else {
        Some(protocol.unwrap_or_default())
    }
}
