//! Where the coordinator writes: `__transaction_state`, one record an append.
//!
//! Invariants: all records of one transactional id are in one partition, in the order of events.
//! Never: waits; an append is durable once the journal has reached its position.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use millstream_log::AppendOrigin;
use millstream_protocol::{Compression, ErrorCode, ProducerStamp, RecordBatchBuilder};

use super::model::Transaction;
use super::record;
use crate::partition::Partition;
use crate::topics::{TopicEntry, internal_partition_of};

/// The coordinator's log.
#[derive(Debug, Default)]
pub(crate) struct TransactionLog {
    topic: OnceLock<Arc<TopicEntry>>,
}

impl TransactionLog {
    /// From now on this topic is written to.
    pub(super) fn open(&self, topic: Arc<TopicEntry>) {
        self.topic.get_or_init(|| topic);
    }

    /// The partition that holds a transactional id.
    pub(super) fn partition_of(&self, transactional_id: &str) -> Result<&Partition, ErrorCode> {
        let topic = self
            .topic
            .get()
            .ok_or(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS)?;
        let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
        let index = internal_partition_of(transactional_id, count);
        match topic.partition(index) {
            Some(partition) => Ok(partition),
            None => Err(ErrorCode::COORDINATOR_NOT_AVAILABLE),
        }
    }

    /// Appends where an id stands; returns the journal position after it.
    pub(super) fn append(
        &self,
        transactional_id: &str,
        transaction: &Transaction,
        now_ms: i64,
    ) -> Result<u64, ErrorCode> {
        let (key, value) =
            record::encode(transactional_id, transaction).map_err(|error| refused(&error))?;
        append_record(
            self.partition_of(transactional_id)?,
            &key,
            Some(&value),
            now_ms,
        )
    }

    /// Appends that an id is forgotten.
    pub(super) fn append_tombstone(
        &self,
        transactional_id: &str,
        now_ms: i64,
    ) -> Result<u64, ErrorCode> {
        let key = record::encode_key(transactional_id).map_err(|error| refused(&error))?;
        append_record(self.partition_of(transactional_id)?, &key, None, now_ms)
    }

    /// Appends that every producer id below `next` may be given out.
    pub(super) fn append_block(&self, next: i64, now_ms: i64) -> Result<u64, ErrorCode> {
        let (key, value) = record::encode_block(next).map_err(|error| refused(&error))?;
        append_record(self.block_partition()?, &key, Some(&value), now_ms)
    }

    /// The partition that holds the producer id blocks.
    pub(super) fn block_partition(&self) -> Result<&Partition, ErrorCode> {
        self.partition_of("")
    }
}

fn refused(error: &dyn std::error::Error) -> ErrorCode {
    tracing::error!(%error, "a record of the transaction log cannot be written");
    ErrorCode::UNKNOWN_SERVER_ERROR
}

fn append_record(
    partition: &Partition,
    key: &Bytes,
    value: Option<&Bytes>,
    now_ms: i64,
) -> Result<u64, ErrorCode> {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    builder.append(now_ms, Some(key), value.map(|value| &value[..]), &[]);
    let batch = builder
        .finish(ProducerStamp::NONE)
        .map_err(|error| refused(&error))?;
    match partition.append(batch, AppendOrigin::Coordinator) {
        Ok(appended) => Ok(appended.journal_position),
        Err(error) => {
            tracing::warn!(partition = %partition.name(), %error, "transaction log append failed");
            Err(append_error(error.error_code()))
        }
    }
}

/// What a client is told when the coordinator cannot write its log: to find it again, or to wait.
fn append_error(code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
        | ErrorCode::NOT_ENOUGH_REPLICAS
        | ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND
        | ErrorCode::REQUEST_TIMED_OUT => ErrorCode::COORDINATOR_NOT_AVAILABLE,
        ErrorCode::NOT_LEADER_OR_FOLLOWER | ErrorCode::KAFKA_STORAGE_ERROR => {
            ErrorCode::NOT_COORDINATOR
        }
        ErrorCode::MESSAGE_TOO_LARGE | ErrorCode::RECORD_LIST_TOO_LARGE => {
            ErrorCode::UNKNOWN_SERVER_ERROR
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_appends_tell_the_client_to_wait_or_to_look_again() {
        for (code, answer) in [
            (
                ErrorCode::NOT_ENOUGH_REPLICAS,
                ErrorCode::COORDINATOR_NOT_AVAILABLE,
            ),
            (
                ErrorCode::REQUEST_TIMED_OUT,
                ErrorCode::COORDINATOR_NOT_AVAILABLE,
            ),
            (ErrorCode::KAFKA_STORAGE_ERROR, ErrorCode::NOT_COORDINATOR),
            (
                ErrorCode::NOT_LEADER_OR_FOLLOWER,
                ErrorCode::NOT_COORDINATOR,
            ),
            (
                ErrorCode::MESSAGE_TOO_LARGE,
                ErrorCode::UNKNOWN_SERVER_ERROR,
            ),
        ] {
            assert_eq!(append_error(code), answer);
        }
    }
}
