//! Transactions on a partition: markers, the last stable offset, the list of aborted ones.

use super::*;

fn aborted(log: &PartitionLog, offset: i64) -> Vec<(i64, i64)> {
    let result = log.read_from(offset, Isolation::LastStable);
    result
        .aborted
        .iter()
        .map(|entry| (entry.producer_id, entry.first_offset))
        .collect()
}

fn code(result: Result<Appended, AppendError>) -> i16 {
    result.unwrap_err().error_code().code()
}

#[test]
fn the_last_stable_offset_waits_for_the_oldest_open_transaction() {
    let log = clean(&MemoryStorage::new());
    log.put(plain(2));
    log.put(batch(1, transactional(stamp(1, 0, 0))));
    log.put(batch(1, transactional(stamp(2, 0, 0))));
    assert_eq!(log.stable(), 2);
    assert_eq!(log.bases(0, Isolation::LastStable), [0]);
    assert_eq!(log.bases(0, Isolation::HighWatermark), [0, 2, 3]);
    log.end_transaction(2, 1, true).unwrap();
    assert_eq!(log.stable(), 2);
    log.end_transaction(1, 1, true).unwrap();
    assert_eq!(log.stable(), 6);
    assert_eq!(log.bases(0, Isolation::LastStable), [0, 2, 3, 4, 5]);
    assert!(aborted(&log, 0).is_empty());
    assert!(log.open_transactions().is_empty());
}

#[test]
fn open_transactions_and_producers_are_listed() {
    let log = clean(&MemoryStorage::new());
    log.put(batch(3, transactional(stamp(4, 2, 0))));
    let open = log.open_transactions();
    let last_timestamp = NOW + 2;
    assert_eq!(
        open,
        [OpenTransaction {
            producer_id: 4,
            producer_epoch: 2,
            first_offset: 0,
            last_timestamp
        }]
    );
    assert!(log.has_open_transaction(4) && !log.has_open_transaction(5));
    let summary = log.producer(4).unwrap();
    assert_eq!(
        (
            summary.last_sequence,
            summary.current_transaction_start_offset
        ),
        (2, 0)
    );
    log.end_from(4, 3, false, 8).unwrap();
    let summary = log.producers()[0];
    assert_eq!((summary.producer_epoch, summary.coordinator_epoch), (3, 8));
    assert_eq!(
        (
            summary.last_sequence,
            summary.current_transaction_start_offset
        ),
        (-1, -1)
    );
}

#[test]
fn aborted_transactions_are_listed_for_what_was_read() {
    let storage = MemoryStorage::new();
    let log = clean(&storage);
    log.put(batch(1, transactional(stamp(1, 0, 0)))); // 0
    log.put(batch(1, transactional(stamp(2, 0, 0)))); // 1
    log.end_transaction(1, 1, false).unwrap(); // 2
    log.put(plain(1)); // 3
    log.end_transaction(2, 1, false).unwrap(); // 4
    log.put(batch(1, transactional(stamp(3, 0, 0)))); // 5
    log.end_transaction(3, 1, true).unwrap(); // 6
    let check = |log: &PartitionLog| {
        assert_eq!(aborted(log, 0), [(1, 0), (2, 1)]);
        assert_eq!(aborted(log, 3), [(2, 1)], "the first ended before offset 3");
        assert!(aborted(log, 5).is_empty());
        let request = ReadRequest {
            offset: 0,
            max_bytes: 1,
            isolation: Isolation::LastStable,
            at_least_one: true,
        };
        let one = log.read(request).unwrap();
        assert_eq!(parsed(&one).len(), 1);
        assert_eq!(
            one.aborted.len(),
            1,
            "the second begins behind what was read"
        );
        assert!(
            log.read_from(0, Isolation::HighWatermark)
                .aborted
                .is_empty()
        );
    };
    check(&log);
    log.forget_tail();
    check(&log);
    check(&unclean(&storage.fork(), 0));
    log.close().unwrap();
    assert_eq!(
        content(&storage, "orders-0/00000000000000000000.txnindex").len(),
        2 * 34
    );
    check(&clean(&storage));
}

