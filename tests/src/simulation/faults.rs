//! Strikes: power cuts of the broker, instances of the job that are cut off, taken over, or joined
//! by another one.
//!
//! Invariants: one instance at a time is started again where it ends; one that was taken over ends
//! by itself.
//! Never: touches what a client or the broker holds.

use std::sync::Arc;
use std::time::Duration;

use millstream::formats::protocol::ApiKey;
use millstream::testing::{NetworkFaults, SimulatedNetwork, TestCluster};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::World;
use super::arrivals::Arrivals;
use super::history::Record;
use super::job::{Instance, Jobs};
use super::plan::{Plan, Strike};

/// How long a part may take to come to its end.
const ENDING_MAX: Duration = Duration::from_secs(180);

/// How long a strike waits for the request that it follows.
const REQUEST_MAX: Duration = Duration::from_secs(2);

/// The transactional id, and the place in the group, of the instance that always runs.
const FIRST: &str = "enrichment-1";
/// Those of the instance that runs for a while.
const SECOND: &str = "enrichment-2";

/// What strikes, and what has to be brought to an end because of it.
pub(super) struct Faults {
    plan: Arc<Plan>,
    record: Record,
    cluster: Arc<TestCluster>,
    jobs: Jobs,
    began: Instant,
    arrivals: Arc<Arrivals>,
    /// The instance that is started again where it ends, and its network.
    first: Option<(Instance, SimulatedNetwork)>,
    networks: Vec<SimulatedNetwork>,
    /// What goes on beside.
    beside: Vec<JoinHandle<()>>,
    second_runs: bool,
}

impl Faults {
    pub(super) fn begin(world: &World, jobs: Jobs) -> Self {
        let arrivals = Arc::new(Arrivals::new(world.record.clone()));
        arrivals.watch(world.cluster.network());
        arrivals.watch(&world.job);
        let first = jobs.start(FIRST, &world.job, world.client(100), true);
        Self {
            plan: Arc::clone(&world.plan),
            record: world.record.clone(),
            cluster: Arc::clone(&world.cluster),
            jobs,
            began: Instant::now(),
            arrivals,
            first: Some((first, world.job.clone())),
            networks: vec![world.job.clone()],
            beside: Vec::new(),
            second_runs: false,
        }
    }

    /// Every strike of the plan, in order.
    pub(super) async fn strike(&mut self) -> anyhow::Result<()> {
        let plan = Arc::clone(&self.plan);
        for scheduled in &plan.strikes {
            tokio::time::sleep_until(self.began + scheduled.at).await;
            self.record.say(|| format!("-- {:?}", scheduled.strike));
            match scheduled.strike {
                Strike::PowerCut { unsynced, down } => {
                    self.record.count("power cut");
                    self.cluster.cut_power(unsynced);
                    tokio::time::sleep(down).await;
                    self.cluster.restart().await?;
                    self.record.say(|| "-- the broker is back".to_owned());
                }
                Strike::PowerCutAfter {
                    api,
                    nth,
                    then,
                    unsynced,
                    down,
                } => {
                    self.record.count("power cut after a request");
                    let asked = self.arrivals.wait_for(api, u64::from(nth));
                    let _ = tokio::time::timeout(REQUEST_MAX, asked).await;
                    if !then.is_zero() {
                        tokio::time::sleep(then).await;
                    }
                    self.cluster.cut_power(unsynced);
                    self.record.say(|| "-- power cut".to_owned());
                    tokio::time::sleep(down).await;
                    self.cluster.restart().await?;
                    self.record.say(|| "-- the broker is back".to_owned());
                }
                Strike::Takeover { cut } => self.take_over(cut),
                Strike::CutOff { cut } => self.cut_off(cut),
                Strike::Expelled { then, cut } => self.expel(then, cut).await,
                Strike::SecondInstance { runs } => self.second_instance(runs),
            }
        }
        Ok(())
    }

