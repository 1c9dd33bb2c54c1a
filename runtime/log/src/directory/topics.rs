//! How topics come, change and go: directories, then the catalogue, then the table that is served.
//!
//! Invariants: the catalogue's replacement is the moment at which a topic is created, altered or
//! deleted; what a crash or a failure leaves beside it is removed at the next opening.
//! Never: lets a checkpoint of a deleted topic count for a later one of the same name.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use millstream_protocol::Uuid;

use super::{DirectoryConfig, Inner, LogDirectory, Topic, files, lock};
use crate::catalogue::{
    Catalogue, OtherSettings, Settings, TopicEntry, check_partitions, derive_id,
};
use crate::error::LogError;
use crate::layout;
use crate::partition::{PartitionLog, Recovery};
use crate::partition_config::PartitionConfig;
use crate::recovery::Opening;

#[derive(Default)]
pub(super) struct Topics {
    pub(super) by_name: BTreeMap<String, Topic>,
    pub(super) by_id: BTreeMap<(Uuid, i32), Arc<PartitionLog>>,
}

impl Topics {
    pub(super) fn insert(&mut self, topic: Topic) {
        for (log, partition) in topic.partitions.iter().zip(0..) {
            self.by_id.insert((topic.id, partition), log.clone());
        }
        self.by_name.insert(topic.name.clone(), topic);
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Topic> {
        let topic = self.by_name.remove(name)?;
        self.by_id.retain(|(id, _), _| *id != topic.id);
        Some(topic)
    }
}

impl LogDirectory {
    /// Creates a topic, durably: after a crash it is there with all its partitions, or not at all.
    pub fn create_topic(
        &self,
        name: &str,
        partitions: i32,
        configs: BTreeMap<String, String>,
    ) -> Result<Topic, LogError> {
        self.check()?;
        let inner = &*self.inner;
        let mut structure = lock(&inner.structure);
        structure.catalogue.check_new(name, partitions)?;
        let number = structure.catalogue.next_topic;
        let id = derive_id(&[
            inner.cluster_id.as_bytes(),
            &number.to_be_bytes(),
            name.as_bytes(),
        ]);
        let entry = TopicEntry {
            id,
            partitions,
            configs,
        };
        // A recovery point of an older topic of that name must not count for the new one.
        self.note(inner.forget_points(&mut structure, name))?;
        let directories: Vec<PathBuf> = (0..partitions)
            .map(|partition| layout::partition_directory(name, partition))
            .collect();
        self.note(layout::make_room(&*inner.storage, name, &directories))?;
        let mut catalogue = structure.catalogue.clone();
        catalogue.next_topic = number + 1;
        catalogue.topics.insert(name.to_owned(), entry.clone());
        let created = inner
            .create_partitions(name, &entry, &directories, 0..partitions)
            .and_then(|partitions| catalogue.store(&*inner.storage).map(|()| partitions));
        let partitions = match self.note(created) {
            Ok(partitions) => partitions,
            Err(error) => {
                if !self.poisoned() {
                    inner.discard(&directories);
                }
                return Err(error);
            }
        };
        structure.catalogue = catalogue;
        let topic = Topic {
            name: name.to_owned(),
            id,
            partitions,
            configs: entry.configs,
        };
        self.write_topics().insert(topic.clone());
        Ok(topic)
    }

    /// Replaces a topic's own settings, durably, and puts them in force. After an error the topic
    /// has those that it had.
    pub fn alter_topic(
        &self,
        name: &str,
        configs: BTreeMap<String, String>,
    ) -> Result<Topic, LogError> {
        self.check()?;
        let inner = &*self.inner;
        let config = of_topic(inner.defaults(), name, &configs)?;
        let mut structure = lock(&inner.structure);
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
        self.check()?;
        let inner = &*self.inner;
        // No topic comes or changes meanwhile.
        let _structure = lock(&inner.structure);
        let topics = self.topics();
        let configs = topics
            .iter()
            .map(|topic| of_topic(defaults.clone(), &topic.name, &topic.configs));
        let configs: Vec<PartitionConfig> = configs.collect::<Result<_, _>>()?;
        *inner
            .defaults
            .write()
            .unwrap_or_else(PoisonError::into_inner) = defaults;
        for (topic, config) in topics.iter().zip(configs) {
            for log in &topic.partitions {
                log.set_config(config.clone());
            }
        }
        Ok(())
    }

    /// The settings of what is no topic, as they were stored.
    pub fn other_settings(&self) -> OtherSettings {
        lock(&self.inner.structure).catalogue.others.clone()
    }

    /// Stores the settings of something that is no topic, durably; none are forgotten. `kind` is a
    /// word. After an error it has those that it had.
    pub fn store_settings(
        &self,
        kind: &str,
        name: &str,
        settings: Settings,
    ) -> Result<(), LogError> {
        self.check()?;
        let inner = &*self.inner;
        let mut structure = lock(&inner.structure);
        let mut catalogue = structure.catalogue.clone();
        let key = (kind.to_owned(), name.to_owned());
        match settings.is_empty() {
            true => catalogue.others.remove(&key),
            false => catalogue.others.insert(key, settings),
        };
        self.note(catalogue.store(&*inner.storage))?;
        structure.catalogue = catalogue;
        Ok(())
    }

