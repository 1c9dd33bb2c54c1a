//! The cluster as a client sees it: connections by broker, metadata, coordinators.
//!
//! Invariants: one attempt to connect to a broker at a time, with growing pauses between failures;
//! one metadata request at a time; APIs that may wait in the broker have connections of their own.
//! Never: repeats a request by itself, since only the caller knows whether that is safe.

mod authentication;
mod connection;
mod coordinator;
mod establish;
mod metadata;
mod retry;
mod topics;
mod versions;

use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use millstream_protocol::{ApiKey, EncodeError, Frame, Request, encode_request};
use tokio::runtime::Handle;
use tokio::time::Instant;

use connection::Answer;
pub use connection::{Connection, PendingResponse, Unanswered};
pub use coordinator::CoordinatorKind;
pub(crate) use coordinator::millis;
use establish::{Establish, Refusal};
pub use metadata::{LeaderHint, PartitionMetadata, TopicMetadata};
pub use retry::backoff;
pub(crate) use topics::Reads;
pub use versions::BrokerVersions;

use crate::clock::Clock;
use crate::config::ClientConfig;
use crate::error::{ClusterError, ConfigError, RequestError};
use crate::security::Prepared;
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

/// Makes a request's frame from the version, its correlation id and the client id.
type EncodeVersion<'a> = Box<dyn FnOnce(i16, i32, &str) -> Result<Frame, EncodeError> + Send + 'a>;

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
            ApiKey::JoinGroup
            | ApiKey::SyncGroup
            | ApiKey::Heartbeat
            | ApiKey::ConsumerGroupHeartbeat => Self::Group,
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
    /// A mistake in it is the answer to every request.
    security: Result<Arc<Prepared>, ConfigError>,
    state: Mutex<State>,
    /// Single flight of metadata requests.
    refreshing: tokio::sync::Mutex<()>,
    /// Whose topics stay part of refreshes however long nobody looks at them.
    readers: Mutex<Vec<Weak<dyn topics::Reads>>>,
    /// Where connections live: the runtime that made the cluster, or that first used it.
    runtime: OnceLock<Handle>,
}

