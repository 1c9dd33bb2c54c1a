//! Of two instances with one identity, one works; the other one stops, and says why.
//!
//! Three checks keep a predecessor from committing, each under a test that fails without it: the
//! epoch of its transactional id, the generation of its group, and its member id. SIGKILL shows
//! none of them, since the dead send nothing; so these instances live on, or are stopped and woken.
//!
//! Invariants: times are asserted in virtual time, loosely on a Kafka, and reported in real time.
//! Never: a predecessor that is told that it has one.

use std::time::Duration;

use anyhow::Context as _;
use millstream::client::consumer::ConsumerBuilder;
use millstream::client::{Admin, GroupMetadata, Producer, TransactionError};
use millstream::streams::{Streams, StreamsError};
use millstream::testing::NetworkFaults;
use tests::binaries::Binaries;
use tests::copying::{self, ByHand};
use tests::deployment::{Arrangement, Deployment, GROUP, PATIENCE, Part};
use tests::feeder::Feeder;
use tests::oracle::Snapshot;
use tests::process::Process;
use tests::under_test::{self, BrokerUnderTest};
use tests::{invariants, series};
use tokio::time::Instant;

/// One transactional id, no group: the epoch check.
#[tokio::test(start_paused = true)]
async fn an_old_epoch_writes_nothing_and_commits_nothing() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(1).await?;
    let producer = async |number: u64| {
        let builder =
            Producer::transactional(cluster.name("payments")).client(cluster.client(number));
        let producer = builder.connect(&cluster).await?;
        producer.init_transactions().await?;
        anyhow::Ok(producer)
    };
    let old = producer(1).await?;
    old.begin()?;
    old.send(cluster.record("out", 0)).await?.await?;
    let new = producer(2).await?;
    // The old one goes on as if nothing had happened, in a partition that has not seen its
    // successor.
    let late = old.send(cluster.record("out", 1)).await?.await;
    let ended = old.commit().await;
    new.begin()?;
    new.send(cluster.record("out", 2)).await?.await?;
    new.commit().await?;
    assert_eq!(
        copying::numbers(&cluster, "out").await?,
        [2],
        "late: {late:?}, ended: {ended:?}"
    );
    late.expect_err("a late record is refused");
    ended.expect_err("a late commit is refused");
    let (ours, newer) = match old.abort().await.expect_err("it is told that it is over") {
        TransactionError::Fenced {
            transactional_id,
            our_epoch,
            newer_epoch,
        } => {
            assert_eq!(&*transactional_id, cluster.name("payments"));
            (
                our_epoch,
                newer_epoch.context("the coordinator could be asked")?,
            )
        }
        other => panic!("{other}"),
    };
    assert!(newer > ours, "{ours} {newer}");
    Ok(())
}

/// Two transactional ids in one group; one of them loses partitions in a rebalance that its
/// consumer takes part in, while its transaction is open: the generation check.
#[tokio::test(start_paused = true)]
async fn an_old_generation_commits_nothing() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(2).await?;
    copying::produce(&cluster, 0..100).await?;
    let mut old = ByHand::start(&cluster, 1, "a", |builder| builder).await?;
    old.process(100).await?;
    let membership = old.membership()?;
    let mut new = ByHand::start(&cluster, 2, "b", |builder| builder).await?;
    let rejoined = async {
        let consumer = old.consumer.as_ref().context("a consumer")?;
        while consumer.assignment().len() != 2 || consumer.group_metadata()? == membership {
            consumer.poll(Duration::from_millis(50)).await?;
        }
        anyhow::Ok(())
    };
    // Half of the partitions are the new one's now, from their beginnings on: nothing is committed
    // yet.
    let (processed, rejoined) = tokio::join!(new.process(50), rejoined);
    processed?;
    rejoined?;
    new.commit(&new.membership()?).await?;
    assert_eq!(
        old.membership()?.member_id,
        membership.member_id,
        "only its generation is old"
    );
    let late = old.commit(&membership).await;
    let _ = old.producer.abort().await;
    let copied = copying::numbers(&cluster, "out").await?;
    assert_eq!(copied.len(), 50, "late: {late:?}, {copied:?}");
    let error = late.expect_err("the commit of an old generation is refused");
    assert!(
        format!("{error:#}").contains("ILLEGAL_GENERATION"),
        "{error:#}"
    );
    Ok(())
}

