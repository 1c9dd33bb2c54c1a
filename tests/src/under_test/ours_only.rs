//! The tests that do not run on an Apache Kafka, each with its reason: the one table of them.
//!
//! Invariants: each row names a test, or a suite, that exists.
//! Never: a test that only takes long there.

/// A test, or a whole suite, that needs our broker.
#[derive(Debug, Clone, Copy)]
pub struct OursOnly {
    /// The suite: a file, or a folder, of `tests/tests`.
    pub suite: &'static str,
    /// The test within it, with its module; `*` stands for all.
    pub test: &'static str,
    /// What it needs that a Kafka does not have.
    pub reason: &'static str,
}

const fn row(suite: &'static str, test: &'static str, reason: &'static str) -> OursOnly {
    OursOnly {
        suite,
        test,
        reason,
    }
}

const EMBEDDED: &str = "its process has the broker inside";

const FORGETFUL: &str = "needs a broker that forgets producers within a minute from its start on";

/// The table.
pub const OURS_ONLY: &[OursOnly] = &[
    row(
        "pipeline",
        "outages::an_acknowledged_record_survives_a_power_cut",
        "cuts the power of a simulated disk, which only ours has",
    ),
    row(
        "pipeline",
        "programs::the_loop_by_hand_ends_with_every_record_once",
        EMBEDDED,
    ),
    row(
        "pipeline",
        "programs::every_batch_on_disk_says_who_wrote_it_and_in_which_place",
        "reads the data directory of a broker that it closes",
    ),
    row(
        "recovery",
        "outages::a_job_over_tcp_rides_through_restarts_of_its_broker",
        "closes and opens the broker that it holds; the kill series restarts a Kafka",
    ),
    row(
        "recovery",
        "idle::a_job_goes_on_whose_transactional_ids_were_forgotten",
        FORGETFUL,
    ),
    row(
        "recovery",
        "idle::a_forgotten_instance_with_a_successor_is_fenced",
        FORGETFUL,
    ),
    row(
        "recovery",
        "idle::an_idempotent_producer_goes_on_that_was_forgotten",
        FORGETFUL,
    ),
    row(
        "kill",
        "nothing_is_lost_or_doubled_when_the_process_with_the_broker_inside_is_killed",
        EMBEDDED,
    ),
    row(
        "simulation",
        "*",
        "frames, crashes and clock follow from a seed, so all of it runs on the test's own runtime",
    ),
];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::OURS_ONLY;

    /// The source of a suite: a file, or all files of a folder.
    fn source(suite: &str) -> String {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
        let file = tests.join(suite).with_extension("rs");
        let mut source = std::fs::read_to_string(file).unwrap_or_default();
        for entry in std::fs::read_dir(tests.join(suite)).into_iter().flatten() {
            source += &std::fs::read_to_string(entry.unwrap().path()).unwrap();
        }
        source
    }

    #[test]
    fn the_table_names_tests_that_exist() {
        for row in OURS_ONLY {
            let source = source(row.suite);
            assert!(!source.is_empty(), "there is no suite {}", row.suite);
            let name = row.test.rsplit("::").next().unwrap_or_default();
            let found = row.test == "*" || source.contains(&format!("async fn {name}()"));
            assert!(found, "{}: there is no test {}", row.suite, row.test);
        }
    }
}
