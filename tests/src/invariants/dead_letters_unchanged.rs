//! A dead letter has key, value, timestamp and headers of its record, and Kafka's error headers
//! behind them.
//!
//! Invariants: the record is the one that the letter's headers name.
//! Never: judges how often it is there; that is another check.

use std::collections::BTreeMap;

use millstream::client::consumer::ConsumerRecord;

use crate::oracle::{Snapshot, content, header};

pub(super) fn check(snapshot: &Snapshot) -> Vec<String> {
    let orders: BTreeMap<(String, String), &ConsumerRecord> = snapshot
        .orders
        .iter()
        .map(|record| {
            (
                (record.partition.to_string(), record.offset.to_string()),
                record,
            )
        })
        .collect();
    let mut found = Vec::new();
    for letter in &snapshot.dead_letters {
        let named = |name: &str| header(letter, name).unwrap_or_default();
        let source = (
            named("__streams.errors.partition"),
            named("__streams.errors.offset"),
        );
        let Some(order) = orders.get(&source) else {
            continue;
        };
        let own = letter.headers.iter().take(order.headers.iter().count());
        let same = content(letter) == content(order)
            && letter.timestamp == order.timestamp
            && own.eq(order.headers.iter());
        if !same {
            found.push(format!("{letter:?} is not {order:?}"));
        }
        if named("__streams.errors.topic") != "orders" {
            found.push(format!("{letter:?} names another topic"));
        }
    }
    found
}
