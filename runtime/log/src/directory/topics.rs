//! How topics come and grow: directories, then the catalogue, then the table that is served.
//!
//! ```text
//! plan each ─▶ old names durably gone ─▶ directories, logs ─▶ one catalogue for all ─▶ table
//!   refused: that topic alone       failed: that topic alone        failed: none of them
//! ```
//!
//! Invariants: the catalogue's replacement is the moment at which topics are created, grown or
//! deleted, once for all topics of a change; what a crash or a failure leaves beside it is removed
//! at the next opening.
//! Never: lets a checkpoint of a deleted topic count for a later one of the same name; syncs a file
//! of a partition that holds nothing yet.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use millstream_protocol::Uuid;

use super::settings::of_topic;
use super::{DirectoryConfig, Inner, LogDirectory, Structure, Topic};
use crate::catalogue::{Catalogue, TopicEntry, check_partitions, derive_id};
use crate::error::LogError;
use crate::layout;
use crate::partition::{PartitionLog, Recovery};
use crate::recovery::Opening;

/// A topic that is to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTopic {
    /// Its name.
    pub name: String,
    /// How many partitions it gets.
    pub partitions: i32,
    /// Its own settings, under Kafka's names.
    pub configs: BTreeMap<String, String>,
}

/// What became of each topic of a change, in the order in which they were given. The outer error
/// says that nothing was changed.
pub type Outcomes<T> = Result<Vec<Result<T, LogError>>, LogError>;

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
        for (_, partition) in topic.partitions.iter().zip(0..) {
            self.by_id.remove(&(topic.id, partition));
        }
        Some(topic)
    }
}

/// Partitions that a topic is to get.
struct Addition {
    name: String,
    /// The topic as it will be.
    entry: TopicEntry,
    numbers: Range<i32>,
    directories: Vec<PathBuf>,
}

impl Addition {
    fn new(name: String, entry: TopicEntry, numbers: Range<i32>) -> Addition {
        let directories = numbers
            .clone()
            .map(|partition| layout::partition_directory(&name, partition))
            .collect();
        Addition {
            name,
            entry,
            numbers,
            directories,
        }
    }

    /// Takes back what the plan has put into the catalogue.
    fn withdraw(&self, catalogue: &mut Catalogue) {
        match catalogue.topics.get_mut(&self.name) {
            Some(entry) if self.numbers.start > 0 => entry.partitions = self.numbers.start,
            _ => {
                catalogue.topics.remove(&self.name);
            }
        }
    }
}

impl LogDirectory {
    /// Creates a topic, as `create_topics` does.
    pub fn create_topic(
        &self,
        name: &str,
        partitions: i32,
        configs: BTreeMap<String, String>,
    ) -> Result<Topic, LogError> {
        let name = name.to_owned();
        let topic = NewTopic {
            name: name.clone(),
            partitions,
            configs,
        };
        let mut outcomes = self.create_topics(vec![topic])?;
        let nothing = Err(LogError::UnknownTopic { name });
        outcomes.pop().unwrap_or(nothing)
    }

    /// Creates topics, durably: after a crash each is there with all its partitions, or not at all.
    /// However many they are, the catalogue is stored once.
    pub fn create_topics(&self, topics: Vec<NewTopic>) -> Outcomes<Topic> {
        let inner = &*self.inner;
        let mut structure = self.lock_structure()?;
        let mut catalogue = structure.catalogue.clone();
        let planned: Vec<_> = topics
            .into_iter()
            .map(|topic| inner.plan_topic(&mut catalogue, topic))
            .collect();
        let names = planned.iter().flatten();
        let names: BTreeSet<&str> = names.map(|addition| addition.name.as_str()).collect();
        // A recovery point of an older topic of that name must not count for the new one.
        self.note(inner.forget_points(&mut structure, &names))?;
        self.carry_out(&mut structure, catalogue, planned)
    }

    /// Adds partitions to a topic, as `grow_topics` does.
    pub fn add_partitions(&self, name: &str, total: i32) -> Result<Topic, LogError> {
        let mut outcomes = self.grow_topics(&[(name.to_owned(), total)])?;
        let name = name.to_owned();
        let nothing = Err(LogError::UnknownTopic { name });
        outcomes.pop().unwrap_or(nothing)
    }

    /// Adds empty partitions, durably, until each topic has as many as are given with it. After an
    /// error a topic is as it was. However many topics there are, the catalogue is stored once.
    pub fn grow_topics(&self, totals: &[(String, i32)]) -> Outcomes<Topic> {
        let mut structure = self.lock_structure()?;
        let mut catalogue = structure.catalogue.clone();
        let mut grown = BTreeSet::new();
        let planned = totals.iter().map(|(name, total)| {
            let entry = entry_of(&mut catalogue, name)?;
            check_partitions(name, *total)?;
            let added = entry.partitions..*total;
            // Once a change: what the second one adds to depends on what becomes of the first.
            if added.is_empty() || !grown.insert(name) {
                return Err(LogError::InvalidPartitions {
                    name: name.clone(),
                    partitions: *total,
                });
            }
            entry.partitions = *total;
            Ok(Addition::new(name.clone(), entry.clone(), added))
        });
        let planned = planned.collect();
        self.carry_out(&mut structure, catalogue, planned)
    }

