//! A reader is given the offsets of a partition in rising order, each once.
//!
//! Invariants: strictly rising, over reconnects and crashes of the broker too.
//! Never: asks for offsets without gaps; markers and aborted records take some.

use super::super::history::History;

pub(super) fn check(history: &History) -> Vec<String> {
    let mut violations = Vec::new();
    for (reader, reading) in [("live", &history.live), ("calm", &history.calm)] {
        for (partition, seen) in reading {
            for pair in seen.windows(2) {
                if pair[1].offset <= pair[0].offset {
                    violations.push(format!(
                        "the {reader} reader was given {partition} offset {} after {}",
                        pair[1].offset, pair[0].offset
                    ));
                }
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
    fn an_offset_that_comes_again_is_found() {
        assert_eq!(check(&history()), Vec::<String>::new());
        let mut again = history();
        let seen = again.live.values_mut().next().expect("input");
        seen.push(seen[0].clone());
        assert_eq!(check(&again).len(), 1);
    }
}
