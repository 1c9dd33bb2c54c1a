//! The consumer's settings by Kafka's name.
//!
//! Invariants: what can be set can be read under the same name.
//! Never: checks how settings go together (`config.rs` does).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::assignor::{Assignor, CooperativeSticky, Range, RoundRobin, Sticky};
use super::config::{ConsumerBuilder, ConsumerConfig};
use super::group_protocol::{self, GroupProtocol};
use super::read_committed::Isolation;
use super::reset::AutoOffsetReset;
use crate::cluster::millis;
use crate::config::ClientConfig;
use crate::settings::{self, Setting, boolean, duration, number, text};

const SETTINGS: &[Setting<ConsumerConfig>] = &[
    Setting {
        name: "group.id",
        set: |config, value| text(value).map(|id| config.group_id = Some(id)),
    },
    Setting {
        name: "group.instance.id",
        set: |config, value| text(value).map(|id| config.group_instance_id = Some(id)),
    },
    Setting {
        name: "group.protocol",
        set: |config, value| protocol(value).map(|protocol| config.group_protocol = protocol),
    },
    Setting {
        name: "group.remote.assignor",
        set: |config, value| text(value).map(|name| config.group_remote_assignor = Some(name)),
    },
    Setting {
        name: "isolation.level",
        set: |config, value| isolation(value).map(|level| config.isolation = level),
    },
    Setting {
        name: "auto.offset.reset",
        set: |config, value| reset(value).map(|reset| config.auto_offset_reset = reset),
    },
    Setting {
        name: "max.poll.records",
        set: |config, value| number(value).map(|count| config.max_poll_records = count),
    },
    Setting {
        name: "max.poll.interval.ms",
        set: |config, value| duration(value).map(|time| config.max_poll_interval = time),
    },
    Setting {
        name: "session.timeout.ms",
        set: |config, value| duration(value).map(|time| config.session_timeout = time),
    },
    Setting {
        name: "heartbeat.interval.ms",
        set: |config, value| duration(value).map(|time| config.heartbeat_interval = time),
    },
    Setting {
        name: "enable.auto.commit",
        set: |config, value| boolean(value).map(|on| config.enable_auto_commit = on),
    },
    Setting {
        name: "auto.commit.interval.ms",
        set: |config, value| duration(value).map(|time| config.auto_commit_interval = time),
    },
    Setting {
        name: "fetch.min.bytes",
        set: |config, value| number(value).map(|bytes| config.fetch_min_bytes = bytes),
    },
    Setting {
        name: "fetch.max.bytes",
        set: |config, value| number(value).map(|bytes| config.fetch_max_bytes = bytes),
    },
    Setting {
        name: "fetch.max.wait.ms",
        set: |config, value| duration(value).map(|time| config.fetch_max_wait = time),
    },
    Setting {
        name: "max.partition.fetch.bytes",
        set: |config, value| number(value).map(|bytes| config.max_partition_fetch_bytes = bytes),
    },
    Setting {
        name: "check.crcs",
        set: |config, value| boolean(value).map(|check| config.check_crcs = check),
    },
    Setting {
        name: "default.api.timeout.ms",
        set: |config, value| duration(value).map(|time| config.default_api_timeout = time),
    },
    Setting {
        name: "partition.assignment.strategy",
        set: |config, value| assignors(value).map(|assignors| config.assignors = assignors),
    },
    Setting {
        name: "client.rack",
        set: |config, value| {
            config.client_rack = text(value).ok();
            Ok(())
        },
    },
];

fn client(config: &mut ConsumerConfig) -> &mut ClientConfig {
    &mut config.client
}

/// As in Kafka, in letters of either size.
fn protocol(value: &str) -> Result<GroupProtocol, &'static str> {
    match value.trim().to_ascii_lowercase().as_str() {
        "classic" => Ok(GroupProtocol::Classic),
        "consumer" => Ok(GroupProtocol::Consumer),
        _ => Err("is neither classic nor consumer"),
    }
}

fn isolation(value: &str) -> Result<Isolation, &'static str> {
    match value.trim() {
        "read_committed" => Ok(Isolation::ReadCommitted),
        "read_uncommitted" => Ok(Isolation::ReadUncommitted),
        _ => Err("is neither read_committed nor read_uncommitted"),
    }
}

fn reset(value: &str) -> Result<AutoOffsetReset, &'static str> {
    let read = value.trim().parse();
    read.map_err(|_| "is none of earliest, latest, none, by_duration:<PnDTnHnMn.nS>")
}

/// Assignors by their names or by those of Kafka's classes, in order of preference.
fn assignors(value: &str) -> Result<Vec<Arc<dyn Assignor>>, &'static str> {
    value
        .split(',')
        .map(|name| match name.trim().rsplit('.').next() {
            Some("range" | "RangeAssignor") => Ok(Arc::new(Range) as Arc<dyn Assignor>),
            Some("cooperative-sticky" | "CooperativeStickyAssignor") => {
                Ok(Arc::new(CooperativeSticky::default()) as Arc<dyn Assignor>)
            }
            Some("roundrobin" | "RoundRobinAssignor") => Ok(Arc::new(RoundRobin) as _),
            Some("sticky" | "StickyAssignor") => Ok(Arc::new(Sticky::default()) as _),
            _ => Err("names none of range, roundrobin, sticky, cooperative-sticky"),
        })
        .collect()
}

