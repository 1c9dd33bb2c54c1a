//! Start ≤ last stable offset ≤ high watermark, and none of them ever goes back, over crashes of
//! the broker too.
//!
//! Invariants: as above.
//! Never: compares offsets that were asked for in the wrong order.

use super::super::history::History;

pub(super) fn check(history: &History) -> Vec<String> {
    let mut violations = Vec::new();
    for snapshot in &history.snapshots {
        for (partition, marks) in &snapshot.watermarks {
            if !(0 <= marks.start && marks.start <= marks.stable && marks.stable <= marks.high) {
                violations.push(format!("at {:?} {partition} has {marks:?}", snapshot.at));
            }
        }
    }
    for pair in history.snapshots.windows(2) {
        for (partition, before) in &pair[0].watermarks {
            let Some(after) = pair[1].watermarks.get(partition) else {
                continue;
            };
            if after.start < before.start
                || after.stable < before.stable
                || after.high < before.high
            {
                violations.push(format!(
                    "{partition} went back from {before:?} at {:?} to {after:?} at {:?}",
                    pair[0].at, pair[1].at
                ));
            }
        }
        for (partition, before) in &pair[0].after {
            let after = pair[1].before.get(partition).copied().unwrap_or(-1);
            if after < *before {
                violations.push(format!(
                    "the committed offset of {partition} went back from {before} to {after} before {:?}",
                    pair[1].at
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
    fn a_watermark_that_goes_back_is_found() {
        assert_eq!(check(&history()), Vec::<String>::new());
        let mut back = history();
        let mut earlier = back.snapshots[0].clone();
        for marks in earlier.watermarks.values_mut() {
            marks.high += 1;
        }
        back.snapshots.insert(0, earlier);
        assert!(!check(&back).is_empty());
    }
}