/// Two transactional ids in one group, one of them stopped past its session but within its
/// transaction timeout.
#[tokio::test(start_paused = true)]
async fn a_member_that_was_given_up_commits_nothing() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(2).await?;
    copying::produce(&cluster, 0..100).await?;
    let mut old = ByHand::start(&cluster, 1, "a", |builder| builder).await?;
    old.process(100).await?;
    let membership = old.membership()?;
    // From here on it is stopped: no heartbeat goes out, and its transaction stays open.
    drop(old.consumer.take());
    let mut new = ByHand::start(&cluster, 2, "b", |builder| builder).await?;
    new.process(100).await?;
    let its_membership = new.membership()?;
    new.commit(&its_membership).await?;
    assert!(its_membership.generation_id > membership.generation_id);
    // It wakes and goes on where it was.
    let woken = old.commit(&membership).await;
    let _ = old.producer.abort().await;
    copying::check_exactly_once(&cluster, 100)
        .await
        .with_context(|| format!("woken: {woken:?}"))?;
    let error = woken.expect_err("the commit of a member that was given up is refused");
    assert!(
        format!("{error:#}").contains("UNKNOWN_MEMBER_ID"),
        "{error:#}"
    );
    Ok(())
}

/// One instance id twice, with a transactional id each and within one generation: the member-id
/// check.
#[tokio::test(start_paused = true)]
async fn an_old_member_of_an_instance_commits_nothing() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(3).await?;
    copying::produce(&cluster, 0..100).await?;
    let settings = |builder: ConsumerBuilder| builder.group_instance_id("instance-1");
    let mut old = ByHand::start(&cluster, 1, "a", settings).await?;
    old.process(100).await?;
    let membership = old.membership()?;
    let before = Instant::now();
    let mut new = ByHand::start(&cluster, 2, "b", settings).await?;
    new.process(100).await?;
    let at_most = Duration::from_secs(if cluster.is_kafka() { 9 } else { 1 });
    assert!(
        before.elapsed() < at_most,
        "took over after {:?}, a session is 10 s",
        before.elapsed()
    );
    let its_membership = new.membership()?;
    new.commit(&its_membership).await?;
    assert_ne!(its_membership.member_id, membership.member_id);
    // The generation alone must not save it.
    let membership = GroupMetadata {
        generation_id: its_membership.generation_id,
        ..membership
    };
    let woken = old.commit(&membership).await;
    let _ = old.producer.abort().await;
    copying::check_exactly_once(&cluster, 100)
        .await
        .with_context(|| format!("woken: {woken:?}"))?;
    let error = woken.expect_err("the commit of a replaced member is refused");
    assert!(
        format!("{error:#}").contains("FENCED_INSTANCE_ID"),
        "{error:#}"
    );
    Ok(())
}

/// Row 110, row 153.
#[tokio::test(start_paused = true)]
async fn a_second_instance_takes_over_within_a_second_and_the_first_one_says_who_it_lost_to()
-> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(4).await?;
    copying::produce(&cluster, 0..1_000).await?;
    let instance = |number| copying::static_job(&cluster, number, "copying-1");
    let mut first = instance(1).start().await?;
    copying::caught_up(&cluster, &mut first, Duration::from_secs(30)).await?;
    copying::produce(&cluster, 1_000..2_000).await?;
    let before = Instant::now();
    let mut second = instance(2).start().await?;
    let ended = async {
        let error = first
            .ended()
            .await
            .expect_err("two instances with one identity");
        (error, before.elapsed())
    };
    let caught_up = async {
        copying::caught_up(&cluster, &mut second, Duration::from_secs(30)).await?;
        anyhow::Ok(before.elapsed())
    };
    let ((error, stopped), took) = tokio::join!(ended, caught_up);
    let took = took?;
    println!(
        "took over after {took:?}, the first stopped after {stopped:?} (virtual time): {error}"
    );
    // In real time the machine has a say.
    let at_most = Duration::from_secs(if cluster.is_kafka() { 20 } else { 1 });
    assert!(took < at_most, "{took:?}");
    assert_names_both(&error, &format!("{}-0", cluster.name("copying-1")));
    copying::produce(&cluster, 2_000..2_100).await?;
    copying::caught_up(&cluster, &mut second, Duration::from_secs(30)).await?;
    second.stop().await?;
    copying::check_exactly_once(&cluster, 2_100).await
}

