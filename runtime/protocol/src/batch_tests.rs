//! Tests of the batch view: golden bytes, malformed input, restamping.

use super::*;
use crate::builder::RecordBatchBuilder;
use proptest::prelude::*;

const CAP: usize = 1 << 20;

fn stamp() -> ProducerStamp {
    ProducerStamp {
        producer_id: 7,
        producer_epoch: 2,
        base_sequence: 10,
        transactional: true,
    }
}

fn batch_of(compression: Compression, records: i32) -> Bytes {
    let mut builder = RecordBatchBuilder::new(compression);
    for index in 0..records {
        let value = format!("value {index}");
        builder.append(
            1_000 + i64::from(index),
            Some(b"k"),
            Some(value.as_bytes()),
            &[],
        );
    }
    builder.finish(stamp()).unwrap()
}

/// Rewrites bytes and makes the CRC right again.
fn altered(batch: &Bytes, at: usize, bytes: &[u8]) -> Bytes {
    let mut copy = batch.to_vec();
    copy[at..at + bytes.len()].copy_from_slice(bytes);
    seal(&mut copy);
    Bytes::from(copy)
}

#[test]
fn a_batch_has_the_bytes_that_kafka_writes() {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    builder.append(5, Some(b"k"), None, &[("h", Some(b"")), ("h", None)]);
    builder.append(4, None, Some(b""), &[]);
    let stamp = ProducerStamp {
        producer_id: 1,
        producer_epoch: 0,
        base_sequence: 3,
        transactional: false,
    };
    let bytes = builder.finish(stamp).unwrap();
    let mut expected = Vec::new();
    expected.extend_from_slice(&0_i64.to_be_bytes());
    expected.extend_from_slice(&(49_i32 + 14 + 7).to_be_bytes());
    expected.extend_from_slice(&(-1_i32).to_be_bytes());
    expected.push(2);
    expected.extend_from_slice(&bytes[17..21]);
    expected.extend_from_slice(&0_i16.to_be_bytes());
    expected.extend_from_slice(&1_i32.to_be_bytes());
    expected.extend_from_slice(&5_i64.to_be_bytes());
    expected.extend_from_slice(&5_i64.to_be_bytes());
    expected.extend_from_slice(&1_i64.to_be_bytes());
    expected.extend_from_slice(&0_i16.to_be_bytes());
    expected.extend_from_slice(&3_i32.to_be_bytes());
    expected.extend_from_slice(&2_i32.to_be_bytes());
    expected.extend_from_slice(&[26, 0, 0, 0, 2, b'k', 1, 4, 2, b'h', 0, 2, b'h', 1]);
    expected.extend_from_slice(&[12, 0, 1, 2, 1, 0, 0]);
    assert_eq!(bytes.as_ref(), expected.as_slice());
    RecordBatch::parse(bytes).unwrap().verify_crc().unwrap();
}

#[test]
fn crc_is_castagnoli() {
    assert_eq!(crc_fast::crc32_iscsi(b"123456789"), 0xe306_9283);
}

#[test]
fn header_fields_are_read_from_their_places() {
    let bytes = batch_of(Compression::None, 3);
    let mut prefix = *bytes.first_chunk::<17>().unwrap();
    patch_prefix(&mut prefix, 100, 4);
    let mut patched = prefix.to_vec();
    patched.extend_from_slice(&bytes[17..]);
    let batch = RecordBatch::parse(Bytes::from(patched)).unwrap();
    batch.verify_crc().expect("the prefix is outside the CRC");
    assert_eq!(
        (
            batch.base_offset(),
            batch.last_offset(),
            batch.next_offset()
        ),
        (100, 102, 103)
    );
    assert_eq!(batch.partition_leader_epoch(), 4);
    assert_eq!(
        (batch.base_timestamp(), batch.max_timestamp()),
        (1_000, 1_002)
    );
    assert_eq!((batch.base_sequence(), batch.last_sequence()), (10, 12));
    assert_eq!((batch.record_count(), batch.last_offset_delta()), (3, 2));
    assert_eq!(batch.stamp(), stamp());
    assert_eq!(batch.timestamp_type(), TimestampType::CreateTime);
    let offsets: Vec<i64> = batch
        .records(CAP)
        .unwrap()
        .map(|r| r.unwrap().offset)
        .collect();
    assert_eq!(offsets, [100, 101, 102]);
}

