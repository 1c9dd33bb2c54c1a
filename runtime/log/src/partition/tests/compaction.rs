//! Compaction of a partition: what readers, producers and the next opening find afterwards.

use super::*;
use crate::compaction::pass::Cleaned;
use crate::storage::hooked::{HookedStorage, Moment};
use crate::storage::{Fault, OpenMode, OperationKind, Unsynced};

pub(super) const MAP_BYTES: usize = 1 << 20;

pub(super) fn compacted() -> PartitionConfig {
    PartitionConfig {
        segment_bytes: 400,
        compact: true,
        delete: false,
        delete_retention_ms: 1_000,
        ..config()
    }
}

pub(super) fn open(storage: &MemoryStorage, recovery: Recovery) -> PartitionLog {
    let setup = setup(Arc::new(storage.clone()), recovery);
    PartitionLog::open(PartitionSetup {
        config: compacted(),
        ..setup
    })
    .unwrap()
}

/// One batch of these keys and values.
pub(super) fn pairs(records: &[(&str, Option<&str>)], stamp: ProducerStamp) -> Bytes {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    for (key, value) in records {
        builder.append(NOW, Some(key.as_bytes()), value.map(str::as_bytes), &[]);
    }
    builder.finish(stamp).unwrap()
}

pub(super) fn put(log: &PartitionLog, key: &str, value: &str) -> Appended {
    log.put(pairs(&[(key, Some(value))], ProducerStamp::NONE))
}

impl PartitionLog {
    pub(super) fn roll_now(&self) {
        self.lock().roll(self).unwrap();
    }

    /// Everything that is closed, from `from` on.
    pub(super) fn clean_from(&self, from: i64, map_bytes: usize, now_ms: i64) -> Cleaned {
        let candidate = self.cleanable(Some(from), i64::MAX, now_ms).unwrap();
        self.clean(&candidate, map_bytes, now_ms).unwrap()
    }

    pub(super) fn clean_all(&self, now_ms: i64) -> Cleaned {
        self.roll_now();
        self.clean_from(0, MAP_BYTES, now_ms)
    }

    pub(super) fn files(&self) -> Vec<String> {
        self.storage.list(&self.directory).unwrap()
    }

    /// (Offset, key, value) of every record, as this isolation shows it, read in small pieces.
    pub(super) fn records(&self, isolation: Isolation) -> Vec<(i64, String, Option<String>)> {
        let mut offset = self.offsets().log_start;
        let mut found = Vec::new();
        loop {
            let request = ReadRequest {
                offset,
                max_bytes: 300,
                isolation,
                at_least_one: true,
            };
            let result = self.read(request).unwrap();
            let batches = parsed(&result);
            let Some(last) = batches.last() else {
                return found;
            };
            assert!(last.next_offset() > offset);
            let mut ahead = result.aborted.clone();
            let mut aborted: Vec<i64> = Vec::new();
            for batch in &batches {
                let begun =
                    |entry: &mut AbortedTransaction| entry.first_offset <= batch.last_offset();
                aborted.extend(ahead.extract_if(.., begun).map(|entry| entry.producer_id));
                if let Some(marker) = batch.control().unwrap() {
                    let ends = |id: &i64| !marker.is_commit() && *id == batch.producer_id();
                    aborted.retain(|id| !ends(id));
                    continue;
                }
                if batch.is_transactional() && aborted.contains(&batch.producer_id()) {
                    continue;
                }
                for record in batch.records(1 << 20).unwrap() {
                    let record = record.unwrap();
                    let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
                    let key = text(record.key.unwrap());
                    found.push((record.offset, key, record.value.map(text)));
                }
            }
            offset = last.next_offset();
        }
    }
}

fn shown(log: &PartitionLog, isolation: Isolation) -> Vec<String> {
    let records = log.records(isolation).into_iter();
    let text = |(offset, key, value): (i64, String, Option<String>)| {
        format!("{offset} {key}={}", value.as_deref().unwrap_or("-"))
    };
    records.map(text).collect()
}

