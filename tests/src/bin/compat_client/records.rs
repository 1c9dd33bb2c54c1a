//! The standard records: written, and read back as lines.
//!
//! Invariants: the records are those of `tests/compat/suites/clients.py`, byte for byte.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use millstream::TopicPartition;
use millstream::client::consumer::{AutoOffsetReset, ConsumerRecord};
use millstream::client::{Consumer, Producer, ProducerRecord};
use millstream_protocol::Compression;

use crate::say;

const RECORDS: i32 = 200;
const FIRST_TIMESTAMP: i64 = 1_700_000_000_000;

type Shape = (Option<&'static [u8]>, Option<&'static [u8]>);
/// Key and value of the first records: null and empty told apart.
const SHAPES: [Shape; 6] = [
    (Some(b"key"), Some(b"value")),
    (None, Some(b"no key")),
    (Some(b""), Some(b"")),
    (Some(b"tombstone"), None),
    (None, None),
    (Some(b"\xff"), Some(b"\0")),
];

fn standard(topic: &Arc<str>, n: i32) -> ProducerRecord {
    let mut record = ProducerRecord::new(Arc::clone(topic))
        .partition(0)
        .timestamp(FIRST_TIMESTAMP + i64::from(n));
    let shape = usize::try_from(n).ok().and_then(|n| SHAPES.get(n));
    (record.key, record.value) = if let Some((key, value)) = shape {
        (key.map(Bytes::from_static), value.map(Bytes::from_static))
    } else {
        let value = format!("compressible {n} ").repeat(20);
        (Some(format!("k{n}").into()), Some(value.into()))
    };
    if n == 0 {
        for value in ["1", "2"] {
            record = record.header("h", Some(Bytes::from_static(value.as_bytes())));
        }
        record = record
            .header("empty", Some(Bytes::new()))
            .header("null", None);
    }
    record
}

/// Writes the standard records, and asserts the offsets that come back.
pub(crate) async fn produce(bootstrap: &str, topic: &str, codec: &str) -> anyhow::Result<()> {
    let codec: Compression = codec.parse()?;
    let builder = Producer::builder().compression(codec).linger_ms(20);
    let producer = builder.connect(bootstrap).await?;
    let topic = Arc::from(topic);
    let mut deliveries = Vec::new();
    for n in 0..RECORDS {
        deliveries.push(producer.send(standard(&topic, n)).await?);
    }
    for (n, delivery) in (0..).zip(deliveries) {
        let found = delivery.await?;
        ensure!(found.offset == n, "record {n} at {found:?}");
    }
    say("done");
    Ok(())
}

fn shown(value: Option<&[u8]>) -> String {
    value.map_or_else(
        || "-".to_owned(),
        |value| {
            value
                .iter()
                .fold("x".to_owned(), |text, byte| format!("{text}{byte:02x}"))
        },
    )
}

fn line(record: &ConsumerRecord) -> String {
    let ConsumerRecord {
        partition,
        offset,
        timestamp,
        ..
    } = record;
    let (key, value) = (shown(record.key.as_deref()), shown(record.value.as_deref()));
    let mut line = format!("{partition} {offset} {timestamp} {key} {value}");
    for (name, value) in record.headers.iter() {
        line = format!("{line} {name}={}", shown(value));
    }
    line
}

/// Prints every committed record up to where the partitions end now.
pub(crate) async fn dump(bootstrap: &str, topic: &str, partitions: i32) -> anyhow::Result<()> {
    let builder = Consumer::builder().auto_offset_reset(AutoOffsetReset::Earliest);
    let consumer = builder.connect(&bootstrap).await?;
    let all: Vec<_> = (0..partitions)
        .map(|p| TopicPartition::new(topic, p))
        .collect();
    consumer.assign(all.clone())?;
    let ends = consumer.end_offsets(&all).await?;
    let at_end = || {
        let reached = |(p, end): (&TopicPartition, &i64)| {
            *end == 0 || consumer.position(p).is_some_and(|at| at >= *end)
        };
        ends.iter().all(reached)
    };
    while !at_end() {
        for record in consumer.poll(Duration::from_millis(200)).await?.iter() {
            say(&line(record));
        }
    }
    consumer.close().await?;
    say("done");
    Ok(())
}
