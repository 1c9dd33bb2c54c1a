//! What a group of the consumer protocol is told, what it looks at, and what it answers.
//!
//! Invariants: a refusal has changed nothing.
//! Never: wire types; handlers translate.

use std::sync::Arc;

use millstream_protocol::{ErrorCode, Uuid};

use super::assignor::Assignor;
use super::member::Partitions;

/// The member epoch that joins.
pub(crate) const JOIN: i32 = 0;
/// The member epoch that leaves for good.
pub(crate) const LEAVE: i32 = -1;
/// The member epoch with which a static member leaves until it is back.
pub(crate) const PAUSE: i32 = -2;

/// What the settings say about a group of the consumer protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// `consumer.session.timeout.ms` of the group.
    pub(crate) session_timeout_ms: i32,
    /// `group.consumer.max.size`.
    pub(crate) members_max: usize,
}

/// A topic as an assignor sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TopicShape {
    /// Its id.
    pub(crate) id: Uuid,
    /// How many partitions it has.
    pub(crate) partition_count: i32,
}

/// The topics that exist.
pub(crate) trait TopicTable {
    /// Another number whenever a topic has come, gone or grown.
    fn version(&self) -> u64;
    /// The topic of that name.
    fn shape(&self, name: &str) -> Option<TopicShape>;
    /// The names of the topics that match a regular expression; none if it is not understood.
    fn matching(&self, regex: &str) -> Arc<[Arc<str>]>;
}

/// One ConsumerGroupHeartbeat. `None` is what has not changed since the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Beat {
    /// Never empty: the coordinator draws one for a member of version 0 that brings none.
    pub(crate) member_id: String,
    /// The epoch that the member knows, or what it wants: `JOIN`, `LEAVE`, `PAUSE`.
    pub(crate) member_epoch: i32,
    /// Set for a static member.
    pub(crate) instance_id: Option<String>,
    /// Where the member is; kept and shown, nothing else.
    pub(crate) rack_id: Option<String>,
    /// How long the member may take to give partitions up.
    pub(crate) rebalance_timeout_ms: Option<i32>,
    /// The topics that it reads.
    pub(crate) topics: Option<Vec<String>>,
    /// The expression by which it reads topics; an empty one is none.
    pub(crate) regex: Option<String>,
    /// The assignor that it votes for.
    pub(crate) assignor: Option<Assignor>,
    /// The partitions that it owns.
    pub(crate) owned: Option<Partitions>,
    /// As the client calls itself.
    pub(crate) client_id: String,
    /// Where the client connects from.
    pub(crate) client_host: String,
}

impl Beat {
    /// A member that joins, or that does not know whether it was heard, says everything.
    pub(crate) fn is_full(&self) -> bool {
        let subscribes = self.topics.is_some() || self.regex.is_some();
        self.rebalance_timeout_ms.is_some() && subscribes && self.owned.is_some()
    }
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BeatReply {
    /// The member's id.
    pub(crate) member_id: String,
    /// The epoch that the next heartbeat has to name.
    pub(crate) member_epoch: i32,
    /// Everything that the member may use now, when that has changed or when it asks.
    pub(crate) assignment: Option<Partitions>,
}

/// Why a heartbeat was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The code that tells the client what to do.
    pub(crate) error: ErrorCode,
    /// For people.
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(error: ErrorCode, message: impl Into<String>) -> Self {
        Refusal {
            error,
            message: message.into(),
        }
    }
}
