//! What can go wrong in the client, by the surface where it shows.
//!
//! Invariants: a text names what it is about (topic, partition, id, setting) and the next step;
//! `sent` tells whether a request may have reached the broker, and is never guessed to be false.
//! Never: an error swallows the broker's code.

use std::sync::Arc;

use millstream_protocol::{ApiKey, ErrorCode, TopicPartition};

use crate::cluster::{CoordinatorKind, NodeId};
use crate::security::SecurityError;

/// One request to one broker did not get an answer that can be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RequestError {
    /// The connection was lost, or could not be made.
    #[error("{api:?} to broker {node}: disconnected ({reason}); sent: {sent}")]
    Disconnected {
        /// The broker.
        node: NodeId,
        /// The request.
        api: ApiKey,
        /// Whether the request may have been written, so that the broker may have acted on it.
        sent: bool,
        /// What the transport said.
        reason: Arc<str>,
    },
    /// No answer came in time. The connection was closed.
    #[error("{api:?} to broker {node}: no answer within {timeout_ms} ms; sent: {sent}")]
    Timeout {
        /// The broker.
        node: NodeId,
        /// The request.
        api: ApiKey,
        /// How long the request waited.
        timeout_ms: u64,
        /// Whether the request may have been written.
        sent: bool,
    },
    /// The broker serves no version of the API that this client speaks.
    #[error(
        "broker {node} serves {api:?} in versions {broker:?}, this client needs {ours:?}; \
         upgrade the broker or the client"
    )]
    UnsupportedVersion {
        /// The broker.
        node: NodeId,
        /// The request.
        api: ApiKey,
        /// Lowest and highest version of this client.
        ours: (i16, i16),
        /// Lowest and highest version of the broker; `None` where it does not know the API.
        broker: Option<(i16, i16)>,
    },
    /// The cluster's metadata names no such broker (any more).
    #[error("broker {node} is not part of the cluster; refresh the metadata")]
    UnknownNode {
        /// The broker.
        node: NodeId,
    },
    /// Client and broker do not trust each other. Nothing was sent.
    #[error("{api:?} was not sent: {error}")]
    Security {
        /// The broker.
        node: NodeId,
        /// The request.
        api: ApiKey,
        /// Why.
        error: Arc<SecurityError>,
    },
    /// The request could not be encoded. Nothing was sent.
    #[error("{api:?} could not be encoded: {reason}")]
    Encode {
        /// The request.
        api: ApiKey,
        /// What was wrong.
        reason: Arc<str>,
    },
    /// The answer could not be decoded. The broker has acted on the request.
    #[error("the answer of broker {node} to {api:?} could not be decoded: {reason}")]
    Decode {
        /// The broker.
        node: NodeId,
        /// The request.
        api: ApiKey,
        /// What was wrong.
        reason: Arc<str>,
    },
}

impl RequestError {
    /// Whether the broker may have acted on the request.
    #[must_use]
    pub fn may_have_been_sent(&self) -> bool {
        match self {
            Self::Disconnected { sent, .. } | Self::Timeout { sent, .. } => *sent,
            Self::Decode { .. } => true,
            Self::UnsupportedVersion { .. }
            | Self::UnknownNode { .. }
            | Self::Security { .. }
            | Self::Encode { .. } => false,
        }
    }

    /// Whether the same request may succeed later.
    #[must_use]
    pub fn is_retriable(&self) -> bool {
        matches!(
            self,
            Self::Disconnected { .. } | Self::Timeout { .. } | Self::UnknownNode { .. }
        )
    }

