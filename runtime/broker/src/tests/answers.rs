//! Answers that wait behind an older one: few, whatever is asked.
//!
//! Invariants: see the names of the tests.
//! Never: looks at memory; `tests/pressure.rs` measures it.

use super::harness::*;
use millstream_protocol::messages::*;
use std::time::Duration;

/// As long as any test of this file takes, in virtual time.
const LONG_MS: i32 = 600_000;

/// Lets everything that can go on go on.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

fn megabyte(letter: &str) -> String {
    letter.repeat(1_000_000)
}

#[tokio::test(start_paused = true)]
async fn nothing_more_begins_behind_large_answers_that_wait() {
    let broker = broker().await;
    let (mut client, mut other) = (Client::connect(&broker), Client::connect(&broker));
    for topic in ["empty", "full", "late"] {
        other.create_topic(topic, 1).await;
    }
    other.produce("full", 0, batch(&[&megabyte("a")])).await;
    client
        .send(12, &fetch_request("empty", 0, 0, LONG_MS))
        .await;
    for _ in 0..8 {
        client.send(12, &fetch_request("full", 0, 0, 0)).await;
    }
    client
        .send(9, &produce_request("late", 0, batch(&["z"])))
        .await;
    settle().await;
    let late = other.fetch("late", 0, 0, 0).await;
    assert_eq!(late.high_watermark, 0, "the last request has not begun");
    other.produce("empty", 0, batch(&["b"])).await;
    client.receive::<FetchRequest>(12).await;
    for _ in 0..8 {
        let answer = client.receive::<FetchRequest>(12).await;
        assert_eq!(values(&answer.responses[0].partitions[0]).len(), 1);
    }
    client.receive::<ProduceRequest>(9).await;
}

#[tokio::test(start_paused = true)]
async fn fetches_that_wait_behind_another_take_their_data_when_it_can_leave() {
    let broker = broker().await;
    let (mut client, mut other) = (Client::connect(&broker), Client::connect(&broker));
    for topic in ["empty", "full"] {
        other.create_topic(topic, 1).await;
    }
    client
        .send(12, &fetch_request("empty", 0, 0, LONG_MS))
        .await;
    let waiting = FetchRequest {
        max_bytes: 10 << 20,
        ..fetch_request("full", 0, 0, LONG_MS)
    };
    for _ in 0..8 {
        let mut request = waiting.clone();
        request.topics[0].partitions[0].partition_max_bytes = 10 << 20;
        client.send(12, &request).await;
    }
    settle().await;
    other.produce("full", 0, batch(&[&megabyte("a")])).await;
    settle().await;
    other.produce("full", 0, batch(&[&megabyte("b")])).await;
    settle().await;
    other.produce("empty", 0, batch(&["c"])).await;
    client.receive::<FetchRequest>(12).await;
    let mut seen = Vec::new();
    for _ in 0..8 {
        let answer = client.receive::<FetchRequest>(12).await;
        seen.push(values(&answer.responses[0].partitions[0]).len());
    }
    assert_eq!(
        seen,
        [1, 1, 2, 2, 2, 2, 2, 2],
        "two held a megabyte, the rest waited"
    );
}
