//! DescribeGroups 0–6: a group's state, protocol and members.
//!
//! Invariants: every group of the request is answered, in its order.
//! Never: waits.

use super::GROUP_OPERATIONS;
use crate::dispatch::RequestContext;
use crate::group::GroupView;
use crate::node::Node;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::describe_groups::{DescribedGroup, DescribedGroupMember};
use millstream_protocol::messages::{DescribeGroupsRequest, DescribeGroupsResponse};
use std::sync::Arc;

/// The first version that says of a missing group that it is missing, and not that it is dead.
const NOT_FOUND_VERSION: i16 = 6;

/// Describes each group.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: DescribeGroupsRequest,
) -> DescribeGroupsResponse {
    let operations = if request.include_authorized_operations {
        GROUP_OPERATIONS
    } else {
        i32::MIN
    };
    let describe = |group_id: String| match node.groups.describe(&group_id) {
        Ok(Some(group)) => DescribedGroup {
            authorized_operations: operations,
            ..described(group)
        },
        Ok(None) => missing(group_id, context.api_version),
        Err(error_code) => DescribedGroup {
            error_code,
            group_id,
            ..Default::default()
        },
    };
    let groups = request.groups.into_iter().map(describe).collect();
    DescribeGroupsResponse {
        groups,
        ..Default::default()
    }
}

fn described(group: GroupView) -> DescribedGroup {
    let members = group
        .members
        .into_iter()
        .map(|member| DescribedGroupMember {
            member_id: member.member_id,
            group_instance_id: member.group_instance_id,
            client_id: member.client_id,
            client_host: member.client_host,
            member_metadata: member.metadata,
            member_assignment: member.assignment,
        });
    DescribedGroup {
        group_id: group.group_id,
        group_state: group.state.to_owned(),
        protocol_type: group.protocol_type,
        protocol_data: group.protocol,
        members: members.collect(),
        ..Default::default()
    }
}

fn missing(group_id: String, version: i16) -> DescribedGroup {
    let group_state = "Dead".to_owned();
    if version < NOT_FOUND_VERSION {
        return DescribedGroup {
            group_id,
            group_state,
            ..Default::default()
        };
    }
    DescribedGroup {
        error_code: ErrorCode::GROUP_ID_NOT_FOUND,
        error_message: Some(format!("group {group_id} does not exist")),
        group_id,
        group_state,
        ..Default::default()
    }
}
