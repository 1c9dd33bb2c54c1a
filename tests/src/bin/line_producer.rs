//! A producer for `tests/compat`: every line that it reads is a record, and every acknowledgement a
//! line that it prints.
//!
//! Invariants: one record at a time, in the order of the lines; an acknowledgement is printed when
//! it comes, an error ends the program.
//! Never: decides what may be lost; the suite that kills brokers does.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use millstream::client::{Producer, ProducerRecord};

const USAGE: &str = "usage: line_producer BOOTSTRAP TOPIC [NAME=VALUE ...]";

#[tokio::main]
#[expect(clippy::print_stderr, reason = "this is where a program complains")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "this is the program's output")]
async fn run() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [bootstrap, topic, settings @ ..] = arguments.as_slice() else {
        bail!(USAGE);
    };
    let mut builder = Producer::builder();
    for setting in settings {
        let (name, value) = setting.split_once('=').context(USAGE)?;
        builder = builder.set(name, value);
    }
    let producer = builder.connect(bootstrap.as_str()).await?;
    let next = || tokio::task::spawn_blocking(|| std::io::stdin().lines().next());
    while let Some(line) = next().await? {
        let line = line?;
        let record = ProducerRecord::new(topic.as_str()).value(line.clone());
        let found = producer.send(record).await?.await?;
        println!("{line} at {}", found.offset);
    }
    Ok(())
}
