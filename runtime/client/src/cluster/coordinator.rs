//! Which broker coordinates a group or a transactional id.
//!
//! Invariants: a coordinator is cached until somebody forgets it.
//! Never: retries a refusal that will not change (authorisation, an invalid id).

use futures::future::BoxFuture;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use millstream_protocol::messages::FindCoordinatorRequest;
use millstream_protocol::{ApiKey, ErrorClass, ErrorCode, ErrorContext, class};
use tokio::time::Instant;

use super::{Cluster, NodeId};
use crate::error::{ClusterError, RequestError};
use crate::transport::BrokerAddress;

/// What is coordinated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CoordinatorKind {
    /// A consumer group, by its id.
    Group,
    /// A transactional id.
    Transaction,
}

impl CoordinatorKind {
    fn key_type(self) -> i8 {
        match self {
            Self::Group => 0,
            Self::Transaction => 1,
        }
    }
}

impl fmt::Display for CoordinatorKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Group => "group",
            Self::Transaction => "transaction",
        })
    }
}

struct Found {
    code: ErrorCode,
    node: NodeId,
    address: Option<BrokerAddress>,
}

impl Cluster {
    /// The coordinator of `key`: from the cache, else asked for, again and again until `patience`
    /// is over. Cancelling it loses nothing.
    ///
    /// # Errors
    /// Where no broker names one in time, or a broker refuses.
    pub fn coordinator_within<'a>(
        &'a self,
        kind: CoordinatorKind,
        key: &'a str,
        patience: Duration,
    ) -> BoxFuture<'a, Result<NodeId, ClusterError>> {
        Box::pin(async move {
            let started = Instant::now();
            let mut attempt = 0;
            loop {
                if let Some(node) = self.cached_coordinator(kind, key) {
                    return Ok(node);
                }
                let left = patience.saturating_sub(started.elapsed());
                let timeout = left.min(self.config().request_timeout);
                let last = match self.find_coordinator(kind, key, timeout).await {
                    Ok(Found {
                        code,
                        node,
                        address,
                    }) if code.is_ok() => {
                        self.remember_coordinator(kind, key, node, address);
                        return Ok(node);
                    }
                    Ok(Found { code, .. }) => {
                        match class(ApiKey::FindCoordinator, code, ErrorContext::Plain) {
                            ErrorClass::Retry
                            | ErrorClass::RefreshMetadata
                            | ErrorClass::FindCoordinator
                            | ErrorClass::Ambiguous => code.to_string(),
                            _ => {
                                return Err(ClusterError::Coordinator {
                                    kind,
                                    key: key.into(),
                                    code,
                                });
                            }
                        }
                    }
                    Err(ClusterError::Request(error)) if error.is_retriable() => error.to_string(),
                    Err(error) => return Err(error),
                };
                let pause = self.retry_pause(attempt);
                if started.elapsed() + pause >= patience {
                    return Err(ClusterError::CoordinatorTimeout {
                        kind,
                        key: key.into(),
                        waited_ms: millis(started.elapsed()),
                        last: last.into(),
                    });
                }
                attempt += 1;
                tokio::time::sleep(pause).await;
            }
        })
    }

    async fn find_coordinator(
        &self,
        kind: CoordinatorKind,
        key: &str,
        timeout: Duration,
    ) -> Result<Found, ClusterError> {
        let node = self.any_node()?;
        let build = |version: i16| {
            let mut request = FindCoordinatorRequest {
                key_type: kind.key_type(),
                ..Default::default()
            };
            if version >= 4 {
                request.coordinator_keys = vec![key.to_owned()];
            } else {
                request.key = key.to_owned();
            }
            request
        };
        let response = self.request_with(node, timeout, i16::MAX, build).await?;
        let found = match response.coordinators.into_iter().next() {
            Some(found) => Found {
                code: found.error_code,
                node: NodeId(found.node_id),
                address: address(found.host, found.port),
            },
            None => Found {
                code: response.error_code,
                node: NodeId(response.node_id),
                address: address(response.host, response.port),
            },
        };
        if found.code.is_ok() && found.node.0 < 0 {
            return Ok(Found {
                code: ErrorCode::COORDINATOR_NOT_AVAILABLE,
                ..found
            });
        }
        Ok(found)
    }

    /// Drops a coordinator from the cache: it answered that it is not the one, or went away.
    pub fn forget_coordinator(&self, kind: CoordinatorKind, key: &str) {
        self.lock().coordinators.remove(&(kind, Arc::from(key)));
    }

    fn cached_coordinator(&self, kind: CoordinatorKind, key: &str) -> Option<NodeId> {
        self.lock()
            .coordinators
            .get(&(kind, Arc::from(key)))
            .copied()
    }

    fn remember_coordinator(
        &self,
        kind: CoordinatorKind,
        key: &str,
        node: NodeId,
        address: Option<BrokerAddress>,
    ) {
        let mut state = self.lock();
        if let Some(address) = address {
            state.metadata.nodes.entry(node).or_insert(address);
        }
        state.coordinators.insert((kind, key.into()), node);
    }

    /// Sends to a coordinator what `build` makes for the negotiated version, at most `cap`.
    /// One attempt; a lost connection forgets the coordinator.
    ///
    /// # Errors
    /// As [`Cluster::coordinator_within`] and [`Cluster::request`].
    pub async fn ask_coordinator<R: millstream_protocol::Request>(
        &self,
        kind: CoordinatorKind,
        key: &str,
        patience: Duration,
        cap: i16,
        build: impl FnOnce(i16) -> R + Send,
    ) -> Result<R::Response, ClusterError> {
        let started = Instant::now();
        let node = self.coordinator_within(kind, key, patience).await?;
        let left = patience
            .saturating_sub(started.elapsed())
            .max(Duration::from_millis(1));
        let timeout = left.min(self.config().request_timeout);
        let result = self.request_with(node, timeout, cap, build).await;
        if let Err(
            RequestError::Disconnected { .. }
            | RequestError::Timeout { .. }
            | RequestError::UnknownNode { .. },
        ) = &result
        {
            self.forget_coordinator(kind, key);
        }
        Ok(result?)
    }
}

fn address(host: String, port: i32) -> Option<BrokerAddress> {
    u16::try_from(port)
        .ok()
        .filter(|_| !host.is_empty())
        .map(|port| BrokerAddress::new(host, port))
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
