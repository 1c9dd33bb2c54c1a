//! Why an instance ended.
//!
//! Invariants: a stop that could not commit what was processed is not a clean one; a fenced
//! instance knows its own epoch and its successor's.
//! Never: a process.

use std::time::Duration;

use millstream::client::{Admin, NewTopic, TransactionError};
use millstream::formats::protocol::ApiKey;
use millstream::streams::StreamsError;
use tests::copying;
use tests::gate::{Gate, Kind};
use tests::under_test::BrokerUnderTest;

use super::caught_up;

/// Nothing to read, so nothing is committed: only the group tells the first instance that there is
/// a second one.
#[tokio::test(start_paused = true)]
async fn an_idle_instance_that_was_replaced_names_both_epochs() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(1).await?;
    copying::produce(&cluster, 0..40).await?;
    let instance = |number| copying::static_job(&cluster, number, "copying-1");
    let mut first = instance(1).start().await?;
    caught_up(&cluster, &mut first).await?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let second = instance(2).start().await?;
    let ended = tokio::time::timeout(Duration::from_secs(60), first.ended()).await?;
    let error = ended.expect_err("two instances with one identity");
    let StreamsError::Fenced {
        transactional_id,
        our_epoch,
        newer_epoch: Some(newer_epoch),
        ..
    } = &error
    else {
        panic!("{error}");
    };
    let expected = format!("{}-0", cluster.name("copying-1"));
    assert_eq!(*transactional_id, expected);
    assert!(newer_epoch > our_epoch, "{error}");
    let text = error.to_string();
    for part in [
        expected.clone(),
        format!("epoch {our_epoch}"),
        format!("epoch {newer_epoch}"),
    ] {
        assert!(text.contains(&part), "{text}");
    }
    second.stop().await?;
    Ok(())
}

/// The output topic refuses what was written since the last commit.
#[tokio::test(start_paused = true)]
async fn a_stop_whose_last_commit_is_refused_says_so() -> anyhow::Result<()> {
    /// Twenty digits, as key and as value.
    const LARGE: u64 = 10_000_000_000_000_000_000;
    let cluster = BrokerUnderTest::start(2).await?;
    let admin = Admin::with(&cluster, cluster.client(9));
    admin
        .create_topic(&NewTopic::new(cluster.name("in"), 4))
        .await?;
    let job = |number| copying::job(&cluster, number, "t").set("commit.interval.ms", 9_000);
    let running = job(1).start().await?;
    // The topic for its outputs comes later than the job, and takes next to nothing.
    // The marker that ends a transaction fits, as a Kafka needs it to; the record does not.
    let narrow = NewTopic::new(cluster.name("out"), 4).config("max.message.bytes", 80);
    admin.create_topic(&narrow).await?;
    // One record, so that none comes after the first refusal: that would be met before the stop.
    copying::produce(&cluster, LARGE..LARGE + 1).await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let stopped = running.stop().await;
    let error = stopped.expect_err("nothing was committed");
    assert!(matches!(error, StreamsError::LastCommit), "{error}");
    assert!(error.to_string().contains("start again"), "{error}");
    assert!(copying::numbers(&cluster, "out").await?.is_empty());
    // As it says: the next start does it again.
    cluster.delete("out").await?;
    let mut again = job(2).start().await?;
    caught_up(&cluster, &mut again).await?;
    again.stop().await?;
    assert_eq!(copying::numbers(&cluster, "out").await?, [LARGE]);
    copying::check_committed(&cluster).await
}

/// A commit that comes late is refused with the same code whether the coordinator's time-out or a
/// successor came first; a successor is a reason to stop.
#[tokio::test(start_paused = true)]
async fn a_late_commit_of_an_instance_with_a_successor_ends_it() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(3).await?;
    let gate = Gate::new(&cluster);
    copying::produce(&cluster, 0..40).await?;
    let mut first = copying::job(&cluster, 1, "t")
        .connect(&gate)
        .start()
        .await?;
    caught_up(&cluster, &mut first).await?;
    gate.hold(Kind::Request(ApiKey::EndTxn), 1, Duration::from_secs(20));
    copying::produce(&cluster, 40..80).await?;
    while gate.waits() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut second = copying::job(&cluster, 2, "t").start().await?;
    let ended = tokio::time::timeout(Duration::from_secs(120), first.ended()).await?;
    let error = ended.expect_err("it has a successor");
    let StreamsError::Transaction(TransactionError::Fenced {
        our_epoch,
        newer_epoch: Some(newer_epoch),
        ..
    }) = &error
    else {
        panic!("{error}");
    };
    assert!(newer_epoch > our_epoch, "{error}");
    caught_up(&cluster, &mut second).await?;
    second.stop().await?;
    copying::check_exactly_once(&cluster, 80).await
}
