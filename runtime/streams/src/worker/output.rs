//! Where stage `collect` ends: the outputs of one record go to the producer, or the record goes to
//! the dead letters.
//!
//! Invariants: a record whose output no broker would take is poison before any of its outputs is
//! sent; a dead letter is the record itself, only the texts about it are cut.
//! Never: drops a record that fits nowhere; that is an error which names the settings.

use std::sync::Arc;
use std::time::Duration;

use millstream_client::{Admin, AdminError, EnqueueError, Producer};
use millstream_protocol::{ErrorCode, Headers, TopicPartition};
use tokio::time::Instant;

use super::{Owned, Worker};
use crate::error::{BoxError, StreamsError};
use crate::failpoint;
use crate::poison::{HEADER_BYTES_MAX, PoisonPolicy, error_headers};
use crate::record::SourceRecord;
use crate::task::{Collected, Outcome};
use crate::topology::Topology;

/// How large a record may be, by the topic it goes to.
#[derive(Clone)]
pub(crate) struct SizeLimits {
    admin: Admin,
    sinks: Vec<(Arc<str>, usize)>,
    dead_letter: Option<(Arc<str>, usize)>,
    request_max: usize,
    /// Until then nobody is asked again.
    fresh_until: Instant,
}

impl SizeLimits {
    /// What topics take where they do not say it.
    const USUAL: usize = 1 << 20;
    /// How long the start waits for what the topics say.
    const PATIENCE: Duration = Duration::from_secs(5);
    /// Before a record is given up the topics are asked again, but not more often than this.
    const FRESH: Duration = Duration::from_secs(1);
    /// The same after a time in which not all have answered.
    const FRESH_UNANSWERED: Duration = Duration::from_secs(10);

    /// Asks what the output topics take; no request may be larger than `request_max`.
    pub(crate) async fn ask(
        admin: Admin,
        topology: &Topology,
        poison: &PoisonPolicy,
        request_max: usize,
    ) -> Self {
        let unknown = |topic: &Arc<str>| (Arc::clone(topic), request_max);
        let mut limits = Self {
            admin,
            sinks: topology.inner.sinks.iter().map(unknown).collect(),
            dead_letter: match poison {
                PoisonPolicy::DeadLetter(topic) => Some(unknown(topic)),
                PoisonPolicy::Fail | PoisonPolicy::Skip => None,
            },
            request_max,
            fresh_until: Instant::now(),
        };
        if !limits.refresh(Self::PATIENCE).await {
            tracing::warn!(
                request_max,
                "the output topics did not say in time what they take (max.message.bytes); records \
                 up to the size of a request are sent to them"
            );
        }
        limits
    }

    /// A limit may have been changed since. What is not answered in time stays as it was; whether
    /// everything was.
    async fn refresh(&mut self, patience: Duration) -> bool {
        let (admin, request_max) = (&self.admin, self.request_max);
        let topics = self.sinks.iter_mut().chain(&mut self.dead_letter);
        let asked = topics.map(|(topic, limit)| async move {
            match said(admin, topic).await {
                Ok(said) => {
                    *limit = said.unwrap_or(Self::USUAL).min(request_max);
                    said.is_some()
                }
                Err(error) => {
                    tracing::warn!(
                        %topic, %error, limit_bytes = *limit,
                        "the topic does not say what it takes (max.message.bytes); records up to \
                         this size are sent to it"
                    );
                    true
                }
            }
        });
        let all = futures::future::join_all(asked);
        let answered = tokio::time::timeout(patience, all).await;
        let fresh = match &answered {
            Ok(are_there) if are_there.iter().all(|is_there| *is_there) => Self::FRESH,
            // It may be there in a moment: brokers hear of a new topic one after another.
            Ok(_) => Duration::ZERO,
            Err(_) => Self::FRESH_UNANSWERED,
        };
        self.fresh_until = Instant::now() + fresh;
        answered.is_ok()
    }

    /// Asks again, but waits for no broker that is away.
    pub(super) async fn refresh_soon(&mut self) {
        self.refresh(Self::FRESH).await;
    }

