//! Topics: how they come, what is told of them, how they go, and that they outlive the broker.
//!
//! Invariants: see the names of the tests.
//! Never: looks into the directory.

use super::harness::*;
use crate::{Broker, BrokerConfig};
use millstream_log::storage::{Fault, OperationKind};
use millstream_log::{FaultyStorage, MemoryStorage};
use millstream_protocol::messages::create_topics::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig,
};
use millstream_protocol::messages::delete_topics::DeleteTopicState;
use millstream_protocol::messages::describe_configs::DescribeConfigsResource;
use millstream_protocol::messages::metadata::{MetadataRequestTopic, MetadataResponseTopic};
use millstream_protocol::messages::offset_commit::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use millstream_protocol::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use millstream_protocol::messages::*;
use millstream_protocol::{ApiKey, ErrorCode, Uuid};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

async fn describe(client: &mut Client, name: &str, create: bool) -> MetadataResponseTopic {
    let topic = MetadataRequestTopic {
        name: Some(name.to_owned()),
        ..Default::default()
    };
    let request = MetadataRequest {
        topics: Some(vec![topic]),
        allow_auto_topic_creation: create,
        ..Default::default()
    };
    client.ask(12, request).await.topics[0].clone()
}

#[tokio::test(start_paused = true)]
async fn a_topic_is_created_on_first_use() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let unwanted = describe(&mut client, "orders", false).await;
    assert_eq!(unwanted.error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let created = describe(&mut client, "orders", true).await;
    assert_eq!(created.error_code, ErrorCode::NONE);
    assert_eq!(created.partitions.len(), 1);
    assert_ne!(created.topic_id, Uuid::ZERO);
    assert_eq!(created.partitions[0].leader_id, broker.config().node_id);
    assert_eq!(describe(&mut client, "orders", false).await, created);
    let illegal = describe(&mut client, "or/ders", true).await;
    assert_eq!(illegal.error_code, ErrorCode::INVALID_TOPIC_EXCEPTION);
}

#[tokio::test(start_paused = true)]
async fn creation_on_first_use_can_be_switched_off() {
    let config = BrokerConfig {
        auto_create_topics_enable: false,
        ..config()
    };
    let broker = Broker::open(Arc::new(MemoryStorage::new()), config)
        .await
        .expect("opens");
    let mut client = Client::connect(&broker);
    let refused = describe(&mut client, "orders", true).await;
    assert_eq!(refused.error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
}

#[tokio::test(start_paused = true)]
async fn all_topics_are_listed_with_the_cluster() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let id = client.create_topic("orders", 3).await;
    let all = client
        .ask(
            13,
            MetadataRequest {
                topics: None,
                ..Default::default()
            },
        )
        .await;
    let names: Vec<_> = all
        .topics
        .iter()
        .map(|t| t.name.clone().unwrap_or_default())
        .collect();
    assert_eq!(
        names,
        ["__consumer_offsets", "__transaction_state", "orders"]
    );
    assert_eq!(
        all.topics.iter().map(|t| t.is_internal).collect::<Vec<_>>(),
        [true, true, false]
    );
    assert_eq!(
        all.topics
            .iter()
            .map(|t| t.partitions.len())
            .collect::<Vec<_>>(),
        [4, 4, 3]
    );
    assert_eq!(all.cluster_id.as_deref(), Some(broker.cluster_id()));
    assert_eq!(all.controller_id, all.brokers[0].node_id);
    let none = client
        .ask(
            13,
            MetadataRequest {
                topics: Some(vec![]),
                ..Default::default()
            },
        )
        .await;
    assert!(none.topics.is_empty());
    let by_id = MetadataRequestTopic {
        topic_id: id,
        name: None,
    };
    let request = MetadataRequest {
        topics: Some(vec![by_id]),
        ..Default::default()
    };
    let found = client.ask(12, request).await;
    assert_eq!(found.topics[0].name.as_deref(), Some("orders"));
}

