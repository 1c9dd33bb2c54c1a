//! The settings of this broker as DescribeConfigs tells them: one row a setting, with Kafka's name
//! and type, where its value is, and what it does.
//!
//! Invariants: a value that differs from the default was given when the broker started.
//! Never: changes one; a broker's settings are fixed while it runs.

use crate::BrokerConfig;
use crate::topic_settings::{BrokerName, Kind, SETTINGS, Source};

/// A setting of the broker with its value.
#[derive(Debug)]
pub(crate) struct BrokerSetting {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Null where nothing is given and there is no default.
    pub(crate) value: Option<String>,
    pub(crate) default: Option<String>,
    pub(crate) documentation: &'static str,
}

impl BrokerSetting {
    pub(crate) fn source(&self) -> Source {
        if self.value == self.default {
            Source::Default
        } else {
            Source::Broker
        }
    }
}

macro_rules! settings {
    ($($name:literal: $kind:ident = $value:expr, $doc:literal;)*) => {
        fn own(config: &BrokerConfig, default: &BrokerConfig) -> Vec<BrokerSetting> {
            vec![$(BrokerSetting {
                name: $name,
                kind: Kind::$kind,
                value: Some(read(config, $value)),
                default: Some(read(default, $value)),
                documentation: $doc,
            }),*]
        }
    };
}

fn read<T: ToString>(config: &BrokerConfig, value: impl Fn(&BrokerConfig) -> T) -> String {
    value(config).to_string()
}