#[test]
fn sequences_wrap_after_the_largest_int() {
    let batch = RecordBatch::parse(batch_of(Compression::None, 5)).unwrap();
    let wrapped = batch.restamped(ProducerStamp {
        base_sequence: i32::MAX - 2,
        ..stamp()
    });
    assert_eq!(RecordBatch::parse(wrapped).unwrap().last_sequence(), 1);
}

#[test]
fn restamping_changes_the_stamp_and_nothing_else() {
    for compression in Compression::ALL {
        let batch = RecordBatch::parse(batch_of(compression, 4)).unwrap();
        let copy = RecordBatch::parse(batch.restamped(ProducerStamp::NONE)).unwrap();
        copy.verify_crc().unwrap();
        assert_eq!(copy.stamp(), ProducerStamp::NONE);
        assert!(!copy.is_transactional());
        assert_eq!(copy.compression(), compression);
        assert!(copy.records(CAP).unwrap().eq(batch.records(CAP).unwrap()));
        assert_eq!(copy.restamped(stamp()), *batch.bytes());
    }
}

#[test]
fn append_time_replaces_the_timestamps_of_all_records() {
    let batch = RecordBatch::parse(batch_of(Compression::Lz4, 3)).unwrap();
    let stamped = RecordBatch::parse(batch.with_log_append_time(77)).unwrap();
    stamped.verify_crc().unwrap();
    assert_eq!(stamped.timestamp_type(), TimestampType::LogAppendTime);
    assert!(
        stamped
            .records(CAP)
            .unwrap()
            .all(|record| record.unwrap().timestamp == 77)
    );
}

#[test]
fn one_flipped_bit_fails_the_crc() {
    let good = batch_of(Compression::None, 2);
    for at in 17..good.len() {
        let mut bytes = good.to_vec();
        bytes[at] ^= 1;
        if let Ok(batch) = RecordBatch::parse(Bytes::from(bytes)) {
            assert!(
                matches!(batch.verify_crc(), Err(BatchError::WrongCrc { .. })),
                "byte {at}"
            );
        }
    }
}

#[test]
fn splitting_stops_at_a_partial_batch() {
    let one = batch_of(Compression::None, 1);
    let two = batch_of(Compression::Zstd, 2);
    let mut bytes = [&one[..], &two[..], &one[..one.len() - 1]].concat().into();
    assert_eq!(
        RecordBatch::split_from(&mut bytes)
            .unwrap()
            .unwrap()
            .bytes(),
        &one
    );
    assert_eq!(
        RecordBatch::split_from(&mut bytes)
            .unwrap()
            .unwrap()
            .bytes(),
        &two
    );
    assert_eq!(RecordBatch::split_from(&mut bytes).unwrap(), None);
    assert_eq!(bytes.len(), one.len() - 1);
    for cut in 0..one.len() {
        assert_eq!(
            RecordBatch::split_from(&mut one.slice(..cut)),
            Ok(None),
            "cut at {cut}"
        );
        assert!(RecordBatch::parse(one.slice(..cut)).is_err());
    }
}

#[test]
fn impossible_headers_are_errors() {
    let good = batch_of(Compression::None, 2);
    for length in [-1_i32, i32::MIN, 0, 48] {
        let bytes = altered(&good, 8, &length.to_be_bytes());
        let error = RecordBatch::split_from(&mut bytes.clone()).unwrap_err();
        assert!(matches!(error, BatchError::WrongLength { .. }), "{error}");
        assert!(RecordBatch::parse(bytes).is_err());
    }
    let longer = altered(&good, 8, &i32::MAX.to_be_bytes());
    assert!(matches!(
        RecordBatch::parse(longer),
        Err(BatchError::WrongLength { .. })
    ));
    let magic = RecordBatch::parse(altered(&good, 16, &[1]));
    assert_eq!(magic, Err(BatchError::UnsupportedMagic { magic: 1 }));
    let codec = RecordBatch::parse(altered(&good, 21, &7_i16.to_be_bytes()));
    assert_eq!(codec, Err(BatchError::UnknownCodec { code: 7 }));
    for at in [23, 57] {
        let negative = RecordBatch::parse(altered(&good, at, &(-1_i32).to_be_bytes()));
        assert!(matches!(negative, Err(BatchError::WrongCount { .. })));
    }
}

