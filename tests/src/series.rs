//! A series: work, a kill, a restart, and so on; then everything is judged.
//!
//! ```text
//!  round: wait for a new commit ─▶ kill at a random time, or at a named point ─▶ start again
//!  end:   stop feeding ─▶ the job goes on to the ends ─▶ oracle and invariants
//! ```
//!
//! Invariants: a kill counts only where the group's offsets have moved since the one before; none
//! of them ever goes back; in the end no transaction is open; which kills there are follows from
//! the seed.
//! Never: waits without a bound.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use examples::load::{self, Load};
use millstream::client::{Admin, IntoTransport as _, Transport};
use millstream::{Broker, TopicPartition};
use tokio::time::{Instant, sleep};

use crate::binaries::Binaries;
use crate::deployment::{Arrangement, Deployment, GROUP, PATIENCE, Part};
use crate::feeder::Feeder;
use crate::invariants;
use crate::oracle::{self, Snapshot};
use crate::points;

/// How long a process that is told to die at a point may take to get there.
const POINT_PATIENCE: Duration = Duration::from_secs(20);

/// Every topic that transactions write to.
const TOPICS: [&str; 6] = [
    "orders",
    "customers",
    "orders.enriched",
    "orders.audit",
    "orders.dead-letter",
    "__consumer_offsets",
];

/// A job gives up when its broker has been away for `delivery.timeout.ms`, which is two minutes; a
/// Kafka on a busy machine takes as long. One that is about to is started again.
const AWAY_MAX: Duration = Duration::from_secs(100);

/// What a series is to do.
#[derive(Debug, Clone)]
pub struct Series {
    /// Decides which kills there are.
    pub seed: u64,
    /// How many kills.
    pub kills: u32,
    /// Which processes there are.
    pub arrangement: Arrangement,
    /// Orders a second.
    pub rate: u64,
}

/// What a series did.
#[derive(Debug, Default)]
pub struct Report {
    /// Which processes there were.
    pub arrangement: Option<Arrangement>,
    /// Kills that hit work.
    pub kills: u32,
    /// Kills at a random time.
    pub random: u32,
    /// Kills of the broker apart.
    pub of_broker: u32,
    /// Kills at each named point.
    pub at_points: BTreeMap<&'static str, u32>,
    /// Kills of a broker that was recovering.
    pub in_recovery: u32,
    /// Jobs that were started again since the broker had been away for too long.
    pub outwaited: u32,
    /// Rounds whose process did not come to its point; it was killed then and there.
    pub missed: u32,
    /// Commits that were seen between kills.
    pub commits: u64,
    /// Records of `orders`.
    pub orders: u64,
    /// Audited ones.
    pub audited: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Orders that their producer aborted.
    pub spoiled: u64,
    /// Records of aborted transactions that a reader of uncommitted records sees in the audit.
    pub aborted: u64,
    /// The longest that a kill kept the group from committing, from the end of the round on.
    pub longest_wait: Duration,
    /// How long it took.
    pub took: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} series: {} kills ({} at random times, {} at {} named points, {} of the broker, {} in recovery, {} missed; {} times the broker was away for too long), \
             {} commits seen between them (the longest wait for one {:.1} s), {} orders: {} audited, {} dead letters, {} aborted ones unseen ({} more orders aborted by their producer); {:.1} s",
            match self.arrangement {
                Some(Arrangement::Embedded) => "embedded",
                Some(Arrangement::Kafka) => "Apache Kafka",
                Some(Arrangement::KafkaCluster) => "Apache Kafka with three brokers",
                _ => "separate",
            },
            self.kills,
            self.random,
            self.at_points.values().sum::<u32>(),
            self.at_points.len(),
            self.of_broker,
            self.in_recovery,
            self.missed,
            self.outwaited,
            self.commits,
            self.longest_wait.as_secs_f64(),
            self.orders,
            self.audited,
            self.dead_letters,
            self.aborted,
            self.spoiled,
            self.took.as_secs_f64(),
        )
    }
}

