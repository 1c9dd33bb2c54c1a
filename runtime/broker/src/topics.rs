//! The topics that are served, by name and by id, and how topics come, change and go.
//!
//! Invariants: a topic is in the table only after the directory has it durably, and leaves it, with
//! what groups committed for it, once the directory has it no more.
//! Never: changed by two requests at once (one catalogue lock around the disk work).

use crate::node::Node;
use crate::partition::Partition;
use crate::pattern::Pattern;
use crate::refused::Refused;
use crate::sync_loop::SyncLoop;
use crate::{BrokerError, Clock, topic_settings};
use millstream_log::{LogDirectory, LogError, Topic};
use millstream_protocol::{ErrorCode, TopicPartition, Uuid};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// More partitions than this in one topic are refused: each one is a folder with open files.
pub(crate) const PARTITIONS_MAX: i32 = 10_000;
/// Regular expressions whose topics are remembered.
const RESOLVED_MAX: usize = 256;
/// The topic of the transaction coordinator's log.
pub(crate) const TRANSACTION_STATE_TOPIC: &str = "__transaction_state";
/// The topic of the group coordinator's log.
pub(crate) const CONSUMER_OFFSETS_TOPIC: &str = "__consumer_offsets";

/// A topic that is served.
#[derive(Debug)]
pub(crate) struct TopicEntry {
    pub(crate) name: Arc<str>,
    pub(crate) id: Uuid,
    pub(crate) partitions: Vec<Arc<Partition>>,
    pub(crate) configs: BTreeMap<String, String>,
}

impl TopicEntry {
    /// Whether this is one of the coordinators' topics.
    pub(crate) fn is_internal(&self) -> bool {
        is_internal(&self.name)
    }

    /// The partition with that number, if there is one.
    pub(crate) fn partition(&self, index: i32) -> Option<&Arc<Partition>> {
        self.partitions.get(usize::try_from(index).ok()?)
    }
}

/// Which topics regular expressions match, as long as the topics stay as they are.
#[derive(Debug, Default)]
struct Resolved {
    version: u64,
    by_regex: FxHashMap<String, Arc<[String]>>,
}

/// Every topic that is served.
#[derive(Debug)]
pub(crate) struct PartitionTable {
    sync: Arc<SyncLoop>,
    clock: Clock,
    topics: RwLock<Topics>,
    version: AtomicU64,
    resolved: Mutex<Resolved>,
    change: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Topics {
    by_name: BTreeMap<Arc<str>, Arc<TopicEntry>>,
    by_id: FxHashMap<Uuid, Arc<TopicEntry>>,
}

impl PartitionTable {
    /// A table of what the directory holds.
    pub(crate) fn new(topics: Vec<Topic>, sync: Arc<SyncLoop>, clock: Clock) -> Self {
        let change = tokio::sync::Mutex::new(());
        let table = Self {
            sync,
            clock,
            topics: RwLock::default(),
            version: AtomicU64::new(0),
            resolved: Mutex::default(),
            change,
        };
        for topic in topics {
            table.insert(topic);
        }
        table
    }

    /// Held while the directory's catalogue changes.
    pub(crate) async fn lock_changes(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.change.lock().await
    }

    /// The topic of that name.
    pub(crate) fn topic(&self, name: &str) -> Option<Arc<TopicEntry>> {
        self.read().by_name.get(name).cloned()
    }

    /// The topic with that id.
    pub(crate) fn topic_by_id(&self, id: Uuid) -> Option<Arc<TopicEntry>> {
        self.read().by_id.get(&id).cloned()
    }

    /// All topics, by name.
    pub(crate) fn topics(&self) -> Vec<Arc<TopicEntry>> {
        self.read().by_name.values().cloned().collect()
    }

    /// One partition of a topic.
    pub(crate) fn partition(&self, topic: &str, index: i32) -> Option<Arc<Partition>> {
        self.read().by_name.get(topic)?.partition(index).cloned()
    }

