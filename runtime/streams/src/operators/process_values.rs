//! `process_values`: a processor of the user's that sees where each record came from and may
//! forward any number of values.
//!
//! Invariants: the key of what it forwards is the key of what it received; each task has a
//! processor of its own.
//! Never: forwards outside of a call to the processor.

use millstream_protocol::Headers;

use super::{Downstream, Process, ProcessError, ProcessResult};
use crate::error::BoxError;
use crate::record::{Record, RecordContext};
use crate::task::TaskContext;

/// A processor that keeps the key. Closures `FnMut(&RecordContext, &K, V) -> W` are processors that
/// forward one value.
pub trait ValueProcessor<K, V>: Send {
    /// What it forwards.
    type Output;

    /// Takes one record and forwards what comes of it.
    ///
    /// # Errors
    /// An error makes the record poison: the application's [`PoisonPolicy`](crate::PoisonPolicy)
    /// decides, and nothing of what the record led to is written.
    fn process(
        &mut self,
        context: &mut ProcessorContext<'_, K, Self::Output>,
        value: V,
    ) -> Result<(), BoxError>;
}

impl<F, K, V, W> ValueProcessor<K, V> for F
where
    F: FnMut(&RecordContext, &K, V) -> W + Send,
    K: Clone,
{
    type Output = W;

    fn process(
        &mut self,
        context: &mut ProcessorContext<'_, K, W>,
        value: V,
    ) -> Result<(), BoxError> {
        let value = self(&context.task.record, context.key, value);
        context.forward(value);
        Ok(())
    }
}

/// What a processor sees of the record that it is called with.
pub struct ProcessorContext<'a, K, W> {
    key: &'a K,
    headers: &'a Headers,
    timestamp: i64,
    task: &'a mut TaskContext,
    downstream: &'a mut Downstream<K, W>,
    outcome: ProcessResult,
}

impl<K: Clone, W> ProcessorContext<'_, K, W> {
    /// Sends a value downstream under the same key, timestamp and headers, at once and depth first.
    pub fn forward(&mut self, value: W) {
        self.forward_at(value, self.timestamp);
    }

    /// As [`forward`](Self::forward), with another timestamp in milliseconds since the epoch.
    pub fn forward_at(&mut self, value: W, timestamp: i64) {
        if self.outcome.is_ok() {
            let record = Record {
                key: self.key.clone(),
                value,
                timestamp,
                headers: self.headers.clone(),
            };
            self.outcome = self.downstream.process(record, self.task);
        }
    }
}

impl<K, W> ProcessorContext<'_, K, W> {
    /// The record's key.
    #[must_use]
    pub fn key(&self) -> &K {
        self.key
    }

    /// The record's headers.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        self.headers
    }

    /// The timestamp of the record as it arrived here, in milliseconds since the epoch.
    #[must_use]
    pub fn timestamp(&self) -> i64 {
        self.timestamp
    }

    /// Topic, partition and offset of the source record.
    #[must_use]
    pub fn record(&self) -> &RecordContext {
        &self.task.record
    }
}

pub(crate) struct ProcessValues<P, K, W> {
    pub(crate) name: Box<str>,
    pub(crate) processor: P,
    pub(crate) downstream: Downstream<K, W>,
}

impl<P, K, V> Process<K, V> for ProcessValues<P, K, P::Output>
where
    P: ValueProcessor<K, V>,
    K: Send,
{
    fn process(&mut self, record: Record<K, V>, context: &mut TaskContext) -> ProcessResult {
        let Record {
            key,
            value,
            timestamp,
            headers,
        } = record;
        let mut context = ProcessorContext {
            key: &key,
            headers: &headers,
            timestamp,
            task: context,
            downstream: &mut self.downstream,
            outcome: Ok(()),
        };
        match self.processor.process(&mut context, value) {
            Ok(()) => context.outcome,
            Err(cause) => Err(ProcessError::Poison {
                operator: self.name.clone(),
                cause,
            }),
        }
    }
}
