//! The settings of this broker as DescribeConfigs tells them: one row a setting, with Kafka's name
//! and type, where its value is, and what it does. And which of them change while it runs.
//!
//! Invariants: a value that differs from the default was given, when the broker started or since;
//! a setting that is not read-only is one that the log acts on, or one without effect, and its
//! documentation says which.
//! Never: changes one itself.

use crate::BrokerConfig;
use crate::overrides::{Configs, Holder, Layers};
use crate::refused::Refused;
use crate::topic_settings::{Kind, SETTINGS, Source, setting_of_broker};
use millstream_protocol::ErrorCode;

/// A setting of the broker with its values, the one that counts first.
#[derive(Debug)]
pub(crate) struct BrokerSetting {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// None where nothing is given and there is no default.
    pub(crate) layers: Vec<(Source, String)>,
    pub(crate) read_only: bool,
    pub(crate) documentation: &'static str,
}

impl BrokerSetting {
    pub(crate) fn source(&self) -> Source {
        let first = self.layers.first();
        first.map_or(Source::Default, |(source, _)| *source)
    }

    pub(crate) fn value(&self) -> Option<String> {
        self.layers.first().map(|(_, value)| value.clone())
    }
}

macro_rules! settings {
    ($($name:literal: $kind:ident = $value:expr, $doc:literal;)*) => {
        fn own(config: &BrokerConfig, default: &BrokerConfig) -> Vec<BrokerSetting> {
            vec![$(BrokerSetting {
                name: $name,
                kind: Kind::$kind,
                layers: at_start(read(config, $value), read(default, $value)),
                read_only: true,
                documentation: $doc,
            }),*]
        }
    };
}

