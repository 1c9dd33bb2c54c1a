//! The oracle: what a reader of committed records sees, beside what the model says it must see.
//!
//! Invariants: topics are read from their beginning to their last stable offsets, in their order.
//! Never: trusts a count of the job's own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use examples::model::{Audit, Customer, Enriched, Order};
use millstream::TopicPartition;
use millstream::client::consumer::{AutoOffsetReset, Consumer, ConsumerRecord, Isolation};
use millstream::client::{Admin, Transport};
use tokio::time::Instant;

/// How long reading a topic may take without getting further; more than any stall of a test that
/// shares its thread.
const PATIENCE: Duration = Duration::from_secs(120);

/// Everything that is judged.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The records of `orders`.
    pub orders: Vec<ConsumerRecord>,
    /// The records of `orders.enriched`.
    pub enriched: Vec<ConsumerRecord>,
    /// The records of `orders.audit`.
    pub audit: Vec<ConsumerRecord>,
    /// The records of `orders.dead-letter`.
    pub dead_letters: Vec<ConsumerRecord>,
    /// The customers by id.
    pub customers: BTreeMap<String, Customer>,
    /// What the group has committed for `orders`.
    pub committed: BTreeMap<TopicPartition, i64>,
    /// The last stable offsets of `orders`.
    pub ends: BTreeMap<TopicPartition, i64>,
}

impl Snapshot {
    /// Reads the topics of the orders workload and the group's offsets.
    ///
    /// # Errors
    /// Where the broker does not let them be read to their ends in time.
    pub async fn read(transport: &Arc<dyn Transport>, group: &str) -> anyhow::Result<Self> {
        let (orders, ends) = topic(transport, "orders").await?;
        let (enriched, _) = topic(transport, "orders.enriched").await?;
        let (audit, _) = topic(transport, "orders.audit").await?;
        let (dead_letters, _) = topic(transport, "orders.dead-letter").await?;
        let mut customers = BTreeMap::new();
        for record in topic(transport, "customers").await?.0 {
            let value = record.value.as_deref().context("a customer has a value")?;
            let customer: Customer = serde_json::from_slice(value)?;
            customers.insert(customer.customer_id.clone(), customer);
        }
        let committed = committed(transport, group).await?;
        Ok(Self {
            orders,
            enriched,
            audit,
            dead_letters,
            customers,
            committed,
            ends,
        })
    }

    /// What the job has to make of an order: the enriched and the audit record, or nothing where it
    /// is malformed.
    #[must_use]
    pub fn expected(&self, record: &ConsumerRecord) -> Option<(Enriched, Audit)> {
        let value = record.value.as_deref()?;
        let order: Order = match serde_json::from_slice(value) {
            // serde also reads a struct from an array; the contract is an object.
            Ok(order) if value.trim_ascii_start().first() == Some(&b'{') => order,
            _ => return None,
        };
        let audit = Audit {
            order_id: order.order_id.clone(),
            source_partition: record.partition,
            source_offset: record.offset,
        };
        let customer = self.customers.get(&order.customer_id).cloned();
        Some((Enriched::new(order, customer), audit))
    }
}

/// What the group has committed.
///
/// # Errors
/// Where the coordinator does not answer.
pub async fn committed(
    transport: &Arc<dyn Transport>,
    group: &str,
) -> anyhow::Result<BTreeMap<TopicPartition, i64>> {
    let offsets = Admin::connect(transport)
        .await?
        .group_offsets(group)
        .await?;
    Ok(offsets
        .into_iter()
        .map(|(partition, found)| (partition, found.offset))
        .collect())
}

type Read = (Vec<ConsumerRecord>, BTreeMap<TopicPartition, i64>);

/// Every committed record of a topic, and the last stable offsets to which it was read.
///
/// # Errors
/// Where reading gets no further before it has reached the ends.
pub async fn topic(transport: &Arc<dyn Transport>, topic: &str) -> anyhow::Result<Read> {
    read(transport, topic, Isolation::ReadCommitted).await
}

/// How many records a reader of uncommitted ones sees.
///
/// # Errors
/// As [`topic`].
pub async fn count_uncommitted(transport: &Arc<dyn Transport>, topic: &str) -> anyhow::Result<u64> {
    Ok(read(transport, topic, Isolation::ReadUncommitted)
        .await?
        .0
        .len() as u64)
}

