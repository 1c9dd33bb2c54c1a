//! The producer's settings by Kafka's name, and what is said about a set that is legal but unsafe.
//!
//! Invariants: what can be set can be read under the same name; a warning names the settings and
//! what they can do.
//! Never: a warning about the defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use super::config::{Acks, ProducerBuilder, ProducerConfig};
use crate::cluster::millis;
use crate::config::ClientConfig;
use crate::settings::{self, Setting, boolean, codec, duration, number, text};

const SETTINGS: &[Setting<ProducerBuilder>] = &[
    Setting {
        name: "acks",
        set: |builder, value| acks(value).map(|acks| builder.acks = Some(acks)),
    },
    Setting {
        name: "enable.idempotence",
        set: |builder, value| boolean(value).map(|on| builder.idempotence = Some(on)),
    },
    Setting {
        name: "transactional.id",
        set: |builder, value| text(value).map(|id| builder.transactional_id = Some(id.into())),
    },
    Setting {
        name: "transaction.timeout.ms",
        set: |builder, value| time(value, &mut builder.transaction_timeout),
    },
    Setting {
        name: "batch.size",
        set: |builder, value| number(value).map(|bytes| builder.batch_size = Some(bytes)),
    },
    Setting {
        name: "linger.ms",
        set: |builder, value| time(value, &mut builder.linger),
    },
    Setting {
        name: "compression.type",
        set: |builder, value| codec(value).map(|codec| builder.compression = Some(codec)),
    },
    Setting {
        name: "buffer.memory",
        set: |builder, value| number(value).map(|bytes| builder.buffer_memory = Some(bytes)),
    },
    Setting {
        name: "max.block.ms",
        set: |builder, value| time(value, &mut builder.max_block),
    },
    Setting {
        name: "max.request.size",
        set: |builder, value| number(value).map(|bytes| builder.max_request_size = Some(bytes)),
    },
    Setting {
        name: "max.in.flight.requests.per.connection",
        set: |builder, value| number(value).map(|count| builder.max_in_flight = Some(count)),
    },
    Setting {
        name: "retries",
        set: |builder, value| number(value).map(|count| builder.retries = Some(count)),
    },
    Setting {
        name: "delivery.timeout.ms",
        set: |builder, value| time(value, &mut builder.delivery_timeout),
    },
];

fn client(builder: &mut ProducerBuilder) -> &mut ClientConfig {
    &mut builder.client
}

fn time(value: &str, field: &mut Option<Duration>) -> Result<(), &'static str> {
    *field = Some(duration(value)?);
    Ok(())
}

fn acks(value: &str) -> Result<Acks, &'static str> {
    match value.trim() {
        "0" => Ok(Acks::None),
        "1" => Ok(Acks::Leader),
        "all" | "-1" => Ok(Acks::All),
        _ => Err("is none of 0, 1, all"),
    }
}

impl ProducerBuilder {
    /// Sets a setting by Kafka's name, those that all clients share included. The first mistake is
    /// what `build` and `connect` answer.
    ///
    /// ```
    /// # use millstream_client::Producer;
    /// let config = Producer::builder()
    ///     .set("linger.ms", 20)
    ///     .set("compression.type", "lz4")
    ///     .build()?;
    /// assert_eq!(config.effective()["linger.ms"], "20");
    /// let mistake = Producer::builder().set("linger", 20).build().unwrap_err();
    /// assert!(mistake.to_string().contains("linger.ms"));
    /// # Ok::<(), millstream_client::ConfigError>(())
    /// ```
    #[must_use]
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        let value = value.to_string();
        let set = settings::set("producer", SETTINGS, (&mut self, client), name, &value);
        if self.mistake.is_none() {
            self.mistake = set.err();
        }
        self
    }
}

