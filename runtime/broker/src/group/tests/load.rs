//! Reading `__consumer_offsets` back: all of it or nothing, and how long it takes.
//!
//! Invariants: see the names of the tests.
//! Never: waits for real time.

use std::sync::Arc;

use bytes::Bytes;
use millstream_log::MemoryStorage;
use millstream_protocol::{
    Compression, ControlMarker, ProducerStamp, RecordBatch, RecordBatchBuilder, control_batch,
    patch_prefix,
};

use super::super::consumer::Limits;
use super::super::machine::GroupLimits;
use super::super::record::{GroupRecord, OffsetCommitValue};
use super::super::replay::Replay;
use super::super::shard::encode;
use crate::tests::harness::open;

const DECOMPRESSED_MAX: usize = 1 << 20;

fn offset(partition: i32, offset: i64) -> GroupRecord {
    GroupRecord::Offset {
        group: "g".to_owned(),
        topic: "t".to_owned(),
        partition,
        value: Some(OffsetCommitValue {
            offset,
            ..Default::default()
        }),
    }
}

fn tombstone(partition: i32) -> GroupRecord {
    GroupRecord::Offset {
        group: "g".to_owned(),
        topic: "t".to_owned(),
        partition,
        value: None,
    }
}

fn at(base_offset: i64, batch: Bytes) -> RecordBatch {
    let mut bytes = batch.to_vec();
    let prefix = bytes.first_chunk_mut::<17>().expect("a batch has a header");
    patch_prefix(prefix, base_offset, 0);
    RecordBatch::parse(bytes.into()).expect("a batch")
}

fn plain(base_offset: i64, records: &[GroupRecord]) -> RecordBatch {
    at(
        base_offset,
        encode(records, ProducerStamp::NONE, 0).expect("it has a form"),
    )
}

fn transactional(base_offset: i64, producer_id: i64, records: &[GroupRecord]) -> RecordBatch {
    let stamp = ProducerStamp {
        producer_id,
        producer_epoch: 0,
        base_sequence: -1,
        transactional: true,
    };
    at(
        base_offset,
        encode(records, stamp, 0).expect("it has a form"),
    )
}

fn marker(base_offset: i64, producer_id: i64, commit: bool) -> RecordBatch {
    let control = ControlMarker::new(commit, 0);
    at(base_offset, control_batch(control, producer_id, 1, 0))
}

#[test]
fn transactional_batches_wait_for_their_marker_while_they_are_read_back() {
    let mut replay = Replay::default();
    for batch in [
        plain(0, &[offset(0, 1), offset(1, 1), offset(2, 1)]),
        transactional(3, 7, &[offset(0, 10), offset(1, 10)]),
        transactional(5, 8, &[offset(2, 20)]),
        marker(6, 7, true),
        marker(7, 8, false),
        transactional(8, 7, &[offset(0, 30)]),
        plain(9, &[tombstone(1)]),
    ] {
        replay.batch(&batch, DECOMPRESSED_MAX).expect("readable");
    }
    let state = replay.finish(GroupLimits::default(), |_| Limits::default(), 0);
    let read = |partition| state.offsets.get("g", "t", partition).map(|o| o.offset);
    assert_eq!((read(0), read(1), read(2)), (Some(10), None, Some(1)));
    assert!(state.offsets.is_pending("g", "t", 0));
    assert!(!state.offsets.is_pending("g", "t", 2));
}

#[test]
fn b15_a_compacted_log_with_gaps_reads_back_the_same() {
    let mut replay = Replay::default();
    for batch in [
        marker(6, 7, true),
        plain(100, &[offset(0, 5)]),
        plain(5_000, &[offset(1, 6)]),
    ] {
        replay.batch(&batch, DECOMPRESSED_MAX).expect("readable");
    }
    let state = replay.finish(GroupLimits::default(), |_| Limits::default(), 0);
    let read = |partition| state.offsets.get("g", "t", partition).map(|o| o.offset);
    assert_eq!((read(0), read(1)), (Some(5), Some(6)));
}

#[test]
fn c2_a_batch_that_cannot_be_read_says_where() {
    let good = plain(40, &[offset(0, 1), offset(1, 1)]);
    let mut flipped = good.bytes().to_vec();
    *flipped.last_mut().expect("bytes") ^= 1;
    let flipped = RecordBatch::parse(flipped.into()).expect("the header is whole");
    let error = Replay::default()
        .batch(&flipped, DECOMPRESSED_MAX)
        .expect_err("a wrong checksum");
    assert_eq!(error.offset, 40);

    let mut builder = RecordBatchBuilder::new(Compression::None);
    let (key, value) = offset(0, 1).encode().expect("it has a form");
    builder.append(0, Some(&key), value.as_deref(), &[]);
    builder.append(0, Some(b"\x00\x09future"), Some(b"\x00\x00"), &[]);
    let unknown = builder.finish(ProducerStamp::NONE).expect("built");
    let error = Replay::default()
        .batch(&at(40, unknown), DECOMPRESSED_MAX)
        .expect_err("a record of the future");
    assert_eq!(error.offset, 41);
    assert!(error.reason.contains("record type 9"), "{}", error.reason);
}

#[tokio::test(start_paused = true)]
async fn c2_a_broker_does_not_open_over_a_record_that_it_cannot_read() {
    use millstream_log::{AppendOrigin, DirectoryConfig, LogDirectory};

    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    broker.close().await.expect("closes");
    let directory = LogDirectory::open(
        Arc::new(storage.clone()),
        DirectoryConfig::default(),
        1_700_000_000_000,
    )
    .expect("opens");
    let log = directory
        .partition("__consumer_offsets", 2)
        .expect("it was created");
    let mut builder = RecordBatchBuilder::new(Compression::None);
    builder.append(0, Some(b"\x00\x09future"), Some(b"\x00\x00"), &[]);
    let batch = builder.finish(ProducerStamp::NONE).expect("built");
    log.append(batch, AppendOrigin::Coordinator, 1_700_000_000_000)
        .expect("appended");
    directory.close(1_700_000_000_000).expect("closes");

    let opened = crate::Broker::open(Arc::new(storage), crate::tests::harness::config()).await;
    let error = opened.expect_err("it must not serve a part").to_string();
    assert!(
        error.contains("__consumer_offsets-2 at offset 0"),
        "{error}"
    );
}

/// Run by hand: `cargo test -p millstream-broker --release a_million -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::disallowed_methods, reason = "a measurement")]
fn a_million_commits_are_read_back() {
    let records: Vec<GroupRecord> = (0..1_000).map(|n| offset(n % 16, i64::from(n))).collect();
    let batches: Vec<RecordBatch> = (0..1_000).map(|n| plain(n * 1_000, &records)).collect();
    let small: Vec<RecordBatch> = (0..1_000_000)
        .map(|n| plain(n, &[offset(i32::try_from(n % 16).expect("small"), n)]))
        .collect();
    for (name, batches) in [("1,000 a batch", &batches), ("1 a batch", &small)] {
        let started = std::time::Instant::now();
        let mut replay = Replay::default();
        for batch in batches {
            replay.batch(batch, DECOMPRESSED_MAX).expect("readable");
        }
        println!(
            "{name}: {} records in {:?}",
            replay.record_count,
            started.elapsed()
        );
    }
}
