//! The consumer's settings and how to give them.
//!
//! Invariants: defaults are Kafka's, except that only committed data is read and nothing is
//! committed automatically; a combination that cannot work is refused before anything connects.
//! Never: connects (the builder's last step does, in `consumer.rs`).

use std::sync::Arc;
use std::time::Duration;

use super::assignor::{Assignor, CooperativeSticky, Range, common_protocol};
use super::group_protocol::{ASSIGNORS, GroupProtocol, HEARTBEAT_INTERVAL, SESSION_TIMEOUT};
use super::read_committed::Isolation;
use super::reset::AutoOffsetReset;
use crate::config::ClientConfig;
use crate::error::ConfigError;

/// The settings of a consumer. Kafka's names in brackets.
#[derive(Clone, Debug)]
pub struct ConsumerConfig {
    /// Settings shared by all clients.
    pub client: ClientConfig,
    /// The group whose offsets are used, and which `subscribe` joins (`group.id`).
    pub group_id: Option<String>,
    /// Makes the member static: a restarted instance takes its place at once
    /// (`group.instance.id`).
    pub group_instance_id: Option<String>,
    /// How the group shares its partitions (`group.protocol`, default classic).
    pub group_protocol: GroupProtocol,
    /// The coordinator's assignor that this member votes for, under the consumer protocol
    /// (`group.remote.assignor`, default: the coordinator's first).
    pub group_remote_assignor: Option<String>,
    /// What may be seen (`isolation.level`, default here read_committed).
    pub isolation: Isolation,
    /// Where to begin without a valid position (`auto.offset.reset`, default latest).
    pub auto_offset_reset: AutoOffsetReset,
    /// Whether a position that the log does not hold is an error instead of a reason to reset. Not
    /// a Kafka setting; default false, as Kafka does it. A reset skips what retention has removed,
    /// and reads again what a shorter log still has.
    pub out_of_range_fails: bool,
    /// Most records of one poll (`max.poll.records`, 500).
    pub max_poll_records: usize,
    /// Longest time between polls of a group member (`max.poll.interval.ms`, 300 s).
    pub max_poll_interval: Duration,
    /// A member that is not heard for this long is out (`session.timeout.ms`, 45 s).
    pub session_timeout: Duration,
    /// Time between heartbeats (`heartbeat.interval.ms`, 3 s).
    pub heartbeat_interval: Duration,
    /// Whether positions are committed in the background (`enable.auto.commit`, default here
    /// false).
    pub enable_auto_commit: bool,
    /// Time between those commits (`auto.commit.interval.ms`, 5 s).
    pub auto_commit_interval: Duration,
    /// The broker waits until it has this much (`fetch.min.bytes`, 1).
    pub fetch_min_bytes: i32,
    /// Most bytes of one answer (`fetch.max.bytes`, 50 MiB).
    pub fetch_max_bytes: i32,
    /// Longest wait of the broker for new data (`fetch.max.wait.ms`, 500 ms).
    pub fetch_max_wait: Duration,
    /// Most bytes of one partition in an answer, and the amount that is kept ready for `poll` by
    /// partition (`max.partition.fetch.bytes`, 1 MiB).
    pub max_partition_fetch_bytes: i32,
    /// Nothing is fetched while this much is ready for `poll`, all partitions together but for
    /// paused ones. Not a Kafka setting; 64 MiB. A record in use keeps its whole answer in memory
    /// beyond that.
    pub fetch_buffer_bytes: usize,
    /// What paused partitions keep of what was fetched, all together; what is beyond is dropped
    /// and fetched again after they go on. Not a Kafka setting; 256 MiB.
    pub paused_buffer_bytes: usize,
    /// Whether checksums are verified (`check.crcs`, true).
    pub check_crcs: bool,
    /// Most bytes that one batch may decompress to. Not a Kafka setting; 64 MiB.
    pub max_decompressed_bytes: usize,
    /// Budget of calls that ask a broker, commits included (`default.api.timeout.ms`, 60 s).
    pub default_api_timeout: Duration,
    /// Ways to share partitions, in order of preference (`partition.assignment.strategy`: range,
    /// cooperative-sticky).
    pub assignors: Vec<Arc<dyn Assignor>>,
    /// Where this client stands (`client.rack`); not empty. Where leaders select replicas by it,
    /// the nearest one is read.
    pub client_rack: Option<String>,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        ConsumerConfig {
            client: ClientConfig::default(),
            group_id: None,
            group_instance_id: None,
            group_protocol: GroupProtocol::Classic,
            group_remote_assignor: None,
            isolation: Isolation::ReadCommitted,
            auto_offset_reset: AutoOffsetReset::Latest,
            out_of_range_fails: false,
            max_poll_records: 500,
            max_poll_interval: Duration::from_secs(300),
            session_timeout: Duration::from_secs(45),
            heartbeat_interval: Duration::from_secs(3),
            enable_auto_commit: false,
            auto_commit_interval: Duration::from_secs(5),
            fetch_min_bytes: 1,
            fetch_max_bytes: 50 << 20,
            fetch_max_wait: Duration::from_millis(500),
            max_partition_fetch_bytes: 1 << 20,
            fetch_buffer_bytes: 64 << 20,
            paused_buffer_bytes: 256 << 20,
            check_crcs: true,
            max_decompressed_bytes: 64 << 20,
            default_api_timeout: Duration::from_secs(60),
            assignors: vec![Arc::new(Range), Arc::new(CooperativeSticky::default())],
            client_rack: None,
        }
    }
}

