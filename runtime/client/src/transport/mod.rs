//! How frames reach a broker: the `send` stage ends here, whatever carries the bytes.
//!
//! Invariants: frames of one connection arrive whole and in order; a closed channel is a lost
//! connection.
//! Never: retries, waits between attempts (the cluster does), or looks into a frame.

mod link;
mod tcp;

use std::fmt;
use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use millstream_protocol::Frame;
use tokio::sync::mpsc;

pub use link::{Ending, Link};
pub use tcp::TcpTransport;

use crate::error::ConfigError;
use crate::security::{Security, SecurityError, Tls};

/// Where a broker listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BrokerAddress {
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl BrokerAddress {
    /// An address from its parts.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
        }
    }
}

impl fmt::Display for BrokerAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{}:{}", self.host, self.port)
        }
    }
}

/// One open connection: frames go out of one channel and come in by the other.
///
/// A closed `incoming`, or an `outgoing` that refuses a frame, means that the connection is lost.
#[derive(Debug)]
pub struct FrameConnection {
    /// Frames to the broker.
    pub outgoing: mpsc::Sender<Frame>,
    /// Frames from the broker.
    pub incoming: mpsc::Receiver<Frame>,
    /// What both ends tell each other beside the frames. A transport that carries the frames of
    /// another hands on the other's: without it, that one never learns that its broker was trusted,
    /// and goes on refusing large frames.
    pub link: Arc<Link>,
}

impl FrameConnection {
    /// A connection of these two channels.
    #[must_use]
    pub fn new(outgoing: mpsc::Sender<Frame>, incoming: mpsc::Receiver<Frame>) -> Self {
        Self {
            outgoing,
            incoming,
            link: Arc::default(),
        }
    }
}

/// Opens connections to brokers. TCP, the embedded broker and the simulator implement it.
#[async_trait]
pub trait Transport: Send + Sync + Debug {
    /// Opens one connection. An error means that nothing was sent.
    async fn connect(&self, address: &BrokerAddress) -> io::Result<FrameConnection>;

    /// As [`connect`](Self::connect), within TLS. What trying again does not mend is a
    /// [`SecurityError`] inside of the error. Transports that are no network have no TLS.
    async fn connect_tls(
        &self,
        _address: &BrokerAddress,
        _tls: &Tls,
    ) -> io::Result<FrameConnection> {
        Err(io::Error::other(SecurityError::Settings(
            ConfigError::Contradiction {
                first: "security.protocol=SSL or SASL_SSL".to_owned(),
                second: "a transport without TLS".to_owned(),
                reason: "an embedded broker is reached in the process: leave security.protocol out",
            },
        )))
    }

    /// The addresses to begin with, before any metadata is known.
    fn bootstrap(&self) -> Vec<BrokerAddress>;

    /// What clients use whose own settings of security are the default.
    fn security(&self) -> Security {
        Security::default()
    }
}

/// Whatever a client can be connected to: a transport, `"host:port,host:port"`, or the facade's
/// embedded broker.
pub trait IntoTransport {
    /// The transport that reaches this.
    #[expect(
        clippy::wrong_self_convention,
        reason = "a broker is kept by whoever connects to it"
    )]
    fn into_transport(&self) -> Arc<dyn Transport>;
}

impl IntoTransport for Arc<dyn Transport> {
    fn into_transport(&self) -> Arc<dyn Transport> {
        Arc::clone(self)
    }
}

impl IntoTransport for TcpTransport {
    fn into_transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.clone())
    }
}

impl IntoTransport for str {
    fn into_transport(&self) -> Arc<dyn Transport> {
        Arc::new(TcpTransport::new(self))
    }
}

impl IntoTransport for &str {
    fn into_transport(&self) -> Arc<dyn Transport> {
        Arc::new(TcpTransport::new(self))
    }
}

impl IntoTransport for String {
    fn into_transport(&self) -> Arc<dyn Transport> {
        Arc::new(TcpTransport::new(self))
    }
}
