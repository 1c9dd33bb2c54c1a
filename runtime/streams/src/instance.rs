//! [`Streams`]: one instance of an application, from its settings to its end.
//!
//! ```text
//!  start: fence (init transactions) ─▶ fill global tables ─▶ join the group ─▶ workers run
//!  stop:  reader stops ─▶ workers commit and end ─▶ leave the group
//! ```
//!
//! Invariants: the transactional ids are fenced before any offset is read; the first error is the
//! one that is reported.
//! Never: goes on with some of its workers.

use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use millstream_client::consumer::{AutoOffsetReset, Consumer, ConsumerError, Isolation};
use millstream_client::{
    Admin, BrokerAddress, ClientConfig, IntoTransport, Producer, TcpTransport, Transport,
};
use millstream_protocol::TopicPartition;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::assignment::StreamsAssignor;
use crate::commit::Metadata;
use crate::config::{Guarantee, Placement, StreamsConfig};
use crate::error::StreamsError;
use crate::global::GlobalReader;
use crate::placement::{self, WorkerOutcome};
use crate::poison::PoisonPolicy;
use crate::progress::{Progress, ProgressLog};
use crate::reader::{Reader, WorkerHandle};
use crate::task::GlobalStores;
use crate::topology::Topology;
use crate::worker::{Channels, Control, SizeLimits, Worker};

/// Batches that may wait in front of a worker.
const QUEUE_BATCHES: usize = 8;

/// An application before it runs: its topology and its settings.
#[derive(Debug)]
pub struct Streams {
    topology: Topology,
    config: StreamsConfig,
    transport: Option<Arc<dyn Transport>>,
    mistakes: Vec<StreamsError>,
}

impl Streams {
    /// An application with the safe defaults: exactly once, a commit every 100 ms, one worker.
    #[must_use]
    pub fn new(application_id: &str, topology: Topology) -> Self {
        let config = StreamsConfig::new(application_id);
        Self {
            topology,
            config,
            transport: None,
            mistakes: Vec::new(),
        }
    }

    /// Runs against this broker: the embedded one, or any transport.
    #[must_use]
    pub fn connect(mut self, broker: &impl IntoTransport) -> Self {
        self.transport = Some(broker.into_transport());
        self
    }

    /// Runs against the cluster at `host:port[,host:port…]`.
    #[must_use]
    pub fn bootstrap(mut self, addresses: &str) -> Self {
        self.transport = Some(Arc::new(TcpTransport::new(addresses)));
        self
    }

