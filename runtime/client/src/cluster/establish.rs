//! From an address to a connection that requests may go over: socket, TLS, versions, proof.
//!
//! Invariants: each step has a time-out; an error says whether another attempt may go better.
//! Never: tries twice.

use std::sync::Arc;
use std::time::Duration;

use super::authentication::Authentication;
use super::{Connection, NodeId, millis};
use crate::error::{ConfigError, RequestError};
use crate::security::{Prepared, SecurityError};
use crate::transport::{BrokerAddress, Transport};

/// Why a connection could not be opened.
#[derive(Debug)]
pub(super) enum Refusal {
    /// It may hold next time.
    Passing(String),
    /// It will not.
    Lasting(Arc<SecurityError>),
}

impl From<RequestError> for Refusal {
    fn from(error: RequestError) -> Self {
        Self::Passing(error.to_string())
    }
}

impl From<SecurityError> for Refusal {
    fn from(error: SecurityError) -> Self {
        Self::Lasting(Arc::new(error))
    }
}

/// Makes a connection: TLS, handshake and authentication included.
pub(super) struct Establish {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) security: Result<Arc<Prepared>, ConfigError>,
    pub(super) address: BrokerAddress,
    pub(super) node: NodeId,
    pub(super) client_id: String,
    /// How long each of its steps may take.
    pub(super) setup: Duration,
    /// In 0.0..1.0: spreads what many connections do.
    pub(super) random: f64,
}

impl Establish {
    pub(super) async fn run(self) -> Result<Connection, Refusal> {
        let security = self.security.map_err(SecurityError::Settings)?;
        let connect = async {
            match &security.tls {
                Some(tls) => self.transport.connect_tls(&self.address, tls).await,
                None => self.transport.connect(&self.address).await,
            }
        };
        let frames = match tokio::time::timeout(self.setup, connect).await {
            Ok(Ok(frames)) => frames,
            Ok(Err(error)) => {
                let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
                return Err(match inner {
                    Some(refused) => SecurityError::clone(refused).into(),
                    None => Refusal::Passing(error.to_string()),
                });
            }
            Err(_) => {
                let reason = format!("not connected within {} ms", millis(self.setup));
                return Err(Refusal::Passing(reason));
            }
        };
        let authentication = security.sasl.as_ref().map(|sasl| Authentication {
            sasl: Arc::clone(sasl),
            broker: self.address.clone(),
            random: self.random,
        });
        Connection::open(
            self.node,
            frames,
            &self.client_id,
            authentication,
            self.setup,
        )
        .await
    }
}
