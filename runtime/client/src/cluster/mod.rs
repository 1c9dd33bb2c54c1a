//! The cluster as a client sees it: connections by broker, metadata, coordinators.
//!
//! Invariants: one attempt to connect to a broker at a time, with growing pauses between failures;
//! one metadata request at a time; APIs that may wait in the broker have connections of their own.
//! Never: repeats a request by itself, since only the caller knows whether that is safe.

mod connection;
mod coordinator;
mod metadata;
mod retry;
mod versions;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_protocol::messages::metadata::MetadataRequestTopic;
use millstream_protocol::messages::{MetadataRequest, MetadataResponse};
use millstream_protocol::{ApiKey, ErrorClass, ErrorContext, Request, TopicPartition, Uuid, class};
use tokio::time::Instant;

pub use connection::{Connection, PendingResponse};
pub use coordinator::CoordinatorKind;
pub(crate) use coordinator::millis;
pub use metadata::{PartitionMetadata, TopicMetadata};
pub use retry::backoff;
pub use versions::BrokerVersions;

use crate::clock::Clock;
use crate::config::ClientConfig;
use crate::error::{ClusterError, RequestError};
use crate::transport::{BrokerAddress, Transport};

/// A broker's id. Bootstrap addresses, whose ids are not known yet, have negative ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub i32);

impl fmt::Display for NodeId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 0 {
            write!(formatter, "bootstrap-{}", -i64::from(self.0) - 1)
        } else {
            write!(formatter, "{}", self.0)
        }
    }
}

/// Connections to one broker are apart by what may wait in the broker: answers come in the order
/// of requests, so a long poll would hold up whatever stands behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    General,
    Fetch,
    Group,
}

impl Lane {
    fn of(api: ApiKey) -> Self {
        match api {
            ApiKey::Fetch => Self::Fetch,
            // Commits and goodbyes are answered at once and must not stand behind a join.
            ApiKey::JoinGroup | ApiKey::SyncGroup | ApiKey::Heartbeat => Self::Group,
            _ => Self::General,
        }
    }
}

/// The engine under every client. Cheap to clone; clones share connections and caches.
#[derive(Clone, Debug)]
pub struct Cluster {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    transport: Arc<dyn Transport>,
    bootstrap: Vec<BrokerAddress>,
    config: ClientConfig,
    state: Mutex<State>,
    /// Single flight of metadata requests.
    refreshing: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State {
    metadata: metadata::Metadata,
    connections: BTreeMap<(NodeId, Lane), Arc<Slot>>,
    coordinators: BTreeMap<(CoordinatorKind, Arc<str>), NodeId>,
    random: fastrand::Rng,
    /// Moves on when a broker fails, so that the next question goes to another one.
    rotation: usize,
}

/// The place of one connection, open or not.
#[derive(Debug, Default)]
struct Slot {
    open: Mutex<Option<Arc<Connection>>>,
    /// Held by whoever connects.
    connecting: tokio::sync::Mutex<Failures>,
}

#[derive(Debug, Default)]
struct Failures {
    count: u32,
    not_before: Option<Instant>,
}

impl Slot {
    fn current(&self) -> Option<Arc<Connection>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.as_ref()
            .filter(|connection| connection.is_open())
            .map(Arc::clone)
    }
}

