//! What transactions cost: printed, never asserted.
//!
//! Run with `cargo test --release -p millstream-broker -- --ignored --nocapture transaction::cost`.
//!
//! Invariants: no disk; the figures are those of the code.
//! Never: part of an ordinary test run.

use std::sync::Arc;
use std::time::Duration;

use millstream_log::{AppendOrigin, Durability, MemoryStorage};
use millstream_protocol::{Compression, ErrorCode, ProducerStamp, RecordBatchBuilder};
use tokio::time::Instant;

use super::machine_tests::partition;
use super::model::Transaction;
use super::record;
use super::state::State;
use super::test_producer::Producer;
use super::verification::Mode;
use crate::tests::harness::{Client, START_MS, config};
use crate::{Broker, BrokerConfig, Clock};

async fn in_memory(storage: MemoryStorage) -> Broker {
    let clock = Clock::starting_at(START_MS);
    let config = BrokerConfig {
        durability: Durability::Memory,
        clock,
        ..config()
    };
    Broker::open(Arc::new(storage), config)
        .await
        .expect("opens")
}

fn each(spent: Duration, count: u32) -> u128 {
    spent.as_nanos() / u128::from(count)
}

#[tokio::test]
#[ignore = "a measurement"]
async fn cost_of_verification_and_of_a_transaction() {
    const ROUNDS: u32 = 100_000;
    let broker = in_memory(MemoryStorage::new()).await;
    Client::connect(&broker).create_topic("out", 4).await;
    let mut producer = Producer::start(&broker, "job-1").await;
    let node = broker.node().clone();
    let partitions: Vec<_> = (0..4).map(partition).collect();
    let identity = producer.identity;
    let gate = || {
        let (id, epoch) = (identity.id, identity.epoch);
        node.transactions
            .verify_or_add("job-1", id, epoch, &partitions, Mode::Add)
    };
    assert_eq!(gate(), Ok(()));
    let started = Instant::now();
    for _ in 0..ROUNDS {
        assert_eq!(gate(), Ok(()));
    }
    println!(
        "gate, 4 partitions already added: {} ns",
        each(started.elapsed(), ROUNDS)
    );
    assert_eq!(producer.end(true).await, ErrorCode::NONE);

    let rounds = 10_000;
    let started = Instant::now();
    for _ in 0..rounds {
        for partition in 0..4 {
            assert_eq!(producer.send("out", partition, "x").await, ErrorCode::NONE);
        }
    }
    let sending = started.elapsed();
    assert_eq!(producer.end(true).await, ErrorCode::NONE);
    let started = Instant::now();
    for _ in 0..rounds {
        for partition in 0..4 {
            assert_eq!(producer.send("out", partition, "x").await, ErrorCode::NONE);
        }
        assert_eq!(producer.end(true).await, ErrorCode::NONE);
    }
    let transaction = started.elapsed().saturating_sub(sending);
    println!(
        "begin and commit over 4 partitions, data apart: {} ns",
        each(transaction, rounds)
    );
}

#[tokio::test]
#[ignore = "a measurement"]
async fn cost_of_loading_a_million_records() {
    const IDS: usize = 1_000;
    const RECORDS: usize = 1_000_000;
    let storage = MemoryStorage::new();
    let broker = in_memory(storage.clone()).await;
    let topic = broker
        .node()
        .partitions
        .topic("__transaction_state")
        .expect("there");
    let mut transaction = Transaction {
        epoch: 0,
        state: State::CompleteCommit,
        partitions: (0..4).map(partition).collect(),
        timeout_ms: 60_000,
        client_version: 2,
        ..Transaction::new(1, START_MS)
    };
    for chunk in 0..RECORDS / 1_000 {
        transaction.epoch = i16::try_from(chunk).expect("small");
        let mut builder = RecordBatchBuilder::new(Compression::None);
        for id in 0..1_000 {
            let (key, value) = record::encode(&format!("job-{}", id % IDS), &transaction).unwrap();
            builder.append(START_MS, Some(&key), Some(&value), &[]);
        }
        let batch = builder.finish(ProducerStamp::NONE).expect("builds");
        topic.partitions[chunk % 4]
            .append(batch, AppendOrigin::Coordinator)
            .expect("appended");
    }
    broker.close().await.expect("closes");
    let started = Instant::now();
    let broker = in_memory(storage).await;
    println!(
        "open with {RECORDS} records of {IDS} ids: {:?}",
        started.elapsed()
    );
    assert!(broker.node().transactions.describe("job-999").is_some());
}
