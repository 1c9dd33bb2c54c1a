//! The consumer's part in a read-process-write loop.
//!
//! Invariants: offsets move by the transaction, and by nothing else.
//! Never: a sleep that is longer than a session.

use std::time::Duration;

use tests::copying::{self, ByHand, GROUP, numbers};
use tests::under_test::BrokerUnderTest;

/// Row 114: a consumer commits nothing by itself, neither with time, nor with a poll, nor when it
/// is closed.
#[tokio::test(start_paused = true)]
async fn a_consumer_commits_nothing_by_itself() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(1).await?;
    copying::produce(&cluster, 0..40).await?;
    let mut by_hand = ByHand::start(&cluster, 1, "t", |builder| builder).await?;
    by_hand.process(40).await?;
    let consumer = by_hand.consumer.take().expect("a consumer");
    assert!(!consumer.group_metadata()?.auto_commit);
    for _ in 0..30 {
        consumer.poll(Duration::from_secs(1)).await?;
    }
    consumer.close().await?;
    assert!(cluster.committed(GROUP).await?.is_empty());
    Ok(())
}

/// Row 129: after an abort the consumer goes back to the committed offsets; a loop that polls on
/// instead skips the batch.
#[tokio::test(start_paused = true)]
async fn after_an_abort_the_same_records_come_again_only_if_the_consumer_goes_back()
-> anyhow::Result<()> {
    for goes_back in [true, false] {
        let cluster = BrokerUnderTest::start(2).await?;
        copying::produce(&cluster, 0..20).await?;
        let mut by_hand = ByHand::start(&cluster, 1, "t", |builder| builder).await?;
        by_hand.process(20).await?;
        by_hand.commit(&by_hand.membership()?).await?;
        copying::produce(&cluster, 20..40).await?;
        by_hand.process(20).await?;
        by_hand.producer.abort().await?;
        let consumer = by_hand.consumer.as_ref().expect("a consumer");
        if goes_back {
            for partition in consumer.assignment() {
                consumer.seek_to_committed(&partition)?;
            }
        } else {
            copying::produce(&cluster, 40..60).await?;
        }
        by_hand.process(20).await?;
        by_hand.commit(&by_hand.membership()?).await?;
        let copied = numbers(&cluster, "out").await?;
        if goes_back {
            assert_eq!(copied, (0..40).collect::<Vec<_>>());
        } else {
            let skipped: Vec<u64> = (0..20).chain(40..60).collect();
            assert_eq!(copied, skipped, "the aborted batch never comes again");
        }
    }
    Ok(())
}

/// Row 160: what comes out has the key that went in, and the offsets are committed with it.
#[tokio::test(start_paused = true)]
async fn outputs_keep_their_keys_and_offsets_go_with_them() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(3).await?;
    copying::produce(&cluster, 0..200).await?;
    let mut running = copying::job(&cluster, 1, "t").start().await?;
    copying::caught_up(&cluster, &mut running, Duration::from_secs(30)).await?;
    let progress = running.stop().await?;
    copying::check_exactly_once(&cluster, 200).await?;
    let (records, _) = cluster.read("out").await?;
    assert!(
        records
            .iter()
            .all(|record| record.key == record.value && record.key.is_some())
    );
    assert_eq!((progress.commits > 0, progress.rewinds), (true, 0));
    Ok(())
}
