//! ConsumerGroupDescribe 0–1: the epochs of a group of the consumer protocol, and its members.
//!
//! Invariants: every group of the request is answered, in its order.
//! Never: shows a topic that is gone.

use super::GROUP_OPERATIONS;
use crate::dispatch::RequestContext;
use crate::group::{ConsumerGroupView, Partitions};
use crate::node::Node;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::consumer_group_describe::{
    Assignment, DescribedGroup, Member, TopicPartitions,
};
use millstream_protocol::messages::{ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse};
use std::sync::Arc;

/// A member that speaks the consumer protocol.
const CONSUMER_MEMBER: i8 = 1;

/// Describes each group.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: ConsumerGroupDescribeRequest,
) -> ConsumerGroupDescribeResponse {
    let operations = if request.include_authorized_operations {
        GROUP_OPERATIONS
    } else {
        i32::MIN
    };
    let describe = |group_id: String| {
        let failed = |error_code, message| DescribedGroup {
            error_code,
            error_message: Some(message),
            group_id: group_id.clone(),
            ..Default::default()
        };
        match node.groups.describe_consumers(&group_id) {
            _ if group_id.is_empty() => failed(
                ErrorCode::INVALID_GROUP_ID,
                "the group id is empty".to_owned(),
            ),
            Ok(Some(group)) => DescribedGroup {
                authorized_operations: operations,
                ..described(node, group_id, group)
            },
            Ok(None) => {
                let message = format!("group {group_id} is no consumer group");
                failed(ErrorCode::GROUP_ID_NOT_FOUND, message)
            }
            Err(error) => failed(error, error.to_string()),
        }
    };
    let groups = request.group_ids.into_iter().map(describe).collect();
    ConsumerGroupDescribeResponse {
        groups,
        ..Default::default()
    }
}

fn described(node: &Node, group_id: String, group: ConsumerGroupView) -> DescribedGroup {
    let members = group.members.into_iter().map(|seen| {
        let profile = seen.member.profile;
        Member {
            member_id: seen.id,
            instance_id: profile.instance_id,
            rack_id: profile.rack_id,
            member_epoch: seen.member.current.epoch,
            client_id: profile.client_id,
            client_host: profile.client_host,
            subscribed_topic_names: profile.topics.into_iter().collect(),
            subscribed_topic_regex: profile.regex,
            assignment: assignment(node, seen.member.current.assigned),
            target_assignment: assignment(node, seen.target),
            member_type: CONSUMER_MEMBER,
        }
    });
    DescribedGroup {
        group_id,
        group_state: group.state.to_owned(),
        group_epoch: group.epoch,
        assignment_epoch: group.assignment_epoch,
        assignor_name: group.assignor.to_owned(),
        members: members.collect(),
        ..Default::default()
    }
}

fn assignment(node: &Node, partitions: Partitions) -> Assignment {
    let topics = partitions.into_iter().filter_map(|(topic_id, partitions)| {
        Some(TopicPartitions {
            topic_id,
            topic_name: node.partitions.topic_by_id(topic_id)?.name.to_string(),
            partitions: partitions.into_iter().collect(),
        })
    });
    Assignment {
        topic_partitions: topics.collect(),
    }
}
