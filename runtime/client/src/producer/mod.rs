//! The producer: `accumulate` and `send`, with idempotence and transactions.
//!
//! Invariants: `send` waits for buffer space and for the topic's first metadata, for nothing else;
//! dropped before it returned it has sent nothing; records of one caller keep their order in a
//! partition.
//! Never: does I/O on the caller's task, except in the transactional calls.

mod accumulator;
pub mod config;
mod delivery;
mod drain;
mod idempotence;
mod interceptor;
mod leaders;
mod outcome;
pub mod partitioner;
mod record;
mod sender;
mod settings;
mod shared;
pub mod transaction;

use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

use millstream_protocol::ApiKey;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::accumulator::{Accumulator, Incoming, Limits, Refusal};
pub use self::config::{Acks, ProducerBuilder, ProducerConfig};
pub use self::delivery::Delivery;
pub use self::idempotence::ProducerIdentity;
pub use self::interceptor::{InterceptorError, Interceptors, ProducerInterceptor};
pub use self::record::{ProducerRecord, RecordMetadata};
use self::sender::{Command, Sender};
use self::shared::Shared;
use crate::cluster::{Cluster, millis};
use crate::error::{ClusterError, ConfigError, DeliveryError, UsageError};
use crate::transport::IntoTransport;

/// Sends records. Cheap to clone; clones are the same producer and may be used from any task.
///
/// When the last clone is dropped, what was accepted is still sent; what belongs to an open
/// transaction is dropped.
#[derive(Clone, Debug)]
pub struct Producer {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    cluster: Cluster,
    config: Arc<ProducerConfig>,
    commands: mpsc::UnboundedSender<Command>,
    /// Held by whoever waits for buffer space: first come, first served.
    space_turn: tokio::sync::Mutex<()>,
    /// Held by a transactional call.
    operation: tokio::sync::Mutex<()>,
}

/// Where [`Producer::enqueue`] put a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// The partition.
    pub partition: i32,
}

/// Why a record cannot be enqueued at this moment.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EnqueueError {
    /// The topic's partitions are not known yet; [`Producer::unblock`] asks for them.
    #[error("topic {topic}: the partitions are not known yet")]
    UnknownTopic {
        /// The topic.
        topic: Arc<str>,
    },
    /// `buffer.memory` is used up; [`Producer::unblock`] waits for space.
    #[error("topic {topic}: the buffer is full")]
    Full {
        /// The topic.
        topic: Arc<str>,
        /// What the record needs, in bytes.
        needed_bytes: usize,
    },
    /// The call is wrong.
    #[error(transparent)]
    Usage(#[from] UsageError),
}

impl ProducerBuilder {
    /// A producer for the cluster behind `transport`, with these settings. Connects to nobody yet.
    /// To be called inside a tokio runtime.
    ///
    /// # Errors
    /// Where settings contradict each other.
    #[expect(
        clippy::unused_async,
        reason = "a later version may look before it leaps"
    )]
    pub async fn connect<T: IntoTransport + ?Sized>(
        self,
        transport: &T,
    ) -> Result<Producer, ConfigError> {
        let config = self.build()?;
        let cluster = Cluster::new(transport.into_transport(), config.client.clone());
        Ok(Producer::on(cluster, config))
    }
}

impl Producer {
    /// A producer with the default settings: idempotent, `acks=all`. Connects to nobody yet. To be
    /// called inside a tokio runtime.
    ///
    /// # Errors
    /// None at this time.
    pub async fn connect<T: IntoTransport + ?Sized>(transport: &T) -> Result<Self, ConfigError> {
        Self::builder().connect(transport).await
    }

    /// Settings to begin with: idempotent, `acks=all`.
    #[must_use]
    pub fn builder() -> ProducerBuilder {
        ProducerBuilder::default()
    }

    /// Settings of a transactional producer. The id has to be the same after a restart: it is what
    /// fences the predecessor and gives exactly-once over restarts.
    #[must_use]
    pub fn transactional(transactional_id: impl Into<Arc<str>>) -> ProducerBuilder {
        Self::builder().transactional_id(transactional_id)
    }

    /// Settings of an idempotent producer without transactions.
    #[must_use]
    pub fn idempotent() -> ProducerBuilder {
        Self::builder().idempotence(true)
    }

