//! `orders.enriched` has exactly one record for each audited order, under the order's key and with
//! the content that the join must have.
//!
//! Invariants: what is expected is computed from `orders` and `customers`, with the model's types.
//! Never: compares text; records are compared as what they mean.

use std::collections::BTreeMap;

use bytes::Bytes;
use examples::model::Enriched;

use crate::oracle::Snapshot;

pub(super) fn check(snapshot: &Snapshot) -> Vec<String> {
    let mut found = Vec::new();
    // Key, partition and content, with how often they are expected (and, counted down, seen).
    let mut expected: BTreeMap<(Option<Bytes>, String), i64> = BTreeMap::new();
    for record in &snapshot.orders {
        if let Some((enriched, _)) = snapshot.expected(record) {
            *expected
                .entry((record.key.clone(), text(&enriched)))
                .or_default() += 1;
        }
    }
    for record in &snapshot.enriched {
        let value = record.value.as_deref().unwrap_or_default();
        match serde_json::from_slice::<Enriched>(value) {
            Ok(enriched) => {
                *expected
                    .entry((record.key.clone(), text(&enriched)))
                    .or_default() -= 1;
            }
            Err(error) => found.push(format!("{record:?}: {error}")),
        }
    }
    for ((key, content), count) in expected.iter().filter(|(_, count)| **count != 0) {
        let key = key.as_deref().map(String::from_utf8_lossy);
        let (how_often, what) = (count.abs(), if *count > 0 { "missing" } else { "too much" });
        found.push(format!("{how_often} {what}: key {key:?}, {content}"));
    }
    found
}

fn text(enriched: &Enriched) -> String {
    format!("{enriched:?}")
}
