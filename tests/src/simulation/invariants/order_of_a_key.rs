//! Records of one key keep their order: from a producer to the input, and from the input to the
//! outputs.
//!
//! Invariants: numbers of a producer rise along a key; source offsets rise along a key.
//! Never: compares the records of two producers.

use std::collections::BTreeMap;

use super::super::history::{AUDIT, ENRICHED, History, INPUT};
use super::{of_topic, place};

pub(super) fn check(history: &History) -> Vec<String> {
    let mut violations = Vec::new();
    // Where one producer gave up and another went on, the first may still have been sending.
    let replaced = history.counts.contains_key("idempotent producer replaced");
    let mut last: BTreeMap<(&str, char), Vec<u32>> = BTreeMap::new();
    for (partition, seen) in of_topic(&history.calm, INPUT) {
        let mut parts = seen.value.split('-');
        let Some(kind) = parts.next().and_then(|kind| kind.chars().next()) else {
            continue;
        };
        if kind == 'i' && replaced {
            continue;
        }
        let number: Vec<u32> = parts.filter_map(|part| part.parse().ok()).collect();
        let before = last.insert((&seen.key, kind), number.clone());
        if before.as_ref().is_some_and(|before| *before >= number) {
            violations.push(format!(
                "{partition} offset {}: {} of key {} comes after {before:?}",
                seen.offset, seen.value, seen.key
            ));
        }
    }
    for topic in [ENRICHED, AUDIT] {
        let mut last: BTreeMap<&str, (i32, i64)> = BTreeMap::new();
        for (partition, seen) in of_topic(&history.calm, topic) {
            let Some(source) = place(&seen.value) else {
                continue;
            };
            let before = last.insert(&seen.key, source);
            if before.is_some_and(|before| before.0 != source.0 || before.1 >= source.1) {
                violations.push(format!(
                    "{partition} offset {}: the output of {source:?}, key {}, comes after that of {before:?}",
                    seen.offset, seen.key
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
    fn records_of_a_key_in_the_wrong_order_are_found() {
        assert_eq!(check(&history()), Vec::<String>::new());
        let mut swapped = history();
        for seen in swapped.calm.values_mut() {
            for seen in seen.iter_mut() {
                seen.key = "same".to_owned();
            }
            let values: Vec<String> = seen.iter().map(|seen| seen.value.clone()).rev().collect();
            for (seen, value) in seen.iter_mut().zip(values) {
                seen.value = value;
            }
        }
        assert!(!check(&swapped).is_empty());
    }
}
