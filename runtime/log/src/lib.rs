//! One partition on disk in Kafka's format, and the journal that makes a broker's appends durable.
//!
//! Invariants: what a caller was told is durable is found again after a power cut; an offset, once
//! acknowledged, names the same bytes for ever.
//! Never: runs async code, starts threads, reads a clock.

mod append_error;
pub mod catalogue;
mod checkpoint;
mod compaction;
mod directory;
pub mod durability;
pub mod error;
#[doc(hidden)]
pub mod failpoint;
mod index;
pub mod journal;
mod layout;
mod leader_epoch;
mod meta;
mod partition;
mod partition_config;
mod producer_state;
mod recovery;
mod retention;
mod segment;
mod stable_offset;
pub mod storage;
mod tail;
mod validate;

pub use append_error::{AppendError, ReadError};
pub use catalogue::{OtherSettings, Settings};
pub use directory::{
    CompactedPartition, CompactionReport, DirectoryConfig, LogDirectory, NewTopic, Outcomes, Topic,
    UncompactedPartition,
};
pub use durability::{Durability, UnknownDurability};
pub use error::LogError;
pub use journal::Journal;
pub use partition::{
    AbortedTransaction, AppendOrigin, Appended, Isolation, LogOffsets, OpenTransaction,
    PartitionLog, PartitionSetup, ProducerSummary, ReadRequest, ReadResult, Recovery,
};
pub use partition_config::{InvalidConfig, PartitionConfig};
pub use recovery::RecoveryReport;
pub use storage::{DiskStorage, FaultyStorage, MemoryStorage, OpenMode, Storage, StorageFile};
