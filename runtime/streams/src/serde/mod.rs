//! How keys and values become bytes: the [`Serde`] trait, and the pairs that a source or sink
//! takes.
//!
//! Invariants: `deserialize(serialize(x)) == x`; a null is told apart from an empty value.
//! Never: panics on bytes that came from a topic.

mod bincode;
mod json;
mod key;
mod plain;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

pub use bincode::{Bincode, bincode};
pub use json::{Json, json, json_objects};
pub use key::{KeyBytes, RecordKey};
pub use plain::{PlainBytes, PlainString, bytes, strings};

/// Bytes that are not what the serde expects, or a value that it cannot write.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct SerdeError {
    message: String,
}

impl SerdeError {
    /// An error that says what is wrong with the bytes or the value.
    pub fn new(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
        }
    }
}

/// Whether a serialised key or value is there at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The bytes that were appended are the value, even where there are none.
    Present,
    /// The record carries a null.
    Null,
}

/// Turns a `T` into bytes and back.
pub trait Serde<T>: Send + Sync {
    /// Reads a key or value; `None` is a null.
    ///
    /// # Errors
    /// Where the bytes are not a `T`.
    fn deserialize(&self, bytes: Option<&Bytes>) -> Result<T, SerdeError>;

    /// Appends the bytes of `value` to `into`.
    ///
    /// # Errors
    /// Where `value` has no form in this serde.
    fn serialize(&self, value: &T, into: &mut Vec<u8>) -> Result<Presence, SerdeError>;
}

/// The serdes of a topic: one for its keys, one for its values.
pub struct Serdes<K, V> {
    pub(crate) key: Arc<dyn Serde<K>>,
    pub(crate) value: Arc<dyn Serde<V>>,
}

impl<K, V> Serdes<K, V> {
    /// A pair of serdes, for formats of your own.
    pub fn new(key: impl Serde<K> + 'static, value: impl Serde<V> + 'static) -> Self {
        Self {
            key: Arc::new(key),
            value: Arc::new(value),
        }
    }
}

impl<K, V> Clone for Serdes<K, V> {
    fn clone(&self) -> Self {
        Self {
            key: Arc::clone(&self.key),
            value: Arc::clone(&self.value),
        }
    }
}

impl<K, V> fmt::Debug for Serdes<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Serdes")
    }
}