impl ConsumerConfig {
    /// Refuses combinations that cannot work.
    ///
    /// # Errors
    /// Names the settings and what is wrong with them.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.client.security.check()?;
        let invalid = |setting: String, reason| Err(ConfigError::Invalid { setting, reason });
        let contradiction = |first: &str, second: &str, reason| {
            Err(ConfigError::Contradiction {
                first: first.to_owned(),
                second: second.to_owned(),
                reason,
            })
        };
        match (&self.group_id, &self.group_instance_id) {
            (Some(group), _) if group.is_empty() => {
                return invalid("group.id=\"\"".to_owned(), "must not be empty");
            }
            (None, Some(instance)) => {
                let setting = format!("group.instance.id={instance}");
                return contradiction(&setting, "group.id", "a member needs a group to be in");
            }
            _ => {}
        }
        if self.group_instance_id.as_deref() == Some("") {
            return invalid("group.instance.id=\"\"".to_owned(), "must not be empty");
        }
        if self.enable_auto_commit && self.group_id.is_none() {
            return contradiction(
                "enable.auto.commit=true",
                "group.id",
                "commits need a group",
            );
        }
        if self.heartbeat_interval >= self.session_timeout {
            return contradiction(
                &format!(
                    "heartbeat.interval.ms={}",
                    self.heartbeat_interval.as_millis()
                ),
                &format!("session.timeout.ms={}", self.session_timeout.as_millis()),
                "several heartbeats must fit into a session",
            );
        }
        for (name, value) in [
            (
                "max.poll.records",
                i64::try_from(self.max_poll_records).unwrap_or(i64::MAX),
            ),
            ("fetch.max.bytes", i64::from(self.fetch_max_bytes)),
            (
                "max.partition.fetch.bytes",
                i64::from(self.max_partition_fetch_bytes),
            ),
            ("fetch.min.bytes", i64::from(self.fetch_min_bytes) + 1),
        ] {
            if value < 1 {
                return invalid(format!("{name}={value}"), "is too small");
            }
        }
        if common_protocol(&self.assignors).is_none() {
            let names: Vec<&str> = self.assignors.iter().map(|a| a.name()).collect();
            return invalid(
                format!("partition.assignment.strategy={}", names.join(",")),
                "name at least one assignor; all must support one common rebalance protocol",
            );
        }
        super::group_protocol::check(self, &[])
    }
}

