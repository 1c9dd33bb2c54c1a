//! Jobs that have had nothing to do for longer than the broker remembers them.
//!
//! Invariants: what the broker has forgotten costs a transaction that is done again, and no
//! instance; a successor is told apart from nobody.
//! Never: waits for seven days, even in virtual time: the settings are shorter.

use std::time::Duration;

use millstream::BrokerOptions;
use millstream::client::{Admin, Producer, TransactionError};
use millstream::formats::protocol::ErrorCode;
use millstream::streams::StreamsError;
use tests::copying;
use tests::under_test::{self, BrokerUnderTest};

use super::caught_up;

/// Longer than anything is remembered.
const IDLE: Duration = Duration::from_secs(300);

/// A broker that forgets producers and transactional ids after a minute.
async fn forgetful(seed: u64) -> anyhow::Result<BrokerUnderTest> {
    let options = BrokerOptions::new().configure(|config| {
        config.producer_id_expiration_ms = 60_000;
        config.transactional_id_expiration_ms = 60_000;
        config.transaction_remove_expired_scan_ms = 1_000;
    });
    BrokerUnderTest::ours_with(seed, options).await
}

/// Idle until the coordinator has forgotten the id, which is checked.
async fn forgotten(cluster: &BrokerUnderTest, transactional_id: &str) -> anyhow::Result<()> {
    tokio::time::sleep(IDLE).await;
    let admin = Admin::with(cluster, cluster.client(9));
    let described = admin.describe_transaction(transactional_id).await;
    let error = described.expect_err("the id is forgotten");
    assert_eq!(error.code(), Some(ErrorCode::TRANSACTIONAL_ID_NOT_FOUND));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_job_goes_on_whose_transactional_ids_were_forgotten() -> anyhow::Result<()> {
    if under_test::left_out() {
        return Ok(());
    }
    for workers in [1, 2] {
        let cluster = forgetful(workers).await?;
        let job = copying::static_job(&cluster, 1, "t").threads(workers as usize);
        let mut running = job.start().await?;
        for round in 0..3 {
            copying::produce(&cluster, round * 40..round * 40 + 40).await?;
            caught_up(&cluster, &mut running).await?;
            for worker in 0..workers {
                let id = format!("{}-{worker}", cluster.name("t"));
                forgotten(&cluster, &id).await?;
            }
        }
        copying::check_exactly_once(&cluster, 120).await?;
        running.stop().await?;
    }
    Ok(())
}

/// The same, but while it was idle another instance took its identity over.
#[tokio::test(start_paused = true)]
async fn a_forgotten_instance_with_a_successor_is_fenced() -> anyhow::Result<()> {
    if under_test::left_out() {
        return Ok(());
    }
    let cluster = forgetful(7).await?;
    copying::produce(&cluster, 0..40).await?;
    let mut first = copying::job(&cluster, 1, "t").start().await?;
    caught_up(&cluster, &mut first).await?;
    forgotten(&cluster, &format!("{}-0", cluster.name("t"))).await?;
    let mut second = copying::job(&cluster, 2, "t").start().await?;
    tokio::time::sleep(Duration::from_secs(30)).await;
    copying::produce(&cluster, 40..80).await?;
    let ended = tokio::time::timeout(Duration::from_secs(60), first.ended()).await?;
    let error = ended.expect_err("two instances with one identity");
    assert!(
        matches!(
            error,
            StreamsError::Transaction(TransactionError::Fenced { .. })
        ),
        "{error}"
    );
    caught_up(&cluster, &mut second).await?;
    copying::check_exactly_once(&cluster, 80).await?;
    second.stop().await?;
    Ok(())
}

/// The partitions have forgotten the producer, which goes on with the next sequence.
#[tokio::test(start_paused = true)]
async fn an_idempotent_producer_goes_on_that_was_forgotten() -> anyhow::Result<()> {
    if under_test::left_out() {
        return Ok(());
    }
    let cluster = forgetful(9).await?;
    let builder = Producer::idempotent().client(cluster.client(1));
    let producer = builder.connect(&cluster).await?;
    for number in 0..8 {
        let sent = producer.send(cluster.record("in", number)).await?;
        sent.await?;
        if number % 4 == 3 {
            tokio::time::sleep(IDLE).await;
        }
    }
    assert_eq!(
        copying::numbers(&cluster, "in").await?,
        (0..8).collect::<Vec<_>>()
    );
    Ok(())
}
