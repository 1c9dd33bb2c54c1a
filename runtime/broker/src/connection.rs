//! One connection: requests begin in order, answers leave in order, between them several may wait.
//!
//! ```text
//! incoming ─▶ begin ─▶ [r1 waits][r2 waits][r3 has the turn] ─▶ outgoing, r1 first
//! ```
//!
//! The newest request has the turn until it ends or gives it up; only then does the next one begin.
//! So two Produce requests append in order and wait for one sync together, and a Fetch that waits
//! for data holds up nobody.
//!
//! Invariants: a request that has begun runs to its end even if its connection goes; only halt cuts
//! it.
//! Invariants: answers that wait for an older one take at most `ANSWERS_HELD_BYTES` and one answer;
//! behind them, of two large answers one is on its way to the peer and one is next.
//! Never: looks into a request.

use crate::dispatch::{self, Outcome, Pending};
use crate::memory::{Room, SMALL_ANSWER_BYTES};
use crate::node::{Node, Stage};
use millstream_protocol::Frame;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// No request begins, and no fetch takes data, behind answers of this size that wait.
const ANSWERS_HELD_BYTES: usize = 1 << 20;

/// A frame, and the room that its bytes have while its request is under way.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) frame: Frame,
    pub(crate) room: Option<Room>,
}

impl From<Frame> for Arrived {
    fn from(frame: Frame) -> Self {
        Self { frame, room: None }
    }
}

/// What a connection and its requests tell each other.
#[derive(Debug, Default)]
struct Shared {
    /// The newest request that has given up its turn.
    released: AtomicU64,
    /// No more requests come: the other end has gone, or the node is draining.
    ending: AtomicBool,
    /// The number of the oldest request that has not left.
    oldest: AtomicU64,
    /// Bytes of the answers that wait for an older one.
    held_bytes: AtomicUsize,
}

/// A request's right to keep the next one from beginning.
#[derive(Debug)]
pub(crate) struct Turn {
    shared: Arc<Shared>,
    number: u64,
}

impl Turn {
    /// Gives the turn up.
    pub(crate) fn release(&self) {
        self.shared
            .released
            .fetch_max(self.number, Ordering::Relaxed);
    }

