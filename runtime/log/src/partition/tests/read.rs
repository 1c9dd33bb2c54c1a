//! Reads: bounds, sizes, damage, look-ups by time; from the tail and from files alike.

use super::*;
use crate::storage::hooked::{HookedStorage, Moment};
use millstream_protocol::ErrorCode;

/// A log of ten batches of three records, read from the tail or from its file.
fn ten(from_file: bool) -> PartitionLog {
    let log = clean(&MemoryStorage::new());
    for n in 0..10 {
        log.put(batch_at(NOW + n * 100, 3, ProducerStamp::NONE));
    }
    if from_file {
        log.forget_tail();
    }
    log
}

fn bases_of(log: &PartitionLog, offset: i64, max_bytes: usize, at_least_one: bool) -> Vec<i64> {
    let request = ReadRequest {
        offset,
        max_bytes,
        isolation: Isolation::LogEnd,
        at_least_one,
    };
    parsed(&log.read(request).unwrap())
        .iter()
        .map(RecordBatch::base_offset)
        .collect()
}

#[test]
fn a_read_begins_with_the_batch_that_holds_the_offset_and_keeps_to_its_size() {
    let size = plain(3).len();
    for from_file in [false, true] {
        let log = ten(from_file);
        assert_eq!(bases_of(&log, 0, usize::MAX, false).len(), 10);
        assert_eq!(bases_of(&log, 13, 2 * size, false), [12, 15]);
        assert_eq!(bases_of(&log, 14, 3 * size - 1, false), [12, 15]);
        assert_eq!(bases_of(&log, 12, size - 1, true), [12]);
        assert!(bases_of(&log, 12, size - 1, false).is_empty());
        assert_eq!(bases_of(&log, 12, 0, true), [12]);
        assert_eq!(bases_of(&log, 29, size, true), [27]);
        assert!(bases_of(&log, 30, size, true).is_empty(), "the end");
    }
}

#[test]
fn tail_and_file_hand_out_the_same() {
    let (tail, file) = (ten(false), ten(true));
    for offset in 0..30 {
        for max_bytes in [0, 100, 250, 1_000, 10_000] {
            let request = ReadRequest {
                offset,
                max_bytes,
                isolation: Isolation::LastStable,
                at_least_one: true,
            };
            assert_eq!(tail.read(request).unwrap(), file.read(request).unwrap());
        }
    }
}

#[test]
fn an_offset_outside_the_log_is_out_of_range() {
    let log = ten(false);
    for offset in [-1, 31] {
        let request = ReadRequest {
            offset,
            max_bytes: 1,
            isolation: Isolation::LogEnd,
            at_least_one: true,
        };
        let error = log.read(request).unwrap_err();
        assert_eq!(error.error_code().code(), 1, "OFFSET_OUT_OF_RANGE");
    }
}

#[test]
fn a_batch_larger_than_what_is_read_ahead_comes_whole() {
    let log = clean(&MemoryStorage::new());
    let mut builder = RecordBatchBuilder::new(Compression::None);
    builder.append(NOW, None, Some(&vec![1; 100_000]), &[]);
    let large = builder.finish(ProducerStamp::NONE).unwrap();
    log.put(plain(1));
    log.put(large.clone());
    log.put(large);
    log.forget_tail();
    assert_eq!(bases_of(&log, 1, 10, true), [1]);
    assert!(bases_of(&log, 1, 10, false).is_empty());
    assert_eq!(bases_of(&log, 0, 150_000, true), [0, 1]);
    assert_eq!(bases_of(&log, 2, 150_000, true), [2]);
}

