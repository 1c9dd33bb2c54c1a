//! What has to hold of every history, one invariant a file.
//!
//! Invariants: each says what it found, with topic, partition and offset.
//! Never: looks at anything but the history.

mod aborted_is_invisible;
mod acknowledged_is_present;
mod exactly_once;
mod offsets_and_outputs_together;
mod offsets_rise;
mod order_of_a_key;
mod transactions_end;
mod watermarks;

use std::collections::BTreeMap;

use millstream::TopicPartition;

use super::history::{History, Reading, Seen};

/// Answers what breaks it.
type Invariant = fn(&History) -> Vec<String>;

/// The text of everything that does not hold.
#[must_use]
pub fn check(history: &History) -> Vec<String> {
    let all: [(&str, Invariant); 8] = [
        ("exactly_once", exactly_once::check),
        ("aborted_is_invisible", aborted_is_invisible::check),
        (
            "offsets_and_outputs_together",
            offsets_and_outputs_together::check,
        ),
        ("offsets_rise", offsets_rise::check),
        ("order_of_a_key", order_of_a_key::check),
        ("acknowledged_is_present", acknowledged_is_present::check),
        ("transactions_end", transactions_end::check),
        ("watermarks", watermarks::check),
    ];
    let mut violations: Vec<String> = history
        .mishaps
        .iter()
        .map(|mishap| format!("mishap: {mishap}"))
        .collect();
    if !history.mishaps.is_empty() {
        // What did not finish breaks many things; those that hold at any time are still worth a
        // look.
        let safety = [
            "aborted_is_invisible",
            "offsets_and_outputs_together",
            "offsets_rise",
        ];
        for (name, check) in all.iter().filter(|(name, _)| safety.contains(name)) {
            violations.extend(
                check(history)
                    .into_iter()
                    .map(|found| format!("{name}: {found}")),
            );
        }
        return violations;
    }
    for (name, check) in all {
        violations.extend(
            check(history)
                .into_iter()
                .map(|found| format!("{name}: {found}")),
        );
    }
    violations
}

/// The records of a topic in a reading.
fn of_topic<'reading>(
    reading: &'reading Reading,
    topic: &'reading str,
) -> impl Iterator<Item = (&'reading TopicPartition, &'reading Seen)> {
    reading
        .iter()
        .filter(move |(partition, _)| &*partition.topic == topic)
        .flat_map(|(partition, seen)| seen.iter().map(move |seen| (partition, seen)))
}

/// Partition and offset that an output names as its source.
fn place(value: &str) -> Option<(i32, i64)> {
    let place = value.rsplit('@').next()?;
    let (partition, offset) = place.split_once(':')?;
    Some((partition.parse().ok()?, offset.parse().ok()?))
}

/// Where each value of a topic lies.
fn places<'reading>(
    reading: &'reading Reading,
    topic: &'reading str,
) -> BTreeMap<&'reading str, Vec<(&'reading TopicPartition, i64)>> {
    let mut places: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for (partition, seen) in of_topic(reading, topic) {
        places
            .entry(&seen.value)
            .or_default()
            .push((partition, seen.offset));
    }
    places
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::history::{
        AUDIT, ENRICHED, Ended, INPUT, RawBatch, Sent, Snapshot, Transaction, Watermarks, Written,
    };
    use super::*;

    fn seen(offset: i64, key: &str, value: &str) -> Seen {
        Seen {
            offset,
            key: key.to_owned(),
            value: value.to_owned(),
        }
    }

    fn batch(base_offset: i64, transactional: bool, records: Vec<Seen>) -> RawBatch {
        let last_offset = base_offset + records.len().max(1) as i64 - 1;
        let (producer_id, producer_epoch) = (i64::from(transactional), 0);
        let marker = records.is_empty().then_some(true);
        RawBatch {
            base_offset,
            last_offset,
            producer_id,
            producer_epoch,
            transactional,
            marker,
            records,
        }
    }

    /// The log that such a reading comes from: one plain record, a transaction, its marker.
    fn raw_of(reading: &Reading) -> BTreeMap<TopicPartition, Vec<RawBatch>> {
        reading
            .iter()
            .map(|(partition, seen)| {
                let (first, rest) = (seen[..1].to_vec(), seen[1..].to_vec());
                let batches = vec![
                    batch(0, false, first),
                    batch(1, true, rest),
                    batch(3, true, Vec::new()),
                ];
                (partition.clone(), batches)
            })
            .collect()
    }

    /// A history in which everything holds: one record on its own, a transaction of two, their
    /// outputs.
    pub(super) fn history() -> History {
        let input = TopicPartition::new(INPUT, 0);
        let inputs = vec![
            seen(0, "a", "i-0"),
            seen(1, "a", "t-0-0"),
            seen(2, "b", "t-0-1"),
        ];
        let written = |at: usize| Written {
            key: inputs[at].key.clone(),
            value: inputs[at].value.clone(),
            sent: Sent::Acked(input.clone(), at as i64),
        };
        let audits: Vec<Seen> = inputs
            .iter()
            .map(|i| seen(i.offset, &i.key, &format!("0:{}", i.offset)))
            .collect();
        let enriched: Vec<Seen> = inputs
            .iter()
            .map(|i| seen(i.offset, &i.key, &format!("{}@0:{}", i.value, i.offset)))
            .collect();
        let reading = Reading::from([
            (input.clone(), inputs.clone()),
            (TopicPartition::new(AUDIT, 0), audits.clone()),
            (TopicPartition::new(ENRICHED, 0), enriched.clone()),
        ]);
        let marks = Watermarks {
            start: 0,
            stable: 4,
            high: 4,
        };
        let snapshot = Snapshot {
            at: Duration::from_secs(1),
            before: BTreeMap::from([(input.clone(), 4)]),
            after: BTreeMap::from([(input.clone(), 4)]),
            read: reading
                .iter()
                .map(|(partition, seen)| (partition.clone(), seen.len()))
                .collect(),
            watermarks: reading
                .keys()
                .map(|partition| (partition.clone(), marks))
                .collect(),
        };
        let records = vec![written(1), written(2)];
        History {
            idempotent: vec![written(0)],
            transactions: vec![Transaction {
                records,
                ended: Ended::Committed,
            }],
            raw: raw_of(&reading),
            live: reading.clone(),
            calm: reading,
            snapshots: vec![snapshot],
            committed: BTreeMap::from([(input.clone(), 4)]),
            ends: BTreeMap::from([(input, 4)]),
            ..History::default()
        }
    }

    #[test]
    fn a_part_that_did_not_finish_is_a_violation() {
        assert_eq!(check(&history()), Vec::<String>::new());
        let late = History {
            mishaps: vec!["late".to_owned()],
            ..history()
        };
        assert_eq!(check(&late).len(), 1);
    }
}
