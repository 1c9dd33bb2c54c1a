//! Our own client as one of the clients of `tests/compat`: the commands are those that
//! `tests/compat/suites/clients.py` lists, and what it prints is judged there beside the others'.
//!
//! Invariants: speaks through the public interface of the client alone, over TCP; ends with 1 and
//! the error's text where a command fails.
//! Never: decides what is right; that is written in one place, for all clients.

mod defaults;
mod member;
mod records;
mod transactions;

use std::process::ExitCode;

use anyhow::{Context as _, bail};

const USAGE: &str = "usage: compat_client BOOTSTRAP version | defaults | produce TOPIC CODEC | \
                     dump TOPIC PARTITIONS | group TOPIC GROUP [NAME=VALUE ...] | \
                     transactions TOPIC ID | fence TOPIC ID";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &[&str]) -> anyhow::Result<()> {
    match *arguments {
        [_, "version"] => say(env!("CARGO_PKG_VERSION")),
        [_, "defaults"] => defaults::print()?,
        [bootstrap, "produce", topic, codec] => records::produce(bootstrap, topic, codec).await?,
        [bootstrap, "dump", topic, partitions] => {
            let partitions = partitions.parse().context("PARTITIONS is not a number")?;
            records::dump(bootstrap, topic, partitions).await?;
        }
        [bootstrap, "group", topic, group, ref settings @ ..] => {
            member::join(bootstrap, topic, group, settings).await?;
        }
        [bootstrap, "transactions", topic, id] => transactions::run(bootstrap, topic, id).await?,
        [bootstrap, "fence", topic, id] => transactions::fence(bootstrap, topic, id).await?,
        _ => bail!(USAGE),
    }
    Ok(())
}

/// A line on stdout, which is what is judged.
#[expect(clippy::print_stdout, reason = "this is the program's output")]
fn say(line: &str) {
    println!("{line}");
}

#[expect(clippy::print_stderr, reason = "this is where a program complains")]
fn complain(line: &str) {
    eprintln!("{line}");
}