#[test]
fn counts_and_deltas_must_agree_with_the_records() {
    for compression in Compression::ALL {
        let good = batch_of(compression, 3);
        let summary = RecordBatch::parse(good.clone())
            .unwrap()
            .validate_records(CAP)
            .unwrap();
        assert_eq!((summary.record_count, summary.without_key), (3, 0));
        assert_eq!(
            (summary.max_timestamp, summary.max_timestamp_delta),
            (1_002, 2)
        );
        for (count, last_delta) in [(0, 2), (2, 1), (4, 3), (3, 1), (i32::MAX, i32::MAX - 1)] {
            let bytes = altered(&good, 57, &i32::to_be_bytes(count));
            let bytes = altered(&bytes, 23, &i32::to_be_bytes(last_delta));
            let batch = RecordBatch::parse(bytes).unwrap();
            assert!(
                batch.validate_records(CAP).is_err(),
                "{compression} {count} {last_delta}"
            );
        }
    }
}

#[test]
fn offset_deltas_other_than_consecutive_are_refused() {
    let good = batch_of(Compression::None, 2);
    let bytes = altered(&good, RecordBatch::HEADER_BYTES + 3, &[4]);
    let error = RecordBatch::parse(bytes)
        .unwrap()
        .validate_records(CAP)
        .unwrap_err();
    assert_eq!(
        error,
        BatchError::WrongOffsetDelta {
            index: 0,
            offset_delta: 2
        }
    );
}

#[test]
fn another_codec_keeps_everything_but_the_form_of_the_records() {
    let plain = RecordBatch::parse(batch_of(Compression::None, 50)).unwrap();
    for codec in Compression::ALL {
        let packed = RecordBatch::parse(plain.recompressed(codec, CAP).unwrap()).unwrap();
        assert_eq!(packed.compression(), codec);
        packed.verify_crc().unwrap();
        assert_eq!(packed.stamp(), plain.stamp());
        let again = packed.recompressed(Compression::None, CAP).unwrap();
        assert_eq!(
            again,
            *plain.bytes(),
            "there and back again through {codec}"
        );
        let refused = packed.recompressed(Compression::Gzip, 10);
        assert!(
            codec == Compression::None || refused.is_err(),
            "the cap holds"
        );
    }
}

proptest! {
    #[test]
    fn no_change_of_bytes_panics_or_yields_more_than_there_is(
        compression in prop::sample::select(Compression::ALL.to_vec()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = batch_of(compression, 5).to_vec();
        for (index, value) in changes {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        let mut stream = Bytes::from(bytes.clone());
        let _ = RecordBatch::split_from(&mut stream);
        if let Ok(batch) = RecordBatch::parse(Bytes::from(bytes)) {
            let _ = batch.validate_records(CAP);
            let _ = batch.control();
            if let Ok(records) = batch.records(CAP) {
                prop_assert!(records.count() <= CAP);
            }
        }
    }

    #[test]
    fn random_records_never_panic(payload in prop::collection::vec(any::<u8>(), 0..120)) {
        let mut bytes = batch_of(Compression::None, 1).to_vec();
        bytes.truncate(RecordBatch::HEADER_BYTES);
        bytes.extend_from_slice(&payload);
        let fields = HeaderFields {
            attributes: 0,
            last_offset_delta: 4,
            base_timestamp: i64::MAX,
            max_timestamp: 0,
            stamp: stamp(),
            record_count: 5,
        };
        write_header(&mut bytes, &fields).unwrap();
        let batch = RecordBatch::parse(Bytes::from(bytes)).unwrap();
        let _ = batch.validate_records(CAP);
        if let Ok(records) = batch.records(CAP) {
            for record in records.flatten() {
                let _ = record.headers.iter().count();
            }
        }
    }
}
