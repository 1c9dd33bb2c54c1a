//! Values in bincode 1.3's format (fixed-width little-endian integers), compact and quick for
//! Rust-only topics.
//!
//! Invariants: the whole value is consumed; trailing bytes are an error.
//! Never: reads more than the record holds, whatever a length inside says.

use std::fmt;
use std::marker::PhantomData;

use ::bincode::Options as _;
use ::serde::{Serialize, de::DeserializeOwned};
use bytes::Bytes;

use super::{KeyBytes, Presence, RecordKey, Serde, SerdeError, Serdes};

/// bincode values of type `V`.
pub struct Bincode<V>(PhantomData<fn() -> V>);

impl<V> Bincode<V> {
    /// The serde.
    #[must_use]
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<V> Default for Bincode<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> fmt::Debug for Bincode<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bincode")
    }
}

impl<V: Serialize + DeserializeOwned + 'static> Serde<V> for Bincode<V> {
    fn deserialize(&self, bytes: Option<&Bytes>) -> Result<V, SerdeError> {
        let bytes = bytes.ok_or_else(|| SerdeError::new("the value is null"))?;
        ::bincode::DefaultOptions::new()
            .with_fixint_encoding()
            .with_limit(bytes.len() as u64)
            .deserialize(bytes)
            .map_err(SerdeError::new)
    }

    fn serialize(&self, value: &V, into: &mut Vec<u8>) -> Result<Presence, SerdeError> {
        ::bincode::serialize_into(into, value).map_err(SerdeError::new)?;
        Ok(Presence::Present)
    }
}

/// Raw keys and bincode values.
#[must_use]
pub fn bincode<K, V>() -> Serdes<K, V>
where
    K: RecordKey,
    V: Serialize + DeserializeOwned + 'static,
{
    Serdes::new(KeyBytes, Bincode::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_round_trips_and_hostile_bytes_are_errors() {
        let serde = Bincode::<(u32, String)>::new();
        let mut bytes = Vec::new();
        serde
            .serialize(&(7, "seven".to_owned()), &mut bytes)
            .expect("writes");
        let written = Bytes::from(bytes);
        assert_eq!(
            serde.deserialize(Some(&written)).expect("reads"),
            (7, "seven".to_owned())
        );

        let mut long = written.to_vec();
        long.push(0);
        serde
            .deserialize(Some(&Bytes::from(long)))
            .expect_err("trailing byte");
        let mut huge = 7_u32.to_le_bytes().to_vec();
        huge.extend_from_slice(&u64::MAX.to_le_bytes());
        serde
            .deserialize(Some(&Bytes::from(huge)))
            .expect_err("a length beyond the record");
    }
}