/// Gives settings one by one; [`ConsumerBuilder::connect`] makes the consumer.
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing before connect(..)"]
pub struct ConsumerBuilder {
    pub(super) config: ConsumerConfig,
    /// The first mistake of a setting given by name.
    pub(super) mistake: Option<ConfigError>,
    /// Settings of the classic protocol alone that were given, be it with their default.
    pub(super) given: Vec<&'static str>,
}

impl ConsumerBuilder {
    /// Takes a whole set of settings.
    pub fn config(mut self, config: ConsumerConfig) -> Self {
        self.config = config;
        self
    }

    /// Settings shared by all clients.
    pub fn client(mut self, client: ClientConfig) -> Self {
        self.config.client = client;
        self
    }

    /// `client.id`: shown in the broker's logs.
    pub fn client_id(mut self, client_id: impl Into<String>) -> Self {
        self.config.client.client_id = client_id.into();
        self
    }

    /// `group.id`: the group to join, and whose offsets are used.
    pub fn group_id(mut self, group_id: impl Into<String>) -> Self {
        self.config.group_id = Some(group_id.into());
        self
    }

    /// `group.instance.id`: makes the member static.
    pub fn group_instance_id(mut self, instance: impl Into<String>) -> Self {
        self.config.group_instance_id = Some(instance.into());
        self
    }

    /// `group.protocol`: default classic.
    pub fn group_protocol(mut self, protocol: GroupProtocol) -> Self {
        self.config.group_protocol = protocol;
        self
    }

    /// `group.remote.assignor`: the coordinator's assignor that this member votes for, under the
    /// consumer protocol.
    pub fn group_remote_assignor(mut self, assignor: impl Into<String>) -> Self {
        self.config.group_remote_assignor = Some(assignor.into());
        self
    }

