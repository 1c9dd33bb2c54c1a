//! Typed topologies over the client: read, process, write and commit in one transaction.
//!
//! | stage | module | what it owns |
//! |---|---|---|
//! | declare | [`dsl`], `topology` | typed builders, and the factory of chains that they draw |
//! | `process` | `operators`, `task` | one record depth first through typed operators |
//! | `collect` | `task` | the outputs of one record, whole or not at all |
//!
//! Invariants: offsets and outputs are committed in one transaction; a task has one owner.
//! Never: names the broker or the log; the only way to them is the client.

pub mod dsl;
pub mod error;
mod operators;
mod poison;
mod record;
pub mod serde;
mod task;
mod testing;
mod topology;

pub use dsl::{GlobalKTable, KStream, SplitStream, StreamsBuilder};
pub use error::{BoxError, StreamsError, TopologyError};
pub use operators::{ProcessorContext, ValueProcessor};
pub use poison::PoisonPolicy;
pub use record::{Record, RecordContext};
pub use serde::{Presence, RecordKey, Serde, SerdeError, Serdes, bincode, bytes, json, json_objects, strings};
pub use testing::{TestRecord, TopologyTestDriver};
pub use topology::Topology;
