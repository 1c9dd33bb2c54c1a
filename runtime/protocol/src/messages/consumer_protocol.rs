//! What members and the leader of a consumer group tell each other through the coordinator.
//!
//! Invariants:
//! - on the wire a 16-bit version stands before either (`Message::to_versioned_bytes`)
//! - a later version only adds fields at the end, so it is read as the latest one known
//!
//! Never: read by a coordinator, save to list what a member subscribed.

use bytes::Bytes;

use crate::message;
use crate::primitives::{DecodeError, Decoder};
use crate::schema::Message;

message! {
    /// What a member wants to read and what it holds: the metadata of JoinGroup.
    pub struct ConsumerProtocolSubscription(versions 0..=3) {
        topics: Vec<String>, in 0..;
        user_data: Option<Bytes>, in 0.., null 0..;
        owned_partitions: Vec<TopicPartitions>, in 1.., else dropped;
        generation_id: i32 = -1, in 2.., else dropped;
        rack_id: Option<String>, in 3.., null 3.., else dropped;
    }

    /// What a member is to read: the assignment of SyncGroup.
    pub struct ConsumerProtocolAssignment(versions 0..=3) {
        assigned_partitions: Vec<TopicPartitions>, in 0..;
        user_data: Option<Bytes>, in 0.., null 0..;
    }

    /// Partitions of one topic.
    pub struct TopicPartitions {
        topic: String, in 0..;
        partitions: Vec<i32>, in 0..;
    }
}

impl ConsumerProtocolSubscription {
    /// Reads a subscription of any version.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are none.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        decode_lenient(bytes)
    }
}

impl ConsumerProtocolAssignment {
    /// Reads an assignment of any version. No bytes at all are an empty assignment.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are none.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, DecodeError> {
        if bytes.is_empty() {
            Ok(Self::default())
        } else {
            decode_lenient(bytes)
        }
    }
}

fn decode_lenient<M: Message>(bytes: Bytes) -> Result<M, DecodeError> {
    let mut decoder = Decoder::from_bytes(bytes);
    let version = decoder.i16()?;
    M::decode(&mut decoder, version.min(*M::VERSIONS.end()))
}
