//! One connection to one broker: requests go out in order, answers are matched by correlation id.
//!
//! Invariants: a request is answered once, or fails once; frames leave in the order of `start`,
//! those of authentication ahead of what is held for it; a lost connection fails everything that
//! waits, with `sent: true` for what may have been written.
//! Never: repeats a request, or uses a connection again that missed an answer.

use futures::future::BoxFuture;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Buf;
use millstream_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};
use millstream_protocol::{
    ApiKey, EncodeError, ErrorCode, Frame, Request, decode_response, encode_request,
};
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::NodeId;
use super::authentication::Authentication;
use super::establish::Refusal;
use super::versions::BrokerVersions;
use crate::error::RequestError;
use crate::transport::{Ending, FrameConnection, Link};

/// A connection that has done the ApiVersions handshake.
#[derive(Debug)]
pub struct Connection {
    shared: Arc<Shared>,
    versions: BrokerVersions,
}

#[derive(Debug)]
pub(super) struct Shared {
    node: NodeId,
    client_id: String,
    outgoing: mpsc::Sender<Frame>,
    state: Mutex<State>,
    /// Wakes the connection's task: frames overflowed, or the connection is to be closed.
    wake: Notify,
    link: Arc<Link>,
    has_sasl: bool,
}

#[derive(Debug, Default)]
struct State {
    next_correlation_id: i32,
    waiting: FxHashMap<i32, Asker>,
    /// Frames that the channel had no room for, oldest first.
    overflow: VecDeque<Queued>,
    /// Frames that wait until authentication is renewed, oldest first; none while nothing waits.
    held: Option<VecDeque<(i32, Queued)>>,
    /// When the renewal is due: what is started later is held, whether it has begun or not.
    hold_from: Option<Instant>,
    /// How many answers came.
    answers: u64,
    /// The task that renews authentication.
    session: Option<AbortHandle>,
    closed: Option<Arc<str>>,
}

/// A frame that the channel has not taken yet.
#[derive(Debug)]
struct Queued {
    frame: Frame,
    /// Told when it has; dropped when it never will.
    taken: Option<oneshot::Sender<()>>,
}

impl Queued {
    fn leave(self, permit: mpsc::Permit<'_, Frame>) {
        permit.send(self.frame);
        if let Some(taken) = self.taken {
            // Whoever asked may be gone.
            let _ = taken.send(());
        }
    }
}

/// Where an answer goes.
type Asker = oneshot::Sender<Result<Frame, Lost>>;

/// Why an answer will not come.
#[derive(Debug)]
struct Lost {
    reason: Arc<str>,
    /// Whether the request may have been written.
    sent: bool,
}

/// The answer to a request that was started.
#[derive(Debug)]
pub struct PendingResponse {
    receiver: oneshot::Receiver<Result<Frame, Lost>>,
    shared: Arc<Shared>,
    api: ApiKey,
    api_version: i16,
}

/// A request without an answer, on its way to the transport.
#[derive(Debug)]
pub struct Unanswered {
    taken: oneshot::Receiver<()>,
    shared: Arc<Shared>,
    api: ApiKey,
}

impl Unanswered {
    /// Whether the transport has it already.
    pub fn is_taken(&mut self) -> bool {
        self.taken.try_recv().is_ok()
    }

    /// Waits until the transport has taken the request, which is all that can be known of it.
    ///
    /// # Errors
    /// Where the connection is closed before; nothing was sent then.
    pub async fn taken(self) -> Result<(), RequestError> {
        self.taken.await.map_err(|_| {
            let reason = self.shared.lock().closed.clone();
            let reason = reason.as_deref().unwrap_or("the connection ended");
            self.shared.disconnected(self.api, false, reason)
        })
    }
}

/// Makes a request's frame from its correlation id and the client id.
pub(super) type Encode<'a> = Box<dyn FnOnce(i32, &str) -> Result<Frame, EncodeError> + Send + 'a>;

/// An answer that is not decoded yet.
pub(super) struct Answer {
    frame: Frame,
    shared: Arc<Shared>,
    api_version: i16,
}

impl Answer {
    pub(super) fn decode<R: Request>(self) -> Result<R::Response, RequestError> {
        self.shared.decode::<R>(self.frame, self.api_version)
    }
}

