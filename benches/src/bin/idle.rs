//! What partitions take of a broker's memory to which nothing happens: new ones, ones with a
//! record, and both after a restart.
//!
//! Invariants: the broker is a process of its own, whose memory the system tells; what measures it
//! is on the other end of a socket.
//! Never: an average over runs; resident memory of a fresh process hardly varies.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use benches::resident_bytes;
use clap::Parser;
use millstream::Broker;
use millstream::client::{Admin, NewTopic, Producer, ProducerRecord};

/// How long a broker comes to rest before it is measured.
const REST: Duration = Duration::from_secs(2);

#[derive(Debug, Parser)]
struct Options {
    /// How many topics
    #[arg(long, default_value_t = 1_000)]
    topics: usize,
    /// Partitions of each
    #[arg(long, default_value_t = 3)]
    partitions: i32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Be the broker, over this directory, until stdin ends
    #[arg(long, hide = true)]
    serve: Option<PathBuf>,
}

/// Resident bytes of the broker; pages of its files that the system shares are not counted.
#[derive(Debug, serde::Serialize)]
struct Figures {
    partitions: u64,
    without_topics_bytes: u64,
    created_bytes: u64,
    created_restarted_bytes: u64,
    written_bytes: u64,
    written_restarted_bytes: u64,
    /// From no topics to all of them with a record, restarted.
    bytes_per_partition: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    match &options.serve {
        Some(directory) => serve(directory).await,
        None => measure(&options).await,
    }
}

#[expect(clippy::print_stdout, reason = "the other process reads it")]
async fn serve(directory: &Path) -> anyhow::Result<()> {
    let broker = Broker::open(directory).await?;
    println!("{}", broker.listen(([127, 0, 0, 1], 0).into()).await?);
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    broker.close().await?;
    Ok(())
}

/// A broker in a process of its own.
struct Served {
    process: Child,
    address: String,
}

impl Served {
    fn start(directory: &Path) -> anyhow::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("--serve")
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = process.stdout.take().context("it is piped")?;
        let mut address = String::new();
        BufReader::new(stdout).read_line(&mut address)?;
        ensure!(!address.is_empty(), "the broker did not start");
        let address = address.trim().to_owned();
        Ok(Self { process, address })
    }

    async fn resident_bytes(&self) -> u64 {
        tokio::time::sleep(REST).await;
        resident_bytes(self.process.id())
    }

    fn stop(mut self) -> anyhow::Result<()> {
        drop(self.process.stdin.take());
        let status = self.process.wait()?;
        ensure!(status.success(), "the broker ended with {status}");
        Ok(())
    }
}

async fn measure(options: &Options) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let names: Vec<String> = (0..options.topics).map(|n| format!("topic-{n}")).collect();
    let served = Served::start(folder.path())?;
    let without_topics_bytes = served.resident_bytes().await;
    let admin = Admin::connect(&served.address).await?;
    for name in &names {
        admin
            .create_topic(&NewTopic::new(name, options.partitions))
            .await?;
    }
    drop(admin);
    let created_bytes = served.resident_bytes().await;
    served.stop()?;

    let served = Served::start(folder.path())?;
    let created_restarted_bytes = served.resident_bytes().await;
    let producer = Producer::idempotent().connect(&served.address).await?;
    for name in &names {
        for partition in 0..options.partitions {
            let record = ProducerRecord::new(name.as_str()).value("value");
            drop(producer.send(record.partition(partition)).await?);
        }
    }
    producer.flush().await?;
    producer.close(Duration::from_secs(5)).await;
    let written_bytes = served.resident_bytes().await;
    served.stop()?;

    let served = Served::start(folder.path())?;
    let written_restarted_bytes = served.resident_bytes().await;
    served.stop()?;
    let partitions = options.topics as u64 * u64::from(options.partitions.unsigned_abs());
    let more = written_restarted_bytes.saturating_sub(without_topics_bytes);
    let figures = Figures {
        partitions,
        without_topics_bytes,
        created_bytes,
        created_restarted_bytes,
        written_bytes,
        written_restarted_bytes,
        bytes_per_partition: more / partitions.max(1),
    };
    report(&figures, options.json)
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are what this program is for"
)]
fn report(figures: &Figures, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string(figures)?);
    } else {
        println!("{figures:#?}");
    }
    Ok(())
}