    /// Number of workers (`num.stream.threads`, default 1).
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.config.threads = threads;
        self
    }

    /// Time between commits (`commit.interval.ms`, default 100 ms; Kafka's at-least-once default is
    /// 30 s).
    #[must_use]
    pub fn commit_interval(mut self, interval: Duration) -> Self {
        self.config.commit_interval = interval;
        self
    }

    /// The instance's identity (`transactional.id`, default `<application id>-1`). Worker n
    /// produces as `<id>-<n>`; a second instance with the same id takes over from the first, which
    /// stops with an error.
    #[must_use]
    pub fn transactional_id(mut self, id: impl Into<String>) -> Self {
        self.config.transactional_id = id.into();
        self
    }

    /// Static membership (`group.instance.id`; under exactly-once the transactional id by default):
    /// a restarted instance takes its place in the group at once, and one that stops keeps it until
    /// its session ends (`session.timeout.ms`, 45 s). Empty for a member that leaves when it stops;
    /// what is started after a kill then waits until the session of the killed one ends.
    #[must_use]
    pub fn group_instance_id(mut self, id: impl Into<String>) -> Self {
        self.config.group_instance_id = Some(id.into());
        self
    }

    /// What the job promises (`processing.guarantee`, default exactly once).
    #[must_use]
    pub fn guarantee(mut self, guarantee: Guarantee) -> Self {
        self.config.guarantee = guarantee;
        self
    }

    /// What becomes of records that cannot be processed (default: fail).
    #[must_use]
    pub fn poison(mut self, policy: PoisonPolicy) -> Self {
        self.config.poison = policy;
        self
    }

    /// Client settings of all its connections: client id, time-outs, back-offs, clock and seed.
    #[must_use]
    pub fn client(mut self, client: ClientConfig) -> Self {
        self.config.client = client;
        self
    }

    /// Where workers run (default: threads of their own).
    #[must_use]
    pub fn placement(mut self, placement: Placement) -> Self {
        self.config.placement = placement;
        self
    }

    /// Sets a setting by Kafka's name. A mistake, or a setting that the guarantee holds, is
    /// reported by the start.
    #[must_use]
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        if let Err(mistake) = self.config.set(name, &value.to_string()) {
            self.mistakes.push(mistake);
        }
        self
    }

    /// Every effective setting under Kafka's name, those that the guarantee holds included.
    #[must_use]
    pub fn effective_settings(&self) -> BTreeMap<String, String> {
        self.config.effective()
    }

    /// Starts the instance on the current runtime and answers when its transactional ids are
    /// fenced, its global tables filled and the group subscribed.
    ///
    /// Dropped before it is done, it leaves nothing running but the transactional ids fenced.
    ///
    /// # Errors
    /// Settings that contradict each other, a broker that cannot be reached, a poison row of a
    /// global table.
    pub fn start(mut self) -> BoxFuture<'static, Result<RunningStreams, StreamsError>> {
        Box::pin(async move {
            if !self.mistakes.is_empty() {
                return Err(self.mistakes.remove(0));
            }
            self.config.validate()?;
            let transport = self.transport.ok_or_else(|| {
                StreamsError::Config(
                    "no broker: call connect(&broker) or bootstrap(\"host:port\")".into(),
                )
            })?;
            tracing::info!(settings = ?self.config.effective(), topology = ?self.topology, "starting");
            let start = Start {
                transport,
                config: Arc::new(self.config),
                topology: self.topology,
            };
            start.run().await
        })
    }

    /// Runs until `end` is ready, then commits and stops.
    ///
    /// # Errors
    /// As [`start`](Self::start) and [`RunningStreams::stop`].
    pub async fn run_until(self, end: impl Future<Output = ()>) -> Result<Progress, StreamsError> {
        let mut running = self.start().await?;
        tokio::select! {
            biased;
            outcome = running.ended() => outcome?,
            () = end => {}
        }
        running.stop().await
    }

    /// Runs until Ctrl-C, then commits and stops. SIGTERM is not heard and ends the process as a
    /// kill would; [`run_until`](Self::run_until) takes any other end.
    ///
    /// # Errors
    /// As [`run_until`](Self::run_until).
    pub fn run_until_ctrl_c(self) -> BoxFuture<'static, Result<Progress, StreamsError>> {
        Box::pin(self.run_until(async {
            if let Err(error) = tokio::signal::ctrl_c().await {
                tracing::warn!(%error, "Ctrl-C cannot be heard");
                std::future::pending::<()>().await;
            }
        }))
    }
}

/// How long brokers may be out of reach before that is said.
const SILENCE: Duration = Duration::from_secs(5);

/// Waits for `start`; when that takes longer than `silence`, says so once and goes on.
async fn said_when_slow<T>(
    start: impl Future<Output = T>,
    silence: Duration,
    say: impl FnOnce(),
) -> T {
    let mut start = std::pin::pin!(start);
    if let Ok(started) = tokio::time::timeout(silence, &mut start).await {
        return started;
    }
    say();
    start.await
}

/// What a start that gets nowhere says on stderr when nobody hears what is traced: a wrong address
/// must not look like a job that runs. Nothing without an address that may be wrong.
fn still_starting(addresses: &[BrokerAddress], patience: Duration) -> Option<String> {
    let listening = addresses.iter().filter(|address| address.port != 0);
    let listening: Vec<String> = listening.map(ToString::to_string).collect();
    (!listening.is_empty()).then(|| {
        format!(
            "millstream: not started after {} s: does a broker listen at {}? It is tried for up \
             to {} s; with a subscriber of tracing (tracing_subscriber::fmt::init()) the reasons \
             are told",
            SILENCE.as_secs(),
            listening.join(", "),
            patience.as_secs(),
        )
    })
}

#[expect(clippy::print_stderr, reason = "nobody listens elsewhere")]
fn say_on_stderr(line: Option<String>) {
    if let Some(line) = line.filter(|_| !tracing::dispatcher::has_been_set()) {
        eprintln!("{line}");
    }
}

/// The steps of a start.
struct Start {
    transport: Arc<dyn Transport>,
    config: Arc<StreamsConfig>,
    topology: Topology,
}

