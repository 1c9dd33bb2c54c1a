//! The settings that a group of the consumer protocol may have: one row a setting, with Kafka's
//! name, the broker's setting that stands in for it, and the broker's bounds.
//!
//! Deviations: there are no share groups and no groups of the streams protocol, so that their
//! settings are refused.
//!
//! Invariants: a member is heard of more than once a session.
//! Never: asks whether the group exists; it may come later.

use crate::BrokerConfig;
use crate::overrides::Configs;

/// One setting, a whole number of milliseconds.
#[derive(Debug)]
pub(crate) struct GroupSetting {
    pub(crate) name: &'static str,
    /// What holds for groups without a value of their own.
    inherited: fn(&BrokerConfig) -> i32,
    least: Bound,
    most: Bound,
    pub(crate) documentation: &'static str,
}

/// A broker's setting that bounds those of groups.
#[derive(Debug)]
struct Bound {
    name: &'static str,
    value: fn(&BrokerConfig) -> i32,
}

const SESSION_TIMEOUT_MS: &str = "consumer.session.timeout.ms";
const HEARTBEAT_INTERVAL_MS: &str = "consumer.heartbeat.interval.ms";

/// Every setting, by name.
pub(crate) const SETTINGS: [GroupSetting; 2] = [
    GroupSetting {
        name: HEARTBEAT_INTERVAL_MS,
        inherited: |config| config.group_consumer_heartbeat_interval_ms,
        least: Bound {
            name: "group.consumer.min.heartbeat.interval.ms",
            value: |config| config.group_consumer_min_heartbeat_interval_ms,
        },
        most: Bound {
            name: "group.consumer.max.heartbeat.interval.ms",
            value: |config| config.group_consumer_max_heartbeat_interval_ms,
        },
        documentation: "How often a member of the consumer protocol is to be heard of.",
    },
    GroupSetting {
        name: SESSION_TIMEOUT_MS,
        inherited: |config| config.group_consumer_session_timeout_ms,
        least: Bound {
            name: "group.consumer.min.session.timeout.ms",
            value: |config| config.group_consumer_min_session_timeout_ms,
        },
        most: Bound {
            name: "group.consumer.max.session.timeout.ms",
            value: |config| config.group_consumer_max_session_timeout_ms,
        },
        documentation: "How long a member of the consumer protocol may be silent.",
    },
];

impl GroupSetting {
    /// The value of a group with these settings, and whether it is its own.
    pub(crate) fn effective(&self, own: &Configs, config: &BrokerConfig) -> (String, bool) {
        let given = own.get(self.name).cloned();
        let is_own = given.is_some();
        let inherited = || (self.inherited)(config).to_string();
        (given.unwrap_or_else(inherited), is_own)
    }

    fn checked(&self, value: &str, config: &BrokerConfig) -> Result<i32, String> {
        let name = self.name;
        let number = value.trim().parse::<i32>().ok().filter(|ms| *ms > 0);
        let Some(number) = number else {
            return Err(format!(
                "'{value}' is no value for {name}: give a whole number, at least 1"
            ));
        };
        let (least, most) = ((self.least.value)(config), (self.most.value)(config));
        if number < least {
            let bound = self.least.name;
            return Err(format!("{name} ({number}) is below {bound} ({least})"));
        }
        if number > most {
            let bound = self.most.name;
            return Err(format!("{name} ({number}) is above {bound} ({most})"));
        }
        Ok(number)
    }
}

/// The setting of that name.
pub(crate) fn setting(name: &str) -> Option<&'static GroupSetting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// Why there is no setting of that name.
pub(crate) fn unknown(name: &str) -> String {
    match name.split_once('.') {
        Some(("share" | "streams", _)) => {
            format!("'{name}' is a setting of groups of a protocol that this broker has not")
        }
        _ => format!("'{name}' is no group setting"),
    }
}

/// Whether a group may have that setting.
pub(crate) fn check(name: &str, value: &str, config: &BrokerConfig) -> Result<(), String> {
    let setting = setting(name).ok_or_else(|| unknown(name))?;
    setting.checked(value, config).map(|_| ())
}

