//! What administrators ask: pages of topics, sizes, offsets by time, records and offsets deleted.
//!
//! Invariants: see the names of the tests.
//! Never: looks into the directory.

use super::harness::*;
use crate::Broker;
use bytes::Bytes;
use millstream_log::MemoryStorage;
use millstream_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use millstream_protocol::messages::describe_log_dirs::DescribableLogDirTopic;
use millstream_protocol::messages::describe_topic_partitions::{Cursor, TopicRequest};
use millstream_protocol::messages::elect_leaders::TopicPartitions;
use millstream_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use millstream_protocol::messages::metadata::MetadataRequestTopic;
use millstream_protocol::messages::*;
use millstream_protocol::{
    ApiKey, Compression, ErrorCode, ProducerStamp, RecordBatchBuilder, decode_response,
};
use std::time::Duration;

async fn page(
    client: &mut Client,
    topics: &[&str],
    limit: i32,
    cursor: Option<Cursor>,
) -> DescribeTopicPartitionsResponse {
    let topics = topics.iter().map(|name| TopicRequest {
        name: (*name).to_owned(),
    });
    let request = DescribeTopicPartitionsRequest {
        topics: topics.collect(),
        response_partition_limit: limit,
        cursor,
    };
    client.ask(0, request).await
}

/// Names, errors and partitions of a page.
fn shape(response: &DescribeTopicPartitionsResponse) -> Vec<(String, i16, Vec<i32>)> {
    let topics = response.topics.iter().map(|topic| {
        let numbers = topic
            .partitions
            .iter()
            .map(|partition| partition.partition_index);
        let name = topic.name.clone().unwrap_or_default();
        (name, topic.error_code.code(), numbers.collect())
    });
    topics.collect()
}

#[tokio::test(start_paused = true)]
async fn topics_are_described_page_by_page() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("b", 3).await;
    client.create_topic("a", 2).await;
    let asked = ["b", "nowhere", "a", "a"];
    let first = page(&mut client, &asked, 3, None).await;
    let expected = [
        ("a".to_owned(), 0, vec![0, 1]),
        ("b".to_owned(), 0, vec![0]),
    ];
    assert_eq!(shape(&first), expected);
    let cursor = first.next_cursor.clone();
    let at = cursor
        .as_ref()
        .map(|cursor| (&*cursor.topic_name, cursor.partition_index));
    assert_eq!(at, Some(("b", 1)));
    let second = page(&mut client, &asked, 3, cursor).await;
    let expected = [
        ("b".to_owned(), 0, vec![1, 2]),
        ("nowhere".to_owned(), 3, vec![]),
    ];
    assert_eq!(shape(&second), expected);
    assert_eq!(second.next_cursor, None);

    let exact = page(&mut client, &["a", "b"], 2, None).await;
    let at = exact
        .next_cursor
        .map(|cursor| (cursor.topic_name, cursor.partition_index));
    assert_eq!(
        at,
        Some(("b".to_owned(), 0)),
        "a full page points at the next topic"
    );
    let all = page(&mut client, &[], 2_000, None).await;
    let names: Vec<_> = shape(&all).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(
        names,
        ["__consumer_offsets", "__transaction_state", "a", "b"]
    );
    let elsewhere = Cursor {
        topic_name: "c".to_owned(),
        partition_index: 0,
    };
    let refused = page(&mut client, &["a"], 2, Some(elsewhere)).await;
    assert_eq!(refused.topics[0].error_code, ErrorCode::INVALID_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn the_data_directory_tells_the_sizes_of_partitions() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 2).await;
    let written = batch(&["a"]);
    let size = written.len() as i64;
    client.produce("orders", 1, written).await;
    let named = |topic: &str, partitions: &[i32]| DescribableLogDirTopic {
        topic: topic.to_owned(),
        partitions: partitions.to_vec(),
    };
    let request = DescribeLogDirsRequest {
        topics: Some(vec![named("orders", &[1, 7]), named("nowhere", &[0])]),
    };
    let answer = client.ask(5, request).await;
    assert_eq!(answer.results.len(), 1);
    let topics = &answer.results[0].topics;
    let found: Vec<_> = topics[0].partitions.iter().collect();
    assert_eq!((topics.len(), found.len()), (1, 1));
    assert_eq!(
        (found[0].partition_index, found[0].partition_size),
        (1, size)
    );
    let all = client.ask(1, DescribeLogDirsRequest { topics: None }).await;
    let names: Vec<_> = all.results[0]
        .topics
        .iter()
        .map(|topic| &*topic.name)
        .collect();
    assert_eq!(
        names,
        ["__consumer_offsets", "__transaction_state", "orders"]
    );
}