impl Start {
    async fn run(self) -> Result<RunningStreams, StreamsError> {
        let addresses = self.transport.bootstrap();
        let say = || say_on_stderr(still_starting(&addresses, self.config.delivery_timeout));
        let (producers, limits) = said_when_slow(self.reach(), SILENCE, say).await?;
        self.fence_surplus_workers().await?;
        let stores = self.topology.global_stores();
        let global = self.fill_globals(&stores).await?;
        let progress = ProgressLog::new();
        let (stop, stopped) = watch::channel(false);
        let (rewinds, rewound) = mpsc::unbounded_channel();
        let consumer = self.consumer().await?;
        let mut handles = Vec::new();
        let mut workers = Vec::new();
        let fencing = Fencing {
            transactional_id: format!("{}-0", self.config.transactional_id),
            producer: producers.first().cloned(),
            admin: self.admin(),
        };
        for producer in producers {
            let (control, controlled) = mpsc::unbounded_channel();
            let (records, batches) = mpsc::channel(QUEUE_BATCHES);
            handles.push(WorkerHandle { control, records });
            workers.push(Worker::new(
                Arc::clone(&self.config),
                self.topology.clone(),
                stores.clone(),
                (producer, consumer.clone()),
                Channels {
                    control: controlled,
                    records: batches,
                    rewinds: rewinds.clone(),
                },
                (progress.clone(), limits.clone()),
            ));
        }
        let controls: Vec<_> = handles
            .iter()
            .map(|handle| handle.control.clone())
            .collect();
        let reader = Reader::subscribe(consumer, self.topics(), handles, rewound).await?;
        let workers = workers
            .into_iter()
            .enumerate()
            .map(|(number, worker)| placement::place(&self.config, number, worker))
            .collect::<Result<Vec<_>, _>>()?;
        let parts = Parts {
            reader,
            global,
            workers,
            controls,
            stop: stop.clone(),
            fencing,
        };
        let outcome = tokio::spawn(parts.run(stopped));
        let group = self.config.application_id.to_string();
        let admin = self.admin();
        Ok(RunningStreams {
            stop,
            outcome: Some(outcome),
            progress,
            admin,
            group,
        })
    }

    /// The first questions to the brokers. What comes after them may take its time: global tables
    /// are filled.
    async fn reach(&self) -> Result<(Vec<Producer>, SizeLimits), StreamsError> {
        let mut producers = Vec::new();
        for worker in 0..self.config.threads {
            producers.push(self.producer(worker).await?);
        }
        Ok((producers, self.size_limits().await))
    }

    fn topics(&self) -> Vec<String> {
        let topics = self.topology.source_topics().into_iter();
        topics.map(str::to_owned).collect()
    }

    async fn producer(&self, worker: usize) -> Result<Producer, StreamsError> {
        let config = &self.config;
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let mut builder = Producer::builder()
            .client(config.client.clone())
            .linger_ms(millis(config.linger))
            .batch_size(config.batch_size)
            .buffer_memory(config.buffer_memory)
            .max_request_size(config.max_request_size)
            .delivery_timeout_ms(millis(config.delivery_timeout))
            // Whatever waits for a broker that is away waits as long as a record may.
            .max_block_ms(millis(config.delivery_timeout));
        if config.guarantee == Guarantee::AtLeastOnce {
            return Ok(builder.connect(&self.transport).await?);
        }
        builder = builder
            .transactional_id(format!("{}-{worker}", config.transactional_id))
            .transaction_timeout_ms(millis(config.transaction_timeout));
        let producer = builder.connect(&self.transport).await?;
        producer.init_transactions().await?;
        Ok(producer)
    }

    async fn size_limits(&self) -> SizeLimits {
        let config = &self.config;
        SizeLimits::ask(
            self.admin(),
            &self.topology,
            &config.poison,
            config.max_request_size,
        )
        .await
    }

    fn admin(&self) -> Admin {
        Admin::with(&self.transport, self.config.client.clone())
    }

    /// An earlier instance with more workers may have left transactions open under ids that this
    /// one does not use; its commits say how many there were. They are read without waiting for
    /// what is undecided, which is what is fenced here.
    async fn fence_surplus_workers(&self) -> Result<(), StreamsError> {
        if self.config.guarantee == Guarantee::AtLeastOnce {
            return Ok(());
        }
        let admin = self.admin();
        let committed = admin.group_offsets(&self.config.application_id).await?;
        let before = committed
            .values()
            .filter_map(|committed| Metadata::decode(&committed.metadata))
            .map(|metadata| metadata.workers)
            .max()
            .unwrap_or(0);
        for surplus in self.config.threads..before {
            let producer = self.producer(surplus).await?;
            producer.close(Duration::from_secs(5)).await;
        }
        Ok(())
    }

