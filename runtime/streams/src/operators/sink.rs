//! Where a chain ends: a typed record becomes bytes for the collector.
//!
//! Invariants: key, value, timestamp and headers are written as the record carries them.
//! Never: sends; what is collected goes out when the source record is done.

use super::{Process, ProcessError, ProcessResult};
use crate::record::Record;
use crate::serde::{Presence, Serdes};
use crate::task::TaskContext;

pub(crate) struct Sink<K, V> {
    pub(crate) name: Box<str>,
    pub(crate) sink: usize,
    pub(crate) serdes: Serdes<K, V>,
}

impl<K, V> Process<K, V> for Sink<K, V> {
    fn process(&mut self, record: Record<K, V>, context: &mut TaskContext) -> ProcessResult {
        let serdes = &self.serdes;
        context
            .collector
            .collect(self.sink, record.timestamp, record.headers, |bytes| {
                let key = serdes.key.serialize(&record.key, bytes)?;
                let key_end = bytes.len();
                let value = serdes.value.serialize(&record.value, bytes)?;
                Ok((
                    key == Presence::Present,
                    key_end,
                    value == Presence::Present,
                ))
            })
            .map_err(|error: crate::serde::SerdeError| ProcessError::Poison {
                operator: self.name.clone(),
                cause: error.into(),
            })
    }
}
