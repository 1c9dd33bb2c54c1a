//! One member of a classic group: what it supports, what it was given, what it waits for.
//!
//! Invariants: at most one join and one sync are parked; `instance_id` never changes.
//! Never: decides anything about the group.

use bytes::Bytes;

use super::event::{Protocol, Token};

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Given by the coordinator.
    pub(crate) id: String,
    /// Chosen by the user, for static members.
    pub(crate) instance_id: Option<String>,
    /// As the client calls itself.
    pub(crate) client_id: String,
    /// Where the client connects from.
    pub(crate) client_host: String,
    /// Without a sign of life for this long the member is removed.
    pub(crate) session_timeout_ms: i32,
    /// How long a rebalance waits for this member to join again.
    pub(crate) rebalance_timeout_ms: i32,
    /// Most wanted first.
    pub(crate) protocols: Vec<Protocol>,
    /// What the leader gave it in the current generation.
    pub(crate) assignment: Bytes,
    /// The session ends here unless the member waits for the group or says something before.
    pub(crate) session_deadline_ms: i64,
    /// It has not been part of a generation yet, so it may be gone while its join is parked.
    pub(crate) is_new: bool,
    /// A parked JoinGroup.
    pub(crate) join: Option<Token>,
    /// A parked SyncGroup.
    pub(crate) sync: Option<Token>,
}

impl Member {
    /// A static member keeps its place until its session ends.
    pub(crate) fn is_static(&self) -> bool {
        self.instance_id.is_some()
    }

    /// What the member sent for a protocol.
    pub(crate) fn metadata(&self, protocol: &str) -> Option<&Bytes> {
        self.protocols
            .iter()
            .find(|known| known.name == protocol)
            .map(|known| &known.metadata)
    }

    /// Whether the member supports a protocol.
    pub(crate) fn supports(&self, protocol: &str) -> bool {
        self.metadata(protocol).is_some()
    }

    /// When the session ends; `None` while the member waits for the group, not the group for it.
    pub(crate) fn expires_at_ms(&self) -> Option<i64> {
        let waits = self.join.is_some() || self.sync.is_some();
        if waits && !self.is_new {
            None
        } else {
            Some(self.session_deadline_ms)
        }
    }

    /// A sign of life.
    pub(crate) fn refresh_session(&mut self, now_ms: i64) {
        self.session_deadline_ms = now_ms.saturating_add(i64::from(self.session_timeout_ms));
    }
}
