//! How the fate of a batch reaches those who sent its records.
//!
//! Invariants: a batch is resolved once; every future, callback and flush that asks afterwards or
//! before sees that outcome; one allocation a batch, none a record.
//! Never: cancels anything when a future is dropped.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use millstream_protocol::TopicPartition;

use super::record::RecordMetadata;
use crate::error::DeliveryError;

type Callback = Box<dyn FnOnce(Result<RecordMetadata, DeliveryError>) + Send>;

/// The shared fate of the records of one batch.
pub(super) struct BatchState {
    pub(super) id: u64,
    pub(super) topic_partition: TopicPartition,
    /// What the batch takes of `buffer.memory`.
    pub(super) reserved_bytes: usize,
    /// Whether it holds records that nobody waits for one by one.
    uncounted: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Set before the callbacks run, `outcome` when they have run.
    decided: bool,
    outcome: Option<Outcome>,
    wakers: Vec<Waker>,
    callbacks: Vec<(i32, i64, Callback)>,
}

/// What became of a batch.
#[derive(Clone)]
pub(super) enum Outcome {
    Acknowledged {
        base_offset: i64,
        /// -1 where the records keep their own timestamps.
        log_append_time_ms: i64,
    },
    Failed(DeliveryError),
    /// The batch went on as these, in order: number of records, and the new batch.
    Split(Arc<[(i32, Arc<BatchState>)]>),
}

impl fmt::Debug for BatchState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "BatchState({} of {})",
            self.id, self.topic_partition
        )
    }
}

impl BatchState {
    pub(super) fn new(id: u64, topic_partition: TopicPartition, reserved_bytes: usize) -> Self {
        Self {
            id,
            topic_partition,
            reserved_bytes,
            uncounted: AtomicBool::new(false),
            inner: Mutex::default(),
        }
    }

