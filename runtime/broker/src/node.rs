//! The broker's inside: what a handler works on.
//!
//! ```text
//! Running ──close()──▶ Draining ──answers sent──▶ Stopped
//!    └──────────────── halt() ──────────────────▶ Halted
//! ```
//!
//! Invariants: the stage only moves forward; after Halted no task of this node writes anything.
//! Never: owned by a background task (they hold a `Weak` and end with it).

use crate::clock::Leaps;
use crate::fetch_sessions::FetchSessions;
use crate::memory::Memory;
use crate::observed::Observed;
use crate::overrides::Overrides;
use crate::partition::Partition;
use crate::sync_loop::SyncLoop;
use crate::topics::PartitionTable;
use crate::{BrokerConfig, BrokerError, Clock, group, transaction};
use millstream_log::{LogDirectory, PartitionConfig};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// How far along its life a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Serves.
    Running,
    /// Answers what it has begun, takes nothing new.
    Draining,
    /// Closed in order.
    Stopped,
    /// Cut off, as by a crash.
    Halted,
}

/// Everything that requests share.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) config: BrokerConfig,
    /// What partitions are opened with that no topic can set.
    pub(crate) base: PartitionConfig,
    pub(crate) directory: LogDirectory,
    pub(crate) clock: Clock,
    pub(crate) partitions: PartitionTable,
    pub(crate) overrides: Overrides,
    pub(crate) transactions: transaction::Coordinator,
    pub(crate) groups: group::Coordinator,
    pub(crate) sync: Arc<SyncLoop>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) fetch_sessions: FetchSessions,
    stage: Observed<Stage>,
    connections: Observed<usize>,
    listener: Mutex<Option<SocketAddr>>,
    random: Mutex<fastrand::Rng>,
}

impl Node {
    /// A node over an open directory, with empty coordinators.
    pub(crate) fn new(
        config: BrokerConfig,
        base: PartitionConfig,
        directory: LogDirectory,
        random: fastrand::Rng,
    ) -> Result<Arc<Self>, BrokerError> {
        let clock = config.clock;
        let sync = SyncLoop::start(&config, &directory)?;
        Ok(Arc::new(Self {
            partitions: PartitionTable::new(directory.topics(), sync.clone(), clock),
            overrides: Overrides::stored(directory.other_settings(), &config),
            transactions: transaction::Coordinator::new(&config),
            groups: group::Coordinator::new(&config),
            memory: Arc::new(Memory::new(
                config.queued_max_request_bytes,
                config.fetch_answers_max_bytes,
            )),
            fetch_sessions: FetchSessions::new(config.max_incremental_fetch_session_cache_slots),
            config,
            base,
            directory,
            clock,
            sync,
            stage: Observed::new(Stage::Running),
            connections: Observed::new(0),
            listener: Mutex::new(None),
            random: Mutex::new(random),
        }))
    }

    /// Milliseconds since the Unix epoch, for deadlines.
    pub(crate) fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    /// The same for what is written down, and how old that is.
    pub(crate) fn wall_ms(&self) -> i64 {
        self.clock.wall_ms()
    }

    /// Tells of leaps of wall time from now on.
    pub(crate) fn leaps(&self) -> Leaps {
        Leaps::new(self.clock)
    }

    /// A random number from the seeded source.
    pub(crate) fn random_u64(&self) -> u64 {
        self.random
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .u64(..)
    }

    /// One partition of a topic.
    pub(crate) fn partition(&self, topic: &str, index: i32) -> Option<Arc<Partition>> {
        self.partitions.partition(topic, index)
    }

    /// Waits until the journal is durable up to `position`; at once unless durability is `sync`.
    /// Cancellation-safe.
    pub(crate) async fn durable(&self, position: u64) -> Result<(), BrokerError> {
        self.sync.durable(position).await
    }

    /// The stage now.
    pub(crate) fn stage(&self) -> Stage {
        self.stage.get()
    }

    /// Moves forward to `stage`; an earlier one changes nothing.
    pub(crate) fn advance(&self, stage: Stage) {
        self.stage.change(|current| {
            let moved = *current < stage;
            *current = (*current).max(stage);
            moved
        });
        if stage >= Stage::Stopped {
            self.sync.stop();
        }
    }

    /// Ends when the node is at `stage` or beyond. It does not keep the node alive.
    pub(crate) fn reached(&self, stage: Stage) -> impl Future<Output = ()> + Send + use<> {
        let reached = self.stage.wait_for(move |current| *current >= stage);
        async move {
            // An error says that the node is gone: beyond every stage.
            let _ = reached.await;
        }
    }

    /// Starts a task that is dropped at its next await once the node is stopped or halted.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stopped = self.reached(Stage::Stopped);
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = stopped => {}
                () = task => {}
            }
        });
    }

    /// Counts a connection until the guard is dropped.
    pub(crate) fn enter_connection(self: &Arc<Self>) -> ConnectionGuard {
        self.connections.change(|count| {
            *count += 1;
            false
        });
        ConnectionGuard(self.clone())
    }

    /// Connections that are open now.
    pub(crate) fn connection_count(&self) -> usize {
        self.connections.get()
    }

    /// Ends when no connection is left.
    pub(crate) async fn connections_gone(&self) {
        let _ = self.connections.wait_for(|count| *count == 0).await;
    }

    /// Remembers the first listener, for answers to clients that came in another way.
    pub(crate) fn set_listener(&self, address: SocketAddr) {
        let mut listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        listener.get_or_insert(address);
    }

    /// The address of the first listener.
    pub(crate) fn listener(&self) -> Option<SocketAddr> {
        *self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Host and port that a client is told, given the address at which it reached us.
    pub(crate) fn advertised(&self, reached_at: Option<SocketAddr>) -> (String, i32) {
        if let Some((host, port)) = &self.config.advertised {
            return (host.clone(), i32::from(*port));
        }
        match reached_at.or_else(|| self.listener()) {
            Some(address) if address.ip().is_unspecified() => {
                ("localhost".to_owned(), i32::from(address.port()))
            }
            Some(address) => (address.ip().to_string(), i32::from(address.port())),
            None => ("embedded".to_owned(), 0),
        }
    }
}

/// Counts one open connection.
#[derive(Debug)]
pub(crate) struct ConnectionGuard(Arc<Node>);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.connections.change(|count| {
            *count -= 1;
            *count == 0
        });
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.sync.stop();
    }
}
