//! Settings of a topic: bounds on times, when segments end, and that they change while the log is
//! open.

use super::*;

fn times(timestamps: &[i64]) -> Bytes {
    let mut builder = RecordBatchBuilder::new(Compression::Lz4);
    for timestamp in timestamps {
        builder.append(*timestamp, Some(b"k"), Some(b"v"), &[]);
    }
    builder.finish(ProducerStamp::NONE).unwrap()
}

fn segments(log: &PartitionLog) -> usize {
    log.lock().segments.len()
}

#[test]
fn a_record_too_far_from_the_brokers_time_is_refused_at_the_edge_and_one_without_a_time_is_not() {
    let log = log_with(PartitionConfig {
        timestamp_before_max_ms: 100,
        timestamp_after_max_ms: 200,
        ..config()
    });
    for outside in [NOW - 101, NOW + 201] {
        let refused = log.refused(times(&[NOW, outside, NOW]));
        assert_eq!(refused, 32, "INVALID_TIMESTAMP of {outside}");
    }
    log.put(times(&[NOW - 100, NOW + 200, -1]));
    log.put(times(&[-1]));
    log.set_config(PartitionConfig {
        log_append_time: true,
        ..(*log.config()).clone()
    });
    log.put(times(&[5]));
}

#[test]
fn a_producer_that_misstates_its_largest_time_does_not_spoil_the_look_up() {
    let log = log_with(config());
    let batch = RecordBatch::parse(times(&[NOW, NOW + 30, NOW + 20])).unwrap();
    log.put(batch.with_max_timestamp(NOW));
    let found = log.offset_for_timestamp(NOW + 25).unwrap();
    assert_eq!(found, Some((1, NOW + 30)));
    assert_eq!(log.max_timestamp().unwrap(), Some((1, NOW + 30)));
}

#[test]
fn new_settings_are_in_force_from_the_next_append_on() {
    let log = log_with(config());
    log.put(plain(1));
    log.set_config(PartitionConfig {
        max_message_bytes: 10,
        segment_bytes: 1,
        ..config()
    });
    assert_eq!(log.refused(plain(1)), 10, "MESSAGE_TOO_LARGE");
    log.set_config(PartitionConfig {
        segment_bytes: 1,
        ..config()
    });
    log.put(plain(1));
    assert_eq!(segments(&log), 2);
}

#[test]
fn a_full_index_ends_its_segment() {
    let small = PartitionConfig {
        index_interval_bytes: 0,
        segment_index_bytes: 24,
        ..config()
    };
    let log = log_with(small);
    for n in 0..10 {
        log.put(batch_at(NOW + n, 1, ProducerStamp::NONE));
    }
    // An entry for every batch but the first of a segment; two of 12 bytes fill a time index.
    assert_eq!(segments(&log), 4);
}

#[test]
fn jitter_ends_a_segment_earlier_and_never_later() {
    let with = |segment_jitter_ms| {
        let log = log_with(PartitionConfig {
            segment_ms: 1_000,
            segment_jitter_ms,
            ..config()
        });
        for n in 0..100 {
            log.put(batch_at(NOW + n * 100, 1, ProducerStamp::NONE));
        }
        segments(&log)
    };
    let exact = with(0);
    assert_eq!(exact, 10);
    assert!(with(900) > exact);
}
