//! The broker that a suite runs against: ours, in virtual time, or the Apache Kafka that
//! `MILLSTREAM_TEST_BOOTSTRAP` names, in real time.
//!
//! A test asks [`BrokerUnderTest`] for clients' settings, for the way to the broker and for names
//! of its own, so that many may share one Kafka. Its body is the same for both; what differs is
//! said by [`BrokerUnderTest::is_kafka`] where it is expected. Tests that need more of the broker
//! than a connection stand in [`OURS_ONLY`]; on Kafka they say that they were left out, and why.
//!
//! ```text
//!  unset:                      clients ─▶ SimulatedNetwork ─▶ TestCluster, tokio's clock paused
//!  MILLSTREAM_TEST_BOOTSTRAP:  clients ─▶ SimulatedNetwork ─▶ TCP ─▶ Apache Kafka
//! ```
//!
//! Invariants: a test that was left out is in the report as such, never as one that ran; names are
//! those of one test alone.
//! Never: a fault inside of a Kafka; those on the way to it are the network's.

mod ours_only;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future as _;
use std::io::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::bail;
use millstream::client::consumer::ConsumerRecord;
use millstream::client::{
    Admin, ClientConfig, Clock, Cluster, IntoTransport, NewTopic, ProducerRecord, TcpTransport,
    Transport,
};
use millstream::formats::protocol::RecordBatch;
use millstream::testing::{NetworkFaults, SimulatedNetwork, TestCluster, Trace};
use millstream::{Broker, BrokerOptions, TopicPartition};

use tokio::time::Instant;

use crate::{copying, oracle, raw_log};

pub use ours_only::{OURS_ONLY, OursOnly};

/// Names the Apache Kafka to run against, as `127.0.0.1:19092`. Topics that it creates by itself
/// need four partitions, as `tests/compat/kafka/kafka serve` gives them.
pub const BOOTSTRAP: &str = "MILLSTREAM_TEST_BOOTSTRAP";
/// Names the file to which each test adds a line: `ran NAME`, or `left out NAME: REASON`.
pub const REPORT: &str = "MILLSTREAM_TEST_REPORT";
/// A Kafka works in real time, on a machine that does other things as well.
const KAFKA_PATIENCE: Duration = Duration::from_secs(180);

/// The broker, and the way to it.
#[derive(Debug)]
pub struct BrokerUnderTest {
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Ours on the test's runtime, in memory.
    Virtual(Box<TestCluster>),
    /// Ours on threads, in memory.
    Threads(Broker),
    Kafka(Standing),
}

/// A Kafka that others use as well.
#[derive(Debug)]
struct Standing {
    network: SimulatedNetwork,
    bootstrap: String,
    clock: Clock,
    /// What makes names those of this test alone.
    suffix: String,
    seed: u64,
    networks: AtomicU64,
}

impl BrokerUnderTest {
    /// A broker behind a network without faults.
    ///
    /// # Errors
    /// Where ours cannot be opened.
    pub async fn start(seed: u64) -> anyhow::Result<Self> {
        Self::with(seed, NetworkFaults::NONE).await
    }

    /// A broker behind a network with these faults.
    ///
    /// # Errors
    /// Where ours cannot be opened.
    pub async fn with(seed: u64, faults: NetworkFaults) -> anyhow::Result<Self> {
        ran();
        let place = match kafka() {
            Some(bootstrap) => {
                let_time_pass();
                Place::Kafka(Standing::new(bootstrap, seed, faults))
            }
            None => {
                let cluster = TestCluster::with(seed, faults, BrokerOptions::new()).await?;
                Place::Virtual(Box::new(cluster))
            }
        };
        Ok(Self { place })
    }

    /// Ours with settings of its own, behind a network without faults; for tests of the table
    /// [`OURS_ONLY`] that are not left out.
    ///
    /// # Errors
    /// Where it cannot be opened.
    pub async fn ours_with(seed: u64, options: BrokerOptions) -> anyhow::Result<Self> {
        ran();
        let cluster = TestCluster::with(seed, NetworkFaults::NONE, options).await?;
        Ok(Self {
            place: Place::Virtual(Box::new(cluster)),
        })
    }

