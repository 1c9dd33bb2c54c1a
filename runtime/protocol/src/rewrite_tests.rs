//! Tests of rewritten batches: nothing but the records that go changes.

use super::*;
use crate::{Compression, ControlMarker, ProducerStamp, Record, RecordBatchBuilder, control_batch};

const STAMP: ProducerStamp = ProducerStamp {
    producer_id: 9,
    producer_epoch: 3,
    base_sequence: i32::MAX - 1,
    transactional: true,
};

fn five(codec: Compression) -> RecordBatch {
    let mut builder = RecordBatchBuilder::new(codec);
    let headers: [(&str, Option<&[u8]>); 2] = [("h", Some(b"1")), ("h", None)];
    for (index, value) in [Some("a"), None, Some("c"), Some(""), Some("e")]
        .into_iter()
        .enumerate()
    {
        let key = [b'k', index as u8];
        let timestamp = 1_000 - index as i64 * 10;
        builder.append(timestamp, Some(&key), value.map(str::as_bytes), &headers);
    }
    let mut bytes = builder.finish(STAMP).unwrap().to_vec();
    patch_prefix(bytes.first_chunk_mut().unwrap(), 500, 7);
    RecordBatch::parse(Bytes::from(bytes)).unwrap()
}

fn records(batch: &RecordBatch) -> Vec<Record> {
    let records = batch.records(1 << 20).unwrap();
    records.collect::<Result<_, _>>().unwrap()
}

fn same_place(before: &RecordBatch, after: &RecordBatch) {
    after.verify_crc().unwrap();
    assert_eq!(after.base_offset(), before.base_offset());
    assert_eq!(after.last_offset(), before.last_offset());
    assert_eq!(
        after.partition_leader_epoch(),
        before.partition_leader_epoch()
    );
    assert_eq!(after.stamp(), before.stamp());
    assert_eq!(after.last_sequence(), before.last_sequence());
    assert_eq!(after.timestamp_type(), before.timestamp_type());
    assert_eq!(after.is_control(), before.is_control());
}

#[test]
fn records_that_stay_keep_their_bytes_offsets_and_timestamps_under_every_codec() {
    let mut rewriter = BatchRewriter::new();
    for codec in Compression::ALL {
        let before = five(codec);
        let kept = [false, true, false, true, false];
        let bytes = rewriter
            .with_records(&before, &kept, None, 1 << 20)
            .unwrap();
        let after = RecordBatch::parse(bytes).unwrap();
        same_place(&before, &after);
        assert_eq!(after.compression(), codec);
        assert_eq!(after.record_count(), 2);
        assert_eq!(
            (after.max_timestamp(), after.delete_horizon_ms()),
            (990, None)
        );
        let all = records(&before);
        assert_eq!(records(&after), [all[1].clone(), all[3].clone()]);
    }
}

#[test]
fn a_delete_horizon_stands_in_the_base_timestamp_and_is_kept_by_the_next_rewrite() {
    let mut rewriter = BatchRewriter::new();
    let before = five(Compression::Lz4);
    assert_eq!(before.delete_horizon_ms(), None);
    let bytes = rewriter.with_records(&before, &[true; 5], Some(77_000), 1 << 20);
    let marked = RecordBatch::parse(bytes.unwrap()).unwrap();
    same_place(&before, &marked);
    assert_eq!(marked.delete_horizon_ms(), Some(77_000));
    assert_eq!(marked.max_timestamp(), 1_000);
    assert_eq!(records(&marked), records(&before));
    let kept = [true, false, false, false, false];
    let bytes = rewriter.with_records(&marked, &kept, None, 1 << 20);
    let again = RecordBatch::parse(bytes.unwrap()).unwrap();
    assert_eq!(again.delete_horizon_ms(), Some(77_000));
    assert_eq!(records(&again), records(&before)[..1]);
}

#[test]
fn append_time_stays_the_time_of_all_records() {
    let before = RecordBatch::parse(five(Compression::None).with_log_append_time(5_555)).unwrap();
    let mut rewriter = BatchRewriter::new();
    let kept = [false, false, true, true, true];
    let bytes = rewriter.with_records(&before, &kept, Some(9_000), 1 << 20);
    let after = RecordBatch::parse(bytes.unwrap()).unwrap();
    same_place(&before, &after);
    assert_eq!(after.max_timestamp(), 5_555);
    assert_eq!(records(&after), records(&before)[2..]);
}

#[test]
fn an_emptied_batch_still_says_whose_it_was() {
    let rewriter = BatchRewriter::new();
    for codec in Compression::ALL {
        let before = five(codec);
        let bytes = rewriter.without_records(&before).unwrap();
        assert_eq!(bytes.len(), RecordBatch::HEADER_BYTES);
        let after = RecordBatch::parse(bytes).unwrap();
        same_place(&before, &after);
        assert_eq!(after.max_timestamp(), before.max_timestamp());
        assert_eq!(after.record_count(), 0);
        assert_eq!(records(&after), []);
    }
}

#[test]
fn a_placeholder_has_offsets_and_time_and_nothing_else() {
    let rewriter = BatchRewriter::new();
    let marker = RecordBatch::parse(control_batch(ControlMarker::new(true, 0), 9, 3, 1_000));
    for before in [five(Compression::Zstd), marker.unwrap()] {
        let bytes = rewriter.placeholder(&before).unwrap();
        let after = RecordBatch::parse(bytes).unwrap();
        after.verify_crc().unwrap();
        assert_eq!(
            (after.stamp(), after.record_count()),
            (ProducerStamp::NONE, 0)
        );
        assert!(!after.is_control() && !after.is_transactional());
        assert_eq!(after.base_offset(), before.base_offset());
        assert_eq!(after.last_offset(), before.last_offset());
        assert_eq!(after.max_timestamp(), before.max_timestamp());
    }
}

#[test]
fn a_marker_gets_a_horizon_and_stays_a_marker() {
    let marker = ControlMarker::new(false, 4);
    let before = RecordBatch::parse(control_batch(marker, 9, 3, 1_000)).unwrap();
    let mut rewriter = BatchRewriter::new();
    let bytes = rewriter.with_records(&before, &[true], Some(2_000), 1 << 20);
    let after = RecordBatch::parse(bytes.unwrap()).unwrap();
    same_place(&before, &after);
    assert_eq!(after.delete_horizon_ms(), Some(2_000));
    assert_eq!(after.control(), Ok(Some(marker)));
    assert_eq!(after.max_timestamp(), 1_000);
    assert_eq!(
        rewriter.with_records(&before, &[], None, 1 << 20),
        Err(BatchError::Empty)
    );
}
