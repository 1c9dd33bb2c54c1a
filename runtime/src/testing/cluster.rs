//! [`TestCluster`]: one broker over memory that can crash and come back, behind simulated networks.
//!
//! ```text
//! up ──cut_power──▶ down ──restart──▶ up        crash = both
//! ```
//!
//! Invariants: a crash keeps what a power cut would keep of an honest disk, and nothing else;
//! clients find the new broker behind the same transport.
//! Never: threads or the real clock.

use futures::future::BoxFuture;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_broker::Placement;
use millstream_client::{ClientConfig, Clock, IntoTransport, Transport};
use millstream_log::storage::Unsynced;
use millstream_log::{Durability, MemoryStorage};

use super::network::Target;
use super::{NetworkFaults, SimulatedNetwork, Trace};
use crate::{Broker, BrokerOptions, Result};

/// Virtual time at the start, in milliseconds since the epoch.
const BEGAN_MS: i64 = 1_700_000_000_000;
/// How long a sync of the journal takes, in virtual time.
const SYNC_DELAY: Duration = Duration::from_micros(200);

/// A broker in memory with durability `sync`, and the way to it.
#[derive(Debug)]
pub struct TestCluster {
    seed: u64,
    options: BrokerOptions,
    target: Target,
    network: SimulatedNetwork,
    trace: Trace,
    client_clock: Clock,
    running: Mutex<Running>,
}

#[derive(Debug)]
struct Running {
    storage: MemoryStorage,
    broker: Broker,
    crashes: u64,
    networks: u64,
}

impl TestCluster {
    /// A broker behind a network without faults.
    ///
    /// # Errors
    /// As [`BrokerOptions::open`].
    pub fn start(seed: u64) -> BoxFuture<'static, Result<Self>> {
        Box::pin(async move { Self::with(seed, NetworkFaults::NONE, BrokerOptions::new()).await })
    }

    /// A broker with these options behind a network with these faults. Placement, clock and seed
    /// are the cluster's.
    ///
    /// # Errors
    /// As [`BrokerOptions::open`].
    pub fn with(
        seed: u64,
        faults: NetworkFaults,
        options: BrokerOptions,
    ) -> BoxFuture<'static, Result<Self>> {
        Box::pin(async move {
            let clock = millstream_broker::Clock::starting_at(BEGAN_MS);
            let options = options.durability(Durability::Sync).configure(|config| {
                config.placement = Placement::Runtime {
                    sync_delay: SYNC_DELAY,
                };
                config.clock = clock;
            });
            let storage = MemoryStorage::new();
            let broker = open(&options, &storage, seed).await?;
            let trace = Trace::default();
            let transport = broker.into_transport();
            let bootstrap = transport.bootstrap();
            let target: Target = Arc::new(Mutex::new(Some(transport)));
            let way = (seed, trace.clone());
            let network =
                SimulatedNetwork::towards("main", Arc::clone(&target), bootstrap, faults, way);
            let running = Mutex::new(Running {
                storage,
                broker,
                crashes: 0,
                networks: 0,
            });
            let client_clock = Clock::starting_at(BEGAN_MS);
            Ok(Self {
                seed,
                options,
                target,
                network,
                trace,
                client_clock,
                running,
            })
        })
    }

    /// Settings for a client of this cluster: its clock, and randomness of its own for each number.
    #[must_use]
    pub fn client(&self, number: u64) -> ClientConfig {
        ClientConfig {
            clock: self.client_clock,
            seed: self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            ..ClientConfig::default()
        }
    }

    /// Cuts the power and restores it: the broker stops at once, what was not synced is gone, and a
    /// new broker recovers the rest.
    ///
    /// # Errors
    /// Where the recovery fails, which no crash of an honest disk may cause.
    pub fn crash(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.cut_power(Unsynced::Lost);
            self.restart().await
        })
    }

    /// Cuts the power: the broker stops at once, and `unsynced` says what becomes of data and names
    /// that were not synced. Until [`restart`](Self::restart) every attempt to connect fails.
    pub fn cut_power(&self, unsynced: Unsynced) {
        let mut running = self.running();
        running.broker.halt();
        running.crashes += 1;
        running.storage = running.storage.crash_with(unsynced);
        *self.target.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Starts a broker over what the disk holds after [`cut_power`](Self::cut_power).
    ///
    /// # Errors
    /// Where the recovery fails, which no crash of an honest disk may cause.
    pub fn restart(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let (storage, seed) = {
                let running = self.running();
                (
                    running.storage.clone(),
                    self.seed.wrapping_add(running.crashes),
                )
            };
            let broker = open(&self.options, &storage, seed).await?;
            *self.target.lock().unwrap_or_else(PoisonError::into_inner) =
                Some(broker.into_transport());
            self.running().broker = broker;
            Ok(())
        })
    }

    /// The network that clients of the cluster use, to change its faults.
    #[must_use]
    pub fn network(&self) -> &SimulatedNetwork {
        &self.network
    }

    /// Another network to the same broker, with faults of its own: for a client that is to be cut
    /// off, or spared.
    #[must_use]
    pub fn another_network(&self, name: &str, faults: NetworkFaults) -> SimulatedNetwork {
        let number = {
            let mut running = self.running();
            running.networks += 1;
            running.networks
        };
        let seed = self.seed ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03);
        let way = (seed, self.trace.clone());
        SimulatedNetwork::towards(
            name,
            Arc::clone(&self.target),
            self.network.bootstrap(),
            faults,
            way,
        )
    }

    /// The trace of every frame.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.trace.clone()
    }

    /// The broker that runs at this moment, or ran last.
    #[must_use]
    pub fn broker(&self) -> Broker {
        self.running().broker.clone()
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IntoTransport for TestCluster {
    fn into_transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.network.clone())
    }
}

async fn open(options: &BrokerOptions, storage: &MemoryStorage, seed: u64) -> Result<Broker> {
    let options = options.clone().configure(|config| config.seed = Some(seed));
    options.open_storage(Arc::new(storage.clone())).await
}