    async fn fill_globals(
        &self,
        stores: &GlobalStores,
    ) -> Result<Option<GlobalReader>, StreamsError> {
        if self.topology.inner.globals.is_empty() {
            return Ok(None);
        }
        let reading = |isolation| {
            Consumer::builder()
                .client(self.config.client.clone())
                .isolation(isolation)
                .auto_offset_reset(AutoOffsetReset::Earliest)
                .connect(&self.transport)
        };
        let consumer = reading(Isolation::ReadCommitted).await?;
        let watermarks = reading(Isolation::ReadUncommitted).await?;
        let (topology, poison) = (self.topology.clone(), self.config.poison.clone());
        let filled =
            GlobalReader::fill(consumer, &watermarks, topology, stores.clone(), poison).await?;
        Ok(Some(filled))
    }

    async fn consumer(&self) -> Result<Consumer, StreamsError> {
        let config = &self.config;
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let mut builder = Consumer::builder()
            .client(config.client.clone())
            .group_id(config.application_id.to_string())
            .isolation(Isolation::ReadCommitted)
            .auto_offset_reset(config.begins())
            .out_of_range_fails(config.out_of_range_fails())
            .max_poll_records(config.max_poll_records)
            .session_timeout_ms(millis(config.session_timeout))
            .heartbeat_interval_ms(millis(config.heartbeat_interval))
            .default_api_timeout_ms(millis(config.delivery_timeout))
            .assignors(vec![Arc::new(StreamsAssignor::default())]);
        if let Some(instance) = config.instance_id() {
            builder = builder.group_instance_id(instance);
        }
        Ok(builder.connect(&self.transport).await?)
    }
}

/// What runs while an instance runs.
struct Parts {
    reader: Reader,
    global: Option<GlobalReader>,
    workers: Vec<WorkerOutcome>,
    controls: Vec<mpsc::UnboundedSender<Control>>,
    stop: watch::Sender<bool>,
    fencing: Fencing,
}

/// What tells which epochs a fenced instance and its successor have.
struct Fencing {
    transactional_id: String,
    producer: Option<Producer>,
    admin: Admin,
}

impl Fencing {
    /// How long the coordinator is asked for the newer epoch.
    const PATIENCE: Duration = Duration::from_secs(5);

    /// Names both epochs where the group, rather than the coordinator of transactions, was the
    /// first to say that a successor runs.
    async fn explain(&self, error: StreamsError) -> StreamsError {
        let StreamsError::Consumer(cause @ ConsumerError::InstanceFenced { .. }) = error else {
            return error;
        };
        let identity = self.producer.as_ref().and_then(Producer::identity);
        let Some(identity) = identity else {
            return cause.into();
        };
        let asked = self.admin.describe_transaction(&self.transactional_id);
        let newer = tokio::time::timeout(Self::PATIENCE, asked).await;
        let newer = newer.ok().and_then(Result::ok);
        StreamsError::Fenced {
            transactional_id: self.transactional_id.clone(),
            our_epoch: identity.epoch,
            newer_epoch: newer.map(|found| found.producer_epoch),
            cause,
        }
    }
}

impl Parts {
    /// Runs until it is stopped or a part fails, then brings the other parts to their end.
    async fn run(mut self, stopped: watch::Receiver<bool>) -> Result<(), StreamsError> {
        let global = self.global.take();
        let global_stopped = stopped.clone();
        let mut global = Box::pin(async move {
            match global {
                Some(global) => global.run(global_stopped).await,
                None => std::future::pending().await,
            }
        });
        let mut first_error = {
            let mut any_worker = futures::future::select_all(self.workers.iter_mut());
            tokio::select! {
                biased;
                (ended, number, _) = &mut any_worker => {
                    Some(ended.err().unwrap_or_else(|| StreamsError::Bug {
                        what: format!("worker {number} ended without being told to"),
                    }))
                }
                outcome = &mut global => outcome.err(),
                outcome = self.reader.run(stopped) => outcome.err(),
            }
        };
        let _ = self.stop.send(true);
        for control in &self.controls {
            let _ = control.send(Control::Stop);
        }
        for worker in self.workers {
            if let Err(error) = worker.await {
                first_error.get_or_insert(error);
            }
        }
        let closed = self.reader.close().await;
        match first_error {
            Some(error) => Err(self.fencing.explain(error).await),
            None => closed,
        }
    }
}

/// A running instance. Dropping it stops the instance without waiting for its last commit.
#[derive(Debug)]
pub struct RunningStreams {
    stop: watch::Sender<bool>,
    outcome: Option<JoinHandle<Result<(), StreamsError>>>,
    progress: ProgressLog,
    admin: Admin,
    group: String,
}

