//! Settings of a broker that runs: changed, in force, told with their sources, kept.
//!
//! Invariants: see the names of the tests.
//! Never: looks into the directory.

use super::configs::{APPEND, BROKER, DELETE, SET, change, describe, operation, setting};
use super::harness::*;
use crate::Broker;
use bytes::Bytes;
use millstream_log::MemoryStorage;
use millstream_protocol::messages::{alter_configs, *};
use millstream_protocol::{Compression, ErrorCode, ProducerStamp, RecordBatch, RecordBatchBuilder};
use std::net::Ipv4Addr;
use std::sync::Arc;

const THIS: (i8, &str) = (BROKER, "1");
const ALL: (i8, &str) = (BROKER, "");

async fn set(client: &mut Client, broker: (i8, &str), name: &str, value: &str) {
    let configs = vec![operation(name, SET, Some(value))];
    let code = change(client, broker, configs, false).await;
    assert_eq!(code, ErrorCode::NONE, "{name}={value}");
}

async fn delete(client: &mut Client, broker: (i8, &str), name: &str) {
    let configs = vec![operation(name, DELETE, None)];
    let code = change(client, broker, configs, false).await;
    assert_eq!(code, ErrorCode::NONE, "{name}");
}

/// Value, source, and whether it is read-only.
async fn of_broker(client: &mut Client, name: &str) -> (Option<String>, i8, bool) {
    let found = describe(client, BROKER, "1", &[name]).await;
    let config = found[0].clone();
    (config.value, config.config_source, config.read_only)
}

fn large() -> Bytes {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    builder.append(START_MS, Some(b"k"), Some(&[7; 200]), &[]);
    builder.finish(ProducerStamp::NONE).expect("builds")
}

#[tokio::test(start_paused = true)]
async fn what_is_given_to_a_broker_that_runs_holds_for_topics_without_a_setting_of_their_own() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let own = [("max.message.bytes", "1000")];
    client.create_topic_with("audit", 1, &own).await;
    set(&mut client, ALL, "message.max.bytes", "90").await;
    let written = |data: produce::PartitionProduceResponse| data.error_code;
    for (topic, expected) in [
        ("orders", ErrorCode::MESSAGE_TOO_LARGE),
        ("audit", ErrorCode::NONE),
    ] {
        let found = written(client.produce(topic, 0, large()).await);
        assert_eq!(found, expected, "{topic}");
    }
    set(&mut client, THIS, "message.max.bytes", "900").await;
    let found = written(client.produce("orders", 0, large()).await);
    assert_eq!(found, ErrorCode::NONE, "this broker's counts more");
    client.create_topic("late", 1).await;
    broker.halt();

    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    delete(&mut client, THIS, "message.max.bytes").await;
    for topic in ["orders", "late"] {
        let found = written(client.produce(topic, 0, large()).await);
        assert_eq!(found, ErrorCode::MESSAGE_TOO_LARGE, "{topic}");
    }
    delete(&mut client, ALL, "message.max.bytes").await;
    let found = written(client.produce("orders", 0, large()).await);
    assert_eq!(found, ErrorCode::NONE);
}

#[tokio::test(start_paused = true)]
async fn each_layer_of_a_setting_is_told_and_the_first_counts() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let name = "log.segment.bytes";
    let default = "5:log.segment.bytes=1073741824";
    set(&mut client, ALL, name, "2000000").await;
    let found = setting(&mut client, "orders", "segment.bytes").await;
    let all = "3:log.segment.bytes=2000000";
    assert_eq!(found, ("2000000".into(), 3, format!("{all} {default}")));
    set(&mut client, THIS, name, "3000000").await;
    let found = setting(&mut client, "orders", "segment.bytes").await;
    let this = "2:log.segment.bytes=3000000";
    let synonyms = format!("{this} {all} {default}");
    assert_eq!(found, ("3000000".into(), 2, synonyms));
    let told = of_broker(&mut client, name).await;
    assert_eq!(told, (Some("3000000".to_owned()), 2, false));
    let of_all = describe(&mut client, BROKER, "", &[name]).await;
    assert_eq!(of_all[0].value.as_deref(), Some("2000000"));
    assert_eq!((of_all[0].config_source, of_all[0].synonyms.len()), (3, 1));
    // As a cluster of Kafka keeps it.
    let found = setting(&mut client, "orders", "min.insync.replicas").await;
    let synonyms = "3:min.insync.replicas=1 5:min.insync.replicas=1";
    assert_eq!(found, ("1".into(), 3, synonyms.into()));
}

#[tokio::test(start_paused = true)]
async fn batches_come_in_the_codec_that_the_broker_was_given_last() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    for codec in ["lz4", "gzip"] {
        set(&mut client, THIS, "compression.type", codec).await;
        client.produce("orders", 0, batch(&["a"])).await;
    }
    let mut bytes = client.fetch("orders", 0, 0, 0).await.records.expect("some");
    let mut codecs = Vec::new();
    while let Some(batch) = RecordBatch::split_from(&mut bytes).expect("whole") {
        codecs.push(batch.compression());
    }
    assert_eq!(codecs, [Compression::Lz4, Compression::Gzip]);
}

