//! Read, map, write: the figures of a whole job, broker included.
//!
//! Records are loaded before the clock starts. Then the job runs over all of them (throughput and
//! CPU), and after that an open loop at a fixed rate measures how long a record takes from its
//! scheduled send to a reader of committed records.
//!
//! Invariants: CPU is that of the process, so with an embedded broker it includes the broker's.
//! Never: a closed loop that would hide a stall.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use benches::{bare_fdatasync_ms, cpu_time, median, peak_rss_bytes, quantile_ms};
use bytes::Bytes;
use clap::{Parser, ValueEnum};
use millstream::client::consumer::{AutoOffsetReset, Consumer};
use millstream::client::{Admin, IntoTransport, Producer, ProducerRecord, TcpTransport, Transport};
use millstream::prelude::{Broker, Durability, Streams, StreamsBuilder, TopicPartition, bytes};
use millstream::streams::{Guarantee, Progress, RunningStreams};
use tokio::time::Instant;

/// Runs of each guarantee under `--compare`.
const PAIRS: usize = 7;
/// Length of the open loop.
const OPEN_LOOP: Duration = Duration::from_secs(6);

#[derive(Debug, Clone, Parser)]
struct Options {
    /// Records to load and process
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Size of a value
    #[arg(long, default_value_t = 100)]
    value_bytes: usize,
    /// Partitions of the topics
    #[arg(long, default_value_t = 4)]
    partitions: i32,
    /// Workers
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// What the job promises
    #[arg(long, value_enum, default_value = "exactly-once")]
    guarantee: Promise,
    /// What the embedded broker's acknowledgement survives
    #[arg(long, value_enum, default_value = "sync")]
    durability: Mode,
    /// Time between commits
    #[arg(long, default_value_t = 100)]
    commit_interval_ms: u64,
    /// Use this broker instead of the embedded one
    #[arg(long)]
    bootstrap: Option<String>,
    /// Records a second in the open loop (default: half of the measured throughput)
    #[arg(long)]
    rate: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Run both guarantees in turn, seven times each, and print the ratio of their cost
    #[arg(long)]
    compare: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Promise {
    ExactlyOnce,
    AtLeastOnce,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    Sync,
    Os,
}

/// What one run measured; field names are part of the contract.
#[derive(Debug, Clone, Default, serde::Serialize)]
struct Figures {
    records_per_second: f64,
    cpu_ns_per_record: f64,
    end_to_end_p50_ms: f64,
    end_to_end_p99_ms: f64,
    commits: u64,
    commit_p50_ms: f64,
    commit_p99_ms: f64,
    peak_rss_bytes: u64,
    start_ms: f64,
    fdatasync_p50_ms: f64,
    fdatasync_p99_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_ratio: Option<f64>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let started = Instant::now();
    let options = Options::parse();
    let figures = if options.compare {
        compare(&options).await?
    } else {
        run(&options, started, true).await?
    };
    print(&options, &figures)
}

#[expect(clippy::print_stdout, reason = "this is the program's output")]
fn print(options: &Options, figures: &Figures) -> anyhow::Result<()> {
    if options.json {
        println!("{}", serde_json::to_string(figures)?);
    } else {
        println!("{figures:#?}");
    }
    Ok(())
}

/// Both guarantees in turn; the ratio is the median of the pairs.
async fn compare(options: &Options) -> anyhow::Result<Figures> {
    let mut ratios = Vec::new();
    let mut runs = Vec::new();
    for pair in 0..PAIRS {
        let with = |guarantee| Options {
            guarantee,
            ..options.clone()
        };
        // The first of a pair finds other caches than the second, so they take turns.
        let order = if pair % 2 == 0 {
            [Promise::ExactlyOnce, Promise::AtLeastOnce]
        } else {
            [Promise::AtLeastOnce, Promise::ExactlyOnce]
        };
        let mut costs = BTreeMap::new();
        for guarantee in order {
            let figures = run(
                &with(guarantee),
                Instant::now(),
                guarantee == Promise::ExactlyOnce,
            )
            .await?;
            costs.insert(guarantee == Promise::ExactlyOnce, figures.cpu_ns_per_record);
            if guarantee == Promise::ExactlyOnce {
                runs.push(figures);
            }
        }
        if let (Some(exactly), Some(at_least)) = (costs.get(&true), costs.get(&false)) {
            ratios.push(exactly / at_least);
        }
    }
    runs.sort_by(|a, b| a.cpu_ns_per_record.total_cmp(&b.cpu_ns_per_record));
    let mut figures = runs.get(runs.len() / 2).cloned().unwrap_or_default();
    figures.cost_ratio = Some(median(&mut ratios));
    Ok(figures)
}

/// The broker under measurement.
struct Place {
    transport: Arc<dyn Transport>,
    broker: Option<Broker>,
    directory: tempfile::TempDir,
}

impl Place {
    async fn open(options: &Options) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        if let Some(bootstrap) = &options.bootstrap {
            let transport: Arc<dyn Transport> = Arc::new(TcpTransport::new(bootstrap));
            return Ok(Self {
                transport,
                broker: None,
                directory,
            });
        }
        let durability = match options.durability {
            Mode::Sync => Durability::Sync,
            Mode::Os => Durability::Os,
        };
        let broker = Broker::options()
            .durability(durability)
            .open(directory.path().join("data"))
            .await?;
        Ok(Self {
            transport: broker.into_transport(),
            broker: Some(broker),
            directory,
        })
    }
}

