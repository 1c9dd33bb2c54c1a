//! State stores for streams: ordered byte stores whose content and changelog offsets change
//! together.
//!
//! | module | what it holds |
//! |---|---|
//! | [`store`] | the [`KeyValueStore`] trait and the [`WriteBatch`] that every write goes through |
//! | [`memory`] | [`MemoryStore`], the store that needs no disk |
//! | [`conformance`] | the suite that every store has to pass |
//!
//! Invariants: a store's records and the offsets up to which they were applied are written in one
//! batch, so a reader never finds one without the other.
//! Never: knows topics' serdes, an async runtime, or where a batch comes from.

pub mod conformance;
pub mod error;
pub mod memory;
pub mod store;

pub use error::StateError;
pub use memory::MemoryStore;
pub use store::{KeyValueStore, Write, WriteBatch};
