//! Appends: offsets, validation, idempotence as clients see it, and Kafka's bytes on disk.

use super::*;
use millstream_protocol::patch_prefix;

#[test]
fn offsets_are_given_out_without_gaps_and_the_bytes_stay_as_they_came() {
    let storage = MemoryStorage::new();
    let log = clean(&storage);
    let (first, second) = (plain(3), batch(2, stamp(1, 0, 0)));
    let appended = log.put(first.clone());
    assert_eq!((appended.base_offset, appended.last_offset), (0, 2));
    assert_eq!(
        (appended.log_append_time_ms, appended.journal_position),
        (-1, 0)
    );
    let appended = log.put(second.clone());
    assert_eq!(
        (
            appended.base_offset,
            appended.last_offset,
            appended.duplicate
        ),
        (3, 4, false)
    );
    assert_eq!(log.offsets().log_end, 5);
    let mut expected = Vec::new();
    for (batch, base_offset) in [(&first, 0), (&second, 3)] {
        let mut prefix = *batch.first_chunk::<17>().unwrap();
        patch_prefix(&mut prefix, base_offset, 0);
        expected.extend_from_slice(&prefix);
        expected.extend_from_slice(&batch[17..]);
    }
    assert_eq!(content(&storage, FIRST_LOG), expected);
}

#[test]
fn what_a_client_must_not_send_is_refused_with_kafkas_errors() {
    let log = clean(&MemoryStorage::new());
    let good = batch(2, stamp(1, 0, 0));
    let mut flipped = good.to_vec();
    flipped[70] ^= 1;
    assert_eq!(
        log.refused(flipped.into()),
        2,
        "I4: bad CRC is CORRUPT_MESSAGE"
    );
    assert_eq!(log.refused(good.slice(..good.len() - 1)), 2, "cut short");
    assert_eq!(log.refused(Bytes::new()), 87, "nothing");
    assert_eq!(
        log.refused([&good[..], &good[..]].concat().into()),
        87,
        "two batches"
    );
    let marker = control_batch(ControlMarker::new(true, 0), 1, 0, NOW);
    assert_eq!(
        log.refused(marker),
        87,
        "I4: a control batch is INVALID_RECORD"
    );
    assert_eq!(log.refused(batch(1, stamp(1, 0, -1))), 87, "no sequence");
    assert_eq!(
        log.refused(batch(1, transactional(ProducerStamp::NONE))),
        87,
        "no producer"
    );
    let parsed = RecordBatch::parse(good.clone()).unwrap();
    assert_eq!(
        log.refused(parsed.with_log_append_time(5)),
        32,
        "INVALID_TIMESTAMP"
    );
    let mut moved = good.to_vec();
    moved[7] = 1;
    assert_eq!(log.refused(moved.into()), 87, "base offset");
    log.put(good);
}

#[test]
fn i5_batches_beyond_the_limits_are_too_large() {
    let log = log_with(PartitionConfig {
        max_message_bytes: 1_000,
        max_decompressed_bytes: 10_000,
        ..config()
    });
    assert_eq!(log.refused(plain(100)), 10, "MESSAGE_TOO_LARGE");
    let mut builder = RecordBatchBuilder::new(Compression::Zstd);
    builder.append(NOW, None, Some(&[0; 20_000]), &[]);
    let bomb = builder.finish(ProducerStamp::NONE).unwrap();
    assert!(bomb.len() < 1_000);
    assert_eq!(log.refused(bomb), 10, "MESSAGE_TOO_LARGE");
}

#[test]
fn every_codec_is_walked_and_kept() {
    let log = clean(&MemoryStorage::new());
    for (index, compression) in Compression::ALL.into_iter().enumerate() {
        let mut builder = RecordBatchBuilder::new(compression);
        builder.append(NOW, None, Some(b"a value"), &[]);
        builder.append(NOW, None, Some(b"a value"), &[]);
        log.put(builder.finish(ProducerStamp::NONE).unwrap());
        let batches = parsed(&log.read_from(index as i64 * 2, Isolation::LogEnd));
        assert_eq!(batches[0].compression(), compression);
    }
}

