//! A small job for tests: it copies numbers from `in` to `out`, as a topology or by hand.
//!
//! Invariants: a number goes to the partition that it is congruent to; what is read back is sorted;
//! topics, groups and ids are named by the broker under test.
//! Never: a thread of its own.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context as _, bail};
use millstream::TopicPartition;
use millstream::client::consumer::{AutoOffsetReset, Consumer, ConsumerBuilder, ConsumerRecord};
use millstream::client::{GroupMetadata, OffsetAndMetadata, Producer, ProducerRecord};
use millstream::streams::{Placement, RunningStreams, Streams, StreamsBuilder, Topology, strings};
use tokio::time::Instant;

use crate::under_test::BrokerUnderTest;

/// Partitions of `in` and `out`.
pub const PARTITIONS: u64 = 4;
/// The application and its group.
pub const GROUP: &str = "copying";
/// How long an instance by hand waits for its records.
const PROCESS_PATIENCE: Duration = Duration::from_secs(60);

/// One topic to another, values unchanged.
///
/// # Panics
/// Never; the topology is sound.
#[must_use]
pub fn topology(input: &str, output: &str) -> Topology {
    let builder = StreamsBuilder::new();
    builder.stream(input, strings()).to(output, strings());
    builder.build().expect("a sound topology")
}

/// The job, on the test's runtime, with this transactional id and client number.
#[must_use]
pub fn job(cluster: &BrokerUnderTest, number: u64, transactional_id: &str) -> Streams {
    static_job(cluster, number, transactional_id).group_instance_id("")
}

/// [`job`] as it is by default: under a static membership.
pub fn static_job(cluster: &BrokerUnderTest, number: u64, transactional_id: &str) -> Streams {
    let topology = topology(&cluster.name("in"), &cluster.name("out"));
    Streams::new(&cluster.name(GROUP), topology)
        .connect(cluster)
        .client(cluster.client(number))
        .placement(Placement::Runtime)
        .transactional_id(cluster.name(transactional_id))
}

/// Writes numbers to `in`, each acknowledged.
///
/// # Errors
/// Where one is not.
pub async fn produce(cluster: &BrokerUnderTest, numbers: Range<u64>) -> anyhow::Result<()> {
    let producer = Producer::idempotent()
        .client(cluster.client(1_000))
        .connect(cluster)
        .await?;
    for number in numbers {
        drop(producer.send(cluster.record("in", number)).await?);
    }
    producer.flush().await?;
    producer.close(Duration::from_secs(10)).await;
    Ok(())
}

/// A number as a record.
///
/// # Panics
/// Never; a remainder fits.
#[must_use]
pub fn record(topic: &str, number: u64) -> ProducerRecord {
    let partition = i32::try_from(number % PARTITIONS).expect("a small remainder");
    let text = number.to_string();
    ProducerRecord::new(topic)
        .partition(partition)
        .key(text.clone())
        .value(text)
}

/// The committed numbers of a topic, sorted.
///
/// # Errors
/// Where the topic cannot be read to its ends.
pub async fn numbers(cluster: &BrokerUnderTest, topic: &str) -> anyhow::Result<Vec<u64>> {
    let (records, _) = cluster.read(topic).await?;
    let mut numbers: Vec<u64> = records.iter().map(number).collect::<anyhow::Result<_>>()?;
    numbers.sort_unstable();
    Ok(numbers)
}

fn number(record: &ConsumerRecord) -> anyhow::Result<u64> {
    let value = record.value.as_deref().context("a number is not null")?;
    Ok(std::str::from_utf8(value)?.parse()?)
}

/// Waits until the group has committed the ends of `in`.
///
/// # Errors
/// Where the instance ends, or does not get there within `patience`.
pub async fn caught_up(
    cluster: &BrokerUnderTest,
    running: &mut RunningStreams,
    patience: Duration,
) -> anyhow::Result<()> {
    let (_, ends) = cluster.read("in").await?;
    let committed = running.committed(&ends);
    Ok(tokio::time::timeout(cluster.patience(patience), committed).await??)
}

