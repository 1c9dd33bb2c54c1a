//! The operators that make new records of one: `map`, `map_values`, `try_map_values`, `flat_map`,
//! `peek`.
//!
//! Invariants: timestamp and headers pass through; only `map` and `flat_map` may change the key.
//! Never: swallows a closure's error.

use std::marker::PhantomData;
use std::sync::Arc;

use super::{Downstream, Process, ProcessError, ProcessResult};
use crate::error::BoxError;
use crate::record::Record;
use crate::task::TaskContext;

pub(crate) struct Map<F, L, W> {
    pub(crate) mapper: Arc<F>,
    pub(crate) downstream: Downstream<L, W>,
}

impl<F, K, V, L, W> Process<K, V> for Map<F, L, W>
where
    F: Fn(K, V) -> (L, W) + Send + Sync,
{
    fn process(&mut self, record: Record<K, V>, context: &mut TaskContext) -> ProcessResult {
        let Record {
            key,
            value,
            timestamp,
            headers,
        } = record;
        let (key, value) = (self.mapper)(key, value);
        self.downstream.process(
            Record {
                key,
                value,
                timestamp,
                headers,
            },
            context,
        )
    }
}

pub(crate) struct MapValues<F, K, W> {
    pub(crate) mapper: Arc<F>,
    pub(crate) downstream: Downstream<K, W>,
}

impl<F, K, V, W> Process<K, V> for MapValues<F, K, W>
where
    F: Fn(&K, V) -> W + Send + Sync,
{
    fn process(&mut self, record: Record<K, V>, context: &mut TaskContext) -> ProcessResult {
        let Record {
            key,
            value,
            timestamp,
            headers,
        } = record;
        let value = (self.mapper)(&key, value);
        self.downstream.process(
            Record {
                key,
                value,
                timestamp,
                headers,
            },
            context,
        )
    }
}

pub(crate) struct TryMapValues<F, K, W, E> {
    pub(crate) name: Box<str>,
    pub(crate) mapper: Arc<F>,
    pub(crate) downstream: Downstream<K, W>,
    pub(crate) error: PhantomData<fn() -> E>,
}

impl<F, K, V, W, E> Process<K, V> for TryMapValues<F, K, W, E>
where
    F: Fn(&K, V) -> Result<W, E> + Send + Sync,
    E: Into<BoxError>,
{
    fn process(&mut self, record: Record<K, V>, context: &mut TaskContext) -> ProcessResult {
        let Record {
            key,
            value,
            timestamp,
            headers,
        } = record;
        let value = (self.mapper)(&key, value).map_err(|cause| ProcessError::Poison {
            operator: self.name.clone(),
            cause: cause.into(),
        })?;
        self.downstream.process(
            Record {
                key,
                value,
                timestamp,
                headers,
            },
            context,
        )
    }
}

pub(crate) struct FlatMap<F, I, L, W> {
    pub(crate) mapper: Arc<F>,
    pub(crate) downstream: Downstream<L, W>,
    pub(crate) output: PhantomData<fn() -> I>,
}

impl<F, I, K, V, L, W> Process<K, V> for FlatMap<F, I, L, W>
where
    F: Fn(K, V) -> I + Send + Sync,
    I: IntoIterator<Item = (L, W)>,
{
    fn process(&mut self, record: Record<K, V>, context: &mut TaskContext) -> ProcessResult {
        let Record {
            key,
            value,
            timestamp,
            headers,
        } = record;
        for (key, value) in (self.mapper)(key, value) {
            let headers = headers.clone();
            self.downstream.process(
                Record {
                    key,
                    value,
                    timestamp,
                    headers,
                },
                context,
            )?;
        }
        Ok(())
    }
}

pub(crate) struct Peek<F, K, V> {
    pub(crate) action: Arc<F>,
    pub(crate) downstream: Downstream<K, V>,
}

impl<F, K, V> Process<K, V> for Peek<F, K, V>
where
    F: Fn(&K, &V) + Send + Sync,
{
    fn process(&mut self, record: Record<K, V>, context: &mut TaskContext) -> ProcessResult {
        (self.action)(&record.key, &record.value);
        self.downstream.process(record, context)
    }
}
