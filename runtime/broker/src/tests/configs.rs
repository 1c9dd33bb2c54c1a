//! Settings of topics: given at creation, told, changed while the topic is in use, kept.
//!
//! Invariants: see the names of the tests.
//! Never: looks into the directory.

use super::harness::*;
use crate::{Broker, BrokerConfig};
use bytes::Bytes;
use millstream_log::MemoryStorage;
use millstream_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use millstream_protocol::messages::describe_configs::{
    DescribeConfigsResource, DescribeConfigsResourceResult,
};
use millstream_protocol::messages::{alter_configs, incremental_alter_configs as incremental, *};
use millstream_protocol::{Compression, ErrorCode, ProducerStamp, RecordBatch, RecordBatchBuilder};
use std::sync::Arc;

const TOPIC: i8 = 2;
pub(super) const BROKER: i8 = 4;
pub(super) const SET: i8 = 0;
pub(super) const DELETE: i8 = 1;
pub(super) const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

pub(super) async fn describe(
    client: &mut Client,
    kind: i8,
    name: &str,
    keys: &[&str],
) -> Vec<DescribeConfigsResourceResult> {
    let keys = keys.iter().map(|key| (*key).to_owned()).collect();
    let resource = DescribeConfigsResource {
        resource_type: kind,
        resource_name: name.to_owned(),
        configuration_keys: Some(keys),
    };
    let request = DescribeConfigsRequest {
        resources: vec![resource],
        include_synonyms: true,
        include_documentation: true,
    };
    let answer = client.ask(4, request).await;
    assert_eq!(answer.results[0].error_code, ErrorCode::NONE);
    answer.results[0].configs.clone()
}

/// Value, source and synonyms of one setting of a topic.
pub(super) async fn setting(client: &mut Client, topic: &str, name: &str) -> (String, i8, String) {
    let found = describe(client, TOPIC, topic, &[name]).await;
    let config = found[0].clone();
    let synonyms = config.synonyms.iter().map(|synonym| {
        let value = synonym.value.as_deref().unwrap_or("null");
        format!("{}:{}={value}", synonym.source, synonym.name)
    });
    let synonyms: Vec<_> = synonyms.collect();
    let value = config.value.unwrap_or_default();
    (value, config.config_source, synonyms.join(" "))
}

pub(super) fn operation(
    name: &str,
    config_operation: i8,
    value: Option<&str>,
) -> incremental::AlterableConfig {
    incremental::AlterableConfig {
        name: name.to_owned(),
        config_operation,
        value: value.map(str::to_owned),
    }
}

pub(super) async fn change(
    client: &mut Client,
    resource: (i8, &str),
    configs: Vec<incremental::AlterableConfig>,
    validate_only: bool,
) -> ErrorCode {
    let resource = incremental::AlterConfigsResource {
        resource_type: resource.0,
        resource_name: resource.1.to_owned(),
        configs,
    };
    let request = IncrementalAlterConfigsRequest {
        resources: vec![resource],
        validate_only,
    };
    let answer = client.ask(1, request).await.responses[0].clone();
    assert_eq!(answer.error_message.is_some(), !answer.error_code.is_ok());
    answer.error_code
}

async fn set(client: &mut Client, topic: &str, name: &str, value: &str) {
    let configs = vec![operation(name, SET, Some(value))];
    let code = change(client, (TOPIC, topic), configs, false).await;
    assert_eq!(code, ErrorCode::NONE, "{name}={value}");
}