#[test]
fn b52_an_empty_aborted_transaction_is_not_listed() {
    let log = clean(&MemoryStorage::new());
    log.end_transaction(1, 1, false).unwrap();
    log.put(plain(1));
    assert!(aborted(&log, 0).is_empty());
    assert_eq!(log.stable(), 2);
}

#[test]
fn aborted_transactions_are_found_across_segments() {
    let log = log_with(PartitionConfig {
        segment_bytes: 100,
        ..config()
    });
    log.put(batch(1, transactional(stamp(1, 0, 0))));
    log.put(batch(1, transactional(stamp(1, 0, 1))));
    log.put(plain(1));
    log.end_transaction(1, 1, false).unwrap();
    assert!(log.lock().segments.len() > 2);
    for offset in 0..4 {
        assert_eq!(aborted(&log, offset), [(1, 0)], "from {offset}");
    }
}

#[test]
fn t6_a_late_batch_of_an_ended_transaction_is_fenced() {
    let log = clean(&MemoryStorage::new());
    log.put(batch(1, transactional(stamp(1, 0, 0))));
    log.end_transaction(1, 1, false).unwrap();
    assert_eq!(
        log.refused(batch(1, transactional(stamp(1, 0, 0)))),
        47,
        "a retry"
    );
    assert_eq!(
        log.refused(batch(1, transactional(stamp(1, 0, 1)))),
        47,
        "a new batch"
    );
    assert_eq!(log.stable(), log.offsets().log_end);
}

#[test]
fn t7_a_repeated_marker_is_accepted_unless_a_transaction_is_open() {
    let log = clean(&MemoryStorage::new());
    log.put(batch(1, transactional(stamp(1, 0, 0))));
    log.end_transaction(1, 1, true).unwrap();
    log.end_transaction(1, 1, true).expect("nothing is open");
    log.put(batch(1, transactional(stamp(1, 1, 0))));
    assert_eq!(code(log.end_transaction(1, 1, true)), 47);
    assert!(
        log.has_open_transaction(1),
        "the next transaction is untouched"
    );
    assert_eq!(code(log.end_transaction(1, 0, true)), 47);
}

#[test]
fn t8_a_marker_of_an_old_coordinator_is_fenced() {
    let log = clean(&MemoryStorage::new());
    log.put(batch(1, transactional(stamp(1, 0, 0))));
    log.end_from(1, 1, true, 5).unwrap();
    log.put(batch(1, transactional(stamp(1, 1, 0))));
    assert_eq!(code(log.end_from(1, 2, true, 4)), 52);
    log.end_from(1, 2, true, 5).unwrap();
}

#[test]
fn t11_a_plain_batch_inside_the_producers_own_transaction_is_refused() {
    let log = clean(&MemoryStorage::new());
    log.put(batch(1, transactional(stamp(1, 0, 0))));
    assert_eq!(log.refused(batch(1, stamp(1, 0, 1))), 48);
    log.put(batch(1, transactional(stamp(1, 0, 1))));
}

#[test]
fn markers_of_version_1_keep_the_epoch() {
    let log = clean(&MemoryStorage::new());
    log.put(batch(1, transactional(stamp(1, 0, 0))));
    let origin = AppendOrigin::Marker {
        coordinator_epoch: 0,
        transaction_version: 0,
    };
    let marker = control_batch(ControlMarker::new(true, 0), 1, 0, NOW);
    log.append(marker, origin, NOW).unwrap();
    assert_eq!(log.stable(), 2);
    log.put(batch(1, transactional(stamp(1, 0, 1))));
}

#[test]
fn only_markers_come_with_a_markers_origin() {
    let log = clean(&MemoryStorage::new());
    let origin = AppendOrigin::Marker {
        coordinator_epoch: 0,
        transaction_version: 2,
    };
    assert_eq!(code(log.append(plain(1), origin, NOW)), 87);
    let marker = control_batch(ControlMarker::new(true, 3), 1, 0, NOW);
    assert_eq!(
        code(log.append(marker.clone(), origin, NOW)),
        87,
        "another coordinator epoch"
    );
    assert_eq!(code(log.append(marker, AppendOrigin::Coordinator, NOW)), 87);
}
