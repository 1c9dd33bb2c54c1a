//! What a consumer reports to its application.
//!
//! Invariants: a text names the partition and offset, or the group and member, and the next step;
//! an error that repeats (fenced, refused) is the same every time.
//! Never: reports what the consumer repairs by itself (leader changes, moved coordinators).

use std::sync::Arc;

use millstream_protocol::{BatchError, ErrorCode, TopicPartition};

use crate::error::{ClusterError, ConfigError, RequestError};

/// Why a consumer's call failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumerError {
    /// The settings are wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The cluster could not be asked, or said no.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The consumer was closed.
    #[error("the consumer is closed; make a new one")]
    Closed,
    /// There is nothing to poll.
    #[error("nothing to poll: call assign(..) or subscribe(..) first")]
    NoPartitions,
    /// A consumer either assigns partitions itself or lets a group do it.
    #[error(
        "{call} does not go with {present}; call unsubscribe() first, or use a second consumer"
    )]
    MixedSubscription {
        /// The call.
        call: &'static str,
        /// What the consumer does already.
        present: &'static str,
    },
    /// The call needs a group.
    #[error("{call} needs a group.id; build the consumer with group_id(..)")]
    NoGroup {
        /// The call.
        call: &'static str,
    },
    /// The partition is not (any more) one of this consumer's.
    #[error("{topic_partition} is not assigned to this consumer; look at assignment()")]
    NotAssigned {
        /// Which one.
        topic_partition: TopicPartition,
    },
    /// No committed offset, and no rule for that.
    #[error(
        "{topic_partition}: group {group:?} has no committed offset and auto.offset.reset=none; \
         call seek(..), or set auto_offset_reset to Earliest or Latest"
    )]
    NoOffset {
        /// Which one.
        topic_partition: TopicPartition,
        /// The group; empty where there is none.
        group: String,
    },
    /// The position is not in the log (any more), and there is no rule for that.
    #[error(
        "{topic_partition}: offset {offset} is not in the log (which starts at {log_start_offset}) \
         and no auto.offset.reset applies; records may have been lost to retention: seek(..) to an \
         offset that exists, or set auto_offset_reset"
    )]
    OffsetOutOfRange {
        /// Which one.
        topic_partition: TopicPartition,
        /// The position.
        offset: i64,
        /// Where the log starts; -1 where the broker does not say.
        log_start_offset: i64,
    },
    /// The log has lost records that were read (an unclean leader election, say), and there is no
    /// rule for that.
    #[error(
        "{topic_partition}: records before offset {offset} that were read in leader epoch \
         {leader_epoch} are gone from the log{}; what was made of them cannot be taken back: \
         seek(..) to where reading is to go on, or set auto_offset_reset", parts_at(.divergent_offset)
    )]
    LogTruncation {
        /// Which one.
        topic_partition: TopicPartition,
        /// The position.
        offset: i64,
        /// The epoch of the leader that wrote the record before the position.
        leader_epoch: i32,
        /// The first offset at which the log differs from what was read, where the leader can say.
        divergent_offset: Option<i64>,
    },
    /// The records that the broker sent cannot be decoded.
    #[error(
        "{topic_partition}: the batch at offset {offset} is damaged ({cause}); it is fetched again \
         at the next poll: if that does not help, repair the log, or seek past the batch"
    )]
    Damaged {
        /// Which one.
        topic_partition: TopicPartition,
        /// Where the batch begins, or the position if that is not known.
        offset: i64,
        /// What is wrong.
        cause: BatchError,
    },
    /// The broker refuses to let the partition be read.
    #[error(
        "{topic_partition} at offset {offset}: the broker refuses the fetch: {code}; check the \
         topic's name and what {} may read", principal(.client_id)
    )]
    FetchRefused {
        /// Which one.
        topic_partition: TopicPartition,
        /// The position.
        offset: i64,
        /// The broker's code.
        code: ErrorCode,
        /// Who asked.
        client_id: String,
    },
    /// `poll` was not called in time, so the member left its group.
    #[error(
        "group {group:?}: poll() was not called for {waited_ms} ms, more than \
         max.poll.interval.ms={limit_ms}; the member has left and its partitions are lost: take \
         fewer records per poll, or raise the setting; the next poll() joins again"
    )]
    PollTooLate {
        /// The group.
        group: String,
        /// How long it was.
        waited_ms: u64,
        /// The setting.
        limit_ms: u64,
    },
    /// Another consumer has joined with the same `group.instance.id`.
    #[error(
        "group {group:?}: group.instance.id {instance:?} was taken over by another consumer \
         (this one was member {member_id:?}); stop this one, or give each its own instance id"
    )]
    InstanceFenced {
        /// The group.
        group: String,
        /// The instance id.
        instance: String,
        /// Our member id.
        member_id: String,
    },
    /// Another member holds the `group.instance.id` (consumer protocol).
    #[error(
        "group {group:?}: group.instance.id {instance:?} is still held by another member; stop that \
         one, or wait until its session has ended (broker: group.consumer.session.timeout.ms)"
    )]
    InstanceInUse {
        /// The group.
        group: String,
        /// The instance id.
        instance: String,
    },
    /// The coordinator does not let this member in.
    #[error("group {group:?}: the coordinator refuses this member: {code}; {next_step}")]
    JoinRefused {
        /// The group.
        group: String,
        /// The coordinator's code.
        code: ErrorCode,
        /// What to do.
        next_step: &'static str,
    },
    /// This member was made leader and its assignor failed.
    #[error("group {group:?}: assignor {assignor:?} failed: {reason}; the member has left")]
    Assignor {
        /// The group.
        group: String,
        /// The assignor's name.
        assignor: String,
        /// What it said.
        reason: String,
    },
    /// A commit came too late: the member is no longer part of the group.
    #[error(
        "group {group:?}: the commit was refused: {code}; this member (generation {generation}) \
         has lost its partitions and others may process them: drop the work and poll() again"
    )]
    CommitFenced {
        /// The group.
        group: String,
        /// The generation that the commit carried.
        generation: i32,
        /// The coordinator's code.
        code: ErrorCode,
    },
    /// A rebalance is under way.
    #[error(
        "group {group:?}: no commit while the group rebalances; call poll() to take part, then \
         commit what is still assigned"
    )]
    CommitDuringRebalance {
        /// The group.
        group: String,
    },
    /// The coordinator refuses this offset.
    #[error("{topic_partition}: the commit of offset {offset} was refused: {code}")]
    CommitRejected {
        /// Which one.
        topic_partition: TopicPartition,
        /// The offset.
        offset: i64,
        /// The coordinator's code.
        code: ErrorCode,
    },
    /// No final answer within `default.api.timeout.ms`.
    #[error(
        "{call}: no final answer within {waited_ms} ms (last: {last}); the brokers are away or \
         undecided: try again"
    )]
    Timeout {
        /// The call.
        call: &'static str,
        /// How long was waited.
        waited_ms: u64,
        /// How the last attempt ended.
        last: Arc<str>,
    },
    /// The broker refuses the request.
    #[error("{call}: the broker refuses: {code}{}", about(.topic_partition))]
    Refused {
        /// The call.
        call: &'static str,
        /// The broker's code.
        code: ErrorCode,
        /// What it is about, where it is one partition.
        topic_partition: Option<TopicPartition>,
    },
}

impl From<RequestError> for ConsumerError {
    fn from(error: RequestError) -> Self {
        ConsumerError::Cluster(error.into())
    }
}

impl ConsumerError {
    /// Whether the consumer can do nothing more and has to be made anew.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        matches!(
            self,
            ConsumerError::Closed
                | ConsumerError::InstanceFenced { .. }
                | ConsumerError::InstanceInUse { .. }
                | ConsumerError::JoinRefused { .. }
                | ConsumerError::Assignor { .. }
        )
    }
}

fn parts_at(divergent: &Option<i64>) -> String {
    divergent
        .map(|offset| format!(", which differs from offset {offset} on"))
        .unwrap_or_default()
}

fn principal(client_id: &str) -> String {
    format!("client {client_id:?}")
}

fn about(topic_partition: &Option<TopicPartition>) -> String {
    topic_partition
        .as_ref()
        .map(|name| format!(" ({name})"))
        .unwrap_or_default()
}
