//! The settings that a topic may have: one row a setting, with Kafka's name, type, default and
//! range, the broker's setting that stands in for it, and what it does here.
//!
//! Invariants: a setting that is accepted here is one that the log or the produce handler acts on,
//! or one that has no effect on one node, and its documentation says which.
//! Never: accepts a value that would be ignored where it matters (tiered storage).

use crate::overrides::Layers;
use std::collections::BTreeMap;

/// A setting's type, as DescribeConfigs numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i8)]
pub(crate) enum Kind {
    Boolean = 1,
    String = 2,
    Int = 3,
    Long = 5,
    Double = 6,
    List = 7,
}

/// Where a value comes from, as DescribeConfigs numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i8)]
pub(crate) enum Source {
    /// Given for the topic.
    Topic = 1,
    /// Given to this broker while it ran.
    ThisBroker = 2,
    /// Given to all brokers while they ran.
    AllBrokers = 3,
    /// Given to this broker when it started.
    Broker = 4,
    /// Nobody's choice.
    Default = 5,
    /// Given for the group.
    Group = 8,
}

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) default: &'static str,
    accepts: Accepts,
    /// The broker's setting that holds for topics without a value of their own.
    pub(crate) broker: Option<BrokerName>,
    pub(crate) documentation: &'static str,
}

/// The broker's name for a setting.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BrokerName {
    /// It has the same default.
    Same(&'static str),
    /// It is null unless it is given: a coarser setting of the broker has the default.
    Unset(&'static str),
}

#[derive(Debug)]
enum Accepts {
    /// A whole number in this range.
    Within(i64, i64),
    /// A number between 0 and 1.
    Ratio,
    /// One of these.
    OneOf(&'static [&'static str]),
    /// Some of these, or none, each once, separated by commas.
    SomeOf(&'static [&'static str]),
    /// `*`, or partitions and brokers as in `0:1,1:1`.
    Replicas,
}

use Accepts::{OneOf, Ratio, Replicas, SomeOf, Within};
use BrokerName::{Same, Unset};
use Kind::{Boolean, Double, Int, List, Long, String as Text};

const INT_MAX: i64 = i32::MAX as i64;
const LONG_MAX: i64 = i64::MAX;
const BOOLEANS: &[&str] = &["true", "false"];
const FALSE: &[&str] = &["false"];
/// Hidden unless it is set, as in Kafka: segments smaller than users may ask for.
pub(crate) const INTERNAL_SEGMENT_BYTES: &str = "internal.segment.bytes";

macro_rules! settings {
    ($(
        $name:literal: $kind:ident = $default:literal, $accepts:expr, $broker:expr, $doc:literal;
    )*) => {
        /// Every setting, by name.
        pub(crate) const SETTINGS: &[Setting] = &[$(Setting {
            name: $name,
            kind: $kind,
            default: $default,
            accepts: $accepts,
            broker: $broker,
            documentation: $doc,
        }),*];
    };
}