impl ProducerConfig {
    /// Every setting that has a name of Kafka's, with its value.
    #[must_use]
    pub fn effective(&self) -> BTreeMap<&'static str, String> {
        let ms = |time| millis(time).to_string();
        let mut settings = self.client.effective();
        settings.extend([
            ("acks", self.acks.to_string()),
            ("enable.idempotence", self.idempotence.to_string()),
            (
                "transactional.id",
                self.transactional_id.as_deref().unwrap_or("").to_owned(),
            ),
            ("transaction.timeout.ms", ms(self.transaction_timeout)),
            ("batch.size", self.batch_size.to_string()),
            ("linger.ms", ms(self.linger)),
            ("compression.type", self.compression.to_string()),
            ("buffer.memory", self.buffer_memory.to_string()),
            ("max.block.ms", ms(self.max_block)),
            ("max.request.size", self.max_request_size.to_string()),
            (
                "max.in.flight.requests.per.connection",
                self.max_in_flight.to_string(),
            ),
            ("retries", self.retries.to_string()),
            ("delivery.timeout.ms", ms(self.delivery_timeout)),
        ]);
        settings
    }

    /// What these settings can do to records, where that is more than the defaults allow; empty
    /// for the defaults. Logged when the producer is made.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(setting) = &self.gave_way {
            warnings.push(format!(
                "enable.idempotence is off because of {setting}; leave {setting} out to have it, or \
                 say enable.idempotence=false"
            ));
        }
        if self.idempotence {
            return warnings;
        }
        let mut dangers = Vec::new();
        if self.acks != Acks::All {
            dangers.push("acknowledged records can be lost with the leader");
        }
        // Without an answer to miss nothing is sent again.
        let again = self.retries > 0 && self.acks != Acks::None;
        if again {
            dangers.push("a record whose acknowledgement is lost is written twice");
        }
        if again && self.max_in_flight > 1 {
            dangers.push("records of a partition can change their order");
        }
        if !dangers.is_empty() {
            warnings.push(format!(
                "enable.idempotence=false, acks={}, retries={}, \
                 max.in.flight.requests.per.connection={}: {}",
                self.acks,
                self.retries,
                self.max_in_flight,
                dangers.join("; "),
            ));
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::producer::Producer;

    #[test]
    fn a_buffer_that_holds_no_batch_is_refused() {
        let builder = ProducerBuilder::default().batch_size(2_000);
        let refused = builder.clone().buffer_memory(1_999).build();
        let text = refused.unwrap_err().to_string();
        for part in ["batch.size=2000", "buffer.memory=1999"] {
            assert!(text.contains(part), "{text}");
        }
        builder.buffer_memory(2_000).build().unwrap();
    }

    // Rows 86, 87: the defaults of Kafka 4.3, under its names.
    #[test]
    fn the_defaults_are_those_of_kafka() {
        let config = Producer::builder().build().unwrap();
        let settings = config.effective();
        for (name, value) in [
            ("acks", "all"),
            ("enable.idempotence", "true"),
            ("batch.size", "16384"),
            ("linger.ms", "5"),
            ("buffer.memory", "33554432"),
            ("compression.type", "none"),
            ("max.request.size", "1048576"),
            ("retries", "2147483647"),
            ("delivery.timeout.ms", "120000"),
            ("request.timeout.ms", "30000"),
            ("retry.backoff.ms", "100"),
            ("retry.backoff.max.ms", "1000"),
            ("reconnect.backoff.ms", "50"),
            ("reconnect.backoff.max.ms", "1000"),
            ("max.in.flight.requests.per.connection", "5"),
            ("max.block.ms", "60000"),
            ("metadata.max.age.ms", "300000"),
            ("transaction.timeout.ms", "60000"),
        ] {
            assert_eq!(settings[name], value, "{name}");
        }
    }

    #[test]
    fn every_setting_can_be_set_and_read_under_its_name() {
        for setting in SETTINGS {
            let name = setting.name;
            let (value, shown) = match name {
                "acks" => ("-1", "all"),
                "enable.idempotence" => ("true", "true"),
                "compression.type" => ("ZSTD", "zstd"),
                "max.in.flight.requests.per.connection" => ("4", "4"),
                "transactional.id" => ("orders-1", "orders-1"),
                "delivery.timeout.ms" => ("40000", "40000"),
                _ => ("17000", "17000"),
            };
            let config = Producer::builder().set(name, value).build();
            assert_eq!(config.unwrap().effective()[name], shown, "{name}");
        }
    }

    #[test]
    fn mistakes_are_answered_when_the_producer_is_made() {
        let refused = |name: &str, value: &str| {
            let builder = Producer::builder().set(name, value).set("linger.ms", 1);
            builder.build().unwrap_err().to_string()
        };
        assert!(refused("acks", "2").contains("acks=2"));
        let text = refused("batch.bytes", "9");
        assert!(
            text.contains("producer") && text.contains("batch.size"),
            "{text}"
        );
        let text = Producer::builder()
            .set("enable.idempotence", true)
            .set("acks", 1)
            .build()
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("enable.idempotence=true") && text.contains("acks=1"),
            "{text}"
        );
    }
}
