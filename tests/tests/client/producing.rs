//! Records on their way into a topic.
//!
//! Invariants: what is read back is what was sent, byte for byte.
//! Never: a producer without an end.

use std::time::Duration;

use bytes::Bytes;
use millstream::client::{Acks, Admin, NewTopic, Producer, ProducerRecord};
use millstream::formats::protocol::{Compression, RecordBatch};
use tests::under_test::BrokerUnderTest;

use super::{earliest, producer, take, texts};

/// Keys and values that are null, empty, and large enough to be worth a codec; headers that repeat
/// and have no value.
fn shapes(topic: &str) -> Vec<ProducerRecord> {
    let record = || ProducerRecord::new(topic).partition(0);
    let large = Bytes::from("0123456789".repeat(2_000));
    vec![
        record().key("key").value("value"),
        record().value("without a key"),
        record().key("a tombstone"),
        record().key("").value(""),
        record().key("large").value(large),
        record()
            .key("headers")
            .value("h")
            .header("a", Some(Bytes::from_static(b"1")))
            .header("a", Some(Bytes::new()))
            .header("none", None),
    ]
}

#[tokio::test(start_paused = true)]
async fn every_codec_brings_back_what_was_sent() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(1).await?;
    let codecs = [
        Compression::None,
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ];
    for codec in codecs {
        let topic = cluster.create(&format!("{codec:?}"), 1).await?;
        let producer = producer(&cluster, Producer::idempotent().compression(codec)).await?;
        let sent: Vec<ProducerRecord> = shapes(&topic)
            .into_iter()
            .zip(1_700_000_000_000..)
            .map(|(record, timestamp)| ProducerRecord {
                timestamp: Some(timestamp),
                ..record
            })
            .collect();
        for record in &sent {
            drop(producer.send(record.clone()).await?);
        }
        producer.flush().await?;
        let consumer = earliest(&cluster, 1).connect(&cluster).await?;
        consumer.assign(vec![cluster.partition(&format!("{codec:?}"), 0)])?;
        let found = take(&consumer, sent.len()).await?;
        for (sent, found) in sent.iter().zip(&found) {
            let headers: Vec<_> = found
                .headers
                .iter()
                .map(|(name, value)| (name.to_string(), value.map(Bytes::copy_from_slice)))
                .collect();
            let expected = (&sent.key, &sent.value, sent.timestamp, &sent.headers);
            let found = (&found.key, &found.value, Some(found.timestamp), &headers);
            assert_eq!(found, expected, "{codec:?}");
        }
        // What is in the log is compressed, too; the large record alone is worth it.
        let end = sent.len().try_into()?;
        let batches = cluster.batches(&format!("{codec:?}"), 0, end).await?;
        assert!(
            batches.iter().all(|batch| batch.compression() == codec),
            "{codec:?}: {batches:?}"
        );
        let stored: usize = batches.iter().map(RecordBatch::size_bytes).sum();
        assert_eq!(
            stored < 2_000,
            codec != Compression::None,
            "{codec:?}: {stored} B"
        );
        consumer.close().await?;
        producer.close(Duration::from_secs(5)).await;
    }
    Ok(())
}

/// `acks` 0, 1 and all: who answers differs, what is in the log in the end does not.
#[tokio::test(start_paused = true)]
async fn acknowledgements_of_each_level_arrive() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(2).await?;
    let topic = cluster.create("acks", 1).await?;
    for (round, acks) in [Acks::None, Acks::Leader, Acks::All]
        .into_iter()
        .enumerate()
    {
        let builder = Producer::builder().idempotence(false).acks(acks);
        let producer = producer(&cluster, builder).await?;
        let mut deliveries = Vec::new();
        for number in 0..10 {
            let record = ProducerRecord::new(&*topic).value(format!("{round}-{number}"));
            deliveries.push(producer.send(record).await?);
        }
        producer.flush().await?;
        for (delivery, number) in deliveries.into_iter().zip(0..) {
            let offset = delivery.await?.offset;
            let expected = if acks == Acks::None {
                -1
            } else {
                round as i64 * 10 + number
            };
            assert_eq!(offset, expected, "{acks:?}");
        }
        producer.close(Duration::from_secs(5)).await;
        let consumer = earliest(&cluster, 1).connect(&cluster).await?;
        consumer.assign(vec![cluster.partition("acks", 0)])?;
        let found = take(&consumer, round * 10 + 10).await?;
        assert_eq!(found.len(), round * 10 + 10, "{acks:?}");
        consumer.close().await?;
    }
    Ok(())
}