impl Connection {
    /// Starts the connection's task, asks the broker which versions it serves, and authenticates
    /// where credentials are given.
    ///
    /// # Errors
    /// Where the connection is lost, times out or answers nonsense, and where client and broker do
    /// not trust each other.
    pub(super) fn open<'a>(
        node: NodeId,
        frames: FrameConnection,
        client_id: &'a str,
        authentication: Option<Authentication>,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Self, Refusal>> {
        Box::pin(async move {
            let link = Arc::clone(&frames.link);
            let shared = Arc::new(Shared {
                node,
                client_id: client_id.to_owned(),
                outgoing: frames.outgoing,
                state: Mutex::new(State::default()),
                wake: Notify::new(),
                link: frames.link,
                has_sasl: authentication.is_some(),
            });
            tokio::spawn(run(Arc::clone(&shared), frames.incoming));
            let mut connection = Self {
                shared,
                versions: BrokerVersions::default(),
            };
            match connection.establish(authentication, timeout).await {
                Ok(()) => Ok(connection),
                // The transport may know better than whoever missed an answer.
                Err(refusal) => match link.ending() {
                    Some(Ending::Refused(error)) => Err(Refusal::Lasting(Arc::clone(error))),
                    _ => Err(refusal),
                },
            }
        })
    }

    async fn establish(
        &mut self,
        authentication: Option<Authentication>,
        timeout: Duration,
    ) -> Result<(), Refusal> {
        self.versions = self.handshake(timeout).await?;
        if let Some(authentication) = authentication {
            let proven = authentication.prove(&self.shared, &self.versions, timeout);
            let lifetime = proven.await?;
            let session =
                authentication.keep(Arc::clone(&self.shared), self.versions.clone(), lifetime);
            self.shared.lock().session = Some(tokio::spawn(session).abort_handle());
        }
        self.shared.link.establish();
        Ok(())
    }

    async fn handshake(&self, timeout: Duration) -> Result<BrokerVersions, RequestError> {
        let request = ApiVersionsRequest {
            client_software_name: "millstream".to_owned(),
            client_software_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let newest = *ApiKey::ApiVersions.versions().end();
        let frame = self.start_at(newest, &request)?.frame(timeout).await?;
        // A broker that does not know the version answers in version 0 (error code first).
        let bytes = frame.into_contiguous();
        let too_new = bytes.get(4..6) == Some(&ErrorCode::UNSUPPORTED_VERSION.code().to_be_bytes());
        let response = if newest > 0 && too_new {
            self.start_at(0, &ApiVersionsRequest::default())?
                .response::<ApiVersionsRequest>(timeout)
                .await?
        } else {
            self.shared
                .decode::<ApiVersionsRequest>(Frame::from_bytes(bytes), newest)?
        };
        self.checked(&response)
    }

    fn checked(&self, response: &ApiVersionsResponse) -> Result<BrokerVersions, RequestError> {
        if response.error_code.is_ok() {
            return Ok(BrokerVersions::new(response));
        }
        let reason = format!("ApiVersions answered {}", response.error_code);
        self.shared.close(&reason);
        Err(self.shared.disconnected(ApiKey::ApiVersions, true, &reason))
    }

    /// What the broker serves.
    #[must_use]
    pub fn versions(&self) -> &BrokerVersions {
        &self.versions
    }

    /// Which broker this leads to.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.shared.node
    }

    /// Whether requests can still be started.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.shared.lock().closed.is_none() && !self.shared.outgoing.is_closed()
    }

    /// The version of `api` that this connection speaks, at most `cap`.
    ///
    /// # Errors
    /// Where both sides have no version in common.
    pub fn version(&self, api: ApiKey, cap: i16) -> Result<i16, RequestError> {
        self.versions
            .negotiate(api, cap)
            .map_err(|broker| RequestError::UnsupportedVersion {
                node: self.shared.node,
                api,
                ours: (*api.versions().start(), (*api.versions().end()).min(cap)),
                broker,
            })
    }

    /// Puts a request on its way without waiting: it leaves after those started before it.
    ///
    /// # Errors
    /// Where it cannot be encoded or the connection is closed; nothing was sent then.
    pub fn start_at<R: Request>(
        &self,
        api_version: i16,
        request: &R,
    ) -> Result<PendingResponse, RequestError> {
        let encode = |correlation_id, client_id: &str| {
            encode_request(api_version, correlation_id, Some(client_id), request)
        };
        self.start(R::API, api_version, Box::new(encode))
    }

    /// As [`Connection::start_at`] without the request's type, so that it is compiled once.
    pub(super) fn start(
        &self,
        api: ApiKey,
        api_version: i16,
        encode: Encode<'_>,
    ) -> Result<PendingResponse, RequestError> {
        self.shared.start(api, api_version, encode, Turn::Own)
    }

    /// Puts a request on its way that the broker never answers (Produce with acks=0).
    ///
    /// # Errors
    /// As [`Connection::start_at`].
    pub fn start_unanswered<R: Request>(
        &self,
        api_version: i16,
        request: &R,
    ) -> Result<Unanswered, RequestError> {
        let encode = |correlation_id, client_id: &str| {
            encode_request(api_version, correlation_id, Some(client_id), request)
        };
        let (sender, taken) = oneshot::channel();
        let fate = Fate::Taken(sender);
        self.shared.put(R::API, Box::new(encode), fate, Turn::Own)?;
        Ok(Unanswered {
            taken,
            shared: Arc::clone(&self.shared),
            api: R::API,
        })
    }

    /// Waits until the transport has written everything that it has taken, or is closed.
    pub(super) async fn drained(&self) {
        let outgoing = &self.shared.outgoing;
        // Every place is free once the other end has emptied the queue.
        drop(outgoing.reserve_many(outgoing.max_capacity()).await);
    }

    /// Closes the connection; everything that waits fails.
    pub fn close(&self, reason: &str) {
        self.shared.close(reason);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.close("the connection was dropped");
    }
}

