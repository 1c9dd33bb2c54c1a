//! Retention and deleted records: the log start moves, and never past the last stable offset.

use super::*;

/// Segments of one batch each; batch n has the timestamp NOW + n * 100.
fn segmented(changes: PartitionConfig, storage: &MemoryStorage) -> PartitionLog {
    let config = PartitionConfig {
        segment_bytes: 100,
        ..changes
    };
    let setup = setup(Arc::new(storage.clone()), Recovery::Clean);
    PartitionLog::open(PartitionSetup { config, ..setup }).unwrap()
}

fn filled(changes: PartitionConfig, storage: &MemoryStorage) -> PartitionLog {
    let log = segmented(changes, storage);
    for n in 0..6 {
        log.put(batch_at(NOW + n * 100, 1, ProducerStamp::NONE));
    }
    assert_eq!(log.lock().segments.len(), 6);
    log
}

#[test]
fn g4_segments_past_their_time_go_the_active_one_too_and_the_log_begins_at_its_end() {
    let storage = MemoryStorage::new();
    let log = filled(
        PartitionConfig {
            retention_ms: 1_000,
            ..config()
        },
        &storage,
    );
    assert_eq!(log.apply_retention(NOW + 1_000).unwrap(), 0);
    assert_eq!(log.apply_retention(NOW + 1_101).unwrap(), 2);
    assert_eq!(log.offsets().log_start, 2);
    let request = ReadRequest {
        offset: 1,
        max_bytes: 1,
        isolation: Isolation::LogEnd,
        at_least_one: true,
    };
    assert_eq!(log.read(request).unwrap_err().error_code().code(), 1);
    assert_eq!(
        log.apply_retention(NOW + 1_500).unwrap(),
        3,
        "the active one is new enough"
    );
    assert_eq!(log.bases(5, Isolation::LogEnd), [5]);
    assert_eq!(log.apply_retention(NOW + 1_501).unwrap(), 1);
    assert_eq!(
        log.apply_retention(NOW + 1_000_000).unwrap(),
        0,
        "an empty one stays"
    );
    let offsets = log.offsets();
    assert_eq!((offsets.log_start, offsets.log_end), (6, 6));
    assert_eq!(log.max_timestamp().unwrap(), None);
    assert_eq!(log.put(plain(1)).base_offset, 6);
    log.close().unwrap();
    assert_eq!(clean(&storage).offsets().log_start, 6);
}

#[test]
fn the_oldest_segments_go_when_there_is_too_much() {
    let size = plain(1).len() as i64;
    let bytes = PartitionConfig {
        retention_bytes: 3 * size,
        retention_ms: -1,
        ..config()
    };
    let log = filled(bytes, &MemoryStorage::new());
    assert_eq!(log.apply_retention(NOW).unwrap(), 3);
    assert_eq!(log.offsets().log_start, 3);
    assert_eq!(log.apply_retention(NOW).unwrap(), 0);
    assert_eq!(log.size_bytes(), 3 * size as u64);
}

#[test]
fn an_open_transaction_holds_its_segments() {
    let log = segmented(
        PartitionConfig {
            retention_ms: 1_000,
            ..config()
        },
        &MemoryStorage::new(),
    );
    log.put(plain(1));
    log.put(batch(1, transactional(stamp(1, 0, 0))));
    log.put(plain(1));
    log.put(plain(1));
    assert_eq!(log.apply_retention(NOW + 100_000).unwrap(), 1);
    assert_eq!(log.offsets().log_start, 1);
    assert_eq!(log.delete_records_before(4).unwrap(), Some(1));
    log.end_transaction(1, 1, true).unwrap();
    assert_eq!(log.apply_retention(NOW + 100_000).unwrap(), 4);
    assert_eq!(log.offsets().log_start, log.offsets().log_end);
}

#[test]
fn a_compacted_topic_keeps_its_segments() {
    let compact = PartitionConfig {
        retention_ms: 1,
        delete: false,
        compact: true,
        ..config()
    };
    let log = filled(compact, &MemoryStorage::new());
    assert_eq!(log.apply_retention(NOW + 100_000).unwrap(), 0);
}

#[test]
fn deleted_records_stay_deleted_also_in_the_middle_of_a_segment() {
    let storage = MemoryStorage::new();
    let log = clean(&storage);
    for _ in 0..3 {
        log.put(plain(2));
    }
    assert_eq!(log.delete_records_before(3).unwrap(), Some(3));
    assert_eq!(
        log.delete_records_before(1).unwrap(),
        Some(3),
        "it never goes back"
    );
    assert_eq!(
        log.delete_records_before(7).unwrap(),
        None,
        "beyond the high watermark"
    );
    let after_crash = unclean(&storage.fork(), 0);
    let check = |log: &PartitionLog| {
        assert_eq!(log.offsets().log_start, 3);
        assert_eq!(log.bases(3, Isolation::LogEnd), [2, 4]);
        assert_eq!(log.offset_for_timestamp(0).unwrap(), Some((3, NOW + 1)));
    };
    check(&log);
    check(&after_crash);
    log.close().unwrap();
    check(&clean(&storage));
}

#[test]
fn everything_may_be_deleted_and_offsets_go_on() {
    let storage = MemoryStorage::new();
    let log = filled(
        PartitionConfig {
            retention_ms: -1,
            ..config()
        },
        &storage,
    );
    assert_eq!(log.delete_records_before(6).unwrap(), Some(6));
    assert!(log.bases(6, Isolation::LogEnd).is_empty());
    log.close().unwrap();
    let log = clean(&storage);
    assert_eq!(log.offsets().log_start, 6);
    assert_eq!(log.put(plain(1)).base_offset, 6);
}