/// Waits until no transaction is open in these topics: one may time out yet, or get its markers.
///
/// # Errors
/// The first partition in which one stays open.
pub async fn nothing_open(transport: &Arc<dyn Transport>, topics: &[&str]) -> anyhow::Result<()> {
    let reader = async |isolation| {
        let builder = Consumer::builder().isolation(isolation);
        builder.connect(transport).await
    };
    let committed = reader(Isolation::ReadCommitted).await?;
    let uncommitted = reader(Isolation::ReadUncommitted).await?;
    let give_up = Instant::now() + PATIENCE;
    for topic in topics {
        let count = uncommitted.partitions_of(topic).await?;
        let partitions: Vec<_> = (0..count).map(|p| TopicPartition::new(*topic, p)).collect();
        loop {
            let ends = uncommitted.end_offsets(&partitions).await?;
            let stable = committed.end_offsets(&partitions).await?;
            let Some((open, end)) = ends.iter().find(|(p, end)| stable.get(p) != Some(end)) else {
                break;
            };
            if Instant::now() > give_up {
                let from = stable.get(open);
                bail!("a transaction stays open in {open}, from {from:?} on (its end is {end})");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    committed.close().await?;
    uncommitted.close().await?;
    Ok(())
}

async fn read(
    transport: &Arc<dyn Transport>,
    topic: &str,
    isolation: Isolation,
) -> anyhow::Result<Read> {
    let consumer = Consumer::builder()
        .isolation(isolation)
        .auto_offset_reset(AutoOffsetReset::Earliest)
        .connect(transport)
        .await?;
    let count = consumer.partitions_of(topic).await?;
    let partitions: Vec<_> = (0..count).map(|p| TopicPartition::new(topic, p)).collect();
    let ends = consumer.end_offsets(&partitions).await?;
    consumer.assign(partitions)?;
    let mut records = Vec::new();
    let mut positions: BTreeMap<TopicPartition, i64> = BTreeMap::new();
    let mut moved = Instant::now();
    while ends
        .iter()
        .any(|(p, end)| *end > positions.get(p).copied().unwrap_or(0))
    {
        let polled = consumer.poll(Duration::from_millis(200)).await?;
        for read in polled.partitions {
            let end = ends.get(&read.topic_partition).copied().unwrap_or(0);
            records.extend(
                read.records
                    .into_iter()
                    .filter(|record| record.offset < end),
            );
            positions.insert(read.topic_partition, read.next_offset);
            moved = Instant::now();
        }
        if moved.elapsed() > PATIENCE {
            bail!("{topic} cannot be read to its ends {ends:?}: positions {positions:?}");
        }
    }
    consumer.close().await?;
    records.sort_by_key(|record| (record.partition, record.offset));
    Ok((records, ends))
}

/// The first header with this name, as text.
#[must_use]
pub fn header(record: &ConsumerRecord, name: &str) -> Option<String> {
    let (_, value) = record.headers.iter().find(|(key, _)| key == name)?;
    Some(String::from_utf8_lossy(value?).into_owned())
}

/// Key and value, for comparing.
#[must_use]
pub fn content(record: &ConsumerRecord) -> (Option<Bytes>, Option<Bytes>) {
    (record.key.clone(), record.value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::under_test::BrokerUnderTest;
    use millstream::client::{IntoTransport as _, Producer, ProducerRecord};

    #[tokio::test(start_paused = true)]
    async fn a_transaction_that_stays_open_is_named_and_one_that_ends_is_waited_for()
    -> anyhow::Result<()> {
        let cluster = BrokerUnderTest::start(1).await?;
        let topic = cluster.create("t", 2).await?;
        let open = async |transaction_timeout_ms| {
            let builder = Producer::transactional(cluster.name("id"));
            let builder = builder.transaction_timeout_ms(transaction_timeout_ms);
            let producer = builder.client(cluster.client(1)).connect(&cluster).await?;
            producer.init_transactions().await?;
            producer.begin()?;
            let record = ProducerRecord::new(topic.clone()).partition(1).value("x");
            producer.send(record).await?.await?;
            anyhow::Ok(producer)
        };
        let transport = cluster.into_transport();
        let short = open(10_000).await?;
        nothing_open(&transport, &[&topic]).await?;
        drop(short);
        let long = open(600_000).await?;
        let error = nothing_open(&transport, &[&topic]).await.unwrap_err();
        assert!(error.to_string().contains(&format!("{topic}-1")), "{error}");
        drop(long);
        Ok(())
    }
}