/// The error names the transactional id and both epochs, the newer one as the coordinator knows it.
fn assert_names_both(error: &StreamsError, id: &str) {
    let (named, ours, newer) = match error {
        StreamsError::Transaction(TransactionError::Fenced {
            transactional_id,
            our_epoch,
            newer_epoch,
        }) => (transactional_id.to_string(), *our_epoch, *newer_epoch),
        StreamsError::Fenced {
            transactional_id,
            our_epoch,
            newer_epoch,
            ..
        } => (transactional_id.clone(), *our_epoch, *newer_epoch),
        other => panic!("{other}"),
    };
    assert_eq!(named, id);
    assert!(newer.is_some_and(|newer| newer > ours), "{error}");
    let text = error.to_string();
    assert!(
        text.contains(id) && text.contains(&ours.to_string()),
        "{text}"
    );
}

/// Two instances of one job; one is cut off from the broker for longer than its session, not for
/// longer than its transaction may last. What it had open when it comes back is refused, whatever
/// it asks for first.
#[tokio::test(start_paused = true)]
async fn an_instance_that_was_cut_off_past_its_session_doubles_nothing() -> anyhow::Result<()> {
    for seed in under_test::seeds(6) {
        let cluster = BrokerUnderTest::start(seed).await?;
        copying::produce(&cluster, 0..1_000).await?;
        let network = cluster.another_network("cut", NetworkFaults::NONE);
        let settings = |job: Streams| {
            job.set("session.timeout.ms", 10_000)
                .set("transaction.timeout.ms", 60_000)
        };
        let cut_off = settings(copying::job(&cluster, 1, "a")).connect(&network);
        let mut cut_off = cut_off.start().await?;
        let mut other = settings(copying::job(&cluster, 2, "b")).start().await?;
        let mut fed = 1_000;
        for step in 0..30 {
            // Somewhere in the middle of a commit, a fetch, or neither.
            tokio::time::sleep(Duration::from_micros(20_000 + 3_700 * seed)).await;
            copying::produce(&cluster, fed..fed + 50).await?;
            fed += 50;
            if step == 10 {
                network.set_faults(NetworkFaults::CUT);
                tokio::time::sleep(Duration::from_secs(20)).await;
                network.set_faults(NetworkFaults::NONE);
            }
        }
        copying::caught_up(&cluster, &mut other, Duration::from_secs(120))
            .await
            .with_context(|| format!("seed {seed}"))?;
        // It rejoins; both go on.
        copying::produce(&cluster, fed..fed + 100).await?;
        copying::caught_up(&cluster, &mut cut_off, Duration::from_secs(120))
            .await
            .with_context(|| format!("seed {seed}"))?;
        cut_off.stop().await?;
        other.stop().await?;
        copying::check_exactly_once(&cluster, fed + 100)
            .await
            .with_context(|| format!("seed {seed}"))?;
    }
    Ok(())
}

