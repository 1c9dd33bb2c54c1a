//! The life of a group, in every version: each is lived in versions of about the same age.

use super::Sweep;
use crate::handlers::GROUP_OPERATIONS;
use bytes::Bytes;
use millstream_protocol::messages::join_group::JoinGroupRequestProtocol;
use millstream_protocol::messages::leave_group::MemberIdentity;
use millstream_protocol::messages::offset_commit::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use millstream_protocol::messages::offset_delete::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use millstream_protocol::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use millstream_protocol::messages::sync_group::SyncGroupRequestAssignment;
use millstream_protocol::messages::*;
use millstream_protocol::{ErrorCode, Uuid};

/// The newest version of any API here.
const NEWEST: i16 = 10;

/// Of the classic protocol.
pub(super) async fn sweep(sweep: &mut Sweep) {
    let id = sweep.client.create_topic("read", 1).await;
    let request = |version| FindCoordinatorRequest {
        key: if version < 4 { "g" } else { "" }.to_owned(),
        coordinator_keys: if version < 4 {
            Vec::new()
        } else {
            vec!["g".to_owned()]
        },
        ..Default::default()
    };
    sweep
        .all(request, |version, response| {
            let found = match response.coordinators.first() {
                Some(found) => (found.error_code, found.node_id),
                None => (response.error_code, response.node_id),
            };
            assert_eq!(found, (ErrorCode::NONE, 1), "version {version}");
        })
        .await;
    for version in 0..=NEWEST {
        let group = format!("g{version}");
        let (member_id, generation) = joined(sweep, version, &group).await;
        let commit = commit_request(&group, &member_id, generation, version, id);
        let committed = sweep.near(version, commit).await;
        let found = committed.topics[0].partitions[0].error_code;
        assert_eq!(found, ErrorCode::NONE, "version {version}");
        let fetched = sweep
            .near(version, fetch_request(&group, version, id))
            .await;
        let found = match fetched.groups.first() {
            Some(group) => group.topics[0].partitions[0].committed_offset,
            None => fetched.topics[0].partitions[0].committed_offset,
        };
        assert_eq!(found, i64::from(version));
        listed_and_described(sweep, version, &group).await;
        left(sweep, version, &group, member_id).await;
    }
    let request = |_| OffsetDeleteRequest {
        group_id: "g10".to_owned(),
        topics: vec![OffsetDeleteRequestTopic {
            name: "read".to_owned(),
            partitions: vec![OffsetDeleteRequestPartition::default()],
        }],
    };
    sweep
        .all(request, |_, response| {
            let found = response.topics[0].partitions[0].error_code;
            assert_eq!(
                (response.error_code, found),
                (ErrorCode::NONE, ErrorCode::NONE)
            );
        })
        .await;
    let request = |version| DeleteGroupsRequest {
        groups_names: vec![format!("g{version}"), "missing".to_owned()],
    };
    sweep
        .all(request, |version, response| {
            let found: Vec<_> = response.results.iter().map(|one| one.error_code).collect();
            let wanted = [ErrorCode::NONE, ErrorCode::GROUP_ID_NOT_FOUND];
            assert_eq!(found, wanted, "version {version}");
        })
        .await;
}

