//! A member of a consumer group: it says what it is given and what it reads, and leaves at SIGTERM.
//!
//! Invariants: positions are committed before partitions are given up and before it leaves.

use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use millstream::TopicPartition;
use millstream::client::Consumer;
use millstream::client::consumer::{AutoOffsetReset, RebalanceListener};
use tokio::signal::unix::{SignalKind, signal};

use crate::say;

/// Says how many partitions it has, after each change.
#[derive(Debug)]
struct Saying;

#[async_trait]
impl RebalanceListener for Saying {
    async fn on_assigned(&self, consumer: &Consumer, _partitions: &[TopicPartition]) {
        say(&format!("assigned {}", consumer.assignment().len()));
    }
}

/// Joins, and reads until it is told to stop.
pub(crate) async fn join(
    bootstrap: &str,
    topic: &str,
    group: &str,
    settings: &[&str],
) -> anyhow::Result<()> {
    let mut stop = signal(SignalKind::terminate())?;
    let mut builder = Consumer::builder()
        .group_id(group)
        .auto_offset_reset(AutoOffsetReset::Earliest)
        .enable_auto_commit(true)
        .session_timeout_ms(6_000)
        .heartbeat_interval_ms(500);
    for setting in settings {
        let (name, value) = setting.split_once('=').context("a setting is NAME=VALUE")?;
        builder = builder.set(name, value);
    }
    let consumer = builder.connect(&bootstrap).await?;
    consumer.subscribe_with([topic], std::sync::Arc::new(Saying))?;
    loop {
        let records = tokio::select! {
            biased;
            _ = stop.recv() => break,
            polled = consumer.poll(Duration::from_millis(200)) => polled?,
        };
        for record in records.iter() {
            say(&format!("record {} {}", record.partition, record.offset));
        }
    }
    consumer.close().await?;
    Ok(())
}