#[test]
fn a_compacted_topic_takes_no_record_without_key() {
    let log = log_with(PartitionConfig {
        compact: true,
        ..config()
    });
    let mut builder = RecordBatchBuilder::new(Compression::None);
    builder.append(NOW, None, Some(b"v"), &[]);
    assert_eq!(
        log.refused(builder.finish(ProducerStamp::NONE).unwrap()),
        87
    );
    log.put(plain(1));
}

#[test]
fn append_time_is_stamped_where_the_topic_says_so() {
    let log = log_with(PartitionConfig {
        log_append_time: true,
        ..config()
    });
    let appended = log
        .append(batch_at(5, 2, stamp(1, 0, 0)), AppendOrigin::Client, 777)
        .unwrap();
    assert_eq!(appended.log_append_time_ms, 777);
    let batches = parsed(&log.read_from(0, Isolation::LogEnd));
    assert_eq!(batches[0].max_timestamp(), 777);
    let retry = log
        .append(batch_at(5, 2, stamp(1, 0, 0)), AppendOrigin::Client, 888)
        .unwrap();
    assert_eq!((retry.duplicate, retry.log_append_time_ms), (true, 777));
}

#[test]
fn p1_a_retry_gets_the_original_offsets_also_after_a_restart() {
    let storage = MemoryStorage::new();
    let log = clean(&storage);
    for sequence in 0..6 {
        log.put(batch(2, stamp(1, 0, sequence * 2)));
    }
    let check = |log: &PartitionLog, how: &str| {
        let end = log.offsets().log_end;
        for sequence in 1..6 {
            let appended = log.put(batch(2, stamp(1, 0, sequence * 2)));
            let expected = i64::from(sequence) * 2;
            assert!(appended.duplicate, "{how}");
            assert_eq!(
                (appended.base_offset, appended.last_offset),
                (expected, expected + 1)
            );
        }
        assert_eq!(
            log.refused(batch(2, stamp(1, 0, 0))),
            45,
            "P2: the sixth oldest, {how}"
        );
        assert_eq!(
            log.refused(batch(2, stamp(1, 0, 13))),
            45,
            "P3: a gap, {how}"
        );
        assert_eq!(log.offsets().log_end, end, "{how}");
    };
    check(&log, "running");
    check(&unclean(&storage.fork(), 0), "after a crash");
    log.close().unwrap();
    let log = clean(&storage);
    check(&log, "after a clean restart");
    assert!(!log.put(batch(2, stamp(1, 0, 12))).duplicate);
}

#[test]
fn p5_p6_p7_epochs_and_first_sequences() {
    let log = clean(&MemoryStorage::new());
    log.put(batch(1, stamp(1, 3, 0)));
    assert_eq!(log.refused(batch(1, stamp(1, 2, 0))), 47, "P5");
    assert_eq!(log.refused(batch(1, stamp(1, 4, 1))), 45, "P6");
    log.put(batch(1, stamp(1, 4, 0)));
    assert_eq!(
        log.refused(batch(1, transactional(stamp(9, 0, 4)))),
        45,
        "P7"
    );
    let legacy = batch(1, transactional(stamp(9, 0, 4)));
    log.append(legacy, AppendOrigin::LegacyClient, NOW).unwrap();
}

#[test]
fn the_brokers_own_batches_have_a_limit_of_their_own() {
    let log = log_with(PartitionConfig {
        max_message_bytes: 10,
        ..config()
    });
    let own = |value_bytes: usize| {
        let mut builder = RecordBatchBuilder::new(Compression::None);
        builder.append(NOW, None, Some(&vec![7; value_bytes]), &[]);
        let batch = builder.finish(ProducerStamp::NONE).unwrap();
        log.append(batch, AppendOrigin::Coordinator, NOW)
    };
    own(15 << 20).expect("larger than the topic's");
    let error = own(16 << 20).unwrap_err();
    assert_eq!(error.error_code().code(), 10, "MESSAGE_TOO_LARGE");
}

