//! The whole product in one job: orders are joined with customers and written, with an audit trail,
//! exactly once.
//!
//! `cargo run --release --example orders_enriched` starts a broker in a temporary directory, loads
//! the bundled orders, enriches them into `orders.enriched` and `orders.audit` in one transaction a
//! commit, and says what it did. `--help` shows how to keep the data, to run against another
//! broker, and to let other clients in.
//!
//! Invariants: every record of `orders` ends in `orders.audit` or in `orders.dead-letter` exactly
//! once, and `orders.enriched` has one record for each audited one.
//! Never: reads a record's key; it passes through, null included.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use clap::Parser;
use clap::builder::RangedU64ValueParser;
use examples::load::{self, Load};
use examples::model::{Audit, Customer, Enriched, Order};
use examples::process::peak_rss_bytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millstream::Broker;
use millstream::TopicPartition;
use millstream::client::consumer::{AutoOffsetReset, Consumer};
use millstream::client::{IntoTransport, Security, TcpTransport, Transport};
use millstream::prelude::{PoisonPolicy, RecordContext, Streams, StreamsBuilder, Topology, json};
use millstream::streams::{Progress, RunningStreams, json_objects};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Enriches orders with their customers, exactly once.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Options {
    /// Keep the broker's data here (default: a temporary directory)
    #[arg(long, value_name = "DIR", conflicts_with = "bootstrap")]
    data_dir: Option<PathBuf>,
    /// Generate this many orders from a fixed seed instead of loading the bundled ones
    #[arg(long, value_name = "N")]
    orders: Option<u64>,
    /// Use the broker at this address, Millstream's or Apache Kafka, instead of the embedded one
    #[arg(long, value_name = "HOST:PORT")]
    bootstrap: Option<String>,
    /// A properties file with security.protocol, sasl.… and ssl.…, as Kafka's tools take it
    #[arg(long, value_name = "FILE", requires = "bootstrap")]
    command_config: Option<PathBuf>,
    /// Let other clients reach the embedded broker at this address
    #[arg(long, value_name = "127.0.0.1:PORT", conflicts_with = "bootstrap")]
    listen: Option<SocketAddr>,
    /// Load nothing, process what is there
    #[arg(long)]
    no_load: bool,
    /// Keep running on new input until SIGINT or SIGTERM
    #[arg(long)]
    follow: bool,
    /// Names the application and its consumer group
    #[arg(long, value_name = "ID", default_value = "orders-enrichment")]
    application_id: String,
    /// Identity of this instance (default: <application id>-1); a second instance with it takes
    /// over
    #[arg(long, value_name = "ID")]
    transactional_id: Option<String>,
    /// Time between commits
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(1..))]
    commit_interval_ms: u64,
    /// Number of workers
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    threads: usize,
    /// Write what this run committed to this file, as JSON
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
}

impl Options {
    /// What is wrong with them is said before the work, not after it.
    fn check(&self) -> anyhow::Result<()> {
        let folder = self.summary.as_deref().and_then(Path::parent);
        let missing = folder.filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir());
        anyhow::ensure!(
            missing.is_none(),
            "--summary: there is no folder {}",
            missing.unwrap_or(Path::new("")).display()
        );
        Ok(())
    }
}

fn topology() -> millstream::Result<Topology> {
    let builder = StreamsBuilder::new();
    let customers = builder.global_table("customers", json::<String, Customer>());
    let orders = builder.stream("orders", json_objects::<Option<Bytes>, Order>());
    orders
        .clone()
        .left_join_global(
            &customers,
            |_, order| order.customer_id.clone(),
            Enriched::new,
        )
        .to("orders.enriched", json());
    orders
        .process_values(|| {
            |context: &RecordContext, _: &Option<Bytes>, order: Order| Audit {
                order_id: order.order_id,
                source_partition: context.partition(),
                source_offset: context.offset(),
            }
        })
        .to("orders.audit", json());
    Ok(builder.build()?)
}

/// What the libraries log; `RUST_LOG` chooses levels, as in `millstream_streams=debug`.
fn log_to_stderr() {
    let chosen = std::env::var("RUST_LOG").ok();
    let filter: Targets = chosen
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| Targets::new().with_default(LevelFilter::WARN));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .init();
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    log_to_stderr();
    let options = Options::parse();
    options.check()?;
    let place = Place::open(&options).await?;
    let outcome = run(&options, &place).await;
    let closed = match &place.broker {
        Some(broker) => broker.close().await,
        None => Ok(()),
    };
    let ended = outcome?;
    // What was committed stays committed, also where the run ended with an error.
    let summary = Summary::new(&ended.progress, ended.seconds);
    summary.print(&options);
    if let Some(file) = &options.summary {
        std::fs::write(file, serde_json::to_vec_pretty(&summary)?)
            .with_context(|| format!("the summary could not be written to {}", file.display()))?;
    }
    ended.outcome?;
    Ok(closed?)
}

/// A job that has run.
struct Ended {
    progress: Progress,
    seconds: f64,
    outcome: anyhow::Result<()>,
}

