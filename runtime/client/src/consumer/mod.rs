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
mod commit;
mod config;
#[expect(clippy::module_inception, reason = "file, noun and main type agree")]
mod consumer;
mod core;
mod error;
mod fetch_request;
mod fetch_session;
mod fetched;
mod fetcher;
mod group_protocol;
mod listener;
mod lookup;
mod membership;
mod offsets;
mod poll;
mod positions;
mod protocol_blobs;
mod read_committed;
mod records;
mod reset;
mod seek;
mod settings;
mod stream;
#[cfg(test)]
mod tests;
mod truncation;

pub use assignor::{Assignor, RebalanceProtocol};
pub use config::{ConsumerBuilder, ConsumerConfig};
pub use consumer::Consumer;
pub use error::ConsumerError;
pub use group_protocol::GroupProtocol;
pub use listener::RebalanceListener;
pub use lookup::OffsetAndTimestamp;
pub use read_committed::Isolation;
pub use records::{ConsumerRecord, ConsumerRecords, IntoRecords, PartitionRecords};
pub use reset::AutoOffsetReset;
