//! ConsumerGroupHeartbeat 0–1: a member of the consumer protocol joins, lives, and leaves.
//!
//! Deviations: a known member may begin anew with epoch 0 at any time, and is told its assignment
//! again.
//!
//! Invariants: an answer that tells of a change of the group comes when that is durable.
//! Never: waits for other members.

use crate::dispatch::RequestContext;
use crate::group::{Assignor, Beat, Partitions};
use crate::node::Node;
use crate::pattern::Pattern;
use crate::refused::told;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::consumer_group_heartbeat::{Assignment, TopicPartitions};
use millstream_protocol::messages::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
};
use std::sync::Arc;

/// The first version whose members draw their ids themselves.
const OWN_MEMBER_ID_VERSION: i16 = 1;

/// Answers the member.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: ConsumerGroupHeartbeatRequest,
) -> ConsumerGroupHeartbeatResponse {
    let group_id = request.group_id.clone();
    let beat = match beat(node, context, request) {
        Ok(beat) => beat,
        Err((error, message)) => return refused(error, message),
    };
    let answered = node.groups.beat(node, &group_id, &beat).await;
    context.release_turn();
    let (reply, position) = match answered {
        Ok(answered) => answered,
        Err(refusal) => {
            tracing::debug!(
                group_id,
                member = beat.member_id,
                ?refusal,
                "heartbeat refused"
            );
            return refused(refusal.error, refusal.message);
        }
    };
    if position > 0
        && let Err(error) = node.groups.durable(node, position).await
    {
        return refused(error, error.to_string());
    }
    ConsumerGroupHeartbeatResponse {
        member_id: Some(reply.member_id),
        member_epoch: reply.member_epoch,
        heartbeat_interval_ms: node.timeouts_of(&group_id).heartbeat_ms,
        assignment: reply.assignment.map(assignment),
        ..Default::default()
    }
}

/// An error, and its text.
type Invalid = (ErrorCode, String);

/// What can be said without looking at the group.
fn check(context: &RequestContext, request: &ConsumerGroupHeartbeatRequest) -> Result<(), Invalid> {
    let invalid = |message: &str| Err((ErrorCode::INVALID_REQUEST, message.to_owned()));
    let epoch = request.member_epoch;
    let names_itself = context.api_version >= OWN_MEMBER_ID_VERSION || epoch != 0;
    let is_empty = |text: &Option<String>| text.as_ref().is_some_and(String::is_empty);
    let subscribed =
        request.subscribed_topic_names.is_some() || request.subscribed_topic_regex.is_some();
    if names_itself && request.member_id.is_empty() {
        return invalid("the member id is empty");
    }
    if request.group_id.is_empty() {
        return invalid("the group id is empty");
    }
    if is_empty(&request.instance_id) || is_empty(&request.rack_id) {
        return invalid("an instance id or rack id is null or not empty");
    }
    match epoch {
        0 if request.rebalance_timeout_ms < 0 => {
            return invalid("a member that joins gives its rebalance timeout");
        }
        0 if request
            .topic_partitions
            .as_ref()
            .is_none_or(|owned| !owned.is_empty()) =>
        {
            return invalid("a member that joins owns no partitions, and says so");
        }
        0 if !subscribed => return invalid("a member that joins gives its subscription"),
        -2 if request.instance_id.is_none() => {
            return invalid("a static member that leaves gives its instance id");
        }
        ..-2 => return invalid("the lowest member epoch is -2"),
        _ => {}
    }
    if let Some(regex) = &request.subscribed_topic_regex
        && let Err(reason) = Pattern::parse(regex)
    {
        let message = format!("'{regex}' is no regular expression: {reason}");
        return Err((ErrorCode::INVALID_REGULAR_EXPRESSION, message));
    }
    Ok(())
}

fn beat(
    node: &Node,
    context: &RequestContext,
    request: ConsumerGroupHeartbeatRequest,
) -> Result<Beat, Invalid> {
    check(context, &request)?;
    let assignor = match &request.server_assignor {
        None => None,
        Some(name) => Some(Assignor::named(name).ok_or_else(|| {
            let known = Assignor::ALL.map(Assignor::name).join(", ");
            let message = format!("there is no assignor '{name}'; there are {known}");
            (ErrorCode::UNSUPPORTED_ASSIGNOR, message)
        })?),
    };
    Ok(Beat {
        member_id: match request.member_id.is_empty() {
            true => format!("{:016x}{:016x}", node.random_u64(), node.now_ms()),
            false => request.member_id,
        },
        member_epoch: request.member_epoch,
        instance_id: request.instance_id,
        rack_id: request.rack_id,
        rebalance_timeout_ms: Some(request.rebalance_timeout_ms).filter(|timeout| *timeout >= 0),
        topics: request.subscribed_topic_names,
        regex: request.subscribed_topic_regex,
        assignor,
        owned: request.topic_partitions.map(partitions),
        client_id: context.client_id.clone().unwrap_or_default(),
        client_host: context.client_host(),
    })
}

fn partitions(topics: Vec<TopicPartitions>) -> Partitions {
    let mut partitions = Partitions::new();
    for topic in topics
        .into_iter()
        .filter(|topic| !topic.partitions.is_empty())
    {
        let set = partitions.entry(topic.topic_id).or_default();
        set.extend(topic.partitions);
    }
    partitions
}

fn assignment(partitions: Partitions) -> Assignment {
    let topics = partitions.into_iter();
    let topics = topics.map(|(topic_id, partitions)| TopicPartitions {
        topic_id,
        partitions: partitions.into_iter().collect(),
    });
    Assignment {
        topic_partitions: topics.collect(),
    }
}

fn refused(error_code: ErrorCode, message: String) -> ConsumerGroupHeartbeatResponse {
    ConsumerGroupHeartbeatResponse {
        error_code,
        error_message: Some(told(message)),
        ..Default::default()
    }
}
