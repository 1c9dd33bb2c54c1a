//! A read-process-write loop by hand: what the streams runtime does for you, with nothing hidden.
//!
//! It reads `orders`, counts the characters of each value, and writes `orders.lengths`, with the
//! offsets in the same transaction. Each class of error is treated as it must be, and the comments
//! say why.
//!
//! Invariants: after an abort the consumer goes back to its committed offsets, or the aborted batch
//! would be skipped (the fault of many published loops); a commit without an answer is asked for
//! again, never aborted.
//! Never: commits an offset outside of a transaction.

use std::time::Duration;

use anyhow::bail;
use millstream::Error;
use millstream::client::consumer::{AutoOffsetReset, ConsumerRecords};
use millstream::client::{OffsetAndMetadata, TransactionError};
use millstream::prelude::*;

const COMMIT_TRIES: u32 = 3;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let broker = Broker::in_memory().await?;
    fill(&broker).await?;

    let producer = Producer::transactional("orders-lengths-1")
        .connect(&broker)
        .await?;
    // Fences every earlier holder of the id, and waits until what it left open is decided.
    producer.init_transactions().await?;
    // read_committed and no auto-commit are the defaults here; in Kafka's clients they have to be
    // set.
    let consumer = Consumer::builder()
        .group_id("orders-lengths")
        .auto_offset_reset(AutoOffsetReset::Earliest)
        .connect(&broker)
        .await?;
    consumer.subscribe(vec!["orders"])?;

    let mut done = 0;
    while done < 1_000 {
        let records = consumer.poll(Duration::from_millis(200)).await?;
        if records.is_empty() {
            continue;
        }
        match process(&producer, &consumer, &records).await {
            Ok(()) => done += records.len(),
            // Somebody with the same id runs: whatever this instance did since is void, and nothing
            // may be retried.
            Err(Error::Transaction(
                error @ (TransactionError::Fenced { .. } | TransactionError::Fatal { .. }),
            )) => {
                producer.close(Duration::ZERO).await;
                bail!(error);
            }
            // The commit was asked for three times without an answer. It may have happened, so it
            // is neither aborted nor done again: a new start fences, reads the committed offsets,
            // and knows.
            Err(Error::Transaction(error @ TransactionError::CommitInDoubt { .. })) => {
                producer.close(Duration::ZERO).await;
                bail!(error);
            }
            // Everything else ends in an abort and the same records again.
            Err(error) => {
                report(&format!("aborting: {error}"));
                producer.abort().await?;
                for partition in consumer.assignment() {
                    consumer.seek_to_committed(&partition)?;
                }
            }
        }
    }
    report(&format!("{done} orders measured, each exactly once"));
    consumer.close().await?;
    producer.close(Duration::from_secs(5)).await;
    broker.close().await?;
    Ok(())
}

/// One transaction: outputs and offsets.
async fn process(
    producer: &Producer,
    consumer: &Consumer,
    records: &ConsumerRecords,
) -> millstream::Result<()> {
    producer.begin()?;
    for record in records.iter() {
        let length = record.value.as_deref().map_or(0, <[u8]>::len);
        let mut output = ProducerRecord::new("orders.lengths").value(length.to_string());
        if let Some(key) = &record.key {
            output = output.key(key.clone());
        }
        // The acknowledgement is not awaited here: commit() waits for all of them and fails where
        // one did.
        drop(producer.send(output).await?);
    }
    let offsets: Vec<(TopicPartition, OffsetAndMetadata)> = records
        .partitions
        .iter()
        .map(|read| (read.topic_partition.clone(), read.next_offset.into()))
        .collect();
    // The group's metadata makes the coordinator refuse these offsets where the group has moved on
    // without us.
    let group = consumer.group_metadata()?;
    producer.send_offsets(&offsets, &group).await?;
    for attempt in 1.. {
        match producer.commit().await {
            Err(TransactionError::CommitInDoubt { .. }) if attempt < COMMIT_TRIES => {}
            other => return Ok(other?),
        }
    }
    Ok(())
}

/// Some input to read.
async fn fill(broker: &Broker) -> anyhow::Result<()> {
    let producer = Producer::idempotent().connect(broker).await?;
    for number in 0..1_000 {
        let record = ProducerRecord::new("orders")
            .key(format!("o-{number}"))
            .value(format!("order number {number}"));
        drop(producer.send(record).await?);
    }
    producer.flush().await?;
    producer.close(Duration::from_secs(5)).await;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "this is the program's output")]
fn report(line: &str) {
    println!("{line}");
}
