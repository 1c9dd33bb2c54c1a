//! The simulated network: connections that delay frames, break, and cannot be made.
//!
//! A connection is TCP's: frames arrive in order or not at all. So frames are late by connection,
//! which reorders them across connections, and what was sent on a connection that its client has
//! given up still arrives. A frame that is lost takes its connection with it: a lost request was
//! never seen by the broker, a lost response was acted on.
//!
//! ```text
//! client ──▶ line (each frame with the time of its arrival) ──▶ broker
//!        ◀── line ◀──────────────────────────────────────────
//! ```
//!
//! Invariants: every decision comes from the seed, in the order in which frames are sent.
//! Never: changes a frame.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millstream_client::{BrokerAddress, FrameConnection, IntoTransport, Transport};
use millstream_protocol::Frame;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Trace;

/// Frames that may wait at either end of a connection.
const CONNECTION_FRAMES: usize = 64;

/// How bad the network is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkFaults {
    /// A frame takes up to this long.
    pub delay_max: Duration,
    /// One frame in this many is slow, and what follows on its connection waits behind it; 0: none.
    pub slow_one_in: u32,
    /// A slow frame takes up to this long.
    pub slow_max: Duration,
    /// One frame in this many is lost with its connection; 0: none.
    pub lost_one_in: u32,
    /// One attempt to connect in this many fails; 0: none.
    pub refused_one_in: u32,
}

impl NetworkFaults {
    /// A network without faults or delays.
    pub const NONE: Self = Self {
        delay_max: Duration::ZERO,
        slow_one_in: 0,
        slow_max: Duration::ZERO,
        lost_one_in: 0,
        refused_one_in: 0,
    };

    /// Delays of milliseconds, some long ones, and a lost connection now and then.
    pub const ROUGH: Self = Self {
        delay_max: Duration::from_millis(3),
        slow_one_in: 50,
        slow_max: Duration::from_millis(30),
        lost_one_in: 400,
        refused_one_in: 20,
    };

    /// Nothing gets through: every frame is lost, every attempt to connect fails.
    pub const CUT: Self = Self {
        lost_one_in: 1,
        refused_one_in: 1,
        ..Self::NONE
    };
}

/// Which way a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From a client to the broker.
    Request,
    /// From the broker to a client.
    Response,
}

/// A frame at the end of its way.
#[derive(Debug, Clone, Copy)]
pub struct FrameEvent<'frame> {
    /// Time since the network was made.
    pub at: Duration,
    /// The network's name.
    pub network: &'frame str,
    /// Number of the connection within its network.
    pub connection: u64,
    /// Which way it went.
    pub direction: Direction,
    /// Whether it arrived; a frame that did not takes its connection with it.
    pub arrived: bool,
    /// How long it took.
    pub took: Duration,
    /// The frame.
    pub frame: &'frame Frame,
}

/// What a network did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetworkCounts {
    /// Frames that arrived.
    pub arrived: u64,
    /// Frames that were slow.
    pub slow: u64,
    /// Requests that were lost: the broker never saw them.
    pub lost_requests: u64,
    /// Responses that were lost: the broker had acted.
    pub lost_responses: u64,
    /// Attempts to connect that failed.
    pub refused: u64,
    /// Connections that were made.
    pub connections: u64,
}

type Observer = Arc<dyn Fn(&FrameEvent<'_>) + Send + Sync>;

/// Where connections lead; `None` while the broker is down. Networks to one broker share it.
pub(super) type Target = Arc<Mutex<Option<Arc<dyn Transport>>>>;

/// A network in front of another transport.
#[derive(Debug, Clone)]
pub struct SimulatedNetwork {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    target: Target,
    bootstrap: Vec<BrokerAddress>,
    trace: Trace,
    began: Instant,
    state: Mutex<State>,
}

struct State {
    random: fastrand::Rng,
    faults: NetworkFaults,
    counts: NetworkCounts,
    observer: Option<Observer>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SimulatedNetwork({})", self.name)
    }
}

