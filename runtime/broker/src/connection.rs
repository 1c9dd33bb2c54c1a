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
//! Invariants: answers that wait for an older one take at most `ANSWERS_HELD_BYTES`, over a socket
//! `SMALL_ANSWER_BYTES`, and one answer; behind them, of two large answers one is on its way to the
//! peer and one is next.
//! Invariants: a request that has given up its turn keeps no room, but for Produce and Fetch; what
//! holds memory for `PATIENCE` while nothing goes on, and others need it, ends the connection.
//! Never: looks into a request.

use crate::dispatch::{self, Outcome, Pending};
use crate::memory::{LOOK_AGAIN, PATIENCE, Room, SMALL_ANSWER_BYTES};
use crate::node::{Node, Stage};
use millstream_protocol::{ApiKey, Frame};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep};

/// No request begins, and no fetch takes data, behind answers of this size that wait. Over a socket
/// it is `SMALL_ANSWER_BYTES`.
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
    /// Bytes of the answers that wait for an older one, and where they are enough.
    held_bytes: AtomicUsize,
    held_bytes_max: usize,
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
            if is_next || held < self.shared.held_bytes_max {
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
        number: u64,
        api: Option<ApiKey>,
        /// Given back when the request has ended, or waits for what is not in it.
        room: Option<Room>,
        began: Instant,
    },
    Done {
        outcome: Outcome,
        ended: Instant,
    },
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
    /// When the newest request began.
    newest: Instant,
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
        shared: Arc::new(Shared {
            held_bytes_max: if reached_at.is_some() {
                SMALL_ANSWER_BYTES
            } else {
                ANSWERS_HELD_BYTES
            },
            ..Shared::default()
        }),
        begun: 0,
        newest: Instant::now(),
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
        let mut look_again = pin!(sleep(LOOK_AGAIN));
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
                self.poll_step(task, incoming.as_mut(), look_again.as_mut())
            });
            match step.await {
                Step::Begin(arrived) => self.begin(arrived),
                Step::Gone => self.open = false,
                Step::Leave(Outcome::Nothing) => {}
                Step::Leave(Outcome::Answer(frame)) => {
                    // A peer that takes no answers asks no more questions. Those that it has asked
                    // go on: they may hold, or be next in turn for, what others wait for.
                    let mut handed = pin!(hand_over(frame, &outgoing, is_socket));
                    let handed = poll_fn(|task| {
                        let handed = handed.as_mut().poll(task);
                        if handed.is_pending() {
                            self.poll_requests(task, 1);
                        }
                        handed
                    });
                    if !handed.await {
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
        self.newest = Instant::now();
        self.in_flight.push_back(Slot::Waits {
            api: dispatch::api_of(&frame),
            request: dispatch::begin(&self.node, &self.peer, self.reached_at, turn, frame),
            number: self.begun,
            room,
            began: self.newest,
        });
    }

    /// Lets every request go on, then says what is next: the oldest one's end before a new one's
    /// beginning.
    fn poll_step<A: Into<Arrived>>(
        &mut self,
        task: &mut Context<'_>,
        incoming: Option<&mut mpsc::Receiver<A>>,
        look_again: Pin<&mut Sleep>,
    ) -> Poll<Step> {
        if incoming.as_ref().is_some_and(|frames| frames.is_closed()) {
            // Also where none of those that have come may begin.
            self.shared.ending.store(true, Ordering::Relaxed);
        }
        let closes = self.poll_requests(task, 0);
        if matches!(self.in_flight.front(), Some(Slot::Done { .. }))
            && let Some(Slot::Done { outcome, .. }) = self.in_flight.pop_front()
        {
            let bytes = outcome.size_bytes();
            self.shared.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Poll::Ready(Step::Leave(outcome));
        }
        if closes {
            return Poll::Ready(Step::Gone);
        }
        let room = self.in_flight.len() < self.node.config.connection_in_flight_max
            && self.shared.held_bytes.load(Ordering::Relaxed) < self.shared.held_bytes_max
            && self.shared.released.load(Ordering::Relaxed) >= self.begun;
        let mut queued = false;
        match incoming {
            Some(incoming) if room => match incoming.poll_recv(task) {
                Poll::Ready(Some(frame)) => return Poll::Ready(Step::Begin(frame.into())),
                Poll::Ready(None) => return Poll::Ready(Step::Gone),
                Poll::Pending => {}
            },
            Some(incoming) => queued = !incoming.is_empty(),
            None => {}
        }
        self.poll_patience(task, queued, look_again)
    }

    /// Lets every request go on; says whether one of them closes the connection.
    fn poll_requests(&mut self, task: &mut Context<'_>, leaving: u64) -> bool {
        let mut closes = false;
        let left = self.begun - self.in_flight.len() as u64 - leaving;
        self.shared.oldest.store(left + 1, Ordering::Relaxed);
        for slot in &mut self.in_flight {
            let Slot::Waits {
                request,
                number,
                api,
                room,
                ..
            } = slot
            else {
                continue;
            };
            if let Poll::Ready(outcome) = request.as_mut().poll(task) {
                closes |= matches!(outcome, Outcome::Close(_));
                let bytes = outcome.size_bytes();
                self.shared.held_bytes.fetch_add(bytes, Ordering::Relaxed);
                let ended = Instant::now();
                *slot = Slot::Done { outcome, ended };
            } else if self.shared.released.load(Ordering::Relaxed) >= *number
                && !matches!(api, Some(ApiKey::Produce | ApiKey::Fetch))
            {
                // What a group has taken of it is the group's.
                *room = None;
            }
        }
        closes
    }

    /// Ends the connection when it has held for too long what others wait for.
    fn poll_patience(
        &self,
        task: &mut Context<'_>,
        queued: bool,
        mut look_again: Pin<&mut Sleep>,
    ) -> Poll<Step> {
        let Some(since) = self.holds_since(queued).filter(|_| self.open) else {
            return Poll::Pending;
        };
        while look_again.as_mut().poll(task).is_ready() {
            if since.elapsed() >= PATIENCE && self.node.memory.is_short() {
                let peer = &*self.peer;
                tracing::debug!(peer, "connection closed: it holds memory that others need");
                return Poll::Ready(Step::Gone);
            }
            look_again.as_mut().reset(Instant::now() + LOOK_AGAIN);
        }
        Poll::Pending
    }

    /// Since when it has held memory while nothing went on: a Fetch that waits, an answer behind an
    /// older request, frames that may not begin. A Produce goes on as the disk does.
    fn holds_since(&self, queued: bool) -> Option<Instant> {
        self.reached_at?;
        let queued = queued.then_some(self.newest);
        let held = self.in_flight.iter().filter_map(|slot| match slot {
            Slot::Waits {
                room, began, api, ..
            } => (room.is_some() && *api == Some(ApiKey::Fetch)).then_some(*began),
            Slot::Done { outcome, ended } => {
                (outcome.size_bytes() > SMALL_ANSWER_BYTES).then_some(*ended)
            }
        });
        held.chain(queued).min()
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
