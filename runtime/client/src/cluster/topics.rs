//! Metadata through the cluster: asked for, waited for, remembered.
//!
//! Invariants: one metadata request at a time; callers that come while it is on its way share its
//! answer.
//! Never: keeps asking for a topic that a broker refuses for good.

use futures::future::BoxFuture;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use millstream_protocol::messages::metadata::MetadataRequestTopic;
use millstream_protocol::messages::{MetadataRequest, MetadataResponse};
use millstream_protocol::{ApiKey, ErrorClass, ErrorContext, TopicPartition, Uuid, class};
use tokio::time::Instant;

use super::{Cluster, LeaderHint, NodeId, PartitionMetadata, TopicMetadata, millis};
use crate::error::ClusterError;
use crate::transport::BrokerAddress;

/// Somebody who reads topics for as long as they live.
pub(crate) trait Reads: Send + Sync {
    /// Those topics, now.
    fn topics(&self) -> Vec<Arc<str>>;
}

impl Cluster {
    /// From now on the topics that `reader` names are never forgotten: it may hear of its brokers
    /// for hours without a look at the metadata.
    pub(crate) fn remember_topics_of(&self, reader: Weak<dyn Reads>) {
        let mut readers = self.readers();
        readers.retain(|reader| reader.strong_count() > 0);
        readers.push(reader);
    }