fn at_start(value: String, default: String) -> Vec<(Source, String)> {
    let given = (value != default).then_some((Source::Broker, value));
    let default = (Source::Default, default);
    given.into_iter().chain([default]).collect()
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

/// A setting of all brokers that is always there, as Kafka's controllers see to it.
pub(crate) const MIN_INSYNC_REPLICAS: &str = "min.insync.replicas";

/// Settings that change while the broker runs, and do nothing: name, type and default.
const WITHOUT_EFFECT: [(&str, Kind, &str); 7] = [
    ("background.threads", Kind::Int, "10"),
    ("log.cleaner.threads", Kind::Int, "1"),
    ("num.io.threads", Kind::Int, "8"),
    ("num.network.threads", Kind::Int, "3"),
    ("num.recovery.threads.per.data.dir", Kind::Int, "2"),
    ("num.replica.fetchers", Kind::Int, "1"),
    ("sasl.kerberos.min.time.before.relogin", Kind::Long, "60000"),
];

/// Where the broker is: on its disk, and for its clients.
#[derive(Debug, Default)]
pub(crate) struct Places {
    pub(crate) directory: String,
    /// Where it listens; nowhere if it only serves its own process.
    pub(crate) listeners: Option<String>,
    /// Where this client is told to go.
    pub(crate) advertised: Option<String>,
}

/// Every setting of the broker, by name: its own, and what its topics inherit.
pub(crate) fn settings(layers: &Layers<'_>, places: Places) -> Vec<BrokerSetting> {
    let mut settings = own(layers.config(), &BrokerConfig::default());
    let places = [
        (
            "advertised.listeners",
            places.advertised,
            "Where clients are told to go. Where none is given, the address that they came by.",
        ),
        (
            "listeners",
            places.listeners,
            "Where the broker can be reached.",
        ),
        ("log.dirs", Some(places.directory), "Where the data are."),
    ];
    settings.extend(places.map(|(name, value, documentation)| {
        BrokerSetting {
            name,
            kind: Kind::String,
            layers: value
                .map(|value| (Source::Broker, value))
                .into_iter()
                .collect(),
            read_only: true,
            documentation,
        }
    }));
    settings.extend(SETTINGS.iter().filter_map(|setting| {
        Some(BrokerSetting {
            name: setting.broker?.name(),
            kind: setting.kind,
            layers: setting.layers(layers),
            read_only: false,
            documentation: setting.documentation,
        })
    }));
    settings.extend(WITHOUT_EFFECT.map(|(name, kind, default)| {
        let mut layers = layers.of(name);
        layers.push((Source::Default, default.to_owned()));
        BrokerSetting {
            name,
            kind,
            layers,
            read_only: false,
            documentation: "Without effect here.",
        }
    }));
    settings.sort_by_key(|setting| setting.name);
    settings
}

/// What all brokers were given while they ran.
pub(crate) fn of_all_brokers(layers: &Layers<'_>) -> Vec<BrokerSetting> {
    let mut settings = settings(layers, Places::default());
    for setting in &mut settings {
        let of_all = |(source, _): &(Source, String)| *source == Source::AllBrokers;
        setting.layers.retain(of_all);
    }
    settings.retain(|setting| !setting.layers.is_empty());
    settings
}

/// Whether that is the number of this broker.
pub(crate) fn is_this_one(node_id: i32, name: &str) -> Result<(), Refused> {
    match name.parse() == Ok(node_id) {
        true => Ok(()),
        false => Err(Refused::invalid(format!(
            "broker '{name}' is not this one: give {node_id}"
        ))),
    }
}

/// The type of a setting that changes while the broker runs.
pub(crate) fn kind_of(name: &str) -> Result<Kind, Refused> {
    if let Some(setting) = setting_of_broker(name) {
        return Ok(setting.kind);
    }
    let without_effect = WITHOUT_EFFECT.iter().find(|(known, ..)| *known == name);
    if let Some((_, kind, _)) = without_effect {
        return Ok(*kind);
    }
    let default = BrokerConfig::default();
    let fixed = settings(
        &Layers::new(&default, Default::default()),
        Places::default(),
    );
    let is_fixed = fixed.iter().any(|setting| setting.name == name);
    Err(Refused::invalid(match is_fixed {
        true => format!("'{name}' is fixed while the broker runs: give it when it starts"),
        false => format!("'{name}' is no setting of a broker"),
    }))
}

/// The settings of this broker, or of all, in their plain form, or why one of them cannot be given.
pub(crate) fn checked(configs: &Configs, holder: Holder<'_>) -> Result<Configs, Refused> {
    let own_name = configs.contains_key(MIN_INSYNC_REPLICAS);
    if own_name != (holder == Holder::AllBrokers) {
        let message = format!("'{MIN_INSYNC_REPLICAS}' is a setting of all brokers, and stays one");
        return Err(Refused::new(ErrorCode::INVALID_CONFIG, message));
    }
    let mut plain = Configs::new();
    for (name, value) in configs {
        plain.insert(name.clone(), plain_value(name, value)?);
    }
    Ok(plain)
}

/// Whether a broker may have that setting.
pub(crate) fn check(name: &str, value: &str) -> Result<(), String> {
    let plain = plain_value(name, value);
    plain.map(|_| ()).map_err(|refused| refused.message)
}

fn plain_value(name: &str, value: &str) -> Result<String, Refused> {
    let kind = kind_of(name)?;
    let value = match setting_of_broker(name) {
        Some(setting) => setting.plain(name, value),
        None => without_effect(name, kind, value),
    };
    value.map_err(Refused::invalid)
}

fn without_effect(name: &str, kind: Kind, value: &str) -> Result<String, String> {
    let most = match kind {
        Kind::Int => i32::MAX.into(),
        _ => i64::MAX,
    };
    let number = value.trim().parse().ok();
    let number = number.filter(|number: &i64| (1..=most).contains(number));
    number.map_or_else(
        || {
            Err(format!(
                "'{value}' is no value for {name}: give a whole number, at least 1"
            ))
        },
        |number| Ok(number.to_string()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configs(pairs: &[(&str, &str)]) -> Configs {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn every_setting_has_one_row_and_a_default_broker_has_nothing_but_defaults() {
        let config = BrokerConfig::default();
        let places = Places {
            directory: "data".to_owned(),
            ..Places::default()
        };
        let settings = settings(&Layers::new(&config, Default::default()), places);
        for pair in settings.windows(2) {
            assert_ne!(pair[0].name, pair[1].name);
        }
        for setting in &settings {
            let is_given = setting.source() == Source::Broker;
            assert_eq!(is_given, setting.name == "log.dirs", "{}", setting.name);
            assert!(setting.documentation.ends_with('.'), "{}", setting.name);
            let changes = kind_of(setting.name).is_ok();
            assert_eq!(changes, !setting.read_only, "{}", setting.name);
        }
    }

    #[test]
    fn what_cannot_be_given_to_a_running_broker_is_refused_by_name() {
        for (name, value, says) in [
            ("node.id", "2", "fixed"),
            ("num.partitions", "2", "fixed"),
            ("listeners", "PLAINTEXT://:1", "fixed"),
            ("no.such", "1", "no setting"),
            ("retention.ms", "1", "no setting"),
            ("log.retention.ms", "soon", "whole number"),
            ("background.threads", "0", "whole number"),
            ("background.threads", "2147483648", "whole number"),
        ] {
            let refused = checked(&configs(&[(name, value)]), Holder::ThisBroker);
            let refused = refused.expect_err(name);
            assert_eq!(refused.code, ErrorCode::INVALID_REQUEST);
            let message = refused.message;
            assert!(
                message.contains(name) && message.contains(says),
                "{message}"
            );
        }
        let min_insync = [(MIN_INSYNC_REPLICAS, "1")];
        for (given, holder) in [
            (&min_insync[..], Holder::ThisBroker),
            (&[], Holder::AllBrokers),
        ] {
            let refused = checked(&configs(given), holder).expect_err("refused");
            assert_eq!(refused.code, ErrorCode::INVALID_CONFIG);
        }
    }

    #[test]
    fn what_may_be_given_is_kept_in_its_plain_form() {
        let given = [
            ("log.cleanup.policy", "compact , delete"),
            ("num.io.threads", " 09"),
        ];
        let plain = checked(&configs(&given), Holder::ThisBroker).expect("may be given");
        let expected = [
            ("log.cleanup.policy", "compact,delete"),
            ("num.io.threads", "9"),
        ];
        assert_eq!(plain, configs(&expected));
    }
}
