//! Broker and job as processes: apart, or both in one; the broker ours, or an Apache Kafka.
//!
//! ```text
//!  apart:     feeder, oracle ──TCP──▶ millstream broker ◀──TCP── orders_enriched --bootstrap
//!  Kafka:     feeder, oracle ──TCP──▶ Apache Kafka ◀──TCP── orders_enriched --bootstrap
//!  cluster:   the same with three brokers, each of which has all partitions
//!  embedded:  feeder, oracle ──TCP──▶ orders_enriched --data-dir --listen
//! ```
//!
//! Invariants: a process that is started again has the identity, directory and address of the one
//! before.
//! Never: two processes on one data directory.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use millstream::client::{Admin, TcpTransport, Transport};

use tokio::time::Instant;

use crate::binaries::Binaries;
use crate::points::Trigger;
use crate::process::Process;
use crate::under_test;

/// How long a process may take to start or to end.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How long a Kafka may take to start, beside everything else that the machine does.
const KAFKA_PATIENCE: Duration = Duration::from_secs(180);
/// The group of the job.
pub const GROUP: &str = "orders-enrichment";

/// Which process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// `millstream broker`.
    Broker,
    /// `orders_enriched`, with the broker inside where it is embedded.
    Job,
}

/// Which processes there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrangement {
    /// Our broker and the job.
    Apart,
    /// An Apache Kafka and the job.
    Kafka,
    /// Three brokers of an Apache Kafka and the job.
    KafkaCluster,
    /// The job, with our broker inside.
    Embedded,
}

impl Arrangement {
    /// Whether the broker, or the brokers, are Apache Kafka's.
    #[must_use]
    pub fn is_kafka(self) -> bool {
        matches!(self, Self::Kafka | Self::KafkaCluster)
    }

    fn brokers(self) -> usize {
        if self == Self::KafkaCluster { 3 } else { 1 }
    }

    /// Broker and job apart, the broker being what the suites are told to run against.
    #[must_use]
    pub fn under_test() -> Self {
        if under_test::kafka().is_none() {
            return Self::Apart;
        }
        under_test::ran();
        Self::Kafka
    }
}

/// The processes of one series.
#[derive(Debug)]
pub struct Deployment {
    binaries: Binaries,
    folder: PathBuf,
    port: u16,
    arrangement: Arrangement,
    /// Of a Kafka: it is not killed, and has fenced a broker that was before that starts again.
    controller: Option<Process>,
    brokers: Vec<Option<Process>>,
    /// Which of the brokers is the one that is started and killed.
    broker: usize,
    job: Option<Process>,
    starts: u32,
    threads: u32,
}

impl Deployment {
    /// Nothing runs yet; data and output of the processes go to `folder`.
    ///
    /// # Errors
    /// Where no port is free.
    pub fn new(
        binaries: Binaries,
        folder: &Path,
        arrangement: Arrangement,
    ) -> anyhow::Result<Self> {
        let port = free_port()?;
        let folder = folder.to_owned();
        Ok(Self {
            binaries,
            folder,
            port,
            arrangement,
            controller: None,
            brokers: (0..arrangement.brokers()).map(|_| None).collect(),
            broker: 0,
            job: None,
            starts: 0,
            threads: 1,
        })
    }

    /// Which processes there are.
    #[must_use]
    pub fn arrangement(&self) -> Arrangement {
        self.arrangement
    }

    /// Where clients find the broker, or the brokers.
    #[must_use]
    pub fn address(&self) -> String {
        let all: Vec<String> = (0..self.brokers.len())
            .map(|at| self.of_broker(at))
            .collect();
        all.join(",")
    }

    /// The second and third of a cluster listen above its controller.
    fn of_broker(&self, at: usize) -> String {
        let above = if at == 0 { 0 } else { at + 1 };
        format!("127.0.0.1:{}", usize::from(self.port) + above)
    }

    /// How many brokers there are.
    #[must_use]
    pub fn brokers(&self) -> usize {
        self.brokers.len()
    }

