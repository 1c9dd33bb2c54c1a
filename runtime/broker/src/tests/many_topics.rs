//! Many topics in one request: they come, grow and go together, and each is answered for itself.
//!
//! Invariants: see the names of the tests.
//! Never: measures time.

use super::harness::*;
use crate::Broker;
use millstream_log::storage::{Fault, OperationKind};
use millstream_log::{FaultyStorage, Storage};
use millstream_protocol::messages::create_partitions::CreatePartitionsTopic;
use millstream_protocol::messages::create_topics::CreatableTopic;
use millstream_protocol::messages::delete_topics::DeleteTopicState;
use millstream_protocol::messages::metadata::MetadataRequestTopic;
use millstream_protocol::messages::*;
use millstream_protocol::{ErrorCode, Uuid};
use std::path::Path;

const TOPICS: usize = 100;

fn names() -> Vec<String> {
    (0..TOPICS).map(|number| format!("t{number}")).collect()
}

fn syncs(storage: &FaultyStorage) -> usize {
    storage.count_of(OperationKind::SyncFile) + storage.count_of(OperationKind::SyncDirectory)
}

async fn create(client: &mut Client, names: &[String]) -> Vec<ErrorCode> {
    let topics = names.iter().map(|name| CreatableTopic {
        name: name.clone(),
        num_partitions: 2,
        replication_factor: -1,
        ..Default::default()
    });
    let request = CreateTopicsRequest {
        topics: topics.collect(),
        ..Default::default()
    };
    let answer = client.ask(7, request).await;
    let told = answer.topics.iter().map(|topic| &topic.name);
    assert!(told.eq(names));
    let topics = answer.topics.into_iter();
    topics.map(|topic| topic.error_code).collect()
}

fn named(name: &str) -> DeleteTopicState {
    DeleteTopicState {
        name: Some(name.to_owned()),
        topic_id: Uuid::ZERO,
    }
}

async fn delete(client: &mut Client, topics: Vec<DeleteTopicState>) -> Vec<ErrorCode> {
    let request = DeleteTopicsRequest {
        topics,
        ..Default::default()
    };
    let answer = client.ask(6, request).await.responses.into_iter();
    answer.map(|topic| topic.error_code).collect()
}

async fn describe(client: &mut Client, names: &[String]) -> Vec<(ErrorCode, usize)> {
    let topics = names.iter().map(|name| MetadataRequestTopic {
        name: Some(name.clone()),
        ..Default::default()
    });
    let request = MetadataRequest {
        topics: Some(topics.collect()),
        allow_auto_topic_creation: true,
        ..Default::default()
    };
    let topics = client.ask(12, request).await.topics.into_iter();
    topics
        .map(|topic| (topic.error_code, topic.partitions.len()))
        .collect()
}

async fn begin() -> (FaultyStorage, Broker, Client) {
    let storage = FaultyStorage::new();
    let broker = open(storage.clone()).await;
    let client = Client::connect(&broker);
    (storage, broker, client)
}

#[tokio::test(start_paused = true)]
async fn a_request_for_a_hundred_topics_takes_as_many_syncs_as_one_for_a_single_one() {
    let (storage, _broker, mut client) = begin().await;
    let start = syncs(&storage);
    assert_eq!(
        create(&mut client, &["single".to_owned()]).await,
        [ErrorCode::NONE]
    );
    let single = syncs(&storage) - start;
    assert_eq!(single, 2, "the catalogue, and its name");

    let before = syncs(&storage);
    assert_eq!(
        create(&mut client, &names()).await,
        [ErrorCode::NONE; TOPICS]
    );
    assert_eq!(syncs(&storage) - before, single, "creation");

    let before = syncs(&storage);
    let topics = names().into_iter().map(|name| CreatePartitionsTopic {
        name,
        count: 3,
        assignments: None,
    });
    let request = CreatePartitionsRequest {
        topics: topics.collect(),
        ..Default::default()
    };
    let grown = client.ask(3, request).await.results;
    assert!(grown.iter().all(|topic| topic.error_code.is_ok()));
    assert_eq!(syncs(&storage) - before, single, "growth");
    let told = describe(&mut client, &names()).await;
    assert_eq!(told, [(ErrorCode::NONE, 3); TOPICS]);

    let before = syncs(&storage);
    let topics = names().iter().map(|name| named(name)).collect();
    assert_eq!(delete(&mut client, topics).await, [ErrorCode::NONE; TOPICS]);
    // One more where the removal of files has begun by now.
    assert!(syncs(&storage) - before <= single + 1, "deletion");

    let before = syncs(&storage);
    let on_first_use = describe(&mut client, &names()).await;
    assert_eq!(on_first_use, [(ErrorCode::NONE, 1); TOPICS]);
    assert!(syncs(&storage) - before <= single + 1, "on first use");
}