#[tokio::test(start_paused = true)]
async fn topics_and_records_survive_close_and_crash() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let mut client = Client::connect(&broker);
    let id = client
        .create_topic_with("orders", 2, &[("retention.ms", "-1")])
        .await;
    client.produce("orders", 1, batch(&["a"])).await;
    let cluster_id = broker.cluster_id().to_owned();
    drop(client);
    broker.close().await.expect("closes");

    let storage = storage.crash();
    let broker = open(storage.clone()).await;
    assert_eq!(broker.cluster_id(), cluster_id);
    let mut client = Client::connect(&broker);
    assert_eq!(describe(&mut client, "orders", false).await.topic_id, id);
    client.produce("orders", 1, batch(&["b"])).await;
    broker.halt();

    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    let read = values(&client.fetch("orders", 1, 0, 0).await);
    assert_eq!(read, [(0, "a".to_owned()), (1, "b".to_owned())]);
    let resource = DescribeConfigsResource {
        resource_type: 2,
        resource_name: "orders".to_owned(),
        configuration_keys: Some(vec!["retention.ms".to_owned()]),
    };
    let request = DescribeConfigsRequest {
        resources: vec![resource],
        ..Default::default()
    };
    let described = client.ask(4, request).await;
    let config = &described.results[0].configs[0];
    assert_eq!(
        (config.value.as_deref(), config.config_source),
        (Some("-1"), 1)
    );
}

fn named(name: &str) -> CreatableTopic {
    CreatableTopic {
        name: name.to_owned(),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    }
}

