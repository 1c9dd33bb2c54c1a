//! Joining a stream with a global table: a look-up of the mapped key, no time involved.
//!
//! Invariants: the result carries the stream record's key, timestamp and headers; table updates
//! never trigger a result.
//! Never: waits for the table; it was filled before the first record came.

use std::sync::Arc;

use super::{Downstream, Process, ProcessError, ProcessResult};
use crate::record::Record;
use crate::serde::Serdes;
use crate::task::{GlobalStore, TaskContext};

pub(crate) struct JoinGlobal<S, J, K, TK, TV, W> {
    pub(crate) name: Box<str>,
    pub(crate) select_key: Arc<S>,
    pub(crate) joiner: Arc<J>,
    pub(crate) serdes: Serdes<TK, TV>,
    pub(crate) store: Arc<GlobalStore>,
    pub(crate) key_bytes: Vec<u8>,
    pub(crate) downstream: Downstream<K, W>,
}

impl<S, J, K, TK, TV, W> JoinGlobal<S, J, K, TK, TV, W> {
    fn look_up(&mut self, key: &TK) -> Result<Option<TV>, ProcessError> {
        let failed = |cause: crate::error::BoxError| ProcessError::Failed {
            operator: self.name.clone(),
            cause,
        };
        self.key_bytes.clear();
        self.serdes
            .key
            .serialize(key, &mut self.key_bytes)
            .map_err(|error| failed(error.into()))?;
        let Some(bytes) = self
            .store
            .get(&self.key_bytes)
            .map_err(|error| failed(error.into()))?
        else {
            return Ok(None);
        };
        let value = self.serdes.value.deserialize(Some(&bytes));
        value.map(Some).map_err(|error| failed(error.into()))
    }
}

/// The joiner answers `None` where an inner join finds nothing.
impl<S, J, K, V, TK, TV, W> Process<K, V> for JoinGlobal<S, J, K, TK, TV, W>
where
    S: Fn(&K, &V) -> TK + Send + Sync,
    J: Fn(V, Option<TV>) -> Option<W> + Send + Sync,
{
    fn process(&mut self, record: Record<K, V>, context: &mut TaskContext) -> ProcessResult {
        let table_key = (self.select_key)(&record.key, &record.value);
        let found = self.look_up(&table_key)?;
        let Record {
            key,
            value,
            timestamp,
            headers,
        } = record;
        match (self.joiner)(value, found) {
            Some(value) => self.downstream.process(
                Record {
                    key,
                    value,
                    timestamp,
                    headers,
                },
                context,
            ),
            None => Ok(()),
        }
    }
}
