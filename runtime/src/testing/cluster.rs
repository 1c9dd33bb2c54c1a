//! [`TestCluster`]: one broker over memory that can crash and come back, behind a simulated network.
//!
//! Invariants: a crash keeps what a power cut would keep of an honest disk, and nothing else; clients find the new broker
//! behind the same transport.
//! Never: threads or the real clock.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_broker::Placement;
use millstream_client::{ClientConfig, Clock, IntoTransport, Transport};
use millstream_log::{Durability, MemoryStorage};

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
}

impl TestCluster {
    /// A broker behind a network without faults.
    ///
    /// # Errors
    /// As [`BrokerOptions::open`].
    pub async fn start(seed: u64) -> Result<Self> {
        Self::with(seed, NetworkFaults::NONE, BrokerOptions::new()).await
    }

    /// A broker with these options behind a network with these faults. Placement, clock and seed are the cluster's.
    ///
    /// # Errors
    /// As [`BrokerOptions::open`].
    pub async fn with(seed: u64, faults: NetworkFaults, options: BrokerOptions) -> Result<Self> {
        let clock = millstream_broker::Clock::starting_at(BEGAN_MS);
        let options = options.durability(Durability::Sync).configure(|config| {
            config.placement = Placement::Runtime { sync_delay: SYNC_DELAY };
            config.clock = clock;
        });
        let storage = MemoryStorage::new();
        let broker = open(&options, &storage, seed).await?;
        let trace = Trace::default();
        let network = SimulatedNetwork::new(broker.into_transport(), faults, seed, trace.clone());
        let running = Mutex::new(Running { storage, broker, crashes: 0 });
        let client_clock = Clock::starting_at(BEGAN_MS);
        Ok(Self { seed, options, network, trace, client_clock, running })
    }

    /// Settings for a client of this cluster: its clock, and randomness of its own for each number.
    #[must_use]
    pub fn client(&self, number: u64) -> ClientConfig {
        ClientConfig {
            clock: self.client_clock.clone(),
            seed: self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            ..ClientConfig::default()
        }
    }

    /// Cuts the power: the broker stops at once, what was not synced is gone, and a new broker recovers the rest.
    ///
    /// # Errors
    /// Where the recovery fails, which no crash of an honest disk may cause.
    pub async fn crash(&self) -> Result<()> {
        let (storage, crashes) = {
            let mut running = self.running();
            running.broker.halt();
            running.crashes += 1;
            (running.storage.crash(), running.crashes)
        };
        let broker = open(&self.options, &storage, self.seed.wrapping_add(crashes)).await?;
        self.network.redirect(broker.into_transport());
        let mut running = self.running();
        running.storage = storage;
        running.broker = broker;
        Ok(())
    }

    /// The network, to change its faults.
    #[must_use]
    pub fn network(&self) -> &SimulatedNetwork {
        &self.network
    }

    /// The trace of every frame.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.trace.clone()
    }

    /// The broker that runs at this moment.
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