settings! {
    "cleanup.policy": List = "delete", SomeOf(&["delete", "compact"]),
        Some(Same("log.cleanup.policy")),
        "What becomes of old records: `delete` gives them up by time and size, `compact` keeps the \
         newest of each key; both may be given, and an empty list keeps everything.";
    "compression.gzip.level": Int = "-1", Within(-1, 9), Some(Same("compression.gzip.level")),
        "Level for `compression.type=gzip`. The broker compresses at its own level.";
    "compression.lz4.level": Int = "9", Within(1, 17), Some(Same("compression.lz4.level")),
        "Level for `compression.type=lz4`. The broker compresses at its own level.";
    "compression.type": Text = "producer",
        OneOf(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]),
        Some(Same("compression.type")),
        "Codec of the batches in the log; `producer` keeps each batch as it was sent, any other \
         value makes the broker compress batches anew that come with another codec.";
    "compression.zstd.level": Int = "3", Within(-131_072, 22), Some(Same("compression.zstd.level")),
        "Level for `compression.type=zstd`. The broker compresses at its own level.";
    "delete.retention.ms": Long = "86400000", Within(0, LONG_MAX),
        Some(Same("log.cleaner.delete.retention.ms")),
        "How long a compacted topic keeps the marker of a deleted key.";
    "file.delete.delay.ms": Long = "60000", Within(0, LONG_MAX),
        Some(Same("log.segment.delete.delay.ms")),
        "How long files of deleted segments stay. Here they go at once.";
    "flush.messages": Long = "9223372036854775807", Within(1, LONG_MAX),
        Some(Same("log.flush.interval.messages")),
        "Records between two syncs of a partition. The broker's durability mode decides here.";
    "flush.ms": Long = "9223372036854775807", Within(0, LONG_MAX),
        Some(Unset("log.flush.interval.ms")),
        "Time between two syncs of a partition. The broker's durability mode decides here.";
    "follower.replication.throttled.replicas": List = "", Replicas, None,
        "Replicas whose followers are throttled. Without effect on one node.";
    "index.interval.bytes": Int = "4096", Within(0, INT_MAX), Some(Same("log.index.interval.bytes")),
        "Bytes of log between two entries of the offset index.";
    "internal.segment.bytes": Int = "1073741824", Within(14, INT_MAX), None,
        "For tests: size of a log file, below what segment.bytes allows.";
    "leader.replication.throttled.replicas": List = "", Replicas, None,
        "Replicas whose leaders are throttled. Without effect on one node.";
    "local.retention.bytes": Long = "-2", Within(-2, LONG_MAX),
        Some(Same("log.local.retention.bytes")),
        "Size up to which tiered partitions stay on the disk. Without effect: there are no tiers.";
    "local.retention.ms": Long = "-2", Within(-2, LONG_MAX), Some(Same("log.local.retention.ms")),
        "Time for which tiered segments stay on the disk. Without effect: there are no tiers.";
    "max.compaction.lag.ms": Long = "9223372036854775807", Within(1, LONG_MAX),
        Some(Same("log.cleaner.max.compaction.lag.ms")),
        "How long a record of a compacted topic may stay out of compaction at most.";
    "max.message.bytes": Int = "1048588", Within(0, INT_MAX), Some(Same("message.max.bytes")),
        "Largest record batch that is taken, after compression.";
    "message.timestamp.after.max.ms": Long = "3600000", Within(0, LONG_MAX),
        Some(Same("log.message.timestamp.after.max.ms")),
        "How far the time of a record may lie ahead of the broker's, under CreateTime.";
    "message.timestamp.before.max.ms": Long = "9223372036854775807", Within(0, LONG_MAX),
        Some(Same("log.message.timestamp.before.max.ms")),
        "How far the time of a record may lie behind the broker's, under CreateTime.";
    "message.timestamp.type": Text = "CreateTime", OneOf(&["CreateTime", "LogAppendTime"]),
        Some(Same("log.message.timestamp.type")),
        "Whose time a record carries: its producer's (CreateTime) or the broker's (LogAppendTime).";
    "min.cleanable.dirty.ratio": Double = "0.5", Ratio,
        Some(Same("log.cleaner.min.cleanable.ratio")),
        "Share of the log that is not compacted yet from which on compaction begins.";
    "min.compaction.lag.ms": Long = "0", Within(0, LONG_MAX),
        Some(Same("log.cleaner.min.compaction.lag.ms")),
        "How long a record of a compacted topic stays out of compaction at least.";
    "min.insync.replicas": Int = "1", Within(1, INT_MAX), Some(Same("min.insync.replicas")),
        "Replicas that must have a record before acks=all is answered; never more than there are, \
         which is one here.";
    "preallocate": Boolean = "false", OneOf(BOOLEANS), Some(Same("log.preallocate")),
        "Whether log files get their full size at once. Without effect here.";
    "remote.log.copy.disable": Boolean = "false", OneOf(BOOLEANS), None,
        "Whether a tiered topic stops copying. Without effect: there are no tiers.";
    "remote.log.delete.on.disable": Boolean = "false", OneOf(BOOLEANS), None,
        "Whether tiered data go when tiers are switched off. Without effect: there are no tiers.";
    "remote.storage.enable": Boolean = "false", OneOf(FALSE), None,
        "Tiered storage, which this broker does not have.";
    "retention.bytes": Long = "-1", Within(-1, LONG_MAX), Some(Same("log.retention.bytes")),
        "Size of a partition from which on its oldest segments go; -1 sets no limit.";
    "retention.ms": Long = "604800000", Within(-1, LONG_MAX), Some(Unset("log.retention.ms")),
        "Age from which on segments go; -1 sets no limit.";
    "segment.bytes": Int = "1073741824", Within(1 << 20, INT_MAX), Some(Same("log.segment.bytes")),
        "Size of a log file from which on the next one begins.";
    "segment.index.bytes": Int = "10485760", Within(4, INT_MAX),
        Some(Same("log.index.size.max.bytes")),
        "Size of an index file from which on the next segment begins.";
    "segment.jitter.ms": Long = "0", Within(0, LONG_MAX), Some(Unset("log.roll.jitter.ms")),
        "By how much a segment may end before segment.ms, so that not all do so at once.";
    "segment.ms": Long = "604800000", Within(1, LONG_MAX), Some(Unset("log.roll.ms")),
        "Time after which the next segment begins.";
    "unclean.leader.election.enable": Boolean = "false", OneOf(BOOLEANS),
        Some(Same("unclean.leader.election.enable")),
        "Whether a replica that lacks records may lead. Without effect on one node.";
}

