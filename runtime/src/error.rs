//! The facade's error: whichever layer it came from, with that layer's own text.
//!
//! Invariants: nothing is added to or taken from what the layer says.
//! Never: hides the cause.

use std::fmt;

use crate::client::consumer::ConsumerError;
use crate::client::{
    ClusterError, ConfigError, ConnectError, DeliveryError, TransactionError, UsageError,
};
use crate::streams::{StreamsError, TopologyError};

/// What a program that uses Millstream can run into.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The embedded broker.
    #[error(transparent)]
    Broker(#[from] millstream_broker::BrokerError),
    /// An instance of an application.
    #[error(transparent)]
    Streams(#[from] StreamsError),
    /// The declaration of a topology.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A producer or consumer could not be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A transactional call.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
    /// A call that is wrong where it stands.
    #[error(transparent)]
    Usage(#[from] UsageError),
    /// A record that was not acknowledged.
    #[error(transparent)]
    Delivery(#[from] DeliveryError),
    /// Reading.
    #[error(transparent)]
    Consumer(#[from] ConsumerError),
    /// A request of an admin.
    #[error(transparent)]
    Admin(#[from] crate::client::AdminError),
    /// The cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The operating system.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// As [`Display`](fmt::Display): `main` prints an error that it returns by `Debug`, and what to do
/// next is in the text.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The result of whatever may run into an [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_main_that_returns_an_error_prints_its_text() {
        let error = Error::from(StreamsError::Config("num.stream.threads is 0".into()));
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(format!("{error:?}").contains("num.stream.threads is 0"));
    }
}