    fn is_fresh(&self) -> bool {
        Instant::now() < self.fresh_until
    }
}

/// What the topic says that it takes; `None` where the broker does not know it (yet).
async fn said(admin: &Admin, topic: &str) -> Result<Option<usize>, AdminError> {
    let configs = match admin.topic_configs(topic).await {
        Ok(configs) => configs,
        Err(error) if error.code() == Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let said = configs.get("max.message.bytes");
    let said = said.and_then(|bytes| bytes.parse().ok());
    Ok(Some(said.unwrap_or(SizeLimits::USUAL)))
}

impl Worker {
    /// Stage `collect` ends here: the outputs of one record go to the producer's accumulator.
    pub(super) async fn send_collected(
        &mut self,
        partition: &TopicPartition,
    ) -> Result<(), StreamsError> {
        let Some(Owned { task, .. }) = self.tasks.get_mut(partition) else {
            return Ok(());
        };
        // Only the collector is held across the awaits below, never the task, which is not shared.
        let collector = task.collector();
        for index in 0..collector.len() {
            let Some(output) = collector.get(index) else {
                break;
            };
            let Some(topic) = self.topology.inner.sinks.get(output.sink) else {
                continue;
            };
            send(&self.producer, topic, &output).await?;
            failpoint::hit("streams.between-outputs");
            self.open.wrote(output.sink);
        }
        Ok(())
    }

    /// The first output of the record just processed that its topic would not take. It is found
    /// before any of them is sent, so that the record can still be poison; and the topic is asked
    /// again before, since it may take more by now.
    pub(super) async fn oversize_output(&mut self, partition: &TopicPartition) -> Option<Outcome> {
        let found = self.oversize(partition)?;
        if self.limits.is_fresh() {
            return Some(found);
        }
        self.ask_limits_again().await;
        self.oversize(partition)
    }

    /// The open transaction does not wait for long.
    async fn ask_limits_again(&mut self) {
        let patience = self.config.transaction_timeout / 4;
        self.limits.refresh(patience).await;
    }

    fn dead_letter_limit(&self) -> usize {
        let limit = self.limits.dead_letter.as_ref();
        limit.map_or(self.config.max_request_size, |(_, limit)| *limit)
    }

    fn oversize(&self, partition: &TopicPartition) -> Option<Outcome> {
        let collector = self.tasks.get(partition)?.task.collector();
        let outputs = (0..collector.len()).filter_map(|index| collector.get(index));
        let sinks = &self.limits.sinks;
        let (size_bytes, (topic, limit)) = outputs
            .filter_map(|output| Some((output.size_bytes(), sinks.get(output.sink)?)))
            .find(|(size_bytes, (_, limit))| size_bytes > limit)?;
        let cause = format!(
            "an output of {size_bytes} bytes for topic {topic}, which takes {limit} at most \
             (its max.message.bytes, max.request.size)",
        );
        Some(Outcome::Poison {
            operator: format!("sink {topic}").into(),
            cause: cause.into(),
        })
    }

    pub(super) async fn on_poison(
        &mut self,
        partition: &TopicPartition,
        record: SourceRecord,
        operator: &str,
        cause: BoxError,
    ) -> Result<(), StreamsError> {
        let offset = record.offset;
        let config = Arc::clone(&self.config);
        match &config.poison {
            PoisonPolicy::Fail => Err(StreamsError::Poison {
                operator: operator.to_owned(),
                partition: partition.clone(),
                offset,
                cause,
            }),
            PoisonPolicy::Skip => {
                tracing::warn!(%partition, offset, operator, %cause, "poison record skipped");
                self.open.skipped();
                Ok(())
            }
            PoisonPolicy::DeadLetter(topic) => {
                let headers = |limit| letter_headers(partition, &record, operator, &cause, limit);
                let mut limit = self.dead_letter_limit();
                let mut with = headers(limit);
                if letter(&record, &with).size_bytes() > limit && !self.limits.is_fresh() {
                    self.ask_limits_again().await;
                    limit = self.dead_letter_limit();
                    with = headers(limit);
                }
                let letter = letter(&record, &with);
                let size_bytes = letter.size_bytes();
                if size_bytes > limit {
                    return Err(StreamsError::DeadLetterTooLarge {
                        partition: partition.clone(),
                        offset,
                        topic: Arc::clone(topic),
                        size_bytes,
                        limit_bytes: limit,
                        cause,
                    });
                }
                send(&self.producer, topic, &letter).await?;
                self.open.wrote_dead_letter();
                Ok(())
            }
        }
    }
}

fn letter<'a>(record: &'a SourceRecord, headers: &'a Headers) -> Collected<'a> {
    Collected {
        sink: usize::MAX,
        timestamp: record.timestamp,
        headers,
        key: record.key.as_deref(),
        value: record.value.as_deref(),
    }
}

/// The headers of a record's dead letter: its own, and what went wrong, in texts as long as the
/// topic has room for.
fn letter_headers(
    partition: &TopicPartition,
    record: &SourceRecord,
    operator: &str,
    cause: &BoxError,
    limit: usize,
) -> Headers {
    const TEXTS: usize = 3;
    let headers = |text_bytes_max: usize| -> Headers {
        let own = record.headers.iter().map(|(name, value)| {
            let value = value.map(bytes::Bytes::copy_from_slice);
            (name.into_owned(), value)
        });
        let place = (&*partition.topic, partition.partition, record.offset);
        let errors = error_headers(operator, cause.as_ref(), place, text_bytes_max);
        let errors = errors.into_iter();
        own.chain(errors.map(|(name, value)| (name.to_owned(), value)))
            .collect()
    };
    let full = headers(HEADER_BYTES_MAX);
    if letter(record, &full).size_bytes() <= limit {
        return full;
    }
    let without_texts = letter(record, &headers(0)).size_bytes();
    let room = limit.saturating_sub(without_texts) / TEXTS;
    headers(room.min(HEADER_BYTES_MAX))
}

/// Hands one output to the producer, waiting where its buffer is full or the topic's partitions are
/// not known yet.
async fn send(
    producer: &Producer,
    topic: &Arc<str>,
    output: &Collected<'_>,
) -> Result<(), StreamsError> {
    let headers: Vec<(std::borrow::Cow<'_, str>, Option<&[u8]>)> = output.headers.iter().collect();
    let headers: Vec<(&str, Option<&[u8]>)> = headers
        .iter()
        .map(|(name, value)| (name.as_ref(), *value))
        .collect();
    loop {
        let (key, value) = (output.key, output.value);
        match producer.enqueue(topic, None, key, value, &headers, output.timestamp) {
            Ok(_) => return Ok(()),
            Err(EnqueueError::Usage(error)) => return Err(error.into()),
            Err(blocked) => producer.unblock(&blocked).await?,
        }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use millstream_client::{BrokerAddress, ClientConfig, FrameConnection, Transport};

    use super::*;

    /// A broker that takes no connection, for ever.
    #[derive(Debug)]
    struct Silence;

    #[async_trait]
    impl Transport for Silence {
        async fn connect(&self, _: &BrokerAddress) -> std::io::Result<FrameConnection> {
            std::future::pending().await
        }

        fn bootstrap(&self) -> Vec<BrokerAddress> {
            vec![BrokerAddress::new("silence", 9092)]
        }
    }

    #[tokio::test(start_paused = true)]
    async fn topics_that_do_not_say_what_they_take_are_waited_for_once_and_together() {
        let limit = |topic: &str| (Arc::from(topic), 7);
        let silence: Arc<dyn Transport> = Arc::new(Silence);
        let mut limits = SizeLimits {
            admin: Admin::with(&silence, ClientConfig::default()),
            sinks: vec![limit("a"), limit("b")],
            dead_letter: Some(limit("dead")),
            request_max: 1 << 20,
            fresh_until: Instant::now(),
        };
        let started = Instant::now();
        assert!(!limits.refresh(Duration::from_secs(2)).await);
        assert_eq!(started.elapsed().as_secs(), 2);
        assert_eq!(limits.sinks, [limit("a"), limit("b")]);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(limits.is_fresh(), "nobody is asked again soon");
    }
}
