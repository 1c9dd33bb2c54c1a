//! Compacted topics as clients see them.
//!
//! Invariants: time is virtual; the broker's own loop compacts.
//! Never: calls the log.

use super::harness::*;
use bytes::Bytes;
use millstream_protocol::{Compression, ErrorCode, ProducerStamp, RecordBatchBuilder};
use std::time::Duration;

const COMPACT: (&str, &str) = ("cleanup.policy", "compact");

fn keyed(records: &[(Option<&str>, Option<&str>)], stamp: ProducerStamp) -> Bytes {
    let mut builder = RecordBatchBuilder::new(Compression::Lz4);
    for (key, value) in records {
        builder.append(
            START_MS,
            key.map(str::as_bytes),
            value.map(str::as_bytes),
            &[],
        );
    }
    builder.finish(stamp).expect("builds")
}

#[tokio::test(start_paused = true)]
async fn records_without_a_key_are_refused_one_by_one_on_a_compacted_topic() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic_with("table", 1, &[COMPACT]).await;
    client.create_topic("stream", 1).await;
    let records = [
        (Some("a"), Some("1")),
        (None, Some("2")),
        (Some(""), None),
        (None, None),
    ];
    let batch = keyed(&records, ProducerStamp::NONE);
    let refused = client.produce("table", 0, batch.clone()).await;
    assert_eq!(refused.error_code, ErrorCode::INVALID_RECORD);
    assert_eq!(refused.base_offset, -1);
    let message = refused.error_message.expect("a message");
    assert!(message.contains("need keys"), "{message}");
    let errors = refused.record_errors.iter();
    let indexes: Vec<i32> = errors.clone().map(|error| error.batch_index).collect();
    assert_eq!(indexes, [1, 3]);
    assert!(
        errors
            .clone()
            .all(|error| error.batch_index_error_message.is_some())
    );
    let kept = client
        .produce("table", 0, keyed(&records[..1], ProducerStamp::NONE))
        .await;
    assert_eq!((kept.error_code, kept.base_offset), (ErrorCode::NONE, 0));
    let plain = client.produce("stream", 0, batch).await;
    assert_eq!(plain.error_code, ErrorCode::NONE);
}

#[tokio::test(start_paused = true)]
async fn the_brokers_loop_compacts_and_retries_are_still_recognised() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let settings = [COMPACT, ("max.compaction.lag.ms", "1000")];
    client.create_topic_with("table", 1, &settings).await;
    let stamp = |base_sequence| ProducerStamp {
        producer_id: 900,
        producer_epoch: 0,
        base_sequence,
        transactional: false,
    };
    let values = ["0", "1", "2", "3", "4", "5", "6", "7"];
    let batches: Vec<Bytes> = values
        .iter()
        .zip(0..)
        .map(|(value, n)| keyed(&[(Some("k"), Some(value))], stamp(n)))
        .collect();
    for batch in &batches {
        let answer = client.produce("table", 0, batch.clone()).await;
        assert_eq!(answer.error_code, ErrorCode::NONE);
    }
    tokio::time::sleep(Duration::from_secs(16)).await;
    let data = client.fetch("table", 0, 0, 1).await;
    assert_eq!(super::harness::values(&data), [(7, "7".to_owned())]);
    assert_eq!((data.log_start_offset, data.high_watermark), (0, 8));
    let again = client.produce("table", 0, batches[4].clone()).await;
    assert_eq!((again.error_code, again.base_offset), (ErrorCode::NONE, 4));
    let older = client.produce("table", 0, batches[2].clone()).await;
    assert_eq!(older.error_code, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    let next = client
        .produce("table", 0, keyed(&[(Some("k"), None)], stamp(8)))
        .await;
    assert_eq!((next.error_code, next.base_offset), (ErrorCode::NONE, 8));
}