/// The broker that the job runs against, and what keeps it there.
struct Place {
    transport: Arc<dyn Transport>,
    broker: Option<Broker>,
    _temporary: Option<tempfile::TempDir>,
}

impl Place {
    async fn open(options: &Options) -> anyhow::Result<Self> {
        if let Some(bootstrap) = &options.bootstrap {
            let mut transport = TcpTransport::new(bootstrap);
            if let Some(file) = &options.command_config {
                let text = std::fs::read_to_string(file)
                    .with_context(|| format!("{} could not be read", file.display()))?;
                transport = transport.with_security(Security::from_properties(&text)?)?;
            }
            let transport: Arc<dyn Transport> = Arc::new(transport);
            return Ok(Self {
                transport,
                broker: None,
                _temporary: None,
            });
        }
        let temporary = match &options.data_dir {
            Some(_) => None,
            None => Some(tempfile::tempdir().context("no temporary directory can be made")?),
        };
        let directory = options
            .data_dir
            .as_deref()
            .or(temporary.as_ref().map(tempfile::TempDir::path));
        let directory = directory.context("there is always a directory")?;
        // What was loaded is known by a committed offset, however long ago that was.
        let mut kept = Ok(());
        let options_of_broker = Broker::options()
            .configure(|config| kept = config.set("offsets.retention.minutes", "2147483647"));
        kept?;
        let broker = options_of_broker.open(directory).await?;
        if let Some(listen) = options.listen {
            say(&format!("listening on {}", broker.listen(listen).await?));
        }
        let transport = broker.into_transport();
        Ok(Self {
            transport,
            broker: Some(broker),
            _temporary: temporary,
        })
    }
}

async fn run(options: &Options, place: &Place) -> anyhow::Result<Ended> {
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    let job = async {
        load::create_topics(&place.transport).await?;
        let transactional_id = options
            .transactional_id
            .clone()
            .unwrap_or_else(|| format!("{}-1", options.application_id));
        if !options.no_load {
            load_orders(options, place, &transactional_id).await?;
        }
        let ends = ends(&place.transport).await?;
        let started = Instant::now();
        let running = streams(options, transactional_id)?
            .connect(&place.transport)
            .start()
            .await?;
        anyhow::Ok((running, ends, started))
    };
    let (mut running, ends, started) = tokio::select! {
        biased;
        _ = interrupt.recv() => anyhow::bail!("interrupted while starting"),
        _ = terminate.recv() => anyhow::bail!("terminated while starting"),
        started = job => started?,
    };
    let interrupted = || match options.follow {
        true => Ok(()),
        false => Err(anyhow!(
            "interrupted before the end; what was committed stays, run again to go on"
        )),
    };
    let waited = tokio::select! {
        biased;
        _ = interrupt.recv() => interrupted(),
        _ = terminate.recv() => interrupted(),
        outcome = work(&mut running, &ends, options.follow) => outcome,
    };
    let watch = running.watch();
    // The instance's own error says more than a wait that was cut short by it.
    let outcome = match running.stop().await {
        Ok(_) => waited,
        Err(error) => Err(error.into()),
    };
    let seconds = started.elapsed().as_secs_f64();
    if outcome.is_ok() && !options.follow {
        print_some(&place.transport).await;
    }
    Ok(Ended {
        progress: watch.progress(),
        seconds,
        outcome,
    })
}

/// The instance with the settings of this run. A transaction may last twice the commit interval,
/// and at least the default.
fn streams(options: &Options, transactional_id: String) -> anyhow::Result<Streams> {
    const TRANSACTION_TIMEOUT_MS: u64 = 10_000;
    let interval_ms = options.commit_interval_ms;
    let timeout_ms = TRANSACTION_TIMEOUT_MS.max(interval_ms.saturating_mul(2));
    Ok(Streams::new(&options.application_id, topology()?)
        .transactional_id(transactional_id.clone())
        .group_instance_id(transactional_id)
        .commit_interval(Duration::from_millis(interval_ms))
        .set("transaction.timeout.ms", timeout_ms)
        .threads(options.threads)
        .poison(PoisonPolicy::dead_letter("orders.dead-letter")))
}

async fn load_orders(options: &Options, place: &Place, id: &str) -> anyhow::Result<()> {
    let what = Load {
        application_id: options.application_id.clone(),
        transactional_id: id.to_owned(),
        orders: options.orders,
    };
    let shown = Shown::new("loading");
    let loaded = load::load(&place.transport, &what, |topic, done, wanted| {
        shown.set(done, wanted, &format!("{topic}: {done} of {wanted}"));
    })
    .await
    .context("the orders could not be loaded")?;
    shown.clear();
    say(&format!("loaded {loaded} orders"));
    Ok(())
}

