//! Where a chain begins: bytes become a typed record.
//!
//! Invariants: a record that cannot be read is poison, whatever its bytes.
//! Never: touches the bytes of a record it hands to the dead-letter topic.

use super::{Downstream, ProcessError, ProcessResult};
use crate::record::{Record, SourceRecord};
use crate::serde::Serdes;
use crate::task::TaskContext;

/// A chain of operators seen from its source; the types of its records are hidden behind it.
pub(crate) trait SourceChain: Send {
    fn process(&mut self, record: &SourceRecord, context: &mut TaskContext) -> ProcessResult;
}

pub(crate) struct Source<K, V> {
    pub(crate) name: Box<str>,
    pub(crate) serdes: Serdes<K, V>,
    pub(crate) downstream: Downstream<K, V>,
}

impl<K, V> SourceChain for Source<K, V> {
    fn process(&mut self, record: &SourceRecord, context: &mut TaskContext) -> ProcessResult {
        let poison = |error: crate::serde::SerdeError| ProcessError::Poison {
            operator: self.name.clone(),
            cause: error.into(),
        };
        let key = self
            .serdes
            .key
            .deserialize(record.key.as_ref())
            .map_err(poison)?;
        let value = self
            .serdes
            .value
            .deserialize(record.value.as_ref())
            .map_err(poison)?;
        let record = Record {
            key,
            value,
            timestamp: record.timestamp,
            headers: record.headers.clone(),
        };
        self.downstream.process(record, context)
    }
}