    /// Ends when the connection takes no more requests. It needs no waker: the connection polls
    /// every request again after that.
    pub(crate) async fn ending(&self) {
        poll_fn(|_| {
            if self.shared.ending.load(Ordering::Relaxed) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Ends when an answer may be large: it is the next to leave, or few bytes wait before it. It
    /// needs no waker, as above.
    pub(crate) async fn may_be_large(&self) {
        poll_fn(|_| {
            let is_next = self.shared.oldest.load(Ordering::Relaxed) >= self.number;
            let held = self.shared.held_bytes.load(Ordering::Relaxed);
            if is_next || held < ANSWERS_HELD_BYTES {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.release();
    }
}

enum Slot {
    Waits {
        request: Pending,
        /// Given back when the request has ended.
        _room: Option<Room>,
    },
    Done(Outcome),
}

enum Step {
    Leave(Outcome),
    Begin(Arrived),
    Gone,
}

struct Connection {
    node: Arc<Node>,
    peer: Arc<str>,
    reached_at: Option<SocketAddr>,
    in_flight: VecDeque<Slot>,
    shared: Arc<Shared>,
    begun: u64,
    open: bool,
}

/// Serves one connection until its requests end and have been answered, or the node is stopped.
pub(crate) async fn serve<A: Into<Arrived>>(
    node: Arc<Node>,
    incoming: mpsc::Receiver<A>,
    outgoing: mpsc::Sender<Frame>,
    peer: Arc<str>,
    reached_at: Option<SocketAddr>,
) {
    let halted = node.reached(Stage::Stopped);
    let connection = Connection {
        node,
        peer,
        reached_at,
        in_flight: VecDeque::new(),
        shared: Arc::default(),
        begun: 0,
        open: true,
    };
    tokio::select! {
        biased;
        () = halted => {}
        () = connection.run(incoming, outgoing) => {}
    }
}

impl Connection {
    async fn run<A: Into<Arrived>>(
        mut self,
        incoming: mpsc::Receiver<A>,
        outgoing: mpsc::Sender<Frame>,
    ) {
        let mut incoming = Some(incoming);
        let mut draining = pin!(self.node.reached(Stage::Draining));
        let mut drains = false;
        let is_socket = self.reached_at.is_some();
        while self.open || !self.in_flight.is_empty() {
            if !self.open {
                incoming = None;
                self.shared.ending.store(true, Ordering::Relaxed);
            }
            let step = poll_fn(|task| {
                if !drains && draining.as_mut().poll(task).is_ready() {
                    drains = true;
                    return Poll::Ready(Step::Gone);
                }
                self.poll_step(task, incoming.as_mut())
            });
            match step.await {
                Step::Begin(arrived) => self.begin(arrived),
                Step::Gone => self.open = false,
                Step::Leave(Outcome::Nothing) => {}
                Step::Leave(Outcome::Answer(frame)) => {
                    // A peer that takes no answers asks no more questions.
                    if !hand_over(frame, &outgoing, is_socket).await {
                        self.open = false;
                    }
                }
                Step::Leave(Outcome::Close(reason)) => {
                    tracing::debug!(peer = &*self.peer, reason, "connection closed");
                    self.open = false;
                }
            }
        }
    }

    fn begin(&mut self, arrived: Arrived) {
        let Arrived { frame, room } = arrived;
        self.begun += 1;
        let turn = Turn {
            shared: self.shared.clone(),
            number: self.begun,
        };
        let request = dispatch::begin(&self.node, &self.peer, self.reached_at, turn, frame);
        let _room = room;
        self.in_flight.push_back(Slot::Waits { request, _room });
    }

    /// Lets every request go on, then says what is next: the oldest one's end before a new one's
    /// beginning.
    fn poll_step<A: Into<Arrived>>(
        &mut self,
        task: &mut Context<'_>,
        incoming: Option<&mut mpsc::Receiver<A>>,
    ) -> Poll<Step> {
        let mut closes = false;
        let left = self.begun - self.in_flight.len() as u64;
        self.shared.oldest.store(left + 1, Ordering::Relaxed);
        for slot in &mut self.in_flight {
            if let Slot::Waits { request, .. } = slot
                && let Poll::Ready(outcome) = request.as_mut().poll(task)
            {
                closes |= matches!(outcome, Outcome::Close(_));
                let bytes = outcome.size_bytes();
                self.shared.held_bytes.fetch_add(bytes, Ordering::Relaxed);
                *slot = Slot::Done(outcome);
            }
        }
        if matches!(self.in_flight.front(), Some(Slot::Done(_)))
            && let Some(Slot::Done(outcome)) = self.in_flight.pop_front()
        {
            let bytes = outcome.size_bytes();
            self.shared.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Poll::Ready(Step::Leave(outcome));
        }
        if closes {
            return Poll::Ready(Step::Gone);
        }
        let room = self.in_flight.len() < self.node.config.connection_in_flight_max
            && self.shared.held_bytes.load(Ordering::Relaxed) < ANSWERS_HELD_BYTES
            && self.shared.released.load(Ordering::Relaxed) >= self.begun;
        match incoming {
            Some(incoming) if room => match incoming.poll_recv(task) {
                Poll::Ready(Some(frame)) => Poll::Ready(Step::Begin(frame.into())),
                Poll::Ready(None) => Poll::Ready(Step::Gone),
                Poll::Pending => Poll::Pending,
            },
            _ => Poll::Pending,
        }
    }
}

/// Whether the answer was taken. One that is large for a socket waits until the others before it
/// are being written.
async fn hand_over(frame: Frame, outgoing: &mpsc::Sender<Frame>, is_socket: bool) -> bool {
    if !is_socket || frame.size_bytes() <= SMALL_ANSWER_BYTES {
        return outgoing.send(frame).await.is_ok();
    }
    match outgoing.reserve_many(outgoing.max_capacity()).await {
        Ok(mut permits) => {
            if let Some(permit) = permits.next() {
                permit.send(frame);
            }
            true
        }
        Err(_) => false,
    }
}