    /// Does what was planned: what cannot be done is withdrawn from the catalogue, the rest is
    /// there once that is stored.
    fn carry_out(
        &self,
        structure: &mut Structure,
        mut catalogue: Catalogue,
        mut planned: Vec<Result<Addition, LogError>>,
    ) -> Outcomes<Topic> {
        let inner = &*self.inner;
        for addition in &mut planned {
            inner.make_room(structure, &mut catalogue, addition);
        }
        self.note(structure.retired.sync(&*inner.storage))?;
        let mut made = Vec::with_capacity(planned.len());
        let mut abandoned = Vec::new();
        for addition in planned {
            made.push(addition.and_then(|addition| {
                match self.note(inner.create_partitions(&addition)) {
                    Ok(logs) => Ok((addition, logs)),
                    Err(error) => {
                        addition.withdraw(&mut catalogue);
                        abandoned.extend(addition.directories);
                        Err(error)
                    }
                }
            }));
        }
        self.check()?;
        inner.discard(structure, &abandoned);
        let directories = made.iter().flatten();
        let directories = directories.flat_map(|(addition, _)| &addition.directories);
        let directories: Vec<PathBuf> = directories.cloned().collect();
        if !directories.is_empty() {
            if let Err(error) = self.note(catalogue.store(&*inner.storage)) {
                if !self.poisoned() {
                    inner.discard(structure, &directories);
                }
                return Err(error);
            }
            structure.catalogue = catalogue;
        }
        let publish = |(addition, logs)| self.publish_partitions(addition, logs);
        Ok(made.into_iter().map(|made| made.map(publish)).collect())
    }

    /// Serves what the catalogue has durably.
    fn publish_partitions(&self, addition: Addition, logs: Vec<Arc<PartitionLog>>) -> Topic {
        // The catalogue's own name was synced with those of the directories.
        logs.iter().for_each(|log| log.note_parent_synced());
        let mut topics = self.write_topics();
        let known = topics.by_name.get(&addition.name);
        let mut partitions = known.map_or_else(Vec::new, |topic| topic.partitions.clone());
        partitions.extend(logs);
        let topic = Topic {
            name: addition.name,
            id: addition.entry.id,
            partitions,
            configs: addition.entry.configs,
        };
        topics.insert(topic.clone());
        topic
    }
}

pub(super) fn entry_of<'a>(
    catalogue: &'a mut Catalogue,
    name: &str,
) -> Result<&'a mut TopicEntry, LogError> {
    let entry = catalogue.topics.get_mut(name);
    entry.ok_or_else(|| LogError::UnknownTopic {
        name: name.to_owned(),
    })
}

impl Inner {
    /// Puts a new topic into the catalogue, unless it cannot be.
    fn plan_topic(&self, catalogue: &mut Catalogue, topic: NewTopic) -> Result<Addition, LogError> {
        let NewTopic {
            name,
            partitions,
            configs,
        } = topic;
        catalogue.check_new(&name, partitions)?;
        of_topic(self.defaults(), &name, &configs)?;
        let number = catalogue.next_topic;
        let id = derive_id(&[
            self.cluster_id.as_bytes(),
            &number.to_be_bytes(),
            name.as_bytes(),
        ]);
        let entry = TopicEntry {
            id,
            partitions,
            configs,
        };
        catalogue.next_topic = number + 1;
        catalogue.topics.insert(name.clone(), entry.clone());
        Ok(Addition::new(name, entry, 0..partitions))
    }

    /// Takes away what a deletion has left under the names of new directories. Where something else
    /// has such a name, the topic is refused.
    fn make_room(
        &self,
        structure: &mut Structure,
        catalogue: &mut Catalogue,
        planned: &mut Result<Addition, LogError>,
    ) {
        let Ok(addition) = planned else { return };
        let stale = layout::stale(&*self.storage, &addition.name, &addition.directories);
        let made = stale.and_then(|stale| structure.retired.add(&*self.storage, &stale));
        if let Err(error) = made {
            addition.withdraw(catalogue);
            *planned = Err(error);
        }
    }

    /// The directories and logs of new partitions. Nothing is synced: the directories' names are
    /// with the catalogue's, and what a power cut takes of an empty partition is made again.
    fn create_partitions(&self, addition: &Addition) -> Result<Vec<Arc<PartitionLog>>, LogError> {
        let Addition {
            name,
            entry,
            numbers,
            directories,
        } = addition;
        for path in directories {
            layout::create(&*self.storage, path, entry.id)?;
        }
        let config = DirectoryConfig {
            partition: self.defaults(),
            ..self.config.clone()
        };
        let opening = Opening {
            storage: &self.storage,
            config: &config,
            journal: &self.journal,
        };
        let open = |partition| opening.open_partition(name, entry, partition, Recovery::Clean);
        numbers.clone().map(open).collect()
    }

    /// Takes the names of what a creation that failed has left; `erase_deleted` removes it. What
    /// keeps its name goes at the next opening.
    fn discard(&self, structure: &mut Structure, directories: &[PathBuf]) {
        let there: Vec<PathBuf> = directories
            .iter()
            .filter(|path| self.storage.exists(path).unwrap_or(false))
            .cloned()
            .collect();
        if let Err(error) = structure.retired.add(&*self.storage, &there) {
            tracing::warn!(%error, "directories of a topic that was not created stay for now");
        }
    }
}