settings! {
    "auto.create.topics.enable": Boolean = |config| config.auto_create_topics_enable,
        "Whether Metadata creates a missing topic where the client lets it.";
    "broker.id": Int = |config| config.node_id,
        "The older name of node.id.";
    "checkpoint.interval.ms": Long = |config| config.checkpoint_interval_ms,
        "How often partition files are synced and the journal is recycled. Not a setting of Kafka.";
    "connections.max.idle.ms": Long = |config| config.connections_max_idle_ms,
        "How long nothing may move on a connection before it is closed.";
    "default.replication.factor": Int = |_| 1,
        "Replicas of a topic that does not say: there is one node.";
    "durability": String = |config| config.durability,
        "What an acknowledgement promises: sync, interval, os or memory. Not a setting of Kafka.";
    "fetch.answers.max.bytes": Long = |config| config.fetch_answers_max_bytes,
        "Memory for records that wait until their readers take them. Not a setting of Kafka.";
    "group.consumer.assignors": List = |_| "uniform,range",
        "Who may get which partition, computed by the broker.";
    "group.consumer.heartbeat.interval.ms": Int =
        |config| config.group_consumer_heartbeat_interval_ms,
        "How often a member of the consumer protocol is to be heard of.";
    "group.consumer.max.heartbeat.interval.ms": Int =
        |config| config.group_consumer_max_heartbeat_interval_ms,
        "Longest time between heartbeats that a group may be given.";
    "group.consumer.max.session.timeout.ms": Int =
        |config| config.group_consumer_max_session_timeout_ms,
        "Longest silence of a member that a group may be given.";
    "group.consumer.max.size": Int = |config| config.group_consumer_max_size.min(i32::MAX as usize),
        "Most members of a group of the consumer protocol.";
    "group.consumer.min.heartbeat.interval.ms": Int =
        |config| config.group_consumer_min_heartbeat_interval_ms,
        "Shortest time between heartbeats that a group may be given.";
    "group.consumer.min.session.timeout.ms": Int =
        |config| config.group_consumer_min_session_timeout_ms,
        "Shortest silence of a member that a group may be given.";
    "group.consumer.session.timeout.ms": Int = |config| config.group_consumer_session_timeout_ms,
        "How long a member of the consumer protocol may be silent.";
    "group.initial.rebalance.delay.ms": Int = |config| config.group_initial_rebalance_delay_ms,
        "How long the first rebalance of an empty group waits for more members.";
    "group.max.session.timeout.ms": Int = |config| config.group_max_session_timeout_ms,
        "Longest session timeout that a member may ask for.";
    "group.max.size": Int = |config| config.group_max_size.min(i32::MAX as usize),
        "Most members of a group.";
    "group.min.session.timeout.ms": Int = |config| config.group_min_session_timeout_ms,
        "Shortest session timeout that a member may ask for.";
    "log.cleaner.backoff.ms": Long = |config| config.log_cleaner_backoff_ms,
        "How long after one round of compaction the next one begins.";
    "log.cleaner.dedupe.buffer.size": Long = |config| config.log_cleaner_dedupe_buffer_size,
        "Memory for the keys of the log that is compacted, while it is.";
    "log.cleaner.enable": Boolean = |config| config.log_cleaner_enable,
        "Whether topics whose cleanup.policy asks for it are compacted.";
    "log.flush.scheduler.interval.ms": Long = |_| i64::MAX,
        "How often partitions are synced by time. The durability mode decides here.";
    "log.retention.check.interval.ms": Long = |config| config.log_retention_check_interval_ms,
        "How often the broker looks for segments to delete.";
    "log.retention.hours": Int = |_| 168,
        "What log.retention.ms is where it is not given, in hours.";
    "log.roll.hours": Int = |_| 168,
        "What log.roll.ms is where it is not given, in hours.";
    "log.roll.jitter.hours": Int = |_| 0,
        "What log.roll.jitter.ms is where it is not given, in hours.";
    "max.connections": Int = |config| config.connections_max.min(i32::MAX as usize),
        "TCP connections beyond this many are closed at once.";
    "max.incremental.fetch.session.cache.slots": Int =
        |config| config.max_incremental_fetch_session_cache_slots.min(i32::MAX as usize),
        "Most incremental fetch sessions.";
    "node.id": Int = |config| config.node_id,
        "The number of this node.";
    "num.partitions": Int = |config| config.num_partitions,
        "Partitions of a topic that does not say.";
    "offset.metadata.max.bytes": Int = |config| config.offset_metadata_max_bytes,
        "Longest metadata of a committed offset.";
    "offsets.retention.check.interval.ms": Long =
        |config| config.offsets_retention_check_interval_ms,
        "How often the broker looks for offsets that nobody needs any longer.";
    "offsets.retention.minutes": Int = |config| config.offsets_retention_ms / 60_000,
        "How long the offsets of a group without members are kept.";
    "offsets.topic.num.partitions": Int = |config| config.offsets_topic_num_partitions,
        "Partitions of __consumer_offsets; fixed when the directory is created.";
    "offsets.topic.replication.factor": Int = |_| 1,
        "Replicas of __consumer_offsets: there is one node.";
    "producer.id.expiration.ms": Int = |config| config.producer_id_expiration_ms,
        "Silence after which a partition forgets a producer.";
    "queued.max.request.bytes": Long = |config| config.queued_max_request_bytes,
        "Memory for requests above 4 KiB that are being read or are under way.";
    "socket.request.max.bytes": Int = |config| config.socket_request_max_bytes,
        "Largest request.";
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": Int =
        |config| config.transaction_abort_timed_out_scan_ms,
        "How often the broker looks for transactions that have timed out.";
    "transaction.max.timeout.ms": Int = |config| config.transaction_max_timeout_ms,
        "Longest transaction timeout that a producer may ask for.";
    "transaction.partition.verification.enable": Boolean =
        |config| config.transaction_partition_verification_enable,
        "Whether batches of older clients are checked against their transaction.";
    "transaction.remove.expired.transaction.cleanup.interval.ms": Int =
        |config| config.transaction_remove_expired_scan_ms,
        "How often the broker looks for transactional ids to forget.";
    "transaction.state.log.min.isr": Int = |_| 1,
        "Replicas that must have a record of __transaction_state: there is one node.";
    "transaction.state.log.num.partitions": Int = |config| config.transaction_state_log_num_partitions,
        "Partitions of __transaction_state; fixed when the directory is created.";
    "transaction.state.log.replication.factor": Int = |_| 1,
        "Replicas of __transaction_state: there is one node.";
    "transactional.id.expiration.ms": Int = |config| config.transactional_id_expiration_ms,
        "Silence after which a transactional id is forgotten.";
}

/// Every setting of the broker, by name: its own, and what its topics inherit. Its data are in
/// `directory`.
pub(crate) fn settings(config: &BrokerConfig, directory: String) -> Vec<BrokerSetting> {
    let mut settings = own(config, &BrokerConfig::default());
    settings.push(BrokerSetting {
        name: "log.dirs",
        kind: Kind::String,
        value: Some(directory),
        default: None,
        documentation: "Where the data are.",
    });
    for setting in SETTINGS {
        let Some(name) = setting.broker else { continue };
        let default = match name {
            BrokerName::Same(_) => Some(setting.default.to_owned()),
            BrokerName::Unset(_) => None,
        };
        let given = config.log_setting(name.name());
        settings.push(BrokerSetting {
            name: name.name(),
            kind: setting.kind,
            value: given.or_else(|| default.clone()),
            default,
            documentation: setting.documentation,
        });
    }
    settings.sort_by_key(|setting| setting.name);
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_one_row_and_a_default_broker_has_nothing_but_defaults() {
        let settings = settings(&BrokerConfig::default(), "data".to_owned());
        for pair in settings.windows(2) {
            assert_ne!(pair[0].name, pair[1].name);
        }
        for setting in &settings {
            let is_given = setting.source() == Source::Broker;
            assert_eq!(is_given, setting.name == "log.dirs", "{}", setting.name);
            assert!(setting.documentation.ends_with('.'), "{}", setting.name);
        }
    }
}
