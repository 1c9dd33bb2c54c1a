//! The loader: every record of the workload once, whatever interrupts it.
//!
//! Each of its transactions holds some records and, as the committed offset of the group
//! `<application id>-load`, how many were loaded by then. So a load that was cut short goes on
//! behind its last commit, a second run finds nothing to do, and a larger number of orders adds the
//! difference.
//!
//! Invariants: records and count are committed together; a loader fences its predecessor before it
//! reads the count.
//! Never: reads the topics to find out what is there.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use millstream::TopicPartition;
use millstream::client::consumer::Consumer;
use millstream::client::{
    Admin, GroupMetadata, IntoTransport, NewTopic, OffsetAndMetadata, Producer, ProducerRecord,
    Transport,
};
use millstream::formats::protocol::ErrorCode;

use crate::data::{self, RawRecord};

/// Records in one of the loader's transactions.
const TRANSACTION_RECORDS: u64 = 5_000;

/// The topics of the workload.
pub const TOPICS: [&str; 5] = [
    "orders",
    "customers",
    "orders.enriched",
    "orders.audit",
    "orders.dead-letter",
];
/// Partitions of each, unless it exists.
pub const PARTITIONS: i32 = 4;

/// What to load, and as whom.
#[derive(Debug, Clone)]
pub struct Load {
    /// Names the group that holds the count.
    pub application_id: String,
    /// The loader produces as `<transactional id>-load`.
    pub transactional_id: String,
    /// Number of orders; the bundled ones where it is `None`.
    pub orders: Option<u64>,
}

/// Largest batch that the output topics take: what comes out of an order, or goes to the dead
/// letters, is larger than what came in.
const OUTPUT_BYTES_MAX: &str = "4194304";

/// Creates the topics that do not exist.
///
/// # Errors
/// Where the broker refuses one for another reason.
pub async fn create_topics(transport: &Arc<dyn Transport>) -> anyhow::Result<()> {
    let admin = Admin::connect(transport).await?;
    for name in TOPICS {
        let mut topic = NewTopic::new(name, PARTITIONS);
        if name.starts_with("orders.") {
            topic = topic.config("max.message.bytes", OUTPUT_BYTES_MAX);
        }
        match admin.create_topic(&topic).await {
            Ok(()) => {}
            Err(error) if error.code() == Some(ErrorCode::TOPIC_ALREADY_EXISTS) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("topic {name} could not be created"));
            }
        }
    }
    Ok(())
}

/// Loads what is not loaded yet and answers how many orders that were. `progress` hears of every
/// commit.
///
/// # Errors
/// Where the broker stays away, or holds a load of another source.
pub async fn load(
    target: &impl IntoTransport,
    load: &Load,
    progress: impl Fn(&str, u64, u64),
) -> anyhow::Result<u64> {
    let transport = target.into_transport();
    let producer = Producer::builder()
        .transactional_id(format!("{}-load", load.transactional_id))
        .batch_size(256 * 1024)
        .connect(&transport)
        .await?;
    producer.init_transactions().await?;
    let group = format!("{}-load", load.application_id);
    let counts = Counts::read(&transport, group).await?;
    let customers = data::bundled_customers();
    let customer = |number: u64| customers.get(number as usize).cloned();
    run(
        &producer,
        &counts,
        "customers",
        data::CUSTOMERS,
        customer,
        &progress,
    )
    .await?;
    let bundled = if load.orders.is_none() {
        data::bundled_orders()
    } else {
        Vec::new()
    };
    let wanted = load.orders.unwrap_or(bundled.len() as u64);
    let order = |number: u64| match load.orders {
        None => bundled.get(number as usize).cloned(),
        Some(_) => Some(data::order(number)),
    };
    let loaded = run(&producer, &counts, "orders", wanted, order, &progress).await?;
    producer.close(std::time::Duration::from_secs(10)).await;
    Ok(loaded)
}

/// How many records of each topic were loaded by committed transactions.
struct Counts {
    group: GroupMetadata,
    committed: BTreeMap<TopicPartition, Option<OffsetAndMetadata>>,
}

impl Counts {
    async fn read(transport: &Arc<dyn Transport>, group: String) -> anyhow::Result<Self> {
        let consumer = Consumer::builder()
            .group_id(group.clone())
            .connect(transport)
            .await?;
        let partitions = ["customers", "orders"].map(|topic| TopicPartition::new(topic, 0));
        let committed = consumer.committed(&partitions).await?;
        consumer.close().await?;
        let group = GroupMetadata::without_membership(group);
        Ok(Self { group, committed })
    }

    fn of(&self, topic: &str) -> anyhow::Result<u64> {
        match self.committed.get(&TopicPartition::new(topic, 0)) {
            Some(Some(found)) if found.metadata == data::SOURCE => Ok(found.offset as u64),
            Some(Some(found)) => bail!(
                "{topic} was loaded from another source ({:?}, this is {:?}); \
                 use another data directory, or --no-load",
                found.metadata,
                data::SOURCE,
            ),
            _ => Ok(0),
        }
    }
}

async fn run(
    producer: &Producer,
    counts: &Counts,
    topic: &str,
    wanted: u64,
    record: impl Fn(u64) -> Option<RawRecord>,
    progress: &impl Fn(&str, u64, u64),
) -> anyhow::Result<u64> {
    let topic: Arc<str> = topic.into();
    let before = counts.of(&topic)?;
    let mut next = before;
    while next < wanted {
        let end = wanted.min(next + TRANSACTION_RECORDS);
        producer.begin()?;
        for number in next..end {
            let Some(RawRecord { key, value }) = record(number) else {
                break;
            };
            let mut record = ProducerRecord::new(Arc::clone(&topic));
            if let Some(key) = key {
                record = record.key(Bytes::from(key));
            }
            if let Some(value) = value {
                record = record.value(Bytes::from(value));
            }
            // The commit below fails where any of these does, so the futures need not be kept.
            drop(producer.send(record).await?);
        }
        let count = OffsetAndMetadata {
            offset: end as i64,
            leader_epoch: None,
            metadata: data::SOURCE.to_owned(),
        };
        let partition = TopicPartition::new(Arc::clone(&topic), 0);
        producer
            .send_offsets(&[(partition, count)], &counts.group)
            .await?;
        commit(producer).await?;
        next = end;
        progress(&topic, next, wanted);
    }
    Ok(next.saturating_sub(before))
}

/// A commit that is not answered may have happened: it is asked for again, never aborted.
async fn commit(producer: &Producer) -> anyhow::Result<()> {
    use millstream::client::TransactionError;
    for _ in 0..3 {
        match producer.commit().await {
            Err(TransactionError::CommitInDoubt { .. }) => {}
            other => return Ok(other?),
        }
    }
    Ok(producer.commit().await?)
}
