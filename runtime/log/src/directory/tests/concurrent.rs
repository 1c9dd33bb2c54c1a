//! Appends that happen while a checkpoint is under way.

use super::*;
use crate::storage::hooked::{HookedStorage, Moment};

#[test]
fn appends_during_a_checkpoint_go_on_and_a_power_cut_tears_nothing_between_partitions() {
    let inner = MemoryStorage::new();
    let storage = HookedStorage::new(inner.clone(), Moment::BeforeSync, "a-0");
    let directory = open(storage.clone());
    create(&directory, "a", 2);
    append(&directory, "a", 0, 1);
    directory.sync_journal().unwrap();
    // While a-0 is being synced: more records in a-0, then in a-1, none of them in the journal.
    let appender = directory.clone();
    storage.call_once(move || {
        append(&appender, "a", 0, 2);
        append(&appender, "a", 1, 3);
    });
    directory.checkpoint().unwrap();
    assert_eq!((end(&directory, "a", 0), end(&directory, "a", 1)), (2, 1));
    let cut = open(inner.crash());
    assert_eq!(
        (end(&cut, "a", 0), end(&cut, "a", 1)),
        (1, 0),
        "a-1 was synced after its record, a-0 before: keeping both ends would tear them apart"
    );
}
