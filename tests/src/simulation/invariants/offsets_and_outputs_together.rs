//! At every snapshot: offsets are committed if and only if the outputs of the records below them
//! are visible.
//!
//! A reader waits in front of the first open transaction of a partition, so a committed output may
//! lie behind one: then it is in the log already, at or beyond the last stable offset.
//!
//! Invariants: offset committed first, outputs read after: they are there; outputs read first,
//! offset asked for after: it is committed.
//! Never: compares what was read at different times the other way round.

use std::collections::BTreeSet;

use millstream::TopicPartition;

use super::super::history::{AUDIT, ENRICHED, History, INPUT, Snapshot};
use super::{of_topic, place};

pub(super) fn check(history: &History) -> Vec<String> {
    history
        .snapshots
        .iter()
        .flat_map(|snapshot| check_one(history, snapshot))
        .collect()
}

fn check_one(history: &History, snapshot: &Snapshot) -> Vec<String> {
    let at = snapshot.at;
    let mut violations = Vec::new();
    let read = |topic: &'static str| {
        snapshot
            .read
            .iter()
            .filter(move |(partition, _)| &*partition.topic == topic)
            .flat_map(|(partition, &count)| {
                let seen = history
                    .calm
                    .get(partition)
                    .map_or(&[][..], |seen| seen.as_slice());
                seen.iter().take(count).map(move |seen| (partition, seen))
            })
    };
    for topic in [ENRICHED, AUDIT] {
        let outputs: BTreeSet<(i32, i64)> = read(topic)
            .filter_map(|(_, seen)| place(&seen.value))
            .collect();
        // Behind an open transaction of another worker, by where the output was found in the end.
        let waiting: BTreeSet<(i32, i64)> = of_topic(&history.calm, topic)
            .filter(|(partition, seen)| {
                let marks = snapshot.watermarks.get(*partition);
                marks.is_some_and(|marks| (marks.stable..marks.high).contains(&seen.offset))
            })
            .filter_map(|(_, seen)| place(&seen.value))
            .collect();
        for (partition, seen) in read(INPUT) {
            let committed = snapshot.before.get(partition).copied().unwrap_or(0);
            let place = (partition.partition, seen.offset);
            if seen.offset < committed && !outputs.contains(&place) && !waiting.contains(&place) {
                violations.push(format!(
                    "at {at:?} {partition} is committed up to {committed}, \
                     the output of offset {} is not in {topic}",
                    seen.offset
                ));
            }
        }
        for (partition, offset) in outputs {
            let partition = TopicPartition::new(INPUT, partition);
            let committed = snapshot.after.get(&partition).copied().unwrap_or(0);
            if committed <= offset {
                violations.push(format!(
                    "at {at:?} the output of {partition} offset {offset} is in {topic}, \
                     but only {committed} is committed"
                ));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::tests::history;
    use super::*;

    #[test]
    fn an_offset_without_its_output_and_an_output_without_its_offset_are_found() {
        assert_eq!(check(&history()), Vec::<String>::new());
        let mut early = history();
        early.snapshots[0].after.clear();
        assert!(!check(&early).is_empty());
        let mut late = history();
        for (partition, count) in &mut late.snapshots[0].read {
            *count = if &*partition.topic == INPUT {
                *count
            } else {
                0
            };
        }
        assert!(!check(&late).is_empty());
    }
}
