//! The consumer: `fetch` → `read`. Partitions of one's own choice or a group's, positions,
//! committed data only by default, records as slices of the broker's answers.
//!
//! ```text
//!  application ── poll ──> positions <── answers ── fetcher ──> leaders
//!                   |                                 (background task)
//!                   +───── duties <──── membership ──> coordinator
//!                    (listener calls)   (background task: joins, heartbeats)
//! ```
//!
//! Invariants: records reach the application only through `poll`; the rebalance listener runs
//! inside `poll`; heartbeats do not.
//! Never: commits by itself unless `enable_auto_commit` is set.

pub mod assignor;
mod error;
mod fetched;
mod membership;
mod positions;
mod read_committed;
mod records;

pub use error::ConsumerError;
pub use read_committed::Isolation;
pub use records::{ConsumerRecord, ConsumerRecords, IntoRecords, PartitionRecords};

/// Reads records (being built).
#[derive(Debug)]
pub struct Consumer;
