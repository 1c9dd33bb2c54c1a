//! The simulation: broker, two producers, a job with two workers and readers of committed records
//! on one runtime in virtual time, with faults from a seed.
//!
//! ```text
//! producers ─▶ orders ─▶ job (2 workers) ─▶ orders.enriched, orders.audit ─▶ readers
//!      │                   │                                                   │
//!      └──── faulty networks, power cuts, lost producers, second instances ────┘
//! then: heal, let everything finish, look at the history
//! ```
//!
//! Invariants: a run follows from its plan alone; equal plans give equal traces.
//! Never: a real clock, a thread, a random number that the seed does not give.

mod arrivals;
mod describe;
mod faults;
mod history;
pub mod invariants;
mod job;
mod plan;
mod producers;
mod raw;
mod readers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use millstream::client::{Admin, Cluster, IntoTransport as _, NewTopic, OffsetSpec};
use millstream::testing::{NetworkCounts, NetworkFaults, SimulatedNetwork, TestCluster};
use millstream::{BrokerOptions, TopicPartition};
use tokio::time::timeout;

use faults::Faults;
pub use history::{
    AUDIT, ENRICHED, Ended, GROUP, History, INPUT, RawBatch, Reading, Record, Seen, Sent, Snapshot,
    Transaction, Watermarks, Written,
};
use job::Jobs;
pub use plan::{Plan, Scheduled, Strike};
use producers::Writer;
use readers::Photographer;

/// How long the producers may take, faults and all.
const WRITING_MAX: Duration = Duration::from_secs(1_200);
/// How long each step after the healing may take.
const HEALING_MAX: Duration = Duration::from_secs(180);

/// What a run came to.
#[derive(Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// What was broken; empty for a good run.
    pub violations: Vec<String>,
    /// Hash of every frame, and how many there were.
    pub trace: (u64, u64),
    /// Virtual time that passed.
    pub lasted: Duration,
    /// What the networks did.
    pub network: NetworkCounts,
    /// How often each thing happened.
    pub counts: BTreeMap<&'static str, u64>,
    /// What was noted.
    pub history: History,
}

/// Runs a plan on a runtime of its own; `print` writes a log of it to stderr.
///
/// # Panics
/// Where no runtime can be made.
#[must_use]
pub fn run(plan: Plan, print: bool) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O");
    runtime.block_on(run_here(Arc::new(plan), print))
}

async fn run_here(plan: Arc<Plan>, print: bool) -> Report {
    let record = Record::new(print);
    record.say(|| format!("{plan:#?}"));
    let mut world = None;
    if let Err(error) = World::run(Arc::clone(&plan), record.clone(), &mut world).await {
        record.mishap(format!("the run broke off: {error:#}"));
    }
    let lasted = record.at();
    let (trace, network) = match &world {
        Some(world) => (world.cluster.trace().digest(), world.network_counts()),
        None => ((0, 0), NetworkCounts::default()),
    };
    let history = record.take();
    let violations = invariants::check(&history);
    for violation in &violations {
        record.say(|| format!("VIOLATION {violation}"));
    }
    let counts = history.counts.clone();
    Report {
        seed: plan.seed,
        violations,
        trace,
        lasted,
        network,
        counts,
        history,
    }
}

/// The parts of a run.
struct World {
    plan: Arc<Plan>,
    record: Record,
    cluster: Arc<TestCluster>,
    calm: SimulatedNetwork,
    job: SimulatedNetwork,
    partitions: Vec<TopicPartition>,
    random: fastrand::Rng,
}

impl World {
    async fn run(plan: Arc<Plan>, record: Record, world: &mut Option<Self>) -> anyhow::Result<()> {
        let made = Self::make(plan, record).await?;
        let world = world.insert(made);
        let photographer = Arc::new(world.photographer().await?);
        let photos = tokio::spawn({
            let photographer = Arc::clone(&photographer);
            async move { photographer.run().await }
        });
        let live_client = world.cluster.client(10);
        let live = readers::reader(world.cluster.network(), live_client, &world.partitions).await?;
        let reading = tokio::spawn({
            let (live, record) = (live.clone(), world.record.clone());
            async move { readers::read_on(&live, &record).await }
        });
        let jobs = Jobs {
            plan: Arc::clone(&world.plan),
            record: world.record.clone(),
        };
        let mut faults = Faults::begin(world, jobs);
        world.write(&mut faults).await?;
        world.heal(&mut faults).await;
        let outcome = world.finish(&photographer).await;
        faults.stop_jobs().await;
        outcome?;
        photos.abort();
        let _ = photos.await;
        world.last_look(&photographer).await?;
        reading.abort();
        let _ = reading.await;
        let ends = photographer.offsets(OffsetSpec::LatestCommitted).await?;
        let record = world.record.clone();
        let rest = readers::read_to(&live, &ends, |records| {
            readers::note(&mut record.lock().live, records);
        });
        timeout(HEALING_MAX, rest)
            .await
            .context("the live reader did not reach the ends")??;
        let _ = live.close().await;
        Ok(())
    }

