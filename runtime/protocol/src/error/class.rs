//! What a client does about an error: one table by API, code and the producer's kind.
//!
//! Invariants: every code has a class at every API; a class never depends on the time or on
//! how often something was tried.
//! Never: retries anything; it only names the way out.

use super::ErrorCode;
use crate::api::ApiKey;

/// The way out of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// Send the same request again after a pause.
    Retry,
    /// Ask for the metadata anew, then send the same request again.
    RefreshMetadata,
    /// Look up the coordinator anew, then send the same request again.
    FindCoordinator,
    /// Whether it took effect is unknown; the same request must find out before new work.
    Ambiguous,
    /// Abort the transaction; the producer goes on after that. If it is the abort itself that
    /// fails so, it is fatal.
    AbortTransaction,
    /// Take a new producer epoch and number the batches anew.
    BumpEpoch,
    /// The membership is void: join the group again.
    Rejoin,
    /// The position is not in the log: reset it as the consumer's policy says.
    ResetPosition,
    /// This record, batch or item is refused; others are not affected. A transaction that lost a
    /// record so must not commit.
    Reject,
    /// A newer instance has taken over; this one must stop.
    Fenced,
    /// Nothing helps; the caller must change something.
    Fatal,
}

/// What kind of producer, if any, met the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorContext {
    /// No producer state: consumers, administration, producers without idempotence.
    Plain,
    /// An idempotent producer without transactions.
    Idempotent,
    /// A transactional producer.
    Transactional,
}

/// One row of the table: at these APIs (none: at all), in these contexts, these codes.
struct Row(
    &'static [ApiKey],
    &'static [ErrorContext],
    &'static [ErrorCode],
    ErrorClass,
);

/// The way out of `code` in an answer of `api`.
///
/// A code that no row names is [`ErrorClass::Fatal`]; so is `NONE`, about which nobody should ask.
/// `DUPLICATE_SEQUENCE_NUMBER` says that the batch is in the log, at an offset that the broker no
/// longer knows: a producer may take it as an acknowledgement before it asks here.
#[must_use]
pub fn class(api: ApiKey, code: ErrorCode, context: ErrorContext) -> ErrorClass {
    let holds = |row: &&Row| {
        (row.0.is_empty() || row.0.contains(&api))
            && (row.1.is_empty() || row.1.contains(&context))
            && row.2.contains(&code)
    };
    TABLE
        .iter()
        .find(holds)
        .map_or(ErrorClass::Fatal, |row| row.3)
}

const ANY: &[ErrorContext] = &[];
const EVERYWHERE: &[ApiKey] = &[];
const PRODUCE: &[ApiKey] = &[ApiKey::Produce];
const FETCH: &[ApiKey] = &[ApiKey::Fetch];
/// Whose effect is unknown as long as there is no final answer.
const ENDING: &[ApiKey] = &[ApiKey::EndTxn, ApiKey::InitProducerId];
/// The requests of a transaction that is under way.
const ADDING: &[ApiKey] = &[
    ApiKey::AddPartitionsToTxn,
    ApiKey::AddOffsetsToTxn,
    ApiKey::TxnOffsetCommit,
];
const TXN_OFFSETS: &[ApiKey] = &[ApiKey::TxnOffsetCommit];
const OFFSETS: &[ApiKey] = &[ApiKey::OffsetCommit, ApiKey::TxnOffsetCommit];
const MARKERS: &[ApiKey] = &[ApiKey::WriteTxnMarkers];
const MEMBERSHIP: &[ApiKey] = &[
    ApiKey::JoinGroup,
    ApiKey::SyncGroup,
    ApiKey::Heartbeat,
    ApiKey::LeaveGroup,
    ApiKey::ConsumerGroupHeartbeat,
    ApiKey::OffsetCommit,
    ApiKey::OffsetFetch,
];
/// Requests for single items, each of which may be refused alone.
const ITEMS: &[ApiKey] = &[
    ApiKey::Produce,
    ApiKey::Metadata,
    ApiKey::CreateTopics,
    ApiKey::DeleteTopics,
    ApiKey::CreatePartitions,
    ApiKey::DeleteRecords,
    ApiKey::DeleteGroups,
    ApiKey::DescribeConfigs,
    ApiKey::AlterConfigs,
    ApiKey::IncrementalAlterConfigs,
    ApiKey::OffsetDelete,
    ApiKey::DescribeTopicPartitions,
    ApiKey::DescribeGroups,
    ApiKey::ConsumerGroupDescribe,
    ApiKey::DescribeProducers,
    ApiKey::DescribeTransactions,
];

