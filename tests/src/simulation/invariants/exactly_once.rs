//! Every committed input has exactly one record in each output, and the outputs hold nothing else.
//!
//! Invariants: outputs = what the job makes of the input, no more, no less.
//! Never: asks how they came about.

use std::collections::BTreeMap;

use super::super::history::{AUDIT, ENRICHED, History, INPUT};
use super::of_topic;

pub(super) fn check(history: &History) -> Vec<String> {
    let mut violations = Vec::new();
    for topic in [ENRICHED, AUDIT] {
        let mut expected: BTreeMap<String, (String, u32)> = BTreeMap::new();
        for (partition, seen) in of_topic(&history.calm, INPUT) {
            let place = format!("{}:{}", partition.partition, seen.offset);
            let value = if topic == AUDIT {
                place
            } else {
                format!("{}@{place}", seen.value)
            };
            expected.insert(value, (seen.key.clone(), 0));
        }
        for (partition, seen) in of_topic(&history.calm, topic) {
            match expected.get_mut(&seen.value) {
                Some((key, count)) if *key == seen.key => *count += 1,
                Some((key, _)) => violations.push(format!(
                    "{partition} offset {}: {} has key {}, its input has {key}",
                    seen.offset, seen.value, seen.key
                )),
                None => violations.push(format!(
                    "{partition} offset {}: {} has no committed input",
                    seen.offset, seen.value
                )),
            }
        }
        violations.extend(
            expected
                .into_iter()
                .filter(|(_, (_, count))| *count != 1)
                .map(|(value, (_, count))| {
                    format!("{topic}: {value} is there {count} times instead of once")
                }),
        );
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::super::tests::history;
    use super::*;

    #[test]
    fn a_doubled_and_a_missing_output_are_found() {
        assert_eq!(check(&history()), Vec::<String>::new());
        let mut doubled = history();
        let seen = doubled.calm.values_mut().last().expect("outputs");
        let mut again = seen[0].clone();
        again.offset += 10;
        seen.push(again);
        assert_eq!(check(&doubled).len(), 1);
        let mut missing = history();
        missing.calm.values_mut().last().expect("outputs").pop();
        assert_eq!(check(&missing).len(), 1);
    }
}