#[tokio::test(start_paused = true)]
async fn lists_grow_and_what_has_no_effect_is_kept_and_told() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let configs = vec![
        operation("background.threads", SET, Some("9")),
        operation("log.cleanup.policy", APPEND, Some("compact")),
    ];
    let code = change(&mut client, THIS, configs, false).await;
    assert_eq!(code, ErrorCode::NONE);
    let policy = setting(&mut client, "orders", "cleanup.policy").await;
    assert_eq!((policy.0.as_str(), policy.1), ("delete,compact", 2));
    let threads = of_broker(&mut client, "background.threads").await;
    assert_eq!(threads, (Some("9".to_owned()), 2, false));
    // What is added to is the holder's own list, or the default: no other layer's.
    let less = vec![operation("log.cleanup.policy", SET, Some("compact"))];
    assert_eq!(
        change(&mut client, THIS, less, false).await,
        ErrorCode::NONE
    );
    let more = vec![operation("log.cleanup.policy", APPEND, Some("delete"))];
    assert_eq!(change(&mut client, ALL, more, false).await, ErrorCode::NONE);
    let more = vec![operation("cleanup.policy", APPEND, Some("delete"))];
    let topic = (2, "orders");
    assert_eq!(
        change(&mut client, topic, more, false).await,
        ErrorCode::NONE
    );
    let policy = setting(&mut client, "orders", "cleanup.policy").await;
    assert_eq!((policy.0.as_str(), policy.1), ("delete", 1));
    delete(&mut client, THIS, "log.cleanup.policy").await;
    let policy = of_broker(&mut client, "log.cleanup.policy").await;
    assert_eq!(policy, (Some("delete".to_owned()), 3, false));
}

#[tokio::test(start_paused = true)]
async fn the_older_way_replaces_all_that_a_broker_was_given() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    for (name, value) in [
        ("log.flush.interval.messages", "1234"),
        ("log.flush.interval.ms", "9223372036854775807"),
    ] {
        let resource = alter_configs::AlterConfigsResource {
            resource_type: BROKER,
            resource_name: "1".to_owned(),
            configs: vec![alter_configs::AlterableConfig {
                name: name.to_owned(),
                value: Some(value.to_owned()),
            }],
        };
        let request = AlterConfigsRequest {
            resources: vec![resource],
            validate_only: false,
        };
        let answer = client.ask(2, request).await.responses[0].clone();
        assert_eq!(answer.error_code, ErrorCode::NONE, "{name}");
        let told = of_broker(&mut client, name).await;
        assert_eq!(told, (Some(value.to_owned()), 2, false));
    }
    let gone = of_broker(&mut client, "log.flush.interval.messages").await;
    assert_eq!(gone.1, 5);
}

#[tokio::test(start_paused = true)]
async fn what_a_broker_was_started_with_stays() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    for (broker, name, code) in [
        (THIS, "node.id", ErrorCode::INVALID_REQUEST),
        (ALL, "num.partitions", ErrorCode::INVALID_REQUEST),
        (THIS, "no.such", ErrorCode::INVALID_REQUEST),
        (THIS, "min.insync.replicas", ErrorCode::INVALID_CONFIG),
        (
            (BROKER, "2"),
            "log.retention.ms",
            ErrorCode::INVALID_REQUEST,
        ),
        (
            (BROKER, "one"),
            "log.retention.ms",
            ErrorCode::INVALID_REQUEST,
        ),
    ] {
        let configs = vec![
            operation("log.roll.ms", SET, Some("5")),
            operation(name, SET, Some("5")),
        ];
        let found = change(&mut client, broker, configs, false).await;
        assert_eq!(found, code, "{broker:?} {name}");
    }
    let told = of_broker(&mut client, "log.roll.ms").await;
    assert_eq!(told, (None, 5, false));
    let gone = vec![operation("min.insync.replicas", DELETE, None)];
    let found = change(&mut client, ALL, gone, false).await;
    assert_eq!(found, ErrorCode::INVALID_CONFIG);
}

#[tokio::test]
async fn a_broker_tells_where_it_listens() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let nowhere = of_broker(&mut client, "advertised.listeners").await;
    assert_eq!(nowhere, (None, 5, true));
    let address = broker.listen((Ipv4Addr::LOCALHOST, 0).into()).await;
    let expected = format!("PLAINTEXT://{}", address.expect("listens"));
    for name in ["advertised.listeners", "listeners"] {
        let told = of_broker(&mut client, name).await;
        assert_eq!(told, (Some(expected.clone()), 4, true), "{name}");
    }
}

#[tokio::test]
async fn clients_are_told_the_advertised_listener() {
    let mut config = config();
    let given = "PLAINTEXT://[2001:db8::7]:9";
    config.set("advertised.listeners", given).expect("taken");
    let storage = Arc::new(MemoryStorage::new());
    let broker = Broker::open(storage, config).await.expect("opens");
    broker
        .listen((Ipv4Addr::LOCALHOST, 0).into())
        .await
        .expect("listens");
    let mut client = Client::connect(&broker);
    let metadata = client.ask(12, MetadataRequest::default()).await;
    let told = &metadata.brokers[0];
    assert_eq!((&*told.host, told.port), ("2001:db8::7", 9));
    let told = of_broker(&mut client, "advertised.listeners").await;
    assert_eq!(told, (Some(given.to_owned()), 4, true));
}
