//! `__transaction_state` after compaction: ids go on where they stood, and no producer id returns.
//!
//! Invariants: time is virtual; the broker's own loop compacts.
//! Never: part of a run that waits for real time.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_log::MemoryStorage;
use millstream_protocol::ErrorCode;

use super::test_producer::{Producer, committed, describe};
use crate::Broker;
use crate::tests::harness::{Client, open};
use crate::topics::TRANSACTION_STATE_TOPIC;

fn compact_often(broker: &Broker, topic: &str) {
    let settings = [
        ("cleanup.policy", "compact"),
        ("max.compaction.lag.ms", "1"),
        ("delete.retention.ms", "0"),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let directory = &broker.node().directory;
    let altered = directory.alter_topic(topic, BTreeMap::from(settings));
    altered.expect("altered");
}

fn record_bytes(broker: &Broker) -> u64 {
    let topic = broker.node().directory.topic(TRANSACTION_STATE_TOPIC);
    let logs = topic.expect("it is there").partitions;
    logs.iter().map(|log| log.size_bytes()).sum()
}

#[tokio::test(start_paused = true)]
async fn t1_c5_transactional_ids_go_on_after_their_log_was_compacted() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    compact_often(&broker, TRANSACTION_STATE_TOPIC);
    Client::connect(&broker).create_topic("out", 1).await;
    let mut first = Producer::start(&broker, "job-1").await;
    let mut other = Producer::start(&broker, "job-2").await;
    for round in 0..60 {
        for producer in [&mut first, &mut other] {
            let value = format!("{}-{round}", producer.transactional_id);
            assert_eq!(producer.send("out", 0, &value).await, ErrorCode::NONE);
            assert_eq!(producer.end(round % 2 == 0).await, ErrorCode::NONE);
        }
    }
    // One transaction is left open, one id is left complete.
    assert_eq!(first.send("out", 0, "open").await, ErrorCode::NONE);
    let before = record_bytes(&broker);
    tokio::time::sleep(Duration::from_secs(31)).await;
    let after = record_bytes(&broker);
    assert!(after * 10 < before, "{before} -> {after}");
    let values = committed(&broker, "out", 0).await;
    assert_eq!(values.len(), 60);

    for image in [storage.crash(), storage.fork()] {
        let again = open(image).await;
        let open_one = describe(&again, "job-1").await;
        assert_eq!(open_one.transaction_state, "Ongoing");
        assert_eq!(open_one.producer_id, first.identity.id);
        let complete = describe(&again, "job-2").await;
        assert_eq!(complete.transaction_state, "CompleteAbort");
        let mut successor = Producer::start(&again, "job-1").await;
        assert_eq!(successor.identity.id, first.identity.id);
        assert!(successor.identity.epoch > first.identity.epoch);
        let third = Producer::start(&again, "job-3").await;
        assert!(third.identity.id > first.identity.id.max(other.identity.id));
        assert_eq!(successor.send("out", 0, "new").await, ErrorCode::NONE);
        assert_eq!(successor.end(true).await, ErrorCode::NONE);
        let mut expected = values.clone();
        expected.push("new".to_owned());
        assert_eq!(committed(&again, "out", 0).await, expected);
    }
}