    /// A producer on a cluster that others may use as well. To be called inside a tokio runtime.
    #[must_use]
    pub fn on(cluster: Cluster, config: ProducerConfig) -> Self {
        let limits = Limits {
            batch_size: config.batch_size,
            buffer_memory: config.buffer_memory,
            max_request_size: config.max_request_size,
            linger_ms: i64::try_from(config.linger.as_millis()).unwrap_or(i64::MAX),
            compression: config.compression,
            seed: config.client.seed,
        };
        let config = Arc::new(config);
        let accumulator = Accumulator::new(limits, None);
        let shared = Arc::new(Shared::new(accumulator, config.transactional_id.clone()));
        let (commands, receiver) = mpsc::unbounded_channel();
        let sender = Sender::new(
            Arc::clone(&shared),
            cluster.clone(),
            Arc::clone(&config),
            receiver,
        );
        tokio::spawn(sender.run());
        tracing::debug!(?config, "producer made");
        for warning in config.warnings() {
            tracing::warn!(client = %config.client.client_id, "{warning}");
        }
        Self {
            handle: Arc::new(Handle {
                shared,
                cluster,
                config,
                commands,
                space_turn: tokio::sync::Mutex::new(()),
                operation: tokio::sync::Mutex::new(()),
            }),
        }
    }

    /// The effective settings.
    #[must_use]
    pub fn config(&self) -> &ProducerConfig {
        &self.handle.config
    }

