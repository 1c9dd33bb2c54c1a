//! Who may listen and who is spoken to: TLS and SASL of a client's connections.
//!
//! [`Security`] collects settings; `Prepared` is what the transport (TLS) and the connection
//! (SASL) take from it. How the proof goes: `sasl.rs`, `scram.rs`; on a connection:
//! `cluster/authentication.rs`.
//!
//! Invariants: a contradiction is found before anything connects; a password is in no text that
//! this crate makes.
//! Never: falls back to less than what was asked for.

mod error;
mod properties;
mod sasl;
mod scram;
mod settings;
#[cfg(test)]
mod tests;
mod tls;
#[cfg(feature = "tls")]
mod validity;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

pub use error::SecurityError;
pub(crate) use error::clipped;
pub use properties::properties;
pub(crate) use sasl::Step;
pub use sasl::{Mechanism, Sasl};
use settings::{Pem, Settings};
#[cfg(feature = "tls")]
pub(crate) use tls::Phase;
pub use tls::Tls;

use crate::error::ConfigError;

/// What lies between this client and a listener (`security.protocol`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SecurityProtocol {
    /// Nothing: whoever is on the way can read and change everything.
    #[default]
    Plaintext,
    /// TLS; the broker proves who it is, the client does with a certificate of its own if it has
    /// one.
    Ssl,
    /// No TLS; the client proves who it is by a password.
    SaslPlaintext,
    /// TLS, and the client proves who it is by a password.
    SaslSsl,
}

impl SecurityProtocol {
    const ALL: [Self; 4] = [
        Self::Plaintext,
        Self::Ssl,
        Self::SaslPlaintext,
        Self::SaslSsl,
    ];

    /// Kafka's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plaintext => "PLAINTEXT",
            Self::Ssl => "SSL",
            Self::SaslPlaintext => "SASL_PLAINTEXT",
            Self::SaslSsl => "SASL_SSL",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|protocol| protocol.name().eq_ignore_ascii_case(name))
    }

    fn has_tls(self) -> bool {
        matches!(self, Self::Ssl | Self::SaslSsl)
    }

    fn has_sasl(self) -> bool {
        matches!(self, Self::SaslPlaintext | Self::SaslSsl)
    }
}

impl fmt::Display for SecurityProtocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// How a client reaches a listener that asks for more than a connection.
///
/// ```
/// use millstream_client::{ClientConfig, Producer, Sasl, Security};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let security = Security::sasl_plaintext(Sasl::scram_sha_512("orders", "wordpass"));
/// let client = ClientConfig { security, ..ClientConfig::default() };
/// let settings = Producer::builder().client(client).build()?; // connect(&"host:9094") goes on
/// assert!(!format!("{settings:?}").contains("wordpass"), "no text has the password");
///
/// // The same by Kafka's names, as in the files that Kafka's tools take.
/// let security = Security::from_properties(
///     "security.protocol=SASL_PLAINTEXT\n\
///      sasl.mechanism=SCRAM-SHA-512\n\
///      sasl.username=orders\n\
///      sasl.password=wordpass\n",
/// )?;
/// security.check()?;
/// # Ok(())
/// # }
/// ```
///
/// Over TLS (the feature `tls`) the broker's certificate is checked against the authorities that
/// are given, else against those that this machine trusts:
/// `Security::sasl_ssl(Sasl::scram_sha_512(user, password)).trust_pem_file("ca.pem")`.
#[derive(Clone, Default)]
pub struct Security {
    settings: Settings,
    /// Made once for all clones, so that files are read once and TLS sessions are shared.
    prepared: Arc<OnceLock<Result<Arc<Prepared>, ConfigError>>>,
}

/// What was made of the settings.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    pub(crate) tls: Option<Tls>,
    pub(crate) sasl: Option<Arc<Sasl>>,
}

impl Security {
    /// No TLS and no SASL (`PLAINTEXT`), the default.
    #[must_use]
    pub fn plaintext() -> Self {
        Self::default()
    }

