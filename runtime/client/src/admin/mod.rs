//! Looking after a cluster: topics and groups.
//!
//! Invariants: a request whose answer was lost is asked again where that changes nothing, and only
//! there.
//! Never: moves data.

mod configs;
mod groups;
mod markers;
mod membership;
mod offsets;
mod records;
mod topics;
mod transactions;

use std::future::Future;
use std::time::Duration;

use millstream_protocol::{ApiKey, ErrorCode, Request};
use tokio::time::Instant;

use crate::cluster::{Cluster, NodeId};
use crate::config::ClientConfig;
use crate::error::{ClusterError, RequestError};
use crate::transport::IntoTransport;

pub use configs::{ConfigChange, ConfigEntry, ConfigSource};
pub use offsets::OffsetSpec;
pub use topics::{NewTopic, TopicDescription};

/// How long a call may take, attempts and pauses together (`default.api.timeout.ms`, 60 s).
const API_TIMEOUT: Duration = Duration::from_secs(60);

/// Asks a cluster about itself, and changes it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Admin {
    cluster: Cluster,
}

/// The cluster said no, or nothing.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The cluster could not be asked.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The broker refused.
    #[error("cannot {call} {subject}: {code}{}", detail(.message))]
    Refused {
        /// What was asked, as words: `create topic`.
        call: &'static str,
        /// The topic, group or id.
        subject: String,
        /// The broker's code.
        code: ErrorCode,
        /// What the broker added.
        message: Option<String>,
    },
}

impl AdminError {
    /// The broker's code, where it was the broker that refused.
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Cluster(_) => None,
        }
    }
}

fn detail(message: &Option<String>) -> String {
    message
        .as_ref()
        .map(|text| format!(": {text}"))
        .unwrap_or_default()
}

impl Admin {
    /// An admin with the default client settings. Connects when it is first asked something.
    ///
    /// # Errors
    /// None at this time.
    pub async fn connect<T: IntoTransport + ?Sized>(target: &T) -> Result<Self, AdminError> {
        Ok(Self::with(target, ClientConfig::default()))
    }

    /// An admin with these client settings.
    #[must_use]
    pub fn with<T: IntoTransport + ?Sized>(target: &T, config: ClientConfig) -> Self {
        Self {
            cluster: Cluster::new(target.into_transport(), config),
        }
    }

    /// An admin over a cluster that other clients use too.
    #[must_use]
    pub fn on(cluster: Cluster) -> Self {
        Self { cluster }
    }

    /// Repeats an attempt that did not reach the broker, or whose repetition changes nothing, until
    /// the API timeout is over.
    async fn ask<T, F>(&self, attempt: impl Fn() -> F) -> Result<T, AdminError>
    where
        F: Future<Output = Result<T, ClusterError>>,
    {
        let give_up = Instant::now() + API_TIMEOUT;
        for count in 0.. {
            match attempt().await {
                Err(ClusterError::Request(error)) if error.is_retriable() => {
                    let pause = self.cluster.retry_pause(count);
                    if Instant::now() + pause >= give_up {
                        return Err(ClusterError::Request(error).into());
                    }
                    tokio::time::sleep(pause).await;
                }
                other => return Ok(other?),
            }
        }
        // The range of counts is endless; the loop ends by its returns.
        Err(ClusterError::Request(RequestError::UnknownNode { node: NodeId(-1) }).into())
    }

    /// Asks one broker; as [`Admin::ask`].
    async fn ask_node<R: Request>(
        &self,
        node: NodeId,
        request: &R,
    ) -> Result<R::Response, AdminError> {
        let timeout = self.cluster.config().request_timeout;
        self.ask(|| async { Ok(self.cluster.request(node, request.clone(), timeout).await?) })
            .await
    }

    /// Asks whichever broker is there; as [`Admin::ask`].
    async fn ask_any<R: Request>(&self, request: &R) -> Result<R::Response, AdminError> {
        let timeout = self.cluster.config().request_timeout;
        self.ask(|| async {
            let node = self.cluster.any_node()?;
            Ok(self.cluster.request(node, request.clone(), timeout).await?)
        })
        .await
    }
}

pub(crate) fn check(
    call: &'static str,
    subject: &str,
    code: ErrorCode,
    message: Option<String>,
) -> Result<(), AdminError> {
    if code.is_ok() {
        return Ok(());
    }
    Err(AdminError::Refused {
        call,
        subject: subject.to_owned(),
        code,
        message,
    })
}

/// A coordinator's code that asks for patience rather than for another request.
pub(crate) fn passing(api: ApiKey, code: ErrorCode) -> bool {
    use millstream_protocol::{ErrorClass, ErrorContext, class};
    !code.is_ok()
        && matches!(
            class(api, code, ErrorContext::Plain),
            ErrorClass::Retry | ErrorClass::FindCoordinator | ErrorClass::RefreshMetadata
        )
}
