//! A reader of committed records is given exactly the committed records of the log, during the run
//! and after it.
//!
//! Two witnesses: what the producer knows of its own transactions, and the markers in the log
//! itself.
//!
//! Invariants: no value of an aborted transaction, or of a producer that was fenced, was ever given
//! to a reader; what a reader was given = what markers say.
//! Never: uses the clients' filter.

use std::collections::{BTreeMap, BTreeSet};

use super::super::history::{Ended, History, RawBatch, Seen};

pub(super) fn check(history: &History) -> Vec<String> {
    let mut violations = Vec::new();
    let aborted: BTreeSet<&str> = history
        .transactions
        .iter()
        .filter(|transaction| transaction.ended == Ended::Aborted)
        .flat_map(|transaction| {
            transaction
                .records
                .iter()
                .map(|written| written.value.as_str())
        })
        .chain(history.late.iter().map(String::as_str))
        .collect();
    for (reader, reading) in [("live", &history.live), ("calm", &history.calm)] {
        for (partition, seen) in reading {
            for seen in seen
                .iter()
                .filter(|seen| aborted.contains(seen.value.as_str()))
            {
                violations.push(format!(
                    "the {reader} reader was given the aborted {} at {partition} offset {}",
                    seen.value, seen.offset
                ));
            }
        }
    }
    for (partition, batches) in &history.raw {
        let committed = committed(batches);
        for (reader, reading) in [("live", &history.live), ("calm", &history.calm)] {
            let given: Vec<&Seen> = reading.get(partition).into_iter().flatten().collect();
            let differs = given
                .iter()
                .zip(&committed)
                .position(|(given, there)| given != there);
            let at = differs.unwrap_or(given.len().min(committed.len()));
            if at < given.len().max(committed.len()) {
                violations.push(format!(
                    "{partition}: record {at} of the {reader} reader is {:?}, the log's is {:?}",
                    given.get(at),
                    committed.get(at)
                ));
            }
        }
    }
    violations
}

/// The committed records of a log, by its markers.
fn committed(batches: &[RawBatch]) -> Vec<&Seen> {
    let mut open: BTreeMap<i64, Vec<&RawBatch>> = BTreeMap::new();
    let mut kept: BTreeMap<i64, &RawBatch> = BTreeMap::new();
    for batch in batches {
        match batch.marker {
            Some(commits) => {
                let ended = open.remove(&batch.producer_id).unwrap_or_default();
                if commits {
                    kept.extend(ended.into_iter().map(|batch| (batch.base_offset, batch)));
                }
            }
            None if batch.transactional => open.entry(batch.producer_id).or_default().push(batch),
            None => {
                kept.insert(batch.base_offset, batch);
            }
        }
    }
    kept.into_values()
        .flat_map(|batch| &batch.records)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::history;
    use super::*;

    #[test]
    fn an_aborted_record_is_found_by_either_witness() {
        assert_eq!(check(&history()), Vec::<String>::new());
        let mut known = history();
        known.transactions[0].ended = Ended::Aborted;
        assert!(
            check(&known)
                .iter()
                .any(|found| found.contains("the aborted t-0-0"))
        );
        let mut marked = history();
        for batch in marked.raw.values_mut().flatten() {
            batch.marker = batch.marker.map(|_| false);
        }
        assert!(!check(&marked).is_empty());
    }
}