/// Waits for the ends, or for ever.
async fn work(
    running: &mut RunningStreams,
    ends: &BTreeMap<TopicPartition, i64>,
    follow: bool,
) -> anyhow::Result<()> {
    if follow {
        say("following orders until Ctrl-C or SIGTERM");
        running.ended().await?;
        return Ok(());
    }
    let shown = Shown::new("enriching");
    let wanted = ends.values().sum::<i64>().unsigned_abs();
    let mut every = tokio::time::interval(Duration::from_millis(100));
    let watch = running.watch();
    let mut done = std::pin::pin!(running.committed(ends));
    loop {
        tokio::select! {
            biased;
            done = &mut done => {
                shown.clear();
                return Ok(done?);
            }
            _ = every.tick() => {}
        }
        let progress = watch.progress();
        // Offsets say how far it is; they count the markers of transactions with the orders.
        let done = progress.committed.values().sum::<i64>().unsigned_abs();
        let read = progress.records_read.get("orders").copied().unwrap_or(0);
        let percent = (done * 100).checked_div(wanted).unwrap_or(100).min(100);
        shown.set(done, wanted, &format!("orders: {read} read, {percent} %"));
    }
}

/// The last stable offsets of `orders`: where the committed records end.
async fn ends(transport: &Arc<dyn Transport>) -> anyhow::Result<BTreeMap<TopicPartition, i64>> {
    let consumer = Consumer::builder().connect(transport).await?;
    let count = consumer.partitions_of("orders").await?;
    let partitions: Vec<_> = (0..count)
        .map(|p| TopicPartition::new("orders", p))
        .collect();
    let ends = consumer.end_offsets(&partitions).await?;
    consumer.close().await?;
    Ok(ends)
}

/// Prints a few enriched records; that they cannot be read is no fault of the job.
async fn print_some(transport: &Arc<dyn Transport>) {
    if let Err(error) = try_print_some(transport).await {
        say(&format!("(no records to show: {error})"));
    }
}

async fn try_print_some(transport: &Arc<dyn Transport>) -> anyhow::Result<()> {
    let consumer = Consumer::builder()
        .auto_offset_reset(AutoOffsetReset::Earliest)
        .max_poll_records(3)
        .connect(transport)
        .await?;
    consumer.assign(vec![TopicPartition::new("orders.enriched", 0)])?;
    let polled = consumer.poll(Duration::from_secs(2)).await?;
    for record in polled.iter().take(3) {
        let value = record.value.as_deref().unwrap_or_default();
        say(&format!("  {}", String::from_utf8_lossy(value)));
    }
    consumer.close().await?;
    Ok(())
}

/// What one run committed.
#[derive(Debug, serde::Serialize)]
struct Summary {
    orders_read: u64,
    enriched_written: u64,
    audit_written: u64,
    dead_lettered: u64,
    commits: u64,
    seconds: f64,
    records_per_second: f64,
    peak_rss_bytes: u64,
}

impl Summary {
    fn new(progress: &Progress, seconds: f64) -> Self {
        let written = |topic: &str| progress.records_written.get(topic).copied().unwrap_or(0);
        let orders_read = progress.records_read.get("orders").copied().unwrap_or(0);
        Self {
            orders_read,
            enriched_written: written("orders.enriched"),
            audit_written: written("orders.audit"),
            dead_lettered: written("orders.dead-letter"),
            commits: progress.commits,
            seconds,
            records_per_second: if seconds > 0.0 {
                orders_read as f64 / seconds
            } else {
                0.0
            },
            peak_rss_bytes: peak_rss_bytes(),
        }
    }

    fn print(&self, options: &Options) {
        say(&format!(
            "{} orders read: {} enriched, {} audited, {} dead letters, in {} commits and {:.2} s \
             ({:.0} records/s)",
            self.orders_read,
            self.enriched_written,
            self.audit_written,
            self.dead_lettered,
            self.commits,
            self.seconds,
            self.records_per_second,
        ));
        if options.data_dir.is_none() && options.bootstrap.is_none() {
            say(
                "the data was temporary; keep it with --data-dir ./data, and run again: nothing is done twice",
            );
        }
    }
}

/// Progress: a bar on a terminal, a plain line a second elsewhere.
struct Shown {
    bar: ProgressBar,
    what: &'static str,
    plain: bool,
    last: Cell<Instant>,
}

impl Shown {
    const PLAIN_EVERY: Duration = Duration::from_secs(1);

    fn new(what: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{prefix:>10} [{bar:40}] {msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(what);
        let plain = !std::io::stderr().is_terminal();
        if plain {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let last = Cell::new(Instant::now());
        Self {
            bar,
            what,
            plain,
            last,
        }
    }

    fn set(&self, done: u64, wanted: u64, text: &str) {
        if !self.plain {
            self.bar.set_length(wanted);
            self.bar.set_position(done);
            self.bar.set_message(text.to_owned());
        } else if self.last.get().elapsed() >= Self::PLAIN_EVERY {
            self.last.set(Instant::now());
            say(&format!("{} {text}", self.what));
        }
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

#[expect(clippy::print_stdout, reason = "this is the program's output")]
fn say(line: &str) {
    println!("{line}");
}
