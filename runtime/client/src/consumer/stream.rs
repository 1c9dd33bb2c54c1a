//! The consumer as a stream of records.
//!
//! Invariants: records come in the order in which `poll` hands them out; positions run ahead of
//! the stream by at most one poll.
//! Never: ends by itself, except after an error that is final.

use std::time::Duration;

use futures::stream::{self, Stream};

use super::consumer::Consumer;
use super::error::ConsumerError;
use super::records::{ConsumerRecord, ConsumerRecords, IntoRecords};

/// How long one poll under the stream waits. Only a bound: it returns as soon as there is a record.
const POLL_WAIT: Duration = Duration::from_secs(1);

struct Reading {
    consumer: Consumer,
    ready: IntoRecords,
    over: bool,
}

impl Consumer {
    /// The records one by one. Errors are items; after one that is final the stream ends.
    ///
    /// [`Consumer::commit`] commits what was polled, which is up to `max.poll.records` ahead of
    /// what the stream has yielded: to commit exactly what was processed, use
    /// [`Consumer::commit_offsets`] with the offset after the last processed record.
    pub fn stream(
        &self,
    ) -> impl Stream<Item = Result<ConsumerRecord, ConsumerError>> + Send + use<> {
        self.clone().into_stream()
    }

    /// As [`Consumer::stream`], owning the consumer.
    pub fn into_stream(
        self,
    ) -> impl Stream<Item = Result<ConsumerRecord, ConsumerError>> + Send + use<> {
        let start = Reading {
            consumer: self,
            ready: ConsumerRecords::default().into_iter(),
            over: false,
        };
        stream::unfold(start, |mut reading| async move {
            loop {
                if let Some(record) = reading.ready.next() {
                    return Some((Ok(record), reading));
                }
                if reading.over {
                    return None;
                }
                match reading.consumer.poll(POLL_WAIT).await {
                    Ok(records) => reading.ready = records.into_iter(),
                    Err(error) => {
                        reading.over = error.is_fatal();
                        return Some((Err(error), reading));
                    }
                }
            }
        })
    }
}