    fn network(&mut self) -> SimulatedNetwork {
        let name = format!("job-{}", self.networks.len());
        let network = self.cluster.another_network(&name, self.plan.network);
        self.arrivals.watch(&network);
        self.networks.push(network.clone());
        network
    }

    fn client(&self) -> millstream::client::ClientConfig {
        let mut client = self
            .cluster
            .client(1_000 + 100 * self.networks.len() as u64);
        client.request_timeout = self.plan.request_timeout;
        client
    }

    fn take_over(&mut self, cut: Duration) {
        self.record.count("job taken over");
        let Some((old, old_network)) = self.first.take() else {
            return;
        };
        old.not_again();
        let network = self.network();
        let fresh = self.jobs.start(FIRST, &network, self.client(), true);
        self.first = Some((fresh, network));
        let (record, healed) = (self.record.clone(), self.plan.network);
        let notices = self.plan.static_members;
        self.beside.push(tokio::spawn(async move {
            cut_for(&old_network, cut, healed).await;
            // The group tells a static member; another one notices when it writes, and may have
            // nothing to write.
            let ended = if notices {
                old.ended(ENDING_MAX).await
            } else {
                tokio::time::sleep(Duration::from_secs(2)).await;
                old.stop(ENDING_MAX).await
            };
            if let Err(mishap) = ended {
                record.mishap(format!("the instance that was taken over: {mishap}"));
            }
        }));
    }

    fn cut_off(&mut self, cut: Duration) {
        self.record.count("job cut off");
        if let Some((_, network)) = &self.first {
            let (network, healed) = (network.clone(), self.plan.network);
            self.beside.push(tokio::spawn(
                async move { cut_for(&network, cut, healed).await },
            ));
        }
    }

    async fn expel(&mut self, then: Duration, cut: Duration) {
        self.record.count("job expelled from its group");
        self.second_instance(cut + Duration::from_secs(10));
        // The second joins first: the group hands partitions over to nobody else.
        tokio::time::sleep(Duration::from_millis(700)).await;
        if let Some((_, network)) = &self.first {
            let offsets = self.arrivals.wait_on(network, ApiKey::TxnOffsetCommit);
            let _ = tokio::time::timeout(REQUEST_MAX, offsets).await;
        }
        tokio::time::sleep(then).await;
        self.cut_off(cut);
    }

    fn second_instance(&mut self, runs: Duration) {
        if self.second_runs {
            return;
        }
        self.second_runs = true;
        self.record.count("second instance");
        let network = self.network();
        let instance = self.jobs.start(SECOND, &network, self.client(), true);
        let record = self.record.clone();
        self.beside.push(tokio::spawn(async move {
            tokio::time::sleep(runs).await;
            if let Err(mishap) = instance.stop(ENDING_MAX).await {
                record.mishap(format!("the second instance: {mishap}"));
            }
        }));
    }

    /// Ends what the strikes began.
    pub(super) async fn heal(&mut self) {
        for network in &self.networks {
            if network.faults() != NetworkFaults::CUT {
                network.set_faults(NetworkFaults::NONE);
            }
        }
        for task in self.beside.drain(..) {
            if let Err(error) = task.await {
                self.record
                    .mishap(format!("a strike's task ended: {error}"));
            }
        }
        for network in &self.networks {
            network.set_faults(NetworkFaults::NONE);
        }
    }

    /// Stops the instance that is left.
    pub(super) async fn stop_jobs(&mut self) {
        let Some((first, _)) = self.first.take() else {
            return;
        };
        if let Err(mishap) = first.stop(ENDING_MAX).await {
            self.record.mishap(mishap);
        }
    }
}

async fn cut_for(network: &SimulatedNetwork, cut: Duration, healed: NetworkFaults) {
    network.set_faults(NetworkFaults::CUT);
    tokio::time::sleep(cut).await;
    network.set_faults(healed);
}