#[tokio::test(start_paused = true)]
async fn what_one_node_without_access_rules_cannot_do_is_answered_in_kafkas_words() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let acls = client.ask(3, DescribeAclsRequest::default()).await;
    assert_eq!(acls.error_code, ErrorCode::SECURITY_DISABLED);
    let moving = client
        .ask(0, ListPartitionReassignmentsRequest::default())
        .await;
    assert_eq!(
        (moving.error_code, moving.topics.len()),
        (ErrorCode::NONE, 0)
    );
    let named = TopicPartitions {
        topic: "orders".to_owned(),
        partitions: vec![0, 1],
    };
    let request = ElectLeadersRequest {
        topic_partitions: Some(vec![named]),
        ..Default::default()
    };
    let elected = client.ask(2, request).await.replica_election_results;
    let codes = elected[0]
        .partition_result
        .iter()
        .map(|result| result.error_code);
    let expected = [
        ErrorCode::ELECTION_NOT_NEEDED,
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
    ];
    assert_eq!(codes.collect::<Vec<_>>(), expected);
    let listed = |types: &[i8]| ListConfigResourcesRequest {
        resource_types: types.to_vec(),
    };
    let topics = client.ask(1, listed(&[2])).await.config_resources;
    assert_eq!(
        topics.last().map(|topic| &*topic.resource_name),
        Some("orders")
    );
    assert_eq!(client.ask(1, listed(&[])).await.config_resources.len(), 4);
    assert!(client.ask(0, listed(&[])).await.config_resources.is_empty());
    let unknown = client.ask(1, listed(&[3])).await.error_code;
    assert_eq!(unknown, ErrorCode::UNSUPPORTED_VERSION);
}

fn times(compression: Compression, timestamps: &[i64]) -> Bytes {
    let mut builder = RecordBatchBuilder::new(compression);
    for timestamp in timestamps {
        builder.append(START_MS + timestamp, Some(b"k"), Some(b"v"), &[]);
    }
    builder.finish(ProducerStamp::NONE).expect("builds")
}

/// Error, offset and timestamp for one look-up.
async fn list(client: &mut Client, version: i16, timestamp: i64) -> (ErrorCode, i64, i64) {
    let partition = ListOffsetsPartition {
        timestamp,
        ..Default::default()
    };
    let request = ListOffsetsRequest {
        replica_id: -1,
        topics: vec![ListOffsetsTopic {
            name: "orders".to_owned(),
            partitions: vec![partition],
        }],
        ..Default::default()
    };
    let found = client.ask(version, request).await.topics[0].partitions[0].clone();
    (found.error_code, found.offset, found.timestamp)
}

