//! The two producers: one idempotent, one transactional that aborts now and then and is lost now
//! and then.
//!
//! Invariants: every value is written once; what is not known to have failed is never written
//! again.
//! Never: looks at the log.

use std::sync::Arc;
use std::time::Duration;

use millstream::client::{ClientConfig, Delivery, Producer, ProducerRecord, TransactionError};
use millstream::testing::SimulatedNetwork;
use tokio::task::JoinHandle;

use super::history::{Ended, INPUT, Record, Sent, Transaction, Written};
use super::plan::Plan;

/// What both producers need.
#[derive(Clone)]
pub(super) struct Writer {
    pub(super) plan: Arc<Plan>,
    pub(super) record: Record,
    pub(super) network: SimulatedNetwork,
    pub(super) client: ClientConfig,
    pub(super) random: fastrand::Rng,
}

const TRANSACTIONAL_ID: &str = "loader";

impl Writer {
    async fn pause(&mut self) {
        let longest = self.plan.pause_max.as_millis() as u64;
        tokio::time::sleep(Duration::from_millis(self.random.u64(..=longest))).await;
    }

    fn key(&mut self) -> String {
        format!("k{}", self.random.u32(..self.plan.keys))
    }

    fn note_later(
        &self,
        delivery: Delivery,
        note: impl FnOnce(&Record, Sent) + Send + 'static,
    ) -> JoinHandle<()> {
        let record = self.record.clone();
        tokio::spawn(async move {
            let sent = match delivery.await {
                Ok(at) => Sent::Acked(
                    millstream::TopicPartition::new(at.topic, at.partition),
                    at.offset,
                ),
                Err(error) => {
                    record.say(|| format!("delivery failed: {error}"));
                    Sent::Failed
                }
            };
            note(&record, sent);
        })
    }

    /// Writes single records; where the producer gives up, another one goes on.
    pub(super) async fn write_idempotent(mut self) {
        let mut producer = None;
        let mut pending = Vec::new();
        for number in 0..self.plan.idempotent_records {
            self.pause().await;
            let (key, value) = (self.key(), format!("i-{number}"));
            let written = Written {
                key: key.clone(),
                value: value.clone(),
                sent: Sent::Pending,
            };
            let at = {
                let mut history = self.record.lock();
                history.idempotent.push(written);
                history.idempotent.len() - 1
            };
            loop {
                let current = match &producer {
                    Some(current) => current,
                    None => match self.new_idempotent().await {
                        Some(fresh) => producer.insert(fresh),
                        None => return,
                    },
                };
                let record = ProducerRecord::new(INPUT)
                    .key(key.clone())
                    .value(value.clone());
                match current.send(record).await {
                    Ok(delivery) => {
                        pending.push(self.note_later(delivery, move |record, sent| {
                            record.lock().idempotent[at].sent = sent;
                        }));
                        break;
                    }
                    Err(error) => {
                        // Nothing was sent.
                        self.record
                            .say(|| format!("idempotent producer given up: {error}"));
                        self.record.count("idempotent producer replaced");
                        producer = None;
                    }
                }
            }
        }
        for delivery in pending {
            let _ = delivery.await;
        }
        if let Some(producer) = producer {
            producer.close(Duration::from_secs(10)).await;
        }
    }

    async fn new_idempotent(&mut self) -> Option<Producer> {
        self.client.seed = self.random.u64(..);
        let builder = Producer::idempotent()
            .client(self.client.clone())
            .linger_ms(self.random.u64(..=20));
        match builder.connect(&self.network).await {
            Ok(producer) => Some(producer),
            Err(error) => {
                self.record.mishap(format!("idempotent producer: {error}"));
                None
            }
        }
    }

    /// Writes transactions. One that failed is not written again: the next one has records of its
    /// own.
    pub(super) async fn write_transactions(mut self) {
        let mut producer: Option<Producer> = None;
        let mut lost: Option<Producer> = None;
        let mut late = Vec::new();
        for number in 0..self.plan.transactions {
            self.pause().await;
            let current = match producer.take() {
                Some(current) => current,
                None => match self.new_transactional().await {
                    Some(fresh) => {
                        // Lost to us, and not dead: it wakes when its successor has begun.
                        let lost = lost.take();
                        late.extend(lost.map(|lost| self.wake(lost, number)));
                        fresh
                    }
                    None => return,
                },
            };
            self.record.lock().transactions.push(Transaction {
                records: Vec::new(),
                ended: Ended::Open,
            });
            let (ended, goes_on) = self.transaction(&current, number).await;
            self.record
                .say(|| format!("transaction {number}: {ended:?}"));
            self.record.lock().transactions[number as usize].ended = ended;
            if goes_on {
                producer = Some(current);
            } else {
                self.record.count("transactional producer replaced");
                lost = Some(current);
            }
        }
        // The successor of the last one ends what it may have left open.
        let last = match producer {
            Some(producer) => Some(producer),
            None => self.new_transactional().await,
        };
        if let Some(last) = last {
            last.close(Duration::from_secs(10)).await;
        }
        for task in late {
            let _ = task.await;
        }
    }

