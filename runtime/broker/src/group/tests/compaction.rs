//! `__consumer_offsets` after compaction: smaller, and the same to whoever asks.
//!
//! Invariants: see the names of the tests.
//! Never: waits for real time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_log::MemoryStorage;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::*;

use super::transactions::{end, init, send_offsets};
use super::*;
use crate::Broker;
use crate::tests::harness::{Client, open};
use crate::topics::CONSUMER_OFFSETS_TOPIC;

/// Nanoseconds that this thread has run, whatever else the machine does.
fn cpu_ns() -> i64 {
    let schedule = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ran = schedule.split_whitespace().next();
    ran.and_then(|ns| ns.parse().ok()).unwrap_or_default()
}

/// Every committed offset of the group, with its metadata.
async fn everything(client: &mut Client) -> BTreeMap<(String, i32), (i64, Option<String>)> {
    let answer = client.ask(9, fetch_request(true, None)).await;
    let group = &answer.groups[0];
    assert_eq!(group.error_code, ErrorCode::NONE);
    let mut found = BTreeMap::new();
    for topic in &group.topics {
        for it in &topic.partitions {
            assert_eq!(it.error_code, ErrorCode::NONE);
            let key = (topic.name.clone(), it.partition_index);
            found.insert(key, (it.committed_offset, it.metadata.clone()));
        }
    }
    found
}

fn stored_bytes(broker: &Broker) -> u64 {
    let topic = broker.node().directory.topic(CONSUMER_OFFSETS_TOPIC);
    let logs = topic.expect("it is there").partitions;
    logs.iter().map(|log| log.size_bytes()).sum()
}

#[tokio::test(start_paused = true)]
async fn g3_b13_two_hundred_thousand_commits_are_compacted_and_read_back_the_same() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 400).await;
    let member = join_alone(&mut client, None).await;
    let mut producer = init(&mut client).await;
    for round in 0..500_i64 {
        let offsets: Vec<_> = (0..400)
            .map(|p| ("orders", p, round + i64::from(p)))
            .collect();
        let answer = client.ask(9, commit_request(&member, &offsets)).await;
        assert!(
            answer
                .topics
                .iter()
                .all(|it| it.partitions[0].error_code.is_ok())
        );
        if round % 25 == 7 {
            let sent = send_offsets(&mut client, producer, &member, 1_000_000 + round).await;
            assert_eq!(sent, ErrorCode::NONE);
            producer = end(&mut client, producer, round % 2 == 0).await;
        }
    }
    // The last word on partition 0 is a transaction's, and it was aborted.
    send_offsets(&mut client, producer, &member, 2_000_000).await;
    end(&mut client, producer, false).await;
    let before = everything(&mut client).await;
    assert_eq!(before.len(), 400);
    assert_eq!(before[&("orders".to_owned(), 0)].0, 499);
    let bytes_before = stored_bytes(&broker);
    let started = cpu_ns();
    open(storage.fork()).await.halt();
    println!(
        "opened before in {} ms of CPU time",
        (cpu_ns() - started) / 1_000_000
    );

    // The broker's own loop does it.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let bytes_after = stored_bytes(&broker);
    assert!(
        bytes_after * 100 < bytes_before,
        "{bytes_before} -> {bytes_after}"
    );
    assert_eq!(everything(&mut client).await, before);
    println!("200,000 commits: {bytes_before} bytes before, {bytes_after} after compaction");

    for (how, image) in [("power cut", storage.crash()), ("killed", storage.fork())] {
        let started = cpu_ns();
        let again = open(image).await;
        let spent = Duration::from_nanos((cpu_ns() - started).unsigned_abs());
        let mut client = Client::connect(&again);
        assert_eq!(everything(&mut client).await, before, "{how}");
        println!("opened after {how} in {spent:?} of CPU time");
    }
    broker.close().await.expect("closes");
    let again = open(storage).await;
    let mut client = Client::connect(&again);
    assert_eq!(everything(&mut client).await, before);
}

#[tokio::test(start_paused = true)]
async fn b15_offsets_that_were_deleted_stay_deleted_when_their_tombstones_are_gone() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let directory = &broker.node().directory;
    let settings = [
        ("cleanup.policy", "compact"),
        ("max.compaction.lag.ms", "1"),
        ("delete.retention.ms", "0"),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let altered = directory.alter_topic(CONSUMER_OFFSETS_TOPIC, BTreeMap::from(settings));
    altered.expect("altered");
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 2).await;
    client.create_topic("customers", 1).await;
    let member = Member::none();
    for (topic, partition) in [("orders", 0), ("orders", 1), ("customers", 0)] {
        let request = commit_request(&member, &[(topic, partition, 5)]);
        client.ask(9, request).await;
    }
    let request = DeleteTopicsRequest {
        topic_names: vec!["orders".to_owned()],
        timeout_ms: 1_000,
        ..Default::default()
    };
    client.ask(5, request).await;
    let before = everything(&mut client).await;
    assert_eq!(
        before.keys().cloned().collect::<Vec<_>>(),
        [("customers".to_owned(), 0)]
    );
    for _ in 0..3 {
        // Something new, or nothing would be due.
        let request = commit_request(&member, &[("customers", 0, 5)]);
        client.ask(9, request).await;
        tokio::time::sleep(Duration::from_secs(16)).await;
    }
    assert_eq!(everything(&mut client).await, before);
    let again = open(Arc::new(storage).fork()).await;
    assert_eq!(everything(&mut Client::connect(&again)).await, before);
}