impl RunningStreams {
    /// What was committed so far.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress.snapshot()
    }

    /// A handle on the progress for another task, or for beside a call that waits.
    #[must_use]
    pub fn watch(&self) -> ProgressWatch {
        ProgressWatch {
            log: self.progress.clone(),
        }
    }

    /// Waits until the instance ends by itself, which is always an error. Cancel-safe.
    ///
    /// # Errors
    /// Why it ended.
    pub fn ended(&mut self) -> BoxFuture<'_, Result<(), StreamsError>> {
        Box::pin(async move {
            let Some(outcome) = &mut self.outcome else {
                return Ok(());
            };
            let ended = outcome.await;
            self.outcome = None;
            flatten(ended)
        })
    }

    /// Waits until the group has committed every offset of `ends` (exclusive), whichever instance
    /// did. Cancel-safe.
    ///
    /// # Errors
    /// Why the instance ended before.
    pub fn committed<'a>(
        &'a mut self,
        ends: &'a BTreeMap<TopicPartition, i64>,
    ) -> BoxFuture<'a, Result<(), StreamsError>> {
        Box::pin(async move {
            const ASK_GROUP_EVERY: Duration = Duration::from_millis(200);
            let progress = self.progress.clone();
            let mut changed = progress.subscribe();
            let (admin, group_id) = (self.admin.clone(), self.group.clone());
            // Goes on beside the instance's own progress, however long an answer takes.
            let group_reached = async {
                loop {
                    // A broker that is away for a moment is the instance's affair; it ends with an
                    // error where it is away for too long.
                    let group = admin.group_offsets(&group_id).await.unwrap_or_default();
                    let done = ends.iter().all(|(partition, &end)| {
                        end == 0
                            || group
                                .get(partition)
                                .is_some_and(|found| found.offset >= end)
                    });
                    if done {
                        return;
                    }
                    tokio::time::sleep(ASK_GROUP_EVERY).await;
                }
            };
            let mut group_reached = std::pin::pin!(group_reached);
            while !progress.snapshot().reaches(ends) {
                tokio::select! {
                    biased;
                    ended = self.ended() => {
                        ended?;
                        return Err(ended_already());
                    }
                    _ = changed.changed() => {}
                    () = &mut group_reached => return Ok(()),
                }
            }
            Ok(())
        })
    }

    /// Commits what was processed, stops, and answers what was committed.
    ///
    /// # Errors
    /// What kept it from stopping cleanly; nothing that was not committed is visible.
    pub fn stop(mut self) -> BoxFuture<'static, Result<Progress, StreamsError>> {
        Box::pin(async move {
            let _ = self.stop.send(true);
            if let Some(outcome) = self.outcome.take() {
                flatten(outcome.await)?;
            }
            Ok(self.progress.snapshot())
        })
    }
}

/// Tells what an instance has committed; cheap to clone.
#[derive(Debug, Clone)]
pub struct ProgressWatch {
    log: ProgressLog,
}

impl ProgressWatch {
    /// What was committed so far.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.log.snapshot()
    }
}

impl Drop for RunningStreams {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
    }
}

fn ended_already() -> StreamsError {
    StreamsError::Bug {
        what: "the instance had ended already".into(),
    }
}

fn flatten(
    ended: Result<Result<(), StreamsError>, tokio::task::JoinError>,
) -> Result<(), StreamsError> {
    ended.unwrap_or_else(|error| {
        Err(StreamsError::Bug {
            what: format!("the instance's task ended: {error}"),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test(start_paused = true)]
    async fn a_start_that_takes_long_says_once_where_it_looks_for_a_broker() {
        let said = Cell::new(0);
        let say = || said.set(said.get() + 1);
        for (ms, expected) in [(4_900, 0), (60_000, 1)] {
            let start = async {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                ms
            };
            assert_eq!(said_when_slow(start, SILENCE, say).await, ms);
            assert_eq!(said.get(), expected);
        }
        let patience = Duration::from_secs(120);
        let addresses = ["a", "b"].map(|host| BrokerAddress::new(host, 9092));
        let line = still_starting(&addresses, patience).expect("said");
        assert!(line.contains("a:9092, b:9092?"), "{line}");
        assert!(line.contains("120 s;"), "{line}");
        let embedded = [BrokerAddress::new("in-process", 0)];
        assert_eq!(still_starting(&embedded, patience), None);
    }
}
