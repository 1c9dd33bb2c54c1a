//! CreatePartitions: topics grow while they are in use.
//!
//! Invariants: see the names of the tests.
//! Never: looks into the directory.

use super::harness::*;
use millstream_log::MemoryStorage;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::create_partitions::{
    CreatePartitionsAssignment, CreatePartitionsTopic,
};
use millstream_protocol::messages::*;

fn topic(name: &str, count: i32, assigned: Option<&[&[i32]]>) -> CreatePartitionsTopic {
    let assignments = assigned.map(|assigned| {
        let brokers = assigned.iter().map(|brokers| brokers.to_vec());
        let assignment = |broker_ids| CreatePartitionsAssignment { broker_ids };
        brokers.map(assignment).collect()
    });
    CreatePartitionsTopic {
        name: name.to_owned(),
        count,
        assignments,
    }
}

async fn grow(
    client: &mut Client,
    topics: Vec<CreatePartitionsTopic>,
    validate_only: bool,
) -> Vec<ErrorCode> {
    let request = CreatePartitionsRequest {
        topics,
        timeout_ms: 1_000,
        validate_only,
    };
    let results = client.ask(3, request).await.results;
    for result in &results {
        assert_eq!(result.error_message.is_some(), !result.error_code.is_ok());
    }
    results.iter().map(|result| result.error_code).collect()
}

async fn count(client: &mut Client, name: &str) -> usize {
    let request = MetadataRequest {
        topics: None,
        ..Default::default()
    };
    let topics = client.ask(12, request).await.topics;
    let found = topics
        .iter()
        .find(|topic| topic.name.as_deref() == Some(name));
    found.expect("is there").partitions.len()
}

#[tokio::test(start_paused = true)]
async fn a_topic_grows_while_readers_wait_and_writers_write() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let (mut client, mut reader) = (Client::connect(&broker), Client::connect(&broker));
    client.create_topic("orders", 1).await;
    let missing = client.produce("orders", 2, batch(&["x"])).await;
    assert_eq!(missing.error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    reader
        .send(12, &fetch_request("orders", 0, 0, 60_000))
        .await;
    tokio::task::yield_now().await;
    let more = || vec![topic("orders", 3, None)];
    assert_eq!(grow(&mut client, more(), true).await, [ErrorCode::NONE]);
    assert_eq!(count(&mut client, "orders").await, 1, "validated only");
    assert_eq!(grow(&mut client, more(), false).await, [ErrorCode::NONE]);
    assert_eq!(count(&mut client, "orders").await, 3);
    assert!(!reader.has_answer());
    client.produce("orders", 0, batch(&["a"])).await;
    let answer = reader.receive::<FetchRequest>(12).await;
    assert_eq!(
        values(&answer.responses[0].partitions[0]),
        [(0, "a".to_owned())]
    );
    let written = client.produce("orders", 2, batch(&["b"])).await;
    assert_eq!(written.error_code, ErrorCode::NONE);
    broker.halt();

    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    assert_eq!(count(&mut client, "orders").await, 3);
    let read = client.fetch("orders", 2, 0, 0).await;
    assert_eq!(values(&read), [(0, "b".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_grow_is_refused_each_with_its_reason() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 2).await;
    for (asked, code) in [
        (topic("orders", 2, None), ErrorCode::INVALID_PARTITIONS),
        (topic("orders", 1, None), ErrorCode::INVALID_PARTITIONS),
        (topic("orders", -1, None), ErrorCode::INVALID_PARTITIONS),
        (
            topic("orders", i32::MAX, None),
            ErrorCode::INVALID_PARTITIONS,
        ),
        (
            topic("nowhere", 3, None),
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        ),
        (
            topic("__consumer_offsets", 9, None),
            ErrorCode::INVALID_TOPIC_EXCEPTION,
        ),
        (
            topic("orders", 4, Some(&[&[1]])),
            ErrorCode::INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            topic("orders", 3, Some(&[&[2]])),
            ErrorCode::INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            topic("orders", 3, Some(&[&[1, 1]])),
            ErrorCode::INVALID_REPLICA_ASSIGNMENT,
        ),
    ] {
        let refused = grow(&mut client, vec![asked.clone()], false).await;
        assert_eq!(refused, [code], "{asked:?}");
    }
    let twice = vec![topic("orders", 3, None), topic("orders", 4, None)];
    let refused = grow(&mut client, twice, false).await;
    assert_eq!(refused, [ErrorCode::INVALID_REQUEST]);
    assert_eq!(count(&mut client, "orders").await, 2);
    let assigned = vec![topic("orders", 4, Some(&[&[1], &[1]]))];
    assert_eq!(grow(&mut client, assigned, false).await, [ErrorCode::NONE]);
    assert_eq!(count(&mut client, "orders").await, 4);
}