    /// The cluster underneath.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.handle.cluster
    }

    /// Accepts a record: waits until the buffer has room and the topic's partitions are known, at
    /// most `max.block.ms`, then appends it to a batch. The acknowledgement comes by the
    /// [`Delivery`]; waiting for each one before the next record costs a round trip a record.
    ///
    /// Cancellation-safe: dropped before it is ready, it has sent nothing.
    ///
    /// # Errors
    /// Where the call is wrong: no open transaction, a closed producer, a record that can never be
    /// sent, a partition that does not exist. What goes wrong on the way (a full buffer, missing
    /// metadata, the broker's refusal) comes out of the [`Delivery`].
    pub async fn send(&self, mut record: ProducerRecord) -> Result<Delivery, UsageError> {
        let interceptors = &self.handle.config.interceptors;
        interceptors.on_send(&mut record)?;
        let delivery = self.accept(&record).await?;
        interceptors.watch(&delivery);
        Ok(delivery)
    }

    async fn accept(&self, record: &ProducerRecord) -> Result<Delivery, UsageError> {
        let mut blocked_since = None;
        loop {
            let blocked = match self.append(record) {
                Ok(delivery) => return Ok(delivery),
                Err(EnqueueError::Usage(error)) => {
                    if !self.refreshed_for(&error, &mut blocked_since).await {
                        return Err(error);
                    }
                    continue;
                }
                Err(blocked) => blocked,
            };
            let since = *blocked_since.get_or_insert_with(Instant::now);
            let patience = self.handle.config.max_block.saturating_sub(since.elapsed());
            if let Err(error) = self.unblock_within(&blocked, patience).await {
                if let Some(error) = self.handle.shared.lock().gate().cloned() {
                    return Err(error);
                }
                self.handle
                    .shared
                    .fail_transaction(&error.to_string().into());
                return Ok(Delivery::refused(error));
            }
        }
    }

    /// An explicit partition that does not exist may be newer than the metadata: asks once.
    async fn refreshed_for(&self, error: &UsageError, since: &mut Option<Instant>) -> bool {
        let UsageError::UnknownPartition {
            topic, partition, ..
        } = error
        else {
            return false;
        };
        if since.is_some() || *partition < 0 {
            return false;
        }
        *since = Some(Instant::now());
        let asked = self
            .handle
            .cluster
            .refresh_metadata(std::slice::from_ref(topic));
        let asked = tokio::time::timeout(self.handle.config.max_block, asked).await;
        if let Some(count) = self.handle.cluster.known_partitions_of(topic) {
            self.handle.shared.lock().set_partitions(topic, count);
        }
        matches!(asked, Ok(Ok(())))
    }

    /// Accepts a record if that is possible without waiting.
    ///
    /// # Errors
    /// Where it is not, or the call is wrong. Nothing was sent then.
    pub fn try_send(&self, record: &ProducerRecord) -> Result<Delivery, EnqueueError> {
        let interceptors = &self.handle.config.interceptors;
        if interceptors.is_empty() {
            return self.append(record);
        }
        let mut record = record.clone();
        interceptors.on_send(&mut record)?;
        let delivery = self.append(&record)?;
        interceptors.watch(&delivery);
        Ok(delivery)
    }

    fn append(&self, record: &ProducerRecord) -> Result<Delivery, EnqueueError> {
        let clock = self.handle.cluster.clock();
        let timestamp = record.timestamp.unwrap_or_else(|| clock.wall_ms());
        let headers: Vec<(&str, Option<&[u8]>)> = record
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_deref()))
            .collect();
        let incoming = Incoming {
            topic: &record.topic,
            partition: record.partition,
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: &headers,
            timestamp,
        };
        let (delivery, wake) = {
            let mut accumulator = self.handle.shared.lock();
            let appended = accumulator
                .append(&incoming, clock)
                .map_err(|refusal| refused(refusal, &incoming))?;
            let batch = Arc::clone(appended.batch);
            (
                Delivery::in_batch(batch, appended.index, timestamp),
                appended.wake,
            )
        };
        if wake {
            self.handle.shared.wake.notify_one();
        }
        Ok(delivery)
    }

    /// Accepts a record without waiting and without a future of its own: the path for those who
    /// send many. Its error, if it has one, comes out of [`Producer::flush`] or, in a
    /// transaction, of `commit`. `timestamp` is in milliseconds since 1970.
    ///
    /// # Errors
    /// Where the record cannot be accepted at once ([`Producer::unblock`] waits for what is
    /// missing) or the call is wrong. Nothing was sent then.
    pub fn enqueue(
        &self,
        topic: &Arc<str>,
        partition: Option<i32>,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
        timestamp: i64,
    ) -> Result<Enqueued, EnqueueError> {
        let incoming = Incoming {
            topic,
            partition,
            key,
            value,
            headers,
            timestamp,
        };
        let (partition, wake) = {
            let mut accumulator = self.handle.shared.lock();
            let appended = accumulator
                .append(&incoming, self.handle.cluster.clock())
                .map_err(|refusal| refused(refusal, &incoming))?;
            appended.batch.mark_uncounted();
            (appended.partition, appended.wake)
        };
        if wake {
            self.handle.shared.wake.notify_one();
        }
        Ok(Enqueued { partition })
    }

    /// Waits for what [`Producer::enqueue`] lacked, at most `max.block.ms`; then enqueue again.
    ///
    /// Cancellation-safe.
    ///
    /// # Errors
    /// Where it does not come in time. An open transaction has failed then.
    pub fn unblock<'a>(
        &'a self,
        blocked: &'a EnqueueError,
    ) -> BoxFuture<'a, Result<(), DeliveryError>> {
        Box::pin(async move {
            let result = self
                .unblock_within(blocked, self.handle.config.max_block)
                .await;
            if let Err(error) = &result {
                self.handle
                    .shared
                    .fail_transaction(&error.to_string().into());
            }
            result
        })
    }

    fn unblock_within<'a>(
        &'a self,
        blocked: &'a EnqueueError,
        patience: Duration,
    ) -> BoxFuture<'a, Result<(), DeliveryError>> {
        Box::pin(async move {
            match blocked {
                EnqueueError::UnknownTopic { topic } => {
                    let known = self.handle.cluster.topic_within(topic, patience).await;
                    let known = known.map_err(|error| DeliveryError::Metadata { error })?;
                    let count = i32::try_from(known.partitions.len()).unwrap_or(i32::MAX);
                    self.handle.shared.lock().set_partitions(topic, count);
                    Ok(())
                }
                EnqueueError::Full {
                    topic,
                    needed_bytes,
                } => {
                    let waited = tokio::time::timeout(patience, self.space(*needed_bytes)).await;
                    waited.map_err(|_| DeliveryError::BufferExhausted {
                        topic: Arc::clone(topic),
                        waited_ms: millis(self.handle.config.max_block),
                    })
                }
                EnqueueError::Usage(_) => Ok(()),
            }
        })
    }

    /// Waits until a batch fits the buffer, or records are refused for another reason.
    async fn space(&self, needed_bytes: usize) {
        let shared = &self.handle.shared;
        let _turn = self.handle.space_turn.lock().await;
        let _waiting = Waiting::new(shared);
        loop {
            let mut space = std::pin::pin!(shared.space.notified());
            space.as_mut().enable();
            {
                let accumulator = shared.lock();
                if accumulator.has_room(needed_bytes) || accumulator.gate().is_some() {
                    return;
                }
            }
            space.await;
        }
    }

    /// Asks for a topic's partitions, so that [`Producer::enqueue`] finds them.
    ///
    /// # Errors
    /// Where they are not known within `max.block.ms`.
    pub fn prepare<'a>(&'a self, topic: &'a Arc<str>) -> BoxFuture<'a, Result<(), ClusterError>> {
        Box::pin(async move {
            if self.handle.shared.lock().knows(topic) {
                return Ok(());
            }
            let patience = self.handle.config.max_block;
            let known = self.handle.cluster.topic_within(topic, patience).await?;
            let count = i32::try_from(known.partitions.len()).unwrap_or(i32::MAX);
            self.handle.shared.lock().set_partitions(topic, count);
            Ok(())
        })
    }

    /// Sends everything accepted so far without lingering, and waits until each of these records
    /// is acknowledged or has failed. Records accepted later are not waited for.
    ///
    /// Cancellation-safe: dropped early it cancels nothing.
    ///
    /// # Errors
    /// The first error of enqueued records since the last call. Errors of records with a
    /// [`Delivery`] come out of that.
    pub fn flush(&self) -> BoxFuture<'_, Result<(), DeliveryError>> {
        Box::pin(async move {
            let waited_for = self.handle.shared.lock().seal();
            self.handle.shared.wake.notify_one();
            for batch in waited_for {
                delivery::settled(batch).await;
            }
            self.handle.shared.take_uncounted().map_or(Ok(()), Err)
        })
    }

    /// Closes the producer: accepts nothing more, sends what it has, waits at most `timeout`, then
    /// drops the rest, whose deliveries fail. An open transaction is aborted, unless its commit is
    /// in doubt. A timeout of zero drops everything at once. Returns in time even when no broker
    /// answers; further calls return at once.
    pub fn close(&self, timeout: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let shared = &self.handle.shared;
            if shared.is_closed() {
                return;
            }
            if !timeout.is_zero() {
                let ending = async {
                    if shared.transactional_id.is_some() {
                        self.abort_on_close().await;
                    }
                    shared.close();
                    let left = self.flush().await;
                    if let Err(error) = left {
                        tracing::warn!(%error, "records were not delivered before the close");
                    }
                    if self.handle.config.acks == Acks::None {
                        self.handle.cluster.drained(ApiKey::Produce).await;
                    }
                };
                if tokio::time::timeout(timeout, ending).await.is_err() {
                    tracing::warn!(
                        timeout_ms = millis(timeout),
                        "the producer is closed before everything was acknowledged"
                    );
                }
            }
            shared.close();
            let (done, stopped) = oneshot::channel();
            if self.handle.commands.send(Command::Stop(done)).is_ok() {
                // The sender's task ends by this command; if it ended before there is nothing to
                // do.
                let _ = stopped.await;
            }
            self.handle.cluster.disconnect();
        })
    }

    /// Bytes of `buffer.memory` in use.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.handle.shared.lock().memory_used()
    }
}

fn refused(refusal: Refusal, record: &Incoming<'_>) -> EnqueueError {
    let topic = Arc::clone(record.topic);
    match refusal {
        Refusal::UnknownTopic => EnqueueError::UnknownTopic { topic },
        Refusal::Full { needed_bytes } => EnqueueError::Full {
            topic,
            needed_bytes,
        },
        Refusal::UnknownPartition { partitions } => {
            let partition = record.partition.unwrap_or(-1);
            UsageError::UnknownPartition {
                topic,
                partition,
                partitions,
            }
            .into()
        }
        Refusal::Usage(error) => error.into(),
    }
}

/// Counts those who wait for space, so that batches leave without lingering.
struct Waiting<'a>(&'a Shared);

impl<'a> Waiting<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.lock().waiting_for_space += 1;
        shared.wake.notify_one();
        Self(shared)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting_for_space -= 1;
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod transaction_tests;