impl PendingResponse {
    /// Waits for the answer. Where none comes in time the connection is closed: later answers on
    /// it would be of no use, and what it carried has to be asked again.
    ///
    /// Dropping the future forgets the answer; the request stays sent.
    ///
    /// # Errors
    /// Where the connection is lost, the time is over, or the answer cannot be decoded.
    pub async fn response<R: Request>(
        self,
        timeout: Duration,
    ) -> Result<R::Response, RequestError> {
        self.answered(timeout).await?.decode::<R>()
    }

    /// The answer's bytes.
    pub(super) async fn answered(self, timeout: Duration) -> Result<Answer, RequestError> {
        let (shared, api_version) = (Arc::clone(&self.shared), self.api_version);
        let frame = self.frame(timeout).await?;
        Ok(Answer {
            frame,
            shared,
            api_version,
        })
    }

    async fn frame(self, timeout: Duration) -> Result<Frame, RequestError> {
        match tokio::time::timeout(timeout, self.receiver).await {
            Ok(Ok(Ok(frame))) => Ok(frame),
            Ok(Ok(Err(lost))) => Err(self.shared.disconnected(self.api, lost.sent, &lost.reason)),
            Ok(Err(_)) => Err(self
                .shared
                .disconnected(self.api, true, "the connection ended")),
            Err(_) => {
                self.shared.close("a request was not answered in time");
                Err(RequestError::Timeout {
                    node: self.shared.node,
                    api: self.api,
                    timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
                    sent: true,
                })
            }
        }
    }
}

/// What a request waits for.
enum Fate {
    Answered(Asker),
    /// That the transport takes it.
    Taken(oneshot::Sender<()>),
}

/// When a frame leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Behind all others.
    Own,
    /// Ahead of those that are held for authentication.
    Ahead,
}

impl State {
    fn hold(&mut self) {
        self.hold_from = None;
        self.held.get_or_insert_default();
    }
}

impl Shared {
    /// Starts a request of authentication: it does not wait until authentication is renewed.
    pub(super) fn start_ahead<R: Request>(
        self: &Arc<Self>,
        api_version: i16,
        request: &R,
    ) -> Result<PendingResponse, RequestError> {
        let encode = |correlation_id, client_id: &str| {
            encode_request(api_version, correlation_id, Some(client_id), request)
        };
        self.start(R::API, api_version, Box::new(encode), Turn::Ahead)
    }

    fn start(
        self: &Arc<Self>,
        api: ApiKey,
        api_version: i16,
        encode: Encode<'_>,
        turn: Turn,
    ) -> Result<PendingResponse, RequestError> {
        let (sender, receiver) = oneshot::channel();
        self.put(api, encode, Fate::Answered(sender), turn)?;
        Ok(PendingResponse {
            receiver,
            shared: Arc::clone(self),
            api,
            api_version,
        })
    }

    fn put(
        &self,
        api: ApiKey,
        encode: Encode<'_>,
        fate: Fate,
        turn: Turn,
    ) -> Result<(), RequestError> {
        let mut state = self.lock();
        if let Some(reason) = &state.closed {
            return Err(self.disconnected(api, false, reason));
        }
        let correlation_id = state.next_correlation_id;
        let frame =
            encode(correlation_id, &self.client_id).map_err(|error| RequestError::Encode {
                api,
                reason: error.to_string().into(),
            })?;
        state.next_correlation_id = correlation_id.wrapping_add(1) & i32::MAX;
        let (answer, taken) = match fate {
            Fate::Answered(answer) => (Some(answer), None),
            Fate::Taken(taken) => (None, Some(taken)),
        };
        let queued = Queued { frame, taken };
        if state.hold_from.is_some_and(|due| Instant::now() >= due) {
            state.hold();
        }
        if let Some(held) = state.held.as_mut().filter(|_| turn == Turn::Own) {
            held.push_back((correlation_id, queued));
        } else if state.overflow.is_empty() {
            match self.outgoing.try_reserve() {
                Ok(permit) => queued.leave(permit),
                Err(mpsc::error::TrySendError::Full(())) => {
                    state.overflow.push_back(queued);
                    self.wake.notify_one();
                }
                Err(mpsc::error::TrySendError::Closed(())) => {
                    return Err(self.disconnected(api, false, "the transport has closed"));
                }
            }
        } else {
            state.overflow.push_back(queued);
        }
        if let Some(answer) = answer {
            state.waiting.insert(correlation_id, answer);
        }
        Ok(())
    }