    /// A lost producer goes on where it was; its successor has begun, so nothing of it may be seen.
    fn wake(&mut self, lost: Producer, number: u32) -> JoinHandle<()> {
        let record = self.record.clone();
        let sleeps = Duration::from_millis(self.random.u64(..=400));
        tokio::spawn(async move {
            tokio::time::sleep(sleeps).await;
            let _ = lost.begin();
            let value = format!("z-{number}");
            let late = ProducerRecord::new(INPUT).key("k0").value(value.clone());
            let Ok(delivery) = lost.send(late).await else {
                return;
            };
            record.count("lost producer wrote late");
            record.lock().late.push(value);
            match lost.commit().await {
                Ok(()) => record.mishap(format!("the lost producer committed z-{number}")),
                Err(error) => record.say(|| format!("lost producer: {error}")),
            }
            let _ = delivery.await;
            lost.close(Duration::ZERO).await;
        })
    }

    async fn new_transactional(&mut self) -> Option<Producer> {
        for _ in 0..20 {
            self.client.seed = self.random.u64(..);
            let builder = Producer::transactional(TRANSACTIONAL_ID)
                .client(self.client.clone())
                .linger_ms(self.random.u64(..=20))
                .max_block_ms(self.plan.max_block.as_millis() as u64)
                .transaction_timeout_ms(self.plan.transaction_timeout.as_millis() as u64);
            let producer = match builder.connect(&self.network).await {
                Ok(producer) => producer,
                Err(error) => {
                    self.record
                        .mishap(format!("transactional producer: {error}"));
                    return None;
                }
            };
            match producer.init_transactions().await {
                Ok(()) => return Some(producer),
                Err(error) => {
                    self.record.say(|| format!("init_transactions: {error}"));
                    self.record.count("init_transactions failed");
                }
            }
        }
        self.record
            .mishap("transactional producer: init_transactions failed 20 times".to_owned());
        None
    }

    /// One transaction; says how it ended and whether its producer can go on.
    async fn transaction(&mut self, producer: &Producer, number: u32) -> (Ended, bool) {
        if let Err(error) = producer.begin() {
            self.record
                .mishap(format!("begin of transaction {number}: {error}"));
            return (Ended::Aborted, false);
        }
        let crash = self.plan.producer_crash_one_in;
        let crashes = crash > 0 && self.random.u32(..crash) == 0;
        let aborts = self.random.u32(..self.plan.abort_one_in) == 0;
        let records = self.random.u32(1..=5);
        let mut refused = false;
        for record in 0..records {
            if crashes && self.random.u32(..3) == 0 {
                return (Ended::Aborted, false);
            }
            if self.random.u32(..3) == 0 {
                self.pause().await;
            }
            let (key, value) = (self.key(), format!("t-{number}-{record}"));
            let written = Written {
                key: key.clone(),
                value: value.clone(),
                sent: Sent::Pending,
            };
            self.record.lock().transactions[number as usize]
                .records
                .push(written);
            let to_send = ProducerRecord::new(INPUT).key(key).value(value);
            match producer.send(to_send).await {
                Ok(delivery) => {
                    self.note_later(delivery, move |history, sent| {
                        let mut history = history.lock();
                        history.transactions[number as usize].records[record as usize].sent = sent;
                    });
                }
                Err(error) => {
                    self.record
                        .say(|| format!("send in transaction {number}: {error}"));
                    refused = true;
                    break;
                }
            }
        }
        if refused || aborts {
            return self.abort(producer).await;
        }
        if crashes {
            return self.crash_in_commit(producer).await;
        }
        self.commit(producer).await
    }

    async fn commit(&mut self, producer: &Producer) -> (Ended, bool) {
        for _ in 0..20 {
            match producer.commit().await {
                Ok(()) => return (Ended::Committed, true),
                Err(TransactionError::CommitInDoubt { .. }) => self.record.count("commit in doubt"),
                Err(TransactionError::Abortable { cause, .. }) => {
                    self.record.say(|| format!("commit refused: {cause}"));
                    self.record.count("commit refused");
                    let (ended, goes_on) = self.abort(producer).await;
                    return (ended, goes_on);
                }
                Err(error) => {
                    self.record.say(|| format!("commit failed: {error}"));
                    self.record.count("commit failed");
                    return (Ended::Unknown, false);
                }
            }
        }
        self.record.mishap("a commit stayed in doubt".to_owned());
        (Ended::Unknown, false)
    }

    async fn abort(&mut self, producer: &Producer) -> (Ended, bool) {
        for _ in 0..20 {
            match producer.abort().await {
                Ok(()) => return (Ended::Aborted, true),
                Err(TransactionError::Timeout { .. }) => self.record.count("abort timed out"),
                Err(error) => {
                    self.record.say(|| format!("abort failed: {error}"));
                    self.record.count("abort failed");
                    return (Ended::Aborted, false);
                }
            }
        }
        self.record.mishap("an abort got no answer".to_owned());
        (Ended::Unknown, false)
    }

    /// The producer is lost somewhere in its commit.
    async fn crash_in_commit(&mut self, producer: &Producer) -> (Ended, bool) {
        let lasts = Duration::from_millis(self.random.u64(..=60));
        self.record.count("producer lost in commit");
        match tokio::time::timeout(lasts, producer.commit()).await {
            Ok(Ok(())) => (Ended::Committed, false),
            _ => (Ended::Unknown, false),
        }
    }
}
