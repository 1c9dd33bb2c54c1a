//! What was acknowledged or committed is there, where it was said to be, once; a transaction is
//! there whole or not at all.
//!
//! Invariants: acknowledged ⇒ present at its offset; committed ⇒ every record present; aborted ⇒
//! none; not known ⇒ all or none; nothing twice.
//! Never: minds a record whose delivery failed, as long as it is there at most once.

use super::super::history::{Ended, History, INPUT, Sent};
use super::places;

pub(super) fn check(history: &History) -> Vec<String> {
    let places = places(&history.calm, INPUT);
    let mut violations = Vec::new();
    for (value, found) in &places {
        if found.len() > 1 {
            violations.push(format!("{value} is there {} times: {found:?}", found.len()));
        }
    }
    let found = |value: &str| places.get(value).and_then(|found| found.first()).copied();
    for written in &history.idempotent {
        match &written.sent {
            Sent::Acked(partition, offset) => {
                if found(&written.value) != Some((partition, *offset)) {
                    violations.push(format!(
                        "{} was acknowledged at {partition} offset {offset}, it is at {:?}",
                        written.value,
                        found(&written.value)
                    ));
                }
            }
            Sent::Failed => {}
            Sent::Pending => violations.push(format!("{} was never decided", written.value)),
        }
    }
    for (number, transaction) in history.transactions.iter().enumerate() {
        let present = transaction
            .records
            .iter()
            .filter(|written| found(&written.value).is_some())
            .count();
        let all = transaction.records.len();
        let right = match transaction.ended {
            Ended::Committed => present == all,
            Ended::Aborted => present == 0,
            Ended::Unknown => present == 0 || present == all,
            Ended::Open => false,
        };
        if !right {
            violations.push(format!(
                "transaction {number} ended as {:?}, {present} of its {all} records are there",
                transaction.ended
            ));
        }
        for written in &transaction.records {
            if let (Some(there), Sent::Acked(partition, offset)) =
                (found(&written.value), &written.sent)
                && there != (partition, *offset)
            {
                violations.push(format!(
                    "{} was acknowledged at {partition} offset {offset}, it is at {there:?}",
                    written.value
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
    fn lost_doubled_and_torn_are_found() {
        assert_eq!(check(&history()), Vec::<String>::new());
        let mut lost = history();
        lost.calm.values_mut().next().expect("input").remove(0);
        assert_eq!(check(&lost).len(), 1);
        let mut torn = history();
        torn.transactions[0].ended = Ended::Unknown;
        assert_eq!(check(&torn), Vec::<String>::new(), "whole");
        let last = torn.calm.values_mut().next().expect("input").pop();
        assert!(last.is_some_and(|seen| seen.value.starts_with("t-0-")));
        assert_eq!(check(&torn).len(), 1);
    }
}