async fn run(options: &Options, started: Instant, open_loop: bool) -> anyhow::Result<Figures> {
    let place = Place::open(options).await?;
    let producer = Producer::idempotent()
        .batch_size(128 * 1024)
        .buffer_memory(64 * 1024 * 1024)
        .connect(&place.transport)
        .await?;
    producer
        .send(ProducerRecord::new("bench.first").value("x"))
        .await?
        .await?;
    let start_ms = started.elapsed().as_secs_f64() * 1_000.0;
    let suffix = std::process::id();
    let (input, output) = (format!("bench.in.{suffix}"), format!("bench.out.{suffix}"));
    let admin = Admin::connect(&place.transport).await?;
    for topic in [&input, &output] {
        admin
            .create_topic_if_absent(topic, options.partitions)
            .await?;
    }
    load(&producer, &input, options).await?;
    let fdatasync = bare_fdatasync_ms(place.directory.path(), 200)?;

    let ends = ends(&place.transport, &input, options.partitions).await?;
    let (cpu, clock) = (cpu_time(), Instant::now());
    let mut running = start(&place.transport, &input, &output, options).await?;
    running.committed(&ends).await?;
    let (cpu, took) = (cpu_time() - cpu, clock.elapsed());
    let mut figures = Figures {
        records_per_second: options.records as f64 / took.as_secs_f64(),
        cpu_ns_per_record: cpu.as_nanos() as f64 / options.records as f64,
        start_ms,
        fdatasync_p50_ms: fdatasync.0,
        fdatasync_p99_ms: fdatasync.1,
        ..Figures::default()
    };
    if open_loop {
        let rate = options
            .rate
            .unwrap_or((figures.records_per_second / 2.0) as u64)
            .max(1);
        let mut latencies = end_to_end(
            &place.transport,
            &producer,
            (&input, &output),
            rate,
            options,
        )
        .await?;
        figures.end_to_end_p50_ms = quantile_ms(&mut latencies, 0.5);
        figures.end_to_end_p99_ms = quantile_ms(&mut latencies, 0.99);
    }
    let progress = running.stop().await?;
    check(&progress, &input, &output)?;
    figures.commits = progress.commits;
    figures.commit_p50_ms = progress.commit_latency.quantile(0.5).as_secs_f64() * 1_000.0;
    figures.commit_p99_ms = progress.commit_latency.quantile(0.99).as_secs_f64() * 1_000.0;
    figures.peak_rss_bytes = peak_rss_bytes();
    producer.close(Duration::from_secs(5)).await;
    if let Some(broker) = &place.broker {
        broker.close().await?;
    }
    Ok(figures)
}

/// A bench that lost records would be quick.
fn check(progress: &Progress, input: &str, output: &str) -> anyhow::Result<()> {
    let read = progress.records_read.get(input).copied().unwrap_or(0);
    let written = progress.records_written.get(output).copied().unwrap_or(0);
    anyhow::ensure!(
        read == written && progress.rewinds == 0,
        "read {read}, wrote {written}"
    );
    Ok(())
}

async fn load(producer: &Producer, topic: &str, options: &Options) -> anyhow::Result<()> {
    let topic: Arc<str> = topic.into();
    let mut value = vec![b'v'; options.value_bytes.max(8)];
    for number in 0..options.records {
        value[..8].copy_from_slice(&number.to_be_bytes());
        let partition = (number % options.partitions.unsigned_abs() as u64) as i32;
        let record = ProducerRecord::new(Arc::clone(&topic))
            .partition(partition)
            .value(Bytes::copy_from_slice(&value));
        drop(producer.send(record).await?);
    }
    Ok(producer.flush().await?)
}