#[test]
fn the_last_record_of_a_key_stays_at_its_offset_and_segments_shrink_into_one() {
    let storage = MemoryStorage::new();
    let log = open(&storage, Recovery::Clean);
    for n in 0..40 {
        put(&log, ["a", "b", "c"][n % 3], &n.to_string());
    }
    let before = log.size_bytes();
    let cleaned = log.clean_all(NOW);
    assert_eq!(cleaned.next_dirty, 40);
    assert_eq!(cleaned.judged.records_read, 40);
    assert_eq!(cleaned.judged.records_kept, 3);
    assert!(cleaned.bytes_before == before && cleaned.bytes_after < before / 5);
    let expected = ["37 b=37", "38 c=38", "39 a=39"];
    let check = |log: &PartitionLog| {
        for isolation in [Isolation::LogEnd, Isolation::LastStable] {
            assert_eq!(shown(log, isolation), expected);
        }
        let offsets = log.offsets();
        assert_eq!((offsets.log_start, offsets.log_end), (0, 40));
    };
    check(&log);
    check(&open(
        &storage.fork(),
        Recovery::Unclean {
            checkpoint_offset: 0,
        },
    ));
    check(&open(
        &storage.fork(),
        Recovery::Unclean {
            checkpoint_offset: 40,
        },
    ));
    assert_eq!(put(&log, "b", "new").base_offset, 40);
    log.close().unwrap();
    let log = open(&storage, Recovery::Clean);
    assert_eq!(log.offsets().log_end, 41);
    log.clean_all(NOW);
    assert_eq!(
        shown(&log, Isolation::LogEnd),
        ["38 c=38", "39 a=39", "40 b=new"]
    );
    assert!(!log.files().iter().any(|name| name.contains("cleaned.")));
    assert_eq!(log.lock().segments.len(), 2, "{:?}", log.files());
}

#[test]
fn every_offset_of_a_gap_can_be_read_from() {
    let log = open(&MemoryStorage::new(), Recovery::Clean);
    for n in 0..30 {
        put(
            &log,
            if n % 10 == 3 { "kept" } else { "gone" },
            &n.to_string(),
        );
    }
    put(&log, "other", "x");
    log.clean_all(NOW);
    put(&log, "gone", "end");
    log.forget_tail();
    for offset in 0..32 {
        let bases = log.bases(offset, Isolation::LastStable);
        let expected: Vec<i64> = [4, 23, 29, 30, 31]
            .into_iter()
            .filter(|base| *base >= offset)
            .collect();
        assert_eq!(bases, expected, "from {offset}");
    }
    assert_eq!(log.offset_for_timestamp(0).unwrap(), Some((23, NOW)));
    assert_eq!(log.max_timestamp().unwrap(), Some((23, NOW)));
}

#[test]
fn the_first_segment_stays_as_a_header_when_all_its_records_go() {
    let storage = MemoryStorage::new();
    let log = open(&storage, Recovery::Clean);
    for n in 0..6 {
        put(&log, "a", &n.to_string());
    }
    log.roll_now();
    // Large, so that the two do not become one segment.
    put(&log, "a", &"x".repeat(390));
    log.clean_all(NOW);
    assert_eq!(log.offsets().log_start, 0);
    assert_eq!(log.bases(0, Isolation::LogEnd), [4, 6]);
    assert_eq!(log.records(Isolation::LogEnd).len(), 1);
    let again = open(
        &storage.fork(),
        Recovery::Unclean {
            checkpoint_offset: 0,
        },
    );
    assert_eq!(again.bases(0, Isolation::LogEnd), [4, 6]);
    assert_eq!(again.offsets(), log.offsets());
}

#[test]
fn cleaning_stops_at_an_open_transaction_and_at_what_is_not_durable() {
    let log = open(&MemoryStorage::new(), Recovery::Clean);
    for n in 0..4 {
        put(&log, "a", &n.to_string());
        log.roll_now();
    }
    log.put(pairs(&[("a", Some("open"))], transactional(stamp(7, 0, 0))));
    log.roll_now();
    put(&log, "a", "later");
    log.roll_now();
    let found = log.cleanable(None, i64::MAX, NOW).unwrap();
    assert_eq!((found.first_dirty, found.end), (0, 4));
    log.flush().unwrap();
    assert_eq!(log.cleanable(None, 3, NOW).unwrap().end, 3);
    log.clean_from(0, MAP_BYTES, NOW);
    assert_eq!(
        shown(&log, Isolation::LogEnd),
        ["3 a=3", "4 a=open", "5 a=later"]
    );
    assert_eq!(shown(&log, Isolation::LastStable), ["3 a=3"]);
    log.end_transaction(7, 1, true).unwrap();
    log.clean_all(NOW);
    assert_eq!(shown(&log, Isolation::LastStable), ["5 a=later"]);
}

