//! The DSL: what a user writes, in the vocabulary of Kafka Streams.
//!
//! Invariants: every call adds to the graph and nothing else; types of keys and values are checked
//! by the compiler.
//! Never: runs anything.

mod builder;
mod global_table;
mod stream;

pub use builder::StreamsBuilder;
pub use global_table::GlobalKTable;
pub use stream::{KStream, SplitStream};
