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
use millstream_client::ProducerRecord;

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

impl<K, V> Serdes<K, V> {
    /// A record for a plain [`Producer`](millstream_client::Producer): key and value are
    /// serialised here, so what cannot be is an error of this call and nothing is sent.
    ///
    /// # Errors
    /// Where key or value have no form in their serde.
    ///
    /// # Examples
    /// ```
    /// use millstream_streams::json;
    ///
    /// let orders = json::<String, u64>();
    /// let record = orders.record("orders", &"o-1".to_owned(), &7)?;
    /// assert_eq!(record.value.as_deref(), Some(&b"7"[..]));
    /// # Ok::<(), millstream_streams::SerdeError>(())
    /// ```
    pub fn record(
        &self,
        topic: impl Into<Arc<str>>,
        key: &K,
        value: &V,
    ) -> Result<ProducerRecord, SerdeError> {
        let mut record = ProducerRecord::new(topic);
        record.key = written(&*self.key, key)?;
        record.value = written(&*self.value, value)?;
        Ok(record)
    }
}

fn written<T>(serde: &dyn Serde<T>, value: &T) -> Result<Option<Bytes>, SerdeError> {
    let mut bytes = Vec::new();
    Ok(match serde.serialize(value, &mut bytes)? {
        Presence::Present => Some(bytes.into()),
        Presence::Null => None,
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes numbers below ten, and null for zero.
    struct Digit;

    impl Serde<u8> for Digit {
        fn deserialize(&self, _: Option<&Bytes>) -> Result<u8, SerdeError> {
            Err(SerdeError::new("not read here"))
        }

        fn serialize(&self, value: &u8, into: &mut Vec<u8>) -> Result<Presence, SerdeError> {
            match value {
                0 => return Ok(Presence::Null),
                1..10 => into.push(b'0' + value),
                _ => return Err(SerdeError::new(format!("{value} has two digits"))),
            }
            Ok(Presence::Present)
        }
    }

    // Rows 68 and 81: what a serialiser refuses is an error of the call.
    #[test]
    fn a_record_is_serialised_at_the_call_and_what_cannot_be_is_its_error() {
        let digits = Serdes::new(Digit, Digit);
        let record = digits.record("digits", &7, &0).unwrap();
        assert_eq!(
            (record.key.as_deref(), record.value),
            (Some(&b"7"[..]), None)
        );
        let error = digits.record("digits", &1, &12).unwrap_err();
        assert_eq!(error.to_string(), "12 has two digits");
    }
}
