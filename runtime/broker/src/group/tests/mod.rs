//! Groups as clients see them: requests over `serve`, across crashes too.
//!
//! Invariants: time is virtual; nothing here sleeps for real.
//! Never: calls the coordinator; every request goes through frames.

mod compaction;
mod consumer;
mod deleted_topics;
mod deletion;
mod load;
mod membership;
mod offsets;
mod retention;
mod transactions;

use bytes::Bytes;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::join_group::JoinGroupRequestProtocol;
use millstream_protocol::messages::offset_commit::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use millstream_protocol::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics, OffsetFetchResponsePartitions,
};
use millstream_protocol::messages::sync_group::SyncGroupRequestAssignment;
use millstream_protocol::messages::*;

use super::subscription::subscription;
use crate::tests::harness::Client;

/// The group of most tests.
const GROUP: &str = "orders-enrichment";
const SESSION_MS: i32 = 10_000;

/// Who a test speaks for.
#[derive(Clone, Debug, Default)]
struct Member {
    member_id: String,
    instance: Option<String>,
    generation: i32,
}

impl Member {
    /// Speaks for nobody.
    fn none() -> Self {
        Member {
            generation: -1,
            ..Member::default()
        }
    }
}

fn join_request(member_id: &str, instance: Option<&str>) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: GROUP.to_owned(),
        session_timeout_ms: SESSION_MS,
        rebalance_timeout_ms: 60_000,
        member_id: member_id.to_owned(),
        group_instance_id: instance.map(str::to_owned),
        protocol_type: "consumer".to_owned(),
        protocols: vec![JoinGroupRequestProtocol {
            name: "range".to_owned(),
            metadata: subscription(&["orders"], b""),
        }],
        ..Default::default()
    }
}

fn sync_request(member: &Member, assignments: &[(&str, &str)]) -> SyncGroupRequest {
    let assignments = assignments
        .iter()
        .map(|(member_id, part)| SyncGroupRequestAssignment {
            member_id: (*member_id).to_owned(),
            assignment: Bytes::copy_from_slice(part.as_bytes()),
        });
    SyncGroupRequest {
        group_id: GROUP.to_owned(),
        generation_id: member.generation,
        member_id: member.member_id.clone(),
        group_instance_id: member.instance.clone(),
        protocol_type: Some("consumer".to_owned()),
        protocol_name: Some("range".to_owned()),
        assignments: assignments.collect(),
    }
}

fn heartbeat_request(member: &Member) -> HeartbeatRequest {
    HeartbeatRequest {
        group_id: GROUP.to_owned(),
        generation_id: member.generation,
        member_id: member.member_id.clone(),
        group_instance_id: member.instance.clone(),
    }
}

async fn heartbeat(client: &mut Client, member: &Member) -> ErrorCode {
    client.ask(4, heartbeat_request(member)).await.error_code
}

/// Joins as the only member, and takes everything.
async fn join_alone(client: &mut Client, instance: Option<&str>) -> Member {
    let mut joined = client.ask(9, join_request("", instance)).await;
    if joined.error_code == ErrorCode::MEMBER_ID_REQUIRED {
        let again = join_request(&joined.member_id, instance);
        joined = client.ask(9, again).await;
    }
    assert_eq!(joined.error_code, ErrorCode::NONE);
    let member = Member {
        member_id: joined.member_id,
        instance: instance.map(str::to_owned),
        generation: joined.generation_id,
    };
    let request = sync_request(&member, &[(&member.member_id, "all")]);
    let synced = client.ask(5, request).await;
    assert_eq!(synced.error_code, ErrorCode::NONE);
    member
}

fn commit_request(member: &Member, offsets: &[(&str, i32, i64)]) -> OffsetCommitRequest {
    let topics = offsets
        .iter()
        .map(|(topic, partition, offset)| OffsetCommitRequestTopic {
            name: (*topic).to_owned(),
            partitions: vec![OffsetCommitRequestPartition {
                partition_index: *partition,
                committed_offset: *offset,
                committed_leader_epoch: 3,
                committed_metadata: Some(format!("at {offset}")),
            }],
            ..Default::default()
        });
    OffsetCommitRequest {
        group_id: GROUP.to_owned(),
        generation_id_or_member_epoch: member.generation,
        member_id: member.member_id.clone(),
        group_instance_id: member.instance.clone(),
        topics: topics.collect(),
        ..Default::default()
    }
}

/// Commits one offset of "orders".
async fn commit(client: &mut Client, member: &Member, partition: i32, offset: i64) -> ErrorCode {
    let request = commit_request(member, &[("orders", partition, offset)]);
    let response = client.ask(9, request).await;
    response.topics[0].partitions[0].error_code
}

fn fetch_request(require_stable: bool, topics: Option<&[(&str, &[i32])]>) -> OffsetFetchRequest {
    let topics = topics.map(|topics| {
        let topics = topics
            .iter()
            .map(|(name, partitions)| OffsetFetchRequestTopics {
                name: (*name).to_owned(),
                partition_indexes: partitions.to_vec(),
                ..Default::default()
            });
        topics.collect()
    });
    OffsetFetchRequest {
        groups: vec![OffsetFetchRequestGroup {
            group_id: GROUP.to_owned(),
            topics,
            ..Default::default()
        }],
        require_stable,
        ..Default::default()
    }
}

async fn fetch_answer(
    client: &mut Client,
    partition: i32,
    require_stable: bool,
) -> OffsetFetchResponsePartitions {
    let request = fetch_request(require_stable, Some(&[("orders", &[partition])]));
    let response = client.ask(9, request).await;
    assert_eq!(response.groups[0].error_code, ErrorCode::NONE);
    response.groups[0].topics[0].partitions[0].clone()
}

/// The committed offset of a partition of "orders", -1 if there is none.
async fn committed(client: &mut Client, partition: i32) -> i64 {
    let answer = fetch_answer(client, partition, false).await;
    assert_eq!(answer.error_code, ErrorCode::NONE);
    answer.committed_offset
}

/// The same for a reader that wants it stable.
async fn stable(client: &mut Client, partition: i32) -> Result<i64, ErrorCode> {
    let answer = fetch_answer(client, partition, true).await;
    if answer.error_code.is_ok() {
        Ok(answer.committed_offset)
    } else {
        assert_eq!(answer.committed_offset, -1);
        Err(answer.error_code)
    }
}
