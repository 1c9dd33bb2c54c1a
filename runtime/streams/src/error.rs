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
    #[error("table {table} was declared by another StreamsBuilder; declare it with the one of the stream")]
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
        /// How long the transaction had been open when the record was done.
        took_ms: u64,
        /// The transaction timeout.
        timeout_ms: u64,
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