    fn readers(&self) -> MutexGuard<'_, Vec<Weak<dyn Reads>>> {
        let readers = self.inner.readers.lock();
        readers.unwrap_or_else(PoisonError::into_inner)
    }

    /// Never called with a lock held: the readers take their own.
    fn topics_read(&self) -> Vec<Arc<str>> {
        let readers: Vec<_> = self.readers().iter().filter_map(Weak::upgrade).collect();
        readers.iter().flat_map(|reader| reader.topics()).collect()
    }

    /// Asks for metadata of `topics` and of all others in use, and waits for the answer. A topic
    /// that nobody has asked about for a while is forgotten: named again and again, one that was
    /// deleted would be made anew by the broker each time.
    /// Callers that come while a request is on its way share its answer if it covers them.
    ///
    /// # Errors
    /// Where no broker answers: one attempt.
    pub fn refresh_metadata<'a>(
        &'a self,
        topics: &'a [Arc<str>],
    ) -> BoxFuture<'a, Result<(), ClusterError>> {
        Box::pin(async move {
            let seen = self.lock().metadata.version;
            let _turn = self.inner.refreshing.lock().await;
            {
                let state = self.lock();
                let covered = topics.iter().all(|topic| {
                    state.metadata.topic(topic).is_some() || state.metadata.error(topic).is_some()
                });
                // An answer that came after this call began is as fresh as one asked for now.
                if state.metadata.version > seen && covered {
                    return Ok(());
                }
            }
            let topics_read = self.topics_read();
            let names = {
                let now_ms = self.clock().now_ms();
                let idle_ms = i64::try_from(self.inner.config.topic_idle().as_millis());
                let since_ms = now_ms.saturating_sub(idle_ms.unwrap_or(i64::MAX));
                let mut state = self.lock();
                for topic in topics.iter().chain(&topics_read) {
                    state.metadata.used(topic, now_ms);
                }
                state.metadata.forget_unused(since_ms, topics);
                let mut names: Vec<Arc<str>> = state.metadata.topic_names().cloned().collect();
                names.extend(topics.iter().cloned());
                names.sort_unstable();
                names.dedup();
                names
            };
            let topics = names
                .iter()
                .map(|name| MetadataRequestTopic {
                    name: Some(name.to_string()),
                    ..Default::default()
                })
                .collect();
            let response = self.ask_metadata(Some(topics)).await?;
            let now_ms = self.clock().now_ms();
            self.lock().metadata.apply(&response, now_ms);
            Ok(())
        })
    }

    /// Asks for metadata of topics of which only the id is known, and waits for the answer. Ids
    /// that the broker does not know are passed over.
    ///
    /// # Errors
    /// Where no broker answers: one attempt.
    pub fn refresh_topics_by_id<'a>(
        &'a self,
        topic_ids: &'a [Uuid],
    ) -> BoxFuture<'a, Result<(), ClusterError>> {
        Box::pin(async move {
            let topics = topic_ids.iter().map(|topic_id| MetadataRequestTopic {
                topic_id: *topic_id,
                name: None,
            });
            let response = self.ask_metadata(Some(topics.collect())).await?;
            let now_ms = self.clock().now_ms();
            self.lock().metadata.apply(&response, now_ms);
            Ok(())
        })
    }

    /// Metadata of all topics, for listings; it is not cached.
    ///
    /// # Errors
    /// Where no broker answers: one attempt.
    pub fn all_topics(&self) -> BoxFuture<'_, Result<MetadataResponse, ClusterError>> {
        Box::pin(async move { self.ask_metadata(None).await })
    }

    async fn ask_metadata(
        &self,
        topics: Option<Vec<MetadataRequestTopic>>,
    ) -> Result<MetadataResponse, ClusterError> {
        let node = self.any_node()?;
        let request = MetadataRequest {
            topics,
            allow_auto_topic_creation: self.inner.config.allow_auto_create_topics,
            ..Default::default()
        };
        let result = self
            .request(node, request, self.inner.config.request_timeout)
            .await;
        if let Err(error) = &result {
            tracing::debug!(%error, "no metadata");
        }
        Ok(result?)
    }

    /// What is known of a topic, without asking.
    #[must_use]
    pub fn topic(&self, topic: &str) -> Option<TopicMetadata> {
        let now_ms = self.clock().now_ms();
        self.lock().metadata.used(topic, now_ms).cloned()
    }

    /// The topic's id as far as known, else zero.
    #[must_use]
    pub fn topic_id(&self, topic: &str) -> Uuid {
        self.lock()
            .metadata
            .topic(topic)
            .map_or(Uuid::ZERO, |known| known.topic_id)
    }

    /// The name of the topic with this id, as far as known.
    #[must_use]
    pub fn topic_name(&self, topic_id: Uuid) -> Option<Arc<str>> {
        self.lock().metadata.topic_name(topic_id).cloned()
    }

    /// How many partitions a topic has, without asking.
    #[must_use]
    pub fn known_partitions_of(&self, topic: &str) -> Option<i32> {
        let state = self.lock();
        let count = state.metadata.topic(topic)?.partitions.len();
        i32::try_from(count).ok().filter(|count| *count > 0)
    }

    /// The topic's metadata: from the cache, else asked for, again and again until `patience` is
    /// over (a topic may be on its way to be created). Cancelling it loses nothing.
    ///
    /// # Errors
    /// Where it does not come in time, or a broker refuses the topic.
    pub fn topic_within<'a>(
        &'a self,
        topic: &'a str,
        patience: Duration,
    ) -> BoxFuture<'a, Result<TopicMetadata, ClusterError>> {
        Box::pin(async move {
            let started = Instant::now();
            let name: Arc<str> = topic.into();
            let mut attempt = 0;
            loop {
                if let Some(known) = self
                    .topic(topic)
                    .filter(|known| !known.partitions.is_empty())
                {
                    return Ok(known);
                }
                let left = patience.saturating_sub(started.elapsed());
                let asked =
                    tokio::time::timeout(left, self.refresh_metadata(std::slice::from_ref(&name)));
                let last = match asked.await {
                    Err(_) => "no answer".to_owned(),
                    Ok(Err(ClusterError::Request(error))) if error.is_retriable() => {
                        error.to_string()
                    }
                    Ok(Err(error)) => return Err(error),
                    Ok(Ok(())) => {
                        if self.known_partitions_of(topic).is_some() {
                            continue;
                        }
                        self.refused(&name)?
                    }
                };
                let pause = self.retry_pause(attempt);
                if started.elapsed() + pause >= patience {
                    let waited_ms = millis(started.elapsed());
                    return Err(ClusterError::MetadataTimeout {
                        topic: name,
                        waited_ms,
                        last: last.into(),
                    });
                }
                attempt += 1;
                tokio::time::sleep(pause).await;
            }
        })
    }

    /// Why the last answer did not describe the topic; an error where that will not change.
    fn refused(&self, topic: &Arc<str>) -> Result<String, ClusterError> {
        let Some(code) = self.lock().metadata.error(topic) else {
            return Ok("the answer does not mention the topic".to_owned());
        };
        match class(ApiKey::Metadata, code, ErrorContext::Plain) {
            ErrorClass::Retry | ErrorClass::RefreshMetadata | ErrorClass::FindCoordinator => {
                Ok(code.to_string())
            }
            _ => Err(ClusterError::Topic {
                topic: Arc::clone(topic),
                code,
            }),
        }
    }

    /// How many partitions a topic has; asks where it is not known, for `request.timeout.ms`.
    ///
    /// # Errors
    /// As [`Cluster::topic_within`].
    pub fn partitions_of<'a>(&'a self, topic: &'a str) -> BoxFuture<'a, Result<i32, ClusterError>> {
        Box::pin(async move {
            let known = self
                .topic_within(topic, self.inner.config.request_timeout)
                .await?;
            Ok(i32::try_from(known.partitions.len()).unwrap_or(i32::MAX))
        })
    }

    /// Forgets a topic, so that it is no longer part of refreshes.
    pub fn forget_topic(&self, topic: &str) {
        self.lock().metadata.forget_topic(topic);
    }

    /// The partition's leader and its epoch as far as known, without asking.
    #[must_use]
    pub fn partition(&self, partition: &TopicPartition) -> Option<PartitionMetadata> {
        let now_ms = self.clock().now_ms();
        let mut state = self.lock();
        state.metadata.used(&partition.topic, now_ms);
        state.metadata.partition(partition).copied()
    }

    /// The partition's leader as far as known, without asking.
    #[must_use]
    pub fn leader(&self, partition: &TopicPartition) -> Option<NodeId> {
        self.partition(partition).and_then(|known| known.leader)
    }

    /// Whether a broker that is there has a replica of the partition, as far as known.
    #[must_use]
    pub(crate) fn has_replica(&self, partition: &TopicPartition, node: NodeId) -> bool {
        self.lock().metadata.has_replica(partition, node)
    }

    /// Takes over leaders that a broker named in another answer; `nodes` are where it says that
    /// they listen. How many were news.
    pub fn adopt_leaders(
        &self,
        hints: &[LeaderHint],
        nodes: Vec<(NodeId, BrokerAddress)>,
    ) -> usize {
        self.lock().metadata.adopt(hints, nodes)
    }

    /// Counts changes of leaders that have been heard of.
    #[must_use]
    pub fn metadata_changes(&self) -> u64 {
        self.lock().metadata.changes
    }

    /// Milliseconds since the last metadata answer.
    #[must_use]
    pub fn metadata_age_ms(&self) -> i64 {
        self.clock().now_ms() - self.lock().metadata.refreshed_at_ms
    }

    /// The cluster's id, once metadata was seen.
    #[must_use]
    pub fn cluster_id(&self) -> Option<String> {
        self.lock().metadata.cluster_id.clone()
    }

    /// The brokers that the metadata names.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeId> {
        self.lock().metadata.nodes.keys().copied().collect()
    }

    /// The controller, once metadata was seen: topics are created and deleted there.
    #[must_use]
    pub fn controller(&self) -> Option<NodeId> {
        self.lock().metadata.controller
    }
}
