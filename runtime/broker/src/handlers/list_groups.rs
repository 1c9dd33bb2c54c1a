//! ListGroups 0–5: every group of this node, by id.
//!
//! Deviations: there are classic and consumer groups only.
//!
//! Invariants: a group that only stores offsets is listed too, as an empty one.
//! Never: waits.

use crate::dispatch::RequestContext;
use crate::group::GroupView;
use crate::node::Node;
use millstream_protocol::messages::list_groups::ListedGroup;
use millstream_protocol::messages::{ListGroupsRequest, ListGroupsResponse};
use std::sync::Arc;

fn type_of(group: &GroupView) -> &'static str {
    match group.is_consumer {
        true => "Consumer",
        false => "Classic",
    }
}

/// Lists the groups in the states and of the types that are asked for; all if none are named.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: ListGroupsRequest,
) -> ListGroupsResponse {
    let ListGroupsRequest {
        states_filter,
        types_filter,
        ..
    } = request;
    let groups = match node.groups.list() {
        Ok(groups) => groups,
        Err(error_code) => {
            return ListGroupsResponse {
                error_code,
                ..Default::default()
            };
        }
    };
    let wanted = |group: &GroupView| {
        passes(&states_filter, group.state) && passes(&types_filter, type_of(group))
    };
    let listed = groups.into_iter().filter(wanted).map(|group| ListedGroup {
        group_type: type_of(&group).to_owned(),
        group_id: group.group_id,
        protocol_type: group.protocol_type,
        group_state: group.state.to_owned(),
    });
    ListGroupsResponse {
        groups: listed.collect(),
        ..Default::default()
    }
}

fn passes(filter: &[String], value: &str) -> bool {
    filter.is_empty()
        || filter
            .iter()
            .any(|wanted| wanted.eq_ignore_ascii_case(value))
}