impl SimulatedNetwork {
    /// A network to `target` whose faults follow from the seed.
    #[must_use]
    pub fn new(target: Arc<dyn Transport>, faults: NetworkFaults, seed: u64, trace: Trace) -> Self {
        let bootstrap = target.bootstrap();
        Self::towards(
            "main",
            Arc::new(Mutex::new(Some(target))),
            bootstrap,
            faults,
            (seed, trace),
        )
    }

    pub(super) fn towards(
        name: &str,
        target: Target,
        bootstrap: Vec<BrokerAddress>,
        faults: NetworkFaults,
        (seed, trace): (u64, Trace),
    ) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        let counts = NetworkCounts::default();
        let state = Mutex::new(State {
            random,
            faults,
            counts,
            observer: None,
        });
        let (name, began) = (name.to_owned(), Instant::now());
        Self {
            inner: Arc::new(Inner {
                name,
                target,
                bootstrap,
                trace,
                began,
                state,
            }),
        }
    }

    /// Changes the faults, of open connections too. Frames that are on their way keep their fate.
    pub fn set_faults(&self, faults: NetworkFaults) {
        self.inner.state().faults = faults;
    }

    /// The faults at this moment.
    #[must_use]
    pub fn faults(&self) -> NetworkFaults {
        self.inner.state().faults
    }

    /// The network's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What the network did so far.
    #[must_use]
    pub fn counts(&self) -> NetworkCounts {
        self.inner.state().counts
    }

    /// Calls `observer` with every frame at the end of its way, for a log that can be read.
    pub fn observe(&self, observer: impl Fn(&FrameEvent<'_>) + Send + Sync + 'static) {
        self.inner.state().observer = Some(Arc::new(observer));
    }
}

/// What becomes of one frame.
#[derive(Debug, Clone, Copy)]
struct Fate {
    delay: Duration,
    lost: bool,
}

impl State {
    fn one_in(&mut self, count: u32) -> bool {
        count > 0 && self.random.u32(..count) == 0
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        Duration::from_micros(self.random.u64(..=longest.as_micros() as u64))
    }

