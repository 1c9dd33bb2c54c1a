//! One partition on disk in Kafka's format, and the journal that makes a broker's appends durable.
//!
//! Invariants: what a caller was told is durable is found again after a power cut; an offset, once
//! acknowledged, names the same bytes for ever.
//! Never: runs async code, starts threads, reads a clock.

pub mod durability;
pub mod error;
pub mod journal;
pub mod storage;

pub use durability::{Durability, UnknownDurability};
pub use error::LogError;
pub use journal::Journal;
pub use storage::{DiskStorage, FaultyStorage, MemoryStorage, OpenMode, Storage, StorageFile};
