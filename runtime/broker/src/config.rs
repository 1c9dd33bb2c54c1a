//! The broker's settings, named as Kafka names them, with Kafka's defaults unless the comment says
//! otherwise.
//!
//! Invariants: a value that cannot work is refused at open, with the setting's name.
//! Never: read after open from anywhere but the `Node`.

use crate::topic_settings::{INTERNAL_SEGMENT_BYTES, SETTINGS, Setting};
use crate::{BrokerError, Clock};
use millstream_log::Durability;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Where blocking work runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// The journal is synced on a thread of its own, other disk work on tokio's blocking threads.
    Threads,
    /// Everything runs on the caller's runtime: for simulations in virtual time. Each sync takes
    /// `sync_delay` of that time.
    Runtime {
        /// How long a sync of the journal takes in virtual time.
        sync_delay: Duration,
    },
}

/// Settings of one broker. `BrokerConfig::default()` is a broker that is safe to use as it is.
#[derive(Debug, Clone)]
pub struct BrokerConfig {
    /// `node.id`. Default 1.
    pub node_id: i32,
    /// The cluster id of a fresh directory; `None` draws one from `seed` and the clock. An existing
    /// directory must have this one.
    pub cluster_id: Option<String>,
    /// `advertised.listeners`: host and port that Metadata answers with. `None`: the address that
    /// the client itself connected to.
    pub advertised: Option<(String, u16)>,
    /// What an acknowledgement promises. Default `sync`: it survives a power cut (Kafka's default
    /// is `os`).
    pub durability: Durability,
    /// Where blocking work runs. Default: threads.
    pub placement: Placement,
    /// The clock. Default: the machine's wall time at start plus elapsed time.
    pub clock: Clock,
    /// Seeds everything that is random (member ids, topic ids of a fresh directory). Default: from
    /// the clock.
    pub seed: Option<u64>,
    /// `auto.create.topics.enable`: Metadata and Produce create a missing topic. Default true.
    pub auto_create_topics_enable: bool,
    /// `num.partitions` of a topic that does not say. Default 1.
    pub num_partitions: i32,
    /// `message.max.bytes`: largest record batch. Default 1,048,588.
    pub message_max_bytes: i32,
    /// What holds for topics without a setting of their own, under the broker's names for them
    /// (`log.retention.ms`, `log.cleanup.policy`, …). Default: nothing, so Kafka's defaults.
    pub log_settings: BTreeMap<String, String>,
    /// What one client batch may decompress to, in bytes. Default 64 MiB. No setting in Kafka.
    pub decompressed_batch_bytes_max: usize,
    /// `socket.request.max.bytes`: largest frame. Default 100 MiB.
    pub socket_request_max_bytes: usize,
    /// `queued.max.request.bytes`: what requests above 4 KiB that are being read or are under way
    /// may take of memory, all connections together. Default 256 MiB (Kafka: no limit).
    pub queued_max_request_bytes: usize,
    /// `fetch.answers.max.bytes`: what records above 64 KiB an answer may take of memory until
    /// their readers have taken them, all connections together. Default 256 MiB. No setting in
    /// Kafka.
    pub fetch_answers_max_bytes: usize,
    /// `max.incremental.fetch.session.cache.slots`: most incremental fetch sessions; 0 for none.
    /// Default 1,000.
    pub max_incremental_fetch_session_cache_slots: usize,
    /// Most requests of one connection that are under way at once. Default 64. No setting in Kafka.
    pub connection_in_flight_max: usize,
    /// `max.connections`: TCP connections beyond this are closed at once. Default 2,048; never more
    /// than half of the files that the process may have open.
    pub connections_max: usize,
    /// `connections.max.idle.ms`: a TCP connection on which nothing moves for this long is closed.
    /// Default 600,000.
    pub connections_max_idle_ms: i64,
    /// `log.retention.check.interval.ms`. Default 300,000.
    pub log_retention_check_interval_ms: i64,
    /// `log.cleaner.enable`: compacts topics whose `cleanup.policy` asks for it. Default true.
    pub log_cleaner_enable: bool,
    /// `log.cleaner.backoff.ms`: how long after one round of compaction the next one begins.
    /// Default 15,000.
    pub log_cleaner_backoff_ms: i64,
    /// `log.cleaner.dedupe.buffer.size`: memory for the keys of the log that is compacted, while it
    /// is. Default 64 MiB (Kafka: 128 MiB).
    pub log_cleaner_dedupe_buffer_size: usize,
    /// How often partition files are synced and the journal is recycled. Default 10,000. No setting
    /// in Kafka.
    pub checkpoint_interval_ms: i64,
    /// `producer.id.expiration.ms`. Default 86,400,000.
    pub producer_id_expiration_ms: i64,
    /// `transaction.state.log.num.partitions`. Default 4 (Kafka: 50); fixed when the directory is
    /// created.
    pub transaction_state_log_num_partitions: i32,
    /// `transaction.max.timeout.ms`. Default 900,000.
    pub transaction_max_timeout_ms: i32,
    /// `transactional.id.expiration.ms`. Default 604,800,000.
    pub transactional_id_expiration_ms: i64,
    /// `transaction.abort.timed.out.transaction.cleanup.interval.ms`. Default 500 (Kafka: 10,000).
    pub transaction_abort_timed_out_scan_ms: i64,
    /// `transaction.remove.expired.transaction.cleanup.interval.ms`. Default 3,600,000.
    pub transaction_remove_expired_scan_ms: i64,
    /// `transaction.partition.verification.enable`. Default true.
    pub transaction_partition_verification_enable: bool,
    /// `offsets.topic.num.partitions`. Default 4 (Kafka: 50); fixed when the directory is created.
    pub offsets_topic_num_partitions: i32,
    /// `offset.metadata.max.bytes`. Default 4,096.
    pub offset_metadata_max_bytes: usize,
    /// `offsets.retention.minutes`, in milliseconds. Default 7 days.
    pub offsets_retention_ms: i64,
    /// `offsets.retention.check.interval.ms`. Default 600,000.
    pub offsets_retention_check_interval_ms: i64,
    /// `group.min.session.timeout.ms`. Default 6,000.
    pub group_min_session_timeout_ms: i32,
    /// `group.max.session.timeout.ms`. Default 1,800,000.
    pub group_max_session_timeout_ms: i32,
    /// `group.initial.rebalance.delay.ms`. Default 0 (Kafka: 3,000): a single node has nothing to
    /// wait for.
    pub group_initial_rebalance_delay_ms: i32,
    /// `group.max.size`. Default unlimited.
    pub group_max_size: usize,
    /// `group.consumer.session.timeout.ms`. Default 45,000.
    pub group_consumer_session_timeout_ms: i32,
    /// `group.consumer.heartbeat.interval.ms`. Default 5,000.
    pub group_consumer_heartbeat_interval_ms: i32,
    /// `group.consumer.min.session.timeout.ms`: shortest one that a group may be given. Default
    /// 45,000.
    pub group_consumer_min_session_timeout_ms: i32,
    /// `group.consumer.max.session.timeout.ms`: longest one. Default 60,000.
    pub group_consumer_max_session_timeout_ms: i32,
    /// `group.consumer.min.heartbeat.interval.ms`: shortest one that a group may be given. Default
    /// 5,000.
    pub group_consumer_min_heartbeat_interval_ms: i32,
    /// `group.consumer.max.heartbeat.interval.ms`: longest one. Default 15,000.
    pub group_consumer_max_heartbeat_interval_ms: i32,
    /// `group.consumer.max.size`. Default unlimited.
    pub group_consumer_max_size: usize,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            node_id: 1,
            cluster_id: None,
            advertised: None,
            durability: Durability::Sync,
            placement: Placement::Threads,
            clock: Clock::system(),
            seed: None,
            auto_create_topics_enable: true,
            num_partitions: 1,
            message_max_bytes: 1_048_588,
            log_settings: BTreeMap::new(),
            decompressed_batch_bytes_max: 64 << 20,
            socket_request_max_bytes: 100 << 20,
            queued_max_request_bytes: 256 << 20,
            fetch_answers_max_bytes: 256 << 20,
            max_incremental_fetch_session_cache_slots: 1_000,
            connection_in_flight_max: 64,
            connections_max: 2_048,
            connections_max_idle_ms: 600_000,
            log_retention_check_interval_ms: 300_000,
            log_cleaner_enable: true,
            log_cleaner_backoff_ms: 15_000,
            log_cleaner_dedupe_buffer_size: 64 << 20,
            checkpoint_interval_ms: 10_000,
            producer_id_expiration_ms: 86_400_000,
            transaction_state_log_num_partitions: 4,
            transaction_max_timeout_ms: 900_000,
            transactional_id_expiration_ms: 604_800_000,
            transaction_abort_timed_out_scan_ms: 500,
            transaction_remove_expired_scan_ms: 3_600_000,
            transaction_partition_verification_enable: true,
            offsets_topic_num_partitions: 4,
            offset_metadata_max_bytes: 4_096,
            offsets_retention_ms: 604_800_000,
            offsets_retention_check_interval_ms: 600_000,
            group_min_session_timeout_ms: 6_000,
            group_max_session_timeout_ms: 1_800_000,
            group_initial_rebalance_delay_ms: 0,
            group_max_size: usize::MAX,
            group_consumer_session_timeout_ms: 45_000,
            group_consumer_heartbeat_interval_ms: 5_000,
            group_consumer_min_session_timeout_ms: 45_000,
            group_consumer_max_session_timeout_ms: 60_000,
            group_consumer_min_heartbeat_interval_ms: 5_000,
            group_consumer_max_heartbeat_interval_ms: 15_000,
            group_consumer_max_size: usize::MAX,
        }
    }
}

