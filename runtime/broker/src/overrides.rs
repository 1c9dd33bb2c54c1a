//! Settings that were given while the broker ran, to what is no topic: to this broker, to all
//! brokers, to groups. And the layers of which a broker's settings are made:
//!
//! ```text
//! this broker's ─▶ all brokers' ─▶ given at start ─▶ default
//! ```
//!
//! Invariants: what is told and in force is stored durably; a holder changes as a whole or not at
//! all; one whose settings are all gone is forgotten.
//! Never: a topic's own settings, which are with the topic.

use crate::group_settings::{self, Timeouts};
use crate::node::Node;
use crate::refused::Refused;
use crate::topic_settings::{SETTINGS, Source};
use crate::{BrokerConfig, broker_settings};
use millstream_log::{OtherSettings, PartitionConfig};
use millstream_protocol::ErrorCode;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Settings by their names.
pub(crate) type Configs = BTreeMap<String, String>;

/// Whose settings they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder<'a> {
    /// Every broker's there may be.
    AllBrokers,
    /// This broker's.
    ThisBroker,
    /// The group's of that name; it need not exist.
    Group(&'a str),
}

/// Everything that was given.
#[derive(Debug, Clone, Default)]
pub(crate) struct Given {
    pub(crate) all_brokers: Configs,
    pub(crate) this_broker: Configs,
    pub(crate) groups: BTreeMap<String, Configs>,
}

/// What counts now.
#[derive(Debug)]
pub(crate) struct Overrides(RwLock<Arc<Given>>);

/// The kind under which the directory keeps the settings of brokers, by number; no name for all.
const BROKER: &str = "broker";
/// The kind under which it keeps those of groups.
const GROUP: &str = "group";

impl Holder<'_> {
    /// Kind and name in the directory.
    fn key(self, node_id: i32) -> (&'static str, String) {
        match self {
            Holder::AllBrokers => (BROKER, String::new()),
            Holder::ThisBroker => (BROKER, node_id.to_string()),
            Holder::Group(name) => (GROUP, name.to_owned()),
        }
    }
}

impl Given {
    fn of(&self, holder: Holder<'_>) -> Configs {
        match holder {
            Holder::AllBrokers => self.all_brokers.clone(),
            Holder::ThisBroker => self.this_broker.clone(),
            Holder::Group(name) => self.groups.get(name).cloned().unwrap_or_default(),
        }
    }

    fn set(&mut self, holder: Holder<'_>, configs: Configs) {
        match holder {
            Holder::AllBrokers => self.all_brokers = configs,
            Holder::ThisBroker => self.this_broker = configs,
            Holder::Group(name) if configs.is_empty() => {
                self.groups.remove(name);
            }
            Holder::Group(name) => {
                self.groups.insert(name.to_owned(), configs);
            }
        }
    }
}

/// Of what a setting of the broker is made.
#[derive(Debug, Clone)]
pub(crate) struct Layers<'a> {
    config: &'a BrokerConfig,
    given: Arc<Given>,
}

impl<'a> Layers<'a> {
    pub(crate) fn new(config: &'a BrokerConfig, given: Arc<Given>) -> Self {
        Layers { config, given }
    }

    /// What was given at the start.
    pub(crate) fn config(&self) -> &'a BrokerConfig {
        self.config
    }

    /// The values that were given for a setting, the one that counts first.
    pub(crate) fn of(&self, name: &str) -> Vec<(Source, String)> {
        let at_start = self.config.log_setting(name);
        let layers = [
            (
                Source::ThisBroker,
                self.given.this_broker.get(name).cloned(),
            ),
            (
                Source::AllBrokers,
                self.given.all_brokers.get(name).cloned(),
            ),
            (Source::Broker, at_start),
        ];
        let given = layers.into_iter();
        given
            .filter_map(|(source, value)| Some((source, value?)))
            .collect()
    }

    /// The one that counts.
    pub(crate) fn first(&self, name: &str) -> Option<String> {
        self.of(name).into_iter().next().map(|(_, value)| value)
    }

    /// What holds in the log for topics without settings of their own. `base` has what is no
    /// setting of a topic.
    pub(crate) fn partition_config(
        &self,
        base: PartitionConfig,
    ) -> Result<PartitionConfig, String> {
        let given = SETTINGS.iter().filter_map(|setting| {
            let value = self.first(setting.broker?.name())?;
            Some((setting.name.to_owned(), value))
        });
        let config = base.with_configs(&given.collect());
        config.map_err(|invalid| invalid.to_string())
    }
}

