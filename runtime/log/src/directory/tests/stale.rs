//! Logs that somebody still holds when their topic is deleted, or their directory closed: by then
//! their names may be those of a later topic.

use super::*;

/// A topic of small segments with these many records, all durable.
fn filled(directory: &LogDirectory, records: u8) -> Arc<PartitionLog> {
    let configs = BTreeMap::from([("segment.bytes".to_owned(), "200".to_owned())]);
    let topic = directory.create_topic("a", 1, configs).unwrap();
    for tag in 0..records {
        append(directory, "a", 0, tag);
    }
    directory.sync_journal().unwrap();
    topic.partitions[0].clone()
}

/// All records of a topic that was opened again.
fn found(storage: MemoryStorage) -> (i64, i64) {
    let offsets = open(storage).partition("a", 0).unwrap().offsets();
    (offsets.log_start, offsets.log_end)
}

#[test]
fn retention_of_a_deleted_topic_leaves_its_successor_alone() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    let stale = filled(&directory, 10);
    directory.delete_topic("a").unwrap();
    let successor = filled(&directory, 5);
    directory.checkpoint().unwrap();
    let far = NOW_MS + 30 * 86_400_000;
    assert!(matches!(stale.apply_retention(far), Err(LogError::Closed)));
    assert_eq!(successor.offsets().log_start, 0);
    assert_eq!(found(storage.crash()), (0, 5));
    directory.close(NOW_MS).unwrap();
    assert_eq!(found(storage), (0, 5));
}

#[test]
fn records_deleted_through_a_deleted_topic_are_not_those_of_its_successor() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    let stale = filled(&directory, 10);
    directory.delete_topic("a").unwrap();
    filled(&directory, 5);
    let deleted = stale.delete_records_before(8);
    assert!(matches!(deleted, Err(LogError::Closed)));
    assert_eq!(found(storage.crash()), (0, 5));
}

#[test]
fn a_reader_of_a_deleted_topic_reads_nothing_of_its_successor() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    filled(&directory, 10);
    directory.close(NOW_MS).unwrap();
    // Opened again, indexes are read when they are first used.
    let directory = open(storage);
    let stale = directory.partition("a", 0).unwrap();
    directory.delete_topic("a").unwrap();
    filled(&directory, 5);
    let request = ReadRequest {
        offset: 3,
        max_bytes: 1000,
        isolation: Isolation::LastStable,
        at_least_one: true,
    };
    let refused = stale.read(request).unwrap_err();
    assert_eq!(refused.error_code(), ErrorCode::KAFKA_STORAGE_ERROR);
    assert!(stale.offset_for_timestamp(0).is_err());
    assert!(stale.max_timestamp().is_err());
}

#[test]
fn retention_stops_with_the_directory_whose_lock_is_given_back() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    let stale = filled(&directory, 10);
    directory.close(NOW_MS).unwrap();
    let far = NOW_MS + 30 * 86_400_000;
    assert!(matches!(stale.apply_retention(far), Err(LogError::Closed)));
    assert_eq!(found(storage), (0, 10));
}
