//! What arrives late, or was answered to nobody: rows P8 and T5 of the fault catalogue, with the
//! real client over the simulated network.
//!
//! Invariants: a late end of one transaction never ends the next one; a batch whose acknowledgement
//! was lost is there once.
//! Never: real time.

#![allow(clippy::unwrap_used, reason = "a test ends where a step fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millstream::TopicPartition;
use millstream::client::consumer::{AutoOffsetReset, Consumer};
use millstream::client::{Producer, ProducerRecord};
use millstream::formats::protocol::{ApiKey, Decoder};
use millstream::testing::{Direction, NetworkFaults, SimulatedNetwork, TestCluster};

/// Counts the requests of one kind that arrive.
fn arrivals(network: &SimulatedNetwork, api: ApiKey) -> Arc<AtomicU64> {
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    network.observe(move |event| {
        let key = Decoder::new(event.frame.clone()).i16().ok();
        if event.direction == Direction::Request && event.arrived && key == Some(api as i16) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    count
}

/// Every value that a reader of committed records is given until nothing comes any more.
async fn committed_values(cluster: &TestCluster) -> Vec<String> {
    let calm = cluster.another_network("calm", NetworkFaults::NONE);
    let reader = Consumer::builder()
        .client(cluster.client(9))
        .auto_offset_reset(AutoOffsetReset::Earliest)
        .connect(&calm)
        .await
        .unwrap();
    reader
        .assign(vec![TopicPartition::new("orders", 0)])
        .unwrap();
    let mut values = Vec::new();
    for _ in 0..4 {
        for record in reader.poll(Duration::from_millis(500)).await.unwrap() {
            values.push(String::from_utf8(record.value.unwrap().to_vec()).unwrap());
        }
    }
    values
}

fn order(value: &'static str) -> ProducerRecord {
    ProducerRecord::new("orders").partition(0).value(value)
}

/// The first EndTxn is held up on its connection, the client gives that up and commits over another
/// one, and the first arrives while the next transaction is open. True where it did.
async fn late_end(seed: u64, late_commits: bool) -> bool {
    let cluster = TestCluster::start(seed).await.unwrap();
    let network = cluster.network();
    let mut client = cluster.client(1);
    client.request_timeout = Duration::from_secs(1);
    let producer = Producer::transactional("shop")
        .client(client)
        .connect(&cluster)
        .await
        .unwrap();
    producer.init_transactions().await.unwrap();
    producer.begin().unwrap();
    producer.send(order("first")).await.unwrap().await.unwrap();
    let ends = arrivals(network, ApiKey::EndTxn);
    let ending = tokio::spawn({
        let producer = producer.clone();
        async move {
            let ended = if late_commits {
                producer.commit().await
            } else {
                producer.abort().await
            };
            ended.unwrap();
        }
    });
    network.set_faults(NetworkFaults {
        delay_max: Duration::from_secs(4),
        ..NetworkFaults::NONE
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    network.set_faults(NetworkFaults::NONE);
    ending.await.unwrap();
    let arrived_before = ends.load(Ordering::Relaxed);
    producer.begin().unwrap();
    producer.send(order("second")).await.unwrap().await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let was_late = ends.load(Ordering::Relaxed) > arrived_before;

    let first = if late_commits { vec!["first"] } else { vec![] };
    assert_eq!(
        committed_values(&cluster).await,
        first,
        "seed {seed}: the second is still open"
    );
    if late_commits {
        producer.abort().await.unwrap();
        assert_eq!(
            committed_values(&cluster).await,
            first,
            "seed {seed}: the second was aborted"
        );
    } else {
        producer.commit().await.unwrap();
        assert_eq!(
            committed_values(&cluster).await,
            ["second"],
            "seed {seed}: it was committed"
        );
    }
    was_late
}

#[tokio::test(start_paused = true)]
async fn t5_a_late_end_of_one_transaction_does_not_end_the_next() {
    for late_commits in [true, false] {
        let mut late = 0;
        for seed in 0..20 {
            late += u32::from(late_end(seed, late_commits).await);
        }
        assert!(
            late >= 5,
            "only {late} of 20 ends were late: the test shows nothing"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn p8_a_batch_whose_acknowledgement_was_lost_in_a_crash_is_there_once_at_its_first_offset() {
    let cluster = TestCluster::start(8).await.unwrap();
    let network = cluster.network().clone();
    let mut client = cluster.client(1);
    client.request_timeout = Duration::from_secs(1);
    let producer = Producer::idempotent()
        .client(client)
        .connect(&cluster)
        .await
        .unwrap();
    producer.send(order("before")).await.unwrap().await.unwrap();
    // The request arrives, the answer is lost: every frame that is sent after the arrival is.
    let (cut, produced) = (network.clone(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&produced);
    network.observe(move |event| {
        let key = Decoder::new(event.frame.clone()).i16().ok();
        let is_produce =
            event.direction == Direction::Request && key == Some(ApiKey::Produce as i16);
        if is_produce && event.arrived && counted.fetch_add(1, Ordering::Relaxed) == 0 {
            cut.set_faults(NetworkFaults::CUT);
        }
    });
    let delivery = producer.send(order("once")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(
        produced.load(Ordering::Relaxed),
        1,
        "the broker has seen it once"
    );
    cluster.crash().await.unwrap();
    network.set_faults(NetworkFaults::NONE);
    assert_eq!(delivery.await.unwrap().offset, 1);
    assert!(
        produced.load(Ordering::Relaxed) >= 2,
        "and again after the crash"
    );
    producer.send(order("after")).await.unwrap().await.unwrap();
    assert_eq!(
        committed_values(&cluster).await,
        ["before", "once", "after"]
    );
}
