//! A way to a broker on which a test decides what passes, and when.
//!
//! Invariants: frames of one direction of a connection keep their order, so what follows a frame
//! that is held waits with it; a rule is used up by the frames that it met.
//! Never: changes a frame.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millstream::client::{BrokerAddress, FrameConnection, IntoTransport, Transport};
use millstream::formats::protocol::{ApiKey, Decoder, Frame};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Frames that may wait in either direction of a connection.
const CONNECTION_FRAMES: usize = 64;

/// A kind of frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// On its way to the broker.
    Request(ApiKey),
    /// On its way to the client.
    Response(ApiKey),
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It waits this long before it goes on.
    Hold(Duration),
    /// It arrives, and then nothing passes for so long.
    ShutBehind(Duration),
}

#[derive(Debug)]
struct Rule {
    kind: Kind,
    left: usize,
    fate: Fate,
}

#[derive(Default)]
struct State {
    rules: Vec<Rule>,
    shut_until: Option<Instant>,
    requests: BTreeMap<ApiKey, usize>,
}

/// The way to the broker. Clones are the same one.
#[derive(Clone)]
pub struct Gate {
    target: Arc<dyn Transport>,
    state: Arc<Mutex<State>>,
    /// Counts how often everything was cut.
    cuts: Arc<watch::Sender<u64>>,
}

impl fmt::Debug for Gate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Gate({:?})", self.state().rules)
    }
}

impl Gate {
    /// An open gate in front of `target`.
    #[must_use]
    pub fn new(target: &impl IntoTransport) -> Self {
        Self {
            target: target.into_transport(),
            state: Arc::default(),
            cuts: Arc::new(watch::Sender::new(0)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next `count` frames of this kind take so long.
    pub fn hold(&self, kind: Kind, count: usize, time: Duration) {
        self.rule(kind, count, Fate::Hold(time));
    }

    /// Behind the next frame of this kind every connection is lost, and none can be made for so
    /// long. Of a response the client knows when it notices the loss.
    pub fn shut_behind(&self, kind: Kind, time: Duration) {
        self.rule(kind, 1, Fate::ShutBehind(time));
    }

    fn rule(&self, kind: Kind, count: usize, fate: Fate) {
        let left = count;
        self.state().rules.push(Rule { kind, left, fate });
    }

    /// Every connection is lost now, and none can be made for so long.
    pub fn shut(&self, time: Duration) {
        self.state().shut_until = Some(Instant::now() + time);
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Everything passes at once again.
    pub fn open(&self) {
        let mut state = self.state();
        state.rules.clear();
        state.shut_until = None;
    }

    /// Whether a rule waits for its frame.
    #[must_use]
    pub fn waits(&self) -> bool {
        !self.state().rules.is_empty()
    }

    /// How many requests of this kind have come.
    #[must_use]
    pub fn requests(&self, api: ApiKey) -> usize {
        self.state().requests.get(&api).copied().unwrap_or(0)
    }

    fn fate(&self, kind: Kind) -> Option<Fate> {
        let mut state = self.state();
        if let Kind::Request(api) = kind {
            *state.requests.entry(api).or_default() += 1;
        }
        let at = state.rules.iter().position(|rule| rule.kind == kind)?;
        let rule = state.rules.get_mut(at)?;
        rule.left -= 1;
        let (fate, used_up) = (rule.fate, rule.left == 0);
        if used_up {
            state.rules.remove(at);
        }
        Some(fate)
    }
}

#[async_trait]
impl Transport for Gate {
    async fn connect(&self, address: &BrokerAddress) -> io::Result<FrameConnection> {
        let shut_until = self.state().shut_until;
        if shut_until.is_some_and(|until| Instant::now() < until) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let far = self.target.connect(address).await?;
        let (outgoing, requests) = mpsc::channel(CONNECTION_FRAMES);
        let (responses, incoming) = mpsc::channel(CONNECTION_FRAMES);
        let asked: Asked = Arc::default();
        let way = |there| Way {
            gate: self.clone(),
            cuts: self.cuts.subscribe(),
            asked: Arc::clone(&asked),
            there,
        };
        tokio::spawn(way(true).carry(requests, far.outgoing));
        tokio::spawn(way(false).carry(far.incoming, responses));
        Ok(FrameConnection {
            link: far.link,
            ..FrameConnection::new(outgoing, incoming)
        })
    }

    fn bootstrap(&self) -> Vec<BrokerAddress> {
        self.target.bootstrap()
    }
}

impl IntoTransport for Gate {
    fn into_transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.clone())
    }
}

/// What was asked on a connection, by correlation id.
type Asked = Arc<Mutex<BTreeMap<i32, ApiKey>>>;

/// One direction of a connection.
struct Way {
    gate: Gate,
    cuts: watch::Receiver<u64>,
    asked: Asked,
    there: bool,
}

impl Way {
    async fn carry(mut self, mut from: mpsc::Receiver<Frame>, to: mpsc::Sender<Frame>) {
        loop {
            let frame = tokio::select! {
                biased;
                _ = self.cuts.changed() => return,
                () = to.closed() => return,
                frame = from.recv() => frame,
            };
            let Some(frame) = frame else { return };
            let fate = self.kind(&frame).and_then(|kind| self.gate.fate(kind));
            if let Some(Fate::Hold(time)) = fate {
                tokio::select! {
                    biased;
                    _ = self.cuts.changed() => return,
                    () = tokio::time::sleep(time) => {}
                }
            }
            if to.send(frame).await.is_err() {
                return;
            }
            if let Some(Fate::ShutBehind(time)) = fate {
                self.gate.shut(time);
                return;
            }
        }
    }

    fn kind(&self, frame: &Frame) -> Option<Kind> {
        let mut decoder = Decoder::new(frame.clone());
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.there {
            let api = asked.remove(&decoder.i32().ok()?)?;
            return Some(Kind::Response(api));
        }
        let api = ApiKey::from_i16(decoder.i16().ok()?)?;
        let _version = decoder.i16().ok()?;
        asked.insert(decoder.i32().ok()?, api);
        Some(Kind::Request(api))
    }
}
