//! Records that take long, against the time that a transaction may last (rows 120 and 121).
//!
//! A closure that computes for a while is one that moves the virtual clock; where time is real, or
//! others have to get on meanwhile, it is one that blocks its thread. On a Kafka all times here are
//! a fifth.
//!
//! Invariants: a job either gets on or says why it cannot, with both numbers.
//! Never: a loop without an end: every wait here has one.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream::client::{Producer, ProducerRecord};
use millstream::streams::{Placement, Streams, StreamsBuilder, StreamsError, Topology, strings};
use tests::copying;
use tests::under_test::{self, BrokerUnderTest, scaled, stall};

fn scaled_ms(ms: u64) -> u64 {
    scaled(Duration::from_millis(ms)).as_millis() as u64
}

/// The copying job with a closure that takes this long for each number.
fn job(
    cluster: &BrokerUnderTest,
    took: impl Fn(u64) -> Duration + Send + Sync + 'static,
) -> Streams {
    let builder = StreamsBuilder::new();
    let numbers = builder.stream(&cluster.name("in"), strings());
    numbers
        .map_values(move |_, number: String| {
            stall(scaled(took(number.parse().unwrap_or(0))));
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
    .set("transaction.timeout.ms", scaled_ms(10_000))
}

/// 500 records of 200 ms each take ten times as long as a transaction may: they are committed in
/// smaller pieces.
#[tokio::test(start_paused = true)]
async fn many_slow_records_are_committed_in_smaller_pieces() -> anyhow::Result<()> {
    for seed in under_test::seeds(3) {
        let interval_ms = [5_000, 100, 9_900][seed as usize];
        let cluster = BrokerUnderTest::start(interval_ms).await?;
        copying::produce(&cluster, 0..500).await?;
        let job = job(&cluster, |_| Duration::from_millis(200));
        let mut running = job
            .set("commit.interval.ms", scaled_ms(interval_ms))
            .start()
            .await?;
        copying::caught_up(&cluster, &mut running, Duration::from_secs(400)).await?;
        let progress = running.stop().await?;
        copying::check_exactly_once(&cluster, 500).await?;
        assert!(progress.commits >= 10, "{interval_ms}: {progress:?}");
    }
    Ok(())
}

/// The coordinator has aborted the transaction before the records were done: they are processed
/// again, fewer at a time.
#[tokio::test(start_paused = true)]
async fn a_batch_that_outlived_its_transaction_is_done_again_in_smaller_pieces()
-> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(1).await?;
    let job = job(&cluster, |_| Duration::from_secs(4));
    let mut running = job
        .set("commit.interval.ms", scaled_ms(9_900))
        .start()
        .await?;
    // One record after the other, so that the transaction is open at the coordinator while the next
    // ones are slow.
    for number in 0..24 {
        copying::produce(&cluster, number..number + 1).await?;
        tokio::time::sleep(scaled(Duration::from_millis(300))).await;
    }
    copying::caught_up(&cluster, &mut running, Duration::from_secs(600)).await?;
    let progress = running.stop().await?;
    copying::check_exactly_once(&cluster, 24).await?;
    println!("{} commits, {} rewinds", progress.commits, progress.rewinds);
    Ok(())
}

/// One record alone takes longer than a transaction may last. Its transaction begins at the
/// coordinator with its outputs, so alone it can be committed.
#[tokio::test(start_paused = true)]
async fn a_record_slower_than_the_timeout_is_committed_alone() -> anyhow::Result<()> {
    for seed in under_test::seeds(3) {
        let before = [40, 1, 0][seed as usize];
        let cluster = BrokerUnderTest::start(before).await?;
        copying::produce(&cluster, 0..before).await?;
        let slow = move |number| Duration::from_secs(if number == before { 12 } else { 0 });
        let mut running = job(&cluster, slow)
            .set("commit.interval.ms", scaled_ms(500))
            .start()
            .await?;
        copying::caught_up(&cluster, &mut running, Duration::from_secs(30)).await?;
        copying::produce(&cluster, before..before + 1).await?;
        copying::produce(&cluster, before + 1..before + 30).await?;
        copying::caught_up(&cluster, &mut running, Duration::from_secs(120)).await?;
        running.stop().await?;
        copying::check_exactly_once(&cluster, before + 30).await?;
    }
    Ok(())
}

/// Copies `in` to `out`; the record of this number takes longer than a transaction may last.
fn slow_at(cluster: &BrokerUnderTest, slow: usize, slow_ms: u64) -> anyhow::Result<Topology> {
    let builder = StreamsBuilder::new();
    builder
        .stream(&cluster.name("in"), strings())
        .map_values(move |_, number: String| {
            let ms = if number == slow.to_string() {
                slow_ms
            } else {
                10
            };
            #[expect(
                clippy::disallowed_methods,
                reason = "the closure of a user may well block"
            )]
            std::thread::sleep(Duration::from_millis(ms));
            number
        })
        .to(&cluster.name("out"), strings());
    Ok(builder.build()?)
}

