//! A machine that sleeps while its broker is up: what was written down ages by the wall clock.
//!
//! Invariants: time is virtual; each test has a wall clock of its own.
//! Never: waits for real time.

use super::harness::*;
use crate::{Broker, BrokerConfig, Clock};
use bytes::Bytes;
use millstream_log::MemoryStorage;
use millstream_protocol::messages::InitProducerIdRequest;
use millstream_protocol::{Compression, ErrorCode, ProducerStamp, RecordBatchBuilder};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

const DAY_MS: i64 = 86_400_000;

async fn with_wall(wall: fn() -> i64) -> Broker {
    let config = BrokerConfig {
        clock: Clock::starting_at(START_MS).with_wall(wall),
        ..config()
    };
    let broker = Broker::open(Arc::new(MemoryStorage::new()), config);
    broker.await.expect("opens")
}

fn record(timestamp_ms: i64, value: &'static str, stamp: ProducerStamp) -> Bytes {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    builder.append(timestamp_ms, Some(b"k"), Some(value.as_bytes()), &[]);
    builder.finish(stamp).expect("builds")
}

#[tokio::test(start_paused = true)]
async fn records_of_after_a_sleep_are_deleted_when_their_retention_time_is_over() {
    static WALL_MS: AtomicI64 = AtomicI64::new(START_MS + 8 * DAY_MS);
    let broker = with_wall(|| WALL_MS.load(Ordering::Relaxed)).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let batch = record(START_MS + 8 * DAY_MS, "old", ProducerStamp::NONE);
    let taken = client.produce("orders", 0, batch).await;
    assert_eq!(taken.error_code, ErrorCode::NONE);
    tokio::time::sleep(Duration::from_secs(301)).await;
    let kept = client.fetch("orders", 0, 0, 1).await;
    assert_eq!(kept.log_start_offset, 0);
    WALL_MS.store(START_MS + 16 * DAY_MS, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(301)).await;
    let gone = client.fetch("orders", 0, 1, 0).await;
    assert_eq!(
        (gone.error_code, gone.log_start_offset),
        (ErrorCode::NONE, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn records_of_after_a_sleep_are_compacted_when_they_are_due() {
    let broker = with_wall(|| START_MS + 8 * DAY_MS).await;
    let mut client = Client::connect(&broker);
    let settings = [
        ("cleanup.policy", "compact"),
        ("max.compaction.lag.ms", "1000"),
    ];
    client.create_topic_with("table", 1, &settings).await;
    for value in ["1", "2", "3"] {
        let batch = record(START_MS + 8 * DAY_MS - 5_000, value, ProducerStamp::NONE);
        let taken = client.produce("table", 0, batch).await;
        assert_eq!(taken.error_code, ErrorCode::NONE);
    }
    tokio::time::sleep(Duration::from_secs(16)).await;
    let data = client.fetch("table", 0, 0, 1).await;
    assert_eq!(values(&data), [(2, "3".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_slept_with_the_machine_is_still_recognised() {
    static WALL_MS: AtomicI64 = AtomicI64::new(START_MS);
    let broker = with_wall(|| WALL_MS.load(Ordering::Relaxed)).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let stamp = ProducerStamp {
        producer_id: 900,
        producer_epoch: 0,
        base_sequence: 0,
        transactional: false,
    };
    let batch = record(START_MS, "once", stamp);
    let first = client.produce("orders", 0, batch.clone()).await;
    assert_eq!((first.error_code, first.base_offset), (ErrorCode::NONE, 0));
    WALL_MS.store(START_MS + 2 * DAY_MS, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(301)).await;
    let again = client.produce("orders", 0, batch).await;
    assert_eq!((again.error_code, again.base_offset), (ErrorCode::NONE, 0));
    let data = client.fetch("orders", 0, 0, 1).await;
    assert_eq!(data.high_watermark, 1, "written once");
}

#[tokio::test(start_paused = true)]
async fn a_transactional_id_that_was_used_after_a_sleep_is_known_after_a_restart() {
    let storage = MemoryStorage::new();
    let slept = Clock::starting_at(START_MS).with_wall(|| START_MS + 8 * DAY_MS);
    let restarted = Clock::starting_at(START_MS + 8 * DAY_MS);
    let opened = |clock| {
        let config = BrokerConfig { clock, ..config() };
        Broker::open(Arc::new(storage.clone()), config)
    };
    let broker = opened(slept).await.expect("opens");
    let request = InitProducerIdRequest {
        transactional_id: Some("orders-0".to_owned()),
        transaction_timeout_ms: 60_000,
        ..Default::default()
    };
    let begun = Client::connect(&broker).ask(4, request).await;
    assert_eq!(begun.error_code, ErrorCode::NONE);
    broker.close().await.expect("closes");
    let broker = opened(restarted).await.expect("opens");
    tokio::time::sleep(Duration::from_secs(2 * 3_600)).await;
    let found = broker.node().transactions.describe("orders-0");
    assert_eq!(
        found.expect("is known").last_update_ms,
        START_MS + 8 * DAY_MS
    );
}