#[test]
fn b7_a_map_too_small_for_the_log_never_makes_an_aborted_record_a_committed_one() {
    for map_bytes in [1, 120, 240, 1_000] {
        let storage = MemoryStorage::new();
        let log = open(&storage, Recovery::Clean);
        put(&log, "a", "good");
        for n in 0..12 {
            let key = format!("k{n}");
            let stamp = transactional(stamp(7, n, 0));
            log.put(pairs(&[("a", Some("bad")), (&key, Some("bad"))], stamp));
            put(&log, &format!("p{n}"), "good");
            log.end_transaction(7, n + 1, false).unwrap();
        }
        log.roll_now();
        let mut from = 0;
        let mut passes = 0;
        while from < log.offsets().log_end {
            let cleaned = log.clean_from(from, map_bytes, NOW + i64::from(passes) * 10_000);
            assert!(cleaned.next_dirty > from, "every pass gets on");
            from = cleaned.next_dirty;
            passes += 1;
            let committed = log.records(Isolation::LastStable);
            assert!(
                committed
                    .iter()
                    .all(|(_, _, value)| value.as_deref() == Some("good"))
            );
            assert_eq!(committed.len(), 13);
        }
        assert!(map_bytes > 1 || passes > 5);
        let again = open(
            &storage.fork(),
            Recovery::Unclean {
                checkpoint_offset: 0,
            },
        );
        assert_eq!(again.records(Isolation::LastStable).len(), 13);
    }
}

#[test]
fn b8_markers_go_only_after_their_records_though_they_lie_in_other_segments() {
    let storage = MemoryStorage::new();
    let log = open(&storage, Recovery::Clean);
    let large = "x".repeat(300);
    log.put(pairs(&[("a", Some(&large))], transactional(stamp(7, 0, 0))));
    put(&log, "other", &large);
    log.end_transaction(7, 1, true).unwrap();
    put(&log, "last", &large);
    for pass in 0..6 {
        log.clean_all(NOW + pass * 10_000);
        let committed = log.records(Isolation::LastStable);
        assert_eq!(committed.len(), 3);
        assert_eq!(log.offsets().last_stable, 4);
    }
    put(&log, "a", "2");
    let mut markers = Vec::new();
    for pass in 10..16 {
        log.clean_all(NOW + pass * 10_000);
        let batches = parsed(&log.read_from(2, Isolation::LogEnd));
        markers.push(batches[0].is_control());
        for log in [
            &log,
            &open(
                &storage.fork(),
                Recovery::Unclean {
                    checkpoint_offset: 0,
                },
            ),
        ] {
            assert_eq!(log.offsets().last_stable, 5);
            assert_eq!(log.records(Isolation::LastStable).len(), 3);
        }
    }
    // The producer is alive and has nothing but this marker's epoch: it stays.
    assert_eq!(markers, [true; 6]);
    log.put(pairs(&[("a", Some("3"))], stamp(7, 1, 0)));
    let mut markers = Vec::new();
    for pass in 20..23 {
        log.clean_all(NOW + pass * 10_000);
        let batches = parsed(&log.read_from(2, Isolation::LogEnd));
        markers.push(batches[0].is_control());
    }
    assert_eq!(markers, [false; 3]);
}

#[test]
fn p1_retries_are_recognised_after_compaction_and_without_any_snapshot() {
    let storage = MemoryStorage::new();
    let log = open(&storage, Recovery::Clean);
    let sent: Vec<Bytes> = (0..9)
        .map(|n| pairs(&[("a", Some("1")), ("b", Some("2"))], stamp(7, 0, n * 2)))
        .collect();
    for batch in &sent {
        log.put(batch.clone());
    }
    put(&log, "a", "end");
    put(&log, "b", "end");
    log.clean_all(NOW);
    log.clean_all(NOW + 10_000);
    assert_eq!(log.records(Isolation::LogEnd).len(), 2);
    let bare = storage.fork();
    for name in log.files() {
        if name.ends_with(".snapshot") {
            bare.remove_file(&Path::new("orders-0").join(name)).unwrap();
        }
    }
    let bare = open(
        &bare,
        Recovery::Unclean {
            checkpoint_offset: 0,
        },
    );
    for log in [&log, &bare] {
        for (n, batch) in sent.iter().enumerate().skip(4) {
            let appended = log.put(batch.clone());
            assert_eq!(
                (appended.duplicate, appended.base_offset),
                (true, n as i64 * 2)
            );
        }
        assert_eq!(log.refused(pairs(&[("a", None)], stamp(7, 0, 19))), 45);
    }
}