    /// Why client and broker do not trust each other, if that is what it is.
    #[must_use]
    pub fn security(&self) -> Option<&Arc<SecurityError>> {
        match self {
            Self::Security { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl ClusterError {
    /// Why client and broker do not trust each other, if that is what it is.
    #[must_use]
    pub fn security(&self) -> Option<&Arc<SecurityError>> {
        match self {
            Self::Request(error) => error.security(),
            _ => None,
        }
    }
}

/// The cluster could not be asked, or said no.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClusterError {
    /// A request failed for good.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The transport names no broker to begin with.
    #[error("no bootstrap address; give at least one as host:port")]
    NoBootstrap,
    /// The metadata of a topic did not come in time.
    #[error(
        "no metadata for topic {topic} within {waited_ms} ms (last answer: {last}); check that \
         the topic exists and that a broker is reachable"
    )]
    MetadataTimeout {
        /// The topic.
        topic: Arc<str>,
        /// How long was waited.
        waited_ms: u64,
        /// The last answer.
        last: Arc<str>,
    },
    /// The broker refuses the topic.
    #[error("topic {topic}: {code}")]
    Topic {
        /// The topic.
        topic: Arc<str>,
        /// The broker's code.
        code: ErrorCode,
    },
    /// The coordinator was not found in time.
    #[error(
        "no {kind} coordinator for {key:?} within {waited_ms} ms (last answer: {last}); the \
         cluster is starting or unreachable, try again"
    )]
    CoordinatorTimeout {
        /// Which kind.
        kind: CoordinatorKind,
        /// The group or the transactional id.
        key: Arc<str>,
        /// How long was waited.
        waited_ms: u64,
        /// The last answer.
        last: Arc<str>,
    },
    /// The broker refuses to name a coordinator.
    #[error("{kind} coordinator for {key:?}: {code}")]
    Coordinator {
        /// Which kind.
        kind: CoordinatorKind,
        /// The group or the transactional id.
        key: Arc<str>,
        /// The broker's code.
        code: ErrorCode,
    },
}

/// Settings contradict each other or a guarantee. Found when a client is made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Two settings exclude each other.
    #[error("{first} contradicts {second}: {reason}")]
    Contradiction {
        /// One setting, by Kafka's name, with its value.
        first: String,
        /// The other.
        second: String,
        /// Why both cannot hold.
        reason: &'static str,
    },
    /// A guarantee locks the setting.
    #[error("{setting} is locked by {guarantee}; remove the override")]
    Locked {
        /// The setting, by Kafka's name, with the value that was refused.
        setting: String,
        /// What needs it.
        guarantee: &'static str,
    },
    /// A setting is missing, or what it leads to cannot be used.
    #[error("{setting}: {reason}")]
    Unusable {
        /// The setting, by Kafka's name; with its value unless that is secret.
        setting: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A value is out of bounds.
    #[error("{setting}: {reason}")]
    Invalid {
        /// The setting, by Kafka's name, with the value that was refused.
        setting: String,
        /// What is allowed.
        reason: &'static str,
    },
    /// There is no setting of that name.
    #[error("{setting} is not a setting of a {kind}; it knows {known}")]
    Unknown {
        /// The name that was given.
        setting: String,
        /// The kind of client.
        kind: &'static str,
        /// The names that there are.
        known: String,
    },
}

/// The call is wrong where it stands: nothing was sent, and the same call will fail again.
#[derive(Clone, Debug, thiserror::Error)]
pub enum UsageError {
    /// The producer was closed.
    #[error("the producer is closed; make a new one")]
    Closed,
    /// A transactional producer sends inside transactions only.
    #[error(
        "transactional.id {transactional_id}: no transaction is open (state {state}); call \
         begin_transaction() before sending"
    )]
    NoTransaction {
        /// The transactional id.
        transactional_id: Arc<str>,
        /// Where the transaction machine stands.
        state: &'static str,
    },
    /// The open transaction failed already.
    #[error(
        "transactional.id {transactional_id}: the transaction has failed ({cause}); call abort() \
         and begin again"
    )]
    TransactionFailed {
        /// The transactional id.
        transactional_id: Arc<str>,
        /// What failed it.
        cause: Arc<str>,
    },
    /// The producer can do nothing more.
    #[error("the producer has failed for good ({cause}); close it and make a new one")]
    Failed {
        /// What failed it.
        cause: Arc<str>,
    },
    /// Client and broker do not trust each other.
    #[error("{error}; then make a new producer")]
    Security {
        /// Why.
        error: Arc<SecurityError>,
    },
    /// The record can never be sent with these settings.
    #[error(
        "a record of {size_bytes} bytes for topic {topic} exceeds {setting}={limit_bytes}; raise \
         the setting or make the record smaller"
    )]
    RecordTooLarge {
        /// The topic.
        topic: Arc<str>,
        /// What the record takes.
        size_bytes: usize,
        /// What is allowed.
        limit_bytes: usize,
        /// The setting that says so, by Kafka's name.
        setting: &'static str,
    },
    /// An interceptor refused the record.
    #[error("{topic}: an interceptor refused the record: {reason}; it was not sent")]
    Intercepted {
        /// The topic.
        topic: Arc<str>,
        /// What the interceptor says.
        reason: Arc<str>,
    },
    /// The topic has no such partition.
    #[error("topic {topic} has {partitions} partitions; there is no partition {partition}")]
    UnknownPartition {
        /// The topic.
        topic: Arc<str>,
        /// The partition that was asked for.
        partition: i32,
        /// How many there are.
        partitions: i32,
    },
}