#[test]
fn l7_a_flipped_bit_is_corrupt_message_and_nothing_is_skipped() {
    let storage = MemoryStorage::new();
    let log = clean(&storage);
    let size = plain(3).len() as u64;
    for _ in 0..10 {
        log.put(plain(3));
    }
    log.close().unwrap();
    flip(&storage, FIRST_LOG, 4 * size + 70);
    let log = clean(&storage);
    assert_eq!(log.bases_before_damage(0), [0, 3, 6, 9]);
    let request = |offset| ReadRequest {
        offset,
        max_bytes: 1 << 20,
        isolation: Isolation::LogEnd,
        at_least_one: true,
    };
    let error = log.read(request(12)).unwrap_err();
    assert_eq!(error.error_code().code(), 2, "CORRUPT_MESSAGE");
    assert!(error.to_string().contains("offset 12"), "{error}");
    assert_eq!(parsed(&log.read(request(15)).unwrap()).len(), 5);
}

impl PartitionLog {
    fn bases_before_damage(&self, offset: i64) -> Vec<i64> {
        let batches = parsed(&self.read_from(offset, Isolation::LogEnd));
        batches.iter().map(RecordBatch::base_offset).collect()
    }
}

#[test]
fn timestamps_find_the_first_record_at_or_after_them() {
    let find = |log: &PartitionLog, time| log.offset_for_timestamp(time).unwrap();
    for from_file in [false, true] {
        let log = ten(from_file);
        assert_eq!(find(&log, 0), Some((0, NOW)));
        assert_eq!(find(&log, NOW + 1), Some((1, NOW + 1)));
        assert_eq!(
            find(&log, NOW + 3),
            Some((3, NOW + 100)),
            "between two batches"
        );
        assert_eq!(find(&log, NOW + 802), Some((26, NOW + 802)));
        assert_eq!(find(&log, NOW + 903), None);
        assert_eq!(log.max_timestamp().unwrap(), Some((29, NOW + 902)));
    }
}

#[test]
fn timestamps_out_of_order_are_found_across_segments() {
    let log = log_with(PartitionConfig {
        segment_bytes: 250,
        ..config()
    });
    for (n, time) in [500, 100, 900, 300, 800, 200, 1_000, 50]
        .into_iter()
        .enumerate()
    {
        let appended = log.put(batch_at(time, 1, ProducerStamp::NONE));
        assert_eq!(appended.base_offset, n as i64);
    }
    assert!(log.lock().segments.len() > 2);
    for (time, expected) in [(0, 0), (501, 2), (901, 6), (1_001, 8)] {
        let found = log.offset_for_timestamp(time).unwrap();
        assert_eq!(
            found.map_or(8, |(offset, _)| offset),
            expected,
            "time {time}"
        );
    }
    assert_eq!(log.max_timestamp().unwrap(), Some((6, 1_000)));
    assert_eq!(log_with(config()).max_timestamp().unwrap(), None);
}

#[test]
fn an_aborted_record_that_retention_removes_meanwhile_is_not_handed_out_without_its_abort() {
    let storage = HookedStorage::new(MemoryStorage::new(), Moment::AfterRead, "orders-0");
    let log = PartitionLog::open(PartitionSetup {
        config: PartitionConfig {
            segment_bytes: 200,
            retention_ms: 1_000,
            ..config()
        },
        ..setup(Arc::new(storage.clone()), Recovery::Clean)
    });
    let log = Arc::new(log.unwrap());
    log.put(batch(1, transactional(stamp(1, 0, 0))));
    log.end_transaction(1, 1, false).unwrap();
    for _ in 0..4 {
        log.put(plain(3));
    }
    log.forget_tail();
    let request = ReadRequest {
        offset: 0,
        max_bytes: 1 << 20,
        isolation: Isolation::LastStable,
        at_least_one: true,
    };
    assert_eq!(log.read(request).unwrap().aborted.len(), 1);
    let beside = log.clone();
    storage.call_once(move || {
        beside.apply_retention(NOW + 100_000).unwrap();
    });
    let refused = log.read(request).unwrap_err();
    assert_eq!(refused.error_code(), ErrorCode::OFFSET_OUT_OF_RANGE);
    assert!(log.offsets().log_start > 1, "the records are gone");
}
