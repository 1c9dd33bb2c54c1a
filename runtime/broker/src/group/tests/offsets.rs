//! Committing and fetching offsets without transactions.
//!
//! Invariants: see the names of the tests.
//! Never: waits for real time.

use std::sync::Arc;
use std::time::Duration;

use millstream_log::storage::{Fault, OperationKind, Unsynced};
use millstream_log::{FaultyStorage, MemoryStorage};
use millstream_protocol::messages::offset_fetch::OffsetFetchRequestTopic;
use millstream_protocol::messages::*;
use millstream_protocol::{ErrorCode, Uuid};

use super::*;
use crate::tests::harness::{Client, broker, config, open};
use crate::{Broker, BrokerConfig, Placement};

#[tokio::test(start_paused = true)]
async fn an_offset_is_fetched_as_it_was_committed_in_every_version() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let topic_id = client.create_topic("orders", 4).await;
    for (version, offset) in (2..=10).zip(100..) {
        let mut request = commit_request(&Member::none(), &[("orders", 1, offset)]);
        if version < 6 {
            request.topics[0].partitions[0].committed_leader_epoch = -1;
        }
        if version >= 10 {
            request.topics[0].name = String::new();
            request.topics[0].topic_id = topic_id;
        }
        let answer = client.ask(version, request).await;
        assert_eq!(
            answer.topics[0].partitions[0].error_code,
            ErrorCode::NONE,
            "{version}"
        );
        let fetched = fetch_answer(&mut client, 1, false).await;
        assert_eq!(fetched.committed_offset, offset);
        assert_eq!(
            fetched.committed_leader_epoch,
            if version < 6 { -1 } else { 3 }
        );
        assert_eq!(fetched.metadata, Some(format!("at {offset}")));
    }
    for version in 1..=7 {
        let request = OffsetFetchRequest {
            group_id: GROUP.to_owned(),
            topics: Some(vec![OffsetFetchRequestTopic {
                name: "orders".to_owned(),
                partition_indexes: vec![1, 2],
            }]),
            ..Default::default()
        };
        let answer = client.ask(version, request).await;
        let partitions = &answer.topics[0].partitions;
        assert_eq!(
            (
                partitions[0].committed_offset,
                partitions[1].committed_offset
            ),
            (108, -1)
        );
    }
    let mut by_id = fetch_request(false, Some(&[("", &[1])]));
    for (topic_id, expected) in [
        (topic_id, Ok(108)),
        (Uuid([1; 16]), Err(ErrorCode::UNKNOWN_TOPIC_ID)),
    ] {
        let group = &mut by_id.groups[0];
        group.topics.as_mut().expect("topics")[0].topic_id = topic_id;
        let answer = client.ask(10, by_id.clone()).await;
        let partition = &answer.groups[0].topics[0].partitions[0];
        match expected {
            Ok(offset) => assert_eq!(partition.committed_offset, offset),
            Err(error) => assert_eq!(partition.error_code, error),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn all_offsets_of_a_group_are_listed_for_who_names_no_topic() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 4).await;
    client.create_topic("customers", 1).await;
    let offsets = [("orders", 3, 7), ("orders", 0, 5), ("customers", 0, 1)];
    client
        .ask(9, commit_request(&Member::none(), &offsets))
        .await;
    let answer = client.ask(9, fetch_request(false, None)).await;
    let mut found = Vec::new();
    for topic in &answer.groups[0].topics {
        for partition in &topic.partitions {
            found.push((
                &*topic.name,
                partition.partition_index,
                partition.committed_offset,
            ));
        }
    }
    assert_eq!(
        found,
        [("customers", 0, 1), ("orders", 0, 5), ("orders", 3, 7)]
    );
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_committed_is_answered_by_partition_and_the_rest_is_committed() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 2).await;
    let none = Member::none();
    let offsets = [
        ("orders", 0, 5),
        ("orders", 9, 5),
        ("nowhere", 0, 5),
        ("orders", 1, 5),
    ];
    let mut request = commit_request(&none, &offsets);
    request.topics[3].partitions[0].committed_metadata = Some("x".repeat(4_097));
    let answer = client.ask(9, request).await;
    let errors: Vec<ErrorCode> = answer
        .topics
        .iter()
        .map(|topic| topic.partitions[0].error_code)
        .collect();
    assert_eq!(
        errors,
        [
            ErrorCode::NONE,
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode::OFFSET_METADATA_TOO_LARGE
        ]
    );
    assert_eq!(committed(&mut client, 0).await, 5);
    assert_eq!(committed(&mut client, 1).await, -1);
    let largest = "é".repeat(4_096);
    let mut request = commit_request(&none, &[("orders", 1, 6)]);
    request.topics[0].partitions[0].committed_metadata = Some(largest.clone());
    client.ask(9, request).await;
    let fetched = fetch_answer(&mut client, 1, false).await;
    assert_eq!(fetched.metadata, Some(largest));
}

