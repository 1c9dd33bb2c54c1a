//! The checkers that read while everything runs: one over the faulty network, one that takes
//! snapshots.
//!
//! Invariants: what a reader is given is noted before anything else happens.
//! Never: judges.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream::TopicPartition;
use millstream::client::consumer::{AutoOffsetReset, Consumer, ConsumerError, ConsumerRecords};
use millstream::client::{Admin, AdminError, ClientConfig, OffsetSpec};
use millstream::testing::SimulatedNetwork;

use super::history::{GROUP, INPUT, Reading, Record, Seen, Snapshot, Watermarks};

/// A reader of committed records from the beginning on.
pub(super) async fn reader(
    network: &SimulatedNetwork,
    client: ClientConfig,
    partitions: &[TopicPartition],
) -> Result<Consumer, ConsumerError> {
    let consumer = Consumer::builder()
        .client(client)
        .auto_offset_reset(AutoOffsetReset::Earliest)
        .connect(network)
        .await?;
    consumer.assign(partitions.to_vec())?;
    Ok(consumer)
}

pub(super) fn note(reading: &mut Reading, records: &ConsumerRecords) {
    for partition in &records.partitions {
        let seen = reading
            .entry(partition.topic_partition.clone())
            .or_default();
        seen.extend(partition.records.iter().map(Seen::of));
    }
}

/// Reads for as long as it is polled.
pub(super) async fn read_on(consumer: &Consumer, record: &Record) {
    loop {
        match consumer.poll(Duration::from_millis(300)).await {
            Ok(records) => note(&mut record.lock().live, &records),
            Err(error) => {
                record.say(|| format!("reader: {error}"));
                record.count("reader's poll failed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Reads until every partition is at its end.
pub(super) async fn read_to(
    consumer: &Consumer,
    ends: &BTreeMap<TopicPartition, i64>,
    mut note_records: impl FnMut(&ConsumerRecords),
) -> Result<(), ConsumerError> {
    let reached = |consumer: &Consumer| {
        ends.iter().all(|(partition, &end)| {
            end == 0
                || consumer
                    .position(partition)
                    .is_some_and(|position| position >= end)
        })
    };
    while !reached(consumer) {
        note_records(&consumer.poll(Duration::from_millis(200)).await?);
    }
    Ok(())
}

/// Takes snapshots: committed offsets, then all committed records, then the offsets again.
pub(super) struct Photographer {
    pub(super) admin: Admin,
    pub(super) consumer: Consumer,
    pub(super) partitions: Vec<TopicPartition>,
    pub(super) record: Record,
}

impl Photographer {
    /// Takes one snapshot after the other, for as long as it is polled.
    pub(super) async fn run(&self) {
        loop {
            tokio::time::sleep(Duration::from_millis(800)).await;
            // The broker may be away.
            let patience = Duration::from_secs(5);
            match tokio::time::timeout(patience, self.snapshot()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => self.record.say(|| format!("no snapshot: {error}")),
                Err(_) => self.record.say(|| "no snapshot in time".to_owned()),
            }
        }
    }

    /// Takes one snapshot.
    pub(super) async fn snapshot(&self) -> anyhow::Result<()> {
        let before = self.committed().await?;
        let watermarks = self.watermarks().await?;
        let ends = watermarks
            .iter()
            .map(|(partition, marks)| (partition.clone(), marks.stable))
            .collect();
        let record = &self.record;
        read_to(&self.consumer, &ends, |records| {
            note(&mut record.lock().calm, records)
        })
        .await?;
        let read: BTreeMap<_, _> = {
            let history = self.record.lock();
            history
                .calm
                .iter()
                .map(|(partition, seen)| (partition.clone(), seen.len()))
                .collect()
        };
        let after = self.committed().await?;
        let at = self.record.at();
        self.record.lock().snapshots.push(Snapshot {
            at,
            before,
            after,
            read,
            watermarks,
        });
        Ok(())
    }

    pub(super) async fn committed(&self) -> Result<BTreeMap<TopicPartition, i64>, AdminError> {
        let offsets = self.admin.group_offsets(GROUP).await?;
        let of_input = offsets
            .into_iter()
            .filter(|(partition, _)| &*partition.topic == INPUT);
        Ok(of_input
            .map(|(partition, offset)| (partition, offset.offset))
            .collect())
    }

    async fn watermarks(&self) -> Result<BTreeMap<TopicPartition, Watermarks>, AdminError> {
        let start = self.offsets(OffsetSpec::Earliest).await?;
        let stable = self.offsets(OffsetSpec::LatestCommitted).await?;
        let high = self.offsets(OffsetSpec::Latest).await?;
        let of = |offsets: &BTreeMap<TopicPartition, i64>, partition| {
            offsets.get(partition).copied().unwrap_or(-1)
        };
        Ok(self
            .partitions
            .iter()
            .map(|partition| {
                let marks = Watermarks {
                    start: of(&start, partition),
                    stable: of(&stable, partition),
                    high: of(&high, partition),
                };
                (partition.clone(), marks)
            })
            .collect())
    }

    /// One kind of offset of every partition.
    pub(super) async fn offsets(
        &self,
        spec: OffsetSpec,
    ) -> Result<BTreeMap<TopicPartition, i64>, AdminError> {
        let found = self.admin.list_offsets(&self.partitions, spec).await?;
        Ok(found
            .into_iter()
            .map(|(partition, offset)| (partition, offset.unwrap_or(-1)))
            .collect())
    }
}
