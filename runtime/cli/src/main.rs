//! The `millstream` command: the broker for one node, and the tools around it.
//!
//! One file a subcommand; each holds its arguments and its work. `output` is the way to stdout,
//! `text` turns bytes into JSON, `connection` holds what every client subcommand takes.
//!
//! Invariants: results go to stdout, everything else to stderr; an error says what to do next and
//! ends with exit code 1 (2 for a wrong command line); a reader that closes the pipe ends the
//! command quietly.
//! Never: touches a broker's data except through the protocol, or through files that `log dump` is
//! given.

mod broker;
mod connection;
mod consume;
mod descriptors;
mod groups;
mod hanging;
mod log;
mod output;
mod produce;
mod signals;
mod text;
mod topics;
mod transactions;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// A broker for one node that speaks Kafka's protocol, and the tools around it.
#[derive(Debug, Parser)]
#[command(name = "millstream", version, about, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Broker(broker::Arguments),
    Topics(topics::Arguments),
    Groups(groups::Arguments),
    Transactions(transactions::Arguments),
    Produce(produce::Arguments),
    Consume(consume::Arguments),
    #[command(subcommand)]
    Log(log::Command),
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    log_to_stderr(match &arguments.command {
        Command::Broker(_) => LevelFilter::INFO,
        _ => LevelFilter::WARN,
    });
    let result = match arguments.command {
        Command::Broker(arguments) => broker::run(arguments).await,
        Command::Topics(arguments) => topics::run(arguments).await,
        Command::Groups(arguments) => groups::run(arguments).await,
        Command::Transactions(arguments) => transactions::run(arguments).await,
        Command::Produce(arguments) => produce::run(arguments).await,
        Command::Consume(arguments) => consume::run(arguments).await,
        Command::Log(command) => log::run(command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// What the libraries log goes to stderr; `MILLSTREAM_LOG` chooses levels, as in
/// `millstream_broker=debug`.
fn log_to_stderr(default: LevelFilter) {
    let chosen = std::env::var("MILLSTREAM_LOG").ok();
    let filter: Targets = chosen
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| Targets::new().with_default(default));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false);
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_and_every_subcommand_has_a_description() {
        let command = Arguments::command();
        command.clone().debug_assert();
        for subcommand in command.get_subcommands() {
            assert!(
                subcommand.get_about().is_some(),
                "{} says nothing",
                subcommand.get_name()
            );
        }
    }
}