/// A record was accepted by `send` and was not acknowledged.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeliveryError {
    /// `buffer.memory` stayed full.
    #[error(
        "{topic}: no buffer space within max.block.ms={waited_ms}: the brokers take records \
         more slowly than they are sent; the record was not sent"
    )]
    BufferExhausted {
        /// The topic.
        topic: Arc<str>,
        /// How long was waited.
        waited_ms: u64,
    },
    /// The first metadata of the topic did not come in time.
    #[error("{error}; the record was not sent")]
    Metadata {
        /// What the cluster said.
        error: ClusterError,
    },
    /// `delivery.timeout.ms` is over.
    #[error(
        "{topic_partition}: not acknowledged within delivery.timeout.ms={timeout_ms} after \
         {attempts} attempts (last: {last}); {}",
        if *.in_doubt { "it may or may not be in the log" } else { "it was not appended" }
    )]
    Timeout {
        /// Where the record was going.
        topic_partition: TopicPartition,
        /// The budget.
        timeout_ms: u64,
        /// How often the batch was sent.
        attempts: u32,
        /// How the last attempt ended.
        last: Arc<str>,
        /// Whether an attempt may have been appended without an answer.
        in_doubt: bool,
    },
    /// `retries` are used up.
    #[error(
        "{topic_partition}: not acknowledged after retries={retries} (last: {last}); {}",
        if *.in_doubt { "it may or may not be in the log" } else { "it was not appended" }
    )]
    RetriesExhausted {
        /// Where the record was going.
        topic_partition: TopicPartition,
        /// How often the batch may be sent again.
        retries: u32,
        /// How the last attempt ended.
        last: Arc<str>,
        /// Whether an attempt may have been appended without an answer.
        in_doubt: bool,
    },
    /// The broker refused the record.
    #[error(
        "{topic_partition}: refused, {code}{}{}",
        detail(.message),
        if *.in_doubt { "; an earlier attempt may or may not be in the log" } else { "" }
    )]
    Rejected {
        /// Where the record was going.
        topic_partition: TopicPartition,
        /// The broker's code.
        code: ErrorCode,
        /// What the broker added.
        message: Option<Arc<str>>,
        /// Whether an attempt may have been appended all the same.
        in_doubt: bool,
    },
    /// The record belonged to a transaction that was aborted.
    #[error("{topic_partition}: dropped, its transaction was aborted")]
    Aborted {
        /// Where the record was going.
        topic_partition: TopicPartition,
    },
    /// Client and broker do not trust each other.
    #[error(
        "{topic_partition}: {error}; {}",
        if *.in_doubt { "the record may or may not be in the log" } else { "it was not sent" }
    )]
    Security {
        /// Where the record was going.
        topic_partition: TopicPartition,
        /// Why.
        error: Arc<SecurityError>,
        /// Whether an earlier attempt may have been appended.
        in_doubt: bool,
    },
    /// The producer was closed before the record was acknowledged.
    #[error(
        "{topic_partition}: the producer was closed before the acknowledgement; {}",
        if *.in_doubt { "it may or may not be in the log" } else { "it was not sent" }
    )]
    Closed {
        /// Where the record was going.
        topic_partition: TopicPartition,
        /// Whether an attempt may have been appended.
        in_doubt: bool,
    },
    /// The producer has failed for good.
    #[error("{topic_partition}: the producer has failed ({cause})")]
    Failed {
        /// Where the record was going.
        topic_partition: TopicPartition,
        /// What failed it.
        cause: Arc<str>,
    },
}