#[tokio::test(start_paused = true)]
async fn the_files_of_deleted_topics_are_removed_without_a_restart() {
    let (storage, _broker, mut client) = begin().await;
    create(&mut client, &names()).await;
    let topics = names().iter().map(|name| named(name)).collect();
    delete(&mut client, topics).await;
    // The broker is idle when time moves.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let left = storage.list(Path::new("")).expect("listed");
    assert!(!left.iter().any(|name| name.contains('~')), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn when_the_catalogue_cannot_be_stored_none_of_the_topics_is_there() {
    let (storage, _broker, mut client) = begin().await;
    let asked = ["a", "a b", "c"].map(str::to_owned);
    storage.inject(Fault {
        kind: OperationKind::Write,
        path_contains: "catalogue".to_owned(),
        after: 0,
        error: std::io::ErrorKind::Other,
    });
    let failed = ErrorCode::KAFKA_STORAGE_ERROR;
    let illegal = ErrorCode::INVALID_TOPIC_EXCEPTION;
    assert_eq!(create(&mut client, &asked).await, [failed, illegal, failed]);
    let none = ErrorCode::NONE;
    assert_eq!(create(&mut client, &asked).await, [none, illegal, none]);
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_is_named_twice_is_not_deleted() {
    let (_storage, _broker, mut client) = begin().await;
    let a = client.create_topic("a", 1).await;
    let b = client.create_topic("b", 1).await;
    client.create_topic("c", 1).await;
    let by_id = |topic_id| DeleteTopicState {
        name: None,
        topic_id,
    };
    let twice = ErrorCode::INVALID_REQUEST;
    let topics = vec![named("a"), named("c"), by_id(a), by_id(b), by_id(b)];
    let answered = delete(&mut client, topics).await;
    assert_eq!(answered, [twice, ErrorCode::NONE, twice]);
    // By name and by id, and more often than twice.
    let topics = vec![by_id(a), by_id(a), named("a"), by_id(a)];
    assert_eq!(delete(&mut client, topics).await, [twice, twice]);
    let topics = vec![named("a"), named("b"), named("a"), by_id(a), by_id(b)];
    assert_eq!(delete(&mut client, topics).await, [twice, twice, twice]);
    let neither = vec![by_id(Uuid::ZERO), by_id(Uuid::ZERO)];
    assert_eq!(delete(&mut client, neither).await, [twice, twice]);
    let topics = vec![named("b"), named("a"), named("b"), named("c"), named("c")];
    assert_eq!(
        delete(&mut client, topics).await,
        [twice, ErrorCode::NONE, twice]
    );
    let both = vec![DeleteTopicState {
        topic_id: b,
        ..named("b")
    }];
    assert_eq!(delete(&mut client, both).await, [twice]);
    assert_eq!(delete(&mut client, vec![by_id(b)]).await, [ErrorCode::NONE]);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_by_id_that_waits_leaves_a_later_topic_of_that_name_alone() {
    let (_storage, broker, mut client) = begin().await;
    let first = client.create_topic("a", 1).await;
    // Requests that have found their topics, and then wait for each other.
    let node = broker.node();
    let delete = |id| node.delete_topics(vec![("a".to_owned(), id)]);
    let (one, other) = tokio::join!(delete(Some(first)), delete(Some(first)));
    assert_eq!(
        (one, other),
        (vec![Ok(())], vec![Err(ErrorCode::UNKNOWN_TOPIC_ID)])
    );
    let unknown = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
    assert_eq!(delete(None).await, [Err(unknown)]);
    let second = client.create_topic("a", 1).await;
    let late = delete(Some(first)).await;
    assert_eq!(late, [Err(ErrorCode::UNKNOWN_TOPIC_ID)]);
    assert_eq!(delete(Some(second)).await, [Ok(())]);
}

#[tokio::test(start_paused = true)]
async fn a_request_for_too_many_partitions_creates_none() {
    let (_storage, broker, mut client) = begin().await;
    let topic = |name: &str, num_partitions| CreatableTopic {
        name: name.to_owned(),
        num_partitions,
        replication_factor: -1,
        ..Default::default()
    };
    let request = CreateTopicsRequest {
        topics: vec![topic("a", 9_999), topic("b", -1), topic("c", 1)],
        validate_only: true,
        ..Default::default()
    };
    let answer = client.ask(7, request.clone()).await.topics;
    assert_eq!(answer.len(), 3);
    for topic in answer {
        assert_eq!(topic.error_code, ErrorCode::POLICY_VIOLATION);
        let message = topic.error_message.unwrap_or_default();
        assert_eq!(
            message,
            "Excessively large number of partitions per request."
        );
    }
    let fewer = CreateTopicsRequest {
        topics: request.topics[..2].to_vec(),
        ..request
    };
    let answer = client.ask(7, fewer).await.topics;
    assert!(answer.iter().all(|topic| topic.error_code.is_ok()));
    assert!(broker.node().partitions.topic("a").is_none());
}

#[tokio::test(start_paused = true)]
async fn metadata_creates_no_more_at_once_than_a_request_may() {
    let config = crate::BrokerConfig {
        num_partitions: 6_000,
        ..config()
    };
    let storage = std::sync::Arc::new(FaultyStorage::new());
    let broker = Broker::open(storage, config).await.expect("opens");
    let mut client = Client::connect(&broker);
    let asked = ["a", "b"].map(str::to_owned);
    let later = (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, 0);
    let whole = (ErrorCode::NONE, 6_000);
    assert_eq!(describe(&mut client, &asked).await, [whole, later]);
    assert_eq!(describe(&mut client, &asked).await, [whole, whole]);
}

#[tokio::test(start_paused = true)]
async fn what_a_creation_that_failed_leaves_is_removed_without_a_restart() {
    let (storage, _broker, mut client) = begin().await;
    storage.inject(Fault {
        kind: OperationKind::Write,
        path_contains: "b-1/".to_owned(),
        after: 0,
        error: std::io::ErrorKind::Other,
    });
    let asked = ["a", "b"].map(str::to_owned);
    let failed = ErrorCode::KAFKA_STORAGE_ERROR;
    let created = create(&mut client, &asked).await;
    assert_eq!(created, [ErrorCode::NONE, failed]);
    // The broker is idle when time moves.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let left = storage.list(Path::new("")).expect("listed");
    let left = left
        .iter()
        .filter(|name| name.contains('~') || name.starts_with("b-"));
    assert_eq!(left.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn deletions_by_id_and_by_name_that_wait_say_what_is_not_there_any_more() {
    let (_storage, broker, mut client) = begin().await;
    let topic_id = client.create_topic("a", 1).await;
    let by_id = DeleteTopicState {
        name: None,
        topic_id,
    };
    let held = broker.node().partitions.lock_changes().await;
    let mut clients = Vec::new();
    for topic in [by_id.clone(), by_id, named("a")] {
        let request = DeleteTopicsRequest {
            topics: vec![topic],
            ..Default::default()
        };
        let mut client = Client::connect(&broker);
        client.send(6, &request).await;
        clients.push(client);
        // The broker is idle when time moves: the request waits.
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    drop(held);
    let mut codes = Vec::new();
    for client in &mut clients {
        let answer = client.receive::<DeleteTopicsRequest>(6).await;
        codes.push(answer.responses[0].error_code);
    }
    let unknown_name = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
    let expected = [ErrorCode::NONE, ErrorCode::UNKNOWN_TOPIC_ID, unknown_name];
    assert_eq!(codes, expected);
}

#[tokio::test(start_paused = true)]
async fn names_that_collide_are_refused_by_the_validation_as_by_the_creation() {
    let (_storage, _broker, mut client) = begin().await;
    client.create_topic("a.b", 1).await;
    let names = ["a_b", "c_d", "c.d", "c-d", "a.b"];
    let topic = |name: &str| CreatableTopic {
        name: name.to_owned(),
        num_partitions: 1,
        replication_factor: -1,
        ..Default::default()
    };
    let (fine, collides) = (ErrorCode::NONE, ErrorCode::INVALID_TOPIC_EXCEPTION);
    let exists = ErrorCode::TOPIC_ALREADY_EXISTS;
    for validate_only in [true, true, false] {
        let request = CreateTopicsRequest {
            topics: names.map(topic).to_vec(),
            validate_only,
            ..Default::default()
        };
        let answer = client.ask(7, request).await.topics;
        let codes: Vec<_> = answer.iter().map(|topic| topic.error_code).collect();
        assert_eq!(codes, [collides, fine, collides, fine, exists]);
    }
}

#[tokio::test(start_paused = true)]
async fn metadata_of_topics_that_are_there_waits_for_no_change_of_topics() {
    let (_storage, broker, mut client) = begin().await;
    client.create_topic("a", 2).await;
    let _changing = broker.node().partitions.lock_changes().await;
    let asked = ["a".to_owned()];
    let told = describe(&mut client, &asked);
    let told = tokio::time::timeout(std::time::Duration::from_secs(1), told).await;
    assert_eq!(told.expect("answered at once"), [(ErrorCode::NONE, 2)]);
}
