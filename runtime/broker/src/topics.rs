//! The topics that are served, by name and by id, and how topics come and change.
//!
//! Invariants: a topic is in the table only after the directory has it durably, and leaves it, with
//! what groups committed for it, once the directory has it no more; a change that has begun is done
//! in the directory and in the table, whether or not its request is cut meanwhile.
//! Never: changed by two requests at once (one catalogue lock around the disk work).

use crate::node::Node;
use crate::partition::Partition;
use crate::refused::Refused;
use crate::resolution::Resolutions;
use crate::sync_loop::SyncLoop;
use crate::{BrokerError, Clock, topic_settings};
use millstream_log::{LogError, NewTopic, Outcomes, Topic};
use millstream_protocol::{ErrorCode, TopicPartition, Uuid};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::OwnedMutexGuard;

/// More partitions than this in one topic are refused: each one is a folder with open files.
pub(crate) const PARTITIONS_MAX: i32 = 10_000;
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

/// Every topic that is served.
#[derive(Debug)]
pub(crate) struct PartitionTable {
    sync: Arc<SyncLoop>,
    clock: Clock,
    topics: RwLock<Topics>,
    version: AtomicU64,
    names_version: AtomicU64,
    /// What regular expressions match.
    pub(crate) resolutions: Resolutions,
    change: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct Topics {
    by_name: BTreeMap<Arc<str>, Arc<TopicEntry>>,
    by_id: FxHashMap<Uuid, Arc<TopicEntry>>,
}

impl PartitionTable {
    /// A table of what the directory holds.
    pub(crate) fn new(topics: Vec<Topic>, sync: Arc<SyncLoop>, clock: Clock) -> Self {
        let change = Arc::new(tokio::sync::Mutex::new(()));
        let table = Self {
            sync,
            clock,
            topics: RwLock::default(),
            version: AtomicU64::new(0),
            names_version: AtomicU64::new(0),
            resolutions: Resolutions::default(),
            change,
        };
        for topic in topics {
            table.insert(topic);
        }
        table
    }

    /// Held while the directory's catalogue changes, by whoever does that.
    pub(crate) async fn lock_changes(&self) -> OwnedMutexGuard<()> {
        self.change.clone().lock_owned().await
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

    /// Another number whenever a topic has come, gone or grown.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Another number whenever a topic has come or gone.
    pub(crate) fn names_version(&self) -> u64 {
        self.names_version.load(Ordering::Acquire)
    }

    /// The names of all topics, in their order.
    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        self.read().by_name.keys().cloned().collect()
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
        let count = known.as_ref().map(|known| known.partitions.len());
        if known.is_none() {
            self.names_version.fetch_add(1, Ordering::AcqRel);
        }
        // Groups look anew at what they read: not because of other settings.
        if count != Some(entry.partitions.len()) {
            self.version.fetch_add(1, Ordering::AcqRel);
        }
        entry
    }

    pub(crate) fn remove(&self, name: &str) -> Option<Arc<TopicEntry>> {
        let mut topics = self.topics.write().unwrap_or_else(PoisonError::into_inner);
        let entry = topics.by_name.remove(name)?;
        topics.by_id.remove(&entry.id);
        self.names_version.fetch_add(1, Ordering::AcqRel);
        self.version.fetch_add(1, Ordering::AcqRel);
        Some(entry)
    }
}

impl Node {
    /// Creates a topic; the existing one is answered with `TOPIC_ALREADY_EXISTS`.
    async fn create_topic(self: &Arc<Self>, topic: NewTopic) -> Result<Arc<TopicEntry>, ErrorCode> {
        let created = self.create_topics(vec![topic]).await;
        let created = created.into_iter().next();
        created.unwrap_or(Err(ErrorCode::UNKNOWN_SERVER_ERROR))
    }

    /// Creates topics, each with an answer of its own; those that exist are answered with
    /// `TOPIC_ALREADY_EXISTS`.
    pub(crate) async fn create_topics(
        self: &Arc<Self>,
        topics: Vec<NewTopic>,
    ) -> Vec<Result<Arc<TopicEntry>, ErrorCode>> {
        let changing = self.partitions.lock_changes().await;
        let names: Vec<String> = topics.iter().map(|topic| topic.name.clone()).collect();
        let create = move |node: &Node| {
            let created = node.directory.create_topics(topics)?;
            node.serve_topics(created)
        };
        let created = self.in_directory(changing, &names, create).await;
        self.erase_deleted();
        created
    }

