//! The group requests of one member: one attempt each.
//!
//! Invariants: a join may take as long as the slowest member is given to give up its partitions.
//! Never: decides what an answer means; the machine does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_protocol::messages::join_group::JoinGroupRequestProtocol;
use millstream_protocol::messages::leave_group::MemberIdentity;
use millstream_protocol::messages::sync_group::SyncGroupRequestAssignment;
use millstream_protocol::messages::{
    HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, LeaveGroupRequest, SyncGroupRequest,
    SyncGroupResponse,
};
use millstream_protocol::{ErrorCode, Request};

use super::super::assignor::{
    Assignor, Member, MemberAssignment, PartitionCounts, RebalanceProtocol, moved_while_owned,
};
use super::super::core::Core;
use super::super::protocol_blobs::{Subscription, assignment_to_bytes, member_from_bytes};
use super::machine::Identity;
use super::{Group, Leading};
use crate::cluster::CoordinatorKind;
use crate::error::ClusterError;

/// What Kafka's consumers call their kind of group.
const PROTOCOL_TYPE: &str = "consumer";
/// How much longer a join may take than the members have to give up their partitions.
const JOIN_SLACK: Duration = Duration::from_secs(5);

/// One attempt to ask the group's coordinator.
pub(super) async fn ask<R: Request>(
    core: &Core,
    group_id: &str,
    timeout: Duration,
    build: impl FnOnce(i16) -> R + Send,
) -> Result<R::Response, ClusterError> {
    let (kind, cluster) = (CoordinatorKind::Group, &core.cluster);
    let patience = cluster.config().request_timeout;
    let node = cluster.coordinator_within(kind, group_id, patience).await?;
    Ok(cluster.request_with(node, timeout, i16::MAX, build).await?)
}

fn to_i32(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

pub(super) async fn join(
    core: Arc<Core>,
    group: Arc<Group>,
    identity: Identity,
) -> Result<JoinGroupResponse, ClusterError> {
    let config = &core.config;
    let (topics, owned) = {
        let state = group.lock();
        let owned: Vec<_> = state.owned.iter().cloned().collect();
        (state.topics.clone(), owned)
    };
    let mut protocols = Vec::new();
    for assignor in &config.assignors {
        let subscription = Subscription {
            topics: &topics,
            user_data: &assignor.user_data(&topics),
            owned: if group.protocol == RebalanceProtocol::Cooperative {
                &owned
            } else {
                &[]
            },
            generation_id: identity.generation,
            rack_id: &config.client_rack,
        };
        let metadata = subscription.to_bytes().map_err(|error| {
            ClusterError::Request(crate::error::RequestError::Encode {
                api: JoinGroupRequest::API,
                reason: error.to_string().into(),
            })
        })?;
        protocols.push(JoinGroupRequestProtocol {
            name: assignor.name().to_owned(),
            metadata,
        });
    }
    let request = JoinGroupRequest {
        group_id: group.group_id.clone(),
        session_timeout_ms: to_i32(config.session_timeout),
        rebalance_timeout_ms: to_i32(config.max_poll_interval),
        member_id: identity.member_id,
        group_instance_id: config.group_instance_id.clone(),
        protocol_type: PROTOCOL_TYPE.to_owned(),
        protocols,
        reason: None,
    };
    let timeout = config
        .client
        .request_timeout
        .max(config.max_poll_interval + JOIN_SLACK);
    ask(&core, &group.group_id, timeout, |_| request).await
}

/// How a sync ended.
pub(super) enum Synced {
    Answered(Box<SyncGroupResponse>, Option<Watch>),
    Unanswered(ClusterError),
    /// The assignor, or a member's subscription, makes an assignment impossible.
    Broken(String),
}

/// The topics that a leader watches, and what they looked like when it assigned.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    pub(super) topics: Vec<Arc<str>>,
    pub(super) counts: PartitionCounts,
}

pub(super) async fn sync(
    core: Arc<Core>,
    group: Arc<Group>,
    identity: Identity,
    protocol_name: Option<String>,
    leading: Option<Leading>,
    skip_assignment: bool,
) -> Synced {
    let mut assignments = Vec::new();
    let mut watch = None;
    if let Some(leading) = leading {
        let members = match read_members(leading.members) {
            Ok(members) => members,
            Err(reason) => return Synced::Broken(reason),
        };
        let watched = match counts(&core, &members).await {
            Ok(watched) => watched,
            Err(error) => return Synced::Unanswered(error),
        };
        if !skip_assignment {
            let shares = shares(&group, leading.assignor.as_ref(), &watched.counts, &members);
            assignments = match shares {
                Ok(assignments) => assignments,
                Err(reason) => return Synced::Broken(reason),
            };
        }
        watch = Some(watched);
    }
    let request = SyncGroupRequest {
        group_id: group.group_id.clone(),
        generation_id: identity.generation,
        member_id: identity.member_id,
        group_instance_id: core.config.group_instance_id.clone(),
        protocol_type: Some(PROTOCOL_TYPE.to_owned()),
        protocol_name,
        assignments,
    };
    let timeout = core
        .config
        .client
        .request_timeout
        .max(core.config.max_poll_interval + JOIN_SLACK);
    match ask(&core, &group.group_id, timeout, |_| request).await {
        Ok(response) => Synced::Answered(Box::new(response), watch),
        Err(error) => Synced::Unanswered(error),
    }
}

