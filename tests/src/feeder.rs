//! The feeder: an idempotent producer that sends orders all the time and remembers what was acknowledged.
//!
//! Each record carries its number in the header `n`, so that even one without key and value can be told from others. The
//! feeder rides through restarts of the broker.
//!
//! Invariants: a number is sent once; what is in `acknowledged` was acknowledged with that partition and offset.
//! Never: waits for an acknowledgement before it sends the next record.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use examples::data::{self, RawRecord};
use millstream::client::{IntoTransport, Producer, ProducerRecord};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// The header that carries a record's number.
pub const NUMBER_HEADER: &str = "n";
/// Records that may wait for their acknowledgement.
const UNANSWERED_MAX: usize = 5_000;

/// What was sent, and what became of it.
#[derive(Debug, Clone, Default)]
pub struct Fed {
    /// Records sent: the numbers below this.
    pub sent: u64,
    /// Number, partition and offset of each that was acknowledged.
    pub acknowledged: Vec<(u64, i32, i64)>,
    /// Number and error of each that was not.
    pub failed: Vec<(u64, String)>,
}

/// A feeder at work.
#[derive(Debug)]
pub struct Feeder {
    stop: watch::Sender<bool>,
    sent: Arc<AtomicU64>,
    outcome: JoinHandle<anyhow::Result<Fed>>,
}

impl Feeder {
    /// Sends `rate` records a second until it is told to stop.
    ///
    /// # Errors
    /// Settings that contradict each other.
    pub async fn start(target: &impl IntoTransport, rate: u64) -> anyhow::Result<Self> {
        let producer = Producer::idempotent()
            .connect(&target.into_transport())
            .await?;
        let (stop, stopped) = watch::channel(false);
        let sent = Arc::new(AtomicU64::new(0));
        let outcome = tokio::spawn(feed(producer, rate, stopped, Arc::clone(&sent)));
        Ok(Self {
            stop,
            sent,
            outcome,
        })
    }

    /// How many records were sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Stops sending, and answers when every record has its outcome.
    ///
    /// # Errors
    /// A call that was refused.
    pub async fn stop(self) -> anyhow::Result<Fed> {
        let _ = self.stop.send(true);
        self.outcome.await.context("the feeder's task")?
    }
}

async fn feed(
    producer: Producer,
    rate: u64,
    stopped: watch::Receiver<bool>,
    sent: Arc<AtomicU64>,
) -> anyhow::Result<Fed> {
    const TICK: Duration = Duration::from_millis(10);
    let fed = Arc::new(Mutex::new(Fed::default()));
    let mut unanswered = JoinSet::new();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut number = 0;
    while !*stopped.borrow() {
        ticks.tick().await;
        for _ in 0..(rate / 100).max(1) {
            let delivery = producer.send(order(number)).await?;
            let fed = Arc::clone(&fed);
            unanswered.spawn(async move {
                let outcome = delivery.await;
                let mut fed = fed.lock().unwrap_or_else(PoisonError::into_inner);
                match outcome {
                    Ok(at) => fed.acknowledged.push((number, at.partition, at.offset)),
                    Err(error) => fed.failed.push((number, error.to_string())),
                }
            });
            number += 1;
            sent.store(number, Ordering::Relaxed);
            while unanswered.try_join_next().is_some() {}
            if unanswered.len() >= UNANSWERED_MAX {
                unanswered.join_next().await;
            }
        }
    }
    producer.flush().await?;
    while unanswered.join_next().await.is_some() {}
    producer.close(Duration::from_secs(5)).await;
    let mut fed = std::mem::take(&mut *fed.lock().unwrap_or_else(PoisonError::into_inner));
    fed.sent = number;
    fed.acknowledged.sort_unstable();
    Ok(fed)
}

/// The order with this number as a record for the topic `orders`.
#[must_use]
pub fn order(number: u64) -> ProducerRecord {
    let RawRecord { key, value } = data::order(number);
    ProducerRecord {
        key: key.map(Bytes::from),
        value: value.map(Bytes::from),
        ..ProducerRecord::new("orders")
    }
    .header(NUMBER_HEADER, Some(Bytes::from(number.to_string())))
}
