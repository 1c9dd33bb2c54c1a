//! LeaveGroup 0–5: members go, one by its id, or several by id or instance.
//!
//! Invariants: all leavers are removed before the group reacts, so they cause one rebalance.
//! Never: ends a transaction or forgets an offset.

use crate::dispatch::RequestContext;
use crate::group::Leaver;
use crate::node::Node;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::leave_group::MemberResponse;
use millstream_protocol::messages::{LeaveGroupRequest, LeaveGroupResponse};
use std::sync::Arc;

/// The first version in which several members may leave at once.
const BATCH_VERSION: i16 = 3;

/// Removes the members and answers for each.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: LeaveGroupRequest,
) -> LeaveGroupResponse {
    let failed = |error_code| LeaveGroupResponse {
        error_code,
        ..Default::default()
    };
    if request.group_id.is_empty() {
        return failed(ErrorCode::INVALID_GROUP_ID);
    }
    let batch = context.api_version >= BATCH_VERSION;
    let leavers: Vec<Leaver> = if batch {
        let members = request.members.into_iter();
        let leaver = members.map(|member| Leaver {
            member_id: member.member_id,
            group_instance_id: member.group_instance_id,
        });
        leaver.collect()
    } else {
        vec![Leaver {
            member_id: request.member_id,
            group_instance_id: None,
        }]
    };
    let group_id = request.group_id;
    let left = node
        .groups
        .leave(node, &group_id, leavers.clone(), || context.release_turn())
        .await;
    let errors = match left {
        Ok(errors) => errors,
        Err(error) => return failed(error),
    };
    if !batch {
        return failed(errors.first().copied().unwrap_or(ErrorCode::NONE));
    }
    let members = leavers
        .into_iter()
        .zip(errors)
        .map(|(leaver, error_code)| MemberResponse {
            member_id: leaver.member_id,
            group_instance_id: leaver.group_instance_id,
            error_code,
        });
    LeaveGroupResponse {
        members: members.collect(),
        ..Default::default()
    }
}
