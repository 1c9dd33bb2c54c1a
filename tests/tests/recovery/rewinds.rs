//! A partition that changes hands while its old transaction fails.
//!
//! Invariants: a worker's wish to go back counts for the hand-over in which it had the partition.
//! Never: more than one instance.

use std::time::Duration;

use millstream::formats::protocol::ApiKey;
use tests::copying;
use tests::gate::{Gate, Kind};
use tests::under_test::{self, BrokerUnderTest};

use super::caught_up;

/// The member is given up while its worker waits for the answer to a commit. It joins again, gets
/// the same partitions, and only then the old commit is refused: what the worker gives up is the
/// old hand-over's. The partitions are its own again already, and are not handed over once more
/// from an offset that has been passed meanwhile.
#[tokio::test(start_paused = true)]
async fn a_partition_that_came_back_while_its_old_commit_failed_is_processed_once()
-> anyhow::Result<()> {
    for seed in under_test::seeds(4) {
        let cluster = BrokerUnderTest::start(seed).await?;
        let gate = Gate::new(&cluster);
        copying::produce(&cluster, 0..40).await?;
        let job = copying::job(&cluster, 1, "t").connect(&gate);
        let mut running = job
            .set("session.timeout.ms", 10_000)
            .set("heartbeat.interval.ms", 1_000)
            .set("transaction.timeout.ms", 60_000)
            .start()
            .await?;
        caught_up(&cluster, &mut running).await?;
        // Longer than a session; and the offsets of the old membership come later still.
        gate.hold(Kind::Request(ApiKey::Heartbeat), 1, Duration::from_secs(15));
        gate.hold(
            Kind::Request(ApiKey::TxnOffsetCommit),
            1,
            Duration::from_secs(20),
        );
        // Whoever asks where a partition stands hears of it when others have got further.
        let second = Duration::from_secs(1);
        gate.hold(Kind::Response(ApiKey::OffsetFetch), usize::MAX, second);
        copying::produce(&cluster, 40..80).await?;
        tokio::time::sleep(Duration::from_secs(40)).await;
        gate.open();
        copying::produce(&cluster, 80..120).await?;
        caught_up(&cluster, &mut running).await?;
        let progress = running.stop().await?;
        assert!(progress.rewinds > 0, "the old commit was not refused");
        copying::check_exactly_once(&cluster, 120).await?;
    }
    Ok(())
}
