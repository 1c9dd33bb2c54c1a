//! The settings that a topic may have: Kafka's names, types, defaults and ranges.
//!
//! Invariants: a setting that is accepted here is one that the log acts on or that has no effect on
//! one node.
//! Never: accepts a value that would be ignored where it matters (`compression.type` other than
//! `producer`).

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

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) default: &'static str,
    accepts: Accepts,
}

#[derive(Debug)]
enum Accepts {
    /// A whole number from here up.
    AtLeast(i64),
    /// A number between 0 and 1.
    Ratio,
    /// One of these.
    OneOf(&'static [&'static str]),
    /// Some of these, separated by commas.
    SomeOf(&'static [&'static str]),
}

const BOOLEANS: &[&str] = &["true", "false"];

const fn long(name: &'static str, default: &'static str, min: i64) -> Setting {
    Setting {
        name,
        kind: Kind::Long,
        default,
        accepts: Accepts::AtLeast(min),
    }
}

const fn int(name: &'static str, default: &'static str, min: i64) -> Setting {
    Setting {
        name,
        kind: Kind::Int,
        default,
        accepts: Accepts::AtLeast(min),
    }
}

const fn one_of(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    values: &'static [&'static str],
) -> Setting {
    Setting {
        name,
        kind,
        default,
        accepts: Accepts::OneOf(values),
    }
}

/// Every setting, by name.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        name: "cleanup.policy",
        kind: Kind::List,
        default: "delete",
        accepts: Accepts::SomeOf(&["delete", "compact"]),
    },
    one_of("compression.type", Kind::String, "producer", &["producer"]),
    long("delete.retention.ms", "86400000", 0),
    long("file.delete.delay.ms", "60000", 0),
    long("flush.messages", "9223372036854775807", 1),
    long("flush.ms", "9223372036854775807", 0),
    int("index.interval.bytes", "4096", 0),
    long("max.compaction.lag.ms", "9223372036854775807", 1),
    int("max.message.bytes", "1048588", 0),
    long("message.timestamp.after.max.ms", "3600000", 0),
    long("message.timestamp.before.max.ms", "9223372036854775807", 0),
    one_of(
        "message.timestamp.type",
        Kind::String,
        "CreateTime",
        &["CreateTime", "LogAppendTime"],
    ),
    Setting {
        name: "min.cleanable.dirty.ratio",
        kind: Kind::Double,
        default: "0.5",
        accepts: Accepts::Ratio,
    },
    long("min.compaction.lag.ms", "0", 0),
    int("min.insync.replicas", "1", 1),
    one_of("preallocate", Kind::Boolean, "false", BOOLEANS),
    long("retention.bytes", "-1", -1),
    long("retention.ms", "604800000", -1),
    int("segment.bytes", "1073741824", 14),
    int("segment.index.bytes", "10485760", 4),
    long("segment.jitter.ms", "0", 0),
    long("segment.ms", "604800000", 1),
    one_of(
        "unclean.leader.election.enable",
        Kind::Boolean,
        "false",
        BOOLEANS,
    ),
];

/// The setting of that name.
pub(crate) fn setting(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// Refuses unknown settings and values out of range, naming both.
pub(crate) fn check(configs: &BTreeMap<String, String>) -> Result<(), String> {
    for (name, value) in configs {
        let setting = setting(name).ok_or_else(|| format!("'{name}' is no topic setting"))?;
        if !setting.accepts.accept(setting.kind, value) {
            return Err(format!(
                "'{value}' is no value for {name}: give {}",
                setting.accepts.describe()
            ));
        }
    }
    Ok(())
}

impl Accepts {
    fn accept(&self, kind: Kind, value: &str) -> bool {
        match self {
            Self::AtLeast(min) => value.parse::<i64>().is_ok_and(|number| {
                number >= *min && (kind != Kind::Int || number <= i64::from(i32::MAX))
            }),
            Self::Ratio => value
                .parse()
                .is_ok_and(|ratio: f64| (0.0..=1.0).contains(&ratio)),
            Self::OneOf(values) => values.contains(&value),
            Self::SomeOf(values) => value.split(',').all(|part| values.contains(&part.trim())),
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::AtLeast(min) => format!("a whole number, at least {min}"),
            Self::Ratio => "a number from 0 to 1".to_owned(),
            Self::OneOf(values) => values.join(" or "),
            Self::SomeOf(values) => format!("some of {}", values.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(name: &str, value: &str) -> Result<(), String> {
        check(&BTreeMap::from([(name.to_owned(), value.to_owned())]))
    }

    #[test]
    fn every_default_is_a_value_of_its_setting() {
        for setting in SETTINGS {
            assert_eq!(verdict(setting.name, setting.default), Ok(()));
        }
    }

    #[test]
    fn bad_settings_are_refused_by_name() {
        for (name, value) in [
            ("retention.ms", "soon"),
            ("retention.ms", "-2"),
            ("segment.bytes", "4294967296"),
            ("cleanup.policy", "compact,forget"),
            ("min.cleanable.dirty.ratio", "1.5"),
            ("compression.type", "zstd"),
            ("retention.msec", "1"),
        ] {
            let refused = verdict(name, value).unwrap_err();
            assert!(refused.contains(name), "{refused}");
        }
    }
}