    fn fate(&mut self) -> Fate {
        let faults = self.faults;
        let slow = self.one_in(faults.slow_one_in);
        let lost = self.one_in(faults.lost_one_in);
        self.counts.slow += u64::from(slow);
        let delay = self.up_to(if slow {
            faults.slow_max
        } else {
            faults.delay_max
        });
        Fate { delay, lost }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a frame: when, on which connection, which way, how large, and the first bytes (API and
    /// correlation).
    fn note(&self, event: &FrameEvent<'_>) {
        let observer = {
            let mut state = self.state();
            match (event.arrived, event.direction) {
                (true, _) => state.counts.arrived += 1,
                (false, Direction::Request) => state.counts.lost_requests += 1,
                (false, Direction::Response) => state.counts.lost_responses += 1,
            }
            state.observer.clone()
        };
        let mut noted = Vec::with_capacity(64);
        noted.extend_from_slice(self.name.as_bytes());
        noted.extend_from_slice(&(event.at.as_micros() as u64).to_be_bytes());
        noted.extend_from_slice(&event.connection.to_be_bytes());
        noted.push(u8::from(event.direction == Direction::Response));
        noted.push(u8::from(event.arrived));
        noted.extend_from_slice(&(event.frame.size_bytes() as u64).to_be_bytes());
        for segment in event.frame.segments() {
            noted.extend_from_slice(segment);
        }
        self.trace.note(&noted);
        if let Some(observer) = observer {
            observer(event);
        }
    }
}

#[async_trait]
impl Transport for SimulatedNetwork {
    async fn connect(&self, address: &BrokerAddress) -> io::Result<FrameConnection> {
        let inner = &self.inner;
        let (delay, refused) = {
            let mut state = inner.state();
            let longest = state.faults.delay_max;
            let one_in = state.faults.refused_one_in;
            (state.up_to(longest), state.one_in(one_in))
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let target = inner
            .target
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let Some(target) = target.filter(|_| !refused) else {
            inner.state().counts.refused += 1;
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
        };
        let far = target.connect(address).await?;
        let number = {
            let mut state = inner.state();
            state.counts.connections += 1;
            state.counts.connections
        };
        let (outgoing, requests) = mpsc::channel(CONNECTION_FRAMES);
        let (responses, incoming) = mpsc::channel(CONNECTION_FRAMES);
        let carry = Carry {
            inner: Arc::clone(inner),
            number,
        };
        tokio::spawn(carry.run((requests, far.outgoing), (far.incoming, responses)));
        Ok(FrameConnection {
            outgoing,
            incoming,
            link: far.link,
        })
    }

    fn bootstrap(&self) -> Vec<BrokerAddress> {
        self.inner.bootstrap.clone()
    }
}

impl IntoTransport for SimulatedNetwork {
    fn into_transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.clone())
    }
}

/// One connection's two directions.
struct Carry {
    inner: Arc<Inner>,
    number: u64,
}

/// How one direction of a connection ended.
#[derive(PartialEq, Eq)]
enum End {
    /// The sender has closed it, and all that was sent before has arrived.
    Closed,
    /// The receiver takes nothing any more.
    Deaf,
    /// A frame was lost.
    Broken,
}

impl Carry {
    /// Carries frames both ways until the broker closes, a frame is lost, or the client closes and
    /// its last request has arrived; then both ends see the connection closed.
    async fn run(
        self,
        requests: (mpsc::Receiver<Frame>, mpsc::Sender<Frame>),
        responses: (mpsc::Receiver<Frame>, mpsc::Sender<Frame>),
    ) {
        let there = self.one_way(Direction::Request, requests.0, requests.1);
        let back = self.one_way(Direction::Response, responses.0, responses.1);
        let (mut there, mut back) = (std::pin::pin!(there), std::pin::pin!(back));
        tokio::select! {
            biased;
            end = &mut there => if end == End::Deaf {
                // The broker has closed; what it answered before is still on its way.
                back.await;
            },
            end = &mut back => if end == End::Deaf {
                // The client has gone; what it asked before is still on its way.
                there.await;
            },
        }
    }

    async fn one_way(
        &self,
        direction: Direction,
        mut from: mpsc::Receiver<Frame>,
        to: mpsc::Sender<Frame>,
    ) -> End {
        let mut line: VecDeque<(Instant, Instant, bool, Frame)> = VecDeque::new();
        let mut open = true;
        loop {
            let next = line.front().map(|(_, arrives, ..)| *arrives);
            let arrival = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = arrival => {
                    let Some((sent, _, lost, frame)) = line.pop_front() else { continue };
                    self.note(direction, sent, lost, &frame);
                    if lost {
                        return End::Broken;
                    }
                    if to.send(frame).await.is_err() {
                        return End::Deaf;
                    }
                }
                frame = from.recv(), if open => match frame {
                    Some(frame) => {
                        let fate = self.inner.state().fate();
                        let now = Instant::now();
                        // A frame that was sent earlier on this connection arrives earlier.
                        let earliest = line.back().map_or(now, |(_, arrives, ..)| *arrives);
                        line.push_back((now, earliest.max(now + fate.delay), fate.lost, frame));
                    }
                    None => open = false,
                },
                () = to.closed(), if direction == Direction::Response => return End::Deaf,
            }
            if !open && line.is_empty() {
                return End::Closed;
            }
        }
    }

    fn note(&self, direction: Direction, sent: Instant, lost: bool, frame: &Frame) {
        self.inner.note(&FrameEvent {
            at: self.inner.began.elapsed(),
            network: &self.inner.name,
            connection: self.number,
            direction,
            arrived: !lost,
            took: sent.elapsed(),
            frame,
        });
    }
}
