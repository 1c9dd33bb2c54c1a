//! The settings of security by Kafka's names, and what is made of them.
//!
//! Invariants: the order in which settings are given does not matter; what contradicts or is
//! missing is an error that names the keys; a password is in no error.
//! Never: ignores a setting that the protocol does not use.

use std::path::PathBuf;
use std::sync::Arc;

use super::properties::Login;
use super::sasl::Secret;
use super::tls::Tls;
use super::{Mechanism, Prepared, Sasl, SecurityProtocol};
use crate::error::ConfigError;

/// Certificates or a key in PEM.
#[derive(Clone, Debug)]
pub(super) enum Pem {
    /// To be read.
    File(PathBuf),
    /// As it is.
    Text(Arc<[u8]>),
}

/// Every setting, given or not.
#[derive(Clone, Default)]
pub(super) struct Settings {
    pub(super) protocol: Option<SecurityProtocol>,
    pub(super) mechanism: Option<Mechanism>,
    pub(super) user: Option<Arc<str>>,
    pub(super) password: Option<Secret>,
    /// What `sasl.jaas.config` says the mechanism is.
    pub(super) login: Option<Login>,
    pub(super) trust: Option<Pem>,
    /// Certificates and key in one.
    pub(super) keystore: Option<Pem>,
    pub(super) chain: Option<Pem>,
    pub(super) key: Option<Pem>,
    /// Whether the host's name is not checked.
    pub(super) any_host: Option<bool>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // What is private is not told apart from what is not: files by name, texts by size.
        let pem = |pem: &Option<Pem>| match pem {
            None => "none".to_owned(),
            Some(Pem::File(path)) => path.display().to_string(),
            Some(Pem::Text(text)) => format!("[{} bytes]", text.len()),
        };
        formatter
            .debug_struct("Security")
            .field("protocol", &self.protocol.unwrap_or_default())
            .field("mechanism", &self.mechanism)
            .field("user", &self.user)
            .field("password", &self.password)
            .field("trust", &pem(&self.trust))
            .field("keystore", &pem(&self.keystore))
            .field("chain", &pem(&self.chain))
            .field("key", &pem(&self.key))
            .field("any_host", &self.any_host.unwrap_or_default())
            .finish()
    }
}

const SETTINGS: &str = "this client has security.protocol, sasl.mechanism, sasl.username, \
                        sasl.password, sasl.jaas.config, ssl.truststore.location, \
                        ssl.truststore.certificates, ssl.truststore.type, ssl.keystore.location, \
                        ssl.keystore.certificate.chain, ssl.keystore.key, ssl.keystore.type and \
                        ssl.endpoint.identification.algorithm";

impl Settings {
    pub(super) fn sasl(&mut self, sasl: Sasl) {
        self.mechanism = Some(sasl.mechanism);
        self.user = Some(sasl.user);
        self.password = Some(sasl.password);
    }

    pub(super) fn is_unset(&self) -> bool {
        self.protocol.is_none() && self.sasl_setting().is_none() && self.tls_setting().is_none()
    }