#[tokio::test(start_paused = true)]
async fn g1_a_commit_while_the_assignment_is_awaited_has_to_join_again() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let member = join_alone(&mut client, Some("i-1")).await;
    assert_eq!(commit(&mut client, &member, 0, 5).await, ErrorCode::NONE);
    let again = JoinGroupRequest {
        protocols: vec![],
        ..join_request(&member.member_id, Some("i-1"))
    };
    let refused = client.ask(9, again).await;
    assert_eq!(refused.error_code, ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
    let joined = client
        .ask(9, join_request(&member.member_id, Some("i-1")))
        .await;
    let member = Member {
        generation: joined.generation_id,
        ..member
    };
    let busy = commit(&mut client, &member, 0, 6).await;
    assert_eq!(busy, ErrorCode::REBALANCE_IN_PROGRESS);
    assert_eq!(committed(&mut client, 0).await, 5);
}

#[tokio::test(start_paused = true)]
async fn f3_a_commit_of_a_zombie_changes_nothing() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let missing = Member {
        generation: 3,
        ..Member::none()
    };
    let answer = commit(&mut client, &missing, 0, 4).await;
    assert_eq!(answer, ErrorCode::GROUP_ID_NOT_FOUND);
    let older = client
        .ask(8, commit_request(&missing, &[("orders", 0, 4)]))
        .await;
    let older = older.topics[0].partitions[0].error_code;
    assert_eq!(older, ErrorCode::ILLEGAL_GENERATION);

    let before = join_alone(&mut client, Some("i-1")).await;
    assert_eq!(commit(&mut client, &before, 0, 5).await, ErrorCode::NONE);
    let old_generation = Member {
        generation: before.generation - 1,
        ..before.clone()
    };
    let stranger = Member {
        member_id: "nobody".to_owned(),
        instance: None,
        ..before.clone()
    };
    let joined = client.ask(9, join_request("", Some("i-1"))).await;
    assert_eq!(joined.generation_id, before.generation);
    let now = Member {
        member_id: joined.member_id,
        ..before.clone()
    };
    for (zombie, error) in [
        (&before, ErrorCode::FENCED_INSTANCE_ID),
        (&stranger, ErrorCode::UNKNOWN_MEMBER_ID),
        (&Member::none(), ErrorCode::UNKNOWN_MEMBER_ID),
        (
            &Member {
                member_id: now.member_id.clone(),
                ..old_generation.clone()
            },
            ErrorCode::ILLEGAL_GENERATION,
        ),
    ] {
        assert_eq!(commit(&mut client, zombie, 0, 9).await, error);
    }
    assert_eq!(committed(&mut client, 0).await, 5);
    assert_eq!(commit(&mut client, &now, 0, 6).await, ErrorCode::NONE);
}

