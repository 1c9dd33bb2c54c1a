//! The APIs of Kafka's protocol that this crate speaks, their versions and their headers.
//!
//! Invariants: `versions` of an API are the versions of its request and response messages.
//! Never: says what a broker chooses to serve; that may be less.

use std::fmt;
use std::ops::RangeInclusive;

use crate::schema::Message;

/// A message that asks an API, and with it the message that answers.
pub trait Request: Message {
    /// The API asked.
    const API: ApiKey;
    /// What it answers.
    type Response: Message;
}

macro_rules! apis {
    ($($(#[$doc:meta])* $name:ident = $key:literal, $versions:expr, $flexible:expr;)*) => {
        /// One API, by its number on the wire.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i16)]
        pub enum ApiKey {
            $($(#[$doc])* $name = $key,)*
        }

        impl ApiKey {
            /// Every API, by ascending number.
            pub const ALL: &'static [ApiKey] = &[$(ApiKey::$name),*];

            /// The API with this number, if it is one that this crate speaks.
            #[must_use]
            pub fn from_i16(key: i16) -> Option<Self> {
                match key {
                    $($key => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The versions that can be read and written.
            #[must_use]
            pub fn versions(self) -> RangeInclusive<i16> {
                match self {
                    $(Self::$name => $versions,)*
                }
            }

            /// Kafka's name of the API.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            fn flexible_from(self) -> i16 {
                match self {
                    $(Self::$name => $flexible,)*
                }
            }
        }
    };
}

apis! {
    /// Appends record batches.
    Produce = 0, 3..=13, 9;
    /// Reads record batches.
    Fetch = 1, 4..=18, 12;
    /// Finds offsets by timestamp.
    ListOffsets = 2, 1..=11, 6;
    /// Describes brokers, topics and leaders.
    Metadata = 3, 0..=13, 9;
    /// Stores a group's offsets.
    OffsetCommit = 8, 2..=10, 8;
    /// Reads a group's offsets.
    OffsetFetch = 9, 1..=10, 6;
    /// Finds a group's or a transactional id's coordinator.
    FindCoordinator = 10, 0..=6, 3;
    /// Joins a group.
    JoinGroup = 11, 0..=9, 6;
    /// Keeps a membership alive.
    Heartbeat = 12, 0..=4, 4;
    /// Leaves a group.
    LeaveGroup = 13, 0..=5, 4;
    /// Hands out and fetches assignments.
    SyncGroup = 14, 0..=5, 4;
    /// Describes groups.
    DescribeGroups = 15, 0..=6, 5;
    /// Lists groups.
    ListGroups = 16, 0..=5, 3;
    /// Chooses how a client proves who it is.
    SaslHandshake = 17, 0..=1, i16::MAX;
    /// Tells the versions that a broker serves.
    ApiVersions = 18, 0..=4, 3;
    /// Creates topics.
    CreateTopics = 19, 2..=7, 5;
    /// Deletes topics.
    DeleteTopics = 20, 1..=6, 4;
    /// Deletes records below an offset.
    DeleteRecords = 21, 0..=2, 2;
    /// Gives out producer ids and epochs.
    InitProducerId = 22, 0..=5, 2;
    /// Finds where a leader epoch ends.
    OffsetForLeaderEpoch = 23, 2..=4, 4;
    /// Adds partitions to a transaction.
    AddPartitionsToTxn = 24, 0..=5, 3;
    /// Adds a group's offsets to a transaction.
    AddOffsetsToTxn = 25, 0..=4, 3;
    /// Commits or aborts a transaction.
    EndTxn = 26, 0..=5, 3;
    /// Writes the markers that end a transaction.
    WriteTxnMarkers = 27, 1..=2, 1;
    /// Stores a group's offsets within a transaction.
    TxnOffsetCommit = 28, 0..=5, 3;
    /// Lists access rules.
    DescribeAcls = 29, 1..=3, 2;
    /// Makes access rules.
    CreateAcls = 30, 1..=3, 2;
    /// Deletes access rules.
    DeleteAcls = 31, 1..=3, 2;
    /// Reads settings.
    DescribeConfigs = 32, 1..=4, 4;
    /// Replaces settings.
    AlterConfigs = 33, 0..=2, 2;
    /// Describes the data directories of a broker.
    DescribeLogDirs = 35, 1..=5, 2;
    /// Carries the messages of that proof.
    SaslAuthenticate = 36, 0..=2, 2;
    /// Adds partitions to topics.
    CreatePartitions = 37, 0..=3, 2;
    /// Deletes groups.
    DeleteGroups = 42, 0..=2, 2;
    /// Elects leaders.
    ElectLeaders = 43, 0..=2, 2;
    /// Changes settings.
    IncrementalAlterConfigs = 44, 0..=1, 1;
    /// Lists the partitions that are moving.
    ListPartitionReassignments = 46, 0..=0, 0;
    /// Deletes committed offsets of a group.
    OffsetDelete = 47, 0..=0, i16::MAX;
    /// Describes the brokers of the cluster.
    DescribeCluster = 60, 0..=2, 0;
    /// Describes the producers that a partition knows.
    DescribeProducers = 61, 0..=0, 0;
    /// Describes transactions.
    DescribeTransactions = 65, 0..=0, 0;
    /// Lists transactions.
    ListTransactions = 66, 0..=2, 0;
    /// Joins, keeps and leaves a group of the consumer protocol.
    ConsumerGroupHeartbeat = 68, 0..=1, 0;
    /// Describes groups of the consumer protocol.
    ConsumerGroupDescribe = 69, 0..=1, 0;
    /// Lists what has settings.
    ListConfigResources = 74, 0..=1, 0;
    /// Describes topics page by page.
    DescribeTopicPartitions = 75, 0..=0, 0;
}

impl ApiKey {
    /// Whether a version has compact lengths and tagged fields.
    #[must_use]
    pub fn is_flexible(self, version: i16) -> bool {
        version >= self.flexible_from()
    }

    /// The version of the header before a request: 2 has tagged fields.
    #[must_use]
    pub fn request_header_version(self, version: i16) -> i16 {
        if self.is_flexible(version) { 2 } else { 1 }
    }

    /// The version of the header before a response: 1 has tagged fields.
    ///
    /// That of `ApiVersions` is always 0: its reader does not know yet what the broker speaks.
    #[must_use]
    pub fn response_header_version(self, version: i16) -> i16 {
        i16::from(self != Self::ApiVersions && self.is_flexible(version))
    }
}

impl fmt::Display for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
