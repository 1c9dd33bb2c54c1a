//! Power cuts, and networks that lose frames and answers.
//!
//! Invariants: what has no answer may have happened.
//! Never: a fault that the seed does not decide.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use millstream::client::{Admin, Producer, TransactionError};
use millstream::testing::NetworkFaults;
use tests::copying::{self, numbers};
use tests::under_test::{self, BrokerUnderTest};

use super::producer;

/// Row 58: an acknowledgement says that the record survives a power cut. It says nothing about
/// readers.
#[tokio::test(start_paused = true)]
async fn an_acknowledged_record_survives_a_power_cut() -> anyhow::Result<()> {
    if under_test::left_out() {
        return Ok(());
    }
    let cluster = BrokerUnderTest::start(1).await?;
    let producer = Producer::idempotent()
        .client(cluster.client(1))
        .connect(&cluster)
        .await?;
    for number in 0..20 {
        let acknowledged = producer.send(cluster.record("out", number)).await?.await?;
        cluster.ours().crash().await?;
        let found = numbers(&cluster, "out").await?;
        assert_eq!(found.len() as u64, number + 1, "{acknowledged:?} is gone");
    }
    assert_eq!(numbers(&cluster, "out").await?, (0..20).collect::<Vec<_>>());
    Ok(())
}

/// Row 19, row 20: a restarted producer has a new id, and what it sends again is there again; with
/// a transactional id the predecessor's open work is undone first.
#[tokio::test(start_paused = true)]
async fn only_a_transactional_id_deduplicates_over_a_restart() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(2).await?;
    for number in [1, 2] {
        let builder = Producer::idempotent().client(cluster.client(number));
        let producer = builder.connect(&cluster).await?;
        producer.send(cluster.record("plain", 7)).await?.await?;
        producer.close(Duration::ZERO).await;
    }
    let partition = cluster.partition("plain", 3);
    let admin = Admin::with(&cluster, cluster.client(9));
    let producers = admin.describe_producers(&[partition]).await?;
    let ids: BTreeSet<i64> = producers
        .values()
        .flatten()
        .map(|found| found.producer_id)
        .collect();
    assert_eq!(ids.len(), 2, "{producers:?}");
    assert_eq!(
        numbers(&cluster, "plain").await?,
        [7, 7],
        "sent again is there again"
    );

    let first = producer(&cluster, 3, "t").await?;
    first.begin()?;
    first.send(cluster.record("out", 7)).await?.await?;
    // It dies before its commit; the next one starts over.
    first.close(Duration::ZERO).await;
    let second = producer(&cluster, 4, "t").await?;
    second.begin()?;
    second.send(cluster.record("out", 7)).await?.await?;
    second.commit().await?;
    assert_eq!(numbers(&cluster, "out").await?, [7]);
    Ok(())
}

/// Row 123, row 127: without a coordinator nothing ends; a commit without an answer is asked for
/// again, and takes effect once.
#[tokio::test(start_paused = true)]
async fn a_commit_without_an_answer_is_asked_for_again() -> anyhow::Result<()> {
    for (round, power_cut) in [false, true].into_iter().enumerate() {
        let cluster = BrokerUnderTest::start(3).await?;
        if power_cut && cluster.is_kafka() {
            // Its power is not ours to cut.
            break;
        }
        let producer = producer(&cluster, 1, "t").await?;
        for transaction in 0..10_u64 {
            producer.begin()?;
            producer
                .send(cluster.record("out", transaction))
                .await?
                .await?;
            cluster.network().set_faults(NetworkFaults::CUT);
            let cut_off = async {
                // Around the moment at which the commit's request and answer are under way.
                tokio::time::sleep(Duration::from_micros(40 * transaction)).await;
                if power_cut {
                    cluster.ours().crash().await?;
                }
                tokio::time::sleep(Duration::from_millis(700)).await;
                cluster.network().set_faults(NetworkFaults::NONE);
                anyhow::Ok(())
            };
            let commit = async {
                loop {
                    match producer.commit().await {
                        Err(
                            TransactionError::CommitInDoubt { .. }
                            | TransactionError::Timeout { .. },
                        ) => {}
                        other => return other,
                    }
                }
            };
            let (healed, committed) = tokio::join!(cut_off, commit);
            healed?;
            committed?;
        }
        let found = numbers(&cluster, "out").await?;
        assert_eq!(found, (0..10).collect::<Vec<_>>(), "round {round}");
    }
    Ok(())
}

/// Row 60: records of one key keep their order from producer to output, whatever the network does
/// on the way.
#[tokio::test(start_paused = true)]
async fn order_per_key_holds_end_to_end_on_a_rough_network() -> anyhow::Result<()> {
    for seed in under_test::seeds(4) {
        let cluster = BrokerUnderTest::with(seed, NetworkFaults::ROUGH).await?;
        let producer = Producer::idempotent()
            .client(cluster.client(1))
            .batch_size(400)
            .connect(&cluster)
            .await?;
        for number in 0..800_u64 {
            // Five keys; the value is the order.
            let key = format!("key-{}", number % 5);
            let record = millstream::client::ProducerRecord::new(cluster.name("in")).key(key);
            drop(producer.send(record.value(number.to_string())).await?);
        }
        producer.flush().await?;
        let mut running = copying::job(&cluster, 2, "t").start().await?;
        copying::caught_up(&cluster, &mut running, Duration::from_secs(300)).await?;
        running.stop().await?;
        cluster.network().set_faults(NetworkFaults::NONE);
        let (records, _) = cluster.read("out").await?;
        assert_eq!(records.len(), 800, "seed {seed}");
        let mut last: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for record in &records {
            let value = String::from_utf8_lossy(record.value.as_deref().unwrap()).into_owned();
            let value: u64 = value.parse()?;
            let before = last.insert(record.key.as_deref().unwrap().to_vec(), value);
            assert!(
                before.is_none_or(|before| before < value),
                "seed {seed}: {before:?} {value}"
            );
        }
    }
    Ok(())
}
