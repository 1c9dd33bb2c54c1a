//! What can go wrong in a store.
//!
//! Invariants: every variant names the store and the next step.
//! Never: wraps an error of the layers above.

/// A store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The store was filled from another cluster; its offsets mean nothing here.
    #[error(
        "store {store} holds the state of cluster {found}, this is cluster {expected}; \
         connect to the cluster it came from or give the application another state folder"
    )]
    OtherCluster {
        /// Name of the store.
        store: String,
        /// Cluster id recorded in the store.
        found: String,
        /// Cluster id of the connection.
        expected: String,
    },
    /// A batch would move an applied offset backwards, which would apply records twice.
    #[error(
        "store {store}: {partition} is applied up to offset {applied}, a batch wants to set {offset}; \
         rebuild the store from its topic"
    )]
    OffsetRegressed {
        /// Name of the store.
        store: String,
        /// Partition whose offset would regress.
        partition: millstream_protocol::TopicPartition,
        /// Offset (exclusive) up to which the store is filled.
        applied: i64,
        /// Offset (exclusive) that the batch carries.
        offset: i64,
    },
}