#[tokio::test(start_paused = true)]
async fn g4_the_largest_timestamp_is_found_inside_a_compressed_batch() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    assert_eq!(list(&mut client, 11, -3).await, (ErrorCode::NONE, -1, -1));
    let batch = times(Compression::Gzip, &[10, 30, 20]);
    client.produce("orders", 0, batch).await;
    assert_eq!(
        list(&mut client, 7, -3).await,
        (ErrorCode::NONE, 1, START_MS + 30)
    );
    assert_eq!(list(&mut client, 7, START_MS + 11).await.1, 1);
    assert_eq!(
        list(&mut client, 7, START_MS + 31).await,
        (ErrorCode::NONE, -1, -1)
    );
    for (version, timestamp, expected) in [
        (11, -1, (ErrorCode::NONE, 3, -1)),
        (11, -2, (ErrorCode::NONE, 0, -1)),
        (8, -4, (ErrorCode::NONE, 0, -1)),
        (9, -5, (ErrorCode::NONE, -1, -1)),
        (11, -6, (ErrorCode::NONE, -1, -1)),
        (6, -3, (ErrorCode::UNSUPPORTED_VERSION, -1, -1)),
        (7, -4, (ErrorCode::UNSUPPORTED_VERSION, -1, -1)),
        (11, -7, (ErrorCode::UNSUPPORTED_VERSION, -1, -1)),
    ] {
        let found = list(&mut client, version, timestamp).await;
        assert_eq!(found, expected, "{timestamp} in version {version}");
    }
}

#[tokio::test(start_paused = true)]
async fn g4_under_append_time_the_first_record_of_the_batch_has_the_largest_timestamp() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let append_time = [("message.timestamp.type", "LogAppendTime")];
    client.create_topic_with("orders", 1, &append_time).await;
    let batch = times(Compression::Gzip, &[10, 30, 20]);
    let written = client.produce("orders", 0, batch).await;
    let found = list(&mut client, 7, -3).await;
    assert_eq!(found, (ErrorCode::NONE, 0, written.log_append_time_ms));
}

#[tokio::test(start_paused = true)]
async fn g4_when_all_records_have_expired_the_log_begins_at_its_end() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let short = [("retention.ms", "1000")];
    client.create_topic_with("orders", 1, &short).await;
    client.produce("orders", 0, batch(&["a", "b"])).await;
    assert_eq!(list(&mut client, 11, -2).await.1, 0);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(list(&mut client, 11, -2).await, (ErrorCode::NONE, 2, -1));
    assert_eq!(list(&mut client, 11, -3).await.1, -1);
    let written = client.produce("orders", 0, batch(&["c"])).await;
    assert_eq!(written.base_offset, 2);
}

async fn delete(client: &mut Client, topic: &str, offset: i64) -> (ErrorCode, i64) {
    let request = DeleteRecordsRequest {
        topics: vec![DeleteRecordsTopic {
            name: topic.to_owned(),
            partitions: vec![DeleteRecordsPartition {
                partition_index: 0,
                offset,
            }],
        }],
        timeout_ms: 1_000,
    };
    let result = client.ask(2, request).await.topics[0].partitions[0].clone();
    (result.error_code, result.low_watermark)
}

fn numbered(sequence: i32) -> Bytes {
    let stamp = ProducerStamp {
        producer_id: 4,
        producer_epoch: 0,
        base_sequence: sequence,
        transactional: false,
    };
    stamped(&["x"], stamp)
}