#[derive(Debug)]
struct State {
    metadata: metadata::Metadata,
    /// The state of another cluster's metadata that the nodes are of.
    nodes_as_of: u64,
    connections: BTreeMap<(NodeId, Lane), Arc<Slot>>,
    coordinators: BTreeMap<(CoordinatorKind, Arc<str>), NodeId>,
    random: fastrand::Rng,
    /// Moves on when a broker fails, so that the next question goes to another one.
    rotation: usize,
    /// Why the last attempt to connect failed, where trying again does not help.
    refusal: Option<RequestError>,
    /// Client and some broker have trusted each other once.
    trusted: bool,
    /// Attempts to connect that were refused for good before that.
    refusals: usize,
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
            nodes_as_of: 0,
            connections: BTreeMap::new(),
            coordinators: BTreeMap::new(),
            random: fastrand::Rng::with_seed(config.seed),
            rotation: 0,
            refusal: None,
            trusted: false,
            refusals: 0,
        };
        let bootstrap = transport.bootstrap();
        let security = if config.security.is_unset() {
            transport.security().prepare()
        } else {
            config.security.prepare()
        };
        Self {
            inner: Arc::new(Inner {
                transport,
                bootstrap,
                security,
                config,
                state: Mutex::new(state),
                refreshing: tokio::sync::Mutex::new(()),
                readers: Mutex::default(),
                runtime: Handle::try_current().map_or_else(|_| OnceLock::new(), OnceLock::from),
            }),
        }
    }

    /// Takes over where brokers are from another cluster of the same ones, if that has learnt
    /// something since the last time.
    pub(crate) fn share_nodes_of(&self, other: &Cluster) {
        let known = self.lock().nodes_as_of;
        let news = {
            let state = other.lock();
            let changes = state.metadata.changes;
            (changes != known).then(|| (changes, state.metadata.nodes.clone()))
        };
        if let Some((changes, nodes)) = news {
            let mut state = self.lock();
            (state.nodes_as_of, state.metadata.nodes) = (changes, nodes);
        }
    }

    /// Beside another cluster of the same brokers, by which they have been trusted.
    #[must_use]
    pub(crate) fn trusting(self) -> Self {
        self.lock().trusted = true;
        self
    }

    fn runtime(&self) -> &Handle {
        self.inner.runtime.get_or_init(Handle::current)
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
    pub fn connection(
        &self,
        node: NodeId,
        api: ApiKey,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Arc<Connection>, RequestError>> {
        Box::pin(async move {
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
        })
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
        let random = self.lock().random.f64();
        let config = self.config();
        let pause = backoff(
            config.reconnect_backoff,
            config.reconnect_backoff_max,
            failures.count,
            random,
        );
        failures.count = failures.count.saturating_add(1);
        failures.not_before = Some(Instant::now() + pause);
        let establish = Establish {
            transport: Arc::clone(&self.inner.transport),
            security: self.inner.security.clone(),
            address: address.clone(),
            node,
            client_id: config.client_id.clone(),
            setup: config.connect_timeout,
            random,
        };
        // The caller may be on a runtime of its own that has no sockets, or that a user's closure
        // blocks: a connection's tasks belong where the cluster began.
        let established = self.runtime().spawn(establish.run()).await;
        let refused = match established {
            Ok(Ok(connection)) => {
                *failures = Failures::default();
                {
                    let mut state = self.lock();
                    (state.refusal, state.trusted) = (None, true);
                }
                let connection = Arc::new(connection);
                *slot.open.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(Arc::clone(&connection));
                return Ok(connection);
            }
            Ok(Err(refused)) => refused,
            Err(ended) => Refusal::Passing(ended.to_string()),
        };
        Err(self.not_connected(node, api, &address, refused, failures.count))
    }

    /// What a failed attempt to connect means.
    fn not_connected(
        &self,
        node: NodeId,
        api: ApiKey,
        address: &BrokerAddress,
        refused: Refusal,
        failures: u32,
    ) -> RequestError {
        let mut state = self.lock();
        state.rotation += 1;
        let reason = match refused {
            Refusal::Passing(reason) => reason,
            Refusal::Lasting(error) => {
                if failures == 1 {
                    tracing::error!(%error, "client and broker do not trust each other");
                }
                state.refusals = state.refusals.saturating_add(1);
                // What may be wrong with one broker alone is tried on: others have been trusted,
                // or have not been asked yet.
                let untried = state.refusals < self.inner.bootstrap.len();
                if (state.trusted || untried) && error.is_of_one_broker() {
                    return RequestError::Disconnected {
                        node,
                        api,
                        sent: false,
                        reason: error.to_string().into(),
                    };
                }
                let refusal = RequestError::Security { node, api, error };
                state.refusal = Some(refusal.clone());
                return refusal;
            }
        };
        // Said once an outage: whoever waits should know what for.
        if failures == 1 {
            tracing::warn!(%address, %reason, "the broker does not answer; trying on");
        } else {
            tracing::debug!(%node, %address, %reason, "cannot connect to the broker");
        }
        let reason = format!("cannot connect to {address}: {reason}").into();
        RequestError::Disconnected {
            node,
            api,
            sent: false,
            reason,
        }
    }

    /// Why the last attempt to connect failed, where client and broker do not trust each other:
    /// for whoever waits for something that others ask for. Told once an attempt.
    #[must_use]
    pub(crate) fn take_refusal(&self) -> Option<RequestError> {
        self.lock().refusal.take()
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
        build: impl FnOnce(i16) -> R + Send,
    ) -> Result<R::Response, RequestError> {
        let encode = |version, correlation_id, client_id: &str| {
            encode_request(version, correlation_id, Some(client_id), &build(version))
        };
        let answer = self
            .exchange(node, R::API, timeout, cap, Box::new(encode))
            .await?;
        let response = answer.decode::<R>();
        if response.is_err() {
            self.lock().rotation += 1;
        }
        response
    }

    /// [`Cluster::request_with`] without the request's type, so that it is compiled once.
    fn exchange<'a>(
        &'a self,
        node: NodeId,
        api: ApiKey,
        timeout: Duration,
        cap: i16,
        encode: EncodeVersion<'a>,
    ) -> BoxFuture<'a, Result<Answer, RequestError>> {
        Box::pin(async move {
            let started = Instant::now();
            let connection = self.connection(node, api, timeout).await?;
            let version = connection.version(api, cap)?;
            let encode = Box::new(move |correlation_id, client_id: &str| {
                encode(version, correlation_id, client_id)
            });
            let pending = connection.start(api, version, encode)?;
            let left = timeout
                .saturating_sub(started.elapsed())
                .max(Duration::from_millis(1));
            let result = pending.answered(left).await;
            if result.is_err() {
                self.lock().rotation += 1;
            }
            result
        })
    }

    /// The coordinator of `key`, asked for during `request.timeout.ms` at most.
    ///
    /// # Errors
    /// As [`Cluster::coordinator_within`].
    pub fn coordinator<'a>(
        &'a self,
        kind: CoordinatorKind,
        key: &'a str,
    ) -> BoxFuture<'a, Result<NodeId, ClusterError>> {
        Box::pin(async move {
            self.coordinator_within(kind, key, self.inner.config.request_timeout)
                .await
        })
    }

    /// The finalised level of a cluster feature, as some broker says it; 0 where absent.
    ///
    /// # Errors
    /// Where no broker answers: one attempt.
    pub fn feature<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<i16, ClusterError>> {
        Box::pin(async move {
            let node = self.any_node()?;
            let timeout = self.inner.config.request_timeout;
            let connection = self.connection(node, ApiKey::ApiVersions, timeout).await?;
            Ok(connection.versions().feature(name))
        })
    }

    /// Waits until the transport has taken over what was sent on the connections for `api`.
    pub(crate) async fn drained(&self, api: ApiKey) {
        let slots: Vec<Arc<Slot>> = {
            let state = self.lock();
            let of_lane = state.connections.iter();
            let of_lane = of_lane.filter(|((_, lane), _)| *lane == Lane::of(api));
            of_lane.map(|(_, slot)| Arc::clone(slot)).collect()
        };
        for connection in slots.iter().filter_map(|slot| slot.current()) {
            connection.drained().await;
        }
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
