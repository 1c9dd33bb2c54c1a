//! The client's public interface over the broker under test: ours in virtual time, or an Apache
//! Kafka.
//!
//! | module | what it shows |
//! |---|---|
//! | `producing` | codecs, keys, headers, acknowledgements, topics that are made again |
//! | `consuming` | groups, offsets, resets, seeking, readers of a topic that is made again |
//! | `administration` | topics, settings, offsets, groups and transactions as an admin sees them |
//!
//! Invariants: what a Kafka carries out after its answer is waited for, and judged then.
//! Never: a test of one broker's own behaviour; where they differ, the expectation says for whom.

mod administration;
mod consuming;
mod producing;

use std::time::Duration;

use anyhow::ensure;
use millstream::client::consumer::{AutoOffsetReset, Consumer, ConsumerBuilder, ConsumerRecord};
use millstream::client::{Producer, ProducerBuilder};
use tests::under_test::BrokerUnderTest;
use tokio::time::Instant;

/// How long to wait for something that happens at once on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

async fn producer(cluster: &BrokerUnderTest, builder: ProducerBuilder) -> anyhow::Result<Producer> {
    Ok(builder.client(cluster.client(1)).connect(cluster).await?)
}

/// A consumer that begins at the beginning.
fn earliest(cluster: &BrokerUnderTest, number: u64) -> ConsumerBuilder {
    Consumer::builder()
        .client(cluster.client(100 + number))
        .auto_offset_reset(AutoOffsetReset::Earliest)
}

/// Polls until so many records have come.
async fn take(consumer: &Consumer, count: usize) -> anyhow::Result<Vec<ConsumerRecord>> {
    let give_up = Instant::now() + PATIENCE;
    let mut records = Vec::new();
    while records.len() < count {
        let polled = consumer.poll(Duration::from_millis(200)).await?;
        let partitions = polled.partitions.into_iter();
        records.extend(partitions.flat_map(|partition| partition.records));
        ensure!(
            Instant::now() < give_up,
            "{} of {count} records after {PATIENCE:?}",
            records.len()
        );
    }
    Ok(records)
}

/// Values as text.
fn texts(records: &[ConsumerRecord]) -> Vec<String> {
    let values = records.iter().map(|record| record.value.as_deref());
    values
        .map(|value| String::from_utf8_lossy(value.unwrap_or_default()).into_owned())
        .collect()
}

/// Asks again and again until the answer is yes.
async fn until(
    what: &str,
    mut asked: impl AsyncFnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let give_up = Instant::now() + PATIENCE;
    while !asked().await? {
        ensure!(Instant::now() < give_up, "waited {PATIENCE:?} for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