    /// Takes one setting; false where the name belongs elsewhere.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Result<bool, ConfigError> {
        let refused = |reason: &str| {
            Err(ConfigError::Unusable {
                setting: format!("{name}={value}"),
                reason: reason.to_owned(),
            })
        };
        let file = || Some(Pem::File(PathBuf::from(value)));
        let text = || Some(Pem::Text(value.as_bytes().into()));
        match name {
            "security.protocol" => match SecurityProtocol::parse(value) {
                Some(protocol) => self.protocol = Some(protocol),
                None => return refused("must be PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
            },
            "sasl.mechanism" => {
                let named = |mechanism: &Mechanism| mechanism.name() == value;
                match Mechanism::ALL.into_iter().find(named) {
                    Some(mechanism) => self.mechanism = Some(mechanism),
                    None => return refused("must be PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"),
                }
            }
            "sasl.username" => self.user = Some(value.into()),
            "sasl.password" => self.password = Some(Secret(value.into())),
            "sasl.jaas.config" => {
                let (login, user, password) = Login::parse(value)?;
                self.login = Some(login);
                self.user = Some(user);
                self.password = Some(password);
            }
            "ssl.truststore.type" | "ssl.keystore.type" if value == "PEM" => {}
            "ssl.truststore.type" | "ssl.keystore.type" => {
                return refused("only PEM is read; export certificates and key as PEM");
            }
            "ssl.truststore.location" => self.trust = file(),
            "ssl.truststore.certificates" => self.trust = text(),
            "ssl.keystore.location" => self.keystore = file(),
            "ssl.keystore.certificate.chain" => self.chain = text(),
            "ssl.keystore.key" => self.key = text(),
            "ssl.key.password" | "ssl.keystore.password" | "ssl.truststore.password" => {
                return Err(ConfigError::Unusable {
                    setting: name.to_owned(),
                    reason: "encrypted stores and keys are not read; give PEM without a password \
                             and protect the file"
                        .to_owned(),
                });
            }
            "ssl.endpoint.identification.algorithm" => match value {
                "https" | "HTTPS" => self.any_host = Some(false),
                "" => self.any_host = Some(true),
                _ => return refused("must be https, or empty to believe any host name"),
            },
            _ if ["security.", "sasl.", "ssl."]
                .iter()
                .any(|prefix| name.starts_with(prefix)) =>
            {
                return Err(ConfigError::Unusable {
                    setting: name.to_owned(),
                    reason: format!("is not known; {SETTINGS}"),
                });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks everything and reads what is to be read.
    pub(super) fn prepare(&self) -> Result<Prepared, ConfigError> {
        let protocol = self.protocol.unwrap_or_default();
        let contradiction = |second: &str, reason| {
            Err(ConfigError::Contradiction {
                first: format!("security.protocol={protocol}"),
                second: second.to_owned(),
                reason,
            })
        };
        if let Some(setting) = self.sasl_setting().filter(|_| !protocol.has_sasl()) {
            let reason = "credentials are for SASL listeners: set security.protocol to SASL_SSL or \
                          SASL_PLAINTEXT, or take the credentials out";
            return contradiction(setting, reason);
        }
        if let Some(setting) = self.tls_setting().filter(|_| !protocol.has_tls()) {
            let reason = "certificates are for TLS: set security.protocol to SSL or SASL_SSL, or \
                          take them out";
            return contradiction(setting, reason);
        }
        let sasl = if protocol.has_sasl() {
            Some(Arc::new(self.credentials(protocol)?))
        } else {
            None
        };
        let tls = if protocol.has_tls() {
            Some(Tls::new(self, protocol)?)
        } else {
            None
        };
        if tls.is_none()
            && let Some(sasl) = sasl
                .as_ref()
                .filter(|sasl| sasl.mechanism == Mechanism::Plain)
        {
            tracing::warn!(
                user = %sasl.user,
                "sasl.mechanism=PLAIN with security.protocol=SASL_PLAINTEXT sends the password \
                 readable to everybody on the way: use SASL_SSL, or SCRAM"
            );
        }
        Ok(Prepared { tls, sasl })
    }

    fn credentials(&self, protocol: SecurityProtocol) -> Result<Sasl, ConfigError> {
        let missing = |setting: &str, reason: &str| ConfigError::Unusable {
            setting: setting.to_owned(),
            reason: format!("is missing, and security.protocol={protocol} needs it{reason}"),
        };
        let mechanism = self
            .mechanism
            .ok_or_else(|| missing("sasl.mechanism", ": PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"))?;
        if let Some(login) = self.login
            && login.is_scram() == (mechanism == Mechanism::Plain)
        {
            return Err(ConfigError::Contradiction {
                first: format!("sasl.mechanism={mechanism}"),
                second: format!("sasl.jaas.config ({})", login.module()),
                reason: "the login module belongs to another mechanism",
            });
        }
        let user = self
            .user
            .clone()
            .ok_or_else(|| missing("sasl.username", ""))?;
        let password = self
            .password
            .clone()
            .ok_or_else(|| missing("sasl.password", ""))?;
        for (setting, value) in [("sasl.username", &user), ("sasl.password", &password.0)] {
            if value.is_empty() || value.contains('\0') {
                return Err(ConfigError::Invalid {
                    setting: setting.to_owned(),
                    reason: "must not be empty or hold a NUL",
                });
            }
        }
        Ok(Sasl {
            mechanism,
            user,
            password,
        })
    }

    fn sasl_setting(&self) -> Option<&'static str> {
        [
            (self.login.is_some(), "sasl.jaas.config"),
            (self.user.is_some(), "sasl.username"),
            (self.password.is_some(), "sasl.password"),
            (self.mechanism.is_some(), "sasl.mechanism"),
        ]
        .into_iter()
        .find_map(|(given, setting)| given.then_some(setting))
    }

    fn tls_setting(&self) -> Option<&'static str> {
        [
            (self.trust.is_some(), "ssl.truststore"),
            (self.keystore.is_some(), "ssl.keystore.location"),
            (self.chain.is_some(), "ssl.keystore.certificate.chain"),
            (self.key.is_some(), "ssl.keystore.key"),
            (
                self.any_host.is_some(),
                "ssl.endpoint.identification.algorithm",
            ),
        ]
        .into_iter()
        .find_map(|(given, setting)| given.then_some(setting))
    }
}