impl BrokerConfig {
    /// Gives a setting by Kafka's name: `advertised.listeners`, one of the group coordinator's
    /// (`group.…`, `offsets.retention.minutes`), or one that holds for topics without a setting of
    /// their own. Whether the value can work is found when the broker is opened.
    ///
    /// # Errors
    /// Where there is no setting of that name, one of the group coordinator is given no whole
    /// number, or `advertised.listeners` other than one `PLAINTEXT://HOST:PORT` that a client can
    /// connect to.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), BrokerError> {
        let number = |name| {
            value.parse::<i32>().map_err(|_| BrokerError::Config {
                name,
                reason: format!("'{value}' is no whole number"),
            })
        };
        if name == ADVERTISED_LISTENERS {
            self.advertised = Some(advertised(value)?);
        } else if name == OFFSETS_RETENTION_MINUTES {
            self.offsets_retention_ms = i64::from(number(OFFSETS_RETENTION_MINUTES)?) * 60_000;
        } else if let Some((name, field)) = self.number(name) {
            *field = number(name)?;
        } else if log_settings().any(|(known, _)| known == name) {
            self.log_settings.insert(name.to_owned(), value.to_owned());
        } else {
            return Err(unknown(name));
        }
        Ok(())
    }

    /// A setting of the group coordinator, or the one for topics that has a field of its own.
    fn number(&mut self, name: &str) -> Option<(&'static str, &mut i32)> {
        macro_rules! named {
            ($($known:literal => $field:ident,)*) => {
                match name {
                    $($known => Some(($known, &mut self.$field)),)*
                    _ => None,
                }
            };
        }
        named! {
            "group.consumer.heartbeat.interval.ms" => group_consumer_heartbeat_interval_ms,
            "group.consumer.max.heartbeat.interval.ms" => group_consumer_max_heartbeat_interval_ms,
            "group.consumer.max.session.timeout.ms" => group_consumer_max_session_timeout_ms,
            "group.consumer.min.heartbeat.interval.ms" => group_consumer_min_heartbeat_interval_ms,
            "group.consumer.min.session.timeout.ms" => group_consumer_min_session_timeout_ms,
            "group.consumer.session.timeout.ms" => group_consumer_session_timeout_ms,
            "group.initial.rebalance.delay.ms" => group_initial_rebalance_delay_ms,
            "group.max.session.timeout.ms" => group_max_session_timeout_ms,
            "group.min.session.timeout.ms" => group_min_session_timeout_ms,
            "message.max.bytes" => message_max_bytes,
        }
    }

    /// Refuses what cannot work, naming the setting.
    pub(crate) fn validate(&self) -> Result<(), BrokerError> {
        let positive: [(&'static str, i64); 14] = [
            ("connections.max.idle.ms", self.connections_max_idle_ms),
            ("log.cleaner.backoff.ms", self.log_cleaner_backoff_ms),
            ("num.partitions", self.num_partitions.into()),
            ("message.max.bytes", self.message_max_bytes.into()),
            (
                "log.retention.check.interval.ms",
                self.log_retention_check_interval_ms,
            ),
            ("checkpoint.interval.ms", self.checkpoint_interval_ms),
            (
                "group.consumer.session.timeout.ms",
                self.group_consumer_session_timeout_ms.into(),
            ),
            (
                "group.consumer.heartbeat.interval.ms",
                self.group_consumer_heartbeat_interval_ms.into(),
            ),
            (
                "transaction.state.log.num.partitions",
                self.transaction_state_log_num_partitions.into(),
            ),
            (
                "transaction.max.timeout.ms",
                self.transaction_max_timeout_ms.into(),
            ),
            (
                "transaction.abort.timed.out.transaction.cleanup.interval.ms",
                self.transaction_abort_timed_out_scan_ms,
            ),
            (
                "offsets.topic.num.partitions",
                self.offsets_topic_num_partitions.into(),
            ),
            (
                "offsets.retention.check.interval.ms",
                self.offsets_retention_check_interval_ms,
            ),
            (OFFSETS_RETENTION_MINUTES, self.offsets_retention_ms),
        ];
        for (name, value) in positive {
            if value <= 0 {
                return Err(BrokerError::Config {
                    name,
                    reason: format!("{value} is not positive; give at least 1"),
                });
            }
        }
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms {
            return Err(BrokerError::Config {
                name: "group.min.session.timeout.ms",
                reason: format!(
                    "{} is above group.max.session.timeout.ms {}",
                    self.group_min_session_timeout_ms, self.group_max_session_timeout_ms
                ),
            });
        }
        self.validate_group_bounds()?;
        self.validate_memory()?;
        self.validate_log_settings()
    }

    fn validate_group_bounds(&self) -> Result<(), BrokerError> {
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms {
            return Err(BrokerError::Config {
                name: "group.consumer.heartbeat.interval.ms",
                reason: format!(
                    "{} is not below group.consumer.session.timeout.ms {}",
                    self.group_consumer_heartbeat_interval_ms,
                    self.group_consumer_session_timeout_ms
                ),
            });
        }
        let bounded = [
            (
                "group.consumer.session.timeout.ms",
                self.group_consumer_session_timeout_ms,
                self.group_consumer_min_session_timeout_ms,
                self.group_consumer_max_session_timeout_ms,
            ),
            (
                "group.consumer.heartbeat.interval.ms",
                self.group_consumer_heartbeat_interval_ms,
                self.group_consumer_min_heartbeat_interval_ms,
                self.group_consumer_max_heartbeat_interval_ms,
            ),
        ];
        if self.group_initial_rebalance_delay_ms < 0 {
            return Err(BrokerError::Config {
                name: "group.initial.rebalance.delay.ms",
                reason: "it is negative; give at least 0".to_owned(),
            });
        }
        for (name, value, least, most) in bounded {
            if value < least || value > most {
                return Err(BrokerError::Config {
                    name,
                    reason: format!("{value} is not between its bounds, {least} and {most}"),
                });
            }
        }
        Ok(())
    }

    fn validate_memory(&self) -> Result<(), BrokerError> {
        if self.fetch_answers_max_bytes == 0 {
            return Err(BrokerError::Config {
                name: "fetch.answers.max.bytes",
                reason: "0 leaves no room for records; give at least 1".to_owned(),
            });
        }
        if self.queued_max_request_bytes < self.socket_request_max_bytes {
            return Err(BrokerError::Config {
                name: "queued.max.request.bytes",
                reason: format!(
                    "{} is below socket.request.max.bytes {}: such a request could never be read",
                    self.queued_max_request_bytes, self.socket_request_max_bytes
                ),
            });
        }
        Ok(())
    }

    fn validate_log_settings(&self) -> Result<(), BrokerError> {
        for (given, value) in &self.log_settings {
            let known = log_settings().find(|(name, _)| name == given);
            let Some((name, setting)) = known else {
                return Err(unknown(given));
            };
            setting
                .plain(name, value)
                .map_err(|reason| BrokerError::Config { name, reason })?;
        }
        Ok(())
    }

    /// A setting for topics that was given to this broker, by the broker's name for it.
    pub(crate) fn log_setting(&self, name: &str) -> Option<String> {
        match name {
            MESSAGE_MAX_BYTES => Some(self.message_max_bytes.to_string()),
            _ => self.log_settings.get(name).cloned(),
        }
    }
}