    /// TLS (`SSL`). The feature `tls` has to be on.
    #[must_use]
    pub fn ssl() -> Self {
        Self::default().change(|settings| settings.protocol = Some(SecurityProtocol::Ssl))
    }

    /// SASL without TLS (`SASL_PLAINTEXT`): the password of PLAIN can be read on the way, that of
    /// SCRAM cannot, and the records can be with both.
    #[must_use]
    pub fn sasl_plaintext(sasl: Sasl) -> Self {
        Self::default().change(|settings| {
            settings.protocol = Some(SecurityProtocol::SaslPlaintext);
            settings.sasl(sasl);
        })
    }

    /// SASL within TLS (`SASL_SSL`). The feature `tls` has to be on.
    #[must_use]
    pub fn sasl_ssl(sasl: Sasl) -> Self {
        Self::default().change(|settings| {
            settings.protocol = Some(SecurityProtocol::SaslSsl);
            settings.sasl(sasl);
        })
    }

    /// The authorities whose certificates are believed, in PEM (`ssl.truststore.certificates`);
    /// by default those that this machine trusts.
    #[must_use]
    pub fn trust_pem(self, certificates: impl AsRef<[u8]>) -> Self {
        let pem = Pem::Text(certificates.as_ref().into());
        self.change(|settings| settings.trust = Some(pem))
    }

    /// As [`trust_pem`](Self::trust_pem), from a file (`ssl.truststore.location`).
    #[must_use]
    pub fn trust_pem_file(self, path: impl Into<PathBuf>) -> Self {
        let pem = Pem::File(path.into());
        self.change(|settings| settings.trust = Some(pem))
    }

    /// The client's own certificate with those above it, and its private key, in PEM
    /// (`ssl.keystore.certificate.chain`, `ssl.keystore.key`): for listeners that demand one.
    #[must_use]
    pub fn client_certificate_pem(
        self,
        chain: impl AsRef<[u8]>,
        private_key: impl AsRef<[u8]>,
    ) -> Self {
        let (chain, key) = (
            Pem::Text(chain.as_ref().into()),
            Pem::Text(private_key.as_ref().into()),
        );
        self.change(|settings| (settings.chain, settings.key) = (Some(chain), Some(key)))
    }

    /// As [`client_certificate_pem`](Self::client_certificate_pem), both from one file
    /// (`ssl.keystore.location`).
    #[must_use]
    pub fn client_certificate_pem_file(self, path: impl Into<PathBuf>) -> Self {
        let pem = Pem::File(path.into());
        self.change(|settings| settings.keystore = Some(pem))
    }

    /// Whether the broker's certificate has to name the host that is connected to
    /// (`ssl.endpoint.identification.algorithm`: `https`, the default, or empty). Without it,
    /// whoever has a certificate of a trusted authority can pass for the broker.
    #[must_use]
    pub fn verify_host_names(self, verify: bool) -> Self {
        self.change(|settings| settings.any_host = Some(!verify))
    }

    /// Sets one setting by Kafka's name (`security.protocol`, `sasl.…`, `ssl.…`); false where the
    /// name is not one of security.
    ///
    /// # Errors
    /// Names the setting whose value makes no sense, or that this client does not have.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, ConfigError> {
        self.prepared = Arc::default();
        self.settings.set(name, value)
    }

    /// What is between client and broker.
    #[must_use]
    pub fn protocol(&self) -> SecurityProtocol {
        self.settings.protocol.unwrap_or_default()
    }

    /// Finds contradictions and what is missing, and reads the files that are named. Clients do
    /// that when they are made.
    ///
    /// # Errors
    /// Names the settings.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.prepare().map(drop)
    }

    /// Whether nothing was set.
    pub(crate) fn is_unset(&self) -> bool {
        self.settings.is_unset()
    }

    pub(crate) fn prepare(&self) -> Result<Arc<Prepared>, ConfigError> {
        self.prepared
            .get_or_init(|| self.settings.prepare().map(Arc::new))
            .clone()
    }

    fn change(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self.prepared = Arc::default();
        self
    }
}

impl fmt::Debug for Security {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(formatter)
    }
}
