//! Write errors: the log holds what it held, or takes itself offline.

use super::*;
use crate::storage::{Fault, OperationKind};
use std::io::ErrorKind;

fn fault(kind: OperationKind, path_contains: &str, error: ErrorKind) -> Fault {
    Fault {
        kind,
        path_contains: path_contains.to_owned(),
        after: 0,
        error,
    }
}

fn storage_error(log: &PartitionLog, batch: Bytes) {
    assert_eq!(log.refused(batch), 56, "KAFKA_STORAGE_ERROR");
}

#[test]
fn x1_a_full_disk_refuses_the_append_and_keeps_everything_else() {
    let storage = FaultyStorage::new();
    let log = faulty(&storage, Recovery::Clean);
    log.put(batch(2, stamp(1, 0, 0)));
    let used = storage.fork().used_bytes();
    storage.set_capacity(Some(used + 20));
    storage_error(&log, batch(2, stamp(1, 0, 2)));
    assert_eq!(
        log.producer(1).unwrap().last_sequence,
        1,
        "the producer did not move"
    );
    storage.set_capacity(None);
    let appended = log.put(batch(2, stamp(1, 0, 2)));
    assert_eq!((appended.base_offset, appended.duplicate), (2, false));
    log.forget_tail();
    assert_eq!(log.bases(0, Isolation::LogEnd), [0, 2]);
    assert_eq!(
        unclean(&storage.fork(), 0).bases(0, Isolation::LogEnd),
        [0, 2]
    );
}

#[test]
fn a_torn_write_leaves_nothing_behind() {
    let storage = FaultyStorage::new();
    let log = faulty(&storage, Recovery::Clean);
    log.put(plain(2));
    storage.inject(fault(OperationKind::Write, ".log", ErrorKind::Other));
    storage_error(&log, plain(2));
    assert_eq!(log.put(plain(2)).base_offset, 2);
    log.forget_tail();
    assert_eq!(log.bases(0, Isolation::LogEnd), [0, 2]);
}

#[test]
fn b35_a_log_that_cannot_be_cut_back_refuses_appends_and_still_reads() {
    let storage = FaultyStorage::new();
    let log = faulty(&storage, Recovery::Clean);
    log.put(plain(2));
    storage.inject(fault(OperationKind::Write, ".log", ErrorKind::Other));
    storage.inject(fault(OperationKind::SetLength, ".log", ErrorKind::Other));
    storage_error(&log, plain(2));
    storage_error(&log, plain(2));
    log.forget_tail();
    assert_eq!(log.bases(0, Isolation::LogEnd), [0]);
    let reopened = unclean(&storage.fork(), 2);
    assert_eq!(reopened.bases(0, Isolation::LogEnd), [0]);
    assert_eq!(reopened.put(plain(1)).base_offset, 2);
}

#[test]
fn b4_l3_a_failing_index_never_makes_an_offset_twice() {
    let storage = FaultyStorage::new();
    let log = faulty(&storage, Recovery::Clean);
    for kind in [".index", ".timeindex", ".txnindex"] {
        storage.inject(fault(OperationKind::Write, kind, ErrorKind::Other));
    }
    log.put(batch(1, transactional(stamp(1, 0, 0))));
    for _ in 0..5 {
        log.put(plain(3));
    }
    log.end_transaction(1, 1, false).unwrap();
    let end = log.offsets().log_end;
    for _ in 0..3 {
        log.flush().expect_err("an index cannot be written");
    }
    let reopened = unclean(&storage.fork(), 0);
    assert_eq!(reopened.offsets().log_end, end);
    let aborted = reopened.read_from(0, Isolation::LastStable).aborted;
    assert_eq!(
        aborted,
        [AbortedTransaction {
            producer_id: 1,
            first_offset: 0
        }],
        "rebuilt"
    );
    assert_eq!(log.flush().unwrap(), end, "the next flush writes them");
    log.put(plain(1));
}

#[test]
fn a_failing_roll_leaves_the_old_segment_in_use() {
    let storage = FaultyStorage::new();
    let small = PartitionConfig {
        segment_bytes: 300,
        ..config()
    };
    let setup = setup(Arc::new(storage.clone()), Recovery::Clean);
    let log = PartitionLog::open(PartitionSetup {
        config: small,
        ..setup
    })
    .unwrap();
    log.put(plain(5));
    log.put(plain(5));
    storage.inject(fault(OperationKind::CreateFile, "10.log", ErrorKind::Other));
    storage_error(&log, plain(5));
    assert_eq!(log.bases(0, Isolation::LogEnd), [0, 5]);
    assert_eq!(log.put(plain(5)).base_offset, 10, "the next attempt rolls");
    log.forget_tail();
    assert_eq!(log.bases(0, Isolation::LogEnd), [0, 5, 10]);
}

#[test]
fn l2_a_failed_sync_is_final() {
    let storage = FaultyStorage::new();
    let log = faulty(&storage, Recovery::Clean);
    log.put(plain(1));
    storage.inject(fault(OperationKind::SyncFile, ".log", ErrorKind::Other));
    log.flush().expect_err("the sync failed");
    storage_error(&log, plain(1));
    log.flush().expect_err("it is not tried again");
    assert_eq!(log.bases(0, Isolation::LogEnd), [0], "reading goes on");
}

#[test]
fn a_closed_log_refuses_appends() {
    let log = clean(&MemoryStorage::new());
    log.put(plain(1));
    assert_eq!(log.close().unwrap(), 1);
    storage_error(&log, plain(1));
}