    /// From now on [`Part::Broker`] is this one, counted from 0.
    pub fn choose_broker(&mut self, at: usize) {
        self.broker = at % self.brokers.len();
    }

    /// The way to the broker.
    #[must_use]
    pub fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(TcpTransport::new(&self.address()))
    }

    /// The trigger of a process.
    #[must_use]
    pub fn trigger(&self, part: Part) -> Trigger {
        Trigger::new(
            &self.folder,
            if part == Part::Broker {
                "broker"
            } else {
                "job"
            },
        )
    }

    /// How many workers the next job has.
    pub fn set_threads(&mut self, threads: u32) {
        self.threads = threads;
    }

    /// The data directory.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Starts a process and waits until clients may connect (the job of a broker apart listens to
    /// nobody).
    ///
    /// # Errors
    /// Where it ends, or is not ready in time.
    pub async fn start(&mut self, part: Part) -> anyhow::Result<()> {
        let mut process = match part {
            Part::Broker => self.spawn_broker()?,
            Part::Job => self.spawn_job(&["--follow"], "job")?,
        };
        if part == Part::Broker && self.arrangement.is_kafka() {
            self.answers(&mut process).await?;
        } else if part == Part::Broker || self.arrangement == Arrangement::Embedded {
            // A child that another test is starting holds a copy of this process's files until its
            // program is loaded, the lock of a broker that was closed here among them.
            let give_up = Instant::now() + PATIENCE;
            while let Err(error) = process.line("listening on ", PATIENCE).await {
                let locked = error.to_string().contains("in use by another process");
                if !locked || Instant::now() >= give_up {
                    return Err(error);
                }
                process = match part {
                    Part::Broker => self.spawn_broker()?,
                    Part::Job => self.spawn_job(&["--follow"], "job")?,
                };
            }
        }
        *self.slot(part) = Some(process);
        Ok(())
    }

    /// Waits until a Kafka has told a client of itself; what is not ready then is the clients' to
    /// wait for.
    async fn answers(&self, process: &mut Process) -> anyhow::Result<()> {
        let give_up = Instant::now() + KAFKA_PATIENCE;
        loop {
            if let Some(status) = process.ended()? {
                bail!("Kafka ended ({status}): {}", process.complaints());
            }
            let admin = Admin::connect(&self.of_broker(self.broker)).await?;
            let asked = tokio::time::timeout(Duration::from_secs(3), admin.topics()).await;
            if matches!(asked, Ok(Ok(_))) {
                return Ok(());
            }
            if Instant::now() >= give_up {
                bail!("Kafka is not ready: {asked:?}: {}", process.complaints());
            }
        }
    }

    /// Starts the broker's process without waiting for anything.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn spawn_broker(&mut self) -> anyhow::Result<Process> {
        if self.arrangement.is_kafka() {
            if self.controller.is_none() {
                self.controller = Some(self.spawn_kafka("control", "controller")?);
            }
            return self.spawn_kafka("serve", "kafka");
        }
        let arguments = [
            "broker".to_owned(),
            "--data-dir".to_owned(),
            self.data().display().to_string(),
            "--listen".to_owned(),
            self.address(),
        ];
        let environment = [self.trigger(Part::Broker).environment()];
        let name = self.next_name("broker");
        let program = &self.binaries.millstream;
        Process::start(program, &arguments, &environment, &self.folder, &name)
    }

    fn spawn_kafka(&mut self, command: &str, name: &str) -> anyhow::Result<Process> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("compat/kafka/kafka");
        let folder = self.folder.join("kafka").display().to_string();
        let mut arguments = vec![command.to_owned(), folder, self.port.to_string()];
        if command == "serve" {
            arguments.push((self.broker + 1).to_string());
        }
        arguments.push(self.brokers.len().to_string());
        let name = self.next_name(name);
        Process::start(&script, &arguments, &[], &self.folder, &name)
    }

    /// Starts a job's process without waiting for anything.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn spawn_job(&mut self, more: &[&str], name: &str) -> anyhow::Result<Process> {
        let threads = self.threads.to_string();
        let mut arguments = vec!["--no-load".to_owned(), "--threads".to_owned(), threads];
        if self.arrangement == Arrangement::Embedded {
            arguments.extend(["--data-dir".to_owned(), self.data().display().to_string()]);
            arguments.extend(["--listen".to_owned(), self.address()]);
        } else {
            arguments.extend(["--bootstrap".to_owned(), self.address()]);
        }
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        let environment = [self.trigger(Part::Job).environment()];
        let name = self.next_name(name);
        let program = &self.binaries.orders_enriched;
        Process::start(program, &arguments, &environment, &self.folder, &name)
    }

    /// A running process.
    ///
    /// # Errors
    /// Where it was not started.
    pub fn part(&mut self, part: Part) -> anyhow::Result<&mut Process> {
        self.slot(part)
            .as_mut()
            .with_context(|| format!("{part:?} was not started"))
    }

    /// Forgets a process that was killed, so that nobody complains of its end.
    pub fn bury(&mut self, part: Part) {
        *self.slot(part) = None;
    }

    /// Complains of a process that has ended without being told to.
    ///
    /// # Errors
    /// Where there is one.
    pub fn check_alive(&mut self) -> anyhow::Result<()> {
        let more = [&mut self.controller, &mut self.job];
        for process in self.brokers.iter_mut().chain(more).flatten() {
            if let Some(status) = process.ended()? {
                bail!(
                    "{} ended by itself ({status}): {}",
                    process.name(),
                    process.complaints()
                );
            }
        }
        Ok(())
    }

    /// Lets the job go on to the ends and end by itself.
    ///
    /// # Errors
    /// Where it does not end with exit code 0.
    pub async fn drain(&mut self) -> anyhow::Result<()> {
        self.part(Part::Job)?.stop(PATIENCE).await?;
        self.job = None;
        self.spawn_job(&[], "drain")?.succeed(2 * PATIENCE).await
    }

    /// Ends the broker in order, where it is apart.
    ///
    /// # Errors
    /// Where it does not.
    pub async fn stop_broker(&mut self) -> anyhow::Result<()> {
        /// What Java ends with when it was asked to.
        const TERMINATED: i32 = 143;
        if self.arrangement.is_kafka() {
            let brokers = self.brokers.iter_mut().filter_map(Option::take);
            let mut all: Vec<Process> = brokers.chain(self.controller.take()).collect();
            // A broker that ends in order asks the controller to move what it leads.
            for process in &mut all {
                process.signal("TERM").await?;
                let status = process.end(PATIENCE).await?;
                ensure!(
                    status.code() == Some(TERMINATED),
                    "{} ended with {status}",
                    process.name()
                );
            }
            return Ok(());
        }
        match self.slot(Part::Broker).take() {
            Some(mut broker) => broker.stop(PATIENCE).await,
            None => Ok(()),
        }
    }

    fn slot(&mut self, part: Part) -> &mut Option<Process> {
        if part == Part::Broker {
            &mut self.brokers[self.broker]
        } else {
            &mut self.job
        }
    }

    fn next_name(&mut self, name: &str) -> String {
        self.starts += 1;
        format!("{:03}-{name}", self.starts)
    }
}

/// A port that is free and that the system gives to nobody by itself: while the broker is down, a
/// client's own connection must not come to sit on the broker's port.
fn free_port() -> anyhow::Result<u16> {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 10_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(31);
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + start.wrapping_add(step.wrapping_mul(7)) % COUNT;
        let port = u16::try_from(port)?;
        // A Kafka takes ports above as well.
        let all = [0, 1, 2, 3].map(|above| TcpListener::bind(("127.0.0.1", port + above)));
        if all.iter().all(Result::is_ok) {
            return Ok(port);
        }
    }
    bail!("no port of 127.0.0.1 is free")
}
