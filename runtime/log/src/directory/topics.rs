//! How topics come and go: directories, then the catalogue, then the table that is served.
//!
//! Invariants: the catalogue's replacement is the moment at which a topic is created or deleted;
//! what a crash or a failure leaves beside it is removed at the next opening.
//! Never: lets a checkpoint of a deleted topic count for a later one of the same name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_protocol::Uuid;

use super::{Inner, LogDirectory, Topic, files, lock};
use crate::catalogue::{TopicEntry, derive_id};
use crate::error::LogError;
use crate::layout;
use crate::partition::{PartitionLog, Recovery};
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
            .create_partitions(name, &entry, &directories)
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

impl Inner {
    fn create_partitions(
        &self,
        name: &str,
        entry: &TopicEntry,
        directories: &[PathBuf],
    ) -> Result<Vec<Arc<PartitionLog>>, LogError> {
        let root = Path::new("");
        for path in directories {
            layout::create(&*self.storage, path, entry.id)?;
        }
        self.storage
            .sync_dir(root)
            .map_err(|error| LogError::io("sync", root, error))?;
        let (storage, config, journal) = (&self.storage, &self.config, &self.journal);
        let opening = Opening {
            storage,
            config,
            journal,
        };
        let open = |partition| opening.open_partition(name, entry, partition, Recovery::Clean);
        (0..entry.partitions).map(open).collect()
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