    /// Another number whenever a topic has come, gone, grown or changed.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The names of the topics that a regular expression matches, without those of the
    /// coordinators; none if it is not understood. An expression is looked at once for each version
    /// of the table.
    pub(crate) fn matching(&self, regex: &str) -> Arc<[String]> {
        let version = self.version();
        let resolved = || self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let known = resolved();
            if let (true, Some(names)) = (known.version == version, known.by_regex.get(regex)) {
                return names.clone();
            }
        }
        let Ok(pattern) = Pattern::parse(regex) else {
            return Arc::default();
        };
        let topics = self.topics().into_iter();
        let topics = topics.filter(|topic| !topic.is_internal() && pattern.matches(&topic.name));
        let names: Arc<[String]> = topics.map(|topic| topic.name.to_string()).collect();
        let mut known = resolved();
        if known.version != version || known.by_regex.len() >= RESOLVED_MAX {
            known.by_regex.clear();
            known.version = version;
        }
        known.by_regex.insert(regex.to_owned(), names.clone());
        names
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Topics> {
        self.topics.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, topic: Topic) -> Arc<TopicEntry> {
        let name: Arc<str> = Arc::from(&*topic.name);
        // Partitions that are served already keep those who wait for them.
        let known = self.topic(&name).filter(|known| known.id == topic.id);
        let partitions = topic.partitions.into_iter().zip(0..).map(|(log, index)| {
            let known = known.as_ref().and_then(|known| known.partition(index));
            if let Some(partition) = known {
                return partition.clone();
            }
            let partition = TopicPartition::new(name.clone(), index);
            Partition::new(partition, log, self.sync.clone(), self.clock)
        });
        let entry = Arc::new(TopicEntry {
            name: name.clone(),
            id: topic.id,
            partitions: partitions.collect(),
            configs: topic.configs,
        });
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        topics.by_id.insert(entry.id, entry.clone());
        topics.by_name.insert(name, entry.clone());
        self.version.fetch_add(1, Ordering::AcqRel);
        entry
    }

    fn remove(&self, name: &str) -> Option<Arc<TopicEntry>> {
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        let entry = topics.by_name.remove(name)?;
        topics.by_id.remove(&entry.id);
        self.version.fetch_add(1, Ordering::AcqRel);
        Some(entry)
    }
}

impl Node {
    /// Creates a topic; the existing one is answered with `TOPIC_ALREADY_EXISTS`.
    pub(crate) async fn create_topic(
        self: &Arc<Self>,
        name: &str,
        partitions: i32,
        configs: BTreeMap<String, String>,
    ) -> Result<Arc<TopicEntry>, ErrorCode> {
        let _one_at_a_time = self.partitions.lock_changes().await;
        if self.partitions.topic(name).is_some() {
            return Err(ErrorCode::TOPIC_ALREADY_EXISTS);
        }
        let (directory, owned) = (self.directory.clone(), name.to_owned());
        let created = self
            .config
            .placement
            .blocking(move || directory.create_topic(&owned, partitions, configs))
            .await
            .map_err(|error| error.error_code())?;
        match created {
            Ok(topic) => Ok(self.partitions.insert(topic)),
            Err(error) => {
                tracing::error!(topic = name, %error, "topic not created");
                Err(error.error_code())
            }
        }
    }