#[tokio::test(start_paused = true)]
async fn a_commit_is_answered_and_shown_after_its_sync_and_survives_a_crash() {
    let storage = MemoryStorage::new();
    let delay = Duration::from_millis(10);
    let slow = BrokerConfig {
        placement: Placement::Runtime { sync_delay: delay },
        ..config()
    };
    let broker = Broker::open(Arc::new(storage.clone()), slow)
        .await
        .expect("opens");
    let (mut writer, mut reader) = (Client::connect(&broker), Client::connect(&broker));
    writer.create_topic("orders", 1).await;
    let started = tokio::time::Instant::now();
    writer
        .send(9, &commit_request(&Member::none(), &[("orders", 0, 5)]))
        .await;
    let request = fetch_request(true, Some(&[("orders", &[0])]));
    tokio::time::sleep(Duration::from_millis(1)).await;
    reader.send(9, &request).await;
    tokio::time::sleep(Duration::from_millis(4)).await;
    assert!(
        !writer.has_answer() && !reader.has_answer(),
        "not durable yet"
    );
    let answer = writer.receive::<OffsetCommitRequest>(9).await;
    assert!(answer.topics[0].partitions[0].error_code.is_ok());
    assert_eq!(started.elapsed(), delay);
    let fetched = reader.receive::<OffsetFetchRequest>(9).await;
    assert_eq!(
        fetched.groups[0].topics[0].partitions[0].committed_offset,
        5
    );
    broker.halt();
    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    let fetched = fetch_answer(&mut client, 0, true).await;
    assert_eq!(fetched.committed_offset, 5);
    assert_eq!(fetched.metadata.as_deref(), Some("at 5"));
}

#[tokio::test(start_paused = true)]
async fn b12_what_the_log_refuses_is_not_in_memory_either() {
    let storage = FaultyStorage::new();
    let broker = open(storage.clone()).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let before = join_alone(&mut client, Some("i-1")).await;
    assert_eq!(commit(&mut client, &before, 0, 5).await, ErrorCode::NONE);
    let fault = Fault {
        kind: OperationKind::Write,
        path_contains: "__consumer_offsets".to_owned(),
        after: 0,
        error: std::io::ErrorKind::Other,
    };
    storage.inject(fault.clone());
    let refused = commit(&mut client, &before, 0, 9).await;
    assert_eq!(refused, ErrorCode::NOT_COORDINATOR);
    assert_eq!(committed(&mut client, 0).await, 5);

    storage.inject(fault);
    let refused = client.ask(9, join_request("", Some("i-1"))).await;
    assert_eq!(refused.error_code, ErrorCode::NOT_COORDINATOR);
    let still = heartbeat(&mut client, &before).await;
    assert_eq!(
        still,
        ErrorCode::NONE,
        "nobody is fenced by a member that is not stored"
    );
    broker.halt();
    let broker = open(storage.crash_with(Unsynced::Lost)).await;
    let mut client = Client::connect(&broker);
    assert_eq!(committed(&mut client, 0).await, 5);
    assert_eq!(heartbeat(&mut client, &before).await, ErrorCode::NONE);
    assert_eq!(commit(&mut client, &before, 0, 9).await, ErrorCode::NONE);
}

#[tokio::test(start_paused = true)]
async fn after_a_failed_sync_nothing_that_is_not_durable_is_told() {
    let storage = FaultyStorage::new();
    let broker = open(storage.clone()).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    commit(&mut client, &Member::none(), 0, 5).await;
    storage.inject(Fault {
        kind: OperationKind::SyncFile,
        path_contains: "journal".to_owned(),
        after: 0,
        error: std::io::ErrorKind::Other,
    });
    let refused = commit(&mut client, &Member::none(), 0, 9).await;
    assert_eq!(refused, ErrorCode::NOT_COORDINATOR);
    let request = fetch_request(false, Some(&[("orders", &[0])]));
    let answer = client.ask(9, request).await;
    assert_eq!(answer.groups[0].error_code, ErrorCode::NOT_COORDINATOR);
    broker.halt();
    let broker = open(storage.crash_with(Unsynced::Lost)).await;
    assert_eq!(committed(&mut Client::connect(&broker), 0).await, 5);
}

#[tokio::test(start_paused = true)]
async fn a_commit_is_a_sign_of_life() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let member = join_alone(&mut client, None).await;
    for offset in 0..5 {
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert_eq!(
            commit(&mut client, &member, 0, offset).await,
            ErrorCode::NONE
        );
    }
    tokio::time::sleep(Duration::from_secs(11)).await;
    let gone = commit(&mut client, &member, 0, 9).await;
    assert_eq!(gone, ErrorCode::UNKNOWN_MEMBER_ID);
}