#[tokio::test(start_paused = true)]
async fn p1_deleting_a_logs_records_does_not_forget_its_producers() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    for sequence in 0..10 {
        client.produce("orders", 0, numbered(sequence)).await;
    }
    assert_eq!(
        delete(&mut client, "orders", 11).await,
        (ErrorCode::OFFSET_OUT_OF_RANGE, -1)
    );
    assert_eq!(
        delete(&mut client, "orders", -2).await,
        (ErrorCode::OFFSET_OUT_OF_RANGE, -1)
    );
    assert_eq!(delete(&mut client, "orders", 4).await, (ErrorCode::NONE, 4));
    assert_eq!(
        delete(&mut client, "orders", 2).await,
        (ErrorCode::NONE, 4),
        "never back"
    );
    assert_eq!(
        delete(&mut client, "orders", -1).await,
        (ErrorCode::NONE, 10)
    );
    assert_eq!(list(&mut client, 11, -2).await.1, 10);
    for _ in 0..2 {
        let written = client.produce("orders", 0, numbered(10)).await;
        assert_eq!(
            (written.error_code, written.base_offset),
            (ErrorCode::NONE, 10)
        );
        assert_eq!(written.log_start_offset, 10);
    }
    let gap = client.produce("orders", 0, numbered(12)).await;
    assert_eq!(gap.error_code, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    broker.halt();

    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    assert_eq!(
        list(&mut client, 11, -2).await.1,
        10,
        "an answered deletion is kept"
    );
    let gap = client.produce("orders", 0, numbered(12)).await;
    assert_eq!(gap.error_code, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(
        client.produce("orders", 0, numbered(11)).await.base_offset,
        11
    );
}

#[tokio::test(start_paused = true)]
async fn records_that_only_newer_ones_may_replace_are_not_deleted() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let compacted = [("cleanup.policy", "compact")];
    client.create_topic_with("kept", 1, &compacted).await;
    client.produce("kept", 0, batch(&["a"])).await;
    assert_eq!(
        delete(&mut client, "kept", -1).await.0,
        ErrorCode::POLICY_VIOLATION
    );
    let internal = delete(&mut client, "__consumer_offsets", -1).await.0;
    assert_eq!(internal, ErrorCode::INVALID_TOPIC_EXCEPTION);
    let both = [("cleanup.policy", "compact,delete")];
    client.create_topic_with("both", 1, &both).await;
    client.produce("both", 0, batch(&["a"])).await;
    assert_eq!(delete(&mut client, "both", -1).await, (ErrorCode::NONE, 1));
}

#[tokio::test(start_paused = true)]
async fn before_version_12_topics_only_go_by_name() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let topic_id = client.create_topic("orders", 1).await;
    let by_id = || MetadataRequest {
        topics: Some(vec![MetadataRequestTopic {
            topic_id,
            name: None,
        }]),
        ..Default::default()
    };
    let known = client.ask(12, by_id()).await.topics[0].clone();
    assert_eq!(known.name.as_deref(), Some("orders"));
    let named = MetadataRequestTopic {
        topic_id,
        name: Some("orders".to_owned()),
    };
    let request = MetadataRequest {
        topics: Some(vec![named]),
        ..Default::default()
    };
    let refused = client.ask(11, request).await.topics[0].clone();
    assert_eq!(refused.error_code, ErrorCode::INVALID_REQUEST);
}

/// An ApiVersions request of a version yet to come: a flexible header, and a body that nobody here
/// can know.
const API_VERSIONS_127: &[u8] = &[
    0, 18, 0, 127, 0, 0, 0, 1, 0, 1, b'x', 0, // key, version, correlation, client, no tags
    4, b'n', b'e', b'w', 2, b'1', 0, 9, 9, 9,
];

#[tokio::test(start_paused = true)]
async fn o4_a_version_of_api_versions_yet_to_come_is_answered_in_version_0_with_the_range() {
    let broker: Broker = broker().await;
    let mut client = Client::connect(&broker);
    client.send_raw(API_VERSIONS_127).await;
    let frame = client.next_frame().await.expect("answered");
    let (correlation_id, answer) =
        decode_response::<ApiVersionsRequest>(frame, 0).expect("a version 0 body");
    assert_eq!(
        (correlation_id, answer.error_code),
        (1, ErrorCode::UNSUPPORTED_VERSION)
    );
    let range = &answer.api_keys[0];
    let key = ApiKey::ApiVersions as i16;
    assert_eq!(
        (range.api_key, range.min_version, range.max_version),
        (key, 0, 4)
    );
    client
        .send_raw(&[0, 18, 0, 0, 0, 0, 0, 2, 0, 1, b'x'])
        .await;
    let frame = client
        .next_frame()
        .await
        .expect("the connection stays open");
    let (_, answer) = decode_response::<ApiVersionsRequest>(frame, 0).expect("decodes");
    assert_eq!(answer.error_code, ErrorCode::NONE);
    assert!(answer.api_keys.len() > 30);
}
