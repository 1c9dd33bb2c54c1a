//! Settings by Kafka's name: `("linger.ms", "5")` instead of a typed call.
//!
//! Each kind of client has a table, one row a setting; the settings that all share are here.
//!
//! Invariants: a name that no table holds, and a value that its setting cannot take, is an error
//! that names both; what is set by name has the effect of the typed call.
//! Never: a name that is accepted and has no effect.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_protocol::Compression;

use crate::cluster::millis;
use crate::config::ClientConfig;
use crate::error::ConfigError;

/// One setting: its name, and what giving it a value does.
pub(crate) struct Setting<C> {
    pub(crate) name: &'static str,
    pub(crate) set: fn(&mut C, &str) -> Result<(), &'static str>,
}

/// What all clients share.
const SHARED: &[Setting<ClientConfig>] = &[
    Setting {
        name: "client.id",
        set: |config, value| text(value).map(|id| config.client_id = id),
    },
    Setting {
        name: "request.timeout.ms",
        set: |config, value| duration(value).map(|time| config.request_timeout = time),
    },
    Setting {
        name: "socket.connection.setup.timeout.ms",
        set: |config, value| duration(value).map(|time| config.connect_timeout = time),
    },
    Setting {
        name: "reconnect.backoff.ms",
        set: |config, value| duration(value).map(|time| config.reconnect_backoff = time),
    },
    Setting {
        name: "reconnect.backoff.max.ms",
        set: |config, value| duration(value).map(|time| config.reconnect_backoff_max = time),
    },
    Setting {
        name: "retry.backoff.ms",
        set: |config, value| duration(value).map(|time| config.retry_backoff = time),
    },
    Setting {
        name: "retry.backoff.max.ms",
        set: |config, value| duration(value).map(|time| config.retry_backoff_max = time),
    },
    Setting {
        name: "metadata.max.age.ms",
        set: |config, value| duration(value).map(|time| config.metadata_max_age = time),
    },
    Setting {
        name: "allow.auto.create.topics",
        set: |config, value| boolean(value).map(|allow| config.allow_auto_create_topics = allow),
    },
];

/// Sets what the table of `kind` or the shared one holds under `name`.
pub(crate) fn set<C>(
    kind: &'static str,
    table: &[Setting<C>],
    (config, shared): (&mut C, fn(&mut C) -> &mut ClientConfig),
    name: &str,
    value: &str,
) -> Result<(), ConfigError> {
    let invalid = |reason| ConfigError::Invalid {
        setting: format!("{name}={value}"),
        reason,
    };
    if let Some(setting) = table.iter().find(|setting| setting.name == name) {
        return (setting.set)(config, value).map_err(invalid);
    }
    if let Some(setting) = SHARED.iter().find(|setting| setting.name == name) {
        return (setting.set)(shared(config), value).map_err(invalid);
    }
    if shared(config).security.set(name, value)? {
        return Ok(());
    }
    if name == "bootstrap.servers" {
        return Err(invalid("the address is what connect(..) is given"));
    }
    let own = table.iter().map(|setting| setting.name);
    Err(unknown(kind, name, own.chain(names())))
}

/// The names of the settings that all clients share.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    SHARED.iter().map(|setting| setting.name)
}

fn unknown(
    kind: &'static str,
    name: &str,
    known: impl Iterator<Item = &'static str>,
) -> ConfigError {
    let mut known: Vec<&str> = known.collect();
    known.sort_unstable();
    ConfigError::Unknown {
        setting: name.to_owned(),
        kind,
        known: known.join(", "),
    }
}

impl ClientConfig {
    /// Sets one of the settings that all clients share by Kafka's name.
    ///
    /// # Errors
    /// A name that is no such setting, or a value that it cannot take.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        set("client", &[], (self, itself), name, value)
    }

    /// The settings that all clients share, by Kafka's name.
    #[must_use]
    pub fn effective(&self) -> BTreeMap<&'static str, String> {
        let ms = |time| millis(time).to_string();
        BTreeMap::from([
            ("client.id", self.client_id.clone()),
            ("request.timeout.ms", ms(self.request_timeout)),
            (
                "socket.connection.setup.timeout.ms",
                ms(self.connect_timeout),
            ),
            ("reconnect.backoff.ms", ms(self.reconnect_backoff)),
            ("reconnect.backoff.max.ms", ms(self.reconnect_backoff_max)),
            ("retry.backoff.ms", ms(self.retry_backoff)),
            ("retry.backoff.max.ms", ms(self.retry_backoff_max)),
            ("metadata.max.age.ms", ms(self.metadata_max_age)),
            (
                "allow.auto.create.topics",
                self.allow_auto_create_topics.to_string(),
            ),
        ])
    }
}

fn itself(config: &mut ClientConfig) -> &mut ClientConfig {
    config
}

/// A duration in milliseconds.
pub(crate) fn duration(value: &str) -> Result<Duration, &'static str> {
    number(value).map(Duration::from_millis)
}

/// A number that is not negative.
pub(crate) fn number<N: TryFrom<u64>>(value: &str) -> Result<N, &'static str> {
    let number: u64 = value
        .trim()
        .parse()
        .map_err(|_| "is not a whole number from 0 on")?;
    N::try_from(number).map_err(|_| "is too large")
}

/// `true` or `false`.
pub(crate) fn boolean(value: &str) -> Result<bool, &'static str> {
    match value.trim().to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("is neither true nor false"),
    }
}

/// Any text but none.
pub(crate) fn text(value: &str) -> Result<String, &'static str> {
    match value.trim() {
        "" => Err("must not be empty"),
        text => Ok(text.to_owned()),
    }
}

/// A codec by Kafka's name.
pub(crate) fn codec(value: &str) -> Result<Compression, &'static str> {
    let name = value.trim().to_ascii_lowercase();
    name.parse()
        .map_err(|_| "is none of none, gzip, snappy, lz4, zstd")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shared_setting_can_be_set_and_read_under_its_name() {
        let mut config = ClientConfig::default();
        let names: Vec<&str> = names().collect();
        assert_eq!(
            config.effective().into_keys().collect::<Vec<_>>(),
            {
                let mut sorted = names.clone();
                sorted.sort_unstable();
                sorted
            },
            "what can be set can be read"
        );
        for name in names {
            let value = match name {
                "client.id" => "someone",
                "allow.auto.create.topics" => "false",
                _ => "4321",
            };
            config.set(name, value).expect("a value that fits");
            assert_eq!(config.effective()[name], value, "{name}");
        }
    }

    #[test]
    fn a_mistake_names_the_setting_and_what_is_known() {
        let mut config = ClientConfig::default();
        let mut refused =
            |name: &str, value: &str| config.set(name, value).unwrap_err().to_string();
        let text = refused("retry.backof.ms", "5");
        assert!(
            text.contains("retry.backof.ms") && text.contains("retry.backoff.ms"),
            "{text}"
        );
        let text = refused("retry.backoff.ms", "soon");
        assert!(text.contains("retry.backoff.ms=soon"), "{text}");
        let text = refused("retry.backoff.ms", "-1");
        assert!(text.contains("whole number"), "{text}");
        let text = refused("allow.auto.create.topics", "yes");
        assert!(text.contains("neither true nor false"), "{text}");
        let text = refused("security.protocol", "TLS");
        assert!(text.contains("SASL_SSL"), "{text}");
        let text = refused("bootstrap.servers", "here:9092");
        assert!(text.contains("connect(..)"), "{text}");
    }
}
