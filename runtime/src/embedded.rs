//! The broker in the process, and the transport that reaches it.
//!
//! Invariants: a client's frames reach the broker by reference, through the same door as a
//! socket's; the broker runs on the runtime that opened it, whichever thread a client is on.
//! Never: a request that does not go through the protocol.

use futures::future::BoxFuture;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use millstream_broker::BrokerConfig;
use millstream_client::{BrokerAddress, FrameConnection, IntoTransport, Transport};
use millstream_log::{DiskStorage, Durability, MemoryStorage, Storage};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::Result;

/// Frames that may wait in either direction of one connection.
const CONNECTION_FRAMES: usize = 64;

/// The embedded broker; cheap to clone. The last clone that is dropped without
/// [`close`](Self::close) stops the broker as a killed process would: nothing that was acknowledged
/// is lost, the next start takes a moment longer.
#[derive(Debug, Clone)]
pub struct Broker {
    broker: millstream_broker::Broker,
    runtime: Handle,
}

/// How a broker is opened.
#[derive(Debug, Clone)]
pub struct BrokerOptions {
    config: BrokerConfig,
}

impl Default for BrokerOptions {
    fn default() -> Self {
        Self {
            config: BrokerConfig {
                num_partitions: 4,
                ..BrokerConfig::default()
            },
        }
    }
}

impl BrokerOptions {
    /// The safe defaults: durability `sync`, topics of 4 partitions created on first use.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What an acknowledged record survives; see the guide's durability table.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.config.durability = durability;
        self
    }

    /// Partitions of a topic that is created without a count (`num.partitions`, default 4).
    #[must_use]
    pub fn default_partitions(mut self, partitions: i32) -> Self {
        self.config.num_partitions = partitions;
        self
    }

    /// Whether a topic is created when it is first used (`auto.create.topics.enable`, default
    /// true).
    #[must_use]
    pub fn auto_create_topics(mut self, enabled: bool) -> Self {
        self.config.auto_create_topics_enable = enabled;
        self
    }

    /// Every other setting of the broker.
    #[must_use]
    pub fn configure(mut self, change: impl FnOnce(&mut BrokerConfig)) -> Self {
        change(&mut self.config);
        self
    }

    /// Opens a broker over this directory, which is created where it does not exist.
    ///
    /// # Errors
    /// A directory that another process holds, that a newer version wrote, or that is damaged below
    /// what was made durable: each names the place and the next step.
    pub async fn open(self, directory: impl AsRef<Path>) -> Result<Broker> {
        let storage = DiskStorage::new(directory.as_ref());
        self.open_storage(Arc::new(storage)).await
    }

    /// Opens a broker over any storage.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_storage(self, storage: Arc<dyn Storage>) -> BoxFuture<'static, Result<Broker>> {
        Box::pin(async move {
            let broker = millstream_broker::Broker::open(storage, self.config).await?;
            Ok(Broker {
                broker,
                runtime: Handle::current(),
            })
        })
    }
}

impl Broker {
    /// Opens a broker with the safe defaults over `directory`.
    ///
    /// # Errors
    /// As [`BrokerOptions::open`].
    pub async fn open(directory: impl AsRef<Path>) -> Result<Self> {
        BrokerOptions::new().open(directory).await
    }

    /// Opens a broker that keeps everything in memory, for tests.
    ///
    /// # Errors
    /// Settings that contradict each other.
    pub fn in_memory() -> BoxFuture<'static, Result<Self>> {
        Box::pin(async move {
            let options = BrokerOptions::new().durability(Durability::Memory);
            options.open_storage(Arc::new(MemoryStorage::new())).await
        })
    }

    /// Settings other than the defaults.
    #[must_use]
    pub fn options() -> BrokerOptions {
        BrokerOptions::new()
    }

    /// Lets other clients in on this address, and answers the one that is bound (port 0 picks a
    /// free one).
    ///
    /// # Errors
    /// An address that cannot be bound; the error names it.
    pub fn listen(&self, address: SocketAddr) -> BoxFuture<'_, Result<SocketAddr>> {
        Box::pin(async move { Ok(self.broker.listen(address).await?) })
    }

    /// Stops cleanly: everything is synced, the next start needs no recovery.
    ///
    /// # Errors
    /// Where the last writes fail; nothing that was acknowledged is lost.
    pub fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { Ok(self.broker.close().await?) })
    }

    /// Stops at once, as a killed process would.
    pub fn halt(&self) {
        self.broker.halt();
    }

    /// The cluster id that is kept in the data directory.
    #[must_use]
    pub fn cluster_id(&self) -> &str {
        self.broker.cluster_id()
    }
}

impl IntoTransport for Broker {
    fn into_transport(&self) -> Arc<dyn Transport> {
        Arc::new(InProcess {
            broker: self.clone(),
        })
    }
}

/// The transport to a broker in this process: two channels.
#[derive(Debug)]
struct InProcess {
    broker: Broker,
}

#[async_trait]
impl Transport for InProcess {
    async fn connect(&self, _: &BrokerAddress) -> io::Result<FrameConnection> {
        let (outgoing, requests) = mpsc::channel(CONNECTION_FRAMES);
        let (responses, incoming) = mpsc::channel(CONNECTION_FRAMES);
        let broker = self.broker.broker.clone();
        self.broker.runtime.spawn(async move {
            broker
                .serve(requests, responses, "in-process".to_owned())
                .await;
        });
        Ok(FrameConnection::new(outgoing, incoming))
    }

    fn bootstrap(&self) -> Vec<BrokerAddress> {
        vec![BrokerAddress::new("in-process", 0)]
    }
}
