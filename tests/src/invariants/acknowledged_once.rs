//! Every record that the feeder got acknowledged is in `orders` exactly once, where the
//! acknowledgement says; no record is there twice.
//!
//! Invariants: records are told apart by the number in their header.
//! Never: demands a record whose delivery failed; it may be there once, or not.

use std::collections::BTreeMap;

use crate::feeder::{Fed, NUMBER_HEADER, order};
use crate::oracle::{Snapshot, header};

pub(super) fn check(snapshot: &Snapshot, fed: &Fed) -> Vec<String> {
    let mut found = Vec::new();
    let mut places: BTreeMap<u64, Vec<(i32, i64)>> = BTreeMap::new();
    for record in &snapshot.orders {
        let place = (record.partition, record.offset);
        let number = header(record, NUMBER_HEADER).and_then(|text| text.parse::<u64>().ok());
        let Some(number) = number.filter(|number| *number < fed.sent) else {
            found.push(format!("{place:?} holds what nobody sent: {record:?}"));
            continue;
        };
        places.entry(number).or_default().push(place);
        let sent = order(number);
        if (sent.key, sent.value) != (record.key.clone(), record.value.clone()) {
            found.push(format!(
                "record {number} at {place:?} is not what was sent: {record:?}"
            ));
        }
    }
    for (number, places) in places.iter().filter(|(_, places)| places.len() > 1) {
        found.push(format!(
            "record {number} is there {} times: {places:?}",
            places.len()
        ));
    }
    for (number, partition, offset) in &fed.acknowledged {
        let at = places.get(number).map(Vec::as_slice).unwrap_or_default();
        if at != [(*partition, *offset)] {
            found.push(format!(
                "record {number}: acknowledged at {partition}/{offset}, is at {at:?}"
            ));
        }
    }
    for (number, error) in &fed.failed {
        found.push(format!("record {number} was not delivered: {error}"));
    }
    found
}