fn detail(message: &Option<Arc<str>>) -> String {
    message
        .as_ref()
        .map(|text| format!(": {text}"))
        .unwrap_or_default()
}

/// A transactional call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TransactionError {
    /// The call does not fit the state. Nothing was sent.
    #[error(
        "transactional.id {transactional_id}: {call} is not allowed in state {state}; {next_step}"
    )]
    OutOfOrder {
        /// The transactional id.
        transactional_id: Arc<str>,
        /// The call.
        call: &'static str,
        /// Where the transaction machine stands.
        state: &'static str,
        /// What to call instead.
        next_step: &'static str,
    },
    /// The producer has no `transactional.id`.
    #[error("{call} needs a transactional.id; build the producer with transactional_id(..)")]
    NotTransactional {
        /// The call.
        call: &'static str,
    },
    /// The arguments of `send_offsets` would break exactly-once.
    #[error("send_offsets for group {group_id:?}: {reason}")]
    GroupMetadata {
        /// The group.
        group_id: String,
        /// What is wrong and what to do.
        reason: &'static str,
    },
    /// The transaction has failed: abort it, go back to the committed offsets, process again.
    #[error(
        "transactional.id {transactional_id}: the transaction has failed ({cause}); call abort(), \
         seek the consumer to its committed offsets, and process again"
    )]
    Abortable {
        /// The transactional id.
        transactional_id: Arc<str>,
        /// What failed it.
        cause: Arc<str>,
        /// The broker's code, where this call got one.
        code: Option<ErrorCode>,
    },
    /// The outcome of the commit is not known. It may have happened.
    #[error(
        "transactional.id {transactional_id}: the commit was sent but not answered within \
         {waited_ms} ms ({last}); it may have happened: call commit() again (never abort()), or \
         init_transactions() and read the committed offsets"
    )]
    CommitInDoubt {
        /// The transactional id.
        transactional_id: Arc<str>,
        /// How long was waited.
        waited_ms: u64,
        /// How the last attempt ended.
        last: Arc<str>,
    },
    /// The coordinator did not answer in time; the same call may be made again.
    #[error(
        "transactional.id {transactional_id}: {call} got no final answer within {waited_ms} ms \
         (last: {last}); the coordinator is away: wait and make the same call again"
    )]
    Timeout {
        /// The transactional id.
        transactional_id: Arc<str>,
        /// The call.
        call: &'static str,
        /// How long was waited.
        waited_ms: u64,
        /// How the last attempt ended.
        last: Arc<str>,
    },
    /// Another producer with the same transactional id has taken over.
    #[error(
        "transactional.id {transactional_id} was taken over: this producer has epoch {our_epoch}, \
         the coordinator has epoch {}; a newer instance with the same id is running (or the \
         transaction timed out), so this one must stop: close it without retrying",
        .newer_epoch.map_or_else(|| "unknown".to_owned(), |epoch| epoch.to_string())
    )]
    Fenced {
        /// The transactional id.
        transactional_id: Arc<str>,
        /// The epoch of this producer.
        our_epoch: i16,
        /// The epoch that the coordinator has now, where it could be asked.
        newer_epoch: Option<i16>,
    },
    /// The cluster's transactions are older than version 2.
    #[error(
        "the cluster has finalised transaction.version={found}, exactly-once needs 2: upgrade \
         with `kafka-features.sh upgrade --feature transaction.version=2`, or set \
         allow_transaction_version_below_2 and accept that a delayed message of one transaction \
         can end up in the next"
    )]
    TransactionVersion {
        /// The version that the cluster has.
        found: i16,
    },
    /// Client and broker do not trust each other.
    #[error("transactional.id {transactional_id}: {error}; then make a new producer")]
    Security {
        /// The transactional id.
        transactional_id: Arc<str>,
        /// Why.
        error: Arc<SecurityError>,
    },
    /// The producer can do nothing more.
    #[error("transactional.id {transactional_id}: failed for good ({cause}); close the producer")]
    Fatal {
        /// The transactional id.
        transactional_id: Arc<str>,
        /// What failed it.
        cause: Arc<str>,
    },
}

/// A producer could not be made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectError {
    /// The settings are wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The cluster could not be reached in time.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The cluster does not offer what the settings need.
    #[error(transparent)]
    Transaction(#[from] TransactionError),
}
