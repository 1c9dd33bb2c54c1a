//! A broker that is away, at the worst moments, for as long as a record may wait; and answers that
//! are slow.
//!
//! Invariants: what was sent without an answer may have happened.
//! Never: an outage longer than what the calls that it meets may wait, one after the other.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use millstream::client::{IntoTransport, Producer};
use millstream::formats::protocol::ApiKey;
use millstream::streams::Streams;
use millstream::{Broker, TopicPartition};
use tests::gate::{Gate, Kind};
use tests::under_test::{self, BrokerUnderTest};
use tests::{copying, oracle};

use super::caught_up;

/// Workers on threads of their own, a broker behind a socket that is closed and opened again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_over_tcp_rides_through_restarts_of_its_broker() -> anyhow::Result<()> {
    if under_test::left_out() {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let mut broker = Broker::open(folder.path()).await?;
    let address = broker.listen("127.0.0.1:0".parse()?).await?;
    let put = async |broker: &Broker, numbers: std::ops::Range<u64>| {
        let producer = Producer::idempotent().connect(broker).await?;
        for number in numbers {
            drop(producer.send(copying::record("in", number)).await?);
        }
        producer.flush().await?;
        anyhow::Ok(())
    };
    put(&broker, 0..40).await?;
    let mut running = Streams::new(copying::GROUP, copying::topology("in", "out"))
        .bootstrap(&address.to_string())
        .threads(2)
        .start()
        .await?;
    for round in 1..=3 {
        put(&broker, round * 40..round * 40 + 20).await?;
        // In the middle of whatever it does with these.
        tokio::time::sleep(Duration::from_millis(30 * round)).await;
        broker.close().await?;
        // Long enough for commits, fetches and heartbeats to meet a closed port.
        tokio::time::sleep(Duration::from_millis(400)).await;
        broker = reopen(folder.path(), address).await?;
        put(&broker, round * 40 + 20..round * 40 + 40).await?;
        let (_, ends) = oracle::topic(&broker.into_transport(), "in").await?;
        let committed = running.committed(&ends);
        tokio::time::timeout(Duration::from_secs(60), committed)
            .await
            .with_context(|| format!("round {round}"))??;
    }
    running.stop().await?;
    let (records, _) = oracle::topic(&broker.into_transport(), "out").await?;
    let mut copied: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    for record in &records {
        *copied
            .entry(record.value.as_deref().unwrap().to_vec())
            .or_default() += 1;
    }
    assert_eq!(copied.len(), 160);
    assert!(copied.values().all(|times| *times == 1), "{copied:?}");
    Ok(())
}

async fn reopen(folder: &std::path::Path, address: SocketAddr) -> anyhow::Result<Broker> {
    let broker = Broker::open(folder).await?;
    let give_up = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        match broker.listen(address).await {
            Ok(_) => return Ok(broker),
            Err(error) if tokio::time::Instant::now() > give_up => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Where the outage begins, and how long it takes. Each is longer than a default of a client that
/// the delivery timeout replaces.
const OUTAGES: [(Kind, u64); 4] = [
    // The offsets of a new assignment are to be read.
    (Kind::Response(ApiKey::SyncGroup), 100),
    // The outputs are written; offsets, and then the abort, find nobody.
    (Kind::Response(ApiKey::Produce), 130),
    // Everything is there but for the end, which cannot be sent.
    (Kind::Response(ApiKey::TxnOffsetCommit), 100),
    // The end was sent, and nobody answers.
    (Kind::Request(ApiKey::EndTxn), 100),
];

#[tokio::test(start_paused = true)]
async fn a_broker_that_is_away_for_long_is_waited_for_wherever_it_leaves() -> anyhow::Result<()> {
    // Beside each other: where time is real, each of them takes minutes.
    let outages = OUTAGES.into_iter().zip(0..);
    let outages = outages.map(|((kind, seconds), seed)| async move {
        // Where time is real, as long as the longest of those defaults, max.block.ms, and a little.
        let seconds = if under_test::kafka().is_some() {
            65
        } else {
            seconds
        };
        waits_for(seed, kind, Duration::from_secs(seconds))
            .await
            .with_context(|| format!("{kind:?}"))
    });
    futures::future::try_join_all(outages).await?;
    Ok(())
}

/// A job whose broker is away for so long, from the next frame of this kind on.
async fn waits_for(seed: u64, kind: Kind, outage: Duration) -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(seed).await?;
    let gate = Gate::new(&cluster);
    copying::produce(&cluster, 0..40).await?;
    let job = copying::job(&cluster, 1, "t").connect(&gate);
    // Outputs are acknowledged long before the commit; a transaction survives the outage.
    let job = job
        .set("commit.interval.ms", 2_000)
        .set("transaction.timeout.ms", 600_000);
    gate.shut_behind(kind, outage);
    let mut running = job.start().await?;
    caught_up(&cluster, &mut running).await?;
    anyhow::ensure!(!gate.waits(), "it has not come");
    copying::produce(&cluster, 40..80).await?;
    caught_up(&cluster, &mut running).await?;
    running.stop().await?;
    copying::check_exactly_once(&cluster, 80).await
}

/// What an earlier run has committed counts, however long the answer takes, also while the job goes
/// on in other partitions.
#[tokio::test(start_paused = true)]
async fn a_slow_answer_about_the_group_is_waited_for_beside_the_jobs_own_progress()
-> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(1).await?;
    let ends = processed_before(&cluster).await?;
    let gate = Gate::new(&cluster);
    let mut running = copying::job(&cluster, 2, "t")
        .connect(&gate)
        .start()
        .await?;
    let watch = running.watch();
    let feeding = async {
        // One partition only, all the time.
        for number in 10..400_u64 {
            copying::produce(&cluster, number * 4..number * 4 + 1).await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(watch.progress())
    };
    let waiting = async {
        while running.progress().commits < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        gate.hold(
            Kind::Response(ApiKey::OffsetFetch),
            usize::MAX,
            Duration::from_secs(3),
        );
        anyhow::Ok(running.committed(&ends).await?)
    };
    let (mut feeding, mut waiting) = (std::pin::pin!(feeding), std::pin::pin!(waiting));
    tokio::select! {
        biased;
        reached = &mut waiting => reached?,
        fed = &mut feeding => panic!("the group was never looked at: {:?}", fed?),
    }
    Ok(())
}

/// That the group cannot be asked for a while is no reason to stop waiting.
#[tokio::test(start_paused = true)]
async fn a_question_about_the_group_that_failed_is_asked_again() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(2).await?;
    let ends = processed_before(&cluster).await?;
    let gate = Gate::new(&cluster);
    let mut running = copying::job(&cluster, 2, "t")
        .connect(&gate)
        .start()
        .await?;
    // Longer than a request may take.
    gate.shut(Duration::from_secs(45));
    tokio::time::timeout(Duration::from_secs(120), running.committed(&ends)).await??;
    running.stop().await?;
    Ok(())
}

/// A first run has processed everything; answers the ends.
async fn processed_before(
    cluster: &BrokerUnderTest,
) -> anyhow::Result<BTreeMap<TopicPartition, i64>> {
    copying::produce(cluster, 0..40).await?;
    let mut first = copying::job(cluster, 1, "t").start().await?;
    caught_up(cluster, &mut first).await?;
    first.stop().await?;
    Ok(cluster.read("in").await?.1)
}