/// The setting of that name.
pub(crate) fn setting(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// The setting for which the broker's of that name stands in.
pub(crate) fn setting_of_broker(name: &str) -> Option<&'static Setting> {
    let is_named = |broker: BrokerName| broker.name() == name;
    SETTINGS
        .iter()
        .find(|setting| setting.broker.is_some_and(is_named))
}

/// The settings in their plain form, or the first that is unknown, out of range or at odds with
/// another, by name.
pub(crate) fn checked(
    configs: &BTreeMap<String, String>,
    broker: &Layers<'_>,
) -> Result<BTreeMap<String, String>, String> {
    let mut plain = BTreeMap::new();
    for (name, value) in configs {
        let setting = setting(name).ok_or_else(|| format!("'{name}' is no topic setting"))?;
        plain.insert(name.clone(), setting.plain(name, value)?);
    }
    let lag = |name| number(name, &plain, broker);
    let (least, most) = (lag("min.compaction.lag.ms"), lag("max.compaction.lag.ms"));
    if least > most {
        return Err(format!(
            "min.compaction.lag.ms ({least}) is above max.compaction.lag.ms ({most})"
        ));
    }
    Ok(plain)
}

fn number(name: &str, own: &BTreeMap<String, String>, broker: &Layers<'_>) -> i64 {
    let inherited = || setting(name).map(|setting| setting.inherited(broker).0);
    let value = own.get(name).cloned().or_else(inherited);
    value
        .and_then(|value| value.parse().ok())
        .unwrap_or_default()
}

/// A setting of a topic as it is in force.
#[derive(Debug)]
pub(crate) struct Effective {
    pub(crate) setting: &'static Setting,
    pub(crate) value: String,
    pub(crate) source: Source,
    /// Where the value comes from, and would come from without that: name, value, source.
    pub(crate) synonyms: Vec<(&'static str, String, Source)>,
}

/// All settings of a topic with these of its own.
pub(crate) fn effective(
    broker: &Layers<'_>,
    own: &BTreeMap<String, String>,
) -> impl Iterator<Item = Effective> {
    SETTINGS
        .iter()
        .filter(|setting| setting.name != INTERNAL_SEGMENT_BYTES || own.contains_key(setting.name))
        .map(|setting| setting.effective(broker, own.get(setting.name)))
}

impl Setting {
    fn effective(&'static self, broker: &Layers<'_>, own: Option<&String>) -> Effective {
        let mut synonyms = Vec::new();
        if let Some(value) = own {
            synonyms.push((self.name, value.clone(), Source::Topic));
        }
        if let Some(name) = self.broker {
            let layers = self.layers(broker).into_iter();
            synonyms.extend(layers.map(|(source, value)| (name.name(), value, source)));
        }
        let (value, source) = match own {
            Some(value) => (value.clone(), Source::Topic),
            None => self.inherited(broker),
        };
        Effective {
            setting: self,
            value,
            source,
            synonyms,
        }
    }

