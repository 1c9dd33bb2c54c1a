//! What a user's disk and terminal see: the hand-written loop as it ships, and the batches in a
//! data directory.
//!
//! Invariants: files are read with the broker closed.
//! Never: a port.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use millstream::Broker;
use millstream::client::Producer;
use millstream::formats::protocol::RecordBatch;
use tests::binaries::Binaries;
use tests::copying::record;
use tests::process::Process;
use tests::under_test;

/// Row 128: the loop by hand, with a branch for each class of error, does its work exactly once and
/// ends.
#[tokio::test]
async fn the_loop_by_hand_ends_with_every_record_once() -> anyhow::Result<()> {
    if under_test::left_out() {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let program = Binaries::build()?.by_hand;
    let mut by_hand = Process::start(&program, &[], &[], folder.path(), "by-hand")?;
    by_hand.succeed(Duration::from_secs(60)).await?;
    let said = by_hand.output();
    assert!(
        said.contains("1000 orders measured, each exactly once"),
        "{said}"
    );
    Ok(())
}

/// Row 9, row 22: every batch on disk carries producer id, epoch and base sequence; sequences count
/// records, begin at 0 in each partition and have no gap.
#[tokio::test]
async fn every_batch_on_disk_says_who_wrote_it_and_in_which_place() -> anyhow::Result<()> {
    if under_test::left_out() {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let broker = Broker::open(folder.path()).await?;
    let producer = Producer::idempotent().connect(&broker).await?;
    for round in 0..5_u64 {
        // Batches of several records, to two partitions.
        for number in 0..6 {
            drop(
                producer
                    .send(record("out", round * 40 + number / 3))
                    .await?,
            );
        }
        producer.flush().await?;
    }
    producer.close(Duration::from_secs(5)).await;
    broker.close().await?;
    let mut ids = BTreeMap::new();
    for partition in 0..2 {
        let file = folder
            .path()
            .join(format!("out-{partition}/00000000000000000000.log"));
        let mut bytes = Bytes::from(std::fs::read(&file).context("a segment of Kafka's name")?);
        let mut next = 0;
        let mut batches = 0;
        while let Some(batch) = RecordBatch::split_from(&mut bytes)? {
            assert_eq!(batch.base_sequence(), next, "partition {partition}");
            next = batch.last_sequence() + 1;
            batches += 1;
            *ids.entry((batch.producer_id(), batch.producer_epoch()))
                .or_insert(0) += 1;
        }
        assert_eq!(next, 15, "partition {partition}");
        assert!(batches >= 5, "partition {partition}: {batches} batches");
    }
    assert_eq!(ids.len(), 1, "one producer, one epoch: {ids:?}");
    assert!(
        ids.keys().all(|(id, epoch)| *id >= 0 && *epoch == 0),
        "{ids:?}"
    );
    Ok(())
}
