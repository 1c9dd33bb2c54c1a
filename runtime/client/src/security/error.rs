//! Why client and broker do not trust each other.
//!
//! Invariants: a text names the broker, who was refused and the next step; asking again does not
//! help, so nothing does, except where one broker of several may be alone to blame.
//! Never: has a password in it.

use std::sync::Arc;

use millstream_protocol::ErrorCode;

use super::Mechanism;
use crate::error::ConfigError;
use crate::transport::BrokerAddress;

/// Client and broker do not trust each other. It stays so until somebody changes something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SecurityError {
    /// The broker does not believe the credentials.
    #[error(
        "broker {broker} refuses user {user:?} with {mechanism}: {code}{}; check sasl.username and \
         sasl.password, and that the broker knows this user for {mechanism}", words(.message)
    )]
    AuthenticationFailed {
        /// How the proof was tried.
        mechanism: Mechanism,
        /// Who was refused.
        user: Arc<str>,
        /// Which broker refused.
        broker: BrokerAddress,
        /// The broker's code.
        code: ErrorCode,
        /// What the broker said.
        message: Arc<str>,
    },
    /// The listener does not have the mechanism.
    #[error(
        "broker {broker} does not offer sasl.mechanism={mechanism}, but {offered:?}; use one of \
         these, or enable {mechanism} on the listener"
    )]
    MechanismNotOffered {
        /// What was asked for.
        mechanism: Mechanism,
        /// Which broker.
        broker: BrokerAddress,
        /// What the listener has.
        offered: Vec<String>,
    },
    /// The listener asks for no authentication, or takes none.
    #[error(
        "broker {broker} takes no SASL authentication here ({reason}); connect to its SASL \
         listener, or set security.protocol to what this listener speaks"
    )]
    NoSasl {
        /// Which broker.
        broker: BrokerAddress,
        /// What the broker said.
        reason: Arc<str>,
    },
    /// The broker has not shown that it knows the password, as SCRAM demands of it.
    #[error(
        "broker {broker} has not proven to user {user:?} that it is the right one ({mechanism}: \
         {reason}); somebody else may be answering there: check the address, and use TLS"
    )]
    BrokerNotProven {
        /// How the proof was tried.
        mechanism: Mechanism,
        /// Who asked.
        user: Arc<str>,
        /// Which broker.
        broker: BrokerAddress,
        /// What is wrong with its answer.
        reason: Arc<str>,
    },
    /// TLS came to no connection.
    #[error("no TLS with broker {broker}: {reason}; {next_step}")]
    Tls {
        /// Which broker.
        broker: BrokerAddress,
        /// What the TLS library says.
        reason: Arc<str>,
        /// What to do.
        next_step: &'static str,
    },
    /// The broker does not take this client's certificate, whose time is over.
    #[error(
        "broker {broker} refuses this client's certificate ({reason}), which expired on {expired}; \
         renew what ssl.keystore.location, or ssl.keystore.certificate.chain and ssl.keystore.key, \
         give (unless this machine's clock is wrong)"
    )]
    CertificateExpired {
        /// Which broker.
        broker: BrokerAddress,
        /// The last day of the certificate.
        expired: Arc<str>,
        /// What the broker said.
        reason: Arc<str>,
    },
    /// The listener speaks TLS and this client does not.
    #[error(
        "broker {broker} answers in TLS, which this client does not speak here; set \
         security.protocol to SSL, or to SASL_SSL instead of SASL_PLAINTEXT"
    )]
    TlsListener {
        /// Which broker.
        broker: BrokerAddress,
    },
    /// The settings are wrong, which clients find when they are made.
    #[error(transparent)]
    Settings(#[from] ConfigError),
}

impl SecurityError {
    /// Whether the cause may lie with this broker alone (its certificate, its listener): then
    /// another one, or this one after a repair, may still be trusted. Credentials, this client's
    /// certificate and settings are the same everywhere.
    pub(crate) fn is_of_one_broker(&self) -> bool {
        match self {
            Self::Tls { .. }
            | Self::TlsListener { .. }
            | Self::NoSasl { .. }
            | Self::BrokerNotProven { .. } => true,
            Self::AuthenticationFailed { .. }
            | Self::MechanismNotOffered { .. }
            | Self::CertificateExpired { .. }
            | Self::Settings(_) => false,
        }
    }
}

fn words(message: &str) -> String {
    if message.is_empty() {
        String::new()
    } else {
        format!(": {message}")
    }
}

/// The broker's words, fit for a log: nobody has proven anything yet.
pub(crate) fn clipped(text: &str) -> Arc<str> {
    const CHARS_MAX: usize = 300;
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let text: String = text.chars().take(CHARS_MAX).map(clean).collect();
    text.into()
}
