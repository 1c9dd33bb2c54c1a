//! How client subcommands reach a broker.
//!
//! Invariants: an address where nobody listens is an error at once, that names the address and the
//! next step.
//! Never: creates a topic because somebody asked about it.

use anyhow::{Context, anyhow, bail};
use millstream::client::{Admin, BrokerAddress, ClientConfig, Security, TcpTransport, Transport};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// How long one address may take to answer at first.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the broker is.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Connection {
    /// The broker; several may be given, separated by commas. Port 9092 where none is given
    #[arg(
        long,
        global = true,
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9092"
    )]
    bootstrap: String,
    /// A properties file with security.protocol, sasl.… and ssl.…, as Kafka's tools take it, for
    /// brokers that ask for TLS or SASL
    #[arg(long, global = true, value_name = "FILE")]
    command_config: Option<PathBuf>,
}

impl Connection {
    /// The way to the broker, which has been seen to listen.
    pub(crate) fn transport(&self) -> anyhow::Result<TcpTransport> {
        let transport = TcpTransport::new(&self.bootstrap).with_security(self.security()?)?;
        let mut refusals = Vec::new();
        for address in transport.bootstrap() {
            match knock(&address.host, address.port) {
                Ok(()) => return Ok(transport),
                Err(error) => refusals.push((address, error)),
            }
        }
        if refusals.is_empty() {
            bail!(
                "--bootstrap {:?} names no broker: give HOST:PORT",
                self.bootstrap
            );
        }
        Err(nobody_at(&refusals))
    }

    fn security(&self) -> anyhow::Result<Security> {
        let Some(file) = &self.command_config else {
            return Ok(Security::default());
        };
        let about = || format!("--command-config {}", file.display());
        let text = std::fs::read_to_string(file).with_context(about)?;
        Security::from_properties(&text).with_context(about)
    }

    /// An admin client.
    pub(crate) fn admin(&self) -> anyhow::Result<Admin> {
        Ok(Admin::with(&self.transport()?, client_config()))
    }
}

/// What all subcommands tell a broker about themselves.
pub(crate) fn client_config() -> ClientConfig {
    ClientConfig {
        client_id: "millstream-cli".to_owned(),
        allow_auto_create_topics: false,
        ..ClientConfig::default()
    }
}

/// Names each address with the port that was tried, which may be one that nobody has given.
fn nobody_at(refusals: &[(BrokerAddress, io::Error)]) -> anyhow::Error {
    let tried = refusals
        .iter()
        .map(|(address, error)| format!("{address}: {error}"));
    anyhow!(
        "no broker at {}; start one with `millstream broker --data-dir DIR`, or say where it is \
         with --bootstrap HOST:PORT",
        tried.collect::<Vec<_>>().join(", ")
    )
}

fn knock(host: &str, port: u16) -> io::Result<()> {
    let mut refusal = io::Error::other("the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(_) => return Ok(()),
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gave_no_port_is_told_which_one_was_tried() {
        let tried = TcpTransport::new("localhost,kafka-1:9094").bootstrap();
        let refused = |address| (address, io::Error::other("refused"));
        let refusals: Vec<_> = tried.into_iter().map(refused).collect();
        let text = nobody_at(&refusals).to_string();
        let both = "no broker at localhost:9092: refused, kafka-1:9094: refused;";
        assert!(text.starts_with(both), "{text}");
    }
}
