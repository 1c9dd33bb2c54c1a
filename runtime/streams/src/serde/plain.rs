//! Values that are text or bytes as they are.
//!
//! Invariants: bytes pass through unread; text is checked as UTF-8.
//! Never: copies a value of bytes while reading it.

use bytes::Bytes;

use super::{KeyBytes, Presence, Serde, SerdeError, Serdes};

/// UTF-8 text.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlainString;

impl Serde<String> for PlainString {
    fn deserialize(&self, bytes: Option<&Bytes>) -> Result<String, SerdeError> {
        let bytes = bytes.ok_or_else(|| SerdeError::new("the value is null"))?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(SerdeError::new(format_args!(
                "the value is not UTF-8: {error}"
            ))),
        }
    }

    fn serialize(&self, value: &String, into: &mut Vec<u8>) -> Result<Presence, SerdeError> {
        into.extend_from_slice(value.as_bytes());
        Ok(Presence::Present)
    }
}

/// Bytes, null included.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlainBytes;

impl Serde<Option<Bytes>> for PlainBytes {
    fn deserialize(&self, bytes: Option<&Bytes>) -> Result<Option<Bytes>, SerdeError> {
        Ok(bytes.cloned())
    }

    fn serialize(&self, value: &Option<Bytes>, into: &mut Vec<u8>) -> Result<Presence, SerdeError> {
        let Some(value) = value else {
            return Ok(Presence::Null);
        };
        into.extend_from_slice(value);
        Ok(Presence::Present)
    }
}

impl Serde<Bytes> for PlainBytes {
    fn deserialize(&self, bytes: Option<&Bytes>) -> Result<Bytes, SerdeError> {
        bytes
            .cloned()
            .ok_or_else(|| SerdeError::new("the value is null"))
    }

    fn serialize(&self, value: &Bytes, into: &mut Vec<u8>) -> Result<Presence, SerdeError> {
        into.extend_from_slice(value);
        Ok(Presence::Present)
    }
}

/// Text keys and text values.
#[must_use]
pub fn strings() -> Serdes<String, String> {
    Serdes::new(KeyBytes, PlainString)
}

/// Keys and values of bytes, both may be null.
#[must_use]
pub fn bytes() -> Serdes<Option<Bytes>, Option<Bytes>> {
    Serdes::new(KeyBytes, PlainBytes)
}