    /// A broker for a test with threads, in real time on both.
    ///
    /// # Errors
    /// Where ours cannot be opened.
    pub async fn with_threads() -> anyhow::Result<Self> {
        ran();
        let place = match kafka() {
            Some(bootstrap) => Place::Kafka(Standing::new(bootstrap, 0, NetworkFaults::NONE)),
            None => Place::Threads(Broker::in_memory().await?),
        };
        Ok(Self { place })
    }

    /// Whether it is an Apache Kafka.
    #[must_use]
    pub fn is_kafka(&self) -> bool {
        matches!(self.place, Place::Kafka(_))
    }

    /// Ours, for what only that one has: a power to be cut.
    ///
    /// # Panics
    /// On a Kafka: the test has to be in [`OURS_ONLY`] and to ask [`left_out`] first.
    #[must_use]
    pub fn ours(&self) -> &TestCluster {
        match &self.place {
            Place::Virtual(cluster) => cluster,
            _ => panic!("the test needs our broker, and is not in the table of those that do"),
        }
    }

    /// Settings for a client: the broker's clock, and randomness of its own for each number.
    #[must_use]
    pub fn client(&self, number: u64) -> ClientConfig {
        match &self.place {
            Place::Virtual(cluster) => cluster.client(number),
            Place::Threads(_) => ClientConfig {
                seed: number,
                ..ClientConfig::default()
            },
            Place::Kafka(kafka) => ClientConfig {
                clock: kafka.clock,
                seed: kafka.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                ..ClientConfig::default()
            },
        }
    }

    /// The name of a topic, group, application or transactional id, which is this test's own.
    #[must_use]
    pub fn name(&self, plain: &str) -> String {
        match &self.place {
            Place::Kafka(kafka) => format!("{plain}-{}", kafka.suffix),
            _ => plain.to_owned(),
        }
    }

    /// A partition of the topic with this [`name`](Self::name).
    #[must_use]
    pub fn partition(&self, topic: &str, partition: i32) -> TopicPartition {
        TopicPartition::new(self.name(topic), partition)
    }

    /// A number as a record for the topic with this [`name`](Self::name).
    #[must_use]
    pub fn record(&self, topic: &str, number: u64) -> ProducerRecord {
        copying::record(&self.name(topic), number)
    }

    /// Creates the topic with this [`name`](Self::name), and answers its name. When it answers, the
    /// broker that is asked about topics knows: a Kafka's controller answers before its brokers
    /// have heard.
    ///
    /// # Errors
    /// Where the broker refuses, or does not hear of it in time.
    pub async fn create(&self, topic: &str, partitions: i32) -> anyhow::Result<String> {
        let name = self.name(topic);
        let topic = NewTopic::new(&*name, partitions);
        let admin = Admin::with(self, self.client(8_000));
        admin.create_topic(&topic).await?;
        broker_knows(&admin, &name, true).await?;
        Ok(name)
    }

    /// Deletes the topic with this [`name`](Self::name). When it answers, the broker that is asked
    /// about topics knows, as with [`create`](Self::create).
    ///
    /// # Errors
    /// Where the broker refuses, or does not hear of it in time.
    pub async fn delete(&self, topic: &str) -> anyhow::Result<()> {
        let name = self.name(topic);
        let admin = Admin::with(self, self.client(8_000));
        admin.delete_topic(&name).await?;
        broker_knows(&admin, &name, false).await
    }

    /// The network that clients use, to change its faults.
    ///
    /// # Panics
    /// Where the test is one with threads.
    #[must_use]
    pub fn network(&self) -> &SimulatedNetwork {
        match &self.place {
            Place::Virtual(cluster) => cluster.network(),
            Place::Kafka(kafka) => &kafka.network,
            Place::Threads(_) => panic!("a test with threads has no network to be changed"),
        }
    }

