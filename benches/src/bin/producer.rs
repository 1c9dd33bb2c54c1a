//! Our producer over TCP, as Kafka's ProducerPerformance drives Java's: as many records as it
//! takes, a callback for each, latencies from the send to the acknowledgement.
//!
//! Invariants: CPU is that of this process alone; the broker is another one (`benches/producers`
//! measures both, with Java's producer and with Apache Kafka in turn).
//! Never: creates its topic's data before the clock starts.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use benches::{cpu_time, peak_rss_bytes, quantile_ms};
use bytes::Bytes;
use clap::Parser;
use millstream::client::{Producer, ProducerRecord};
use tokio::time::Instant;

/// Values to choose from, so that no time goes into making them.
const VALUES: usize = 1_000;

#[derive(Debug, Parser)]
struct Options {
    /// The broker
    #[arg(long)]
    bootstrap: String,
    /// An existing topic, or one that the broker makes
    #[arg(long)]
    topic: String,
    /// How many records
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Size of a value
    #[arg(long, default_value_t = 100)]
    value_bytes: usize,
    /// A setting of the producer by Kafka's name, as NAME=VALUE; may be repeated
    #[arg(long = "set")]
    settings: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What the run measured.
#[derive(Debug, serde::Serialize)]
struct Figures {
    records: u64,
    seconds: f64,
    records_per_second: f64,
    cpu_ns_per_record: f64,
    ack_p50_ms: f64,
    ack_p99_ms: f64,
    peak_rss_bytes: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let mut builder = Producer::idempotent();
    for setting in &options.settings {
        let Some((name, value)) = setting.split_once('=') else {
            bail!("--set {setting}: give it as NAME=VALUE");
        };
        builder = builder.set(name, value);
    }
    let producer = builder.connect(&options.bootstrap).await?;
    let figures = run(&producer, &options).await?;
    #[expect(
        clippy::print_stdout,
        reason = "the figures are what this program is for"
    )]
    if options.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        println!("{figures:#?}");
    }
    Ok(())
}

async fn run(producer: &Producer, options: &Options) -> anyhow::Result<Figures> {
    let topic: Arc<str> = options.topic.as_str().into();
    let values: Vec<Bytes> = (0..VALUES)
        .map(|n| Bytes::from(vec![b'A' + (n % 26) as u8; options.value_bytes]))
        .collect();
    let took = Arc::new(Mutex::new(Vec::with_capacity(options.records as usize)));
    let failed = Arc::new(Mutex::new(None));
    let (begin, cpu_before) = (Instant::now(), cpu_time());
    for n in 0..options.records {
        // A stride that is coprime to the number of values visits them all.
        let value = values[(n as usize * 617) % VALUES].clone();
        let record = ProducerRecord::new(Arc::clone(&topic)).value(value);
        let sent = Instant::now();
        let delivery = producer.send(record).await?;
        let (took, failed) = (Arc::clone(&took), Arc::clone(&failed));
        delivery.on_resolved(move |result| match result {
            Ok(_) => lock(&took).push(sent.elapsed()),
            Err(error) => *lock(&failed) = Some(error),
        });
    }
    producer.flush().await?;
    let (elapsed, cpu) = (begin.elapsed(), cpu_time() - cpu_before);
    if let Some(error) = lock(&failed).take() {
        return Err(error).context("a record was not acknowledged");
    }
    let mut took: Vec<Duration> = std::mem::take(&mut lock(&took));
    if took.len() as u64 != options.records {
        bail!("{} of {} records acknowledged", took.len(), options.records);
    }
    Ok(Figures {
        records: options.records,
        seconds: elapsed.as_secs_f64(),
        records_per_second: options.records as f64 / elapsed.as_secs_f64(),
        cpu_ns_per_record: cpu.as_nanos() as f64 / options.records as f64,
        ack_p50_ms: quantile_ms(&mut took, 0.5),
        ack_p99_ms: quantile_ms(&mut took, 0.99),
        peak_rss_bytes: peak_rss_bytes(),
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
