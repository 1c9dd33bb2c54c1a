//! What a request costs in process, without a disk: printed, never asserted.
//!
//! Run with `cargo test --release -p millstream-broker -- --ignored --nocapture cost`.
//!
//! Invariants: the same batch of 100 records of 100 bytes throughout.
//! Never: part of an ordinary test run.

use super::harness::*;
use crate::{Broker, BrokerConfig, Placement};
use millstream_log::{Durability, MemoryStorage};
use millstream_protocol::messages::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const ROUNDS: i64 = 20_000;

#[tokio::test]
#[ignore = "a measurement"]
async fn cost_of_produce_and_fetch_in_process() {
    let config = BrokerConfig {
        durability: Durability::Memory,
        placement: Placement::Runtime {
            sync_delay: Duration::ZERO,
        },
        ..config()
    };
    let storage = Arc::new(MemoryStorage::new());
    let broker = Broker::open(storage, config).await.expect("opens");
    let mut client = Client::connect(&broker);
    let id = client.create_topic("orders", 1).await;
    let value = "x".repeat(100);
    let records = batch(&vec![&*value; 100]);
    let mut produce = produce_request("", 0, records);
    produce.topic_data[0].topic_id = id;
    let mut fetch = fetch_request("", 0, 0, 0);
    fetch.topics[0].topic_id = id;

    let mut spent = [Duration::ZERO; 3];
    for round in 0..ROUNDS {
        let started = Instant::now();
        client.send(13, &produce).await;
        client.receive::<ProduceRequest>(13).await;
        let produced = Instant::now();
        fetch.topics[0].partitions[0].fetch_offset = round * 100;
        client.send(18, &fetch).await;
        let answer = client.receive::<FetchRequest>(18).await;
        let fetched = Instant::now();
        client.ask(0, ApiVersionsRequest::default()).await;
        spent[0] += produced - started;
        spent[1] += fetched - produced;
        spent[2] += fetched.elapsed();
        assert!(answer.responses[0].partitions[0].records.is_some());
    }
    let each = |spent: Duration| spent.as_nanos() as i64 / ROUNDS;
    println!(
        "produce {} ns, fetch {} ns, api_versions {} ns a request",
        each(spent[0]),
        each(spent[1]),
        each(spent[2])
    );
}