#[tokio::test(start_paused = true)]
async fn deleting_a_group_or_a_topic_deletes_offsets_for_good() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    commit(&mut client, &Member::none(), 0, 5).await;
    let listed = client.ask(5, ListGroupsRequest::default()).await;
    assert_eq!(
        listed.groups.len(),
        1,
        "a group that only stores offsets is a group"
    );
    let delete = DeleteTopicsRequest {
        topic_names: vec!["orders".to_owned()],
        timeout_ms: 1_000,
        ..Default::default()
    };
    let deleted = client.ask(5, delete).await;
    assert!(deleted.responses[0].error_code.is_ok());
    client.create_topic("orders", 1).await;
    assert_eq!(
        committed(&mut client, 0).await,
        -1,
        "it belonged to another topic"
    );

    commit(&mut client, &Member::none(), 0, 7).await;
    let delete = DeleteGroupsRequest {
        groups_names: vec![GROUP.to_owned()],
    };
    let deleted = client.ask(2, delete).await;
    assert_eq!(deleted.results[0].error_code, ErrorCode::NONE);
    assert_eq!(committed(&mut client, 0).await, -1);
    broker.halt();
    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    assert_eq!(committed(&mut client, 0).await, -1);
    let listed = client.ask(5, ListGroupsRequest::default()).await;
    assert!(listed.groups.is_empty());
}

#[tokio::test(start_paused = true)]
async fn offsets_expire_when_the_group_is_empty_for_the_retention_time() {
    let retention = BrokerConfig {
        offsets_retention_ms: 60_000,
        offsets_retention_check_interval_ms: 1_000,
        ..config()
    };
    let broker = Broker::open(Arc::new(MemoryStorage::new()), retention)
        .await
        .expect("opens");
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let member = join_alone(&mut client, None).await;
    commit(&mut client, &member, 0, 5).await;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert_eq!(heartbeat(&mut client, &member).await, ErrorCode::NONE);
    }
    assert_eq!(
        committed(&mut client, 0).await,
        5,
        "three minutes old, and in use"
    );
    tokio::time::sleep(Duration::from_secs(68)).await;
    assert_eq!(
        committed(&mut client, 0).await,
        5,
        "empty for less than a minute"
    );
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(committed(&mut client, 0).await, -1);
}

#[tokio::test(start_paused = true)]
async fn a_group_with_more_offsets_than_a_batch_holds_is_deleted() {
    let storage = MemoryStorage::new();
    let small = BrokerConfig {
        message_max_bytes: 100_000,
        ..config()
    };
    let opened = Broker::open(Arc::new(storage.clone()), small).await;
    let broker = opened.expect("opens");
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1_500).await;
    for first in [0, 500, 1_000] {
        let partitions = first..first + 500;
        let mut request = commit_request(&Member::none(), &[("orders", 0, 7)]);
        let topic = &mut request.topics[0];
        let one = topic.partitions[0].clone();
        let many = partitions.map(|partition_index| OffsetCommitRequestPartition {
            partition_index,
            ..one.clone()
        });
        topic.partitions = many.collect();
        let answer = client.ask(9, request).await;
        assert_eq!(answer.topics[0].partitions[499].error_code, ErrorCode::NONE);
    }
    let delete = DeleteGroupsRequest {
        groups_names: vec![GROUP.to_owned()],
    };
    let answer = client.ask(2, delete).await;
    assert_eq!(answer.results[0].error_code, ErrorCode::NONE);
    broker.halt();
    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    let everything = client.ask(9, fetch_request(false, None)).await;
    assert!(everything.groups[0].topics.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_offset_of_a_deleted_topic_is_not_told_for_its_successor() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let nobody = Member::none();
    assert_eq!(commit(&mut client, &nobody, 0, 7).await, ErrorCode::NONE);
    // The process ends between the topic's deletion and the tombstones of its offsets.
    let directory = broker.node().directory.clone();
    directory.delete_topic("orders").expect("deleted");
    broker.halt();
    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    assert_eq!(committed(&mut client, 0).await, -1);
    let everything = client.ask(9, fetch_request(false, None)).await;
    let told: Vec<_> = everything.groups[0].topics.iter().collect();
    assert!(told.iter().all(|topic| topic.partitions.is_empty()));
}