    /// Another network to the same broker, with faults of its own.
    ///
    /// # Panics
    /// Where the test is one with threads.
    #[must_use]
    pub fn another_network(&self, name: &str, faults: NetworkFaults) -> SimulatedNetwork {
        match &self.place {
            Place::Virtual(cluster) => cluster.another_network(name, faults),
            Place::Kafka(kafka) => kafka.network(faults),
            Place::Threads(_) => panic!("a test with threads has no network to be changed"),
        }
    }

    /// Every committed record of the topic with this [`name`](Self::name), and its ends.
    ///
    /// # Errors
    /// As [`oracle::topic`].
    pub async fn read(
        &self,
        topic: &str,
    ) -> anyhow::Result<(Vec<ConsumerRecord>, BTreeMap<TopicPartition, i64>)> {
        self.settled().await?;
        oracle::topic(&self.into_transport(), &self.name(topic)).await
    }

    /// The batches up to this end as they lie in a partition of the topic with this
    /// [`name`](Self::name).
    ///
    /// # Errors
    /// As [`raw_log::batches`].
    pub async fn batches(
        &self,
        topic: &str,
        partition: i32,
        end: i64,
    ) -> anyhow::Result<Vec<RecordBatch>> {
        let cluster = Cluster::new(self.into_transport(), self.client(8_001));
        raw_log::batches(&cluster, &self.partition(topic, partition), end).await
    }

    /// What the group with this [`name`](Self::name) has committed.
    ///
    /// # Errors
    /// As [`oracle::committed`].
    pub async fn committed(&self, group: &str) -> anyhow::Result<BTreeMap<TopicPartition, i64>> {
        self.settled().await?;
        oracle::committed(&self.into_transport(), &self.name(group)).await
    }

