//! Settings that were given while the broker ran, to what is no topic: to this broker, to all
//! brokers, to groups. And the layers of which a broker's settings are made:
//!
//! ```text
//! this broker's ─▶ all brokers' ─▶ given at start ─▶ default
//! ```
//!
//! Invariants: what is told and in force is stored durably; a holder changes as a whole or not at
//! all; one whose settings are all gone is forgotten; groups that have settings are limited, and so
//! are their names, since all of them are in memory and in one file.
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

/// More groups with settings than this are refused.
pub(crate) const GROUPS_MAX: usize = 10_000;
/// Their names may be as long as this all together.
const GROUP_NAMES_BYTES_MAX: usize = 4 << 20;

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

    /// That of brokers alone.
    fn of_brokers(&self) -> Given {
        Given {
            all_brokers: self.all_brokers.clone(),
            this_broker: self.this_broker.clone(),
            groups: BTreeMap::new(),
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
    /// What the directory has kept. A setting that an earlier release took and this one does not is
    /// as if it were not there, until its holder changes. As in a cluster of Kafka,
    /// `min.insync.replicas` is always a setting of all brokers.
    pub(crate) fn stored(stored: OtherSettings, config: &BrokerConfig) -> Self {
        let (kind, this_broker) = Holder::ThisBroker.key(config.node_id);
        let mut given = Given::default();
        for ((found, name), configs) in stored {
            if found == GROUP {
                let check =
                    |setting: &str, value: &str| group_settings::check(setting, value, config);
                let mut configs = valid(configs, &format!("group {name}"), check);
                if let Err(reason) = group_settings::checked(&configs, config) {
                    tracing::warn!(group = name, reason, "stored settings do not count");
                    configs.clear();
                }
                given.set(Holder::Group(&name), configs);
            } else if found == kind && name == this_broker {
                given.this_broker = valid(configs, "this broker", broker_settings::check);
            } else if found == kind && name.is_empty() {
                given.all_brokers = valid(configs, "all brokers", broker_settings::check);
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

    fn set(&self, changed: Vec<(Holder<'_>, Configs)>) {
        let mut given = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let given = Arc::make_mut(&mut given);
        for (holder, configs) in changed {
            given.set(holder, configs);
        }
    }
}

/// Those that may be given, with a warning of those that may not.
fn valid(
    mut configs: Configs,
    holder: &str,
    check: impl Fn(&str, &str) -> Result<(), String>,
) -> Configs {
    configs.retain(|name, value| match check(name, value) {
        Ok(()) => true,
        Err(reason) => {
            tracing::warn!(
                holder,
                setting = name,
                reason,
                "stored setting does not count"
            );
            false
        }
    });
    configs
}

/// What makes a holder's settings of those that it has.
pub(crate) type Change<'a> = Box<dyn Fn(&Configs) -> Result<Configs, Refused> + Send + Sync + 'a>;

/// What a request comes to.
struct Changes<'a> {
    config: &'a BrokerConfig,
    given: Arc<Given>,
    /// That of brokers, as it will be.
    brokers: Given,
    group_count: usize,
    group_names_bytes: usize,
    changed: Vec<(Holder<'a>, Configs)>,
}

impl<'a> Changes<'a> {
    fn new(config: &'a BrokerConfig, given: Arc<Given>) -> Self {
        Changes {
            config,
            brokers: given.of_brokers(),
            group_count: given.groups.len(),
            group_names_bytes: given.groups.keys().map(String::len).sum(),
            given,
            changed: Vec::new(),
        }
    }

    /// Takes up the change of one holder, and says whether it is one. Nobody changes twice.
    fn take(
        &mut self,
        holder: Holder<'a>,
        change: &Change<'_>,
        base: &PartitionConfig,
    ) -> Result<bool, Refused> {
        let own = self.given.of(holder);
        let configs = change(&own)?;
        let configs = match holder {
            Holder::Group(_) => group_settings::checked(&configs, self.config)
                .map_err(|message| Refused::new(ErrorCode::INVALID_CONFIG, message))?,
            Holder::AllBrokers | Holder::ThisBroker => broker_settings::checked(&configs, holder)?,
        };
        if configs == own {
            return Ok(false);
        }
        match holder {
            Holder::Group(name) => self.count(name, own.is_empty(), configs.is_empty())?,
            Holder::AllBrokers | Holder::ThisBroker => {
                let mut brokers = self.brokers.clone();
                brokers.set(holder, configs.clone());
                let layers = Layers::new(self.config, Arc::new(brokers.clone()));
                let defaults = layers.partition_config(base.clone());
                defaults.map_err(Refused::invalid)?;
                self.brokers = brokers;
            }
        }
        self.changed.push((holder, configs));
        Ok(true)
    }

    fn count(&mut self, name: &str, had_none: bool, has_none: bool) -> Result<(), Refused> {
        if has_none {
            self.group_count -= 1;
            self.group_names_bytes -= name.len();
        } else if had_none {
            let bytes = self.group_names_bytes + name.len();
            if self.group_count >= GROUPS_MAX || bytes > GROUP_NAMES_BYTES_MAX {
                let message = format!(
                    "{} groups have settings: at most {GROUPS_MAX}, with {GROUP_NAMES_BYTES_MAX} \
                     bytes of names",
                    self.group_count
                );
                return Err(Refused::new(ErrorCode::POLICY_VIOLATION, message));
            }
            self.group_count += 1;
            self.group_names_bytes = bytes;
        }
        Ok(())
    }
}

impl Node {
    /// Gives each of the holders, all of them different, the settings that its change makes of its
    /// own ones, and stores that at once; with `validate_only` nothing changes. After an error a
    /// holder has those that it had.
    pub(crate) async fn alter_overrides(
        &self,
        wanted: &[(Holder<'_>, Change<'_>)],
        validate_only: bool,
    ) -> Vec<Result<(), Refused>> {
        let _one_at_a_time = self.partitions.lock_changes().await;
        let mut changes = Changes::new(&self.config, self.overrides.given());
        let mut taken = Vec::with_capacity(wanted.len());
        for (holder, change) in wanted {
            taken.push(changes.take(*holder, change, &self.base));
        }
        let Changes {
            brokers, changed, ..
        } = changes;
        let stored = match validate_only || changed.is_empty() {
            true => Ok(()),
            false => self.store_overrides(brokers, changed).await,
        };
        let outcome = |taken: Result<bool, Refused>| match taken? {
            true => stored.clone(),
            false => Ok(()),
        };
        taken.into_iter().map(outcome).collect()
    }

    async fn store_overrides(
        &self,
        brokers: Given,
        changed: Vec<(Holder<'_>, Configs)>,
    ) -> Result<(), Refused> {
        let is_of_broker = |(holder, _): &(Holder<'_>, _)| !matches!(holder, Holder::Group(_));
        let defaults = match changed.iter().any(is_of_broker) {
            true => {
                let layers = Layers::new(&self.config, Arc::new(brokers));
                let defaults = layers.partition_config(self.base.clone());
                Some(defaults.map_err(Refused::invalid)?)
            }
            false => None,
        };
        let keyed = changed.iter().map(|(holder, configs)| {
            let (kind, name) = holder.key(self.config.node_id);
            ((kind.to_owned(), name), configs.clone())
        });
        let (directory, keyed) = (self.directory.clone(), keyed.collect());
        let work = move || directory.store_settings(keyed, defaults);
        let kept = self.config.placement.blocking(work).await;
        let kept = kept.map_err(|error| Refused::failed(error.error_code()))?;
        kept.map_err(|error| {
            tracing::error!(%error, "settings not changed");
            Refused::failed(error.error_code())
        })?;
        self.overrides.set(changed);
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
