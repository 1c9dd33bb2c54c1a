//! The transaction coordinator: producer ids, transactions, their log and their markers.
//!
//! ```text
//!   handlers ─▶ coordinator ─▶ machine (pure) ─▶ record ─▶ log     `__transaction_state`
//!   produce, TxnOffsetCommit ─▶ verification ┘  └─▶ markers        every partition touched
//!   open ─▶ load                timers ─▶ coordinator              timeouts, expiry, unfinished
//! ```
//!
//! Invariants: the events of one transactional id are serial, under that id's own lock.
//! Invariants: memory changes only after the record is appended; an answer is given only after
//! everything it rests on is durable.
//! Never: knows requests or connections.

mod coordinator;
mod load;
mod log;
mod machine;
mod markers;
mod model;
mod producer_ids;
mod record;
mod state;
mod timers;
mod verification;

#[cfg(test)]
mod compaction_tests;
#[cfg(test)]
mod cost_tests;
#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod machine_model_tests;
#[cfg(test)]
mod machine_tests;
#[cfg(test)]
mod request_tests;
#[cfg(test)]
mod test_producer;

pub(crate) use coordinator::Coordinator;
pub(crate) use markers::{COORDINATOR_EPOCH, Marker, write_marker};
pub(crate) use model::{CURRENT_VERSION, Identity};
pub(crate) use state::State;
pub(crate) use verification::{
    Mode, offset_commit_error, offset_commit_mode, produce_error, produce_mode,
};
