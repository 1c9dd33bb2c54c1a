//! Typed topologies over the client: read, process, write and commit in one transaction.
//!
//! | stage | module | what it owns |
//! |---|---|---|
//! | declare | [`dsl`], `topology` | typed builders, and the factory of chains that they draw |
//! | `process` | `operators`, `task` | one record depth first through typed operators |
//! | `collect` | `task` | the outputs of one record, whole or not at all |
//! | `fetch`, `queue` | `reader`, `global` | the group's member, batches on their way to workers, global tables |
//! | `commit` | `worker`, `commit` | offsets and outputs in one transaction |
//! | run | `instance`, `placement`, `assignment` | start, stop, where workers run, who gets which partition |
//!
//! Invariants: offsets and outputs are committed in one transaction; a task has one owner.
//! Never: names the broker or the log; the only way to them is the client.

mod assignment;
mod commit;
mod config;
pub mod dsl;
pub mod error;
mod failpoint;
mod global;
mod instance;
mod operators;
mod pace;
mod placement;
mod poison;
mod progress;
mod reader;
mod record;
pub mod serde;
mod task;
mod testing;
mod topology;
mod worker;

pub use config::{Guarantee, Placement};
pub use dsl::{GlobalKTable, KStream, SplitStream, StreamsBuilder};
pub use error::{BoxError, StreamsError, TopologyError};
pub use instance::{ProgressWatch, RunningStreams, Streams};
pub use operators::{ProcessorContext, ValueProcessor};
pub use poison::PoisonPolicy;
pub use progress::{Latency, Progress};
pub use record::{Record, RecordContext};
pub use serde::{
    Presence, RecordKey, Serde, SerdeError, Serdes, bincode, bytes, json, json_objects, strings,
};
pub use testing::{TestRecord, TopologyTestDriver};
pub use topology::Topology;
