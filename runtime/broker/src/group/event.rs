//! What a group is told and what it answers: the vocabulary of the group machine.
//!
//! Invariants: every event that carries a token is answered under that token exactly once.
//! Never: wire types or clocks; handlers translate, the coordinator brings the time.

use bytes::Bytes;
use millstream_protocol::ErrorCode;

/// Ties an answer to the request that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Token(pub(crate) u64);

/// One protocol that a member supports, most wanted first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Protocol {
    /// For consumers, the assignor's name.
    pub(crate) name: String,
    /// For consumers, the subscription. Opaque to the group.
    pub(crate) metadata: Bytes,
}

/// A member asks to be part of the next generation.
#[derive(Clone, Debug)]
pub(crate) struct Join {
    /// Answered by `Reply::Join`.
    pub(crate) token: Token,
    /// Empty for a member that has no id yet.
    pub(crate) member_id: String,
    /// Set for a static member.
    pub(crate) group_instance_id: Option<String>,
    /// The id that a new member gets: never used before.
    pub(crate) candidate_member_id: String,
    /// A new dynamic member must come back with the id that it is given (JoinGroup 4 and later).
    pub(crate) requires_known_member_id: bool,
    /// The leader understands that it is to bring no assignment (JoinGroup 9 and later).
    pub(crate) supports_skipping_assignment: bool,
    /// As the client calls itself.
    pub(crate) client_id: String,
    /// Where the client connects from.
    pub(crate) client_host: String,
    /// Without a sign of life for this long the member is removed.
    pub(crate) session_timeout_ms: i32,
    /// How long a rebalance waits for this member to join again.
    pub(crate) rebalance_timeout_ms: i32,
    /// "consumer", "connect", …
    pub(crate) protocol_type: String,
    /// Most wanted first.
    pub(crate) protocols: Vec<Protocol>,
}

/// A member asks for its assignment; the leader brings everybody's.
#[derive(Clone, Debug)]
pub(crate) struct Sync {
    /// Answered by `Reply::Sync`.
    pub(crate) token: Token,
    /// Who says it.
    pub(crate) member: MemberClaim,
    /// Checked when the client sends it (SyncGroup 5 and later).
    pub(crate) protocol_type: Option<String>,
    /// Checked when the client sends it (SyncGroup 5 and later).
    pub(crate) protocol: Option<String>,
    /// Member id and assignment; empty unless the leader says it.
    pub(crate) assignments: Vec<(String, Bytes)>,
}

/// Who a request says it comes from, and in which generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberClaim {
    /// May be empty where a request needs no membership.
    pub(crate) member_id: String,
    /// Set for a static member.
    pub(crate) group_instance_id: Option<String>,
    /// Negative where a request needs no membership.
    pub(crate) generation: i32,
}

/// One member that leaves, by its id, its instance id or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leaver {
    /// Empty when an administrator removes a static member by its instance id alone.
    pub(crate) member_id: String,
    /// Set for a static member.
    pub(crate) group_instance_id: Option<String>,
}

/// Something happens to a group.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// JoinGroup.
    Join(Join),
    /// SyncGroup.
    Sync(Sync),
    /// Heartbeat: a sign of life from a member of the current generation.
    Heartbeat {
        /// Answered by `Reply::Heartbeat`.
        token: Token,
        /// Who says it.
        member: MemberClaim,
    },
    /// LeaveGroup.
    Leave {
        /// Answered by `Reply::Leave`.
        token: Token,
        /// All of them leave before the group reacts.
        leavers: Vec<Leaver>,
    },
    /// DeleteGroups.
    Delete {
        /// Answered by `Reply::Delete`.
        token: Token,
    },
    /// Time has passed: sessions and phases may have ended.
    Tick,
}

/// The answer to a join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JoinReply {
    /// `NONE`, or why there is no generation in this answer.
    pub(crate) error: ErrorCode,
    /// -1 with an error.
    pub(crate) generation: i32,
    /// Absent with an error.
    pub(crate) protocol_type: Option<String>,
    /// Absent with an error.
    pub(crate) protocol: Option<String>,
    /// Empty with an error.
    pub(crate) leader: String,
    /// The member's own id.
    pub(crate) member_id: String,
    /// The leader is to bring no assignment.
    pub(crate) skip_assignment: bool,
    /// Everybody's metadata for the chosen protocol; empty unless the member leads.
    pub(crate) members: Vec<JoinedMember>,
}

impl JoinReply {
    /// An answer without a generation.
    pub(crate) fn refused(member_id: impl Into<String>, error: ErrorCode) -> Self {
        JoinReply {
            error,
            generation: -1,
            protocol_type: None,
            protocol: None,
            leader: String::new(),
            member_id: member_id.into(),
            skip_assignment: false,
            members: Vec::new(),
        }
    }
}

/// One member as the leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JoinedMember {
    /// The member's id.
    pub(crate) member_id: String,
    /// Set for a static member.
    pub(crate) group_instance_id: Option<String>,
    /// What it sent for the chosen protocol.
    pub(crate) metadata: Bytes,
}

/// The answer to a sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyncReply {
    /// `NONE`, or why there is no assignment in this answer.
    pub(crate) error: ErrorCode,
    /// Absent with an error.
    pub(crate) protocol_type: Option<String>,
    /// Absent with an error.
    pub(crate) protocol: Option<String>,
    /// Empty with an error, and for a member that the leader gave nothing.
    pub(crate) assignment: Bytes,
}

impl SyncReply {
    /// An answer without an assignment.
    pub(crate) fn refused(error: ErrorCode) -> Self {
        SyncReply {
            error,
            protocol_type: None,
            protocol: None,
            assignment: Bytes::new(),
        }
    }
}

/// The answer to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// To JoinGroup.
    Join(JoinReply),
    /// To SyncGroup.
    Sync(SyncReply),
    /// To Heartbeat.
    Heartbeat(ErrorCode),
    /// To LeaveGroup: one code a leaver, in the order of the request.
    Leave(Vec<ErrorCode>),
    /// To DeleteGroups.
    Delete(ErrorCode),
}

/// What one event made a group do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// Answers, to be given once whatever is to be stored is durable.
    pub(crate) replies: Vec<(Token, Reply)>,
    /// The group's members or generation changed in a way that a restart must know.
    pub(crate) store: bool,
}
