//! Time that passes without anybody's fault, and the transactions that it costs.
//!
//! Invariants: a transaction that was open for too long is done again; only a record that is slow
//! by itself is blamed.
//! Never: a rule for one stall that is kept for ever.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millstream::formats::protocol::ApiKey;
use millstream::streams::{Placement, Streams, StreamsBuilder, strings};
use tests::copying;
use tests::gate::{Gate, Kind};
use tests::under_test::{self, BrokerUnderTest, stall};

use super::caught_up;

/// The copying job, which stalls in the middle of the first record that it processes.
fn stalling(cluster: &BrokerUnderTest, time: Duration) -> Streams {
    let builder = StreamsBuilder::new();
    let processed = AtomicU64::new(0);
    builder
        .stream(&cluster.name("in"), strings())
        .map_values(move |_, number: String| {
            if processed.fetch_add(1, Ordering::Relaxed) == 0 {
                stall(time);
            }
            number
        })
        .to(&cluster.name("out"), strings());
    Streams::new(
        &cluster.name(copying::GROUP),
        builder.build().expect("sound"),
    )
    .connect(cluster)
    .client(cluster.client(1))
    .placement(Placement::Runtime)
    .transactional_id(cluster.name("t"))
}

/// The outputs and the offsets were accepted, and then the coordinator gave the transaction up
/// before its end arrived: nobody has taken over, so it is done again.
#[tokio::test(start_paused = true)]
async fn a_commit_that_comes_after_the_time_out_is_done_again() -> anyhow::Result<()> {
    for seed in under_test::seeds(4) {
        let cluster = BrokerUnderTest::start(seed).await?;
        let gate = Gate::new(&cluster);
        copying::produce(&cluster, 0..40).await?;
        let mut running = copying::job(&cluster, 1, "t")
            .connect(&gate)
            .start()
            .await?;
        caught_up(&cluster, &mut running).await?;
        for round in 1..4 {
            let late = Duration::from_secs(13 + round);
            gate.hold(Kind::Request(ApiKey::EndTxn), 1, late);
            copying::produce(&cluster, round * 40..round * 40 + 40).await?;
            caught_up(&cluster, &mut running).await?;
        }
        let progress = running.stop().await?;
        assert!(progress.rewinds >= 3, "no commit was late: {progress:?}");
        copying::check_exactly_once(&cluster, 160).await?;
    }
    Ok(())
}

/// One stall while a record is alone in its transaction, longer than that may last, or than a
/// session: it is not the record that was slow. And what was learnt from it is forgotten: soon many
/// records share a transaction again.
#[tokio::test(start_paused = true)]
async fn a_stall_is_not_taken_for_a_slow_record() -> anyhow::Result<()> {
    // In real time, ten seconds beyond a session have to do.
    let longest = if under_test::kafka().is_some() {
        55
    } else {
        100
    };
    for seconds in [12, longest] {
        let cluster = BrokerUnderTest::start(seconds).await?;
        copying::produce(&cluster, 0..1).await?;
        let job = stalling(&cluster, Duration::from_secs(seconds));
        let mut running = job.start().await?;
        caught_up(&cluster, &mut running).await?;
        copying::produce(&cluster, 1..3_000).await?;
        caught_up(&cluster, &mut running).await?;
        let progress = running.stop().await?;
        copying::check_exactly_once(&cluster, 3_000).await?;
        assert!(progress.commits < 100, "{progress:?}");
    }
    Ok(())
}

/// The broker takes its time with one record, twice, for longer than a transaction may last. The
/// record is processed in no time, and is not blamed.
#[tokio::test(start_paused = true)]
async fn a_slow_broker_is_not_taken_for_a_slow_record() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(2).await?;
    let gate = Gate::new(&cluster);
    copying::produce(&cluster, 0..1).await?;
    let builder = StreamsBuilder::new();
    let numbers = builder.stream(&cluster.name("in"), strings());
    numbers.clone().to(&cluster.name("out"), strings());
    // Each attempt meets a topic that the producer does not know yet.
    let tried = AtomicU64::new(0);
    let attempts = numbers.map_values(move |_, _: String| tried.fetch_add(1, Ordering::Relaxed));
    let attempts = attempts.map_values(|_, attempt: u64| attempt.to_string());
    for attempt in ["0", "1"] {
        attempts
            .clone()
            .filter(move |_, tried: &String| tried == attempt)
            .to(&cluster.name(&format!("attempt-{attempt}")), strings());
    }
    let mut running = Streams::new(&cluster.name(copying::GROUP), builder.build()?)
        .connect(&gate)
        .client(cluster.client(1))
        .placement(Placement::Runtime)
        .start()
        .await?;
    gate.hold(
        Kind::Response(ApiKey::Metadata),
        usize::MAX,
        Duration::from_secs(15),
    );
    caught_up(&cluster, &mut running).await?;
    let progress = running.stop().await?;
    assert_eq!(progress.rewinds, 2, "{progress:?}");
    assert_eq!(copying::numbers(&cluster, "out").await?, [0]);
    Ok(())
}

/// Each commit takes longer than the interval. Counted from its start, the next one would be due
/// after the first record that waits by then.
#[tokio::test(start_paused = true)]
async fn commits_that_take_longer_than_their_interval_are_not_tiny() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(3).await?;
    let gate = Gate::new(&cluster);
    let late = Duration::from_secs(1);
    gate.hold(Kind::Request(ApiKey::EndTxn), 1_000, late);
    let mut running = copying::job(&cluster, 1, "t")
        .connect(&gate)
        .set("commit.interval.ms", 100)
        .start()
        .await?;
    for round in 0..20 {
        copying::produce(&cluster, round * 20..round * 20 + 20).await?;
        tokio::time::sleep(late / 2).await;
    }
    copying::caught_up(&cluster, &mut running, Duration::from_secs(600)).await?;
    let progress = running.stop().await?;
    copying::check_exactly_once(&cluster, 400).await?;
    assert!(progress.commits < 30, "{progress:?}");
    Ok(())
}
