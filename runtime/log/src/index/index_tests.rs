//! Tests of the index files: Kafka's bytes, look-ups, damage.

use super::offset::{OffsetEntry, position_for};
use super::time::{TimeEntry, offset_before};
use super::transaction::{AbortedEntry, collect};
use super::*;
use crate::storage::MemoryStorage;

fn bytes_of(storage: &MemoryStorage, path: &str) -> Vec<u8> {
    read_all(
        storage
            .open(Path::new(path), OpenMode::Read)
            .unwrap()
            .as_ref(),
    )
    .unwrap()
}

fn offsets(entries: &[(i32, i32)]) -> Vec<OffsetEntry> {
    entries
        .iter()
        .map(|(relative_offset, position)| OffsetEntry {
            relative_offset: *relative_offset,
            position: *position,
        })
        .collect()
}

#[test]
fn entries_have_the_bytes_that_kafka_writes() {
    let storage = MemoryStorage::new();
    let mut index = Index::create(PathBuf::from("i"));
    index.push(OffsetEntry {
        relative_offset: 1,
        position: 256,
    });
    index.write(&storage).unwrap();
    assert_eq!(bytes_of(&storage, "i"), [0, 0, 0, 1, 0, 0, 1, 0]);
    let mut bytes = Vec::new();
    TimeEntry {
        timestamp: 258,
        relative_offset: 3,
    }
    .encode(&mut bytes);
    assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3]);
    let aborted = AbortedEntry {
        producer_id: 1,
        first_offset: 2,
        last_offset: 3,
        last_stable_offset: 4,
    };
    bytes.clear();
    aborted.encode(&mut bytes);
    assert_eq!(bytes.len(), 34);
    assert_eq!(bytes[..10], [0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(bytes[33], 4);
    assert_eq!(AbortedEntry::decode(&bytes), Some(aborted));
}

#[test]
fn written_entries_are_read_back_and_added_to() {
    let storage = MemoryStorage::new();
    let mut index = Index::create(PathBuf::from("i"));
    for entry in offsets(&[(1, 10), (5, 50)]) {
        index.push(entry);
    }
    index.write(&storage).unwrap();
    index.push(OffsetEntry {
        relative_offset: 7,
        position: 70,
    });
    index.write(&storage).unwrap();
    let mut again: Index<OffsetEntry> = Index::open(PathBuf::from("i"));
    assert!(again.is_plausible(&storage).unwrap());
    assert_eq!(
        again.entries(&storage).unwrap(),
        &offsets(&[(1, 10), (5, 50), (7, 70)])
    );
    again
        .truncate(&storage, |entry| entry.relative_offset < 5)
        .unwrap();
    again.push(OffsetEntry {
        relative_offset: 9,
        position: 90,
    });
    again.write(&storage).unwrap();
    let mut third: Index<OffsetEntry> = Index::open(PathBuf::from("i"));
    assert_eq!(
        third.entries(&storage).unwrap(),
        &offsets(&[(1, 10), (9, 90)])
    );
}

#[test]
fn entries_that_do_not_follow_are_left_out() {
    let storage = MemoryStorage::new();
    let mut bytes = Vec::new();
    for entry in offsets(&[(1, 10), (5, 50), (4, 60), (9, 90)]) {
        entry.encode(&mut bytes);
    }
    let file = storage.open(Path::new("i"), OpenMode::Write).unwrap();
    file.write_at(&[&bytes, &[1, 2, 3]], 0).unwrap();
    let mut index: Index<OffsetEntry> = Index::open(PathBuf::from("i"));
    assert!(!index.is_plausible(&storage).unwrap(), "35 bytes");
    assert_eq!(
        index.entries(&storage).unwrap(),
        &offsets(&[(1, 10), (5, 50)])
    );
    index.push(OffsetEntry {
        relative_offset: 5,
        position: 99,
    });
    assert_eq!(index.entries(&storage).unwrap().len(), 2);
}

#[test]
fn an_offset_is_looked_up_at_the_last_batch_that_ends_at_or_before_it() {
    let entries = offsets(&[(4, 0), (9, 100), (14, 200)]);
    assert_eq!(position_for(&entries, 3), 0);
    assert_eq!(position_for(&entries, 8), 0);
    assert_eq!(position_for(&entries, 9), 100);
    assert_eq!(position_for(&entries, 100), 200);
    assert_eq!(position_for(&[], 5), 0);
}

#[test]
fn a_timestamp_is_looked_up_behind_everything_older() {
    let entry = |timestamp, relative_offset| TimeEntry {
        timestamp,
        relative_offset,
    };
    let entries = [entry(10, 3), entry(20, 8)];
    assert_eq!(offset_before(&entries, 10), 0);
    assert_eq!(offset_before(&entries, 11), 3);
    assert_eq!(offset_before(&entries, 20), 3);
    assert_eq!(offset_before(&entries, 21), 8);
}

#[test]
fn aborted_transactions_are_collected_until_the_last_stable_offset_passes() {
    let entry = |first_offset, last_offset, last_stable_offset| AbortedEntry {
        producer_id: 1,
        first_offset,
        last_offset,
        last_stable_offset,
    };
    let entries = [entry(0, 10, 5), entry(5, 20, 21), entry(30, 40, 41)];
    let mut found = Vec::new();
    assert!(collect(&entries, 11, 15, &mut found));
    assert_eq!(
        found,
        [entries[1]],
        "the first ended before, the third begins after"
    );
    found.clear();
    assert!(!collect(&entries, 0, 100, &mut found));
    assert_eq!(found.len(), 3);
    found.clear();
    assert!(collect(&entries, 0, 4, &mut found));
    assert_eq!(found, [entries[0]]);
}
