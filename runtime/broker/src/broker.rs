//! A broker's life: open, serve, listen, close or halt.
//!
//! Invariants: `open` returns only when every partition and both coordinators are loaded.
//! Never: half open; what fails on the way stops what was started.

use crate::clock::Leaps;
use crate::node::{Node, Stage};
use crate::overrides::Layers;
use crate::topics::{CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC};
use crate::{BrokerConfig, BrokerError, connection, group, listener, transaction};
use futures::future::BoxFuture;
use millstream_log::{DirectoryConfig, LogDirectory, LogError, PartitionConfig, Storage};
use millstream_protocol::Frame;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long `close` waits for requests that are under way.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A single-node broker over one log directory. A clone is the same broker.
#[derive(Debug, Clone)]
pub struct Broker {
    node: Arc<Node>,
}

impl Broker {
    /// Opens the directory, recovers it, loads the coordinators and starts the background loops.
    ///
    /// Awaits disk work. Not cancellation-safe: dropped early, the directory may stay locked until
    /// that work ends.
    pub fn open(
        storage: Arc<dyn Storage>,
        config: BrokerConfig,
    ) -> BoxFuture<'static, Result<Broker, BrokerError>> {
        Box::pin(async move {
            config.validate()?;
            let now_ms = config.clock.now_ms();
            let seed = config.seed.unwrap_or(now_ms as u64);
            let base = base_config(&config);
            let directory_config = directory_config(&config, base.clone(), seed)?;
            let directory = config
                .placement
                .blocking(move || LogDirectory::open(storage, directory_config, now_ms))
                .await??;
            let node = Node::new(config, base, directory, fastrand::Rng::with_seed(seed))?;
            let broker = Broker { node };
            if let Err(error) = broker.load().await {
                broker.halt();
                return Err(error);
            }
            broker.start_loops();
            tracing::info!(
                cluster_id = broker.cluster_id(),
                durability = ?broker.node.config.durability,
                "broker open"
            );
            Ok(broker)
        })
    }

    async fn load(&self) -> Result<(), BrokerError> {
        let node = &self.node;
        let defaults = node.layers().partition_config(node.base.clone());
        let defaults = defaults.map_err(invalid_log_settings)?;
        let directory = node.directory.clone();
        let placement = node.config.placement;
        placement
            .blocking(move || directory.set_defaults(defaults))
            .await??;
        node.ensure_internal_topic(TRANSACTION_STATE_TOPIC).await?;
        node.ensure_internal_topic(CONSUMER_OFFSETS_TOPIC).await?;
        // Groups first: finishing a prepared transaction decides offsets that must be there
        // already.
        node.groups.load(node).await?;
        node.transactions.load(node).await
    }

    fn start_loops(&self) {
        let node = &self.node;
        node.spawn(transaction::Coordinator::run_timers(Arc::downgrade(node)));
        node.spawn(group::Coordinator::run_timers(Arc::downgrade(node)));
        node.spawn(checkpoint_loop(&node.config, node.directory.clone()));
        node.spawn(retention_loop(&node.config, node.directory.clone()));
        if node.config.log_cleaner_enable {
            node.spawn(compaction_loop(&node.config, node.directory.clone()));
        }
    }

    /// Serves one connection until `incoming` closes and its requests are answered, in their order.
    ///
    /// `peer` names the other end in logs and group descriptions. Dropping the future cuts requests
    /// that are under way, as a crash would.
    pub fn serve(
        &self,
        incoming: mpsc::Receiver<Frame>,
        outgoing: mpsc::Sender<Frame>,
        peer: String,
    ) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let _counted = self.node.enter_connection();
            connection::serve(self.node.clone(), incoming, outgoing, peer.into(), None).await;
        })
    }

    /// Accepts TCP connections at `address` until the broker stops; port 0 picks a free one.
    /// Returns the bound address. Fails when the address cannot be bound.
    pub fn listen(&self, address: SocketAddr) -> BoxFuture<'_, Result<SocketAddr, BrokerError>> {
        Box::pin(async move {
            if self.node.stage() != Stage::Running {
                return Err(BrokerError::Stopped);
            }
            listener::listen(&self.node, address).await
        })
    }

    /// Stops in order: no new requests, those under way get up to five seconds, then everything is
    /// synced and the directory is marked as cleanly closed. A second call does nothing.
    pub fn close(&self) -> BoxFuture<'_, Result<(), BrokerError>> {
        Box::pin(async move {
            let node = &self.node;
            match node.stage() {
                Stage::Running => node.advance(Stage::Draining),
                Stage::Draining | Stage::Stopped => return Ok(()),
                Stage::Halted => return Err(BrokerError::Stopped),
            }
            if tokio::time::timeout(DRAIN_TIMEOUT, node.connections_gone())
                .await
                .is_err()
            {
                tracing::warn!("requests are still under way: their connections are cut");
            }
            node.advance(Stage::Stopped);
            // A change of topics that has begun goes on without its request: it is done first.
            let _nothing_changes = node.partitions.lock_changes().await;
            let (directory, now_ms) = (node.directory.clone(), node.now_ms());
            node.config
                .placement
                .blocking(move || directory.close(now_ms))
                .await??;
            Ok(())
        })
    }

    /// Stops at once and writes nothing more, as a crash would. For simulations.
    pub fn halt(&self) {
        self.node.advance(Stage::Halted);
    }

    /// The id under which clients know this directory.
    pub fn cluster_id(&self) -> &str {
        self.node.directory.cluster_id()
    }

    /// What is inside, for tests of the coordinators.
    #[cfg(test)]
    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// The settings in effect.
    pub fn config(&self) -> &BrokerConfig {
        &self.node.config
    }
}