/// One partition, so that the slow one has its place in the order.
async fn put(cluster: &BrokerUnderTest, count: usize) -> anyhow::Result<()> {
    let producer = Producer::idempotent().connect(cluster).await?;
    for number in 0..count {
        let record = ProducerRecord::new(cluster.name("in")).partition(0);
        let record = record.key("key").value(number.to_string());
        drop(producer.send(record).await?);
    }
    Ok(producer.flush().await?)
}

/// The same among others, with threads and the real clock: the coordinator aborts their common
/// transaction while the record is slow. The others are committed without it, and either it is
/// committed alone, or the job says that it cannot be, and names both numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_record_among_others_ends_alone_in_its_transaction() -> anyhow::Result<()> {
    const SLOW: usize = 10;
    const COUNT: usize = 20;
    let cluster = BrokerUnderTest::with_threads().await?;
    // On a Kafka a commit may take hundreds of milliseconds, which is not to count.
    let (slow_ms, timeout, interval_ms) = if cluster.is_kafka() {
        (8_000, 4_000, 2_500)
    } else {
        (1_600, 700, 400)
    };
    // No transaction has to wait for a topic to be made.
    cluster.create("out", 1).await?;
    let topology = slow_at(&cluster, SLOW, slow_ms)?;
    let job = Streams::new(&cluster.name(copying::GROUP), topology).connect(&cluster);
    let settings = [
        ("transaction.timeout.ms", timeout),
        ("commit.interval.ms", interval_ms),
    ];
    let job = settings
        .into_iter()
        .fold(job, |job, (name, ms)| job.set(name, ms));
    put(&cluster, COUNT).await?;
    let mut running = job.start().await?;
    let ends = BTreeMap::from([(cluster.partition("in", 0), COUNT as i64)]);
    let ended = tokio::time::timeout(Duration::from_secs(90), running.committed(&ends)).await;
    let Ok(ended) = ended else {
        anyhow::bail!("it goes on for ever: {:?}", running.progress());
    };
    let expected = match ended {
        Ok(()) => COUNT,
        Err(
            error @ StreamsError::TransactionTooLong {
                took_ms,
                timeout_ms,
                ..
            },
        ) => {
            assert!(took_ms >= slow_ms && timeout_ms == timeout, "{error}");
            let text = error.to_string();
            assert!(
                text.contains(&took_ms.to_string()) && text.contains(&format!("{timeout} ms")),
                "{text}"
            );
            SLOW
        }
        Err(other) => return Err(other.into()),
    };
    println!(
        "{} commits, {} rewinds",
        running.progress().commits,
        running.progress().rewinds
    );
    assert!(
        running.progress().rewinds > 0,
        "their transaction was not aborted"
    );
    let (records, _) = cluster.read("out").await?;
    let found: Vec<String> = records
        .iter()
        .map(|record| String::from_utf8_lossy(record.value.as_deref().unwrap()).into_owned())
        .collect();
    let expected: Vec<String> = (0..expected).map(|number| number.to_string()).collect();
    assert_eq!(found, expected);
    Ok(())
}