    /// Waits until what the coordinator has decided can be seen. Ours answers no sooner; a Kafka
    /// answers a commit when it is prepared, and then writes the markers.
    ///
    /// # Errors
    /// Where the markers of one of this test's transactions are not written in time.
    pub async fn settled(&self) -> anyhow::Result<()> {
        let Place::Kafka(kafka) = &self.place else {
            return Ok(());
        };
        // Past the faults of the test's network.
        let admin = Admin::connect(&kafka.bootstrap).await?;
        let give_up = Instant::now() + KAFKA_PATIENCE;
        loop {
            let transactions = admin.list_transactions().await?;
            let mut deciding = transactions.iter().filter(|found| {
                let ours = found.transactional_id.contains(&kafka.suffix);
                ours && found.transaction_state.starts_with("Prepare")
            });
            let Some(waited_for) = deciding.next() else {
                return Ok(());
            };
            if Instant::now() > give_up {
                bail!("its markers are not written: {waited_for:?}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// How long to wait for something that takes `ours` on our broker at most.
    #[must_use]
    pub fn patience(&self, ours: Duration) -> Duration {
        if self.is_kafka() {
            ours.max(KAFKA_PATIENCE)
        } else {
            ours
        }
    }
}

impl Standing {
    fn new(bootstrap: String, seed: u64, faults: NetworkFaults) -> Self {
        static WORLDS: AtomicU64 = AtomicU64::new(0);
        let clock = Clock::system();
        let world = WORLDS.fetch_add(1, Ordering::Relaxed);
        // Process ids come again; not within the same millisecond.
        let suffix = format!("{:x}-{}-{world}", clock.now_ms(), std::process::id());
        let seed = suffix.bytes().fold(seed, |seed, byte| {
            (seed ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let target: Arc<dyn Transport> = Arc::new(TcpTransport::new(&bootstrap));
        Self {
            network: SimulatedNetwork::new(target, faults, seed, Trace::default()),
            bootstrap,
            clock,
            suffix,
            seed,
            networks: AtomicU64::new(0),
        }
    }

    fn network(&self, faults: NetworkFaults) -> SimulatedNetwork {
        let number = 1 + self.networks.fetch_add(1, Ordering::Relaxed);
        let seed = self.seed ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03);
        let target: Arc<dyn Transport> = Arc::new(TcpTransport::new(&self.bootstrap));
        SimulatedNetwork::new(target, faults, seed, Trace::default())
    }
}

impl IntoTransport for BrokerUnderTest {
    fn into_transport(&self) -> Arc<dyn Transport> {
        match &self.place {
            Place::Virtual(cluster) => cluster.into_transport(),
            Place::Threads(broker) => broker.into_transport(),
            Place::Kafka(kafka) => kafka.network.into_transport(),
        }
    }
}

/// Starts the clock again that the test's attribute has stopped for ours.
fn let_time_pass() {
    thread_local! {
        // A test has its thread for itself.
        static PASSES: Cell<bool> = const { Cell::new(false) };
    }
    if !PASSES.replace(true) {
        tokio::time::resume();
    }
}

/// The Apache Kafka to run against, if any.
#[must_use]
pub fn kafka() -> Option<String> {
    std::env::var(BOOTSTRAP)
        .ok()
        .filter(|text| !text.is_empty())
}

/// The seeds of a test that does its work once for each: in real time one has to do.
#[must_use]
pub fn seeds(count: u64) -> Range<u64> {
    0..if kafka().is_some() { 1 } else { count }
}

/// So much time for a closure that takes it: a fifth of it where it is real.
#[must_use]
pub fn scaled(time: Duration) -> Duration {
    if kafka().is_some() { time / 5 } else { time }
}

/// Lets time pass in which nothing of the process runs: as in a closure that computes for so long,
/// or between SIGSTOP and SIGCONT.
pub fn stall(time: Duration) {
    if kafka().is_some() {
        #[expect(clippy::disallowed_methods, reason = "a Kafka's time is real")]
        std::thread::sleep(time);
        return;
    }
    let mut moved = std::pin::pin!(tokio::time::advance(time));
    // The clock moves at the first poll; what follows only lets others run.
    let _ = moved
        .as_mut()
        .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
}

/// Whether the running test is left out here; it then says so, and why. For tests of the table
/// [`OURS_ONLY`].
///
/// # Panics
/// Where the test is not in that table.
#[must_use]
pub fn left_out() -> bool {
    let test = running_test();
    let found = OURS_ONLY.iter().find(|row| row.test == test);
    let row = found.unwrap_or_else(|| panic!("{test} is not in the table OURS_ONLY"));
    let left_out = kafka().is_some();
    if left_out {
        report("left out", Some(row.reason));
    }
    left_out
}

/// Notes that the running test did something on a Kafka. [`BrokerUnderTest`] calls it; so has to
/// whoever starts a Kafka of its own.
///
/// # Panics
/// Where the test runs on the main thread, which has not its name.
pub fn ran() {
    report("ran", None);
}

/// The name of the running test: that of its thread.
fn running_test() -> String {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("main");
    assert_ne!(
        name, "main",
        "tests are told apart with --test-threads=2 and more"
    );
    name.to_owned()
}

/// Adds a line to the report, and to stderr whatever the test runner keeps to itself.
fn report(what: &str, reason: Option<&str>) {
    if kafka().is_none() {
        return;
    }
    let test = running_test();
    let line = match reason {
        Some(reason) => format!("{what} {test}: {reason}\n"),
        None => format!("{what} {test}\n"),
    };
    if reason.is_some() {
        let _ = std::io::stderr().write_all(format!("on Apache Kafka: {line}").as_bytes());
    }
    if let Some(path) = std::env::var_os(REPORT) {
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.expect("the report can be written");
    }
}

/// Waits until the broker that is asked about topics has heard whether there is one.
async fn broker_knows(admin: &Admin, name: &str, wanted: bool) -> anyhow::Result<()> {
    let give_up = Instant::now() + KAFKA_PATIENCE;
    loop {
        let topics = admin.topics().await?;
        if topics.iter().any(|topic| *topic.name == *name) == wanted {
            return Ok(());
        }
        if Instant::now() > give_up {
            bail!("the broker has not heard what has become of {name}");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