/// The first row that holds decides: special ones stand before general ones.
const TABLE: &[Row] = {
    use ErrorClass as Class;
    use ErrorCode as E;
    use ErrorContext::{Idempotent, Transactional};
    &[
        // A producer's sequence is broken: the log refused to leave a gap or to go back.
        Row(
            PRODUCE,
            &[Idempotent],
            &[
                E::OUT_OF_ORDER_SEQUENCE_NUMBER,
                E::UNKNOWN_PRODUCER_ID,
                E::INVALID_PRODUCER_EPOCH,
            ],
            Class::BumpEpoch,
        ),
        // In a transaction the abort brings the new epoch. A partition leader that sees an old
        // epoch does not prove a newer producer; the coordinator says so when asked to abort.
        Row(
            PRODUCE,
            &[Transactional],
            &[
                E::OUT_OF_ORDER_SEQUENCE_NUMBER,
                E::UNKNOWN_PRODUCER_ID,
                E::INVALID_PRODUCER_EPOCH,
                E::DUPLICATE_SEQUENCE_NUMBER,
                E::INVALID_TXN_STATE,
                E::UNKNOWN_SERVER_ERROR,
                E::INVALID_PRODUCER_ID_MAPPING,
            ],
            Class::AbortTransaction,
        ),
        Row(PRODUCE, ANY, &[E::DUPLICATE_SEQUENCE_NUMBER], Class::Reject),
        // The leader asked the coordinator and got no answer; the leader itself is the right one.
        Row(
            PRODUCE,
            ANY,
            &[
                E::COORDINATOR_NOT_AVAILABLE,
                E::NOT_COORDINATOR,
                E::CORRUPT_MESSAGE,
            ],
            Class::Retry,
        ),
        // What a reader meets.
        Row(FETCH, ANY, &[E::OFFSET_OUT_OF_RANGE], Class::ResetPosition),
        Row(
            FETCH,
            ANY,
            &[
                E::UNKNOWN_SERVER_ERROR,
                E::UNKNOWN_LEADER_EPOCH,
                E::FETCH_SESSION_ID_NOT_FOUND,
                E::INVALID_FETCH_SESSION_EPOCH,
                E::FETCH_SESSION_TOPIC_ID_ERROR,
            ],
            Class::Retry,
        ),
        Row(
            &[ApiKey::ListOffsets],
            ANY,
            &[E::UNSUPPORTED_FOR_MESSAGE_FORMAT],
            Class::Reject,
        ),
        // The end of a transaction: a broker that failed or ran out of time may have written it.
        Row(
            ENDING,
            ANY,
            &[
                E::REQUEST_TIMED_OUT,
                E::NETWORK_EXCEPTION,
                E::UNKNOWN_SERVER_ERROR,
            ],
            Class::Ambiguous,
        ),
        Row(
            &[ApiKey::EndTxn],
            ANY,
            &[E::UNKNOWN_PRODUCER_ID, E::INVALID_PRODUCER_ID_MAPPING],
            Class::AbortTransaction,
        ),
        // What ends a transaction under way, but not its producer. A coordinator forgets an id that
        // was idle for long; asked for an epoch, it takes the producer in again, unless a successor
        // has been taken in by then.
        Row(
            ADDING,
            ANY,
            &[
                E::UNKNOWN_PRODUCER_ID,
                E::INVALID_PRODUCER_ID_MAPPING,
                E::TOPIC_AUTHORIZATION_FAILED,
                E::GROUP_AUTHORIZATION_FAILED,
                E::OPERATION_NOT_ATTEMPTED,
            ],
            Class::AbortTransaction,
        ),
        Row(
            TXN_OFFSETS,
            ANY,
            &[
                E::UNKNOWN_MEMBER_ID,
                E::ILLEGAL_GENERATION,
                E::REBALANCE_IN_PROGRESS,
                E::STALE_MEMBER_EPOCH,
                E::FENCED_MEMBER_EPOCH,
                E::OFFSET_METADATA_TOO_LARGE,
                E::INVALID_COMMIT_OFFSET_SIZE,
            ],
            Class::AbortTransaction,
        ),
        Row(
            OFFSETS,
            ANY,
            &[E::REQUEST_TIMED_OUT],
            Class::FindCoordinator,
        ),
        Row(
            OFFSETS,
            ANY,
            &[E::UNKNOWN_TOPIC_OR_PARTITION, E::UNKNOWN_TOPIC_ID],
            Class::Retry,
        ),
        Row(
            &[ApiKey::OffsetCommit],
            ANY,
            &[
                E::OFFSET_METADATA_TOO_LARGE,
                E::INVALID_COMMIT_OFFSET_SIZE,
                E::TOPIC_AUTHORIZATION_FAILED,
            ],
            Class::Reject,
        ),
        Row(
            &[ApiKey::OffsetFetch],
            ANY,
            &[E::UNKNOWN_TOPIC_OR_PARTITION],
            Class::Fatal,
        ),
        // The membership is void.
        Row(
            MEMBERSHIP,
            ANY,
            &[
                E::UNKNOWN_MEMBER_ID,
                E::ILLEGAL_GENERATION,
                E::REBALANCE_IN_PROGRESS,
                E::MEMBER_ID_REQUIRED,
                E::STALE_MEMBER_EPOCH,
                E::FENCED_MEMBER_EPOCH,
            ],
            Class::Rejoin,
        ),
        // The look-up is itself the way out.
        Row(
            &[ApiKey::FindCoordinator],
            ANY,
            &[E::COORDINATOR_NOT_AVAILABLE, E::NOT_COORDINATOR],
            Class::Retry,
        ),
        // A lower version will be understood.
        Row(
            &[ApiKey::ApiVersions],
            ANY,
            &[E::UNSUPPORTED_VERSION],
            Class::Retry,
        ),
        // A marker of an older epoch never fits again.
        Row(
            MARKERS,
            ANY,
            &[E::TRANSACTION_COORDINATOR_FENCED],
            Class::Fenced,
        ),
        // From here on: the same at every API.
        Row(
            EVERYWHERE,
            ANY,
            &[
                E::PRODUCER_FENCED,
                E::INVALID_PRODUCER_EPOCH,
                E::FENCED_INSTANCE_ID,
                E::TRANSACTION_COORDINATOR_FENCED,
            ],
            Class::Fenced,
        ),
        Row(
            EVERYWHERE,
            ANY,
            &[E::TRANSACTION_ABORTABLE],
            Class::AbortTransaction,
        ),
        Row(
            EVERYWHERE,
            ANY,
            &[E::NOT_COORDINATOR, E::COORDINATOR_NOT_AVAILABLE],
            Class::FindCoordinator,
        ),
        Row(
            EVERYWHERE,
            ANY,
            &[
                E::NOT_LEADER_OR_FOLLOWER,
                E::LEADER_NOT_AVAILABLE,
                E::UNKNOWN_TOPIC_OR_PARTITION,
                E::UNKNOWN_TOPIC_ID,
                E::INCONSISTENT_TOPIC_ID,
                E::FENCED_LEADER_EPOCH,
                E::UNKNOWN_LEADER_EPOCH,
                E::REPLICA_NOT_AVAILABLE,
                E::OFFSET_NOT_AVAILABLE,
                E::KAFKA_STORAGE_ERROR,
                E::LISTENER_NOT_FOUND,
                E::PREFERRED_LEADER_NOT_AVAILABLE,
                E::NETWORK_EXCEPTION,
                E::NOT_CONTROLLER,
                E::REBOOTSTRAP_REQUIRED,
            ],
            Class::RefreshMetadata,
        ),
        Row(
            EVERYWHERE,
            ANY,
            &[
                E::COORDINATOR_LOAD_IN_PROGRESS,
                E::CONCURRENT_TRANSACTIONS,
                E::REQUEST_TIMED_OUT,
                E::NOT_ENOUGH_REPLICAS,
                E::NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                E::UNSTABLE_OFFSET_COMMIT,
                E::BROKER_NOT_AVAILABLE,
                E::THROTTLING_QUOTA_EXCEEDED,
            ],
            Class::Retry,
        ),
        // One record, batch or item is refused.
        Row(
            PRODUCE,
            ANY,
            &[
                E::MESSAGE_TOO_LARGE,
                E::RECORD_LIST_TOO_LARGE,
                E::INVALID_RECORD,
                E::INVALID_TIMESTAMP,
                E::UNSUPPORTED_COMPRESSION_TYPE,
            ],
            Class::Reject,
        ),
        Row(
            ITEMS,
            ANY,
            &[
                E::INVALID_TOPIC_EXCEPTION,
                E::TOPIC_AUTHORIZATION_FAILED,
                E::GROUP_AUTHORIZATION_FAILED,
                E::TOPIC_ALREADY_EXISTS,
                E::INVALID_PARTITIONS,
                E::INVALID_REPLICATION_FACTOR,
                E::INVALID_REPLICA_ASSIGNMENT,
                E::INVALID_CONFIG,
                E::POLICY_VIOLATION,
                E::TOPIC_DELETION_DISABLED,
                E::OFFSET_OUT_OF_RANGE,
                E::NON_EMPTY_GROUP,
                E::GROUP_ID_NOT_FOUND,
                E::TRANSACTIONAL_ID_NOT_FOUND,
                E::RESOURCE_NOT_FOUND,
                E::DUPLICATE_RESOURCE,
            ],
            Class::Reject,
        ),
    ]
};

#[cfg(test)]
#[path = "class_tests.rs"]
mod tests;
