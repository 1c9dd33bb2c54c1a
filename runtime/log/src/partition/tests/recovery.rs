//! Opening after a clean stop, a crash, damage; replay and truncation.

use super::*;
use crate::storage::{OpenMode, Unsynced};

/// Appends of every kind; returns the log end.
fn fill(log: &PartitionLog) -> i64 {
    for round in 0..4 {
        log.put(batch(2, stamp(1, 0, round * 2)));
        let epoch = round as i16;
        log.put(batch(1, transactional(stamp(2, epoch, 0))));
        log.put(plain(3));
        log.end_transaction(2, epoch + 1, round % 2 == 0).unwrap();
    }
    log.put(batch(1, transactional(stamp(3, 0, 0))));
    log.offsets().log_end
}

/// A log that is still open, filled like the others: a closed one is not read.
fn open_and_filled() -> PartitionLog {
    let log = clean(&MemoryStorage::new());
    fill(&log);
    log
}

fn assert_same(a: &PartitionLog, b: &PartitionLog) {
    assert_eq!(a.offsets(), b.offsets());
    assert!(a.producer_state() == b.producer_state());
    // Reads of files end with a segment, reads of the tail do not.
    a.forget_tail();
    b.forget_tail();
    for isolation in [Isolation::LogEnd, Isolation::LastStable] {
        assert_eq!(a.bases(0, isolation), b.bases(0, isolation));
    }
    for offset in 0..a.offsets().log_end {
        let (one, other) = (
            a.read_from(offset, Isolation::LastStable),
            b.read_from(offset, Isolation::LastStable),
        );
        assert_eq!(one.aborted, other.aborted, "from {offset}");
    }
}

#[test]
fn clean_crashed_and_running_logs_are_the_same() {
    let storage = MemoryStorage::new();
    let log = clean(&storage);
    fill(&log);
    assert_same(&log, &unclean(&storage.fork(), 0));
    log.flush().unwrap();
    let end = log.offsets().log_end;
    let after_power_cut = storage.crash_with(Unsynced::Lost);
    assert_same(&log, &unclean(&after_power_cut, end));
    log.close().unwrap();
    let log = open_and_filled();
    assert_same(&log, &clean(&storage.crash_with(Unsynced::Lost)));
    assert_same(&log, &unclean(&storage.fork(), end));
}

#[test]
fn what_a_killed_process_left_unsynced_is_synced_by_the_next_one() {
    let storage = MemoryStorage::new();
    clean(&storage).put(plain(2));
    let log = unclean(&storage, 0);
    assert_eq!(log.flush().unwrap(), 2);
    let after_power_cut = storage.crash_with(Unsynced::Lost);
    assert_eq!(
        unclean(&after_power_cut, 2).bases(0, Isolation::LogEnd),
        [0]
    );
}

#[test]
fn segments_in_the_middle_are_not_read_at_a_clean_start() {
    let storage = MemoryStorage::new();
    let log = clean(&storage);
    fill(&log);
    log.close().unwrap();
    flip(&storage, FIRST_LOG, 70);
    let opened = clean(&storage);
    assert_eq!(opened.offsets(), log.offsets());
    assert!(
        opened.producer_state() == log.producer_state(),
        "from the snapshot"
    );
}

#[test]
fn l1_a_torn_tail_is_cut_and_appending_goes_on() {
    let storage = MemoryStorage::new();
    let log = clean(&storage);
    log.put(batch(2, stamp(1, 0, 0)));
    let kept = storage
        .open(Path::new(FIRST_LOG), OpenMode::Read)
        .unwrap()
        .len()
        .unwrap();
    log.put(batch(2, stamp(1, 0, 2)));
    let full = storage
        .open(Path::new(FIRST_LOG), OpenMode::Read)
        .unwrap()
        .len()
        .unwrap();
    for cut in kept..full {
        let torn = storage.fork();
        torn.open(Path::new(FIRST_LOG), OpenMode::Write)
            .unwrap()
            .set_len(cut)
            .unwrap();
        let log = unclean(&torn, 2);
        assert_eq!(log.offsets().log_end, 2, "cut at {cut}");
        assert_eq!(content(&torn, FIRST_LOG).len() as u64, kept);
        assert_eq!(
            log.refused(batch(1, stamp(1, 0, 4))),
            45,
            "the state was cut as well"
        );
        assert_eq!(log.put(batch(2, stamp(1, 0, 2))).base_offset, 2);
    }
}