impl ConsumerBuilder {
    /// Sets a setting by Kafka's name, those that all clients share included. The first mistake is
    /// what `connect` answers.
    ///
    /// ```
    /// # use millstream_client::Consumer;
    /// let builder = Consumer::builder()
    ///     .set("group.id", "readers")
    ///     .set("auto.offset.reset", "earliest");
    /// ```
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        let value = value.to_string();
        let set = settings::set(
            "consumer",
            SETTINGS,
            (&mut self.config, client),
            name,
            &value,
        );
        if set.is_ok() {
            self.given.extend(group_protocol::classic_setting(name));
        }
        if self.mistake.is_none() {
            self.mistake = set.err();
        }
        self
    }
}

impl ConsumerConfig {
    /// Every setting that has a name of Kafka's, with its value.
    #[must_use]
    pub fn effective(&self) -> BTreeMap<&'static str, String> {
        let ms = |time| millis(time).to_string();
        let or_none = |text: &Option<String>| text.clone().unwrap_or_default();
        let assignors: Vec<&str> = self.assignors.iter().map(|a| a.name()).collect();
        let isolation = match self.isolation {
            Isolation::ReadCommitted => "read_committed",
            Isolation::ReadUncommitted => "read_uncommitted",
        };
        let mut settings = self.client.effective();
        settings.extend([
            ("group.id", or_none(&self.group_id)),
            ("group.instance.id", or_none(&self.group_instance_id)),
            ("group.protocol", self.group_protocol.name().to_owned()),
            (
                "group.remote.assignor",
                or_none(&self.group_remote_assignor),
            ),
            ("isolation.level", isolation.to_owned()),
            ("auto.offset.reset", self.auto_offset_reset.to_string()),
            ("max.poll.records", self.max_poll_records.to_string()),
            ("max.poll.interval.ms", ms(self.max_poll_interval)),
            ("session.timeout.ms", ms(self.session_timeout)),
            ("heartbeat.interval.ms", ms(self.heartbeat_interval)),
            ("enable.auto.commit", self.enable_auto_commit.to_string()),
            ("auto.commit.interval.ms", ms(self.auto_commit_interval)),
            ("fetch.min.bytes", self.fetch_min_bytes.to_string()),
            ("fetch.max.bytes", self.fetch_max_bytes.to_string()),
            ("fetch.max.wait.ms", ms(self.fetch_max_wait)),
            (
                "max.partition.fetch.bytes",
                self.max_partition_fetch_bytes.to_string(),
            ),
            ("check.crcs", self.check_crcs.to_string()),
            ("default.api.timeout.ms", ms(self.default_api_timeout)),
            ("partition.assignment.strategy", assignors.join(",")),
            ("client.rack", or_none(&self.client_rack)),
        ]);
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_can_be_set_and_read_under_its_name() {
        for setting in SETTINGS {
            let name = setting.name;
            let value = match name {
                "group.id" | "group.instance.id" | "client.rack" => "some-name",
                "group.remote.assignor" => "uniform",
                "group.protocol" => "consumer",
                "isolation.level" => "read_uncommitted",
                "auto.offset.reset" => "by_duration:PT3600S",
                "enable.auto.commit" => "true",
                "check.crcs" => "false",
                "partition.assignment.strategy" => "cooperative-sticky,range",
                _ => "1234",
            };
            let builder = ConsumerBuilder::default().set(name, value);
            assert_eq!(builder.mistake.map(|m| m.to_string()), None);
            assert_eq!(builder.config.effective()[name], value, "{name}");
        }
    }

    // Row 144: the names of Kafka 4.3 with its defaults, but for the two that are safer here.
    #[test]
    fn the_defaults_are_those_of_kafka_but_for_isolation_and_automatic_commits() {
        let settings = ConsumerConfig::default().effective();
        for (name, value) in [
            ("group.protocol", "classic"),
            ("isolation.level", "read_committed"),
            ("enable.auto.commit", "false"),
            ("auto.offset.reset", "latest"),
            ("auto.commit.interval.ms", "5000"),
            ("session.timeout.ms", "45000"),
            ("heartbeat.interval.ms", "3000"),
            ("max.poll.interval.ms", "300000"),
            ("max.poll.records", "500"),
            ("fetch.min.bytes", "1"),
            ("fetch.max.bytes", "52428800"),
            ("fetch.max.wait.ms", "500"),
            ("max.partition.fetch.bytes", "1048576"),
            ("check.crcs", "true"),
            ("default.api.timeout.ms", "60000"),
            ("request.timeout.ms", "30000"),
            ("partition.assignment.strategy", "range,cooperative-sticky"),
        ] {
            assert_eq!(settings[name], value, "{name}");
        }
    }

    #[tokio::test]
    async fn mistakes_are_answered_when_the_consumer_is_made() {
        for (name, value, part) in [
            ("auto.offset.reset", "oldest", "auto.offset.reset=oldest"),
            ("auto.offset.reset", "by_duration:-PT1H", "by_duration:"),
            ("group", "readers", "group.id"),
            ("partition.assignment.strategy", "magic", "magic"),
            ("fetch.max.bytes", "9999999999", "too large"),
            ("group.protocol", "streams", "neither classic nor consumer"),
        ] {
            let builder = ConsumerBuilder::default().set(name, value);
            let refused = builder.connect("127.0.0.1:9").await;
            let text = refused.map(|_| ()).unwrap_err().to_string();
            assert!(text.contains(part), "{text}");
        }
        let builder = ConsumerBuilder::default()
            .set("group.protocol", "CONSUMER")
            .set("session.timeout.ms", 45_000);
        let refused = builder.connect("127.0.0.1:9").await.map(|_| ());
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("session.timeout.ms contradicts group.protocol=consumer"));
        let classes = "org.apache.kafka.clients.consumer.RangeAssignor";
        let builder = ConsumerBuilder::default().set("partition.assignment.strategy", classes);
        assert_eq!(
            builder.config.effective()["partition.assignment.strategy"],
            "range"
        );
    }
}