    async fn make(plan: Arc<Plan>, record: Record) -> anyhow::Result<Self> {
        let options = BrokerOptions::new()
            .auto_create_topics(false)
            .configure(|config| {
                config.checkpoint_interval_ms = 3_000;
            });
        let cluster = TestCluster::with(plan.seed, NetworkFaults::NONE, options).await?;
        let calm = cluster.another_network("calm", NetworkFaults::NONE);
        let job = cluster.another_network("job-0", plan.network);
        let admin = Admin::with(&calm, cluster.client(1));
        let mut partitions = Vec::new();
        let topics = [
            (INPUT, plan.input_partitions),
            (ENRICHED, plan.output_partitions),
            (AUDIT, plan.output_partitions),
        ];
        for (topic, count) in topics {
            let topic_of_plan =
                NewTopic::new(topic, count).config("internal.segment.bytes", plan.segment_bytes);
            admin.create_topic(&topic_of_plan).await?;
            partitions.extend((0..count).map(|number| TopicPartition::new(topic, number)));
        }
        let world = Self {
            random: fastrand::Rng::with_seed(plan.seed ^ 0x0077_6f72_6c64),
            plan,
            record,
            cluster: Arc::new(cluster),
            calm,
            job,
            partitions,
        };
        world.cluster.network().set_faults(world.plan.network);
        Ok(world)
    }

    async fn photographer(&self) -> anyhow::Result<Photographer> {
        let client = self.client(20);
        let consumer = readers::reader(&self.calm, client.clone(), &self.partitions).await?;
        Ok(Photographer {
            admin: Admin::with(&self.calm, client),
            consumer,
            partitions: self.partitions.clone(),
            record: self.record.clone(),
        })
    }

    /// A client's settings.
    fn client(&self, number: u64) -> millstream::client::ClientConfig {
        let mut client = self.cluster.client(number);
        client.request_timeout = self.plan.request_timeout;
        client
    }

    /// Both producers write, while strikes fall.
    async fn write(&mut self, faults: &mut Faults) -> anyhow::Result<()> {
        let (first, second) = (self.random.fork(), self.random.fork());
        let writer = |number: u64, random: fastrand::Rng| Writer {
            plan: Arc::clone(&self.plan),
            record: self.record.clone(),
            network: self.cluster.network().clone(),
            client: self.client(number),
            random,
        };
        let one = tokio::spawn(writer(30, first).write_idempotent());
        let two = tokio::spawn(writer(40, second).write_transactions());
        faults.strike().await?;
        let written = async { (one.await, two.await) };
        match timeout(WRITING_MAX, written).await {
            Ok((Ok(()), Ok(()))) => Ok(()),
            Ok((one, two)) => bail!("a producer's task ended: {one:?} {two:?}"),
            Err(_) => bail!("the producers did not finish within {WRITING_MAX:?}"),
        }
    }

    /// No more faults, and what they began comes to its end.
    async fn heal(&self, faults: &mut Faults) {
        self.record.say(|| "-- healing".to_owned());
        self.cluster.network().set_faults(NetworkFaults::NONE);
        faults.heal().await;
    }

    /// Waits until the input is decided and the job has committed all of it.
    async fn finish(&self, photographer: &Photographer) -> anyhow::Result<()> {
        let decided = timeout(HEALING_MAX, async {
            loop {
                let stable = photographer.offsets(OffsetSpec::LatestCommitted).await?;
                let high = photographer.offsets(OffsetSpec::Latest).await?;
                let of_input = |offsets: BTreeMap<TopicPartition, i64>| -> BTreeMap<_, _> {
                    offsets
                        .into_iter()
                        .filter(|(partition, _)| &*partition.topic == INPUT)
                        .collect()
                };
                let (stable, high) = (of_input(stable), of_input(high));
                if stable == high {
                    return anyhow::Ok(stable);
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        let ends = decided
            .await
            .context("a transaction of the input stayed open")??;
        self.record.lock().ends.clone_from(&ends);
        let committed = timeout(HEALING_MAX, async {
            loop {
                let committed = photographer.committed().await?;
                let done = ends.iter().all(|(partition, &end)| {
                    end == 0
                        || committed
                            .get(partition)
                            .is_some_and(|&offset| offset >= end)
                });
                if done {
                    return anyhow::Ok(());
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        match committed.await {
            Ok(done) => done,
            Err(_) => {
                let committed = photographer.committed().await?;
                bail!("the job did not reach the ends {ends:?}, it committed {committed:?}")
            }
        }
    }

    /// The state when everything is over.
    async fn last_look(&self, photographer: &Photographer) -> anyhow::Result<()> {
        timeout(HEALING_MAX, self.all_complete(photographer))
            .await
            .unwrap_or(Ok(()))?;
        timeout(HEALING_MAX, photographer.snapshot())
            .await
            .context("the last snapshot")??;
        let committed = photographer.committed().await?;
        let high = photographer.offsets(OffsetSpec::Latest).await?;
        let cluster = Cluster::new(self.calm.into_transport(), self.client(50));
        for (partition, end) in high {
            let batches = raw::read(&cluster, &partition, end).await?;
            self.record.lock().raw.insert(partition, batches);
        }
        self.record.lock().committed = committed;
        Ok(())
    }

    /// Waits until every transaction is complete.
    async fn all_complete(&self, photographer: &Photographer) -> anyhow::Result<()> {
        loop {
            let open: Vec<String> = photographer
                .admin
                .list_transactions()
                .await?
                .into_iter()
                .filter(|found| {
                    let state = found.transaction_state.as_str();
                    !matches!(state, "Empty" | "CompleteCommit" | "CompleteAbort")
                })
                .map(|found| {
                    format!(
                        "{} is in {}",
                        found.transactional_id, found.transaction_state
                    )
                })
                .collect();
            let done = open.is_empty();
            self.record.lock().incomplete = open;
            if done {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    fn network_counts(&self) -> NetworkCounts {
        let (main, job) = (self.cluster.network().counts(), self.job.counts());
        NetworkCounts {
            arrived: main.arrived + job.arrived,
            slow: main.slow + job.slow,
            lost_requests: main.lost_requests + job.lost_requests,
            lost_responses: main.lost_responses + job.lost_responses,
            refused: main.refused + job.refused,
            connections: main.connections + job.connections,
        }
    }
}