    /// The value of a topic that has none of its own.
    pub(crate) fn inherited(&self, broker: &Layers<'_>) -> (String, Source) {
        let first = self.layers(broker).into_iter().next();
        first.map_or_else(
            || (self.default.to_owned(), Source::Default),
            |(source, value)| (value, source),
        )
    }

    /// The values under the broker's name, the one that counts first; what was given at the start
    /// counts as the default if it is the same.
    pub(crate) fn layers(&self, broker: &Layers<'_>) -> Vec<(Source, String)> {
        let Some(name) = self.broker else {
            return Vec::new();
        };
        let mut layers = broker.of(name.name());
        layers.retain(|(source, value)| *source != Source::Broker || value != self.default);
        if let Same(_) = name {
            layers.push((Source::Default, self.default.to_owned()));
        }
        layers
    }

    /// The value without what does not count in it (spaces, the case of a boolean, leading zeros).
    /// `name` is the one under which it was given.
    pub(crate) fn plain(&self, name: &str, value: &str) -> Result<String, String> {
        let plain = self.accepts.plain(self.kind, value.trim());
        plain.ok_or_else(|| {
            let wanted = self.accepts.describe();
            format!("'{value}' is no value for {name}: give {wanted}")
        })
    }
}

impl BrokerName {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Same(name) | Unset(name) => name,
        }
    }
}