/// Syncs partition files and recycles the journal, again and again.
fn checkpoint_loop(
    config: &BrokerConfig,
    directory: LogDirectory,
) -> impl Future<Output = ()> + Send + use<> {
    let placement = config.placement;
    let interval = Duration::from_millis(config.checkpoint_interval_ms.unsigned_abs());
    async move {
        loop {
            tokio::time::sleep(interval).await;
            let directory = directory.clone();
            match placement.blocking(move || directory.checkpoint()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "checkpoint failed"),
                // It panicked; the next one may fare better.
                Err(error) => tracing::error!(%error, "checkpoint broke off"),
            }
        }
    }
}

/// Deletes what topics need not keep any longer, again and again.
fn retention_loop(
    config: &BrokerConfig,
    directory: LogDirectory,
) -> impl Future<Output = ()> + Send + use<> {
    let (placement, clock) = (config.placement, config.clock);
    let interval = Duration::from_millis(config.log_retention_check_interval_ms.unsigned_abs());
    let mut leaps = Leaps::new(clock);
    async move {
        loop {
            tokio::time::sleep(interval).await;
            let (directory, now_ms) = (directory.clone(), clock.wall_ms());
            let leapt = leaps.any();
            let work = move || {
                for topic in directory.topics() {
                    for partition in topic.partitions {
                        if leapt {
                            // A producer may have slept with this machine, in the middle of a try.
                            partition.hear_producers(now_ms);
                        }
                        match partition.apply_retention(now_ms) {
                            // Its topic was deleted meanwhile.
                            Ok(_) | Err(LogError::Closed) => {}
                            Err(error) => {
                                tracing::error!(topic = %topic.name, %error, "retention failed");
                            }
                        }
                    }
                }
            };
            if let Err(error) = placement.blocking(work).await {
                tracing::error!(%error, "retention broke off");
            }
        }
    }
}

/// Compacts what is due, again and again: one log at a time, on one thread.
fn compaction_loop(
    config: &BrokerConfig,
    directory: LogDirectory,
) -> impl Future<Output = ()> + Send + use<> {
    let (placement, clock) = (config.placement, config.clock);
    let interval = Duration::from_millis(config.log_cleaner_backoff_ms.unsigned_abs());
    async move {
        loop {
            tokio::time::sleep(interval).await;
            let (directory, now_ms) = (directory.clone(), clock.wall_ms());
            match placement.blocking(move || directory.compact(now_ms)).await {
                Ok(Ok(report)) => {
                    for failed in &report.failed {
                        tracing::warn!(?failed, "not compacted this time");
                    }
                }
                Ok(Err(LogError::Closed)) => return,
                Ok(Err(error)) => tracing::error!(%error, "compaction failed"),
                // It panicked; the next one may fare better.
                Err(error) => tracing::error!(%error, "compaction broke off"),
            }
        }
    }
}

/// What nobody can guess: the seed of this process may be known from when it began.
fn secret() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// What partitions are opened with that no topic can set.
fn base_config(config: &BrokerConfig) -> PartitionConfig {
    PartitionConfig {
        max_decompressed_bytes: config.decompressed_batch_bytes_max,
        producer_id_expiration_ms: config.producer_id_expiration_ms,
        hash_seed: config.seed.unwrap_or_else(secret),
        ..PartitionConfig::default()
    }
}

fn invalid_log_settings(reason: String) -> BrokerError {
    BrokerError::Config {
        name: "log_settings",
        reason,
    }
}

/// The part of the settings that the log directory acts on. What was given while the broker ran is
/// in the directory, and counts once that is open.
fn directory_config(
    config: &BrokerConfig,
    base: PartitionConfig,
    seed: u64,
) -> Result<DirectoryConfig, BrokerError> {
    let at_start = Layers::new(config, Arc::default());
    let partition = at_start.partition_config(base);
    let partition = partition.map_err(invalid_log_settings)?;
    Ok(DirectoryConfig {
        durability: config.durability,
        cluster_id: config.cluster_id.clone(),
        seed,
        partition,
        compaction_map_bytes_max: config.log_cleaner_dedupe_buffer_size,
        ..DirectoryConfig::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_compaction_follows_a_given_seed_and_else_nothing_that_is_known() {
        let hash_seed = |given| {
            let config = BrokerConfig {
                seed: given,
                ..BrokerConfig::default()
            };
            base_config(&config).hash_seed
        };
        assert_eq!(hash_seed(Some(1)), 1);
        assert_ne!(hash_seed(None), 1);
        assert_ne!(hash_seed(None), hash_seed(None));
    }
}
