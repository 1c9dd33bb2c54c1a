//! The table of error codes, from Kafka's protocol.
//!
//! Invariants: names and numbers are Kafka's; a number without a name is still a code.
//! Never: says what to do about an error; `class` does.

use std::fmt;

use crate::primitives::{DecodeError, Decoder, EncodeError, Encoder, Form, Sampler, Wire};

/// The outcome of a request, or of a part of it, as a number.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorCode(pub i16);

macro_rules! codes {
    ($($name:ident = $code:literal, $description:literal;)*) => {
        impl ErrorCode {
            $(
                #[doc = concat!($description, ".")]
                pub const $name: ErrorCode = ErrorCode($code);
            )*

            /// Every code that has a name, by ascending number.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name),*];

            /// Kafka's name of the code.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($code => stringify!($name),)*
                    _ => "UNKNOWN_ERROR_CODE",
                }
            }

            /// What it means, in a few words.
            #[must_use]
            pub fn description(self) -> &'static str {
                match self.0 {
                    $($code => $description,)*
                    _ => "the broker answered a code that this version does not know",
                }
            }
        }
    };
}

codes! {
    UNKNOWN_SERVER_ERROR = -1, "the broker failed in a way that it has no code for";
    NONE = 0, "no error";
    OFFSET_OUT_OF_RANGE = 1, "the offset lies outside the log";
    CORRUPT_MESSAGE = 2, "the batch is damaged: checksum, size or a missing key";
    UNKNOWN_TOPIC_OR_PARTITION = 3, "the broker does not have this topic or partition";
    INVALID_FETCH_SIZE = 4, "the fetch size is invalid";
    LEADER_NOT_AVAILABLE = 5, "the partition has no leader at the moment";
    NOT_LEADER_OR_FOLLOWER = 6, "the broker is not the leader (or no replica) of the partition";
    REQUEST_TIMED_OUT = 7, "the broker ran out of time";
    BROKER_NOT_AVAILABLE = 8, "the broker is not available";
    REPLICA_NOT_AVAILABLE = 9, "the replica is not available";
    MESSAGE_TOO_LARGE = 10, "the batch is larger than the topic allows";
    STALE_CONTROLLER_EPOCH = 11, "a newer controller has taken over";
    OFFSET_METADATA_TOO_LARGE = 12, "the metadata of the offset is too long";
    NETWORK_EXCEPTION = 13, "the connection broke before the response";
    COORDINATOR_LOAD_IN_PROGRESS = 14, "the coordinator is still loading its state";
    COORDINATOR_NOT_AVAILABLE = 15, "the coordinator is not available";
    NOT_COORDINATOR = 16, "the broker is not the coordinator for this key";
    INVALID_TOPIC_EXCEPTION = 17, "the topic name is invalid or reserved";
    RECORD_LIST_TOO_LARGE = 18, "the batch is larger than a log segment";
    NOT_ENOUGH_REPLICAS = 19, "fewer replicas are in sync than required";
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, "the batch was written, but to too few replicas";
    INVALID_REQUIRED_ACKS = 21, "the value of acks is invalid";
    ILLEGAL_GENERATION = 22, "the generation is not the group's current one";
    INCONSISTENT_GROUP_PROTOCOL = 23, "the member shares no protocol with the rest of the group";
    INVALID_GROUP_ID = 24, "the group id is invalid";
    UNKNOWN_MEMBER_ID = 25, "the coordinator does not know the member";
    INVALID_SESSION_TIMEOUT = 26, "the session timeout is outside the range that the broker allows";
    REBALANCE_IN_PROGRESS = 27, "the group is rebalancing";
    INVALID_COMMIT_OFFSET_SIZE = 28, "the size of the committed offset is invalid";
    TOPIC_AUTHORIZATION_FAILED = 29, "access to the topic is denied";
    GROUP_AUTHORIZATION_FAILED = 30, "access to the group is denied";
    CLUSTER_AUTHORIZATION_FAILED = 31, "access to the cluster is denied";
    INVALID_TIMESTAMP = 32, "a timestamp is outside the range that the topic allows";
    UNSUPPORTED_SASL_MECHANISM = 33, "the broker does not offer this SASL mechanism";
    ILLEGAL_SASL_STATE = 34, "the request does not fit the state of the SASL exchange";
    UNSUPPORTED_VERSION = 35, "the broker does not serve this version of the API";
    TOPIC_ALREADY_EXISTS = 36, "a topic of this name exists already";
    INVALID_PARTITIONS = 37, "the number of partitions is invalid";
    INVALID_REPLICATION_FACTOR = 38, "the replication factor is invalid or larger than the cluster";
    INVALID_REPLICA_ASSIGNMENT = 39, "the replica assignment is invalid";
    INVALID_CONFIG = 40, "a setting is invalid";
    NOT_CONTROLLER = 41, "the broker is not the controller";
    INVALID_REQUEST = 42, "the request contradicts itself or the broker's rules";
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "the log's message format cannot serve the request";
    POLICY_VIOLATION = 44, "a policy of the broker forbids the request";
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "the batch does not follow the producer's previous one";
    DUPLICATE_SEQUENCE_NUMBER = 46, "the batch repeats one that is no longer remembered in full";
    INVALID_PRODUCER_EPOCH = 47, "the producer's epoch is older than the one on record";
    INVALID_TXN_STATE = 48, "the transaction is in no state for this request";
    INVALID_PRODUCER_ID_MAPPING = 49, "the producer id does not belong to the transactional id";
    INVALID_TRANSACTION_TIMEOUT = 50, "the transaction timeout is longer than the broker allows";
    CONCURRENT_TRANSACTIONS = 51, "the previous transaction of this id is still being ended";
    TRANSACTION_COORDINATOR_FENCED = 52, "a newer transaction coordinator has taken over";
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "access to the transactional id is denied";
    SECURITY_DISABLED = 54, "the broker has no security configured";
    OPERATION_NOT_ATTEMPTED = 55, "the operation was skipped: another one of the request failed";
    KAFKA_STORAGE_ERROR = 56, "the broker's disk failed";
    LOG_DIR_NOT_FOUND = 57, "the broker has no such log directory";
    SASL_AUTHENTICATION_FAILED = 58, "authentication failed";
    UNKNOWN_PRODUCER_ID = 59, "the broker has no state of this producer";
    REASSIGNMENT_IN_PROGRESS = 60, "the partition is being reassigned already";
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "delegation tokens are switched off";
    DELEGATION_TOKEN_NOT_FOUND = 62, "the delegation token is unknown";
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "the delegation token belongs to somebody else";
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, "this connection cannot use delegation tokens";
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "access to the delegation token is denied";
    DELEGATION_TOKEN_EXPIRED = 66, "the delegation token has expired";
    INVALID_PRINCIPAL_TYPE = 67, "the kind of principal is not supported";
    NON_EMPTY_GROUP = 68, "the group has members";
    GROUP_ID_NOT_FOUND = 69, "the group does not exist";
    FETCH_SESSION_ID_NOT_FOUND = 70, "the fetch session is unknown";
    INVALID_FETCH_SESSION_EPOCH = 71, "the fetch session is at another epoch";
    LISTENER_NOT_FOUND = 72, "the leader has no listener of that name";
    TOPIC_DELETION_DISABLED = 73, "topic deletion is switched off";
    FENCED_LEADER_EPOCH = 74, "the leader epoch of the request is older than the broker's";
    UNKNOWN_LEADER_EPOCH = 75, "the leader epoch of the request is newer than the broker's";
    UNSUPPORTED_COMPRESSION_TYPE = 76, "the client is too old for the compression";
    STALE_BROKER_EPOCH = 77, "the broker's epoch has changed";
    OFFSET_NOT_AVAILABLE = 78, "the new leader does not know its high watermark yet";
    MEMBER_ID_REQUIRED = 79, "the member must join again with the id it was given";
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "the preferred leader is not available";
    GROUP_MAX_SIZE_REACHED = 81, "the group is full";
    FENCED_INSTANCE_ID = 82, "another member has taken over the group instance id";
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "no eligible leader is available";
    ELECTION_NOT_NEEDED = 84, "no election is needed";
    NO_REASSIGNMENT_IN_PROGRESS = 85, "no reassignment is in progress";
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "the group still subscribes to the topic";
    INVALID_RECORD = 87, "the broker refused a record of the batch";
    UNSTABLE_OFFSET_COMMIT = 88, "offsets of an open transaction are pending";
    THROTTLING_QUOTA_EXCEEDED = 89, "a quota is used up";
    PRODUCER_FENCED = 90, "a newer producer with the same transactional id has taken over";
    RESOURCE_NOT_FOUND = 91, "the request names a resource that does not exist";
    DUPLICATE_RESOURCE = 92, "the request names a resource twice";
    UNACCEPTABLE_CREDENTIAL = 93, "the credential does not meet the requirements";
    INCONSISTENT_VOTER_SET = 94, "sender or receiver is not one of the voters";
    INVALID_UPDATE_VERSION = 95, "the update version is invalid";
    FEATURE_UPDATE_FAILED = 96, "the features could not be updated";
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "the forwarded principal could not be read";
    SNAPSHOT_NOT_FOUND = 98, "the snapshot does not exist";
    POSITION_OUT_OF_RANGE = 99, "the position lies outside the snapshot";
    UNKNOWN_TOPIC_ID = 100, "the broker does not have a topic of this id";
    DUPLICATE_BROKER_REGISTRATION = 101, "the broker id is in use";
    BROKER_ID_NOT_REGISTERED = 102, "the broker id is not registered";
    INCONSISTENT_TOPIC_ID = 103, "the topic has another id than the request says";
    INCONSISTENT_CLUSTER_ID = 104, "the request is for another cluster";
    TRANSACTIONAL_ID_NOT_FOUND = 105, "the transactional id does not exist";
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "the fetch session mixes topic names and ids";
    INELIGIBLE_REPLICA = 107, "a replica may not be in sync";
    NEW_LEADER_ELECTED = 108, "another leader was elected";
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "the offset has moved to tiered storage";
    FENCED_MEMBER_EPOCH = 110, "the member's epoch is void; it must rejoin with no partitions";
    UNRELEASED_INSTANCE_ID = 111, "the instance id is still in use by another member";
    UNSUPPORTED_ASSIGNOR = 112, "the group does not support the assignor";
    STALE_MEMBER_EPOCH = 113, "the member's epoch is outdated";
    MISMATCHED_ENDPOINT_TYPE = 114, "the endpoint is of another kind";
    UNSUPPORTED_ENDPOINT_TYPE = 115, "the kind of endpoint is not supported";
    UNKNOWN_CONTROLLER_ID = 116, "the controller id is unknown";
    UNKNOWN_SUBSCRIPTION_ID = 117, "the telemetry subscription is unknown or outdated";
    TELEMETRY_TOO_LARGE = 118, "the telemetry is too large";
    INVALID_REGISTRATION = 119, "the controller refused the broker's registration";
    TRANSACTION_ABORTABLE = 120, "the transaction cannot go on, but can be aborted";
    INVALID_RECORD_STATE = 121, "the record is in no state for this acknowledgement";
    SHARE_SESSION_NOT_FOUND = 122, "the share session is unknown";
    INVALID_SHARE_SESSION_EPOCH = 123, "the share session is at another epoch";
    FENCED_STATE_EPOCH = 124, "the share group's state is at another epoch";
    INVALID_VOTER_KEY = 125, "the voter's key is not that of the replica";
    DUPLICATE_VOTER = 126, "the voter is in the set already";
    VOTER_NOT_FOUND = 127, "the voter is not in the set";
    INVALID_REGULAR_EXPRESSION = 128, "the regular expression is invalid";
    REBOOTSTRAP_REQUIRED = 129, "the metadata is stale; start from the bootstrap addresses";
    STREAMS_INVALID_TOPOLOGY = 130, "the topology is invalid";
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "the topology epoch is invalid";
    STREAMS_TOPOLOGY_FENCED = 132, "the topology epoch is outdated";
    SHARE_SESSION_LIMIT_REACHED = 133, "the broker holds no more share sessions";
}

impl ErrorCode {
    /// The number on the wire.
    #[must_use]
    pub fn code(self) -> i16 {
        self.0
    }

    /// Whether it is no error.
    #[must_use]
    pub fn is_ok(self) -> bool {
        self == Self::NONE
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Wire for ErrorCode {
    #[inline]
    fn min_bytes(_form: Form) -> usize {
        2
    }

    #[inline]
    fn write(&self, encoder: &mut Encoder, _form: Form) -> Result<(), EncodeError> {
        encoder.i16(self.0);
        Ok(())
    }

    #[inline]
    fn read(decoder: &mut Decoder, _form: Form) -> Result<Self, DecodeError> {
        decoder.i16().map(Self)
    }

    fn sample(sampler: &mut Sampler, _form: Form) -> Self {
        Self(sampler.below(134) as i16 - 1)
    }
}