impl Cluster {
    /// A cluster behind a transport. Connects to nobody yet.
    #[must_use]
    pub fn new(transport: Arc<dyn Transport>, config: ClientConfig) -> Self {
        let state = State {
            metadata: metadata::Metadata::default(),
            connections: BTreeMap::new(),
            coordinators: BTreeMap::new(),
            random: fastrand::Rng::with_seed(config.seed),
            rotation: 0,
        };
        let bootstrap = transport.bootstrap();
        Self {
            inner: Arc::new(Inner {
                transport,
                bootstrap,
                config,
                state: Mutex::new(state),
                refreshing: tokio::sync::Mutex::new(()),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &ClientConfig {
        &self.inner.config
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.inner.config.clock
    }

    /// A number below `bound` from the seeded generator; 0 where the bound is 0.
    #[must_use]
    pub fn random_below(&self, bound: u32) -> u32 {
        if bound == 0 {
            0
        } else {
            self.lock().random.u32(0..bound)
        }
    }

    /// The pause before a request is repeated for the `attempt`th time (from 0).
    #[must_use]
    pub fn retry_pause(&self, attempt: u32) -> Duration {
        let random = self.lock().random.f64();
        let config = self.config();
        backoff(
            config.retry_backoff,
            config.retry_backoff_max,
            attempt,
            random,
        )
    }

    /// Some broker that can be asked things that every broker knows: one with an open connection,
    /// else the next in turn.
    ///
    /// # Errors
    /// Where the transport names no bootstrap address and no metadata was seen.
    pub fn any_node(&self) -> Result<NodeId, ClusterError> {
        let state = self.lock();
        let mut candidates: Vec<NodeId> = state.metadata.nodes.keys().copied().collect();
        candidates.extend(
            (1..)
                .map(|i: i32| NodeId(-i))
                .take(self.inner.bootstrap.len()),
        );
        let connected = candidates.iter().find(|node| {
            let slot = state.connections.get(&(**node, Lane::General));
            slot.is_some_and(|slot| slot.current().is_some())
        });
        let next = || {
            let turn = state.rotation.checked_rem(candidates.len())?;
            candidates.get(turn)
        };
        connected
            .or_else(next)
            .copied()
            .ok_or(ClusterError::NoBootstrap)
    }

    fn address(&self, node: NodeId) -> Option<BrokerAddress> {
        if node.0 < 0 {
            let index = usize::try_from(-i64::from(node.0) - 1).ok()?;
            return self.inner.bootstrap.get(index).cloned();
        }
        self.lock().metadata.nodes.get(&node).cloned()
    }

    fn slot(&self, node: NodeId, lane: Lane) -> Arc<Slot> {
        Arc::clone(self.lock().connections.entry((node, lane)).or_default())
    }

    /// The open connection to a broker for requests of `api`, without waiting.
    #[must_use]
    pub fn open_connection(&self, node: NodeId, api: ApiKey) -> Option<Arc<Connection>> {
        self.slot(node, Lane::of(api)).current()
    }

    /// The connection to a broker for requests of `api`: the open one, else one attempt to
    /// connect, after the pause that earlier failures demand. Cancelling it loses nothing.
    ///
    /// # Errors
    /// Where the broker is not known, cannot be reached or does not finish the handshake within
    /// `timeout`. Nothing was sent then.
    pub async fn connection(
        &self,
        node: NodeId,
        api: ApiKey,
        timeout: Duration,
    ) -> Result<Arc<Connection>, RequestError> {
        let slot = self.slot(node, Lane::of(api));
        if let Some(connection) = slot.current() {
            return Ok(connection);
        }
        match tokio::time::timeout(timeout, self.connect(&slot, node, api)).await {
            Ok(result) => result,
            Err(_) => Err(RequestError::Timeout {
                node,
                api,
                timeout_ms: millis(timeout),
                sent: false,
            }),
        }
    }

    async fn connect(
        &self,
        slot: &Slot,
        node: NodeId,
        api: ApiKey,
    ) -> Result<Arc<Connection>, RequestError> {
        let mut failures = slot.connecting.lock().await;
        if let Some(connection) = slot.current() {
            return Ok(connection);
        }
        let address = self
            .address(node)
            .ok_or(RequestError::UnknownNode { node })?;
        if let Some(not_before) = failures.not_before {
            tokio::time::sleep_until(not_before).await;
        }
        // Counted first, so that an attempt that is cancelled half-way counts as well.
        let pause = {
            let mut state = self.lock();
            let random = state.random.f64();
            let config = self.config();
            backoff(
                config.reconnect_backoff,
                config.reconnect_backoff_max,
                failures.count,
                random,
            )
        };
        failures.count = failures.count.saturating_add(1);
        failures.not_before = Some(Instant::now() + pause);
        let setup = self.inner.config.connect_timeout;
        let attempt = tokio::time::timeout(setup, self.inner.transport.connect(&address)).await;
        let refused = match attempt {
            Ok(Ok(frames)) => {
                let client_id = &self.inner.config.client_id;
                match Connection::open(node, frames, client_id, setup).await {
                    Ok(connection) => {
                        *failures = Failures::default();
                        let connection = Arc::new(connection);
                        *slot.open.lock().unwrap_or_else(PoisonError::into_inner) =
                            Some(Arc::clone(&connection));
                        return Ok(connection);
                    }
                    Err(error) => error.to_string(),
                }
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("not connected within {} ms", millis(setup)),
        };
        self.lock().rotation += 1;
        tracing::debug!(%node, %address, reason = %refused, "cannot connect to the broker");
        let reason = format!("cannot connect to {address}: {refused}").into();
        Err(RequestError::Disconnected {
            node,
            api,
            sent: false,
            reason,
        })
    }

    /// Sends one request to one broker and waits for the answer: one attempt, connecting where
    /// needed. Dropping the future may leave the request sent.
    ///
    /// # Errors
    /// Says whether the request may have been written ([`RequestError::may_have_been_sent`]).
    pub async fn request<R: Request>(
        &self,
        node: NodeId,
        request: R,
        timeout: Duration,
    ) -> Result<R::Response, RequestError> {
        self.request_with(node, timeout, i16::MAX, |_| request)
            .await
    }

    /// As [`Cluster::request`], with the request built for the version that both sides speak, at
    /// most `cap`.
    ///
    /// # Errors
    /// As [`Cluster::request`].
    pub async fn request_with<R: Request>(
        &self,
        node: NodeId,
        timeout: Duration,
        cap: i16,
        build: impl FnOnce(i16) -> R,
    ) -> Result<R::Response, RequestError> {
        let started = Instant::now();
        let connection = self.connection(node, R::API, timeout).await?;
        let version = connection.version(R::API, cap)?;
        let pending = connection.start_at(version, &build(version))?;
        let left = timeout
            .saturating_sub(started.elapsed())
            .max(Duration::from_millis(1));
        let result = pending.response::<R>(left).await;
        if result.is_err() {
            self.lock().rotation += 1;
        }
        result
    }

    /// Asks for metadata of `topics` and of all topics known already, and waits for the answer.
    /// Callers that come while a request is on its way share its answer if it covers them.
    ///
    /// # Errors
    /// Where no broker answers: one attempt.
    pub async fn refresh_metadata(&self, topics: &[Arc<str>]) -> Result<(), ClusterError> {
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
        let names = {
            let state = self.lock();
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
    }

    /// Metadata of all topics, for listings; it is not cached.
    ///
    /// # Errors
    /// Where no broker answers: one attempt.
    pub async fn all_topics(&self) -> Result<MetadataResponse, ClusterError> {
        self.ask_metadata(None).await
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
        self.lock().metadata.topic(topic).cloned()
    }

    /// The topic's id as far as known, else zero.
    #[must_use]
    pub fn topic_id(&self, topic: &str) -> Uuid {
        self.lock()
            .metadata
            .topic(topic)
            .map_or(Uuid::ZERO, |known| known.topic_id)
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
    pub async fn topic_within(
        &self,
        topic: &str,
        patience: Duration,
    ) -> Result<TopicMetadata, ClusterError> {
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
                Ok(Err(ClusterError::Request(error))) if error.is_retriable() => error.to_string(),
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
    pub async fn partitions_of(&self, topic: &str) -> Result<i32, ClusterError> {
        let known = self
            .topic_within(topic, self.inner.config.request_timeout)
            .await?;
        Ok(i32::try_from(known.partitions.len()).unwrap_or(i32::MAX))
    }

    /// Forgets a topic, so that it is no longer part of refreshes.
    pub fn forget_topic(&self, topic: &str) {
        self.lock().metadata.forget_topic(topic);
    }

    /// The partition's leader and its epoch as far as known, without asking.
    #[must_use]
    pub fn partition(&self, partition: &TopicPartition) -> Option<PartitionMetadata> {
        self.lock().metadata.partition(partition).copied()
    }

    /// The partition's leader as far as known, without asking.
    #[must_use]
    pub fn leader(&self, partition: &TopicPartition) -> Option<NodeId> {
        self.partition(partition).and_then(|known| known.leader)
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

    /// The coordinator of `key`, asked for during `request.timeout.ms` at most.
    ///
    /// # Errors
    /// As [`Cluster::coordinator_within`].
    pub async fn coordinator(
        &self,
        kind: CoordinatorKind,
        key: &str,
    ) -> Result<NodeId, ClusterError> {
        self.coordinator_within(kind, key, self.inner.config.request_timeout)
            .await
    }

    /// The finalised level of a cluster feature, as some broker says it; 0 where absent.
    ///
    /// # Errors
    /// Where no broker answers: one attempt.
    pub async fn feature(&self, name: &str) -> Result<i16, ClusterError> {
        let node = self.any_node()?;
        let timeout = self.inner.config.request_timeout;
        let connection = self.connection(node, ApiKey::ApiVersions, timeout).await?;
        Ok(connection.versions().feature(name))
    }

    /// Closes every connection. Requests that wait fail.
    pub fn disconnect(&self) {
        let slots = std::mem::take(&mut self.lock().connections);
        for slot in slots.values() {
            if let Some(connection) = slot.current() {
                connection.close("the client was closed");
            }
        }
    }
}

#[cfg(test)]
mod tests;
