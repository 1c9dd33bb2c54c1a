//! What a directory of many quiet partitions takes: descriptors, and syncs at a stop and a start.
//!
//! Invariants: one open file a partition, the log that is written; neither a start after a clean
//! stop nor a stop syncs anything for a partition to which nothing happened, or nothing ever.
//! Never: measures time or memory.

use super::counted::Counted;
use super::*;

const PARTITIONS: i32 = 50;

#[test]
fn a_quiet_partition_has_one_file_open_and_costs_a_stop_and_a_start_no_sync() {
    let storage = Counted::default();
    let directory = open(storage.clone());
    let before = storage.open_files();
    create(&directory, "a", PARTITIONS);
    for partition in 0..PARTITIONS {
        append(&directory, "a", partition, 1);
    }
    directory.sync_journal().unwrap();
    directory.checkpoint().unwrap();
    let partitions = PARTITIONS as usize;
    assert_eq!(storage.open_files() - before, partitions);
    directory.close(NOW_MS).unwrap();
    drop(directory);

    for _ in 0..2 {
        storage.take_syncs();
        let directory = open(storage.clone());
        assert!(directory.recovery().was_clean);
        assert_eq!(storage.open_files() - before, partitions);
        directory.checkpoint().unwrap();
        assert_eq!(end(&directory, "a", 0), 1);
        directory.close(NOW_MS).unwrap();
        let syncs = storage.take_syncs();
        assert!(syncs < partitions, "{syncs} syncs");
    }
    // What was not synced again was durable.
    assert_eq!(end(&open(storage.inner.crash()), "a", 7), 1);
}

/// Syncs of a life in which empty partitions are created: checkpoint, stop, start, stop.
fn syncs_of_empty(partitions: i32) -> [usize; 4] {
    let storage = Counted::default();
    let directory = open(storage.clone());
    create(&directory, "a", partitions);
    storage.take_syncs();
    directory.checkpoint().unwrap();
    let checkpoint = storage.take_syncs();
    directory.close(NOW_MS).unwrap();
    let stop = storage.take_syncs();
    drop(directory);
    let directory = open(storage.clone());
    assert!(directory.recovery().was_clean);
    let start = storage.take_syncs();
    directory.close(NOW_MS).unwrap();
    [checkpoint, stop, start, storage.take_syncs()]
}

#[test]
fn the_first_stop_syncs_nothing_for_partitions_that_were_only_created() {
    assert_eq!(syncs_of_empty(5), syncs_of_empty(PARTITIONS * 4));
}

#[test]
fn partitions_that_were_only_created_are_not_synced_after_a_kill_either() {
    let syncs = |partitions| {
        let storage = Counted::default();
        let directory = open(storage.clone());
        create(&directory, "a", partitions);
        append(&directory, "a", 1, 1);
        directory.sync_journal().unwrap();
        let storage = storage.fork();
        let directory = open(storage.clone());
        assert!(!directory.recovery().was_clean);
        assert_eq!(end(&directory, "a", 1), 1);
        storage.take_syncs()
    };
    assert_eq!(syncs(5), syncs(PARTITIONS * 4));
}

#[test]
fn a_stop_syncs_only_the_partitions_that_were_written_since_the_last() {
    let storage = Counted::default();
    let directory = open(storage.clone());
    create(&directory, "a", PARTITIONS);
    for partition in 0..PARTITIONS {
        append(&directory, "a", partition, 1);
    }
    directory.sync_journal().unwrap();
    directory.close(NOW_MS).unwrap();
    drop(directory);
    let mut stops = Vec::new();
    for written in [0, 1, 2] {
        let directory = open(storage.clone());
        for partition in 0..written {
            append(&directory, "a", partition, 2);
        }
        directory.sync_journal().unwrap();
        storage.take_syncs();
        directory.close(NOW_MS).unwrap();
        stops.push(storage.take_syncs());
    }
    let each = stops[2] - stops[1];
    assert!(each <= 5, "{each} syncs a written partition");
    assert!(stops[0] < 12, "{} syncs of an idle stop", stops[0]);
    let again = open(storage.inner.crash());
    assert_eq!((end(&again, "a", 1), end(&again, "a", 40)), (2, 1));
}
