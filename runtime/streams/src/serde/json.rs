//! JSON values beside raw keys.
//!
//! Invariants: a null value and JSON `null` are the same, so `Option<V>` reads and writes
//! tombstones.
//! Never: a JSON-encoded key.

use std::fmt;
use std::marker::PhantomData;

use ::serde::{Serialize, de::DeserializeOwned};
use bytes::Bytes;

use super::{KeyBytes, Presence, RecordKey, Serde, SerdeError, Serdes};

/// JSON values of type `V`.
pub struct Json<V> {
    objects_only: bool,
    value: PhantomData<fn() -> V>,
}

impl<V> Json<V> {
    /// Reads whatever JSON `V` accepts. A struct also accepts an array of its fields in order, as
    /// serde does.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            objects_only: false,
            value: PhantomData,
        }
    }

    /// Reads JSON objects only; an array of a struct's fields is refused.
    #[must_use]
    pub const fn objects_only() -> Self {
        Self {
            objects_only: true,
            value: PhantomData,
        }
    }
}

impl<V> Default for Json<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> fmt::Debug for Json<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Json")
            .field("objects_only", &self.objects_only)
            .finish()
    }
}

impl<V: Serialize + DeserializeOwned + 'static> Serde<V> for Json<V> {
    fn deserialize(&self, bytes: Option<&Bytes>) -> Result<V, SerdeError> {
        let Some(bytes) = bytes else {
            return serde_json::from_slice(b"null")
                .map_err(|_| SerdeError::new("the value is null; use an Option to accept it"));
        };
        if self.objects_only && !starts_an_object(bytes) {
            return Err(SerdeError::new("the value is not a JSON object"));
        }
        serde_json::from_slice(bytes).map_err(SerdeError::new)
    }

    fn serialize(&self, value: &V, into: &mut Vec<u8>) -> Result<Presence, SerdeError> {
        let start = into.len();
        serde_json::to_writer(&mut *into, value).map_err(SerdeError::new)?;
        if into.get(start..) == Some(b"null") {
            into.truncate(start);
            return Ok(Presence::Null);
        }
        Ok(Presence::Present)
    }
}

fn starts_an_object(bytes: &[u8]) -> bool {
    let first = bytes
        .iter()
        .find(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    first == Some(&b'{')
}

/// Raw keys and JSON values: `json::<String, Order>()`.
#[must_use]
pub fn json<K, V>() -> Serdes<K, V>
where
    K: RecordKey,
    V: Serialize + DeserializeOwned + 'static,
{
    Serdes::new(KeyBytes, Json::new())
}

/// As [`json`], where every value has to be a JSON object.
#[must_use]
pub fn json_objects<K, V>() -> Serdes<K, V>
where
    K: RecordKey,
    V: Serialize + DeserializeOwned + 'static,
{
    Serdes::new(KeyBytes, Json::objects_only())
}

#[cfg(test)]
mod tests {
    use ::serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Point {
        x: u32,
        y: u32,
    }

    fn read<V: Serialize + DeserializeOwned + 'static>(
        serde: &Json<V>,
        text: &'static str,
    ) -> Result<V, SerdeError> {
        serde.deserialize(Some(&Bytes::from_static(text.as_bytes())))
    }

    #[test]
    fn an_array_in_place_of_an_object_is_refused_where_objects_are_demanded() {
        assert_eq!(
            read(&Json::<Point>::new(), "[1,2]").expect("serde accepts it"),
            Point { x: 1, y: 2 }
        );
        read(&Json::<Point>::objects_only(), "[1,2]").expect_err("not an object");
        let point =
            read(&Json::<Point>::objects_only(), " \n{\"x\":1,\"y\":2}").expect("an object");
        assert_eq!(point, Point { x: 1, y: 2 });
    }

    #[test]
    fn duplicate_and_missing_fields_are_errors() {
        read(&Json::<Point>::new(), r#"{"x":1,"x":2,"y":3}"#).expect_err("x twice");
        read(&Json::<Point>::new(), r#"{"x":1}"#).expect_err("no y");
        read(&Json::<Point>::new(), r#"{"x":1.0,"y":2}"#).expect_err("not an integer");
    }

    #[test]
    fn null_is_a_tombstone_for_an_option_and_an_error_for_anything_else() {
        let serde = Json::<Option<Point>>::new();
        assert_eq!(serde.deserialize(None).expect("a tombstone"), None);
        let mut bytes = b"before".to_vec();
        assert_eq!(
            serde.serialize(&None, &mut bytes).expect("writes"),
            Presence::Null
        );
        assert_eq!(bytes, b"before");
        Json::<Point>::new()
            .deserialize(None)
            .expect_err("a struct is never null");
    }
}