#[test]
fn a_fetch_goes_on_in_a_replaced_file_unless_aborted_records_might_be_in_it() {
    for isolation in [Isolation::HighWatermark, Isolation::LastStable] {
        read_while_segments_are_replaced(isolation);
    }
}

fn read_while_segments_are_replaced(isolation: Isolation) {
    let storage = HookedStorage::new(MemoryStorage::new(), Moment::AfterRead, "orders-0");
    let log = PartitionLog::open(PartitionSetup {
        config: compacted(),
        ..setup(Arc::new(storage.clone()), Recovery::Clean)
    })
    .unwrap();
    let log = Arc::new(log);
    log.put(pairs(&[("a", Some("bad"))], transactional(stamp(7, 0, 0))));
    log.end_transaction(7, 1, false).unwrap();
    put(&log, "a", "good");
    log.roll_now();
    log.forget_tail();
    let cleaner = log.clone();
    storage.call_once(move || {
        // After the second pass the index does not name the transaction any more.
        cleaner.clean_from(0, MAP_BYTES, NOW);
        cleaner.clean_from(0, MAP_BYTES, NOW);
    });
    let read = log.read_from(0, isolation);
    let bad = parsed(&read)
        .iter()
        .any(|batch| batch.is_transactional() && !batch.is_control());
    assert_eq!(bad, isolation == Isolation::HighWatermark);
    assert_eq!(read.aborted, []);
    assert_eq!(shown(&log, Isolation::LastStable), ["2 a=good"]);
}

#[test]
fn damage_is_reported_and_the_log_left_as_it_is() {
    let storage = MemoryStorage::new();
    let log = open(&storage, Recovery::Clean);
    for n in 0..20 {
        put(&log, "a", &n.to_string());
    }
    log.roll_now();
    let files = log.files();
    flip(&storage, FIRST_LOG, 100);
    let candidate = log.cleanable(None, i64::MAX, NOW).unwrap();
    let refused = log.clean(&candidate, MAP_BYTES, NOW).unwrap_err();
    assert!(matches!(refused, LogError::Corrupt { .. }), "{refused}");
    assert_eq!(log.files(), files);
    put(&log, "a", "on it goes");
}

#[test]
fn a_full_disk_leaves_the_log_as_it_is_until_there_is_room() {
    let storage = FaultyStorage::new();
    let log = PartitionLog::open(PartitionSetup {
        config: compacted(),
        ..setup(Arc::new(storage.clone()), Recovery::Clean)
    })
    .unwrap();
    for n in 0..20 {
        put(&log, ["a", "b"][n % 2], &n.to_string());
    }
    log.roll_now();
    log.flush().unwrap();
    let files = log.files();
    for part in [".log.cleaned", "compaction.tmp"] {
        storage.inject(Fault {
            kind: OperationKind::Write,
            path_contains: part.to_owned(),
            after: 0,
            error: std::io::ErrorKind::StorageFull,
        });
        let candidate = log.cleanable(None, i64::MAX, NOW).unwrap();
        let refused = log.clean(&candidate, MAP_BYTES, NOW).unwrap_err();
        assert!(matches!(refused, LogError::StorageFull { .. }), "{refused}");
        let mut left = log.files();
        left.retain(|name| name != "compaction.tmp");
        assert_eq!(left, files, "{part}");
        assert_eq!(log.records(Isolation::LogEnd).len(), 20);
    }
    log.clean_all(NOW);
    assert_eq!(shown(&log, Isolation::LogEnd), ["18 a=18", "19 b=19"]);
}

#[test]
fn a_log_that_was_closed_is_not_touched() {
    let storage = MemoryStorage::new();
    let log = open(&storage, Recovery::Clean);
    for n in 0..20 {
        put(&log, "a", &n.to_string());
    }
    log.roll_now();
    let candidate = log.cleanable(None, i64::MAX, NOW).unwrap();
    log.close().unwrap();
    let files = log.files();
    let refused = log.clean(&candidate, MAP_BYTES, NOW).unwrap_err();
    assert!(matches!(refused, LogError::Closed), "{refused}");
    assert_eq!(log.files(), files);
    assert!(
        log.storage
            .open(Path::new(FIRST_LOG), OpenMode::Read)
            .is_ok()
    );
}

