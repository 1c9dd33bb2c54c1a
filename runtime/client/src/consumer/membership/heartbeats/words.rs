//! What a heartbeat says: everything at first and after a failure, later only what has changed.
//!
//! Invariants: what the member owns is named by the first heartbeat after it has changed, and again
//! until one is answered; nothing is left out that the coordinator may not have heard.
//! Never: sends; an empty request field of `None` is "as before".

use std::sync::Arc;

use millstream_protocol::messages::ConsumerGroupHeartbeatRequest;

use super::machine::JOIN;
use super::target::{ById, to_owned_partitions};
use crate::consumer::config::ConsumerConfig;

/// What the member wants to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wishes {
    pub(super) topics: Vec<Arc<str>>,
    pub(super) pattern: Option<Arc<str>>,
}

/// What the coordinator has been told.
#[derive(Debug, Default)]
pub(super) struct Words {
    said: Option<Wishes>,
    /// What we own has changed since.
    owes_owned: bool,
    /// There has been an expression, so its absence has to be told as well.
    had_pattern: bool,
}

impl Words {
    /// The coordinator may not have heard what was said.
    pub(super) fn forget(&mut self) {
        self.said = None;
    }

    /// What the member owns has changed.
    pub(super) fn owe_owned(&mut self) {
        self.owes_owned = true;
    }

    /// Whether these wishes are news to the coordinator.
    pub(super) fn owes(&self, wishes: &Wishes) -> bool {
        self.said.as_ref() != Some(wishes)
    }

    /// The next heartbeat, which is then taken as said.
    pub(super) fn say(
        &mut self,
        config: &ConsumerConfig,
        epoch: i32,
        wishes: Wishes,
        owned: &ById,
    ) -> ConsumerGroupHeartbeatRequest {
        let joins = epoch == JOIN;
        let said = self.said.take().filter(|_| !joins);
        let all = said.is_none();
        let said = said.unwrap_or_default();
        let topics = || wishes.topics.iter().map(|topic| topic.to_string());
        let regex = wishes.pattern.as_deref().unwrap_or_default();
        let tells_regex = said.pattern != wishes.pattern || (all && self.had_pattern);
        let request = ConsumerGroupHeartbeatRequest {
            member_epoch: epoch,
            instance_id: config.group_instance_id.clone(),
            rack_id: config.client_rack.clone().filter(|_| joins),
            rebalance_timeout_ms: match all {
                true => i32::try_from(config.max_poll_interval.as_millis()).unwrap_or(i32::MAX),
                false => -1,
            },
            subscribed_topic_names: (all || said.topics != wishes.topics)
                .then(|| topics().collect()),
            subscribed_topic_regex: tells_regex.then(|| regex.to_owned()),
            server_assignor: config.group_remote_assignor.clone().filter(|_| all),
            topic_partitions: (all || self.owes_owned).then(|| to_owned_partitions(owned)),
            ..Default::default()
        };
        self.owes_owned = false;
        self.had_pattern |= wishes.pattern.is_some();
        self.said = Some(wishes);
        request
    }
}

#[cfg(test)]
mod tests {
    use millstream_protocol::Uuid;

    use super::*;

    fn config() -> ConsumerConfig {
        ConsumerConfig {
            client_rack: Some("r1".to_owned()),
            group_remote_assignor: Some("uniform".to_owned()),
            ..Default::default()
        }
    }

    fn wishes(topics: &[&str], pattern: Option<&str>) -> Wishes {
        Wishes {
            topics: topics.iter().map(|topic| (*topic).into()).collect(),
            pattern: pattern.map(Into::into),
        }
    }

    #[test]
    fn a_join_tells_everything_and_the_next_heartbeat_nothing() {
        let (mut words, nothing) = (Words::default(), ById::new());
        let join = words.say(&config(), JOIN, wishes(&["a"], None), &nothing);
        assert_eq!(join.subscribed_topic_names, Some(vec!["a".to_owned()]));
        assert_eq!(join.subscribed_topic_regex, None);
        assert_eq!(join.topic_partitions, Some(Vec::new()));
        assert_eq!(join.rebalance_timeout_ms, 300_000);
        assert_eq!(join.rack_id.as_deref(), Some("r1"));
        assert_eq!(join.server_assignor.as_deref(), Some("uniform"));
        let next = words.say(&config(), 3, wishes(&["a"], None), &nothing);
        let quiet = ConsumerGroupHeartbeatRequest {
            member_epoch: 3,
            ..Default::default()
        };
        assert_eq!(next, quiet);
    }

    #[test]
    fn only_what_has_changed_is_told() {
        let (mut words, nothing) = (Words::default(), ById::new());
        words.say(&config(), JOIN, wishes(&["a"], None), &nothing);
        let changed = wishes(&[], Some("a.*"));
        assert!(words.owes(&changed));
        let beat = words.say(&config(), 3, changed.clone(), &nothing);
        assert_eq!(beat.subscribed_topic_names, Some(Vec::new()));
        assert_eq!(beat.subscribed_topic_regex.as_deref(), Some("a.*"));
        assert_eq!(beat.topic_partitions, None);
        assert!(!words.owes(&changed));
        // An empty expression takes it back.
        let beat = words.say(&config(), 3, wishes(&["b"], None), &nothing);
        assert_eq!(beat.subscribed_topic_regex.as_deref(), Some(""));
        words.forget();
        let beat = words.say(&config(), 3, wishes(&["b"], None), &nothing);
        assert_eq!(beat.subscribed_topic_regex.as_deref(), Some(""));
    }

    #[test]
    fn what_is_owned_is_told_once_it_has_changed_and_after_every_failure() {
        let mut words = Words::default();
        let owned = ById::from([(Uuid([7; 16]), [1, 2].into())]);
        words.say(&config(), JOIN, wishes(&["a"], None), &ById::new());
        words.owe_owned();
        let beat = words.say(&config(), 3, wishes(&["a"], None), &owned);
        let told = beat.topic_partitions.unwrap();
        assert_eq!((told.len(), &told[0].partitions), (1, &vec![1, 2]));
        assert_eq!(beat.subscribed_topic_names, None);
        let beat = words.say(&config(), 3, wishes(&["a"], None), &owned);
        assert_eq!(beat.topic_partitions, None);
        words.forget();
        let beat = words.say(&config(), 3, wishes(&["a"], None), &owned);
        assert_eq!(beat.topic_partitions.unwrap().len(), 1);
        assert_eq!(beat.subscribed_topic_names, Some(vec!["a".to_owned()]));
        // The rack is told by joins alone.
        assert_eq!((beat.rebalance_timeout_ms, beat.rack_id), (300_000, None));
    }
}
