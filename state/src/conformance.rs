//! The suite that every store has to pass: call [`run`] with a factory from the store's own tests.
//!
//! Invariants: it uses the trait alone, so that it says the same of every backend.
//! Never: passes where a batch was applied in part.

use std::ops::Bound;

use bytes::Bytes;
use millstream_protocol::TopicPartition;

use crate::{KeyValueStore, StateError, WriteBatch};

/// Runs every check against fresh stores from `create`.
///
/// # Panics
/// Where the store breaks a rule of [`KeyValueStore`].
pub fn run(create: impl Fn() -> Box<dyn KeyValueStore>) {
    what_was_put_is_found_and_what_was_deleted_is_gone(create());
    ranges_are_ordered_and_bounded(create());
    a_batch_with_a_regressing_offset_changes_nothing(create());
    the_last_write_of_a_key_in_a_batch_wins(create());
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn apply(store: &mut dyn KeyValueStore, batch: WriteBatch) {
    store.apply(batch).expect("the batch is legal");
}

fn get(store: &dyn KeyValueStore, key: &str) -> Option<Bytes> {
    store.get(key.as_bytes()).expect("the store can be read")
}

fn what_was_put_is_found_and_what_was_deleted_is_gone(mut store: Box<dyn KeyValueStore>) {
    let mut batch = WriteBatch::new();
    batch.put(bytes("a"), bytes("1"));
    batch.put(bytes("b"), bytes(""));
    batch.set_offset(TopicPartition::new("t", 0), 2);
    apply(store.as_mut(), batch);
    assert_eq!(get(store.as_ref(), "a"), Some(bytes("1")));
    assert_eq!(
        get(store.as_ref(), "b"),
        Some(bytes("")),
        "an empty value is a value"
    );
    assert_eq!(get(store.as_ref(), "c"), None);
    assert_eq!(store.applied_offset(&TopicPartition::new("t", 0)), Some(2));
    assert_eq!(store.applied_offset(&TopicPartition::new("t", 1)), None);

    let mut batch = WriteBatch::new();
    batch.delete(bytes("a"));
    batch.delete(bytes("absent"));
    apply(store.as_mut(), batch);
    assert_eq!(get(store.as_ref(), "a"), None);
    assert_eq!(store.approximate_count(), 1);
}

fn ranges_are_ordered_and_bounded(mut store: Box<dyn KeyValueStore>) {
    let mut batch = WriteBatch::new();
    for key in ["d", "a", "c", "b"] {
        batch.put(bytes(key), bytes(key));
    }
    apply(store.as_mut(), batch);
    let collect = |from: Bound<&[u8]>, to: Bound<&[u8]>, most: usize| {
        let mut found = Vec::new();
        store
            .range(from, to, &mut |key, _| {
                found.push(String::from_utf8_lossy(key).into_owned());
                found.len() < most
            })
            .expect("the store can be read");
        found.concat()
    };
    assert_eq!(collect(Bound::Unbounded, Bound::Unbounded, 9), "abcd");
    assert_eq!(
        collect(Bound::Included(b"b"), Bound::Excluded(b"d"), 9),
        "bc"
    );
    assert_eq!(
        collect(Bound::Excluded(b"b"), Bound::Included(b"d"), 9),
        "cd"
    );
    assert_eq!(collect(Bound::Unbounded, Bound::Unbounded, 2), "ab");
    assert_eq!(collect(Bound::Included(b"d"), Bound::Included(b"a"), 9), "");
    assert_eq!(collect(Bound::Excluded(b"b"), Bound::Excluded(b"b"), 9), "");
}

fn a_batch_with_a_regressing_offset_changes_nothing(mut store: Box<dyn KeyValueStore>) {
    let partition = TopicPartition::new("t", 0);
    let mut batch = WriteBatch::new();
    batch.put(bytes("a"), bytes("new"));
    batch.set_offset(partition.clone(), 10);
    apply(store.as_mut(), batch);

    let mut batch = WriteBatch::new();
    batch.put(bytes("a"), bytes("old"));
    batch.set_offset(partition.clone(), 9);
    let refused = store.apply(batch).expect_err("the offset regresses");
    assert!(matches!(
        refused,
        StateError::OffsetRegressed {
            applied: 10,
            offset: 9,
            ..
        }
    ));
    assert_eq!(get(store.as_ref(), "a"), Some(bytes("new")));
    assert_eq!(store.applied_offset(&partition), Some(10));
}

fn the_last_write_of_a_key_in_a_batch_wins(mut store: Box<dyn KeyValueStore>) {
    let mut batch = WriteBatch::new();
    batch.put(bytes("a"), bytes("1"));
    batch.delete(bytes("a"));
    batch.put(bytes("a"), bytes("2"));
    batch.put(bytes("b"), bytes("1"));
    batch.delete(bytes("b"));
    apply(store.as_mut(), batch);
    assert_eq!(get(store.as_ref(), "a"), Some(bytes("2")));
    assert_eq!(get(store.as_ref(), "b"), None);
}
