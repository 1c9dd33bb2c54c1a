//! Keys: raw bytes that every client hashes and joins alike.
//!
//! Invariants: text is UTF-8, integers are big-endian, as Kafka's own serializers write them.
//! Never: a format of our own inside a key.

use bytes::Bytes;

use super::{Presence, Serde, SerdeError};

/// A type that can be a record's key.
pub trait RecordKey: Sized + Send + 'static {
    /// Reads the key; `None` is a null key.
    ///
    /// # Errors
    /// Where the bytes are not such a key.
    fn from_key(bytes: Option<&Bytes>) -> Result<Self, SerdeError>;

    /// Appends the key's bytes.
    fn write_key(&self, into: &mut Vec<u8>) -> Presence;
}

/// The serde of every [`RecordKey`].
#[derive(Debug, Clone, Copy, Default)]
pub struct KeyBytes;

impl<K: RecordKey> Serde<K> for KeyBytes {
    fn deserialize(&self, bytes: Option<&Bytes>) -> Result<K, SerdeError> {
        K::from_key(bytes)
    }

    fn serialize(&self, key: &K, into: &mut Vec<u8>) -> Result<Presence, SerdeError> {
        Ok(key.write_key(into))
    }
}

fn present(bytes: Option<&Bytes>) -> Result<&Bytes, SerdeError> {
    bytes.ok_or_else(|| {
        SerdeError::new("the key is null; use an Option as the key type to accept it")
    })
}

impl RecordKey for String {
    fn from_key(bytes: Option<&Bytes>) -> Result<Self, SerdeError> {
        let bytes = present(bytes)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(SerdeError::new(format_args!(
                "the key is not UTF-8: {error}"
            ))),
        }
    }

    fn write_key(&self, into: &mut Vec<u8>) -> Presence {
        into.extend_from_slice(self.as_bytes());
        Presence::Present
    }
}

impl RecordKey for Bytes {
    fn from_key(bytes: Option<&Bytes>) -> Result<Self, SerdeError> {
        present(bytes).cloned()
    }

    fn write_key(&self, into: &mut Vec<u8>) -> Presence {
        into.extend_from_slice(self);
        Presence::Present
    }
}

impl RecordKey for Vec<u8> {
    fn from_key(bytes: Option<&Bytes>) -> Result<Self, SerdeError> {
        present(bytes).map(|bytes| bytes.to_vec())
    }

    fn write_key(&self, into: &mut Vec<u8>) -> Presence {
        into.extend_from_slice(self);
        Presence::Present
    }
}

/// The unit key belongs to topics without keys: it reads anything and writes null.
impl RecordKey for () {
    fn from_key(_: Option<&Bytes>) -> Result<Self, SerdeError> {
        Ok(())
    }

    fn write_key(&self, _: &mut Vec<u8>) -> Presence {
        Presence::Null
    }
}

impl<K: RecordKey> RecordKey for Option<K> {
    fn from_key(bytes: Option<&Bytes>) -> Result<Self, SerdeError> {
        bytes.map(|bytes| K::from_key(Some(bytes))).transpose()
    }

    fn write_key(&self, into: &mut Vec<u8>) -> Presence {
        match self {
            Some(key) => key.write_key(into),
            None => Presence::Null,
        }
    }
}

macro_rules! integer_keys {
    ($($integer:ty),*) => {$(
        impl RecordKey for $integer {
            fn from_key(bytes: Option<&Bytes>) -> Result<Self, SerdeError> {
                let bytes = present(bytes)?;
                <[u8; size_of::<$integer>()]>::try_from(bytes.as_ref())
                    .map(<$integer>::from_be_bytes)
                    .map_err(|_| SerdeError::new(format_args!(
                        "the key has {} bytes, {} has {}",
                        bytes.len(), stringify!($integer), size_of::<$integer>(),
                    )))
            }

            fn write_key(&self, into: &mut Vec<u8>) -> Presence {
                into.extend_from_slice(&self.to_be_bytes());
                Presence::Present
            }
        }
    )*};
}

integer_keys!(i16, i32, i64, u16, u32, u64);

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<K: RecordKey + PartialEq + std::fmt::Debug>(key: K) -> Vec<u8> {
        let mut bytes = Vec::new();
        let presence = key.write_key(&mut bytes);
        let read = Bytes::copy_from_slice(&bytes);
        let read = (presence == Presence::Present).then_some(&read);
        assert_eq!(K::from_key(read).expect("a written key reads"), key);
        bytes
    }

    #[test]
    fn keys_round_trip_in_kafkas_own_formats() {
        assert_eq!(round_trip("æ-1".to_owned()), "æ-1".as_bytes());
        assert_eq!(round_trip(258_i32), [0, 0, 1, 2]);
        assert_eq!(round_trip(-1_i64), [255; 8]);
        assert_eq!(round_trip(Some(Bytes::from_static(b"k"))), b"k");
        round_trip::<Option<String>>(None);
        round_trip(());
    }

    #[test]
    fn a_null_or_wrong_key_is_an_error_that_says_so() {
        let null = String::from_key(None).expect_err("null is no text");
        assert!(null.to_string().contains("null"), "{null}");
        let short = i64::from_key(Some(&Bytes::from_static(b"abc"))).expect_err("3 bytes");
        assert!(short.to_string().contains("3 bytes"), "{short}");
        let binary = String::from_key(Some(&Bytes::from_static(&[0xff]))).expect_err("not text");
        assert!(binary.to_string().contains("UTF-8"), "{binary}");
    }
}