/// How the next process dies.
#[derive(Debug, Clone, Copy)]
enum Death {
    After(Duration),
    At(&'static str, u64),
}

/// Runs a series in `folder` and judges it.
///
/// # Errors
/// A process that ends by itself, a step that takes too long, and whatever the invariants find.
pub async fn run(series: &Series, folder: &Path) -> anyhow::Result<Report> {
    let binaries = Binaries::build()?;
    let started = Instant::now();
    let mut deployment = Deployment::new(binaries, folder, series.arrangement)?;
    prepare(&mut deployment).await?;
    let mut rounds = Rounds::new(series, &mut deployment);
    rounds.start().await?;
    let feeder = Feeder::start(&rounds.deployment.transport(), series.rate).await?;
    while rounds.report.kills < series.kills {
        let round = rounds.report.kills + rounds.report.missed;
        rounds
            .round()
            .await
            .with_context(|| format!("round {round} (seed {})", series.seed))?;
    }
    rounds.new_commit().await?;
    let mut report = rounds.report;
    let fed = tokio::time::timeout(2 * PATIENCE, feeder.stop()).await??;
    deployment.drain().await.context("going on to the ends")?;
    let snapshot = judge_in(&mut deployment, &mut report).await?;
    invariants::check(&snapshot, &fed)?;
    report.spoiled = fed.spoiled;
    report.took = started.elapsed();
    Ok(report)
}

/// Topics and customers are there before the job runs. Ours is written to in this process for a
/// moment; a Kafka runs from here on.
///
/// # Errors
/// Where the broker cannot be opened or written to.
pub async fn prepare(deployment: &mut Deployment) -> anyhow::Result<()> {
    if deployment.arrangement().is_kafka() {
        for at in 0..deployment.brokers() {
            deployment.choose_broker(at);
            deployment.start(Part::Broker).await?;
        }
        return load_customers(&deployment.transport()).await;
    }
    let broker = Broker::open(deployment.data()).await?;
    load_customers(&broker.into_transport()).await?;
    Ok(broker.close().await?)
}

async fn load_customers(transport: &Arc<dyn Transport>) -> anyhow::Result<()> {
    load::create_topics(transport).await?;
    let customers = Load {
        application_id: GROUP.to_owned(),
        transactional_id: format!("{GROUP}-1"),
        orders: Some(0),
    };
    load::load(transport, &customers, |_, _, _| {}).await?;
    Ok(())
}

async fn judge_in(deployment: &mut Deployment, report: &mut Report) -> anyhow::Result<Snapshot> {
    let read = async |transport: Arc<dyn Transport>| {
        oracle::nothing_open(&transport, &TOPICS).await?;
        let snapshot = Snapshot::read(&transport, GROUP).await?;
        let uncommitted = oracle::count_uncommitted(&transport, "orders.audit").await?;
        anyhow::Ok((snapshot, uncommitted))
    };
    let (snapshot, uncommitted) = if deployment.arrangement().is_kafka() {
        let found = read(deployment.transport()).await?;
        deployment.stop_broker().await?;
        found
    } else {
        // The broker ends in order; what it left behind is read by one in this process.
        deployment.stop_broker().await?;
        let broker = Broker::open(deployment.data()).await?;
        let found = read(broker.into_transport()).await?;
        broker.close().await?;
        found
    };
    report.orders = snapshot.orders.len() as u64;
    report.audited = snapshot.audit.len() as u64;
    report.dead_letters = snapshot.dead_letters.len() as u64;
    report.aborted = uncommitted.saturating_sub(report.audited);
    Ok(snapshot)
}

struct Rounds<'a> {
    deployment: &'a mut Deployment,
    arrangement: Arrangement,
    random: fastrand::Rng,
    transport: Arc<dyn Transport>,
    admin: Option<Admin>,
    /// The group's committed offsets when they were looked at last; a kill takes none of them back.
    committed: BTreeMap<TopicPartition, i64>,
    /// How many kills there will be.
    wanted: u32,
    report: Report,
}

impl<'a> Rounds<'a> {
    fn new(series: &Series, deployment: &'a mut Deployment) -> Self {
        let transport = deployment.transport();
        Self {
            deployment,
            arrangement: series.arrangement,
            random: fastrand::Rng::with_seed(series.seed),
            transport,
            admin: None,
            committed: BTreeMap::new(),
            wanted: series.kills,
            report: Report {
                arrangement: Some(series.arrangement),
                ..Report::default()
            },
        }
    }