#[test]
fn the_brokers_own_batches_may_be_several_and_are_judged_together() {
    let log = clean(&MemoryStorage::new());
    let own = [
        batch(1, transactional(stamp(5, 1, -1))),
        batch(2, transactional(stamp(5, 1, -1))),
        plain(1),
    ];
    let appended = log
        .append(own.concat().into(), AppendOrigin::Coordinator, NOW)
        .unwrap();
    assert_eq!((appended.base_offset, appended.last_offset), (0, 3));
    assert_eq!(log.bases(0, Isolation::LogEnd), [0, 1, 3]);
    assert_eq!(log.stable(), 0);
    let stale = batch(1, transactional(stamp(5, 0, -1)));
    let mixed = [batch(1, transactional(stamp(5, 2, -1))), stale];
    let error = log
        .append(mixed.concat().into(), AppendOrigin::Coordinator, NOW)
        .unwrap_err();
    assert_eq!(
        error.error_code().code(),
        47,
        "the second is older than the first"
    );
    assert_eq!(
        log.producer(5).unwrap().producer_epoch,
        1,
        "nothing was published"
    );
}

#[test]
fn segments_roll_by_size_and_age_and_reads_cross_them() {
    let small = PartitionConfig {
        segment_bytes: 300,
        segment_ms: 1_000,
        ..config()
    };
    let storage = MemoryStorage::new();
    let open = || {
        let setup = setup(Arc::new(storage.clone()), Recovery::Clean);
        PartitionLog::open(PartitionSetup {
            config: small.clone(),
            ..setup
        })
        .unwrap()
    };
    let log = open();
    for _ in 0..5 {
        log.put(plain(5));
    }
    log.put(batch_at(NOW + 2_000, 1, ProducerStamp::NONE));
    let logs = |storage: &MemoryStorage| -> Vec<String> {
        let names = storage.list(Path::new("orders-0")).unwrap();
        names
            .into_iter()
            .filter(|name| name.ends_with(".log"))
            .collect()
    };
    let expected: Vec<String> = [0, 10, 20, 25]
        .iter()
        .map(|base| format!("{base:020}.log"))
        .collect();
    assert_eq!(logs(&storage), expected);
    log.forget_tail();
    assert_eq!(log.bases(0, Isolation::LogEnd), [0, 5, 10, 15, 20, 25]);
    log.close().unwrap();
    assert_eq!(open().bases(7, Isolation::LogEnd), [5, 10, 15, 20, 25]);
}

#[test]
fn index_entries_are_kafkas_last_offset_and_position_of_every_few_batches() {
    let storage = MemoryStorage::new();
    let log = clean(&storage);
    let size = plain(2).len() as i32;
    for n in 0..10 {
        log.put(batch_at(NOW + n, 2, ProducerStamp::NONE));
    }
    log.close().unwrap();
    let index = content(&storage, "orders-0/00000000000000000000.index");
    let entries: Vec<(i32, i32)> = index
        .chunks(8)
        .map(|entry| {
            let number = |at: usize| i32::from_be_bytes(entry[at..at + 4].try_into().unwrap());
            (number(0), number(4))
        })
        .collect();
    assert!(entries.len() >= 3, "an entry every 200 bytes: {entries:?}");
    for (last_offset, position) in &entries {
        assert_eq!(last_offset % 2, 1, "the last offset of a batch of two");
        assert_eq!(
            *position,
            (last_offset / 2) * size,
            "where that batch begins"
        );
    }
    let times = content(&storage, "orders-0/00000000000000000000.timeindex");
    let last = times.chunks(12).last().unwrap();
    assert_eq!(
        last[..8],
        (NOW + 9 + 1).to_be_bytes(),
        "closing says the largest timestamp"
    );
    assert_eq!(last[8..], 19_i32.to_be_bytes());
    assert_eq!(
        content(&storage, "orders-0/leader-epoch-checkpoint"),
        b"0\n1\n0 0\n"
    );
}
