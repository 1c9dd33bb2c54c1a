//! The long kill series; `--kills N` of the job against a broker of its own (the broker in a third
//! of the rounds), `--embedded-kills N` of the process that holds both, and `--kafka-kills N` of
//! the job against an Apache Kafka (that one in a third of the rounds), `--cluster-kills N` against
//! one with three brokers.
//!
//! Invariants: prints one line a series; exit code 1 and the output of the processes kept where
//! anything was found.
//! Never: a kill without a commit before it.

use std::process::ExitCode;

use tests::deployment::Arrangement;
use tests::series::{Series, run};

#[tokio::main]
#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this is the program's output"
)]
async fn main() -> ExitCode {
    let Some(options) = Options::parse(std::env::args().skip(1)) else {
        eprintln!(
            "usage: kill_series [--kills N] [--embedded-kills N] [--kafka-kills N] [--cluster-kills N] [--seed N] [--rate N]"
        );
        return ExitCode::from(2);
    };
    let mut outcome = ExitCode::SUCCESS;
    for (kills, arrangement) in [
        (options.kills, Arrangement::Apart),
        (options.embedded_kills, Arrangement::Embedded),
        (options.kafka_kills, Arrangement::Kafka),
        (options.cluster_kills, Arrangement::KafkaCluster),
    ] {
        if kills == 0 {
            continue;
        }
        let series = Series {
            seed: options.seed,
            kills,
            arrangement,
            rate: options.rate,
        };
        let folder = match tempfile::Builder::new().prefix("millstream-kill").tempdir() {
            Ok(folder) => folder,
            Err(error) => {
                eprintln!("no temporary directory can be made: {error}");
                return ExitCode::FAILURE;
            }
        };
        match run(&series, folder.path()).await {
            Ok(report) => {
                println!("{report}");
                for (point, times) in &report.at_points {
                    println!("  {times:>3} at {point}");
                }
            }
            Err(error) => {
                eprintln!("{series:?}: {error:#}");
                eprintln!("the processes' output is in {}", folder.keep().display());
                outcome = ExitCode::FAILURE;
            }
        }
    }
    outcome
}

struct Options {
    kills: u32,
    embedded_kills: u32,
    kafka_kills: u32,
    cluster_kills: u32,
    seed: u64,
    rate: u64,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Self> {
        let mut options = Self {
            kills: 200,
            embedded_kills: 100,
            kafka_kills: 0,
            cluster_kills: 0,
            seed: 1,
            rate: 1_000,
        };
        while let Some(name) = arguments.next() {
            let value: u64 = arguments.next()?.parse().ok()?;
            match name.as_str() {
                "--kills" => options.kills = u32::try_from(value).ok()?,
                "--embedded-kills" => options.embedded_kills = u32::try_from(value).ok()?,
                "--kafka-kills" => options.kafka_kills = u32::try_from(value).ok()?,
                "--cluster-kills" => options.cluster_kills = u32::try_from(value).ok()?,
                "--seed" => options.seed = value,
                "--rate" => options.rate = value,
                _ => return None,
            }
        }
        Some(options)
    }
}