    /// `isolation.level`: default read_committed.
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.config.isolation = isolation;
        self
    }

    /// `auto.offset.reset`: default latest.
    pub fn auto_offset_reset(mut self, reset: AutoOffsetReset) -> Self {
        self.config.auto_offset_reset = reset;
        self
    }

    /// Makes a position that the log does not hold an error of `poll`, whatever
    /// `auto.offset.reset` says: default false.
    pub fn out_of_range_fails(mut self, fails: bool) -> Self {
        self.config.out_of_range_fails = fails;
        self
    }

    /// `max.poll.records`: default 500.
    pub fn max_poll_records(mut self, records: usize) -> Self {
        self.config.max_poll_records = records;
        self
    }

    /// `max.poll.interval.ms`: default 300 000.
    pub fn max_poll_interval_ms(mut self, ms: u64) -> Self {
        self.config.max_poll_interval = Duration::from_millis(ms);
        self
    }

    /// `session.timeout.ms`: default 45 000.
    pub fn session_timeout_ms(mut self, ms: u64) -> Self {
        self.config.session_timeout = Duration::from_millis(ms);
        self.given.push(SESSION_TIMEOUT);
        self
    }

    /// `heartbeat.interval.ms`: default 3 000.
    pub fn heartbeat_interval_ms(mut self, ms: u64) -> Self {
        self.config.heartbeat_interval = Duration::from_millis(ms);
        self.given.push(HEARTBEAT_INTERVAL);
        self
    }

    /// `enable.auto.commit`: default false here. Never together with exactly-once.
    pub fn enable_auto_commit(mut self, enabled: bool) -> Self {
        self.config.enable_auto_commit = enabled;
        self
    }

    /// `auto.commit.interval.ms`: default 5 000.
    pub fn auto_commit_interval_ms(mut self, ms: u64) -> Self {
        self.config.auto_commit_interval = Duration::from_millis(ms);
        self
    }

    /// `fetch.min.bytes`: default 1.
    pub fn fetch_min_bytes(mut self, bytes: i32) -> Self {
        self.config.fetch_min_bytes = bytes;
        self
    }

    /// `fetch.max.bytes`: default 50 MiB.
    pub fn fetch_max_bytes(mut self, bytes: i32) -> Self {
        self.config.fetch_max_bytes = bytes;
        self
    }

    /// `fetch.max.wait.ms`: default 500.
    pub fn fetch_max_wait_ms(mut self, ms: u64) -> Self {
        self.config.fetch_max_wait = Duration::from_millis(ms);
        self
    }

    /// `max.partition.fetch.bytes`: default 1 MiB.
    pub fn max_partition_fetch_bytes(mut self, bytes: i32) -> Self {
        self.config.max_partition_fetch_bytes = bytes;
        self
    }

    /// Bytes kept ready for `poll`, all partitions together but for paused ones: default 64 MiB.
    pub fn fetch_buffer_bytes(mut self, bytes: usize) -> Self {
        self.config.fetch_buffer_bytes = bytes;
        self
    }

    /// Bytes kept of paused partitions, all together: default 256 MiB. What is beyond is dropped
    /// and fetched again after they go on.
    pub fn paused_buffer_bytes(mut self, bytes: usize) -> Self {
        self.config.paused_buffer_bytes = bytes;
        self
    }

    /// `check.crcs`: default true.
    pub fn check_crcs(mut self, check: bool) -> Self {
        self.config.check_crcs = check;
        self
    }

    /// `default.api.timeout.ms`: default 60 000.
    pub fn default_api_timeout_ms(mut self, ms: u64) -> Self {
        self.config.default_api_timeout = Duration::from_millis(ms);
        self
    }

    /// `request.timeout.ms`: default 30 000.
    pub fn request_timeout_ms(mut self, ms: u64) -> Self {
        self.config.client.request_timeout = Duration::from_millis(ms);
        self
    }

    /// `partition.assignment.strategy`: default range, cooperative-sticky.
    pub fn assignors(mut self, assignors: Vec<Arc<dyn Assignor>>) -> Self {
        self.config.assignors = assignors;
        self.given.push(ASSIGNORS);
        self
    }

    /// `client.rack`: where this client stands, in the words of the brokers' `broker.rack`; an
    /// empty text says nothing. Leaders that select replicas by rack send it to one nearby, whose
    /// copy is then read (KIP-392). It is also told to the group: to the assignor, where that looks
    /// at racks (those that come with this crate do not), and to the coordinator.
    pub fn client_rack(mut self, rack: impl Into<String>) -> Self {
        self.config.client_rack = Some(rack.into()).filter(|rack: &String| !rack.is_empty());
        self
    }

    /// Seed of all randomness (jitter of pauses).
    pub fn seed(mut self, seed: u64) -> Self {
        self.config.client.seed = seed;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut ConsumerConfig)) -> String {
        let mut config = ConsumerConfig::default();
        change(&mut config);
        config
            .check()
            .map_or_else(|error| error.to_string(), |()| "accepted".to_owned())
    }

    #[test]
    fn settings_that_cannot_work_together_are_refused_by_name() {
        assert_eq!(refusal(|_| {}), "accepted");
        assert!(refusal(|c| c.group_id = Some(String::new())).contains("group.id"));
        assert!(
            refusal(|c| c.group_instance_id = Some("i".into())).contains("group.instance.id=i")
        );
        assert!(refusal(|c| c.enable_auto_commit = true).contains("enable.auto.commit"));
        assert!(
            refusal(|c| c.heartbeat_interval = c.session_timeout)
                .contains("heartbeat.interval.ms=45000")
        );
        assert!(refusal(|c| c.max_poll_records = 0).contains("max.poll.records"));
        assert!(refusal(|c| c.assignors.clear()).contains("partition.assignment.strategy"));
    }

    #[test]
    fn the_defaults_are_the_safe_ones() {
        let config = ConsumerConfig::default();
        assert_eq!(config.isolation, Isolation::ReadCommitted);
        assert!(!config.enable_auto_commit && config.check_crcs);
    }
}