    async fn start(&mut self) -> anyhow::Result<()> {
        if self.arrangement == Arrangement::Apart {
            self.deployment.start(Part::Broker).await?;
        }
        self.deployment.start(Part::Job).await
    }

    async fn round(&mut self) -> anyhow::Result<()> {
        self.new_commit().await?;
        // A job with fewer workers than the one before has to end what the surplus ones left open.
        self.deployment.set_threads(self.random.u32(1..=3));
        let victim = self.victim();
        let brokers = self.deployment.brokers();
        self.deployment.choose_broker(self.random.usize(..brokers));
        let death = self.death(victim);
        self.die(victim, death).await?;
        let died = Instant::now();
        self.report.kills += 1;
        self.report.of_broker += u32::from(victim == Part::Broker);
        sleep(Duration::from_millis(self.random.u64(..150))).await;
        if victim == Part::Broker {
            // Now and then the job dies as well, before the broker is back.
            let both = self.random.u32(..6) == 0;
            if both {
                self.deployment.part(Part::Job)?.kill().await?;
            }
            let is_cluster = self.arrangement == Arrangement::KafkaCluster;
            if is_cluster && !both {
                // The others take over.
                self.deployment.bury(Part::Broker);
                self.advanced().await?;
                self.new_commit().await?;
            }
            if self.random.u32(..4) == 0 {
                self.die_in_recovery(Part::Broker).await?;
            }
            self.deployment.start(Part::Broker).await?;
            let outwaited = !both && !is_cluster && died.elapsed() > AWAY_MAX;
            if outwaited {
                self.end_outwaited().await?;
            }
            self.advanced().await?;
            if both || outwaited {
                self.deployment.start(Part::Job).await?;
            }
        } else if self.arrangement == Arrangement::Embedded {
            if self.random.u32(..4) == 0 {
                self.die_in_recovery(Part::Job).await?;
            }
            self.deployment.start(Part::Job).await?;
            self.advanced().await?;
        } else {
            self.advanced().await?;
            self.deployment.start(Part::Job).await?;
        }
        Ok(())
    }

    /// Ends a job whose broker was away for too long, where it has not given up by itself.
    async fn end_outwaited(&mut self) -> anyhow::Result<()> {
        let job = self.deployment.part(Part::Job)?;
        match job.ended()? {
            None => job.kill().await?,
            Some(status) => {
                let said = job.complaints();
                let gave_up = said.contains("no final answer") && !said.contains("UNSTABLE");
                ensure!(gave_up, "the job ended by itself ({status}): {said}");
            }
        }
        self.report.outwaited += 1;
        Ok(())
    }

    /// Every third kill is the broker's, where it is apart.
    fn victim(&self) -> Part {
        if self.arrangement != Arrangement::Embedded && self.report.kills % 3 == 2 {
            Part::Broker
        } else {
            Part::Job
        }
    }

    /// A Kafka knows no named points.
    fn is_kafka(&self, part: Part) -> bool {
        part == Part::Broker && self.arrangement.is_kafka()
    }

    /// In turn at a random time and at the next of the named points.
    fn death(&mut self, victim: Part) -> Death {
        let embedded = self.arrangement == Arrangement::Embedded;
        let named = match (victim, embedded) {
            (Part::Broker, _) => points::BROKER.to_vec(),
            (Part::Job, false) => points::JOB.to_vec(),
            (Part::Job, true) => [points::JOB, points::BROKER].concat(),
        };
        if self.random.bool() || self.is_kafka(victim) {
            return Death::After(Duration::from_millis(self.random.u64(..250)));
        }
        // A long series has the rare ones as well.
        let is_long = self.wanted >= 50;
        if is_long && (embedded || victim == Part::Broker) && self.random.u32(..12) == 0 {
            return Death::At(
                points::CHECKPOINT[self.random.usize(..points::CHECKPOINT.len())],
                1,
            );
        }
        // The points in turn, so that a short series has most of them as well.
        let done = |point: &str| self.report.at_points.get(point).copied().unwrap_or(0);
        let least = named.iter().map(|point| done(point)).min().unwrap_or(0);
        let open: Vec<_> = named
            .into_iter()
            .filter(|point| done(point) == least)
            .collect();
        let point = open[self.random.usize(..open.len())];
        let turns = match point {
            "broker.after-produce-append" | "broker.before-sync" | "broker.after-sync" => 60,
            "streams.between-outputs" => 100,
            "broker.between-markers" => 20,
            _ => 4,
        };
        Death::At(point, self.random.u64(1..=turns))
    }