    /// Gives a topic the settings that `change` makes of its own ones; with `validate_only` nothing
    /// changes. After an error it has those that it had.
    pub(crate) async fn alter_topic(
        self: &Arc<Self>,
        name: &str,
        validate_only: bool,
        change: impl FnOnce(&BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Refused>,
    ) -> Result<(), Refused> {
        let changing = self.partitions.lock_changes().await;
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
        let owned = name.to_owned();
        let alter = move |node: &Node| {
            let altered = node.directory.alter_topic(&owned, configs)?;
            node.serve_topics(vec![Ok(altered)])
        };
        let altered = self.in_directory(changing, &[name.to_owned()], alter).await;
        let altered: Result<Vec<_>, ErrorCode> = altered.into_iter().collect();
        altered.map(drop).map_err(Refused::failed)
    }

    /// Whether a topic can grow to `total` partitions.
    pub(crate) fn check_growth(&self, name: &str, total: i32) -> Result<(), Refused> {
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
        Ok(())
    }

    /// Adds partitions to topics until each has as many as are given with it. After an error it has
    /// those that it had.
    pub(crate) async fn grow_topics(
        self: &Arc<Self>,
        totals: Vec<(String, i32)>,
    ) -> Vec<Result<(), Refused>> {
        let changing = self.partitions.lock_changes().await;
        let names: Vec<String> = totals.iter().map(|(name, _)| name.clone()).collect();
        let grow = move |node: &Node| {
            let grown = node.directory.grow_topics(&totals)?;
            node.serve_topics(grown)
        };
        let grown = self.in_directory(changing, &names, grow).await;
        self.erase_deleted();
        let grown = grown.into_iter();
        grown
            .map(|grown| grown.map(drop).map_err(Refused::failed))
            .collect()
    }

    /// Changes topics in the directory and in the table; an answer for each of these. It is done to
    /// its end also when who asked for it is gone by then.
    pub(crate) async fn in_directory<T: Send + 'static>(
        self: &Arc<Self>,
        changing: OwnedMutexGuard<()>,
        names: &[String],
        change: impl FnOnce(&Node) -> Outcomes<T> + Send + 'static,
    ) -> Vec<Result<T, ErrorCode>> {
        if names.is_empty() {
            return Vec::new();
        }
        let node = self.clone();
        let change = move || {
            let _one_at_a_time = changing;
            change(&node)
        };
        let changed = self.config.placement.blocking(change).await;
        let for_each = |code| names.iter().map(|_| Err(code)).collect();
        match changed {
            Ok(Ok(outcomes)) => {
                let outcomes = names.iter().zip(outcomes);
                let outcomes = outcomes
                    .map(|(name, outcome)| outcome.map_err(|error| not_changed(name, &error)));
                outcomes.collect()
            }
            Ok(Err(error)) => {
                tracing::error!(?names, %error, "topics not changed");
                for_each(error.error_code())
            }
            Err(error) => for_each(error.error_code()),
        }
    }

    /// Serves what the directory has made.
    fn serve_topics(&self, outcomes: Vec<Result<Topic, LogError>>) -> Outcomes<Arc<TopicEntry>> {
        let insert = |topic| self.partitions.insert(topic);
        Ok(outcomes
            .into_iter()
            .map(|outcome| outcome.map(insert))
            .collect())
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
        let topic = NewTopic {
            name: name.to_owned(),
            partitions,
            configs,
        };
        self.create_topic(topic)
            .await
            .map_err(|code| BrokerError::StorageFailed {
                reason: format!("{name} cannot be created: {code}"),
            })
    }
}

/// Says in the log why a topic was not changed. What clients cause at will is no error of ours.
fn not_changed(topic: &str, error: &LogError) -> ErrorCode {
    let code = error.error_code();
    match code {
        ErrorCode::KAFKA_STORAGE_ERROR => tracing::error!(topic, %error, "topic not changed"),
        _ => tracing::debug!(topic, %error, "topic not changed"),
    }
    code
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
