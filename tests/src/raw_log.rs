//! Batches as they lie in a partition: what a client sent, but for what the broker stamps.
//!
//! Invariants: nothing is left out: uncommitted batches and markers are there, compressed ones stay
//! compressed.
//! Never: decides what is committed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use millstream::TopicPartition;
use millstream::client::Cluster;
use millstream::formats::protocol::RecordBatch;
use millstream::formats::protocol::messages::FetchRequest;
use millstream::formats::protocol::messages::fetch::{FetchPartition, FetchTopic};

/// Every batch of a partition, from its start to this end.
///
/// # Errors
/// Where a batch is damaged, or there is none where one has to be.
pub async fn batches(
    cluster: &Cluster,
    partition: &TopicPartition,
    end: i64,
) -> anyhow::Result<Vec<RecordBatch>> {
    let mut batches = Vec::new();
    let mut offset = 0;
    while offset < end {
        let mut bytes = fetch(cluster, partition, offset).await?;
        let from = offset;
        while let Some(batch) = RecordBatch::split_from(&mut bytes)? {
            offset = batch.next_offset();
            batches.push(batch);
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
    let topics = [Arc::clone(&partition.topic)];
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
