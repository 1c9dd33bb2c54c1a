//! `millstream broker`: one broker over one data directory, for clients that come over TCP.
//!
//! Invariants: stdout gets exactly one line, when clients may connect; a signal stops the broker
//! cleanly (a second one at once); the mode of durability and what it survives are said at start.
//! Never: a start on a directory or an address that something else holds.

use crate::descriptors;
use crate::output;
use crate::signals::Signals;
use crate::topics::setting;
use anyhow::{Context, anyhow};
use millstream::{Broker, Durability};
use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

/// Run a broker for one node.
///
/// Prints one line, `listening on HOST:PORT`, when clients may connect; everything else goes to
/// stderr. SIGTERM and SIGINT stop it cleanly. Any Kafka client can use it; there is no
/// authentication, so keep it on a loopback address.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Where the broker keeps its data; created where it does not exist. One process at a time
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Address for clients; port 0 picks a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9092")]
    listen: String,
    /// What an acknowledged record survives: sync (killed process and power cut), interval:MS (a
    /// power cut may take the last MS milliseconds), os (killed process only), memory (nothing)
    #[arg(long, value_name = "MODE", default_value = "sync")]
    durability: Durability,
    /// Refuse topics that do not exist, instead of creating them on first use
    #[arg(long)]
    no_auto_create_topics: bool,
    /// Partitions of a topic that is created without a count
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(i32).range(1..))]
    default_partitions: i32,
    /// The broker's number in its cluster, as clients see it
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(i32).range(0..))]
    node_id: i32,
    /// A setting by Kafka's name: what holds for topics without one of their own, as in
    /// log.retention.ms=60000; the group coordinator's, as in
    /// group.initial.rebalance.delay.ms=3000 or offsets.retention.minutes=10080; or where clients
    /// are told to connect, if not to where they did, as in
    /// advertised.listeners=PLAINTEXT://HOST:PORT; may be repeated
    #[arg(long = "config", value_name = "NAME=VALUE", value_parser = setting)]
    configs: Vec<(String, String)>,
    /// Cluster id of a new data directory; an existing directory must have this one [default: drawn
    /// at random]
    #[arg(long, value_name = "ID")]
    cluster_id: Option<String>,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let address = resolve(&arguments.listen)?;
    // Before anything can be seen from outside: a signal at any later point stops in order.
    let mut signals = Signals::new()?;
    descriptors::raise_limit();
    let durability = arguments.durability;
    let mut refused = Ok(());
    let options = Broker::options()
        .durability(durability)
        .auto_create_topics(!arguments.no_auto_create_topics)
        .default_partitions(arguments.default_partitions)
        .configure(|config| {
            config.cluster_id = arguments.cluster_id;
            config.node_id = arguments.node_id;
            let mut given = arguments.configs.iter();
            refused = given.try_for_each(|(name, value)| {
                let set = config.set(name, value);
                set.with_context(|| format!("--config {name}={value}"))
            });
        });
    refused?;
    let directory = arguments.data_dir.display().to_string();
    let broker = options
        .open(&arguments.data_dir)
        .await
        .with_context(|| format!("cannot start on data directory {directory}"))?;
    output::note(format_args!(
        "durability {durability}: {}",
        durability.promise()
    ));
    output::note(format_args!(
        "cluster {} in {directory}",
        broker.cluster_id()
    ));
    let bound = match broker.listen(address).await {
        Ok(bound) => bound,
        Err(error) => {
            broker.close().await?;
            return Err(error.into());
        }
    };
    if !bound.ip().is_loopback() {
        output::note(
            "the address is not a loopback one: whoever reaches it may read and write everything",
        );
    }
    if let Err(error) = announce(bound) {
        output::note(format_args!("stdout takes no line: {error}"));
    }
    signals.any().await;
    output::note("stopping (a second signal stops at once)");
    tokio::select! {
        biased;
        closed = broker.close() => closed?,
        () = signals.any() => {
            broker.halt();
            return Err(anyhow!("stopped at once; the next start recovers what was acknowledged"));
        }
    }
    output::note("stopped cleanly");
    Ok(())
}

fn announce(bound: SocketAddr) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "listening on {bound}")?;
    stdout.flush()
}

/// The first address of the name.
fn resolve(listen: &str) -> anyhow::Result<SocketAddr> {
    let addresses = listen.to_socket_addrs();
    let mut addresses = addresses.with_context(|| {
        format!("--listen {listen} is no address: give HOST:PORT, as in 127.0.0.1:9092")
    })?;
    let first = addresses.next();
    first.ok_or_else(|| anyhow!("--listen {listen} has no address: give 127.0.0.1:PORT"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_needs_a_port() {
        assert_eq!(
            resolve("127.0.0.1:0").unwrap(),
            "127.0.0.1:0".parse().unwrap()
        );
        let refused = resolve("127.0.0.1").unwrap_err().to_string();
        assert!(refused.contains("--listen 127.0.0.1"), "{refused}");
        assert!(refused.contains("HOST:PORT"), "{refused}");
    }
}
