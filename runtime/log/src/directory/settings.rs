//! Settings: of topics, of what is no topic, and those that hold where a topic has none of its own.
//!
//! Invariants: the catalogue's replacement is the moment at which settings change that are kept;
//! they are in force, for logs that are open too, when that is done.
//! Never: keeps the defaults (an opening is told them again).

use std::sync::PoisonError;

use super::topics::entry_of;
use super::{Inner, LogDirectory, Topic, lock};
use crate::catalogue::{OtherSettings, Settings};
use crate::error::LogError;
use crate::partition_config::PartitionConfig;

impl LogDirectory {
    /// Replaces a topic's own settings, durably, and puts them in force. After an error the topic
    /// has those that it had.
    pub fn alter_topic(&self, name: &str, configs: Settings) -> Result<Topic, LogError> {
        let inner = &*self.inner;
        let mut structure = self.lock_structure()?;
        let config = of_topic(inner.defaults(), name, &configs)?;
        let mut catalogue = structure.catalogue.clone();
        let entry = entry_of(&mut catalogue, name)?;
        entry.configs = configs.clone();
        self.note(catalogue.store(&*inner.storage))?;
        structure.catalogue = catalogue;
        let mut topic = self.served(name)?;
        for log in &topic.partitions {
            log.set_config(config.clone());
        }
        topic.configs = configs;
        self.write_topics().insert(topic.clone());
        Ok(topic)
    }

    /// Puts other settings in force for partitions whose topic has none of its own, those that are
    /// open and those to come. The directory does not keep them: an opening is told them again.
    /// After an error those count that were before.
    pub fn set_defaults(&self, defaults: PartitionConfig) -> Result<(), LogError> {
        // No topic comes or changes meanwhile.
        let _structure = self.lock_structure()?;
        let prepared = self.prepared(defaults)?;
        self.put_in_force(prepared);
        Ok(())
    }

    /// The settings of what is no topic, as they were stored.
    pub fn other_settings(&self) -> OtherSettings {
        lock(&self.inner.structure).catalogue.others.clone()
    }

    /// Stores the settings of what is no topic, durably and all at once; where there are none they
    /// are forgotten. Kinds are words. With `defaults`, these are in force as well, as
    /// [`LogDirectory::set_defaults`] says. After an error everything is as it was.
    pub fn store_settings(
        &self,
        changes: OtherSettings,
        defaults: Option<PartitionConfig>,
    ) -> Result<(), LogError> {
        let inner = &*self.inner;
        let mut structure = self.lock_structure()?;
        // What may fail comes first.
        let prepared = defaults.map(|defaults| self.prepared(defaults));
        let prepared = prepared.transpose()?;
        let mut catalogue = structure.catalogue.clone();
        for (key, settings) in changes {
            match settings.is_empty() {
                true => catalogue.others.remove(&key),
                false => catalogue.others.insert(key, settings),
            };
        }
        self.note(catalogue.store(&*inner.storage))?;
        structure.catalogue = catalogue;
        if let Some(prepared) = prepared {
            self.put_in_force(prepared);
        }
        Ok(())
    }

    /// What defaults come to for every topic. Under the lock of the structure.
    fn prepared(&self, defaults: PartitionConfig) -> Result<Prepared, LogError> {
        let topics = self.topics().into_iter().map(|topic| {
            let config = of_topic(defaults.clone(), &topic.name, &topic.configs)?;
            Ok((topic, config))
        });
        let topics = topics.collect::<Result<_, LogError>>()?;
        Ok(Prepared { defaults, topics })
    }

    fn put_in_force(&self, prepared: Prepared) {
        let defaults = &self.inner.defaults;
        *defaults.write().unwrap_or_else(PoisonError::into_inner) = prepared.defaults;
        for (topic, config) in prepared.topics {
            for log in &topic.partitions {
                log.set_config(config.clone());
            }
        }
    }

    fn served(&self, name: &str) -> Result<Topic, LogError> {
        self.topic(name).ok_or_else(|| LogError::UnknownTopic {
            name: name.to_owned(),
        })
    }
}

/// Defaults, and what they come to for every topic.
struct Prepared {
    defaults: PartitionConfig,
    topics: Vec<(Topic, PartitionConfig)>,
}

/// A topic's settings over the defaults.
pub(super) fn of_topic(
    defaults: PartitionConfig,
    name: &str,
    configs: &Settings,
) -> Result<PartitionConfig, LogError> {
    let config = defaults.with_configs(configs);
    config.map_err(|invalid| LogError::InvalidConfig {
        name: format!("{} of topic {name}", invalid.name),
        reason: invalid.to_string(),
    })
}

impl Inner {
    /// What holds for partitions whose topic has no setting of its own.
    pub(super) fn defaults(&self) -> PartitionConfig {
        let defaults = self.defaults.read();
        defaults.unwrap_or_else(PoisonError::into_inner).clone()
    }
}
