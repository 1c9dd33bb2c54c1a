//! What an acknowledgement promises, and what happens when the disk fails.
//!
//! Invariants: see the names of the tests.
//! Never: looks at the journal.

use super::harness::*;
use crate::{Broker, BrokerConfig, BrokerError, Placement};
use millstream_log::storage::{Fault, OperationKind, Unsynced};
use millstream_log::{Durability, FaultyStorage, MemoryStorage};
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::*;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

async fn open_with_delay(storage: MemoryStorage, sync_delay: Duration) -> Broker {
    let config = BrokerConfig {
        placement: Placement::Runtime { sync_delay },
        ..config()
    };
    Broker::open(Arc::new(storage), config)
        .await
        .expect("opens")
}

#[tokio::test(start_paused = true)]
async fn nothing_is_acknowledged_or_read_before_its_sync() {
    let delay = Duration::from_millis(10);
    let broker = open_with_delay(MemoryStorage::new(), delay).await;
    let (mut writer, mut reader) = (Client::connect(&broker), Client::connect(&broker));
    writer.create_topic("orders", 1).await;
    let started = Instant::now();
    writer
        .send(9, &produce_request("orders", 0, batch(&["a"])))
        .await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(!writer.has_answer(), "not durable yet");
    let early = reader.fetch("orders", 0, 0, 0).await;
    assert!(values(&early).is_empty(), "not durable, so not readable");
    assert_eq!(early.high_watermark, 0);
    writer.receive::<ProduceRequest>(9).await;
    assert_eq!(started.elapsed(), delay);
    assert_eq!(values(&reader.fetch("orders", 0, 0, 0).await).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn requests_of_one_moment_share_a_sync() {
    let delay = Duration::from_millis(10);
    let broker = open_with_delay(MemoryStorage::new(), delay).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let started = Instant::now();
    for _ in 0..10 {
        client
            .send(9, &produce_request("orders", 0, batch(&["a"])))
            .await;
    }
    for _ in 0..10 {
        client.receive::<ProduceRequest>(9).await;
    }
    assert!(
        started.elapsed() <= 2 * delay,
        "{:?} for ten requests",
        started.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn acks_1_waits_for_the_disk_too() {
    let storage = MemoryStorage::new();
    let broker = open_with_delay(storage.clone(), Duration::from_millis(10)).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let request = ProduceRequest {
        acks: 1,
        ..produce_request("orders", 0, batch(&["a"]))
    };
    client.ask(9, request).await;
    broker.halt();
    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    assert_eq!(values(&client.fetch("orders", 0, 0, 0).await).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn acks_0_is_held_back_by_a_slow_disk_like_any_other() {
    let broker = open_with_delay(MemoryStorage::new(), Duration::from_secs(30)).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let request = ProduceRequest {
        acks: 0,
        ..produce_request("orders", 0, batch(&["a"]))
    };
    let in_flight_max = broker.config().connection_in_flight_max;
    let sending = async {
        loop {
            client.send(9, &request).await;
        }
    };
    let patience = Duration::from_secs(20);
    let sent = tokio::time::timeout(patience, sending).await;
    assert!(sent.is_err(), "the connection takes no more");
    let log = broker.node().partition("orders", 0).expect("there");
    let appended = usize::try_from(log.offsets().log_end).unwrap_or(usize::MAX);
    assert_eq!(appended, in_flight_max);
}

#[tokio::test(start_paused = true)]
async fn x4_a_slow_sync_times_out_and_the_retry_finds_its_batch() {
    let broker = open_with_delay(MemoryStorage::new(), Duration::from_secs(30)).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let stamp = millstream_protocol::ProducerStamp {
        producer_id: 5,
        producer_epoch: 0,
        base_sequence: 0,
        transactional: false,
    };
    let request = ProduceRequest {
        timeout_ms: 1_000,
        ..produce_request("orders", 0, stamped(&["a"], stamp))
    };
    let answer = client.ask(9, request.clone()).await;
    let error = answer.responses[0].partition_responses[0].error_code;
    assert_eq!(error, ErrorCode::REQUEST_TIMED_OUT);
    let patient = ProduceRequest {
        timeout_ms: 60_000,
        ..request
    };
    let answer = client.ask(9, patient).await;
    let answer = &answer.responses[0].partition_responses[0];
    assert_eq!(
        (answer.error_code, answer.base_offset),
        (ErrorCode::NONE, 0)
    );
    let read = client.fetch("orders", 0, 0, 0).await;
    assert_eq!((values(&read).len(), read.high_watermark), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn l2_after_a_failed_sync_nothing_is_acknowledged_until_reopened() {
    let storage = FaultyStorage::new();
    let broker = open(storage.clone()).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    client.produce("orders", 0, batch(&["kept"])).await;
    storage.inject(Fault {
        kind: OperationKind::SyncFile,
        path_contains: "journal".to_owned(),
        after: 0,
        error: io::ErrorKind::Other,
    });
    for _ in 0..2 {
        let answer = client.produce("orders", 0, batch(&["lost"])).await;
        assert_eq!(answer.error_code, ErrorCode::KAFKA_STORAGE_ERROR);
    }
    let read = client.fetch("orders", 0, 0, 0).await;
    assert_eq!(
        values(&read),
        [(0, "kept".to_owned())],
        "what was acknowledged is still served"
    );
    broker.halt();
    let broker = open(storage.crash_with(millstream_log::storage::Unsynced::Lost)).await;
    let mut client = Client::connect(&broker);
    assert_eq!(
        values(&client.fetch("orders", 0, 0, 0).await),
        [(0, "kept".to_owned())]
    );
    let answer = client.produce("orders", 0, batch(&["next"])).await;
    assert_eq!(
        (answer.error_code, answer.base_offset),
        (ErrorCode::NONE, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_halted_broker_ends_its_connections_and_writes_nothing() {
    let storage = MemoryStorage::new();
    let broker = open_with_delay(storage.clone(), Duration::from_millis(10)).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    client
        .send(9, &produce_request("orders", 0, batch(&["a"])))
        .await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    broker.halt();
    assert!(
        client.next_frame().await.is_none(),
        "no answer, just the end"
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    let refused = broker.close().await.expect_err("halted");
    assert!(matches!(refused, BrokerError::Stopped));
    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    assert!(values(&client.fetch("orders", 0, 0, 0).await).is_empty());
}

#[tokio::test(start_paused = true)]
async fn closing_answers_what_has_begun() {
    let broker = open_with_delay(MemoryStorage::new(), Duration::from_millis(10)).await;
    let (mut writer, mut reader) = (Client::connect(&broker), Client::connect(&broker));
    writer.create_topic("orders", 1).await;
    reader
        .send(12, &fetch_request("orders", 0, 0, 600_000))
        .await;
    writer
        .send(9, &produce_request("orders", 0, batch(&["a"])))
        .await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let started = Instant::now();
    broker.close().await.expect("closes");
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "a waiting fetch holds up nothing"
    );
    let answer = writer.receive::<ProduceRequest>(9).await;
    assert_eq!(
        answer.responses[0].partition_responses[0].error_code,
        ErrorCode::NONE
    );
    reader.receive::<FetchRequest>(12).await;
    assert!(reader.next_frame().await.is_none());
    broker.close().await.expect("a second close does nothing");
}

#[tokio::test]
async fn every_durability_serves_on_threads() {
    for durability in [
        Durability::Sync,
        Durability::Interval(Duration::from_millis(1)),
        Durability::Os,
        Durability::Memory,
    ] {
        let storage = MemoryStorage::new();
        let config = BrokerConfig {
            placement: Placement::Threads,
            durability,
            ..config()
        };
        let broker = Broker::open(Arc::new(storage.clone()), config)
            .await
            .expect("opens");
        let mut client = Client::connect(&broker);
        client.create_topic("orders", 1).await;
        let answer = client.produce("orders", 0, batch(&["a"])).await;
        assert_eq!(answer.error_code, ErrorCode::NONE, "{durability}");
        assert_eq!(
            values(&client.fetch("orders", 0, 0, 0).await).len(),
            1,
            "{durability}"
        );
        drop(client);
        broker.close().await.expect("closes");
        let broker = open(storage.fork()).await;
        let mut client = Client::connect(&broker);
        assert_eq!(
            values(&client.fetch("orders", 0, 0, 0).await).len(),
            1,
            "{durability}"
        );
    }
}

/// A broker that syncs at intervals, on a disk that fails once, and a client that has its topic.
async fn at_intervals(
    storage: &FaultyStorage,
    interval: Duration,
    (kind, path): (OperationKind, &str),
) -> (Broker, Client) {
    let config = BrokerConfig {
        durability: Durability::Interval(interval),
        ..config()
    };
    let broker = Broker::open(Arc::new(storage.clone()), config).await;
    let broker = broker.expect("opens");
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    storage.inject(Fault {
        kind,
        path_contains: path.to_owned(),
        after: 0,
        error: io::ErrorKind::Other,
    });
    (broker, client)
}

#[tokio::test(start_paused = true)]
async fn x2_a_sync_at_intervals_that_could_not_be_done_is_done_at_the_next_one() {
    let storage = FaultyStorage::new();
    let interval = Duration::from_millis(100);
    let fault = (OperationKind::Write, "orders-0/leader-epoch");
    let (broker, mut client) = at_intervals(&storage, interval, fault).await;
    let first = client.produce("orders", 0, batch(&["a"])).await;
    assert_eq!(first.error_code, ErrorCode::NONE);
    tokio::time::sleep(interval * 3 / 2).await;
    let meanwhile = client.produce("orders", 0, batch(&["b"])).await;
    assert_eq!(meanwhile.error_code, ErrorCode::KAFKA_STORAGE_ERROR);
    tokio::time::sleep(interval).await;
    let later = client.produce("orders", 0, batch(&["c"])).await;
    assert_eq!((later.error_code, later.base_offset), (ErrorCode::NONE, 1));
    tokio::time::sleep(interval * 2).await;
    broker.halt();
    let broker = open(storage.crash_with(Unsynced::Lost)).await;
    let mut client = Client::connect(&broker);
    let kept = values(&client.fetch("orders", 0, 0, 0).await);
    assert_eq!(kept, [(0, "a".to_owned()), (1, "c".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn l2_a_sync_at_intervals_that_failed_is_not_tried_again() {
    let storage = FaultyStorage::new();
    let interval = Duration::from_millis(100);
    let fault = (OperationKind::SyncFile, "orders-0");
    let (broker, mut client) = at_intervals(&storage, interval, fault).await;
    client.produce("orders", 0, batch(&["a"])).await;
    tokio::time::sleep(interval * 5).await;
    let refused = client.produce("orders", 0, batch(&["b"])).await;
    assert_eq!(refused.error_code, ErrorCode::KAFKA_STORAGE_ERROR);
    assert!(broker.node().directory.poisoned());
}