impl Accepts {
    fn plain(&self, kind: Kind, value: &str) -> Option<String> {
        let known = |values: &[&'static str], value: &str| values.contains(&value);
        match self {
            Within(least, most) => {
                let number: i64 = value.parse().ok()?;
                (*least..=*most)
                    .contains(&number)
                    .then(|| number.to_string())
            }
            Ratio => {
                let ratio: f64 = value.parse().ok()?;
                (0.0..=1.0).contains(&ratio).then(|| format!("{ratio:?}"))
            }
            OneOf(values) => {
                let plain = match kind {
                    Boolean => value.to_ascii_lowercase(),
                    _ => value.to_owned(),
                };
                known(values, &plain).then_some(plain)
            }
            SomeOf(values) => {
                let parts = parts(value);
                let mut seen = Vec::new();
                for part in &parts {
                    if !known(values, part) || seen.contains(part) {
                        return None;
                    }
                    seen.push(*part);
                }
                Some(parts.join(","))
            }
            Replicas => {
                let parts = parts(value);
                let is_pair = |part: &&str| {
                    let pair = part.split_once(':');
                    pair.is_some_and(|(a, b)| a.parse::<u32>().is_ok() && b.parse::<u32>().is_ok())
                };
                (parts == ["*"] || parts.iter().all(is_pair)).then(|| parts.join(","))
            }
        }
    }

    fn describe(&self) -> String {
        match self {
            Within(least, INT_MAX | LONG_MAX) => format!("a whole number, at least {least}"),
            Within(least, most) => format!("a whole number from {least} to {most}"),
            Ratio => "a number from 0 to 1".to_owned(),
            OneOf(values) => values.join(" or "),
            SomeOf(values) => format!("some of {}, each once", values.join(",")),
            Replicas => "* or PARTITION:BROKER,…".to_owned(),
        }
    }
}

/// The elements of a list; none in an empty one.
pub(crate) fn parts(value: &str) -> Vec<&str> {
    if value.is_empty() {
        return Vec::new();
    }
    value.split(',').map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BrokerConfig;
    use crate::overrides::Given;
    use std::sync::Arc;

    fn verdict(name: &str, value: &str) -> Result<String, String> {
        let configs = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let config = BrokerConfig::default();
        let checked = checked(&configs, &Layers::new(&config, Arc::default()));
        checked.map(|mut plain| plain.remove(name).unwrap_or_default())
    }

    #[test]
    fn every_default_is_a_value_of_its_setting_in_its_plain_form() {
        for setting in SETTINGS {
            let plain = verdict(setting.name, setting.default);
            assert_eq!(plain, Ok(setting.default.to_owned()), "{}", setting.name);
            assert!(setting.documentation.ends_with('.'), "{}", setting.name);
        }
        assert!(SETTINGS.is_sorted_by_key(|setting| setting.name));
    }

    #[test]
    fn every_default_is_what_the_log_does_without_the_setting() {
        let configs = SETTINGS
            .iter()
            .map(|setting| (setting.name.to_owned(), setting.default.to_owned()))
            .collect();
        let config = millstream_log::PartitionConfig::default();
        assert_eq!(config.clone().with_configs(&configs), Ok(config));
    }

    #[test]
    fn bad_settings_are_refused_by_name() {
        for (name, value) in [
            ("retention.ms", "soon"),
            ("retention.ms", "-2"),
            ("segment.bytes", "4294967296"),
            ("segment.bytes", "1048575"),
            ("cleanup.policy", "compact,forget"),
            ("cleanup.policy", "compact,compact"),
            ("min.cleanable.dirty.ratio", "1.5"),
            ("compression.type", "none"),
            ("compression.gzip.level", "10"),
            ("remote.storage.enable", "true"),
            ("leader.replication.throttled.replicas", "1"),
            ("retention.msec", "1"),
        ] {
            let refused = verdict(name, value).unwrap_err();
            assert!(refused.contains(name), "{refused}");
        }
    }

    #[test]
    fn values_are_kept_in_their_plain_form() {
        for (name, value, plain) in [
            ("retention.ms", " 010 ", "10"),
            ("preallocate", "TRUE", "true"),
            ("cleanup.policy", "compact , delete", "compact,delete"),
            ("cleanup.policy", "", ""),
            ("min.cleanable.dirty.ratio", "1", "1.0"),
            (
                "leader.replication.throttled.replicas",
                "0:1, 1:1",
                "0:1,1:1",
            ),
        ] {
            assert_eq!(verdict(name, value), Ok(plain.to_owned()));
        }
    }

    #[test]
    fn lags_that_contradict_each_other_are_refused() {
        let pairs = [
            ("min.compaction.lag.ms", "10"),
            ("max.compaction.lag.ms", "9"),
        ];
        let configs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let config = BrokerConfig::default();
        let layers = Layers::new(&config, Arc::default());
        let refused = checked(&configs.into(), &layers).unwrap_err();
        assert!(
            refused.contains("(10)") && refused.contains("(9)"),
            "{refused}"
        );
    }

    #[test]
    fn a_topic_inherits_from_the_broker_and_the_broker_from_the_default() {
        let mut broker = BrokerConfig::default();
        let retention = setting("retention.ms").unwrap();
        let mut given = Arc::new(Given::default());
        let of = |broker: &BrokerConfig, given: &Arc<Given>, own: Option<&str>| {
            let own = own.map(str::to_owned);
            let layers = Layers::new(broker, given.clone());
            let found = retention.effective(&layers, own.as_ref());
            (found.value, found.source, found.synonyms.len())
        };
        assert_eq!(
            of(&broker, &given, None),
            ("604800000".to_owned(), Source::Default, 0)
        );
        broker
            .log_settings
            .insert("log.retention.ms".to_owned(), "7".to_owned());
        let found = of(&broker, &given, None);
        assert_eq!(found, ("7".to_owned(), Source::Broker, 1));
        let found = of(&broker, &given, Some("5"));
        assert_eq!(found, ("5".to_owned(), Source::Topic, 2));
        let name = || "log.retention.ms".to_owned();
        let layers = Arc::make_mut(&mut given);
        layers.all_brokers.insert(name(), "8".to_owned());
        let found = of(&broker, &given, None);
        assert_eq!(found, ("8".to_owned(), Source::AllBrokers, 2));
        let layers = Arc::make_mut(&mut given);
        layers.this_broker.insert(name(), "9".to_owned());
        let found = of(&broker, &given, None);
        assert_eq!(found, ("9".to_owned(), Source::ThisBroker, 3));
        let found = of(&broker, &given, Some("5"));
        assert_eq!(found, ("5".to_owned(), Source::Topic, 4));
    }
}
