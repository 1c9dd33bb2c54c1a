//! What a job needs, in one import: `use millstream::prelude::*;`.
//!
//! serde's derives are among it, but what they write names the crate: a job that derives
//! `Serialize` or `Deserialize` has `serde` among its own dependencies.
//!
//! Invariants: it holds what the guide's examples use, serde's derives included.
//! Never: a name that a user is likely to have of their own.

pub use serde::{Deserialize, Serialize};

pub use crate::client::consumer::{ConsumerRecord, ConsumerRecords};
pub use crate::client::{Admin, Consumer, Producer, ProducerRecord};
pub use crate::streams::{
    GlobalKTable, Guarantee, KStream, PoisonPolicy, RecordContext, Serde, Serdes, Streams,
    StreamsBuilder, Topology, ValueProcessor, bincode, bytes, json, strings,
};
pub use crate::{Broker, Durability, TopicPartition};