/// One record is refused for its size; those around it, in batches of their own, are there.
#[tokio::test(start_paused = true)]
async fn a_record_that_its_topic_does_not_take_is_refused_alone() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(3).await?;
    let narrow = NewTopic::new(cluster.name("narrow"), 1).config("max.message.bytes", 300);
    Admin::with(&cluster, cluster.client(9))
        .create_topic(&narrow)
        .await?;
    let producer = producer(&cluster, Producer::idempotent()).await?;
    let send = async |value: String| {
        let record = ProducerRecord::new(cluster.name("narrow")).value(value);
        anyhow::Ok(producer.send(record).await?.await)
    };
    assert_eq!(send("before".into()).await??.offset, 0);
    let refused = send("x".repeat(3_000)).await?.expect_err("it is too large");
    assert!(
        refused.to_string().contains("MESSAGE_TOO_LARGE"),
        "{refused}"
    );
    assert_eq!(send("behind".into()).await??.offset, 1);
    Ok(())
}

/// A topic takes less than a marker is, and a record still fits: ours decides the transaction all
/// the same. A Kafka applies the limit to markers as well, and such a transaction stays prepared.
#[tokio::test(start_paused = true)]
async fn a_limit_below_a_markers_size_holds_for_records_only() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(6).await?;
    let narrow = NewTopic::new(cluster.name("narrow"), 1).config("max.message.bytes", 75);
    let admin = Admin::with(&cluster, cluster.client(9));
    admin.create_topic(&narrow).await?;
    let id = cluster.name("t");
    let producer = producer(&cluster, Producer::transactional(&*id)).await?;
    producer.init_transactions().await?;
    producer.begin()?;
    let record = ProducerRecord::new(cluster.name("narrow")).value("v");
    producer.send(record).await?.await?;
    producer.commit().await?;
    if cluster.is_kafka() {
        // Nothing else is under way in the topic: were it ever to be decided, it would be now.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let found = admin.describe_transaction(&id).await?;
        assert_eq!(found.transaction_state, "PrepareCommit");
    } else {
        assert_eq!(cluster.read("narrow").await?.0.len(), 1);
    }
    Ok(())
}

/// A producer that knows a topic meets another one of the same name: its leader, its id and its
/// sequences are new. What the producer sends is there once.
#[tokio::test(start_paused = true)]
async fn a_topic_that_is_made_again_is_written_to_from_its_beginning() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(4).await?;
    let topic = cluster.create("again", 1).await?;
    let producer = producer(&cluster, Producer::idempotent()).await?;
    let send = async |value: &str| {
        let record = ProducerRecord::new(&*topic).value(value.to_owned());
        anyhow::Ok(producer.send(record).await?.await?.offset)
    };
    for round in 0..3 {
        if round > 0 {
            cluster.delete("again").await?;
            cluster.create("again", 1).await?;
        }
        for number in 0..5 {
            assert_eq!(send(&format!("{round}-{number}")).await?, number, "{round}");
        }
    }
    let consumer = earliest(&cluster, 1).connect(&cluster).await?;
    consumer.assign(vec![cluster.partition("again", 0)])?;
    let found = texts(&take(&consumer, 5).await?);
    assert_eq!(found, ["2-0", "2-1", "2-2", "2-3", "2-4"]);
    Ok(())
}

/// What an idempotent producer sends in many small batches, five requests in flight, keeps its
/// order; each key has its partition.
#[tokio::test(start_paused = true)]
async fn records_of_one_key_stay_in_order_in_one_partition() -> anyhow::Result<()> {
    let cluster = BrokerUnderTest::start(5).await?;
    let topic = cluster.create("keyed", 4).await?;
    let producer = producer(&cluster, Producer::idempotent().batch_size(200)).await?;
    for number in 0..1_000_u64 {
        let key = format!("key-{}", number % 7);
        let record = ProducerRecord::new(&*topic).key(key);
        drop(producer.send(record.value(format!("{number:04}"))).await?);
    }
    producer.flush().await?;
    let (records, _) = cluster.read("keyed").await?;
    assert_eq!(records.len(), 1_000);
    for key in 0..7 {
        let key = format!("key-{key}");
        let of_key: Vec<_> = records
            .iter()
            .filter(|record| record.key.as_deref() == Some(key.as_bytes()))
            .collect();
        let partition = of_key[0].partition;
        assert!(of_key.iter().all(|record| record.partition == partition));
        assert!(of_key.windows(2).all(|pair| pair[0].value < pair[1].value));
    }
    Ok(())
}