async fn ends(
    transport: &Arc<dyn Transport>,
    topic: &str,
    partitions: i32,
) -> anyhow::Result<BTreeMap<TopicPartition, i64>> {
    let consumer = Consumer::builder().connect(transport).await?;
    let partitions: Vec<_> = (0..partitions)
        .map(|p| TopicPartition::new(topic, p))
        .collect();
    let ends = consumer.end_offsets(&partitions).await?;
    consumer.close().await?;
    Ok(ends)
}

async fn start(
    transport: &Arc<dyn Transport>,
    input: &str,
    output: &str,
    options: &Options,
) -> anyhow::Result<RunningStreams> {
    let builder = StreamsBuilder::new();
    builder
        .stream(input, bytes())
        .map_values(|_, value: Option<Bytes>| value.map(|value| turn(&value)))
        .to(output, bytes());
    let guarantee = match options.guarantee {
        Promise::ExactlyOnce => Guarantee::ExactlyOnce,
        Promise::AtLeastOnce => Guarantee::AtLeastOnce,
    };
    let application = format!("bench-{}", std::process::id());
    let streams = Streams::new(&application, builder.build()?)
        .connect(transport)
        .guarantee(guarantee)
        .threads(options.threads)
        .commit_interval(Duration::from_millis(options.commit_interval_ms));
    Ok(streams.start().await?)
}

/// The map: every byte behind the first eight is changed, those carry the time or number of the
/// record.
fn turn(value: &Bytes) -> Bytes {
    let turned = value
        .iter()
        .enumerate()
        .map(|(at, byte)| if at < 8 { *byte } else { byte ^ 0x20 });
    turned.collect::<Vec<u8>>().into()
}

/// Sends at a fixed rate, whatever comes back, and measures from the time at which a record was
/// due.
async fn end_to_end(
    transport: &Arc<dyn Transport>,
    producer: &Producer,
    (input, output): (&str, &str),
    rate: u64,
    options: &Options,
) -> anyhow::Result<Vec<Duration>> {
    let consumer = Consumer::builder()
        .auto_offset_reset(AutoOffsetReset::Latest)
        .max_poll_records(10_000)
        .connect(transport)
        .await?;
    let partitions: Vec<_> = (0..options.partitions)
        .map(|p| TopicPartition::new(output, p))
        .collect();
    let ends = consumer.end_offsets(&partitions).await?;
    consumer.assign(partitions)?;
    for (partition, end) in ends {
        consumer.seek(&partition, end)?;
    }
    let total = (OPEN_LOOP.as_secs_f64() * rate as f64) as u64;
    let begin = Instant::now();
    let sender = {
        let (producer, topic): (Producer, Arc<str>) = (producer.clone(), input.into());
        let (partitions, size) = (options.partitions, options.value_bytes.max(8));
        tokio::spawn(async move {
            let mut value = vec![b'v'; size];
            for number in 0..total {
                let due = Duration::from_nanos((number as f64 * 1e9 / rate as f64) as u64);
                if begin.elapsed() < due {
                    tokio::time::sleep_until(begin + due).await;
                }
                value[..8].copy_from_slice(&(due.as_nanos() as u64).to_be_bytes());
                let record = ProducerRecord::new(Arc::clone(&topic))
                    .partition((number % partitions.unsigned_abs() as u64) as i32)
                    .value(Bytes::copy_from_slice(&value));
                drop(producer.send(record).await?);
            }
            anyhow::Ok(())
        })
    };
    let mut latencies = Vec::with_capacity(total as usize);
    while (latencies.len() as u64) < total {
        let polled = consumer.poll(Duration::from_secs(10)).await?;
        let now = begin.elapsed();
        anyhow::ensure!(
            !polled.partitions.is_empty(),
            "the job stopped: {} of {total}",
            latencies.len()
        );
        for record in polled.iter() {
            let value = record
                .value
                .as_deref()
                .and_then(|value| value.first_chunk::<8>());
            let due = Duration::from_nanos(u64::from_be_bytes(*value.context("8 bytes")?));
            latencies.push(now.saturating_sub(due));
        }
    }
    sender.await??;
    consumer.close().await?;
    Ok(latencies)
}