    /// Adds empty partitions, durably, until the topic has `total` of them. After an error the
    /// topic is as it was.
    pub fn add_partitions(&self, name: &str, total: i32) -> Result<Topic, LogError> {
        self.check()?;
        let inner = &*self.inner;
        let mut structure = lock(&inner.structure);
        let mut catalogue = structure.catalogue.clone();
        let entry = entry_of(&mut catalogue, name)?;
        let added = entry.partitions..total;
        check_partitions(name, total)?;
        if added.is_empty() {
            return Err(LogError::InvalidPartitions {
                name: name.to_owned(),
                partitions: total,
            });
        }
        entry.partitions = total;
        let entry = entry.clone();
        let directories: Vec<PathBuf> = added
            .clone()
            .map(|partition| layout::partition_directory(name, partition))
            .collect();
        self.note(layout::make_room(&*inner.storage, name, &directories))?;
        let created = inner
            .create_partitions(name, &entry, &directories, added)
            .and_then(|partitions| catalogue.store(&*inner.storage).map(|()| partitions));
        let partitions = match self.note(created) {
            Ok(partitions) => partitions,
            Err(error) => {
                if !self.poisoned() {
                    inner.discard(&directories);
                }
                return Err(error);
            }
        };
        structure.catalogue = catalogue;
        let mut topic = self.served(name)?;
        topic.partitions.extend(partitions);
        self.write_topics().insert(topic.clone());
        Ok(topic)
    }

    fn served(&self, name: &str) -> Result<Topic, LogError> {
        self.topic(name).ok_or_else(|| LogError::UnknownTopic {
            name: name.to_owned(),
        })
    }

    /// Deletes a topic and its records, durably: after a crash nothing of it is left. On a full
    /// disk the reserve makes room for it. After an error the topic is as it was.
    pub fn delete_topic(&self, name: &str) -> Result<(), LogError> {
        self.check()?;
        let inner = &*self.inner;
        let mut structure = lock(&inner.structure);
        let mut catalogue = structure.catalogue.clone();
        if catalogue.topics.remove(name).is_none() {
            return Err(LogError::UnknownTopic {
                name: name.to_owned(),
            });
        }
        let mut stored = catalogue.store(&*inner.storage);
        if matches!(stored, Err(LogError::StorageFull { .. })) {
            self.note(files::remove_if_there(&*inner.storage, files::RESERVE))?;
            stored = catalogue.store(&*inner.storage);
        }
        self.note(stored)?;
        structure.catalogue = catalogue;
        let Some(topic) = self.write_topics().remove(name) else {
            return Ok(());
        };
        let mut directories = Vec::new();
        for (log, partition) in topic.partitions.iter().zip(0..) {
            // From now on it refuses appends; what it cannot write any more does not matter.
            let _closed = log.close();
            directories.push(layout::partition_directory(name, partition));
        }
        if let Err(error) = layout::remove(&*inner.storage, &directories) {
            tracing::warn!(topic = name, %error, "files stay until the next opening");
        }
        files::write_reserve(&*inner.storage, inner.config.reserve_bytes);
        Ok(())
    }
}

/// A topic's settings over the defaults.
fn of_topic(
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

fn entry_of<'a>(catalogue: &'a mut Catalogue, name: &str) -> Result<&'a mut TopicEntry, LogError> {
    let entry = catalogue.topics.get_mut(name);
    entry.ok_or_else(|| LogError::UnknownTopic {
        name: name.to_owned(),
    })
}

impl Inner {
    fn defaults(&self) -> PartitionConfig {
        let defaults = self.defaults.read();
        defaults.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn create_partitions(
        &self,
        name: &str,
        entry: &TopicEntry,
        directories: &[PathBuf],
        numbers: Range<i32>,
    ) -> Result<Vec<Arc<PartitionLog>>, LogError> {
        let root = Path::new("");
        for path in directories {
            layout::create(&*self.storage, path, entry.id)?;
        }
        self.storage
            .sync_dir(root)
            .map_err(|error| LogError::io("sync", root, error))?;
        let config = DirectoryConfig {
            partition: self.defaults(),
            ..self.config.clone()
        };
        let opening = Opening {
            storage: &self.storage,
            config: &config,
            journal: &self.journal,
        };
        let open = |partition| {
            let log = opening.open_partition(name, entry, partition, Recovery::Clean)?;
            log.note_parent_synced();
            Ok(log)
        };
        numbers.map(open).collect()
    }

    /// Removes what a creation that failed has left; what cannot be removed goes at the next
    /// opening.
    fn discard(&self, directories: &[PathBuf]) {
        let there: Vec<PathBuf> = directories
            .iter()
            .filter(|path| self.storage.exists(path).unwrap_or(false))
            .cloned()
            .collect();
        if let Err(error) = layout::remove(&*self.storage, &there) {
            tracing::warn!(%error, "directories of a topic that was not created stay for now");
        }
    }
}
