//! One connection to one broker: requests go out in order, answers are matched by correlation id.
//!
//! Invariants: a request is answered once, or fails once; frames leave in the order of `start`;
//! a lost connection fails everything that waits, with `sent: true` for what may have been
//! written.
//! Never: repeats a request, or uses a connection again that missed an answer.

use futures::future::BoxFuture;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Buf;
use millstream_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};
use millstream_protocol::{
    ApiKey, EncodeError, ErrorCode, Frame, Request, decode_response, encode_request,
};
use rustc_hash::FxHashMap;
use tokio::sync::{Notify, mpsc, oneshot};

use super::NodeId;
use super::versions::BrokerVersions;
use crate::error::RequestError;
use crate::transport::FrameConnection;

/// A connection that has done the ApiVersions handshake.
#[derive(Debug)]
pub struct Connection {
    shared: Arc<Shared>,
    versions: BrokerVersions,
}

#[derive(Debug)]
struct Shared {
    node: NodeId,
    client_id: String,
    outgoing: mpsc::Sender<Frame>,
    state: Mutex<State>,
    /// Wakes the connection's task: frames overflowed, or the connection is to be closed.
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    next_correlation_id: i32,
    waiting: FxHashMap<i32, oneshot::Sender<Result<Frame, Arc<str>>>>,
    /// Frames that the channel had no room for, oldest first.
    overflow: VecDeque<Frame>,
    closed: Option<Arc<str>>,
}

/// The answer to a request that was started.
#[derive(Debug)]
pub struct PendingResponse {
    receiver: oneshot::Receiver<Result<Frame, Arc<str>>>,
    shared: Arc<Shared>,
    api: ApiKey,
    api_version: i16,
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
    /// Starts the connection's task and asks the broker which versions it serves.
    ///
    /// # Errors
    /// Where the connection is lost, times out or answers nonsense.
    pub fn open<'a>(
        node: NodeId,
        frames: FrameConnection,
        client_id: &'a str,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Self, RequestError>> {
        Box::pin(async move {
            let shared = Arc::new(Shared {
                node,
                client_id: client_id.to_owned(),
                outgoing: frames.outgoing,
                state: Mutex::new(State::default()),
                wake: Notify::new(),
            });
            tokio::spawn(run(Arc::clone(&shared), frames.incoming));
            let mut connection = Self {
                shared,
                versions: BrokerVersions::default(),
            };
            connection.versions = connection.handshake(timeout).await?;
            Ok(connection)
        })
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
        let (sender, receiver) = oneshot::channel();
        self.put(api, encode, Some(sender))?;
        Ok(PendingResponse {
            receiver,
            shared: Arc::clone(&self.shared),
            api,
            api_version,
        })
    }

    /// Puts a request on its way that the broker never answers (Produce with acks=0).
    ///
    /// # Errors
    /// As [`Connection::start_at`].
    pub fn start_unanswered<R: Request>(
        &self,
        api_version: i16,
        request: &R,
    ) -> Result<(), RequestError> {
        let encode = |correlation_id, client_id: &str| {
            encode_request(api_version, correlation_id, Some(client_id), request)
        };
        self.put(R::API, Box::new(encode), None)
    }

    fn put(
        &self,
        api: ApiKey,
        encode: Encode<'_>,
        answer: Option<oneshot::Sender<Result<Frame, Arc<str>>>>,
    ) -> Result<(), RequestError> {
        let shared = &self.shared;
        let mut state = shared.lock();
        if let Some(reason) = &state.closed {
            return Err(shared.disconnected(api, false, reason));
        }
        let correlation_id = state.next_correlation_id;
        let frame =
            encode(correlation_id, &shared.client_id).map_err(|error| RequestError::Encode {
                api,
                reason: error.to_string().into(),
            })?;
        state.next_correlation_id = correlation_id.wrapping_add(1) & i32::MAX;
        if state.overflow.is_empty() {
            match shared.outgoing.try_send(frame) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(frame)) => {
                    state.overflow.push_back(frame);
                    shared.wake.notify_one();
                }
                Err(mpsc::error::TrySendError::Closed(_)) => {
                    return Err(shared.disconnected(api, false, "the transport has closed"));
                }
            }
        } else {
            state.overflow.push_back(frame);
        }
        if let Some(answer) = answer {
            state.waiting.insert(correlation_id, answer);
        }
        Ok(())
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
            Ok(Ok(Err(reason))) => Err(self.shared.disconnected(self.api, true, &reason)),
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

impl Shared {
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

    fn close(&self, reason: &str) {
        let waiting = {
            let mut state = self.lock();
            if state.closed.is_some() {
                return;
            }
            state.closed = Some(reason.into());
            state.overflow.clear();
            std::mem::take(&mut state.waiting)
        };
        let mut waiting: Vec<_> = waiting.into_iter().collect();
        waiting.sort_unstable_by_key(|(correlation_id, _)| *correlation_id);
        for (_, answer) in waiting {
            // The waiter may be gone; then nobody needs to know.
            let _ = answer.send(Err(reason.into()));
        }
        self.wake.notify_one();
    }

    fn answer(&self, frame: Frame) {
        let Some(correlation_id) = correlation_id(&frame) else {
            self.close("an answer was too short to hold a correlation id");
            return;
        };
        let waiter = self.lock().waiting.remove(&correlation_id);
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
                None => shared.close("the broker closed the connection"),
            },
            permit = shared.outgoing.reserve(), if more_to_send => {
                let Ok(permit) = permit else {
                    shared.close("the transport has closed");
                    return;
                };
                let mut state = shared.lock();
                if let Some(frame) = state.overflow.pop_front() {
                    permit.send(frame);
                }
                more_to_send = !state.overflow.is_empty();
            }
            () = shared.wake.notified() => more_to_send = !shared.lock().overflow.is_empty(),
        }
    }
}