/// Real processes: the second takes over at once, the first ends with an error that names the id
/// and both epochs.
#[tokio::test]
async fn a_second_process_takes_over_at_once() -> anyhow::Result<()> {
    let mut pair = Pair::start().await?;
    let took = pair.take_over().await?;
    let ended = Instant::now();
    let status = pair.first.end(PATIENCE).await?;
    let complaint = pair.first.complaints();
    println!(
        "the second process had committed {took:?} after its start (real time); \
         the first ended {:?} later",
        ended.elapsed()
    );
    println!("{complaint}");
    assert!(!status.success());
    assert!(complaint.contains("orders-enrichment-1"), "{complaint}");
    assert_eq!(complaint.matches("has epoch ").count(), 2, "{complaint}");
    assert!(!complaint.contains("unknown"), "{complaint}");
    pair.judge().await
}

/// Real processes: the first is stopped (SIGSTOP) while it works, and woken when the second has
/// taken over.
#[tokio::test]
async fn a_process_that_wakes_from_sigstop_writes_nothing_visible() -> anyhow::Result<()> {
    let mut pair = Pair::start().await?;
    pair.first.signal("STOP").await?;
    let took = pair.take_over().await?;
    println!("the second process had committed {took:?} after its start (real time)");
    pair.first.signal("CONT").await?;
    let status = pair.first.end(PATIENCE).await?;
    let complaint = pair.first.complaints();
    println!("{complaint}");
    assert!(!status.success());
    assert!(complaint.contains("orders-enrichment-1"), "{complaint}");
    pair.judge().await
}

/// A broker, a feeder, and two processes with one identity.
struct Pair {
    _folder: tempfile::TempDir,
    deployment: Deployment,
    feeder: Option<Feeder>,
    first: Process,
}

impl Pair {
    async fn start() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("millstream-fencing")
            .tempdir()?;
        let binaries = Binaries::build()?;
        let mut deployment = Deployment::new(binaries, folder.path(), Arrangement::under_test())?;
        series::prepare(&mut deployment).await?;
        if deployment.arrangement() == Arrangement::Apart {
            deployment.start(Part::Broker).await?;
        }
        let first = deployment.spawn_job(&["--follow"], "first")?;
        let feeder = Some(Feeder::start(&deployment.transport(), 400).await?);
        let pair = Self {
            _folder: folder,
            deployment,
            feeder,
            first,
        };
        pair.wait_for(0).await?;
        Ok(pair)
    }

    /// Waits until the group has committed more than this, and answers how much.
    async fn wait_for(&self, more_than: i64) -> anyhow::Result<i64> {
        let admin = Admin::connect(&self.deployment.transport()).await?;
        let give_up = Instant::now() + PATIENCE;
        loop {
            let offsets = admin.group_offsets(GROUP).await?;
            let sum = offsets.values().map(|found| found.offset).sum();
            if sum > more_than {
                return Ok(sum);
            }
            anyhow::ensure!(Instant::now() < give_up, "no commit behind {more_than}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Starts the second process, and answers how long it took from its start to its first commit.
    async fn take_over(&mut self) -> anyhow::Result<Duration> {
        let before = Instant::now();
        let member = self.member().await?;
        self.deployment.start(Part::Job).await?;
        // The first one commits nothing any more once its place in the group is taken.
        while self.member().await? == member {
            self.deployment.check_alive()?;
            anyhow::ensure!(
                before.elapsed() < PATIENCE,
                "the second process does not join"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let committed = self.wait_for(-1).await?;
        self.wait_for(committed).await?;
        Ok(before.elapsed())
    }

    /// The id of the group's one member.
    async fn member(&self) -> anyhow::Result<Option<String>> {
        let admin = Admin::connect(&self.deployment.transport()).await?;
        let group = admin.describe_group(GROUP).await?;
        Ok(group.members.first().map(|member| member.member_id.clone()))
    }

    async fn judge(mut self) -> anyhow::Result<()> {
        let feeder = self.feeder.take().context("a feeder")?;
        let fed = feeder.stop().await?;
        self.deployment.drain().await?;
        let transport = self.deployment.transport();
        let snapshot = Snapshot::read(&transport, GROUP).await?;
        invariants::check(&snapshot, &fed)?;
        self.deployment.stop_broker().await
    }
}