#[tokio::test(start_paused = true)]
async fn a_topics_settings_are_told_with_their_sources_synonyms_types_and_documentation() {
    let settings = BrokerConfig {
        log_settings: [("log.segment.bytes".to_owned(), "2000000".to_owned())].into(),
        ..config()
    };
    let broker = Broker::open(Arc::new(MemoryStorage::new()), settings).await;
    let broker = broker.expect("opens");
    let mut client = Client::connect(&broker);
    let own = [
        ("retention.ms", "5000"),
        ("cleanup.policy", "compact, delete"),
    ];
    client.create_topic_with("orders", 1, &own).await;
    let all = describe(&mut client, TOPIC, "orders", &[]).await;
    assert_eq!(all.len(), 33, "internal ones stay hidden");
    for config in &all {
        assert!(config.config_type > 0 && !config.read_only && !config.is_sensitive);
        assert!(
            config
                .documentation
                .as_ref()
                .is_some_and(|text| !text.is_empty())
        );
    }
    let expected = [
        ("retention.ms", "5000", 1, "1:retention.ms=5000"),
        (
            "cleanup.policy",
            "compact,delete",
            1,
            "1:cleanup.policy=compact,delete 5:log.cleanup.policy=delete",
        ),
        (
            "segment.bytes",
            "2000000",
            4,
            "4:log.segment.bytes=2000000 5:log.segment.bytes=1073741824",
        ),
        (
            "max.message.bytes",
            "1048588",
            5,
            "5:message.max.bytes=1048588",
        ),
        ("segment.ms", "604800000", 5, ""),
        ("remote.storage.enable", "false", 5, ""),
    ];
    for (name, value, source, synonyms) in expected {
        let found = setting(&mut client, "orders", name).await;
        assert_eq!(
            found,
            (value.to_owned(), source, synonyms.to_owned()),
            "{name}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn this_brokers_settings_are_told_and_nobody_elses() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let own = describe(
        &mut client,
        BROKER,
        "1",
        &["node.id", "log.retention.bytes"],
    )
    .await;
    let values: Vec<_> = own.iter().map(|config| config.value.as_deref()).collect();
    assert_eq!(values, [Some("-1"), Some("1")]);
    let read_only: Vec<_> = own.iter().map(|config| config.read_only).collect();
    assert_eq!(read_only, [false, true]);
    let of_all = describe(&mut client, BROKER, "", &[]).await;
    let of_all: Vec<_> = of_all.iter().map(|config| config.name.as_str()).collect();
    assert_eq!(of_all, ["min.insync.replicas"]);
    for (kind, name) in [
        (BROKER, "2"),
        (BROKER, "one"),
        (8, "1"),
        (16, "x"),
        (0, "x"),
    ] {
        let resource = DescribeConfigsResource {
            resource_type: kind,
            resource_name: name.to_owned(),
            configuration_keys: None,
        };
        let request = DescribeConfigsRequest {
            resources: vec![resource],
            ..Default::default()
        };
        let refused = client.ask(1, request).await.results[0].clone();
        assert_eq!(
            refused.error_code,
            ErrorCode::INVALID_REQUEST,
            "{kind} {name}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_created_topic_is_answered_with_all_its_settings() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let topic = CreatableTopic {
        name: "orders".to_owned(),
        num_partitions: -1,
        replication_factor: -1,
        configs: vec![CreatableTopicConfig {
            name: "retention.ms".to_owned(),
            value: Some("7".to_owned()),
        }],
        ..Default::default()
    };
    for validate_only in [true, false] {
        let request = CreateTopicsRequest {
            topics: vec![topic.clone()],
            validate_only,
            ..Default::default()
        };
        let created = client.ask(7, request).await.topics[0].clone();
        assert_eq!(created.error_code, ErrorCode::NONE);
        assert_eq!((created.num_partitions, created.replication_factor), (1, 1));
        let configs = created.configs.expect("settings");
        let of = |name: &str| configs.iter().find(|config| config.name == name).cloned();
        let retention = of("retention.ms").expect("is there");
        assert_eq!(
            (retention.value.as_deref(), retention.config_source),
            (Some("7"), 1)
        );
        let policy = of("cleanup.policy").expect("is there");
        assert_eq!(
            (policy.value.as_deref(), policy.config_source),
            (Some("delete"), 5)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn single_settings_change_and_survive_a_crash() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let mut client = Client::connect(&broker);
    let own = [("retention.ms", "5000"), ("min.insync.replicas", "1")];
    client.create_topic_with("orders", 1, &own).await;
    let changes = || {
        vec![
            operation("retention.ms", DELETE, None),
            operation("segment.ms", SET, Some(" 0100")),
            operation("cleanup.policy", APPEND, Some("compact")),
        ]
    };
    let orders = (TOPIC, "orders");
    assert_eq!(
        change(&mut client, orders, changes(), true).await,
        ErrorCode::NONE
    );
    assert_eq!(
        setting(&mut client, "orders", "segment.ms").await.1,
        5,
        "validated only"
    );
    assert_eq!(
        change(&mut client, orders, changes(), false).await,
        ErrorCode::NONE
    );
    broker.halt();

    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    let value = |found: (String, i8, String)| (found.0, found.1);
    for (name, expected, source) in [
        ("retention.ms", "604800000", 5),
        ("segment.ms", "100", 1),
        ("cleanup.policy", "delete,compact", 1),
        ("min.insync.replicas", "1", 1),
    ] {
        let found = value(setting(&mut client, "orders", name).await);
        assert_eq!(found, (expected.to_owned(), source), "{name}");
    }
    let fewer = vec![operation("cleanup.policy", SUBTRACT, Some("delete"))];
    assert_eq!(
        change(&mut client, orders, fewer, false).await,
        ErrorCode::NONE
    );
    let policy = setting(&mut client, "orders", "cleanup.policy").await.0;
    assert_eq!(policy, "compact");
}

#[tokio::test(start_paused = true)]
async fn the_older_way_replaces_all_settings() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client
        .create_topic_with("orders", 1, &[("retention.ms", "5000")])
        .await;
    let resource = |name: &str| alter_configs::AlterConfigsResource {
        resource_type: TOPIC,
        resource_name: name.to_owned(),
        configs: vec![alter_configs::AlterableConfig {
            name: "segment.ms".to_owned(),
            value: Some("9".to_owned()),
        }],
    };
    let request = AlterConfigsRequest {
        resources: vec![resource("orders"), resource("twice"), resource("twice")],
        validate_only: false,
    };
    let codes: Vec<_> = client.ask(2, request).await.responses;
    let codes: Vec<_> = codes.iter().map(|answer| answer.error_code).collect();
    let repeated = ErrorCode::INVALID_REQUEST;
    assert_eq!(codes, [ErrorCode::NONE, repeated, repeated]);
    assert_eq!(setting(&mut client, "orders", "retention.ms").await.1, 5);
    assert_eq!(setting(&mut client, "orders", "segment.ms").await.0, "9");
}

/// Changes with the error that each gets.
fn senseless_changes() -> Vec<(
    (i8, &'static str),
    Vec<incremental::AlterableConfig>,
    ErrorCode,
)> {
    let orders = (TOPIC, "orders");
    let set = |name, value| operation(name, SET, Some(value));
    vec![
        (
            orders,
            vec![set("retention.ms", "soon")],
            ErrorCode::INVALID_CONFIG,
        ),
        (orders, vec![set("no.such", "1")], ErrorCode::INVALID_CONFIG),
        (
            orders,
            vec![operation("retention.ms", SET, None)],
            ErrorCode::INVALID_REQUEST,
        ),
        (
            orders,
            vec![operation("retention.ms", APPEND, Some("1"))],
            ErrorCode::INVALID_CONFIG,
        ),
        (
            orders,
            vec![operation("retention.ms", 4, Some("1"))],
            ErrorCode::INVALID_REQUEST,
        ),
        (
            orders,
            vec![set("flush.ms", "1"), set("flush.ms", "2")],
            ErrorCode::INVALID_REQUEST,
        ),
        (
            orders,
            vec![set("remote.storage.enable", "true")],
            ErrorCode::INVALID_CONFIG,
        ),
        (
            (TOPIC, "nowhere"),
            vec![set("flush.ms", "1")],
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        ),
        (
            (BROKER, "2"),
            vec![set("log.retention.ms", "1")],
            ErrorCode::INVALID_REQUEST,
        ),
        (
            (99, "x"),
            vec![set("flush.ms", "1")],
            ErrorCode::INVALID_REQUEST,
        ),
        (
            (TOPIC, "__transaction_state"),
            vec![set("cleanup.policy", "delete")],
            ErrorCode::INVALID_CONFIG,
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn changes_that_make_no_sense_are_refused_as_a_whole() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    for (resource, mut configs, code) in senseless_changes() {
        // What comes with it does not change either.
        configs.insert(0, operation("segment.ms", SET, Some("5")));
        let refused = change(&mut client, resource, configs.clone(), false).await;
        assert_eq!(refused, code, "{resource:?} {configs:?}");
    }
    assert_eq!(setting(&mut client, "orders", "segment.ms").await.1, 5);
}

/// A record of this time behind one of the start.
fn timed_twice(timestamp: i64) -> Bytes {
    let mut builder = RecordBatchBuilder::new(Compression::Zstd);
    for timestamp in [START_MS, timestamp] {
        builder.append(timestamp, Some(b"k"), Some(b"v"), &[]);
    }
    builder.finish(ProducerStamp::NONE).expect("builds")
}

fn timed(timestamp: i64) -> Bytes {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    builder.append(timestamp, Some(b"k"), Some(&[7; 200]), &[]);
    builder.finish(ProducerStamp::NONE).expect("builds")
}

#[tokio::test(start_paused = true)]
async fn a_limit_on_the_coordinators_topic_stops_no_group() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let offsets = "__consumer_offsets";
    set(&mut client, offsets, "max.message.bytes", "1").await;
    let request = ConsumerGroupHeartbeatRequest {
        group_id: "g".to_owned(),
        member_id: "m".to_owned(),
        rebalance_timeout_ms: 60_000,
        subscribed_topic_names: Some(vec!["orders".to_owned()]),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    };
    let answer = client.ask(1, request).await;
    assert_eq!(answer.error_code, ErrorCode::NONE);
}

#[tokio::test(start_paused = true)]
async fn settings_take_effect_on_a_topic_that_is_in_use() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let written = client.produce("orders", 0, timed(START_MS)).await;
    assert_eq!(
        (written.error_code, written.log_append_time_ms),
        (ErrorCode::NONE, -1)
    );
    set(&mut client, "orders", "max.message.bytes", "100").await;
    let refused = client.produce("orders", 0, timed(START_MS)).await;
    assert_eq!(refused.error_code, ErrorCode::MESSAGE_TOO_LARGE);
    let message = refused.error_message.unwrap_or_default();
    assert!(message.contains("max.message.bytes=100"), "{message}");

    set(&mut client, "orders", "max.message.bytes", "1000").await;
    set(
        &mut client,
        "orders",
        "message.timestamp.before.max.ms",
        "60000",
    )
    .await;
    for far in [START_MS - 120_000, START_MS + 7_200_000] {
        let refused = client.produce("orders", 0, timed_twice(far)).await;
        assert_eq!(refused.error_code, ErrorCode::INVALID_TIMESTAMP, "{far}");
        let message = refused.error_message.unwrap_or_default();
        assert!(message.contains(&far.to_string()), "{message}");
        let places = refused.record_errors.iter().map(|error| error.batch_index);
        assert_eq!(places.collect::<Vec<_>>(), [1]);
    }
    set(
        &mut client,
        "orders",
        "message.timestamp.type",
        "LogAppendTime",
    )
    .await;
    let written = client.produce("orders", 0, timed(5)).await;
    assert_eq!(written.error_code, ErrorCode::NONE);
    assert!(written.log_append_time_ms >= START_MS);
    assert_eq!(written.base_offset, 1);
}

fn batches_of(data: &millstream_protocol::messages::fetch::PartitionData) -> Vec<RecordBatch> {
    let mut bytes = data.records.clone().unwrap_or_default();
    let mut batches = Vec::new();
    while let Some(batch) = RecordBatch::split_from(&mut bytes).expect("whole") {
        batches.push(batch);
    }
    batches
}

#[tokio::test(start_paused = true)]
async fn a_topic_with_a_codec_of_its_own_gets_its_batches_in_it() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client
        .create_topic_with("orders", 1, &[("compression.type", "zstd")])
        .await;
    let stamp = |base_sequence| ProducerStamp {
        producer_id: 4,
        producer_epoch: 0,
        base_sequence,
        transactional: false,
    };
    for sequence in [0, 2, 2] {
        let batch = stamped(&["a", "b"], stamp(sequence));
        let written = client.produce("orders", 0, batch).await;
        assert_eq!(written.base_offset, i64::from(sequence));
    }
    let mut damaged = stamped(&["a", "b"], stamp(4)).to_vec();
    *damaged.last_mut().expect("bytes") ^= 1;
    let refused = client.produce("orders", 0, damaged.into()).await;
    assert_eq!(refused.error_code, ErrorCode::CORRUPT_MESSAGE);
    set(&mut client, "orders", "compression.type", "producer").await;
    client.produce("orders", 0, batch(&["c"])).await;
    let read = client.fetch("orders", 0, 0, 0).await;
    let codecs: Vec<_> = batches_of(&read)
        .iter()
        .map(RecordBatch::compression)
        .collect();
    assert_eq!(
        codecs,
        [Compression::Zstd, Compression::Zstd, Compression::None]
    );
    let texts: Vec<_> = values(&read).into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["a", "b", "a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn settings_for_all_topics_that_cannot_work_are_refused_at_open() {
    for (name, value) in [
        ("log.retention.ms", "x"),
        ("retention.ms", "1"),
        ("message.max.bytes", "1"),
    ] {
        let settings = BrokerConfig {
            log_settings: [(name.to_owned(), value.to_owned())].into(),
            ..config()
        };
        let refused = Broker::open(Arc::new(MemoryStorage::new()), settings).await;
        let reason = refused.expect_err("refused").to_string();
        assert!(reason.contains(name), "{reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_memory_for_answers_is_refused_at_open() {
    let settings = BrokerConfig {
        fetch_answers_max_bytes: 0,
        ..config()
    };
    let refused = Broker::open(Arc::new(MemoryStorage::new()), settings).await;
    let reason = refused.expect_err("refused").to_string();
    assert!(reason.contains("fetch.answers.max.bytes"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn a_list_grows_no_longer_than_a_string_of_the_protocol() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let topic = (2, "orders");
    let name = "leader.replication.throttled.replicas";
    for (times, expected) in [(1, ErrorCode::NONE), (2, ErrorCode::INVALID_CONFIG)] {
        let more: Vec<String> = (0..2_000).map(|at| format!("{times}:{at:07}")).collect();
        let more = vec![operation(name, APPEND, Some(&more.join(",")))];
        let code = change(&mut client, topic, more, false).await;
        assert_eq!(code, expected, "addition {times}");
    }
    assert!(setting(&mut client, "orders", name).await.0.len() > 10_000);
}
