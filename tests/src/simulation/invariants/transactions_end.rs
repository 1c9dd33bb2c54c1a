//! Once the faults are over every transaction comes to its end, and nothing holds readers back any
//! more.
//!
//! Invariants: no transactional id is anywhere but Empty or Complete; the job has committed all of
//! its input; last stable offset = high watermark.
//! Never: accepts an end that only a time-out of the run explains.

use super::super::history::History;

pub(super) fn check(history: &History) -> Vec<String> {
    let mut violations = history.incomplete.clone();
    for (partition, end) in &history.ends {
        let committed = history.committed.get(partition).copied().unwrap_or(0);
        if committed < *end {
            violations.push(format!(
                "{partition}: {committed} is committed, the end is {end}"
            ));
        }
    }
    if let Some(last) = history.snapshots.last() {
        for (partition, marks) in &last.watermarks {
            if marks.stable != marks.high {
                violations.push(format!(
                    "{partition}: something is open at the end: {marks:?}"
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
    fn what_stays_open_is_found() {
        assert_eq!(check(&history()), Vec::<String>::new());
        let mut open = history();
        for marks in open.snapshots[0].watermarks.values_mut() {
            marks.stable = 0;
        }
        assert!(!check(&open).is_empty());
        let mut behind = history();
        behind.committed.clear();
        assert!(!check(&behind).is_empty());
    }
}