/// Checks that `out` has each number below `count` exactly once, and that the group is at the ends
/// of `in`.
///
/// # Errors
/// What is missing, or there more than once.
pub async fn check_exactly_once(cluster: &BrokerUnderTest, count: u64) -> anyhow::Result<()> {
    let found = numbers(cluster, "out").await?;
    if found != (0..count).collect::<Vec<_>>() {
        let mut counts: BTreeMap<u64, u32> = (0..count).map(|number| (number, 0)).collect();
        for number in found {
            *counts.entry(number).or_default() += 1;
        }
        counts.retain(|_, times| *times != 1);
        bail!("not exactly once (number: times): {counts:?}");
    }
    check_committed(cluster).await
}

/// Checks that the group is at the ends of `in`.
///
/// # Errors
/// The first partition where it is not.
pub async fn check_committed(cluster: &BrokerUnderTest) -> anyhow::Result<()> {
    let (_, ends) = cluster.read("in").await?;
    let committed = cluster.committed(GROUP).await?;
    for (partition, end) in ends {
        let at = committed.get(&partition).copied().unwrap_or(0);
        if at != end {
            bail!("{partition}: committed {at}, the end is {end}");
        }
    }
    Ok(())
}

/// The same job by hand, so that a test can stop between two steps.
#[derive(Debug)]
pub struct ByHand {
    /// Reads `in`; without it no heartbeat goes out, and nobody leaves the group.
    pub consumer: Option<Consumer>,
    /// Writes `out`.
    pub producer: Producer,
    output: String,
    offsets: BTreeMap<TopicPartition, OffsetAndMetadata>,
}

impl ByHand {
    /// An instance with an open transaction's worth of patience: two minutes.
    ///
    /// # Errors
    /// Where the transactional id cannot be initialised.
    pub async fn start(
        cluster: &BrokerUnderTest,
        number: u64,
        transactional_id: &str,
        settings: impl FnOnce(ConsumerBuilder) -> ConsumerBuilder,
    ) -> anyhow::Result<Self> {
        let producer = Producer::transactional(cluster.name(transactional_id))
            .client(cluster.client(number))
            .transaction_timeout_ms(120_000)
            .connect(cluster)
            .await?;
        producer.init_transactions().await?;
        let builder = Consumer::builder()
            .client(cluster.client(number + 500))
            .group_id(cluster.name(GROUP))
            .session_timeout_ms(10_000)
            .auto_offset_reset(AutoOffsetReset::Earliest);
        let consumer = settings(builder).connect(cluster).await?;
        consumer.subscribe([cluster.name("in")])?;
        Ok(Self {
            consumer: Some(consumer),
            producer,
            output: cluster.name("out"),
            offsets: BTreeMap::new(),
        })
    }

    /// Reads until it has `count` records, and sends them on within a new transaction.
    ///
    /// # Errors
    /// Where they do not come within a minute.
    pub async fn process(&mut self, count: usize) -> anyhow::Result<()> {
        let consumer = self.consumer.as_ref().context("its consumer is gone")?;
        let give_up = Instant::now() + PROCESS_PATIENCE;
        self.producer.begin()?;
        let mut read = 0;
        while read < count {
            let polled = consumer.poll(Duration::from_millis(200)).await?;
            for records in polled.partitions {
                for read_record in &records.records {
                    let copy = record(&self.output, number(read_record)?);
                    drop(self.producer.send(copy).await?);
                    read += 1;
                }
                let next = OffsetAndMetadata::new(records.next_offset);
                self.offsets.insert(records.topic_partition, next);
            }
            if Instant::now() > give_up {
                bail!("{read} of {count} records after a minute");
            }
        }
        self.producer.flush().await?;
        Ok(())
    }

    /// The membership under which the records were read.
    ///
    /// # Errors
    /// Where there is none.
    pub fn membership(&self) -> anyhow::Result<GroupMetadata> {
        Ok(self
            .consumer
            .as_ref()
            .context("its consumer is gone")?
            .group_metadata()?)
    }

    /// Sends the offsets under this membership, and commits.
    ///
    /// # Errors
    /// Whatever refuses it.
    pub async fn commit(&self, membership: &GroupMetadata) -> anyhow::Result<()> {
        let offsets: Vec<(TopicPartition, OffsetAndMetadata)> = self
            .offsets
            .iter()
            .map(|(at, next)| (at.clone(), next.clone()))
            .collect();
        self.producer.send_offsets(&offsets, membership).await?;
        Ok(self.producer.commit().await?)
    }
}