#[test]
fn zeros_behind_the_last_batch_are_cut() {
    let storage = MemoryStorage::new();
    let log = clean(&storage);
    log.put(plain(2));
    let size = content(&storage, FIRST_LOG).len();
    let file = storage.open(Path::new(FIRST_LOG), OpenMode::Write).unwrap();
    file.set_len(size as u64 + 5_000).unwrap();
    assert_eq!(unclean(&storage, 2).offsets().log_end, 2);
    assert_eq!(content(&storage, FIRST_LOG).len(), size);
}

#[test]
fn damage_below_the_checkpoint_refuses_to_open_and_names_file_and_position() {
    let storage = MemoryStorage::new();
    let log = clean(&storage);
    let size = plain(2).len() as u64;
    for _ in 0..3 {
        log.put(plain(2));
    }
    flip(&storage, FIRST_LOG, size + 70);
    let open = |checkpoint_offset| {
        let recovery = Recovery::Unclean { checkpoint_offset };
        PartitionLog::open(setup(Arc::new(storage.fork()), recovery))
    };
    let message = open(4).unwrap_err().to_string();
    assert!(message.contains(FIRST_LOG), "{message}");
    assert!(message.contains(&format!("position {size}")), "{message}");
    open(3).expect_err("the damaged batch holds offset 2");
    assert_eq!(
        open(2).unwrap().offsets().log_end,
        2,
        "beyond the checkpoint it is cut"
    );
    let short = MemoryStorage::new();
    let recovery = Recovery::Unclean {
        checkpoint_offset: 5,
    };
    PartitionLog::open(setup(Arc::new(short), recovery)).expect_err("durable records are missing");
}

#[test]
fn a_missing_segment_ends_the_log_before_it() {
    let storage = MemoryStorage::new();
    let small = || PartitionConfig {
        segment_bytes: 100,
        ..config()
    };
    let open = |storage: &MemoryStorage, recovery| {
        let setup = setup(Arc::new(storage.clone()), recovery);
        PartitionLog::open(PartitionSetup {
            config: small(),
            ..setup
        })
    };
    let log = open(&storage, Recovery::Clean).unwrap();
    for _ in 0..3 {
        log.put(plain(1));
    }
    storage
        .remove_file(Path::new("orders-0/00000000000000000001.log"))
        .unwrap();
    open(
        &storage.fork(),
        Recovery::Unclean {
            checkpoint_offset: 3,
        },
    )
    .unwrap_err();
    let log = open(
        &storage,
        Recovery::Unclean {
            checkpoint_offset: 1,
        },
    )
    .unwrap();
    assert_eq!(log.offsets().log_end, 1);
    assert_eq!(log.put(plain(1)).base_offset, 1);
    assert_eq!(log.bases(0, Isolation::LogEnd), [0, 1]);
}

#[test]
fn lost_or_damaged_indexes_are_rebuilt() {
    let storage = MemoryStorage::new();
    let log = clean(&storage);
    fill(&log);
    log.close().unwrap();
    let log = open_and_filled();
    let names = ["index", "timeindex", "txnindex"];
    let path = |name: &str| format!("orders-0/00000000000000000000.{name}");
    for name in names {
        let damaged = storage.fork();
        let before = content(&damaged, &path(name));
        assert!(!before.is_empty(), "{name}");
        let file = damaged
            .open(Path::new(&path(name)), OpenMode::Write)
            .unwrap();
        file.set_len(before.len() as u64 - 1).unwrap();
        let opened = clean(&damaged);
        assert_same(&log, &opened);
        opened.close().unwrap();
        assert_eq!(content(&damaged, &path(name)), before, "{name}");
    }
    let lost = storage.fork();
    lost.remove_file(Path::new(&path("index"))).unwrap();
    assert_same(&log, &clean(&lost));
}

