//! What happens while a checkpoint is under way: appends, and topics that go and come.

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

#[test]
fn a_topic_that_goes_and_comes_again_during_a_checkpoint_has_its_own_records_and_points() {
    let inner = MemoryStorage::new();
    let storage = HookedStorage::new(inner.clone(), Moment::BeforeSync, "a-0");
    let directory = open(storage.clone());
    create(&directory, "a", 2);
    append(&directory, "a", 0, 1);
    append(&directory, "a", 0, 1);
    directory.sync_journal().unwrap();
    let other = directory.clone();
    storage.call_once(move || {
        other.delete_topics(&["a".to_owned()]).unwrap();
        create(&other, "a", 1);
        append(&other, "a", 0, 9);
        other.sync_journal().unwrap();
    });
    directory.checkpoint().unwrap();
    assert!(!directory.poisoned());
    assert_eq!(end(&open(inner.crash()), "a", 0), 1);
    append(&directory, "a", 0, 9);
    directory.sync_journal().unwrap();
    directory.checkpoint().unwrap();
    assert_eq!(end(&open(inner.crash()), "a", 0), 2);
    directory.close(NOW_MS).unwrap();
    assert_eq!(end(&open(inner.crash()), "a", 0), 2);
}
