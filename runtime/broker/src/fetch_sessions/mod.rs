//! Incremental fetches (KIP-227): what clients asked before need not be asked again, and what they
//! know is not told again.
//!
//! ```text
//!              id, epoch                     answer
//! full         0, 0   ─▶ everything ─▶ new session, epoch 1 ─no room─▶ id 0
//!              id, 0  ─▶ the session ends, then the same
//!              any, -1 ─▶ the session ends; everything, id 0
//! incremental  id, n  ─▶ taken, epoch n + 1 ─▶ what changed ─▶ back (nothing left: ended, id 0)
//!                 │
//!                 ├ no such id ─▶ 70    other epoch, or taken ─▶ 71    names for ids ─▶ 106
//! ```
//!
//! Invariants:
//! - a session is with one request at a time, and comes back however that request ends
//! - its epoch moves when the request begins: a client that misses the answer has to begin anew
//! - sessions belong to the node, not to a connection; they end with it, or for want of use
//!
//! Never: waits.

mod cache;
#[cfg(test)]
mod model_tests;
mod session;

pub(crate) use cache::NO_SESSION;
pub(crate) use session::{Asked, Place, Session, Told, TopicKey};

use crate::node::Node;
use cache::{Begun, Cache, Loan};
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::FetchRequest;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The fetch sessions of a node.
#[derive(Debug)]
pub(crate) struct FetchSessions {
    cache: Mutex<Cache>,
}

/// What a request is.
#[derive(Debug)]
pub(crate) enum Kind {
    /// It names everything, and wants a session.
    Initial,
    /// It names everything.
    Sessionless,
    /// It names what changed in this session.
    Incremental(Taken),
}

/// A session that is with a request. It comes back when this is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    node: Arc<Node>,
    loan: Loan,
    /// `None` once it is back.
    session: Option<Box<Session>>,
}

impl FetchSessions {
    /// Room for that many sessions.
    pub(crate) fn new(slots_max: usize) -> Self {
        Self {
            cache: Mutex::new(Cache::new(slots_max)),
        }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds the session of a request, and tells it what the request changes.
    pub(crate) fn begin(
        node: &Arc<Node>,
        request: &FetchRequest,
        by_id: bool,
    ) -> Result<Kind, ErrorCode> {
        let (id, epoch) = (request.session_id, request.session_epoch);
        let now_ms = node.now_ms();
        let begun = node.fetch_sessions.cache().begin(id, epoch, by_id, now_ms);
        match begun {
            Begun::Initial => Ok(Kind::Initial),
            Begun::Sessionless => Ok(Kind::Sessionless),
            Begun::Refused(error) => {
                tracing::debug!(id, epoch, ?error, "a fetch session does not fit");
                Err(error)
            }
            Begun::Incremental(loan, mut session) => {
                session.change(&request.topics, &request.forgotten_topics_data);
                Ok(Kind::Incremental(Taken {
                    node: node.clone(),
                    loan,
                    session: Some(session),
                }))
            }
        }
    }

    /// Keeps a new session. Its id, or none where there is no room.
    pub(crate) fn keep(node: &Node, session: Session) -> i32 {
        let now_ms = node.now_ms();
        let mut cache = node.fetch_sessions.cache();
        cache.keep(session, now_ms, || node.random_u64())
    }
}

impl Taken {
    /// The session.
    pub(crate) fn session(&self) -> Option<&Session> {
        self.session.as_deref()
    }

    /// The session, to be told what is answered.
    pub(crate) fn session_mut(&mut self) -> Option<&mut Session> {
        self.session.as_deref_mut()
    }

    /// Gives the session back; the id with which the client goes on.
    pub(crate) fn give_back(mut self) -> i32 {
        self.end()
    }

    fn end(&mut self) -> i32 {
        let Some(session) = self.session.take() else {
            return NO_SESSION;
        };
        let now_ms = self.node.now_ms();
        let mut cache = self.node.fetch_sessions.cache();
        cache.give_back(self.loan, session, now_ms)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.end();
    }
}