/// The settings in their plain form, or the first that is unknown, out of the broker's bounds or at
/// odds with another, by name.
pub(crate) fn checked(configs: &Configs, config: &BrokerConfig) -> Result<Configs, String> {
    let mut plain = Configs::new();
    for (name, value) in configs {
        let setting = setting(name).ok_or_else(|| unknown(name))?;
        let number = setting.checked(value, config)?;
        plain.insert(name.clone(), number.to_string());
    }
    let timeouts = Timeouts::new(Some(&plain), config);
    if timeouts.session_ms <= timeouts.heartbeat_ms {
        return Err(format!(
            "{SESSION_TIMEOUT_MS} ({}) is not above {HEARTBEAT_INTERVAL_MS} ({})",
            timeouts.session_ms, timeouts.heartbeat_ms
        ));
    }
    Ok(plain)
}

/// What the settings of a group come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// How long a member may be silent.
    pub(crate) session_ms: i32,
    /// How often it is to be heard of.
    pub(crate) heartbeat_ms: i32,
}

impl Timeouts {
    /// Those of a group with these settings of its own.
    pub(crate) fn new(own: Option<&Configs>, config: &BrokerConfig) -> Self {
        let own = |name| own.and_then(|own| own.get(name)?.parse().ok());
        Timeouts {
            session_ms: own(SESSION_TIMEOUT_MS).unwrap_or(config.group_consumer_session_timeout_ms),
            heartbeat_ms: own(HEARTBEAT_INTERVAL_MS)
                .unwrap_or(config.group_consumer_heartbeat_interval_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(pairs: &[(&str, &str)]) -> Result<Configs, String> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let configs = pairs.iter().map(owned).collect();
        checked(&configs, &BrokerConfig::default())
    }

    #[test]
    fn a_groups_settings_keep_within_the_brokers_bounds() {
        for (name, value, in_bounds) in [
            (SESSION_TIMEOUT_MS, "44999", false),
            (SESSION_TIMEOUT_MS, "45000", true),
            (SESSION_TIMEOUT_MS, "60000", true),
            (SESSION_TIMEOUT_MS, "60001", false),
            (HEARTBEAT_INTERVAL_MS, "4999", false),
            (HEARTBEAT_INTERVAL_MS, "5000", true),
            (HEARTBEAT_INTERVAL_MS, "15000", true),
            (HEARTBEAT_INTERVAL_MS, "15001", false),
            (HEARTBEAT_INTERVAL_MS, "0", false),
            (HEARTBEAT_INTERVAL_MS, "soon", false),
            ("share.session.timeout.ms", "45000", false),
            ("streams.num.standby.replicas", "0", false),
            ("consumer.max.size", "3", false),
        ] {
            let found = verdict(&[(name, value)]);
            assert_eq!(found.is_ok(), in_bounds, "{name}={value}");
            assert!(found.err().is_none_or(|message| message.contains(name)));
        }
        let plain = verdict(&[(SESSION_TIMEOUT_MS, " 050000")]).expect("in bounds");
        assert_eq!(plain[SESSION_TIMEOUT_MS], "50000");
    }

    #[test]
    fn a_session_is_longer_than_the_time_between_two_heartbeats() {
        let wide = BrokerConfig {
            group_consumer_min_session_timeout_ms: 1,
            group_consumer_session_timeout_ms: 45_000,
            ..BrokerConfig::default()
        };
        let session = |ms: &str| Configs::from([(SESSION_TIMEOUT_MS.to_owned(), ms.to_owned())]);
        assert!(checked(&session("5001"), &wide).is_ok());
        let refused = checked(&session("5000"), &wide).unwrap_err();
        assert!(refused.contains("(5000)"), "{refused}");
    }

    #[test]
    fn a_group_without_settings_follows_the_broker() {
        let config = BrokerConfig::default();
        let own = Configs::from([(HEARTBEAT_INTERVAL_MS.to_owned(), "7000".to_owned())]);
        let of = |session_ms, heartbeat_ms| Timeouts {
            session_ms,
            heartbeat_ms,
        };
        assert_eq!(Timeouts::new(None, &config), of(45_000, 5_000));
        assert_eq!(Timeouts::new(Some(&own), &config), of(45_000, 7_000));
        let told = SETTINGS.map(|setting| setting.effective(&own, &config));
        assert_eq!(told, [("7000".into(), true), ("45000".into(), false)]);
    }
}
