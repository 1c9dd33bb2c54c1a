//! `group.protocol`: how the members of a group share partitions, and which settings go with it.
//!
//! Never: decides anything else; `membership` has one driver for each.

use super::config::ConsumerConfig;
use crate::error::ConfigError;

/// How a group shares its partitions (`group.protocol`). A group has members of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GroupProtocol {
    /// A member that the coordinator calls leader shares them out (`classic`).
    #[default]
    Classic,
    /// The coordinator shares them out and moves them one by one (`consumer`, KIP-848).
    Consumer,
}

impl GroupProtocol {
    /// Kafka's name of it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            GroupProtocol::Classic => "classic",
            GroupProtocol::Consumer => "consumer",
        }
    }
}

/// What is decided by the coordinator under the consumer protocol.
pub(super) const SESSION_TIMEOUT: &str = "session.timeout.ms";
pub(super) const HEARTBEAT_INTERVAL: &str = "heartbeat.interval.ms";
pub(super) const ASSIGNORS: &str = "partition.assignment.strategy";

/// The key of a setting that only the classic protocol knows.
pub(super) fn classic_setting(name: &str) -> Option<&'static str> {
    let mut keys = [SESSION_TIMEOUT, HEARTBEAT_INTERVAL, ASSIGNORS].into_iter();
    keys.find(|key| *key == name)
}

/// Refuses settings that the group's protocol does not know. `given` are the keys that were set by
/// hand, be it to their defaults.
pub(super) fn check(config: &ConsumerConfig, given: &[&'static str]) -> Result<(), ConfigError> {
    let protocol = config.group_protocol;
    let (strange, reason) = match protocol {
        GroupProtocol::Classic => {
            let strange = config.group_remote_assignor.iter();
            let strange = strange.map(|name| format!("group.remote.assignor={name}"));
            let reason = "members share partitions out themselves; the setting is for consumer";
            (strange.collect::<Vec<_>>(), reason)
        }
        GroupProtocol::Consumer => {
            let strange = classic_settings(config, given);
            let strange = strange.iter().map(|name| (*name).to_owned());
            (strange.collect(), "the coordinator decides about these")
        }
    };
    if strange.is_empty() {
        return Ok(());
    }
    Err(ConfigError::Contradiction {
        first: strange.join(", "),
        second: format!("group.protocol={}", protocol.name()),
        reason,
    })
}

fn classic_settings(config: &ConsumerConfig, given: &[&'static str]) -> Vec<&'static str> {
    let usual = ConsumerConfig::default();
    let names = |config: &ConsumerConfig| -> Vec<String> {
        let assignors = config.assignors.iter();
        assignors.map(|a| a.name().to_owned()).collect()
    };
    let changed = [
        (ASSIGNORS, names(config) != names(&usual)),
        (
            HEARTBEAT_INTERVAL,
            config.heartbeat_interval != usual.heartbeat_interval,
        ),
        (
            SESSION_TIMEOUT,
            config.session_timeout != usual.session_timeout,
        ),
    ];
    let changed = changed
        .into_iter()
        .filter(|(key, changed)| *changed || given.contains(key));
    changed.map(|(key, _)| key).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn refusal(config: &ConsumerConfig, given: &[&'static str]) -> String {
        check(config, given).map_or_else(|e| e.to_string(), |()| "accepted".to_owned())
    }

    #[test]
    fn settings_of_the_other_protocol_are_refused_by_name() {
        let mut config = ConsumerConfig::default();
        assert_eq!(refusal(&config, &[SESSION_TIMEOUT]), "accepted");
        config.group_protocol = GroupProtocol::Consumer;
        config.group_remote_assignor = Some("range".to_owned());
        assert_eq!(refusal(&config, &[]), "accepted");
        // Set by hand, though to what it is anyway.
        let text = refusal(&config, &[SESSION_TIMEOUT, ASSIGNORS]);
        let both = "partition.assignment.strategy, session.timeout.ms";
        assert!(text.contains(both), "{text}");
        assert!(text.contains("group.protocol=consumer"), "{text}");
        config.heartbeat_interval = Duration::from_secs(1);
        assert!(refusal(&config, &[]).contains("heartbeat.interval.ms"));
        config = ConsumerConfig {
            group_remote_assignor: Some("range".to_owned()),
            ..Default::default()
        };
        let text = refusal(&config, &[]);
        assert!(text.contains("group.remote.assignor=range"), "{text}");
        assert!(text.contains("group.protocol=classic"), "{text}");
    }
}