fn read_members(members: Vec<(String, Option<String>, Bytes)>) -> Result<Vec<Member>, String> {
    members
        .into_iter()
        .map(|(member_id, instance, bytes)| {
            let whose = member_id.clone();
            member_from_bytes(member_id, instance, bytes)
                .map_err(|error| format!("the subscription of member {whose:?}: {error}"))
        })
        .collect()
}

/// Partition counts of all topics of the group, as fresh as can be.
async fn counts(core: &Core, members: &[Member]) -> Result<Watch, ClusterError> {
    let topics: BTreeSet<Arc<str>> = members
        .iter()
        .flat_map(|member| member.topics.iter().cloned())
        .collect();
    let topics: Vec<Arc<str>> = topics.into_iter().collect();
    recount(core, topics).await
}

/// Asks for the topics' partition counts again.
pub(super) async fn recount(core: &Core, topics: Vec<Arc<str>>) -> Result<Watch, ClusterError> {
    core.cluster.refresh_metadata(&topics).await?;
    let counts = topics
        .iter()
        .filter_map(|topic| Some((topic.clone(), core.cluster.known_partitions_of(topic)?)))
        .collect();
    Ok(Watch { topics, counts })
}

fn shares(
    group: &Group,
    assignor: &dyn Assignor,
    counts: &PartitionCounts,
    members: &[Member],
) -> Result<Vec<SyncGroupRequestAssignment>, String> {
    let mut shares: BTreeMap<String, MemberAssignment> = assignor
        .assign(counts, members)?
        .into_iter()
        .map(|share| (share.member_id.clone(), share))
        .collect();
    let all: Vec<MemberAssignment> = shares.values().cloned().collect();
    let moved = moved_while_owned(members, &all);
    // The built-in assignor weighs generations: an old claim is not an ownership.
    let weighs = assignor.name() == "cooperative-sticky";
    if group.protocol == RebalanceProtocol::Cooperative && !weighs && !moved.is_empty() {
        return Err(format!(
            "moves {} straight from one owner to another, which the cooperative protocol forbids",
            moved
                .iter()
                .map(|p| p.to_string())
                .collect::<Vec<_>>()
                .join(", ")
        ));
    }
    members
        .iter()
        .map(|member| {
            let share = shares
                .remove(&member.member_id)
                .unwrap_or_else(|| MemberAssignment {
                    member_id: member.member_id.clone(),
                    ..Default::default()
                });
            let assignment = assignment_to_bytes(&share).map_err(|error| error.to_string())?;
            Ok(SyncGroupRequestAssignment {
                member_id: share.member_id,
                assignment,
            })
        })
        .collect()
}

pub(super) async fn heartbeat(
    core: Arc<Core>,
    group: Arc<Group>,
    identity: Identity,
) -> Result<ErrorCode, ClusterError> {
    let request = HeartbeatRequest {
        group_id: group.group_id.clone(),
        generation_id: identity.generation,
        member_id: identity.member_id,
        group_instance_id: core.config.group_instance_id.clone(),
    };
    let timeout = core
        .config
        .client
        .request_timeout
        .min(core.config.session_timeout);
    ask(&core, &group.group_id, timeout, |_| request)
        .await
        .map(|response| response.error_code)
}

/// Tells the coordinator that the member goes; one attempt, whose outcome changes nothing.
pub(super) async fn leave(core: &Core, group: &Group, identity: &Identity, patience: Duration) {
    let instance = core.config.group_instance_id.clone();
    let build = |version: i16| {
        let mut request = LeaveGroupRequest {
            group_id: group.group_id.clone(),
            ..Default::default()
        };
        if version >= 3 {
            request.members = vec![MemberIdentity {
                member_id: identity.member_id.clone(),
                group_instance_id: instance,
                reason: None,
            }];
        } else {
            request.member_id.clone_from(&identity.member_id);
        }
        request
    };
    let asked = ask(core, &group.group_id, patience, build);
    match tokio::time::timeout(patience, asked).await {
        Ok(Ok(response)) if response.error_code.is_ok() => {
            tracing::debug!(group = %group.group_id, "left the group");
        }
        Ok(Ok(response)) => {
            tracing::debug!(group = %group.group_id, code = %response.error_code, "leaving");
        }
        Ok(Err(error)) => {
            tracing::debug!(group = %group.group_id, %error, "leaving was not answered");
        }
        Err(_) => tracing::debug!(group = %group.group_id, "leaving took too long"),
    }
}
