//! The log as it lies there: every batch and marker, read past the clients' own filter.
//!
//! Invariants: nothing is left out.
//! Never: decides what is committed.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use millstream::TopicPartition;
use millstream::client::Cluster;
use millstream::formats::protocol::messages::FetchRequest;
use millstream::formats::protocol::messages::fetch::{FetchPartition, FetchTopic};
use millstream::formats::protocol::{ControlMarker, RecordBatch};

use super::history::{RawBatch, Seen};

/// Reads a partition from its start to its high watermark.
pub(super) async fn read(
    cluster: &Cluster,
    partition: &TopicPartition,
    end: i64,
) -> anyhow::Result<Vec<RawBatch>> {
    let mut batches = Vec::new();
    let mut offset = 0;
    while offset < end {
        let mut bytes = fetch(cluster, partition, offset).await?;
        let from = offset;
        while let Some(batch) = RecordBatch::split_from(&mut bytes)? {
            offset = batch.next_offset();
            batches.push(raw(&batch)?);
        }
        ensure!(
            offset > from,
            "{partition}: no batch at offset {from}, the end is {end}"
        );
    }
    Ok(batches)
}

async fn fetch(
    cluster: &Cluster,
    partition: &TopicPartition,
    offset: i64,
) -> anyhow::Result<Bytes> {
    let topics = [std::sync::Arc::clone(&partition.topic)];
    cluster.refresh_metadata(&topics).await?;
    let node = cluster.leader(partition).context("a leader")?;
    let wanted = FetchPartition {
        partition: partition.partition,
        fetch_offset: offset,
        partition_max_bytes: 1 << 20,
        ..FetchPartition::default()
    };
    let topic = FetchTopic {
        topic: partition.topic.to_string(),
        topic_id: cluster.topic_id(&partition.topic),
        partitions: vec![wanted],
    };
    let request = FetchRequest {
        max_wait_ms: 100,
        min_bytes: 1,
        max_bytes: 1 << 20,
        topics: vec![topic],
        ..FetchRequest::default()
    };
    let answer = cluster
        .request(node, request, Duration::from_secs(10))
        .await?;
    let topic = answer
        .responses
        .into_iter()
        .next()
        .context("a topic in the answer")?;
    let found = topic
        .partitions
        .into_iter()
        .next()
        .context("a partition in the answer")?;
    ensure!(
        found.error_code.is_ok(),
        "{partition}: {}",
        found.error_code
    );
    Ok(found.records.unwrap_or_default())
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