    /// Requests that are started from now on wait for [`Shared::release`].
    pub(super) fn hold(&self) {
        self.lock().hold();
    }

    /// As [`Shared::hold`] from `due` on.
    pub(super) fn hold_from(&self, due: Instant) {
        self.lock().hold_from = Some(due);
    }

    /// What was held goes on its way.
    pub(super) fn release(&self) {
        let mut state = self.lock();
        if let Some(held) = state.held.take() {
            state
                .overflow
                .extend(held.into_iter().map(|(_, queued)| queued));
        }
        self.wake.notify_one();
    }

    /// Why no more frames come.
    fn end(&self) -> String {
        const CLOSED: &str = "the broker closed the connection";
        match self.link.ending() {
            Some(Ending::Lost(reason)) => format!("{CLOSED}: {reason}"),
            Some(Ending::Refused(error)) => error.to_string(),
            // ApiVersions alone was answered, or not even that.
            None if !self.has_sasl && self.lock().answers < 2 => format!(
                "{CLOSED} without an answer, as listeners do that ask for TLS or SASL \
                 (security.protocol)"
            ),
            None => CLOSED.to_owned(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn disconnected(&self, api: ApiKey, sent: bool, reason: &str) -> RequestError {
        RequestError::Disconnected {
            node: self.node,
            api,
            sent,
            reason: reason.into(),
        }
    }

    fn decode<R: Request>(&self, frame: Frame, version: i16) -> Result<R::Response, RequestError> {
        match decode_response::<R>(frame, version) {
            Ok((_, response)) => Ok(response),
            Err(error) => {
                self.close("an answer could not be decoded");
                let reason = error.to_string().into();
                Err(RequestError::Decode {
                    node: self.node,
                    api: R::API,
                    reason,
                })
            }
        }
    }

    pub(super) fn close(&self, reason: &str) {
        let (waiting, held) = {
            let mut state = self.lock();
            if state.closed.is_some() {
                return;
            }
            state.closed = Some(reason.into());
            state.overflow.clear();
            if let Some(session) = state.session.take() {
                session.abort();
            }
            (std::mem::take(&mut state.waiting), state.held.take())
        };
        let unsent: BTreeSet<i32> = held.into_iter().flatten().map(|(id, _)| id).collect();
        let mut waiting: Vec<_> = waiting.into_iter().collect();
        waiting.sort_unstable_by_key(|(correlation_id, _)| *correlation_id);
        for (correlation_id, answer) in waiting {
            let lost = Lost {
                reason: reason.into(),
                sent: !unsent.contains(&correlation_id),
            };
            // The waiter may be gone; then nobody needs to know.
            let _ = answer.send(Err(lost));
        }
        self.wake.notify_one();
    }

    fn answer(&self, frame: Frame) {
        let Some(correlation_id) = correlation_id(&frame) else {
            self.close("an answer was too short to hold a correlation id");
            return;
        };
        let waiter = {
            let mut state = self.lock();
            state.answers = state.answers.saturating_add(1);
            state.waiting.remove(&correlation_id)
        };
        match waiter {
            // The waiter may be gone; then nobody needs the answer.
            Some(waiter) => drop(waiter.send(Ok(frame))),
            None => self.close("an answer matched no request"),
        }
    }
}

fn correlation_id(frame: &Frame) -> Option<i32> {
    let mut bytes = [0_u8; 4];
    let mut filled = 0;
    for segment in frame.segments() {
        let mut segment = segment.clone();
        let take = segment.remaining().min(4 - filled);
        segment.copy_to_slice(bytes.get_mut(filled..filled + take)?);
        filled += take;
        if filled == 4 {
            return Some(i32::from_be_bytes(bytes));
        }
    }
    None
}

/// The connection's task: delivers answers, and sends frames that overflowed the channel.
async fn run(shared: Arc<Shared>, mut incoming: mpsc::Receiver<Frame>) {
    let mut more_to_send = false;
    while shared.lock().closed.is_none() {
        tokio::select! {
            biased;
            frame = incoming.recv() => match frame {
                Some(frame) => shared.answer(frame),
                None => shared.close(&shared.end()),
            },
            permit = shared.outgoing.reserve(), if more_to_send => {
                let Ok(permit) = permit else {
                    shared.close("the transport has closed");
                    return;
                };
                let mut state = shared.lock();
                if let Some(queued) = state.overflow.pop_front() {
                    queued.leave(permit);
                }
                more_to_send = !state.overflow.is_empty();
            }
            () = shared.wake.notified() => more_to_send = !shared.lock().overflow.is_empty(),
        }
    }
}
