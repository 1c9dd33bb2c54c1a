//! The log as it lies there: every batch and marker, read past the clients' own filter.
//!
//! Invariants: nothing is left out.
//! Never: decides what is committed.

use anyhow::Context as _;
use bytes::Bytes;
use millstream::TopicPartition;
use millstream::client::Cluster;
use millstream::formats::protocol::{ControlMarker, RecordBatch};

use super::history::{RawBatch, Seen};
use crate::raw_log;

/// Reads a partition from its start to its high watermark.
pub(super) async fn read(
    cluster: &Cluster,
    partition: &TopicPartition,
    end: i64,
) -> anyhow::Result<Vec<RawBatch>> {
    let batches = raw_log::batches(cluster, partition, end).await?;
    let batches = batches.iter().map(raw).collect::<anyhow::Result<_>>();
    batches.with_context(|| partition.to_string())
}

fn raw(batch: &RecordBatch) -> anyhow::Result<RawBatch> {
    batch.verify_crc()?;
    let marker = match batch.control()? {
        Some(ControlMarker::Commit { .. }) => Some(true),
        Some(ControlMarker::Abort { .. }) => Some(false),
        None => None,
    };
    let mut records = Vec::new();
    if marker.is_none() {
        for record in batch.records(1 << 20)? {
            let record = record?;
            let text = |bytes: Option<Bytes>| {
                String::from_utf8_lossy(bytes.as_deref().unwrap_or_default()).into_owned()
            };
            records.push(Seen {
                offset: record.offset,
                key: text(record.key),
                value: text(record.value),
            });
        }
    }
    Ok(RawBatch {
        base_offset: batch.base_offset(),
        last_offset: batch.last_offset(),
        producer_id: batch.producer_id(),
        producer_epoch: batch.producer_epoch(),
        transactional: batch.is_transactional(),
        marker,
        records,
    })
}