#[test]
fn silent_producers_are_forgotten() {
    let log = log_with(PartitionConfig {
        producer_id_expiration_ms: 1_000,
        ..config()
    });
    log.put(batch(1, stamp(1, 0, 0)));
    log.apply_retention(NOW + 999).unwrap();
    assert!(log.producer(1).is_some());
    log.apply_retention(NOW + 1_000).unwrap();
    assert!(log.producer(1).is_none());
}

#[test]
fn records_without_a_timestamp_are_kept_as_long_as_others() {
    let config = PartitionConfig {
        segment_bytes: 100,
        retention_ms: 1_000,
        ..config()
    };
    let log = log_with(config);
    for _ in 0..4 {
        log.put(batch_at(-1, 1, ProducerStamp::NONE));
    }
    assert_eq!(log.apply_retention(NOW).unwrap(), 0);
    assert_eq!(log.apply_retention(NOW + 1_000).unwrap(), 0);
    assert_eq!(log.apply_retention(NOW + 1_001).unwrap(), 4);
}

#[test]
fn new_records_without_a_timestamp_keep_the_segment_that_is_written() {
    let log = log_with(PartitionConfig {
        retention_ms: 1_000,
        ..config()
    });
    let put = || log.put(batch_at(-1, 1, ProducerStamp::NONE));
    put();
    assert_eq!(log.apply_retention(NOW).unwrap(), 0);
    put();
    assert_eq!(log.apply_retention(NOW + 1_001).unwrap(), 0, "one is new");
    assert_eq!(log.apply_retention(NOW + 2_001).unwrap(), 0);
    assert_eq!(log.apply_retention(NOW + 2_002).unwrap(), 1);
}

/// Two batches, of which the first is durable; `take` lets retention take both, and the power goes.
fn a_retry_is_known_after_a_cut(changes: &PartitionConfig, take: impl FnOnce(&PartitionLog)) {
    let storage = MemoryStorage::new();
    let setup = |storage: MemoryStorage, recovery| PartitionSetup {
        config: changes.clone(),
        durability: Durability::Interval(std::time::Duration::from_millis(5)),
        ..setup(Arc::new(storage), recovery)
    };
    let log = PartitionLog::open(setup(storage.clone(), Recovery::Clean)).unwrap();
    log.put(batch(2, stamp(9, 0, 0)));
    log.flush().unwrap();
    log.put(batch(2, stamp(9, 0, 2)));
    take(&log);
    let recovery = Recovery::Unclean {
        checkpoint_offset: 2,
    };
    let cut = PartitionLog::open(setup(storage.crash(), recovery)).unwrap();
    let offsets = cut.offsets();
    assert_eq!((offsets.log_start, offsets.log_end), (4, 4));
    assert!(cut.put(batch(2, stamp(9, 0, 2))).duplicate);
    assert_eq!(cut.put(batch(1, stamp(9, 0, 4))).base_offset, 4);
}

#[test]
fn p1_a_retry_is_known_after_a_power_cut_right_after_retention_took_everything() {
    let changes = PartitionConfig {
        retention_ms: 1_000,
        ..config()
    };
    a_retry_is_known_after_a_cut(&changes, |log| {
        assert_eq!(log.apply_retention(NOW + 10_000).unwrap(), 1);
    });
}

/// A new record is behind what goes, in a segment whose own start is not durable yet.
#[test]
fn p1_a_retry_is_known_after_a_power_cut_right_after_retention_took_a_part() {
    let changes = PartitionConfig {
        retention_ms: 1_000,
        segment_bytes: 100,
        ..config()
    };
    a_retry_is_known_after_a_cut(&changes, |log| {
        log.put(batch_at(NOW + 10_000, 1, ProducerStamp::NONE));
        assert_eq!(log.apply_retention(NOW + 10_000).unwrap(), 2);
    });
}

#[test]
fn p1_a_retry_is_known_after_a_power_cut_right_after_its_records_were_deleted() {
    let storage = MemoryStorage::new();
    let log = clean(&storage);
    log.put(batch(2, stamp(9, 0, 0)));
    assert_eq!(log.delete_records_before(2).unwrap(), Some(2));
    let cut = unclean(&storage.crash(), 0);
    let offsets = cut.offsets();
    assert_eq!((offsets.log_start, offsets.log_end), (2, 2));
    assert!(cut.put(batch(2, stamp(9, 0, 0))).duplicate);
    assert_eq!(cut.put(batch(1, stamp(9, 0, 2))).base_offset, 2);
}

#[test]
fn settings_that_change_meanwhile_are_never_mixed() {
    // Neither deletes anything: the first keeps for ever, the second compacts.
    let deletes = PartitionConfig {
        segment_bytes: 100,
        retention_ms: -1,
        ..config()
    };
    let compacts = PartitionConfig {
        compact: true,
        delete: false,
        retention_ms: 0,
        ..deletes.clone()
    };
    let log = filled(deletes.clone(), &MemoryStorage::new());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                log.set_config(compacts.clone());
                log.set_config(deletes.clone());
            }
        });
        let mut gone = 0;
        for _ in 0..100_000 {
            gone += log.apply_retention(NOW + 1_000_000).unwrap();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(gone, 0);
    });
}
