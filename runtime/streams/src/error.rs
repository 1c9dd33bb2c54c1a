//! What a user of the streams runtime can be told.
//!
//! Invariants: an error names topic, partition and offset where there are any, and the next step.
//! Never: hides which transactional id or member was fenced.

use millstream_protocol::TopicPartition;

/// An error of the user's own code or of a serde.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A mistake in the declaration of a topology.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// Nothing is read.
    #[error("the topology reads no stream; begin with StreamsBuilder::stream")]
    NoSource,
    /// One topic is read twice.
    #[error("topic {topic} is read twice; read it once and clone the stream")]
    TopicTwice {
        /// The topic.
        topic: String,
    },
    /// A table of another builder is joined.
    #[error(
        "table {table} was declared by another StreamsBuilder; declare it with the one of the stream"
    )]
    ForeignTable {
        /// The table's topic.
        table: String,
    },
}

/// An instance, or one of its steps, could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamsError {
    /// A record could not be processed, and the policy is to fail.
    #[error(
        "{operator} cannot process the record at {partition}, offset {offset}: {cause}; \
         mend the producer, or set a PoisonPolicy that skips such records or keeps them as dead letters"
    )]
    Poison {
        /// Operator that refused it.
        operator: String,
        /// Partition of the record.
        partition: TopicPartition,
        /// Offset of the record.
        offset: i64,
        /// Why it was refused.
        cause: BoxError,
    },
    /// An operator failed for a reason that is not the record.
    #[error("{operator} failed at {partition}, offset {offset}: {cause}")]
    Operator {
        /// Operator that failed.
        operator: String,
        /// Partition of the record that was under way.
        partition: TopicPartition,
        /// Offset of the record that was under way.
        offset: i64,
        /// Why.
        cause: BoxError,
    },
    /// A poison record that the dead-letter topic would not take.
    #[error(
        "the record at {partition}, offset {offset}, cannot be processed ({cause}), and as a dead \
         letter of {size_bytes} bytes it does not fit into {topic}, which takes {limit_bytes}: \
         raise max.message.bytes of that topic and max.request.size of the application"
    )]
    DeadLetterTooLarge {
        /// Partition of the record.
        partition: TopicPartition,
        /// Offset of the record.
        offset: i64,
        /// The dead-letter topic.
        topic: std::sync::Arc<str>,
        /// Size of the record with the shortest headers.
        size_bytes: usize,
        /// What the topic takes.
        limit_bytes: usize,
        /// Why the record could not be processed.
        cause: BoxError,
    },
    /// A position that the log does not hold, and no rule for that.
    #[error(
        "the group is at offset {offset} of {partition}, and the log holds {log_start} to {log_end} \
         (exclusive): records were removed before they were processed, or the log was put back \
         to an earlier state; to go on all the same, at the price of records skipped or processed \
         twice, set auto.offset.reset to earliest or latest"
    )]
    OffsetOutOfRange {
        /// The partition.
        partition: TopicPartition,
        /// The group's offset, or the position that followed from it.
        offset: i64,
        /// The first offset that the log still has; -1 where the broker could not be asked.
        log_start: i64,
        /// The offset behind its last record; -1 where the broker could not be asked.
        log_end: i64,
    },
    /// The log has lost records that were processed, and no rule for that.
    #[error(
        "the group is at offset {offset} of {partition}, read in leader epoch {leader_epoch}, and \
         the log has lost what was read there{} (it ends at {log_end} now): outputs of lost \
         records are committed and cannot be taken back; to go on all the same, set \
         auto.offset.reset to earliest or latest: where the log parts is known, reading goes on \
         there",
        parts_at(.divergent_offset)
    )]
    LogTruncation {
        /// The partition.
        partition: TopicPartition,
        /// The group's offset, or the position that followed from it.
        offset: i64,
        /// The epoch of the leader that wrote the record before it.
        leader_epoch: i32,
        /// The first offset at which the log differs from what was read, where it is known.
        divergent_offset: Option<i64>,
        /// The offset behind the log's last record; -1 where the broker could not be asked.
        log_end: i64,
    },
    /// One record takes longer than a transaction may last: it could never be committed.
    #[error(
        "processing one record of {partition} (offset {offset}) took {took_ms} ms, a transaction may last {timeout_ms} ms \
         (transaction.timeout.ms); raise the timeout above the processing time, or make the processing shorter"
    )]
    TransactionTooLong {
        /// Partition of the record.
        partition: TopicPartition,
        /// Offset of the record.
        offset: i64,
        /// How long its processing took.
        took_ms: u64,
        /// The transaction timeout.
        timeout_ms: u64,
    },
    /// A client's settings contradict each other.
    #[error(transparent)]
    Client(#[from] millstream_client::ConfigError),
    /// The producer could not be made.
    #[error(transparent)]
    Connect(#[from] millstream_client::ConnectError),
    /// A transactional call failed;
    /// [`TransactionError::Fenced`](millstream_client::TransactionError::Fenced) names the
    /// transactional id and both epochs.
    #[error(transparent)]
    Transaction(#[from] millstream_client::TransactionError),
    /// An output could not be handed to the producer.
    #[error(transparent)]
    Usage(#[from] millstream_client::UsageError),
    /// An output was not acknowledged.
    #[error(transparent)]
    Delivery(#[from] millstream_client::DeliveryError),
    /// Input, membership or offsets could not be read.
    #[error(transparent)]
    Consumer(#[from] millstream_client::consumer::ConsumerError),
    /// The group's offsets could not be read.
    #[error(transparent)]
    Admin(#[from] millstream_client::AdminError),
    /// The cluster could not be asked.
    #[error(transparent)]
    Cluster(#[from] millstream_client::ClusterError),
    /// A worker panicked: a closure of the topology did, or the runtime itself.
    #[error(
        "worker {number} panicked; its transaction was not committed and is aborted by the next start"
    )]
    WorkerPanicked {
        /// Number of the worker.
        number: usize,
    },
    /// A worker's thread could not be started.
    #[error("a worker's thread could not be started: {source}")]
    Thread {
        /// Why.
        source: std::io::Error,
    },
    /// The commit at the end was refused. What it held is aborted; the next start does it again.
    #[error(
        "the last commit was refused and its records were aborted; nothing of them is visible, \
         start again to process them"
    )]
    LastCommit,
    /// Another instance with the same identity has joined the group in this one's place.
    #[error(
        "transactional.id {transactional_id} was taken over: this instance has epoch {our_epoch}, \
         the coordinator has epoch {}; a newer instance with the same identity is running, so this \
         one must stop ({cause})",
        .newer_epoch.map_or_else(|| "unknown".to_owned(), |epoch| epoch.to_string())
    )]
    Fenced {
        /// The transactional id of the instance's first worker.
        transactional_id: String,
        /// The epoch that this instance has.
        our_epoch: i16,
        /// The epoch that the coordinator has now, where it could be asked.
        newer_epoch: Option<i16>,
        /// What the group said.
        cause: millstream_client::consumer::ConsumerError,
    },
    /// A settings error; nothing was started.
    #[error("{0}")]
    Config(String),
    /// A mistake in the topology.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A state store could not do what it was asked.
    #[error(transparent)]
    State(#[from] millstream_state::StateError),
    /// A step of a test driver could not be done.
    #[error("{what}")]
    Test {
        /// What.
        what: String,
    },
    /// A rule of the runtime's own was broken; please report it.
    #[error("bug in the streams runtime: {what}")]
    Bug {
        /// Which rule.
        what: String,
    },
}

impl StreamsError {
    /// Whether giving the transaction up and processing again can mend it.
    pub(crate) fn is_abortable(&self) -> bool {
        use millstream_client::consumer::ConsumerError;
        use millstream_client::{TransactionError, UsageError};
        match self {
            Self::Transaction(error) => matches!(error, TransactionError::Abortable { .. }),
            Self::Usage(error) => matches!(error, UsageError::TransactionFailed { .. }),
            // An output that was not acknowledged. Where the producer was fenced, the abort says
            // so.
            Self::Delivery(_) => true,
            Self::Consumer(error) => matches!(
                error,
                ConsumerError::CommitFenced { .. } | ConsumerError::CommitDuringRebalance { .. }
            ),
            _ => false,
        }
    }

    /// Whether a commit was refused because the group has moved on.
    pub(crate) fn is_stale_membership(&self) -> bool {
        use millstream_client::TransactionError;
        use millstream_client::consumer::ConsumerError;
        use millstream_protocol::ErrorCode;
        match self {
            Self::Transaction(TransactionError::Abortable { code, .. }) => matches!(
                *code,
                Some(ErrorCode::ILLEGAL_GENERATION | ErrorCode::UNKNOWN_MEMBER_ID)
            ),
            Self::Consumer(ConsumerError::CommitFenced { .. }) => true,
            _ => false,
        }
    }
}

fn parts_at(divergent: &Option<i64>) -> String {
    divergent
        .map(|offset| format!(" from offset {offset} on"))
        .unwrap_or_default()
}