    pub(super) fn mark_uncounted(&self) {
        self.uncounted.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_uncounted(&self) -> bool {
        self.uncounted.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its fate is decided; its callbacks may still be running.
    pub(super) fn is_resolved(&self) -> bool {
        self.lock().decided
    }

    /// Settles the batch; a second outcome is ignored. Callbacks run here, in record order, and
    /// whoever waits for the batch goes on when they have run.
    pub(super) fn resolve(&self, outcome: Outcome) {
        if std::mem::replace(&mut self.lock().decided, true) {
            return;
        }
        let wakers = loop {
            let mut callbacks = {
                let mut inner = self.lock();
                if inner.callbacks.is_empty() {
                    inner.outcome = Some(outcome);
                    break std::mem::take(&mut inner.wakers);
                }
                std::mem::take(&mut inner.callbacks)
            };
            callbacks.sort_by_key(|(index, ..)| *index);
            for (index, timestamp, callback) in callbacks {
                self.call_with(&outcome, index, timestamp, callback);
            }
        };
        for waker in wakers {
            waker.wake();
        }
    }

    fn call_with(&self, outcome: &Outcome, index: i32, timestamp: i64, callback: Callback) {
        match outcome {
            Outcome::Split(parts) => {
                if let Some((part, index)) = part_of(parts, index) {
                    part.on_resolved(index, timestamp, callback);
                }
            }
            outcome => call(callback, self.result(outcome, index, timestamp)),
        }
    }

    /// Calls back when the batch is resolved, or now if it is.
    pub(super) fn on_resolved(&self, index: i32, timestamp: i64, callback: Callback) {
        let outcome = {
            let mut inner = self.lock();
            let Some(outcome) = inner.outcome.clone() else {
                inner.callbacks.push((index, timestamp, callback));
                return;
            };
            outcome
        };
        self.call_with(&outcome, index, timestamp, callback);
    }

    fn result(
        &self,
        outcome: &Outcome,
        index: i32,
        timestamp: i64,
    ) -> Result<RecordMetadata, DeliveryError> {
        match outcome {
            Outcome::Acknowledged {
                base_offset,
                log_append_time_ms,
            } => Ok(RecordMetadata {
                topic: Arc::clone(&self.topic_partition.topic),
                partition: self.topic_partition.partition,
                offset: if *base_offset < 0 {
                    -1
                } else {
                    base_offset + i64::from(index)
                },
                timestamp: if *log_append_time_ms < 0 {
                    timestamp
                } else {
                    *log_append_time_ms
                },
            }),
            Outcome::Failed(error) => Err(error.clone()),
            Outcome::Split(_) => Err(DeliveryError::Failed {
                topic_partition: self.topic_partition.clone(),
                cause: "the batch was split without a part for the record".into(),
            }),
        }
    }

    /// The outcome, or a promise to wake.
    fn poll(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut inner = self.lock();
        if let Some(outcome) = &inner.outcome {
            return Poll::Ready(outcome.clone());
        }
        if !inner
            .wakers
            .iter()
            .any(|waker| waker.will_wake(context.waker()))
        {
            inner.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

/// Calls back. A panic ends the callback, and not the sender's task, on which every other record
/// depends.
fn call(callback: Callback, result: Result<RecordMetadata, DeliveryError>) {
    let called = std::panic::catch_unwind(AssertUnwindSafe(|| callback(result)));
    if called.is_err() {
        tracing::error!("a callback of a delivery, or an interceptor, panicked");
    }
}

/// Waits until a batch, and whatever it was split into, is resolved.
pub(super) async fn settled(batch: Arc<BatchState>) {
    let mut left = vec![batch];
    while let Some(batch) = left.pop() {
        let outcome = std::future::poll_fn(|context| batch.poll(context)).await;
        if let Outcome::Split(parts) = outcome {
            left.extend(parts.iter().map(|(_, part)| Arc::clone(part)));
        }
    }
}

fn part_of(parts: &[(i32, Arc<BatchState>)], index: i32) -> Option<(Arc<BatchState>, i32)> {
    let mut index = index;
    for (count, part) in parts {
        if index < *count {
            return Some((Arc::clone(part), index));
        }
        index -= count;
    }
    None
}

/// The future of one record's acknowledgement.
///
/// Resolves when the brokers have acknowledged the record as `acks` says, or when it is sure that
/// they will not. With `acks=all` and the embedded broker's default durability an acknowledgement
/// means that the record is on disk; with Apache Kafka it means that the in-sync replicas have it
/// in memory. Neither says anything about consumers.
///
/// Dropping it cancels nothing: the record is sent all the same.
#[derive(Debug)]
#[must_use = "a record may fail; await the delivery or drop it on purpose"]
pub struct Delivery {
    state: DeliveryState,
}

#[derive(Debug)]
enum DeliveryState {
    Batch {
        batch: Arc<BatchState>,
        index: i32,
        timestamp: i64,
    },
    Refused(DeliveryError),
}

impl Delivery {
    pub(super) fn in_batch(batch: Arc<BatchState>, index: i32, timestamp: i64) -> Self {
        Self {
            state: DeliveryState::Batch {
                batch,
                index,
                timestamp,
            },
        }
    }

    pub(super) fn refused(error: DeliveryError) -> Self {
        Self {
            state: DeliveryState::Refused(error),
        }
    }

    /// Calls `callback` with the outcome, beside whoever waits for it.
    pub(super) fn also_on_resolved(
        &self,
        callback: impl FnOnce(Result<RecordMetadata, DeliveryError>) + Send + 'static,
    ) {
        match &self.state {
            DeliveryState::Batch {
                batch,
                index,
                timestamp,
            } => batch.on_resolved(*index, *timestamp, Box::new(callback)),
            DeliveryState::Refused(error) => callback(Err(error.clone())),
        }
    }

    /// Calls `callback` with the outcome instead of waiting for it: on the sender's task, in the
    /// order of the records of a partition, or at once where the outcome is known. It must not
    /// block.
    pub fn on_resolved(
        self,
        callback: impl FnOnce(Result<RecordMetadata, DeliveryError>) + Send + 'static,
    ) {
        match self.state {
            DeliveryState::Batch {
                batch,
                index,
                timestamp,
            } => {
                batch.on_resolved(index, timestamp, Box::new(callback));
            }
            DeliveryState::Refused(error) => callback(Err(error)),
        }
    }
}

impl Future for Delivery {
    type Output = Result<RecordMetadata, DeliveryError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let next = match &self.state {
                DeliveryState::Refused(error) => return Poll::Ready(Err(error.clone())),
                DeliveryState::Batch {
                    batch,
                    index,
                    timestamp,
                } => {
                    let Poll::Ready(outcome) = batch.poll(context) else {
                        return Poll::Pending;
                    };
                    match &outcome {
                        Outcome::Split(parts) => match part_of(parts, *index) {
                            Some((batch, index)) => DeliveryState::Batch {
                                batch,
                                index,
                                timestamp: *timestamp,
                            },
                            None => {
                                return Poll::Ready(batch.result(&outcome, *index, *timestamp));
                            }
                        },
                        outcome => return Poll::Ready(batch.result(outcome, *index, *timestamp)),
                    }
                }
            };
            self.state = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(id: u64) -> Arc<BatchState> {
        Arc::new(BatchState::new(id, TopicPartition::new("orders", 2), 0))
    }

    #[tokio::test]
    async fn every_record_of_a_batch_gets_its_own_offset_and_the_brokers_time() {
        let state = batch(1);
        let first = Delivery::in_batch(Arc::clone(&state), 0, 5);
        let third = Delivery::in_batch(Arc::clone(&state), 2, 7);
        let waiting = tokio::spawn(first);
        tokio::task::yield_now().await;
        state.resolve(Outcome::Acknowledged {
            base_offset: 40,
            log_append_time_ms: -1,
        });
        let first = waiting.await.unwrap().unwrap();
        assert_eq!((first.partition, first.offset, first.timestamp), (2, 40, 5));
        let third = third.await.unwrap();
        assert_eq!((third.offset, third.timestamp), (42, 7));
    }

    #[tokio::test]
    async fn a_callback_that_panics_takes_nobody_else_with_it() {
        let state = batch(1);
        Delivery::in_batch(Arc::clone(&state), 0, 5).on_resolved(|_| panic!("on purpose"));
        let (sender, receiver) = std::sync::mpsc::channel();
        Delivery::in_batch(Arc::clone(&state), 1, 5)
            .on_resolved(move |result| sender.send(result.unwrap().offset).unwrap());
        state.resolve(Outcome::Acknowledged {
            base_offset: 40,
            log_append_time_ms: -1,
        });
        assert_eq!(receiver.recv(), Ok(41));
    }

    #[tokio::test]
    async fn futures_and_callbacks_follow_a_split_and_flush_waits_for_the_parts() {
        let state = batch(1);
        let third = Delivery::in_batch(Arc::clone(&state), 2, 7);
        let (sender, receiver) = std::sync::mpsc::channel();
        for index in [2, 0, 1] {
            let sender = sender.clone();
            Delivery::in_batch(Arc::clone(&state), index, 0)
                .on_resolved(move |result| sender.send((index, result.unwrap().offset)).unwrap());
        }
        let flush = tokio::spawn(settled(Arc::clone(&state)));
        let (left, right) = (batch(2), batch(3));
        let parts: Arc<[_]> = Arc::new([(2, Arc::clone(&left)), (1, Arc::clone(&right))]);
        state.resolve(Outcome::Split(parts));
        left.resolve(Outcome::Acknowledged {
            base_offset: 10,
            log_append_time_ms: -1,
        });
        tokio::task::yield_now().await;
        assert!(!flush.is_finished());
        right.resolve(Outcome::Acknowledged {
            base_offset: 12,
            log_append_time_ms: 99,
        });
        flush.await.unwrap();
        let third = third.await.unwrap();
        assert_eq!((third.offset, third.timestamp), (12, 99));
        assert_eq!(
            receiver.try_iter().collect::<Vec<_>>(),
            [(0, 10), (1, 11), (2, 12)]
        );
    }
}
