//! Kafka's wire protocol and record format: bytes to messages and back, without I/O.

mod batch;
mod builder;
mod compression;
mod control;
mod record;
mod zigzag;

pub use batch::{
    BatchError, BatchSummary, ProducerStamp, RecordBatch, TimestampType, patch_prefix,
};
pub use builder::RecordBatchBuilder;
pub use compression::{Compression, UnknownCompression};
pub use control::{ControlMarker, control_batch};
pub use record::{HeaderIter, Headers, Record, RecordView, Records};
