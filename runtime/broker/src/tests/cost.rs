//! What a request costs in process: CPU time of client and broker together, and of topics the time
//! on this disk; printed, never asserted.
//!
//! Run with `cargo test --release -p millstream-broker -- --ignored --nocapture cost`.
//!
//! Invariants: the same batch of 100 records of 100 bytes throughout; files in the page cache.
//! Never: part of an ordinary test run.

use super::harness::*;
use crate::{Broker, BrokerConfig, Placement};
use millstream_log::{DiskStorage, Durability};
use millstream_protocol::messages::create_topics::CreatableTopic;
use millstream_protocol::messages::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const ROUNDS: i64 = 20_000;

/// Nanoseconds that this thread has run, whatever else the machine does.
fn cpu_ns() -> i64 {
    let schedule = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ran = schedule.split_whitespace().next();
    ran.and_then(|ns| ns.parse().ok()).unwrap_or_default()
}

#[tokio::test]
#[ignore = "a measurement"]
async fn cost_of_produce_and_fetch_in_process() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = BrokerConfig {
        durability: Durability::Os,
        placement: Placement::Runtime {
            sync_delay: Duration::ZERO,
        },
        ..config()
    };
    let storage = Arc::new(DiskStorage::new(directory.path()));
    let broker = Broker::open(storage, config).await.expect("opens");
    let mut client = Client::connect(&broker);
    let id = client.create_topic("orders", 1).await;
    let value = "x".repeat(100);
    let records = batch(&vec![&*value; 100]);
    let mut produce = produce_request("", 0, records);
    produce.topic_data[0].topic_id = id;
    let mut fetch = fetch_request("", 0, 0, 0);
    fetch.topics[0].topic_id = id;

    let started = cpu_ns();
    for _ in 0..ROUNDS {
        client.send(13, &produce).await;
        client.receive::<ProduceRequest>(13).await;
    }
    let produced = cpu_ns();
    for round in 0..ROUNDS {
        fetch.topics[0].partitions[0].fetch_offset = round * 100;
        fetch.topics[0].partitions[0].partition_max_bytes = 1;
        client.send(18, &fetch).await;
        let answer = client.receive::<FetchRequest>(18).await;
        assert!(answer.responses[0].partitions[0].records.is_some());
    }
    let fetched = cpu_ns();
    for _ in 0..ROUNDS {
        client.ask(0, HeartbeatRequest::default()).await;
    }
    let ended = cpu_ns();
    println!(
        "produce {} ns, fetch {} ns, heartbeat {} ns a request",
        (produced - started) / ROUNDS,
        (fetched - produced) / ROUNDS,
        (ended - fetched) / ROUNDS
    );
}

fn creation(names: impl Iterator<Item = String>, partitions: i32) -> CreateTopicsRequest {
    let new = names.map(|name| CreatableTopic {
        name,
        num_partitions: partitions,
        replication_factor: -1,
        ..Default::default()
    });
    CreateTopicsRequest {
        topics: new.collect(),
        ..Default::default()
    }
}

/// Topics `t0`, `t1`, …, and how long it took to create them, or to delete them.
async fn many_topics(client: &mut Client, count: usize, partitions: i32) -> [Duration; 2] {
    let names = || (0..count).map(|number| format!("t{number}"));
    let create = creation(names(), partitions);
    let started = Instant::now();
    let answer = client.ask(7, create).await;
    assert!(answer.topics.iter().all(|topic| topic.error_code.is_ok()));
    let created = started.elapsed();
    let delete = DeleteTopicsRequest {
        topic_names: names().collect(),
        ..Default::default()
    };
    let started = Instant::now();
    let answer = client.ask(5, delete).await;
    assert!(
        answer
            .responses
            .iter()
            .all(|topic| topic.error_code.is_ok())
    );
    [created, started.elapsed()]
}

#[tokio::test]
#[ignore = "a measurement"]
async fn cost_of_a_hundred_topics_in_one_request_and_of_the_first_stop_after_a_thousand() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = BrokerConfig {
        durability: Durability::Os,
        placement: Placement::Threads,
        ..config()
    };
    let storage = Arc::new(DiskStorage::new(directory.path()));
    let broker = Broker::open(storage, config).await.expect("opens");
    let mut client = Client::connect(&broker);
    let [created, deleted] = many_topics(&mut client, 100, 1).await;
    println!("100 topics: created in {created:?}, deleted in {deleted:?}");
    let create = creation((0..1_000).map(|number| format!("p{number}")), 3);
    let started = Instant::now();
    client.ask(7, create).await;
    println!("1,000 topics of 3: created in {:?}", started.elapsed());
    drop(client);
    let started = Instant::now();
    broker.close().await.expect("closes");
    println!("the first stop after that: {:?}", started.elapsed());
}