/// Joins as the only member, takes its assignment and keeps alive.
async fn joined(sweep: &mut Sweep, version: i16, group: &str) -> (String, i32) {
    let join = |member_id: String| JoinGroupRequest {
        group_id: group.to_owned(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 10_000,
        member_id,
        protocol_type: "consumer".to_owned(),
        protocols: vec![JoinGroupRequestProtocol {
            name: "range".to_owned(),
            metadata: Bytes::from_static(b"subscription"),
        }],
        ..Default::default()
    };
    let mut answer = sweep.near(version, join(String::new())).await;
    if version >= 4 {
        assert_eq!(answer.error_code, ErrorCode::MEMBER_ID_REQUIRED);
        answer = sweep.near(version, join(answer.member_id)).await;
    }
    assert_eq!(answer.error_code, ErrorCode::NONE, "version {version}");
    assert_eq!(answer.leader, answer.member_id);
    assert_eq!(answer.members.len(), 1);
    let sync = SyncGroupRequest {
        group_id: group.to_owned(),
        generation_id: answer.generation_id,
        member_id: answer.member_id.clone(),
        protocol_type: Some("consumer".to_owned()),
        protocol_name: Some("range".to_owned()),
        assignments: vec![SyncGroupRequestAssignment {
            member_id: answer.member_id.clone(),
            assignment: Bytes::from_static(b"all"),
        }],
        ..Default::default()
    };
    let synced = sweep.near(version, sync).await;
    assert_eq!(synced.error_code, ErrorCode::NONE, "version {version}");
    assert_eq!(synced.assignment, &b"all"[..], "version {version}");
    let heartbeat = HeartbeatRequest {
        group_id: group.to_owned(),
        generation_id: answer.generation_id,
        member_id: answer.member_id.clone(),
        ..Default::default()
    };
    let alive = sweep.near(version, heartbeat).await;
    assert_eq!(alive.error_code, ErrorCode::NONE, "version {version}");
    (answer.member_id, answer.generation_id)
}

fn commit_request(
    group: &str,
    member_id: &str,
    generation: i32,
    version: i16,
    id: Uuid,
) -> OffsetCommitRequest {
    OffsetCommitRequest {
        group_id: group.to_owned(),
        generation_id_or_member_epoch: generation,
        member_id: member_id.to_owned(),
        topics: vec![OffsetCommitRequestTopic {
            name: if version < 10 { "read" } else { "" }.to_owned(),
            topic_id: if version < 10 { Uuid::default() } else { id },
            partitions: vec![OffsetCommitRequestPartition {
                committed_offset: i64::from(version),
                ..Default::default()
            }],
        }],
        ..Default::default()
    }
}

fn fetch_request(group: &str, version: i16, id: Uuid) -> OffsetFetchRequest {
    let plain = OffsetFetchRequestTopic {
        name: "read".to_owned(),
        partition_indexes: vec![0],
    };
    let grouped = OffsetFetchRequestTopics {
        name: if version < 10 { "read" } else { "" }.to_owned(),
        topic_id: if version < 10 { Uuid::default() } else { id },
        partition_indexes: vec![0],
    };
    match version {
        ..=7 => OffsetFetchRequest {
            group_id: group.to_owned(),
            topics: Some(vec![plain]),
            ..Default::default()
        },
        _ => OffsetFetchRequest {
            groups: vec![OffsetFetchRequestGroup {
                group_id: group.to_owned(),
                topics: Some(vec![grouped]),
                ..Default::default()
            }],
            ..Default::default()
        },
    }
}

async fn listed_and_described(sweep: &mut Sweep, version: i16, group: &str) {
    let answer = sweep.near(version, ListGroupsRequest::default()).await;
    let found = answer.groups.iter().find(|found| found.group_id == group);
    let found = found.map(|found| &*found.protocol_type);
    assert_eq!(found, Some("consumer"), "version {version}");
    let describe = DescribeGroupsRequest {
        groups: vec![group.to_owned(), "missing".to_owned()],
        include_authorized_operations: version >= 3,
    };
    let answer = sweep.near(version, describe).await;
    let found = &answer.groups[0];
    assert_eq!(found.group_state, "Stable", "version {version}");
    assert_eq!(found.members[0].member_assignment, &b"all"[..]);
    let operations = if version >= 3 {
        GROUP_OPERATIONS
    } else {
        i32::MIN
    };
    assert_eq!(found.authorized_operations, operations);
    assert_eq!(answer.groups[1].group_state, "Dead", "version {version}");
}

async fn left(sweep: &mut Sweep, version: i16, group: &str, member_id: String) {
    let leave = if version < 3 {
        LeaveGroupRequest {
            group_id: group.to_owned(),
            member_id,
            ..Default::default()
        }
    } else {
        LeaveGroupRequest {
            group_id: group.to_owned(),
            members: vec![MemberIdentity {
                member_id,
                ..Default::default()
            }],
            ..Default::default()
        }
    };
    let answer = sweep.near(version, leave).await;
    assert_eq!(answer.error_code, ErrorCode::NONE, "version {version}");
    let mut each = answer.members.iter().map(|member| member.error_code);
    assert!(each.all(ErrorCode::is_ok));
}

/// Of the consumer protocol: a member joins, keeps alive, is described and leaves.
pub(super) async fn sweep_consumer_protocol(sweep: &mut Sweep) {
    for version in 0..=1 {
        let group = format!("c{version}");
        let beat = |member_epoch, topics: Option<&str>| ConsumerGroupHeartbeatRequest {
            group_id: group.clone(),
            member_id: "member".to_owned(),
            member_epoch,
            rebalance_timeout_ms: if topics.is_some() { 10_000 } else { -1 },
            subscribed_topic_names: topics.map(|topic| vec![topic.to_owned()]),
            topic_partitions: topics.map(|_| Vec::new()),
            ..Default::default()
        };
        let joined = sweep.near(version, beat(0, Some("read"))).await;
        assert_eq!(joined.error_code, ErrorCode::NONE, "version {version}");
        let assigned = joined.assignment.expect("all that there is");
        assert_eq!(assigned.topic_partitions[0].partitions, [0]);
        let alive = sweep.near(version, beat(joined.member_epoch, None)).await;
        assert_eq!(alive.error_code, ErrorCode::NONE, "version {version}");
        for operations in [GROUP_OPERATIONS, i32::MIN] {
            let describe = ConsumerGroupDescribeRequest {
                group_ids: vec![group.clone()],
                include_authorized_operations: operations == GROUP_OPERATIONS,
            };
            let answer = sweep.near(version, describe).await;
            let found = &answer.groups[0];
            assert_eq!(found.error_code, ErrorCode::NONE, "version {version}");
            assert_eq!(found.members[0].member_id, "member");
            assert_eq!(found.authorized_operations, operations);
        }
        let left = sweep.near(version, beat(-1, None)).await;
        assert_eq!(left.member_epoch, -1, "version {version}");
    }
}
