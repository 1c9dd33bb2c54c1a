//! Kafka's wire protocol and record format: bytes to messages and back, without I/O.

mod api;
mod batch;
mod builder;
mod compression;
mod control;
pub mod error;
mod frame;
mod header;
pub mod messages;
mod primitives;
mod record;
mod rewrite;
#[doc(hidden)]
pub mod schema;
mod zigzag;

pub use api::{ApiKey, Request};
pub use batch::{
    BatchError, BatchSummary, ProducerStamp, RecordBatch, TimestampType, patch_prefix,
};
pub use builder::RecordBatchBuilder;
pub use compression::{Compression, UnknownCompression};
pub use control::{ControlMarker, control_batch};
pub use error::{ErrorClass, ErrorCode, ErrorContext, class};
pub use frame::Frame;
pub use header::{
    RequestHeader, decode_request_header, decode_response, encode_request, encode_response,
};
#[doc(hidden)]
pub use primitives::Sampler;
pub use primitives::{
    DecodeError, Decoder, EncodeError, Encoder, Form, Nullable, ParseUuidError, SecretBytes,
    TopicPartition, Uuid, Wire,
};
pub use record::{HeaderIter, Headers, Record, RecordView, Records};
pub use rewrite::BatchRewriter;
pub use schema::Message;