#[test]
fn b3_a_snapshot_of_a_transaction_whose_end_was_compacted_away_is_passed_over() {
    let storage = MemoryStorage::new();
    let log = open(&storage, Recovery::Clean);
    log.put(pairs(&[("a", Some("bad"))], transactional(stamp(7, 0, 0))));
    log.roll_now();
    let snapshot = "orders-0/00000000000000000001.snapshot";
    let open_since_0 = content(&storage, snapshot);
    log.end_transaction(7, 1, false).unwrap();
    log.put(pairs(&[("a", Some("good"))], stamp(7, 1, 0)));
    for pass in 0..3 {
        log.clean_all(NOW + pass * 10_000);
    }
    assert_eq!(
        log.bases(0, Isolation::LogEnd),
        [2],
        "marker and records are gone"
    );
    put(&log, "b", "later");
    for name in log
        .files()
        .iter()
        .filter(|name| name.ends_with(".snapshot"))
    {
        storage
            .remove_file(&Path::new("orders-0").join(name))
            .unwrap();
    }
    let file = storage.open(Path::new(snapshot), OpenMode::Write).unwrap();
    file.write_at(&[&open_since_0], 0).unwrap();
    // What lies below the checkpoint is not scanned: its producers are those of a snapshot.
    let synced = Recovery::Unclean {
        checkpoint_offset: 4,
    };
    let again = open(&storage.fork(), synced);
    assert_eq!(again.open_transactions(), []);
    assert_eq!(again.offsets(), log.offsets());
    assert_eq!(again.offsets().last_stable, 4);
}

#[test]
fn p1_batches_that_a_power_cut_may_take_do_not_stand_in_for_those_before() {
    let storage = MemoryStorage::new();
    let log = open(&storage, Recovery::Clean);
    let sent = |n: i32| pairs(&[("a", Some("1"))], stamp(7, 0, n));
    for n in 0..6 {
        log.put(sent(n));
    }
    put(&log, "a", "last");
    log.roll_now();
    log.flush().unwrap();
    for n in 6..12 {
        log.put(sent(n));
    }
    let candidate = log.cleanable(Some(0), 7, NOW).unwrap();
    log.clean(&candidate, MAP_BYTES, NOW).unwrap();
    // The segment behind what was cleaned is lost, the snapshots with it.
    let image = storage.fork();
    for name in log.files() {
        if name.ends_with(".snapshot") || name.contains("07.log") || name.contains("12.log") {
            image
                .remove_file(&Path::new("orders-0").join(name))
                .unwrap();
        }
    }
    let after = open(
        &image,
        Recovery::Unclean {
            checkpoint_offset: 7,
        },
    );
    assert_eq!(after.offsets().log_end, 7, "{:?}", log.files());
    for n in 1..6 {
        assert!(after.put(sent(n)).duplicate, "{n}");
    }
    assert_eq!(after.refused(sent(0)), 45);
    assert!(!after.put(sent(6)).duplicate);
}

#[test]
fn a_pass_ends_where_retention_took_a_part_and_the_next_one_maps_all_of_it_again() {
    let storage = HookedStorage::new(MemoryStorage::new(), Moment::AfterRead, "orders-0");
    let log = PartitionLog::open(PartitionSetup {
        config: compacted(),
        ..setup(Arc::new(storage.clone()), Recovery::Clean)
    })
    .unwrap();
    let log = Arc::new(log);
    put(&log, "a", "0");
    log.roll_now();
    put(&log, "k", "old");
    log.roll_now();
    log.put(pairs(&[("k", None)], ProducerStamp::NONE));
    for key in ["b", "c", "d", "e"] {
        put(&log, key, "1");
    }
    log.roll_now();
    let retention = log.clone();
    storage.call_once(move || {
        // The first segment goes; the second one, which would become one with it, stays.
        assert_eq!(retention.delete_records_before(1).unwrap(), Some(1));
    });
    let first = log.clean_from(0, MAP_BYTES, NOW);
    assert_eq!(first.next_dirty, 0, "nothing counts as clean yet");
    put(&log, "z", "1");
    log.roll_now();
    let second = log.clean_from(first.next_dirty, MAP_BYTES, NOW + 2_000);
    put(&log, "z", "2");
    log.roll_now();
    log.clean_from(second.next_dirty, MAP_BYTES, NOW + 4_000);
    assert_eq!(
        shown(&log, Isolation::LogEnd),
        ["3 b=1", "4 c=1", "5 d=1", "6 e=1", "8 z=2"],
        "the tombstone does not go before what it deletes"
    );
}

