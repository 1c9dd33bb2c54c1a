//! The feeder: an idempotent producer that sends orders all the time and remembers what was
//! acknowledged.
//!
//! Each record carries its number in the header `n`, so that even one without key and value can be
//! told from others. The feeder rides through restarts of the broker. Beside it a spoiler sends
//! orders in transactions that it aborts: nobody who reads committed records may ever act on one of
//! them.
//!
//! Invariants: a number is sent once; what is in `acknowledged` was acknowledged with that
//! partition and offset.
//! Never: waits for an acknowledgement before it sends the next record.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use examples::data::{self, RawRecord};
use millstream::client::{IntoTransport, Producer, ProducerRecord, Transport};
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
    /// Records that were acknowledged in transactions that were aborted then.
    pub spoiled: u64,
}

/// A feeder at work.
#[derive(Debug)]
pub struct Feeder {
    stop: watch::Sender<bool>,
    sent: Arc<AtomicU64>,
    outcome: JoinHandle<anyhow::Result<Fed>>,
    spoiled: JoinHandle<anyhow::Result<u64>>,
}

impl Feeder {
    /// Sends `rate` records a second until it is told to stop.
    ///
    /// # Errors
    /// Settings that contradict each other.
    pub async fn start(target: &impl IntoTransport, rate: u64) -> anyhow::Result<Self> {
        let transport = target.into_transport();
        let producer = Producer::idempotent().connect(&transport).await?;
        let (stop, stopped) = watch::channel(false);
        let sent = Arc::new(AtomicU64::new(0));
        let spoiled = tokio::spawn(spoil(transport, stopped.clone()));
        let outcome = tokio::spawn(feed(producer, rate, stopped, Arc::clone(&sent)));
        Ok(Self {
            stop,
            sent,
            outcome,
            spoiled,
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
        let spoiled = self.spoiled.await.context("the spoiler's task")??;
        let fed = self.outcome.await.context("the feeder's task")??;
        Ok(Fed { spoiled, ..fed })
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

/// Aborts one transaction after the other, and answers how many of their records were acknowledged
/// before.
async fn spoil(
    transport: Arc<dyn Transport>,
    stopped: watch::Receiver<bool>,
) -> anyhow::Result<u64> {
    /// Far away from what the feeder sends.
    const FIRST: u64 = 1 << 40;
    let mut spoiled = 0;
    loop {
        let producer = Producer::transactional("spoiler")
            .connect(&transport)
            .await?;
        // Ends what an earlier turn may have left open; the last turn does only that.
        let ready = producer.init_transactions().await;
        if ready.is_ok() && *stopped.borrow() {
            return Ok(spoiled);
        }
        while ready.is_ok() && !*stopped.borrow() {
            match spoil_once(&producer, FIRST + spoiled).await {
                Ok(acknowledged) => spoiled += acknowledged,
                // A restart of the broker may cost a transaction; the next turn begins anew.
                Err(_) => break,
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        producer.close(Duration::ZERO).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn spoil_once(producer: &Producer, first: u64) -> anyhow::Result<u64> {
    const RECORDS: u64 = 5;
    producer.begin()?;
    for number in first..first + RECORDS {
        producer.send(order(number)).await?.await?;
    }
    producer.abort().await?;
    Ok(RECORDS)
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