    async fn die(&mut self, victim: Part, death: Death) -> anyhow::Result<()> {
        match death {
            Death::After(delay) => {
                sleep(delay).await;
                self.deployment.check_alive()?;
                self.deployment.part(victim)?.kill().await?;
                self.report.random += 1;
            }
            Death::At(point, turn) => {
                let trigger = self.deployment.trigger(victim);
                trigger.arm(point, turn)?;
                let process = self.deployment.part(victim)?;
                if process.end(POINT_PATIENCE).await.is_ok() {
                    *self.report.at_points.entry(point).or_default() += 1;
                } else {
                    process.kill().await?;
                    self.report.missed += 1;
                }
                trigger.disarm()?;
            }
        }
        Ok(())
    }

    /// A process that dies while its broker recovers what the one before left: now at a random
    /// time, now at a point.
    async fn die_in_recovery(&mut self, part: Part) -> anyhow::Result<()> {
        let trigger = self.deployment.trigger(part);
        let point = points::RECOVERY[self.random.usize(..points::RECOVERY.len())];
        let named = self.random.bool() && !self.is_kafka(part);
        // A Kafka waits until the one before it is fenced, for 6 s, and needs 3 s or more then.
        let within_ms = if self.is_kafka(part) { 12_000 } else { 60 };
        if named {
            trigger.arm(point, 1)?;
        }
        let mut process = match part {
            Part::Broker => self.deployment.spawn_broker()?,
            Part::Job => self.deployment.spawn_job(&["--follow"], "job")?,
        };
        if named {
            process
                .end(POINT_PATIENCE)
                .await
                .with_context(|| format!("dying at {point}"))?;
            *self.report.at_points.entry(point).or_default() += 1;
        } else {
            sleep(Duration::from_millis(self.random.u64(..within_ms))).await;
            if let Some(status) = process.ended()? {
                let said = process.complaints();
                bail!("{} ended by itself ({status}): {said}", process.name());
            }
            process.kill().await?;
        }
        trigger.disarm()?;
        self.report.in_recovery += 1;
        Ok(())
    }

    /// Waits until the group has committed something since the last kill, and counts the commits
    /// that it sees.
    async fn new_commit(&mut self) -> anyhow::Result<()> {
        let patience = match self.arrangement {
            // It starts slowly, and so does whoever waited for it.
            Arrangement::Kafka | Arrangement::KafkaCluster => 3 * PATIENCE,
            _ => PATIENCE,
        };
        let began = Instant::now();
        let mut first = None;
        let wanted = 1 + self.random.u64(..3);
        let mut seen = 0;
        while seen < wanted {
            if self.advanced().await? {
                seen += 1;
                first.get_or_insert_with(|| began.elapsed());
            }
            self.deployment.check_alive()?;
            if began.elapsed() >= patience {
                bail!("no new commit within {patience:?}: {:?}", self.committed);
            }
            sleep(Duration::from_millis(10)).await;
        }
        self.report.commits += seen;
        self.report.longest_wait = self.report.longest_wait.max(first.unwrap_or_default());
        Ok(())
    }

    /// Looks at the group's committed offsets, and answers whether any has gone on.
    async fn advanced(&mut self) -> anyhow::Result<bool> {
        let admin = match self.admin.take() {
            Some(admin) => admin,
            None => Admin::connect(&self.transport).await?,
        };
        let found = tokio::time::timeout(PATIENCE, admin.group_offsets(GROUP)).await??;
        self.admin = Some(admin);
        let found: BTreeMap<_, _> = found.into_iter().map(|(p, at)| (p, at.offset)).collect();
        for (partition, before) in &self.committed {
            let now = found.get(partition);
            ensure!(
                now >= Some(before),
                "the committed offset of {partition} went back from {before} to {now:?}"
            );
        }
        let has_advanced = found != self.committed;
        self.committed = found;
        Ok(has_advanced)
    }
}
