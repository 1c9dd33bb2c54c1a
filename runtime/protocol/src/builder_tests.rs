//! Tests of the builder: round trips, and the `kafka-protocol` crate as the independent oracle.

use super::*;
use crate::record::Record;
use kafka_protocol::records as oracle;
use proptest::prelude::*;

const CAP: usize = 1 << 24;

type Plain = (
    i64,
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    Vec<(String, Option<Vec<u8>>)>,
);

fn plain_record() -> impl Strategy<Value = Plain> {
    let bytes = || prop::option::of(prop::collection::vec(any::<u8>(), 0..40));
    let headers = prop::collection::vec(("[a-c]{0,2}", bytes()), 0..4);
    (-5_000_i64..5_000, bytes(), bytes(), headers)
}

fn append(builder: &mut RecordBatchBuilder, record: &Plain) -> i32 {
    let headers: Vec<(&str, Option<&[u8]>)> = record
        .3
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_deref()))
        .collect();
    builder.append(record.0, record.1.as_deref(), record.2.as_deref(), &headers)
}

fn headers_of(record: &Record) -> Vec<(String, Option<Vec<u8>>)> {
    record
        .headers
        .iter()
        .map(|(key, value)| (key.into_owned(), value.map(<[u8]>::to_vec)))
        .collect()
}

fn stamp(base_sequence: i32) -> ProducerStamp {
    ProducerStamp {
        producer_id: 4,
        producer_epoch: 1,
        base_sequence,
        transactional: true,
    }
}

fn with_unique_headers(mut record: Plain) -> Plain {
    let mut seen = std::collections::BTreeSet::new();
    record.3.retain(|(key, _)| seen.insert(key.clone()));
    record
}

proptest! {
    #[test]
    fn what_is_appended_is_read_back(
        records in prop::collection::vec(plain_record(), 1..20),
        compression in prop::sample::select(Compression::ALL.to_vec()),
    ) {
        let mut builder = RecordBatchBuilder::new(compression);
        for _ in 0..2 {
            for (index, record) in records.iter().enumerate() {
                let most: Vec<(&str, Option<&[u8]>)> =
                    record.3.iter().map(|(key, value)| (key.as_str(), value.as_deref())).collect();
                let most = RecordBatchBuilder::record_size_bytes_max(
                    record.1.as_deref(), record.2.as_deref(), &most);
                let before = builder.size_bytes();
                prop_assert_eq!(append(&mut builder, record), index as i32);
                prop_assert!(builder.size_bytes() - before <= most);
            }
            let size_bytes = builder.size_bytes();
            let bytes = builder.finish(stamp(3)).unwrap();
            if compression == Compression::None {
                prop_assert_eq!(bytes.len(), size_bytes);
            }
            let batch = RecordBatch::parse(bytes).unwrap();
            batch.verify_crc().unwrap();
            let summary = batch.validate_records(CAP).unwrap();
            prop_assert_eq!(summary.max_timestamp, batch.max_timestamp());
            let back: Vec<Record> = batch.records(CAP).unwrap().map(Result::unwrap).collect();
            prop_assert_eq!(back.len(), records.len());
            for (record, back) in records.iter().zip(&back) {
                prop_assert_eq!(back.timestamp, record.0);
                prop_assert_eq!(back.key.as_deref(), record.1.as_deref());
                prop_assert_eq!(back.value.as_deref(), record.2.as_deref());
                prop_assert_eq!(&headers_of(back), &record.3);
                let again: crate::record::Headers = record.3.iter().cloned().collect();
                prop_assert_eq!(&back.headers, &again);
            }
            let mut views = batch.records(CAP).unwrap();
            for back in &back {
                let view = views.next_view().unwrap().unwrap();
                prop_assert_eq!(view.key, back.key.as_deref());
                prop_assert_eq!(view.value, back.value.as_deref());
                prop_assert!(view.headers().eq(back.headers.iter()));
            }
            prop_assert!(views.next_view().is_none());
        }
    }

    #[test]
    fn the_oracle_reads_what_we_write(
        records in prop::collection::vec(plain_record().prop_map(with_unique_headers), 1..20),
    ) {
        let mut builder = RecordBatchBuilder::new(Compression::None);
        for record in &records {
            append(&mut builder, record);
        }
        let mut bytes = builder.finish(stamp(0)).unwrap();
        let set = oracle::RecordBatchDecoder::decode(&mut bytes).unwrap();
        prop_assert_eq!(set.records.len(), records.len());
        for (index, (record, theirs)) in records.iter().zip(&set.records).enumerate() {
            prop_assert_eq!(theirs.offset, index as i64);
            prop_assert_eq!(theirs.timestamp, record.0);
            prop_assert_eq!(theirs.producer_id, 4);
            prop_assert_eq!(theirs.producer_epoch, 1);
            prop_assert!(theirs.transactional && !theirs.control);
            prop_assert_eq!(theirs.key.as_deref(), record.1.as_deref());
            prop_assert_eq!(theirs.value.as_deref(), record.2.as_deref());
            let headers: Vec<(String, Option<Vec<u8>>)> = theirs
                .headers
                .iter()
                .map(|(key, value)| (key.to_string(), value.as_ref().map(|value| value.to_vec())))
                .collect();
            prop_assert_eq!(&headers, &record.3);
        }
    }

    #[test]
    fn we_read_what_the_oracle_writes(
        records in prop::collection::vec(plain_record().prop_map(with_unique_headers), 1..20),
    ) {
        let theirs: Vec<oracle::Record> = records
            .iter()
            .enumerate()
            .map(|(index, record)| oracle::Record {
                transactional: true,
                control: false,
                partition_leader_epoch: 6,
                delete_horizon: false,
                producer_id: 4,
                producer_epoch: 1,
                timestamp_type: oracle::TimestampType::Creation,
                offset: index as i64,
                sequence: index as i32,
                timestamp: record.0,
                key: record.1.clone().map(Bytes::from),
                value: record.2.clone().map(Bytes::from),
                headers: record
                    .3
                    .iter()
                    .map(|(key, value)| {
                        let key = kafka_protocol::protocol::StrBytes::from_string(key.clone());
                        (key, value.clone().map(Bytes::from))
                    })
                    .collect(),
            })
            .collect();
        let options = oracle::RecordEncodeOptions {
            version: 2,
            compression: oracle::Compression::None,
        };
        let mut bytes = BytesMut::new();
        oracle::RecordBatchEncoder::encode(&mut bytes, &theirs, &options).unwrap();
        let batch = RecordBatch::parse(bytes.freeze()).unwrap();
        batch.verify_crc().unwrap();
        batch.validate_records(CAP).unwrap();
        prop_assert_eq!(batch.partition_leader_epoch(), 6);
        prop_assert_eq!(batch.stamp(), stamp(0));
        for (record, ours) in records.iter().zip(batch.records(CAP).unwrap()) {
            let ours = ours.unwrap();
            prop_assert_eq!(ours.timestamp, record.0);
            prop_assert_eq!(ours.key.as_deref(), record.1.as_deref());
            prop_assert_eq!(ours.value.as_deref(), record.2.as_deref());
            prop_assert_eq!(&headers_of(&ours), &record.3);
        }
    }
}

