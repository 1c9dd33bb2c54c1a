//! At open: `__transaction_state` read from its start, then what was decided is finished.
//!
//! Invariants: the last record of a key wins; a record that is not understood fails the open.
//! Invariants: ids that any record mentions are never given out again.
//! Never: serves a part of a log.

use std::sync::Arc;

use bytes::Bytes;
use millstream_log::{Isolation, ReadRequest};
use millstream_protocol::RecordBatch;

use super::coordinator::Coordinator;
use super::record::{self, Entry};
use crate::BrokerError;
use crate::node::Node;
use crate::partition::Partition;
use crate::topics::TRANSACTION_STATE_TOPIC;

/// How much is read at once.
const READ_BYTES: usize = 1 << 20;

impl Coordinator {
    /// Reads `__transaction_state` and finishes what was prepared.
    pub(crate) async fn load(&self, node: &Arc<Node>) -> Result<(), BrokerError> {
        let topic = node.ensure_internal_topic(TRANSACTION_STATE_TOPIC).await?;
        for partition in &topic.partitions {
            self.replay(partition, node.config.decompressed_batch_bytes_max)?;
            // Lets the runtime breathe between partitions of a large log.
            tokio::task::yield_now().await;
        }
        self.log.open(topic);
        for transactional_id in self.take_unfinished() {
            tracing::info!(%transactional_id, "finishes a transaction that was decided before");
            self.finish_prepared(node, &transactional_id);
        }
        Ok(())
    }

    fn replay(
        &self,
        partition: &Partition,
        decompressed_bytes_max: usize,
    ) -> Result<(), BrokerError> {
        let corrupt = |offset: i64, reason: String| BrokerError::CorruptCoordinatorLog {
            topic: TRANSACTION_STATE_TOPIC,
            partition: partition.name().partition,
            offset,
            reason,
        };
        let offsets = partition.offsets();
        let mut next = offsets.log_start;
        while next < offsets.log_end {
            let request = ReadRequest {
                offset: next,
                max_bytes: READ_BYTES,
                isolation: Isolation::LogEnd,
                at_least_one: true,
            };
            let read = partition.log().read(request);
            let read = read.map_err(|error| corrupt(next, error.to_string()))?;
            let before = next;
            for mut bytes in read.batches {
                while let Some(batch) = RecordBatch::split_from(&mut bytes)
                    .map_err(|error| corrupt(next, error.to_string()))?
                {
                    next = batch.next_offset();
                    self.replay_batch(&batch, decompressed_bytes_max)
                        .map_err(|reason| corrupt(batch.base_offset(), reason))?;
                }
            }
            if next == before {
                return Err(corrupt(next, "nothing can be read there".to_owned()));
            }
        }
        Ok(())
    }

    fn replay_batch(
        &self,
        batch: &RecordBatch,
        decompressed_bytes_max: usize,
    ) -> Result<(), String> {
        batch.verify_crc().map_err(|error| error.to_string())?;
        if batch.is_control() {
            return Ok(());
        }
        for record in batch
            .records(decompressed_bytes_max)
            .map_err(|error| error.to_string())?
        {
            let record = record.map_err(|error| error.to_string())?;
            let key = record.key.unwrap_or(Bytes::new());
            let entry = record::decode(&key, record.value.as_ref());
            match entry.map_err(|error| error.to_string())? {
                Entry::ProducerIds { next } => self.producer_ids.taken_below(next),
                Entry::Transaction {
                    transactional_id,
                    transaction,
                } => {
                    if let Some(transaction) = &transaction {
                        let highest = transaction.producer_id.max(transaction.next_producer_id);
                        self.producer_ids.taken_below(highest.saturating_add(1));
                    }
                    self.restore(transactional_id, transaction.map(|it| *it));
                }
            }
        }
        Ok(())
    }
}