#[test]
fn l4_damaged_snapshots_lead_to_the_same_state() {
    let storage = MemoryStorage::new();
    let log = clean(&storage);
    fill(&log);
    log.close().unwrap();
    let end = log.offsets().log_end;
    flip(&storage, &format!("orders-0/{end:020}.snapshot"), 20);
    assert_same(&open_and_filled(), &clean(&storage));
}

#[test]
fn replay_appends_skips_and_overwrites() {
    let (source, target) = (clean(&MemoryStorage::new()), MemoryStorage::new());
    fill(&source);
    let batches = parsed(&source.read_from(0, Isolation::LogEnd));
    let log = unclean(&target, 0);
    log.put(plain(2));
    log.put(batch(3, stamp(9, 0, 0)));
    for _ in 0..2 {
        for batch in &batches {
            log.replay(batch.base_offset(), batch.bytes().clone())
                .unwrap();
        }
        assert_same(&source, &log);
    }
    log.forget_tail();
    assert_same(&source, &log);
    assert!(
        log.producer(9).is_none(),
        "what was overwritten is forgotten"
    );
    let gap = batches[0].bytes().clone();
    log.replay(0, gap).unwrap();
    let mut beyond = plain(1).to_vec();
    beyond[..8].copy_from_slice(&500_i64.to_be_bytes());
    log.replay(500, beyond.into()).expect_err("a gap");
    log.close().unwrap();
    assert_same(&source, &clean(&target));
}

#[test]
fn what_was_replayed_does_not_keep_the_journal_in_memory() {
    let log = unclean(&MemoryStorage::new(), 0);
    let journal_file = plain(2);
    log.replay(0, journal_file.clone()).unwrap();
    assert_eq!(log.bases(0, Isolation::LogEnd), [0]);
    assert!(journal_file.is_unique(), "nothing refers to it any more");
}

#[test]
fn r8_cutting_a_marker_opens_its_transaction_again() {
    let storage = MemoryStorage::new();
    let log = clean(&storage);
    log.put(batch(1, transactional(stamp(1, 0, 0))));
    log.put(plain(1));
    log.end_transaction(1, 1, false).unwrap();
    log.flush().unwrap();
    assert_eq!(log.stable(), 3);
    log.truncate_to(2).unwrap();
    let offsets = log.offsets();
    assert_eq!(
        (offsets.last_stable, offsets.high_watermark, offsets.log_end),
        (0, 2, 2)
    );
    assert!(log.has_open_transaction(1));
    log.end_transaction(1, 1, true).unwrap();
    assert!(
        log.read_from(0, Isolation::LastStable).aborted.is_empty(),
        "the entry is gone"
    );
    log.close().unwrap();
    assert!(
        clean(&storage)
            .read_from(0, Isolation::LastStable)
            .aborted
            .is_empty()
    );
}

#[test]
fn truncating_across_segments_leaves_what_appending_would_have() {
    let storage = MemoryStorage::new();
    let small = PartitionConfig {
        segment_bytes: 300,
        ..config()
    };
    let open = |storage: &MemoryStorage| {
        let setup = setup(Arc::new(storage.clone()), Recovery::Clean);
        PartitionLog::open(PartitionSetup {
            config: small.clone(),
            ..setup
        })
        .unwrap()
    };
    let log = open(&storage);
    fill(&log);
    log.flush().unwrap();
    let batches = parsed(&ReadResult {
        batches: log
            .bases(0, Isolation::LogEnd)
            .iter()
            .flat_map(|base| {
                let request = ReadRequest {
                    offset: *base,
                    max_bytes: 0,
                    isolation: Isolation::LogEnd,
                    at_least_one: true,
                };
                log.read(request).unwrap().batches
            })
            .collect(),
        aborted: Vec::new(),
        next_offset: 0,
        offsets: log.offsets(),
    });
    for cut in batches.iter().rev() {
        log.truncate_to(cut.base_offset()).unwrap();
        let fresh = open(&MemoryStorage::new());
        for batch in batches
            .iter()
            .take_while(|batch| batch.base_offset() < cut.base_offset())
        {
            fresh
                .replay(batch.base_offset(), batch.bytes().clone())
                .unwrap();
        }
        assert_same(&log, &fresh);
    }
    assert_eq!(log.offsets().log_end, 0);
    assert_eq!(log.put(plain(1)).base_offset, 0);
}