#[test]
fn repeated_header_keys_and_null_values_survive() {
    let mut builder = RecordBatchBuilder::new(Compression::Snappy);
    builder.append(
        0,
        Some(b""),
        None,
        &[("a", Some(b"1")), ("b", None), ("a", Some(b""))],
    );
    let batch = RecordBatch::parse(builder.finish(ProducerStamp::NONE).unwrap()).unwrap();
    let record = batch.records(CAP).unwrap().next().unwrap().unwrap();
    assert_eq!(record.key.as_deref(), Some(&b""[..]), "empty is not null");
    assert_eq!(record.value, None);
    assert_eq!(record.headers.len(), 3);
    assert_eq!(record.headers.last("a"), Some(Some(&b""[..])));
    assert_eq!(record.headers.last("b"), Some(None));
    assert_eq!(record.headers.last("c"), None);
    let mut again = RecordBatchBuilder::new(Compression::Snappy);
    again.append_with(0, Some(b""), None, &record.headers);
    assert_eq!(&again.finish(ProducerStamp::NONE).unwrap(), batch.bytes());
}

#[test]
fn a_batch_without_records_is_an_error() {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    assert_eq!(builder.finish(ProducerStamp::NONE), Err(BatchError::Empty));
    builder.append(0, None, None, &[]);
    builder.clear();
    assert_eq!(builder.finish(ProducerStamp::NONE), Err(BatchError::Empty));
}

#[test]
fn the_first_record_always_fits() {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    assert!(builder.would_fit(1 << 20, 16_384));
    builder.append(0, None, Some(&[0; 100]), &[]);
    assert!(builder.would_fit(100, 16_384));
    assert!(!builder.would_fit(1 << 20, 16_384));
}

/// Not a check but a measurement: `cargo test -p millstream-protocol --release -- --ignored nanos`.
#[test]
#[ignore = "measures"]
#[expect(clippy::disallowed_methods, reason = "measures real time")]
fn nanos_per_record() {
    let value = [7_u8; 100];
    let mut builder = RecordBatchBuilder::with_capacity(Compression::None, 1 << 20);
    let (rounds, records) = (2_000, 1_000);
    let started = std::time::Instant::now();
    let mut batch = Bytes::new();
    for _ in 0..rounds {
        for index in 0..records {
            builder.append(index, Some(b"12345678"), Some(&value), &[]);
        }
        batch = builder.finish(stamp(0)).unwrap();
    }
    let per = |started: std::time::Instant| {
        started.elapsed().as_nanos() as f64 / (rounds * records) as f64
    };
    println!("encode {:.1} ns", per(started));
    let batch = RecordBatch::parse(batch).unwrap();
    let started = std::time::Instant::now();
    for _ in 0..rounds {
        assert_eq!(
            batch.validate_records(CAP).unwrap().record_count,
            records as i32
        );
    }
    println!("validate {:.1} ns", per(started));
    let started = std::time::Instant::now();
    let mut bytes = 0;
    for _ in 0..rounds {
        let mut walk = batch.records(CAP).unwrap();
        while let Some(view) = walk.next_view() {
            bytes += view.unwrap().value.unwrap().len();
        }
    }
    println!("views {:.1} ns", per(started));
    let started = std::time::Instant::now();
    for _ in 0..rounds {
        for record in batch.records(CAP).unwrap() {
            bytes += record.unwrap().value.unwrap().len();
        }
    }
    println!("owned {:.1} ns ({bytes})", per(started));
}