/// Topics to create, each with the error it gets.
fn refused_topics() -> Vec<(CreatableTopic, ErrorCode)> {
    let config = |name: &str, value: &str| {
        vec![CreatableTopicConfig {
            name: name.to_owned(),
            value: Some(value.to_owned()),
        }]
    };
    let assignment = CreatableReplicaAssignment {
        partition_index: 0,
        broker_ids: vec![8],
    };
    vec![
        (named("fine"), ErrorCode::NONE),
        (named("taken"), ErrorCode::TOPIC_ALREADY_EXISTS),
        (named("a b"), ErrorCode::INVALID_TOPIC_EXCEPTION),
        (
            CreatableTopic {
                num_partitions: 0,
                ..named("none")
            },
            ErrorCode::INVALID_PARTITIONS,
        ),
        (
            CreatableTopic {
                replication_factor: 3,
                ..named("safe")
            },
            ErrorCode::INVALID_REPLICATION_FACTOR,
        ),
        (
            CreatableTopic {
                configs: config("segment.bytes", "many"),
                ..named("config")
            },
            ErrorCode::INVALID_CONFIG,
        ),
        (
            CreatableTopic {
                configs: config("no.such", "1"),
                ..named("unknown")
            },
            ErrorCode::INVALID_CONFIG,
        ),
        (
            CreatableTopic {
                num_partitions: -1,
                replication_factor: -1,
                assignments: vec![assignment],
                ..named("assigned")
            },
            ErrorCode::INVALID_REPLICA_ASSIGNMENT,
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn bad_topics_are_refused_each_with_its_reason() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("taken", 1).await;
    let (topics, expected): (Vec<_>, Vec<_>) = refused_topics().into_iter().unzip();
    let answer = client
        .ask(
            7,
            CreateTopicsRequest {
                topics,
                ..Default::default()
            },
        )
        .await;
    let codes: Vec<_> = answer.topics.iter().map(|topic| topic.error_code).collect();
    assert_eq!(codes, expected);
    assert!(
        answer
            .topics
            .iter()
            .skip(1)
            .all(|topic| topic.error_message.is_some())
    );

    let twice = vec![named("twice"), named("twice")];
    let answer = client
        .ask(
            7,
            CreateTopicsRequest {
                topics: twice,
                ..Default::default()
            },
        )
        .await;
    assert_eq!(answer.topics.len(), 1);
    assert_eq!(answer.topics[0].error_code, ErrorCode::INVALID_REQUEST);
    let dry = CreateTopicsRequest {
        topics: vec![named("dry")],
        validate_only: true,
        ..Default::default()
    };
    assert_eq!(
        client.ask(7, dry).await.topics[0].error_code,
        ErrorCode::NONE
    );
    let absent = describe(&mut client, "dry", false).await;
    assert_eq!(absent.error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_topic_is_gone_with_its_data() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let mut client = Client::connect(&broker);
    let old = client.create_topic("orders", 1).await;
    client.produce("orders", 0, batch(&["a"])).await;
    let state = |name: Option<&str>, topic_id| DeleteTopicState {
        name: name.map(str::to_owned),
        topic_id,
    };
    let topics = vec![
        state(None, old),
        state(Some("nowhere"), Uuid::ZERO),
        state(Some("__consumer_offsets"), Uuid::ZERO),
    ];
    let answer = client
        .ask(
            6,
            DeleteTopicsRequest {
                topics,
                ..Default::default()
            },
        )
        .await;
    let codes: Vec<_> = answer
        .responses
        .iter()
        .map(|topic| topic.error_code)
        .collect();
    assert_eq!(
        codes,
        [
            ErrorCode::NONE,
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode::INVALID_TOPIC_EXCEPTION
        ]
    );
    let gone = describe(&mut client, "orders", false).await;
    assert_eq!(gone.error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let new = client.create_topic("orders", 1).await;
    assert_ne!(new, old);
    assert!(values(&client.fetch("orders", 0, 0, 0).await).is_empty());
    broker.halt();
    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    assert_eq!(describe(&mut client, "orders", false).await.topic_id, new);
    assert!(values(&client.fetch("orders", 0, 0, 0).await).is_empty());
}

#[tokio::test(start_paused = true)]
async fn api_versions_advertises_what_is_served() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let request = ApiVersionsRequest {
        client_software_name: "tester".to_owned(),
        client_software_version: "1.0".to_owned(),
    };
    let answer = client.ask(4, request.clone()).await;
    assert_eq!(answer.error_code, ErrorCode::NONE);
    let told = answer.api_keys.iter();
    let told = told.map(|api| (api.api_key, api.min_version, api.max_version));
    let served = crate::dispatch::SERVED.iter().map(|api| match api {
        // As Kafka, though 0 to 2 are refused: older librdkafka would not compress otherwise.
        ApiKey::Produce => (0, 0, 13),
        api => (*api as i16, *api.versions().start(), *api.versions().end()),
    });
    assert!(told.eq(served), "{:?}", answer.api_keys);
    let features = answer.finalized_features.iter();
    let features = features.map(|feature| (&*feature.name, feature.max_version_level));
    assert_eq!(
        features.collect::<Vec<_>>(),
        [("group.version", 1), ("transaction.version", 2)]
    );
    assert_eq!(answer.supported_features.len(), 2);
    assert!(!answer.zk_migration_ready);
    // Old clients refuse a supported feature whose lowest version is 0.
    assert!(client.ask(3, request).await.supported_features.is_empty());
    let nameless = client.ask(3, ApiVersionsRequest::default()).await;
    assert_eq!(nameless.error_code, ErrorCode::INVALID_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn the_cluster_describes_itself() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let request = DescribeClusterRequest {
        include_cluster_authorized_operations: true,
        ..Default::default()
    };
    let answer = client.ask(2, request).await;
    assert_eq!(answer.cluster_id, broker.cluster_id());
    assert_eq!(answer.brokers[0].broker_id, answer.controller_id);
    assert!(answer.cluster_authorized_operations > 0);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_collides_with_another_is_an_invalid_topic() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders.enriched", 1).await;
    let on_first_use = describe(&mut client, "orders_enriched", true).await;
    assert_eq!(on_first_use.error_code, ErrorCode::INVALID_TOPIC_EXCEPTION);
    let request = CreateTopicsRequest {
        topics: vec![CreatableTopic {
            name: "orders_enriched".to_owned(),
            num_partitions: 1,
            replication_factor: 1,
            ..Default::default()
        }],
        ..Default::default()
    };
    let answer = client.ask(7, request).await.topics[0].clone();
    assert_eq!(answer.error_code, ErrorCode::INVALID_TOPIC_EXCEPTION);
    let message = answer.error_message.unwrap_or_default();
    assert!(message.contains("'.' and '_'"), "{message}");
}

async fn delete(client: &mut Client, name: &str) -> ErrorCode {
    let topic = DeleteTopicState {
        name: Some(name.to_owned()),
        ..Default::default()
    };
    let request = DeleteTopicsRequest {
        topics: vec![topic],
        ..Default::default()
    };
    client.ask(6, request).await.responses[0].error_code
}

#[tokio::test(start_paused = true)]
async fn a_topic_whose_deletion_fails_is_served_as_before_with_its_offsets() {
    let storage = FaultyStorage::new();
    let broker = open(storage.clone()).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    client.produce("orders", 0, batch(&["a"])).await;
    commit(&mut client, "orders", 7).await;
    storage.inject(Fault {
        kind: OperationKind::Write,
        path_contains: "catalogue".to_owned(),
        after: 0,
        error: std::io::ErrorKind::Other,
    });
    let failed = delete(&mut client, "orders").await;
    assert_eq!(failed, ErrorCode::KAFKA_STORAGE_ERROR);
    let there = describe(&mut client, "orders", false).await;
    assert_eq!(there.error_code, ErrorCode::NONE);
    let read = client.fetch("orders", 0, 0, 0).await;
    assert_eq!(values(&read).len(), 1);
    assert_eq!(committed(&mut client, "orders").await, 7);
    assert_eq!(delete(&mut client, "orders").await, ErrorCode::NONE);
    assert_eq!(committed(&mut client, "orders").await, -1);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_records_of_a_topic_is_answered_when_it_is_deleted() {
    let broker = broker().await;
    let (mut client, mut reader) = (Client::connect(&broker), Client::connect(&broker));
    client.create_topic("orders", 1).await;
    let started = Instant::now();
    reader
        .send(12, &fetch_request("orders", 0, 0, 60_000))
        .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(delete(&mut client, "orders").await, ErrorCode::NONE);
    let answer = reader.receive::<FetchRequest>(12).await;
    let refused = answer.responses[0].partitions[0].error_code;
    assert_eq!(refused, ErrorCode::KAFKA_STORAGE_ERROR);
    assert_eq!(started.elapsed(), Duration::from_secs(1));
}

/// Commits an offset of partition 0 for a group without members.
async fn commit(client: &mut Client, topic: &str, offset: i64) {
    let partition = OffsetCommitRequestPartition {
        committed_offset: offset,
        ..Default::default()
    };
    let request = OffsetCommitRequest {
        group_id: "g".to_owned(),
        generation_id_or_member_epoch: -1,
        topics: vec![OffsetCommitRequestTopic {
            name: topic.to_owned(),
            partitions: vec![partition],
            ..Default::default()
        }],
        ..Default::default()
    };
    let answer = client.ask(9, request).await;
    let error = answer.topics[0].partitions[0].error_code;
    assert_eq!(error, ErrorCode::NONE);
}

async fn committed(client: &mut Client, topic: &str) -> i64 {
    let group = OffsetFetchRequestGroup {
        group_id: "g".to_owned(),
        topics: Some(vec![OffsetFetchRequestTopics {
            name: topic.to_owned(),
            partition_indexes: vec![0],
            ..Default::default()
        }]),
        ..Default::default()
    };
    let request = OffsetFetchRequest {
        groups: vec![group],
        ..Default::default()
    };
    let answer = client.ask(9, request).await;
    answer.groups[0].topics[0].partitions[0].committed_offset
}