#[test]
fn l2_a_sync_that_fails_while_segments_are_replaced_ends_the_log() {
    for kind in [OperationKind::SyncFile, OperationKind::SyncDirectory] {
        let storage = FaultyStorage::new();
        let log = PartitionLog::open(PartitionSetup {
            config: compacted(),
            durability: Durability::Interval(std::time::Duration::from_secs(1)),
            ..setup(Arc::new(storage.clone()), Recovery::Clean)
        })
        .unwrap();
        for n in 0..20 {
            put(&log, "a", &n.to_string());
        }
        log.flush().unwrap();
        log.roll_now();
        storage.inject(Fault {
            kind,
            path_contains: "orders-0".to_owned(),
            after: 0,
            error: std::io::ErrorKind::Other,
        });
        let candidate = log.cleanable(None, i64::MAX, NOW).unwrap();
        log.clean(&candidate, MAP_BYTES, NOW).unwrap_err();
        let refused = log.flush().unwrap_err();
        assert!(matches!(refused, LogError::Poisoned { .. }), "{refused}");
        assert_eq!(log.records(Isolation::LogEnd).len(), 20);
    }
}

#[test]
fn without_a_journal_nothing_goes_for_a_transaction_whose_end_a_power_cut_may_take() {
    let storage = MemoryStorage::new();
    let open = |storage: &MemoryStorage, recovery| {
        PartitionLog::open(PartitionSetup {
            config: compacted(),
            durability: Durability::Interval(std::time::Duration::from_secs(1)),
            ..setup(Arc::new(storage.clone()), recovery)
        })
        .unwrap()
    };
    let log = open(&storage, Recovery::Clean);
    put(&log, "k", "old");
    log.put(pairs(&[("k", Some("new"))], transactional(stamp(7, 0, 0))));
    log.roll_now();
    let point = log.flush().unwrap();
    log.end_transaction(7, 1, true).unwrap();
    let candidate = log.cleanable(None, point, NOW).unwrap();
    log.clean(&candidate, MAP_BYTES, NOW).unwrap();
    let recovery = Recovery::Unclean {
        checkpoint_offset: point,
    };
    let cut = open(&storage.crash_with(Unsynced::Lost), recovery);
    assert_eq!(shown(&cut, Isolation::LastStable), ["0 k=old"]);
    log.flush().unwrap();
    let candidate = log.cleanable(None, point, NOW).unwrap();
    log.clean(&candidate, MAP_BYTES, NOW).unwrap();
    let cut = open(&storage.crash_with(Unsynced::Lost), recovery);
    assert_eq!(shown(&cut, Isolation::LastStable), ["1 k=new"]);
}

#[test]
fn the_segment_that_retention_has_made_the_first_never_goes_as_a_whole() {
    let log = open(&MemoryStorage::new(), Recovery::Clean);
    for key in ["a", "b", "c"] {
        put(&log, key, "1");
        log.roll_now();
    }
    let sources = log.cleaning_sources(3).unwrap();
    assert_eq!(log.delete_records_before(1).unwrap(), Some(1));
    assert!(!log.swap_in(&sources.segments[1..2], None).unwrap());
    assert!(log.swap_in(&sources.segments[2..3], None).unwrap());
    assert_eq!(shown(&log, Isolation::LogEnd), ["1 b=1"]);
}

#[test]
fn what_can_be_cleaned_is_judged_by_the_settings_that_said_what_to_look_at() {
    let storage = HookedStorage::new(MemoryStorage::new(), Moment::AfterRead, "orders-0");
    let young = PartitionConfig {
        min_compaction_lag_ms: 1_000,
        max_compaction_lag_ms: 1_000_000,
        ..compacted()
    };
    let open = |recovery| {
        let setup = setup(Arc::new(storage.clone()), recovery);
        let config = young.clone();
        Arc::new(PartitionLog::open(PartitionSetup { config, ..setup }).unwrap())
    };
    let log = open(Recovery::Clean);
    put(&log, "a", "1");
    log.roll_now();
    put(&log, "a", "2");
    log.close().unwrap();
    let log = open(Recovery::Clean);
    let other = log.clone();
    storage.call_once(move || other.set_config(compacted()));
    let end = |log: &PartitionLog| log.cleanable(None, i64::MAX, NOW).unwrap().end;
    assert_eq!(end(&log), 0, "it is too young");
    assert_eq!(
        log.config().min_compaction_lag_ms,
        0,
        "it has changed meanwhile"
    );
    assert_eq!(end(&log), 1);
}
