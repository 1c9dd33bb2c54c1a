//! The simulated network: connections that delay frames, break, and cannot be made.
//!
//! A connection is TCP's: frames arrive in order or not at all. So frames are late by connection, which reorders them
//! across connections; and a frame that is lost takes its connection with it, before or after the broker has acted on what
//! came earlier.
//!
//! Invariants: every decision comes from the seed, in the order in which frames are sent.
//! Never: changes a frame.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millstream_client::{BrokerAddress, FrameConnection, Transport};
use millstream_protocol::Frame;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Trace;

/// How bad the network is.
#[derive(Debug, Clone, Copy)]
pub struct NetworkFaults {
    /// A frame takes up to this long.
    pub delay_max: Duration,
    /// One frame in this many takes up to ten times as long, and what follows on its connection waits behind it; 0: none.
    pub slow_one_in: u32,
    /// One frame in this many is lost with its connection; 0: none.
    pub lost_one_in: u32,
    /// One attempt to connect in this many fails; 0: none.
    pub refused_one_in: u32,
}

impl NetworkFaults {
    /// A network without faults or delays.
    pub const NONE: Self =
        Self { delay_max: Duration::ZERO, slow_one_in: 0, lost_one_in: 0, refused_one_in: 0 };

    /// Delays of milliseconds, some long ones, and a lost connection now and then.
    pub const ROUGH: Self = Self {
        delay_max: Duration::from_millis(3),
        slow_one_in: 50,
        lost_one_in: 400,
        refused_one_in: 20,
    };
}

/// A network in front of another transport.
#[derive(Debug, Clone)]
pub struct SimulatedNetwork {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    target: Mutex<Arc<dyn Transport>>,
    random: Mutex<fastrand::Rng>,
    faults: Mutex<NetworkFaults>,
    trace: Trace,
    connections: Mutex<u64>,
    began: Instant,
}

impl SimulatedNetwork {
    /// A network to `target` whose faults follow from the seed.
    #[must_use]
    pub fn new(target: Arc<dyn Transport>, faults: NetworkFaults, seed: u64, trace: Trace) -> Self {
        let inner = Inner {
            target: Mutex::new(target),
            random: Mutex::new(fastrand::Rng::with_seed(seed)),
            faults: Mutex::new(faults),
            trace,
            connections: Mutex::new(0),
            began: Instant::now(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Connections that are made from now on lead to `target`.
    pub fn redirect(&self, target: Arc<dyn Transport>) {
        *self.inner.target.lock().unwrap_or_else(PoisonError::into_inner) = target;
    }

    /// Changes the faults, of open connections too.
    pub fn set_faults(&self, faults: NetworkFaults) {
        *self.inner.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }
}

impl Inner {
    fn faults(&self) -> NetworkFaults {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn one_in(&self, count: u32) -> bool {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        count > 0 && random.u32(..count) == 0
    }

    /// How late the next frame is, and whether it is lost.
    fn fate(&self) -> (Duration, bool) {
        let faults = self.faults();
        let slow = self.one_in(faults.slow_one_in);
        let lost = self.one_in(faults.lost_one_in);
        let span = faults.delay_max.as_micros() as u64 * if slow { 10 } else { 1 };
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        (Duration::from_micros(random.u64(..=span)), lost)
    }

    /// Notes a frame: when, on which connection, which way, how large, and the first bytes (API and correlation).
    fn note(&self, connection: u64, way: u8, frame: &Frame) {
        let micros = self.began.elapsed().as_micros() as u64;
        let mut event = Vec::with_capacity(48);
        event.extend_from_slice(&micros.to_be_bytes());
        event.extend_from_slice(&connection.to_be_bytes());
        event.push(way);
        event.extend_from_slice(&(frame.size_bytes() as u64).to_be_bytes());
        if let Some(first) = frame.segments().first() {
            event.extend_from_slice(first.get(..first.len().min(16)).unwrap_or_default());
        }
        self.trace.note(&event);
    }
}

#[async_trait]
impl Transport for SimulatedNetwork {
    async fn connect(&self, address: &BrokerAddress) -> io::Result<FrameConnection> {
        let inner = &self.inner;
        if inner.one_in(inner.faults().refused_one_in) {
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
        }
        let target = Arc::clone(&*inner.target.lock().unwrap_or_else(PoisonError::into_inner));
        let far = target.connect(address).await?;
        let number = {
            let mut connections = inner.connections.lock().unwrap_or_else(PoisonError::into_inner);
            *connections += 1;
            *connections
        };
        let (outgoing, requests) = mpsc::channel(64);
        let (responses, incoming) = mpsc::channel(64);
        let carry = Carry { inner: Arc::clone(inner), number };
        tokio::spawn(carry.run(requests, far.outgoing, far.incoming, responses));
        Ok(FrameConnection { outgoing, incoming })
    }

    fn bootstrap(&self) -> Vec<BrokerAddress> {
        self.inner.target.lock().unwrap_or_else(PoisonError::into_inner).bootstrap()
    }
}

/// One connection's two directions.
struct Carry {
    inner: Arc<Inner>,
    number: u64,
}

impl Carry {
    /// Carries frames both ways until either end closes or a frame is lost; then both ends see it closed.
    async fn run(
        self,
        requests: mpsc::Receiver<Frame>,
        to_broker: mpsc::Sender<Frame>,
        from_broker: mpsc::Receiver<Frame>,
        responses: mpsc::Sender<Frame>,
    ) {
        tokio::select! {
            biased;
            () = self.one_way(0, requests, to_broker) => {}
            () = self.one_way(1, from_broker, responses) => {}
        }
    }

    async fn one_way(&self, way: u8, mut from: mpsc::Receiver<Frame>, to: mpsc::Sender<Frame>) {
        let mut free_at = Instant::now();
        while let Some(frame) = from.recv().await {
            let (delay, lost) = self.inner.fate();
            // A frame that was sent earlier on this connection arrives earlier.
            free_at = free_at.max(Instant::now() + delay);
            tokio::time::sleep_until(free_at).await;
            if lost {
                return;
            }
            self.inner.note(self.number, way, &frame);
            if to.send(frame).await.is_err() {
                return;
            }
        }
    }
}
