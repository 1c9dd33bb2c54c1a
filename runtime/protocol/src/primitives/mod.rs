//! The wire's elementary types and the two cursors that read and write them.
//!
//! Invariants: a value is read and written by the same `Wire` implementation, in every version.
//! Never: knows a message, an API or an error code's meaning.

mod decoder;
mod encoder;
mod sampler;
mod secret;
mod topic_partition;
mod uuid;
mod wire;

pub use decoder::{DecodeError, Decoder};
pub use encoder::{EncodeError, Encoder};
#[doc(hidden)]
pub use sampler::Sampler;
pub use secret::SecretBytes;
pub use topic_partition::TopicPartition;
pub use uuid::{ParseUuidError, Uuid};
pub use wire::{Form, Nullable, Wire};