    /// Gives a topic the settings that `change` makes of its own ones; with `validate_only` nothing
    /// changes. After an error it has those that it had.
    pub(crate) async fn alter_topic(
        self: &Arc<Self>,
        name: &str,
        validate_only: bool,
        change: impl FnOnce(&BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Refused>,
    ) -> Result<(), Refused> {
        let _one_at_a_time = self.partitions.lock_changes().await;
        let entry = self.partitions.topic(name);
        let entry = entry.ok_or_else(|| Refused::unknown_topic(name))?;
        let configs = change(&entry.configs)?;
        let configs = topic_settings::checked(&configs, &self.layers())
            .map_err(|message| Refused::new(ErrorCode::INVALID_CONFIG, message))?;
        let policy = |configs: &BTreeMap<String, String>| configs.get("cleanup.policy").cloned();
        if entry.is_internal() && policy(&configs) != policy(&entry.configs) {
            let message = format!("the cleanup.policy of '{name}' is the coordinator's");
            return Err(Refused::new(ErrorCode::INVALID_CONFIG, message));
        }
        if validate_only || configs == entry.configs {
            return Ok(());
        }
        self.restructure(name, move |directory, name| {
            directory.alter_topic(name, configs)
        })
        .await
    }

    /// Adds partitions to a topic until it has `total`; with `validate_only` nothing changes. After
    /// an error it has those that it had.
    pub(crate) async fn add_partitions(
        self: &Arc<Self>,
        name: &str,
        total: i32,
        validate_only: bool,
    ) -> Result<(), Refused> {
        let _one_at_a_time = self.partitions.lock_changes().await;
        let entry = self.partitions.topic(name);
        let count = entry.ok_or_else(|| Refused::unknown_topic(name))?;
        let count = i32::try_from(count.partitions.len()).unwrap_or(i32::MAX);
        let refused = |message| Err(Refused::new(ErrorCode::INVALID_PARTITIONS, message));
        if total == count {
            return refused(format!("topic '{name}' has {count} partition(s) already"));
        }
        if total < count {
            return refused(format!(
                "topic '{name}' has {count} partition(s); {total} would not be an increase"
            ));
        }
        if total > PARTITIONS_MAX {
            return refused(format!("{total} partitions: at most {PARTITIONS_MAX}"));
        }
        if validate_only {
            return Ok(());
        }
        self.restructure(name, move |directory, name| {
            directory.add_partitions(name, total)
        })
        .await
    }

    /// Changes a topic in the directory, and then in the table.
    async fn restructure(
        &self,
        name: &str,
        change: impl FnOnce(&LogDirectory, &str) -> Result<Topic, LogError> + Send + 'static,
    ) -> Result<(), Refused> {
        let (directory, owned) = (self.directory.clone(), name.to_owned());
        let changed = self
            .config
            .placement
            .blocking(move || change(&directory, &owned))
            .await
            .map_err(|error| Refused::failed(error.error_code()))?;
        match changed {
            Ok(topic) => {
                self.partitions.insert(topic);
                Ok(())
            }
            Err(error) => {
                tracing::error!(topic = name, %error, "topic not changed");
                Err(Refused::failed(error.error_code()))
            }
        }
    }

    /// Deletes a topic with all its data. After an error it is served as before.
    pub(crate) async fn delete_topic(self: &Arc<Self>, name: &str) -> Result<(), ErrorCode> {
        let _one_at_a_time = self.partitions.lock_changes().await;
        self.partitions
            .topic(name)
            .ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
        let (directory, owned) = (self.directory.clone(), name.to_owned());
        let deleted = self
            .config
            .placement
            .blocking(move || directory.delete_topic(&owned))
            .await
            .map_err(|error| error.error_code())?;
        deleted.map_err(|error| {
            tracing::error!(topic = name, %error, "topic not deleted");
            error.error_code()
        })?;
        if let Some(entry) = self.partitions.remove(name) {
            for partition in &entry.partitions {
                // Whoever waits for records of it has waited long enough.
                partition.wake();
            }
        }
        self.groups.forget_topic(name, self.now_ms());
        Ok(())
    }

    /// Creates one of the coordinators' topics unless it is there.
    pub(crate) async fn ensure_internal_topic(
        self: &Arc<Self>,
        name: &'static str,
    ) -> Result<Arc<TopicEntry>, BrokerError> {
        if let Some(topic) = self.partitions.topic(name) {
            return Ok(topic);
        }
        let partitions = match name {
            TRANSACTION_STATE_TOPIC => self.config.transaction_state_log_num_partitions,
            _ => self.config.offsets_topic_num_partitions,
        };
        let configs = BTreeMap::from([("cleanup.policy".to_owned(), "compact".to_owned())]);
        self.create_topic(name, partitions, configs)
            .await
            .map_err(|code| BrokerError::StorageFailed {
                reason: format!("{name} cannot be created: {code}"),
            })
    }
}

/// Whether a topic belongs to a coordinator.
pub(crate) fn is_internal(name: &str) -> bool {
    matches!(name, TRANSACTION_STATE_TOPIC | CONSUMER_OFFSETS_TOPIC)
}

/// The partition of an internal topic that holds a group or transactional id, as Kafka places it:
/// Java's string hash without its sign, modulo the number of partitions.
pub(crate) fn internal_partition_of(id: &str, partitions: i32) -> i32 {
    let hash = id.encode_utf16().fold(0_i32, |hash, unit| {
        hash.wrapping_mul(31).wrapping_add(i32::from(unit))
    });
    hash.checked_abs().unwrap_or(0) % partitions.max(1)
}

/// Why Kafka refuses a topic name, if it does.
pub(crate) fn invalid_topic_name(name: &str) -> Option<&'static str> {
    match name {
        "" => Some("the topic name is empty"),
        "." | ".." => Some("the topic name cannot be '.' or '..'"),
        _ if name.len() > 249 => Some("the topic name is longer than 249 characters"),
        _ if name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) =>
        {
            None
        }
        _ => Some("the topic name has a character other than ASCII letters, digits, '.', '_', '-'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_placed_as_java_places_them() {
        // "hello".hashCode() is 99162322; "polygenelubricants".hashCode() is i32::MIN.
        assert_eq!(internal_partition_of("hello", 50), 99_162_322 % 50);
        assert_eq!(internal_partition_of("polygenelubricants", 50), 0);
        assert_eq!(internal_partition_of("", 4), 0);
    }

    #[test]
    fn topic_names_are_checked() {
        assert_eq!(invalid_topic_name("orders.enriched_v-1"), None);
        for bad in ["", ".", "..", "a/b", "a b", "ä", &"x".repeat(250)] {
            assert!(invalid_topic_name(bad).is_some(), "{bad}");
        }
    }
}