const ADVERTISED_LISTENERS: &str = "advertised.listeners";

/// Host and port of the one listener that there is, as Kafka writes it.
fn advertised(value: &str) -> Result<(String, u16), BrokerError> {
    let refused = |why: &str| BrokerError::Config {
        name: ADVERTISED_LISTENERS,
        reason: format!("'{value}' {why}: give PLAINTEXT://HOST:PORT"),
    };
    let (protocol, address) = value
        .trim()
        .split_once("://")
        .ok_or_else(|| refused("names no listener"))?;
    if !protocol.eq_ignore_ascii_case("PLAINTEXT") {
        return Err(refused("is not the listener that there is"));
    }
    if address.contains(',') {
        return Err(refused("has more than one"));
    }
    let (host, port) = address
        .rsplit_once(':')
        .ok_or_else(|| refused("has no port"))?;
    let port = port.parse().ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| refused("has no port that a client can connect to"))?;
    let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let host = bracketed.unwrap_or(host);
    let meta = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    if host.is_empty() || meta || (bracketed.is_none() && host.contains([':', '/'])) {
        return Err(refused("has no host that a client can connect to"));
    }
    Ok((host.to_owned(), port))
}

/// A name under which nothing can be given. What a topic calls otherwise than its broker does is
/// what is meant most often.
fn unknown(name: &str) -> BrokerError {
    let of_topics = SETTINGS.iter().find(|setting| setting.name == name);
    let of_broker = of_topics.and_then(|setting| setting.broker);
    let hint = match of_broker {
        Some(of_broker) => format!("the broker's, for all topics, is {}", of_broker.name()),
        None => {
            let known = log_settings().map(|(known, _)| known);
            let known: Vec<&str> = known.chain([MESSAGE_MAX_BYTES]).collect();
            format!(
                "there are {ADVERTISED_LISTENERS}, group.*, {OFFSETS_RETENTION_MINUTES} and, for \
                 topics without one of their own, {}",
                known.join(", ")
            )
        }
    };
    BrokerError::UnknownSetting {
        name: name.to_owned(),
        hint,
    }
}