impl Overrides {
    /// What the directory has kept. As in a cluster of Kafka, `min.insync.replicas` is always a
    /// setting of all brokers.
    pub(crate) fn stored(stored: OtherSettings, config: &BrokerConfig) -> Self {
        let (kind, this_broker) = Holder::ThisBroker.key(config.node_id);
        let mut given = Given::default();
        for ((found, name), configs) in stored {
            if found == GROUP {
                given.groups.insert(name, configs);
            } else if found == kind && name == this_broker {
                given.this_broker = configs;
            } else if found == kind && name.is_empty() {
                given.all_brokers = configs;
            }
        }
        let min_insync = broker_settings::MIN_INSYNC_REPLICAS;
        let all_brokers = given.all_brokers.entry(min_insync.to_owned());
        let at_start = || config.log_setting(min_insync);
        all_brokers.or_insert_with(|| at_start().unwrap_or_else(|| "1".to_owned()));
        Overrides(RwLock::new(Arc::new(given)))
    }

    /// Everything that counts now.
    pub(crate) fn given(&self) -> Arc<Given> {
        let given = self.0.read();
        given.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, holder: Holder<'_>, configs: Configs) {
        let mut given = self.0.write().unwrap_or_else(PoisonError::into_inner);
        Arc::make_mut(&mut given).set(holder, configs);
    }
}

impl Node {
    /// Gives a holder the settings that `change` makes of its own ones; with `validate_only`
    /// nothing changes. After an error it has those that it had.
    pub(crate) async fn alter_overrides(
        &self,
        holder: Holder<'_>,
        validate_only: bool,
        change: impl FnOnce(&Configs) -> Result<Configs, Refused>,
    ) -> Result<(), Refused> {
        let _one_at_a_time = self.partitions.lock_changes().await;
        let own = self.overrides.given().of(holder);
        let configs = change(&own)?;
        let configs = match holder {
            Holder::Group(_) => group_settings::checked(&configs, &self.config)
                .map_err(|message| Refused::new(ErrorCode::INVALID_CONFIG, message))?,
            Holder::AllBrokers | Holder::ThisBroker => broker_settings::checked(&configs, holder)?,
        };
        if validate_only || configs == own {
            return Ok(());
        }
        let (directory, stored) = (self.directory.clone(), configs.clone());
        let (kind, name) = holder.key(self.config.node_id);
        let mut given = Given::clone(&self.overrides.given());
        given.set(holder, configs.clone());
        let layers = Layers::new(&self.config, Arc::new(given));
        let defaults = layers.partition_config(self.base.clone());
        let defaults = defaults.map_err(Refused::invalid)?;
        let work = move || {
            directory.store_settings(kind, &name, stored)?;
            match kind {
                BROKER => directory.set_defaults(defaults),
                _ => Ok(()),
            }
        };
        let kept = self.config.placement.blocking(work).await;
        let kept = kept.map_err(|error| Refused::failed(error.error_code()))?;
        kept.map_err(|error| {
            tracing::error!(?holder, %error, "settings not changed");
            Refused::failed(error.error_code())
        })?;
        self.overrides.set(holder, configs);
        Ok(())
    }

    /// Of what the broker's settings are made now.
    pub(crate) fn layers(&self) -> Layers<'_> {
        Layers::new(&self.config, self.overrides.given())
    }

    /// How long a member of a group may be silent, and how often it is to be heard of.
    pub(crate) fn timeouts_of(&self, group_id: &str) -> Timeouts {
        let given = self.overrides.given();
        Timeouts::new(given.groups.get(group_id), &self.config)
    }
}
