//! The reader of global tables: fills their stores before the first record is processed, and keeps
//! them up to date.
//!
//! Invariants: a table is full when its position has reached the high watermark that was seen at
//! the start; a transaction that was open then is waited for (stopping at the last stable offset
//! would miss it, KAFKA-10167).
//! Never: part of the application's group; every instance reads every partition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_client::consumer::{Consumer, PartitionRecords};
use millstream_protocol::TopicPartition;
use millstream_state::WriteBatch;
use tokio::sync::watch;

use crate::error::StreamsError;
use crate::poison::PoisonPolicy;
use crate::task::GlobalStores;
use crate::topology::Topology;

const POLL_WAIT: Duration = Duration::from_millis(500);

pub(crate) struct GlobalReader {
    consumer: Consumer,
    topology: Topology,
    stores: GlobalStores,
    poison: PoisonPolicy,
}

impl GlobalReader {
    /// Fills the stores and answers the reader that keeps them so. `watermarks` reads uncommitted
    /// data, so that the ends it sees are the high watermarks.
    pub(crate) async fn fill(
        consumer: Consumer,
        watermarks: &Consumer,
        topology: Topology,
        stores: GlobalStores,
        poison: PoisonPolicy,
    ) -> Result<Self, StreamsError> {
        let mut partitions = Vec::new();
        for global in &topology.inner.globals {
            let count = consumer.partitions_of(&global.topic).await?;
            partitions
                .extend((0..count).map(|p| TopicPartition::new(Arc::clone(&global.topic), p)));
        }
        let ends = watermarks.end_offsets(&partitions).await?;
        consumer.assign(partitions)?;
        let mut reader = Self {
            consumer,
            topology,
            stores,
            poison,
        };
        while !reader.reached(&ends) {
            reader.poll().await?;
        }
        for (store, global) in reader.stores.0.iter().zip(&reader.topology.inner.globals) {
            tracing::info!(topic = %global.topic, rows = store.count(), "global table filled");
        }
        Ok(reader)
    }

    /// Whether everything below these ends was read and applied. The position is what tells: a log
    /// may begin behind its end's last record, and end in records that are not rows.
    fn reached(&self, ends: &BTreeMap<TopicPartition, i64>) -> bool {
        ends.iter().all(|(partition, &end)| {
            end == 0
                || self
                    .consumer
                    .position(partition)
                    .is_some_and(|position| position >= end)
        })
    }

    /// Follows the topics until `stop` turns true.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) -> Result<(), StreamsError> {
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
                polled = self.poll() => polled?,
            }
        }
    }

    async fn poll(&mut self) -> Result<(), StreamsError> {
        let polled = self.consumer.poll(POLL_WAIT).await?;
        for records in polled.partitions {
            self.apply(records)?;
        }
        Ok(())
    }

    fn apply(&self, records: PartitionRecords) -> Result<(), StreamsError> {
        let partition = records.topic_partition;
        let globals = &self.topology.inner.globals;
        let Some(at) = globals
            .iter()
            .position(|global| global.topic == partition.topic)
        else {
            return Ok(());
        };
        let Some(global) = globals.get(at) else {
            return Ok(());
        };
        let mut batch = WriteBatch::new();
        for record in records.records {
            if let Err(cause) = (global.check)(record.key.as_ref(), record.value.as_ref()) {
                if self.poison == PoisonPolicy::Fail {
                    return Err(StreamsError::Poison {
                        operator: format!("global table {}", global.topic),
                        partition,
                        offset: record.offset,
                        cause: cause.into(),
                    });
                }
                let offset = record.offset;
                tracing::warn!(%partition, offset, %cause, "row of a global table skipped");
                continue;
            }
            match (record.key, record.value) {
                (Some(key), Some(value)) => batch.put(key, value),
                (Some(key), None) => batch.delete(key),
                // A row without a key has no place in a table, as in Kafka Streams.
                (None, _) => {}
            }
        }
        batch.set_offset(partition, records.next_offset);
        Ok(self.stores.store(at).apply(batch)?)
    }
}