const OFFSETS_RETENTION_MINUTES: &str = "offsets.retention.minutes";
/// A field of its own has this one.
const MESSAGE_MAX_BYTES: &str = "message.max.bytes";

/// What `log_settings` may hold.
fn log_settings() -> impl Iterator<Item = (&'static str, &'static Setting)> {
    SETTINGS
        .iter()
        .filter(|setting| setting.name != INTERNAL_SEGMENT_BYTES)
        .filter_map(|setting| Some((setting.broker?.name(), setting)))
        .filter(|(name, _)| *name != MESSAGE_MAX_BYTES)
}

impl Placement {
    /// Runs blocking disk work where it belongs. Not cancellation-safe: the work goes on if the
    /// future is dropped.
    pub(crate) async fn blocking<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, BrokerError> {
        match self {
            Self::Runtime { .. } => Ok(work()),
            Self::Threads => tokio::task::spawn_blocking(work)
                .await
                .map_err(|_| BrokerError::Stopped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_given_by_their_names_and_checked_when_the_broker_opens() {
        let mut config = BrokerConfig::default();
        config
            .set("group.initial.rebalance.delay.ms", "3000")
            .expect("a number");
        config.set("log.retention.ms", "5").expect("is kept");
        assert_eq!(config.group_initial_rebalance_delay_ms, 3_000);
        assert_eq!(config.log_setting("log.retention.ms").as_deref(), Some("5"));
        config.validate().expect("it can work");
        for (name, value) in [
            ("group.initial.rebalance.delay.ms", "-1"),
            ("group.consumer.session.timeout.ms", "44999"),
            ("group.consumer.max.heartbeat.interval.ms", "4999"),
            ("log.retention.ms", "soon"),
            ("offsets.retention.minutes", "0"),
        ] {
            let mut config = BrokerConfig::default();
            config.set(name, value).expect("is kept");
            let refused = config.validate().expect_err("refused").to_string();
            let names = ["group.consumer.heartbeat.interval.ms", name];
            assert!(names.iter().any(|name| refused.contains(name)), "{refused}");
        }
        for (name, hint) in [
            ("no.such", "log.retention.ms"),
            ("retention.ms", "is log.retention.ms"),
            ("max.message.bytes", "is message.max.bytes"),
        ] {
            let refused = config.set(name, "1").expect_err("refused").to_string();
            assert!(
                refused.contains(&format!("no setting {name};")),
                "{refused}"
            );
            assert!(refused.contains(hint), "{refused}");
            let mut config = BrokerConfig::default();
            config.log_settings.insert(name.to_owned(), "1".to_owned());
            let at_open = config.validate().expect_err("refused").to_string();
            assert_eq!(at_open, refused);
        }
        config
            .set("offsets.retention.minutes", "2147483647")
            .expect("minutes");
        assert_eq!(config.offsets_retention_ms, 2_147_483_647 * 60_000);
        config.validate().expect("it can work");
        let refused = config.set("group.min.session.timeout.ms", "x");
        let refused = refused.expect_err("no number").to_string();
        assert!(
            refused.contains("group.min.session.timeout.ms"),
            "{refused}"
        );
    }

    #[test]
    fn a_listener_is_advertised_as_kafka_writes_it() {
        for (value, host, port) in [
            ("PLAINTEXT://proxy.example:9092", "proxy.example", 9092),
            (" plaintext://10.0.0.7:1", "10.0.0.7", 1),
            ("PLAINTEXT://[2001:db8::7]:65535", "2001:db8::7", 65_535),
        ] {
            let mut config = BrokerConfig::default();
            config.set("advertised.listeners", value).expect("taken");
            assert_eq!(config.advertised, Some((host.to_owned(), port)), "{value}");
        }
        for value in [
            "",
            "proxy.example:9092",
            "SASL_SSL://proxy.example:9092",
            "PLAINTEXT://proxy.example",
            "PLAINTEXT://proxy.example:0",
            "PLAINTEXT://proxy.example:65536",
            "PLAINTEXT://:9092",
            "PLAINTEXT://0.0.0.0:9092",
            "PLAINTEXT://[::]:9092",
            "PLAINTEXT://2001:db8::7:9092",
            "PLAINTEXT://a:1,PLAINTEXT://b:2",
        ] {
            let refused = BrokerConfig::default().set("advertised.listeners", value);
            let refused = refused.expect_err(value).to_string();
            assert!(refused.contains("advertised.listeners"), "{refused}");
            assert!(refused.contains("PLAINTEXT://HOST:PORT"), "{refused}");
        }
    }
}
