//! `filter`: passes on the records that the predicate holds for.
//!
//! Invariants: keys, values, timestamps and headers stay as they are.
//! Never: emits a record that it did not receive.

use std::sync::Arc;

use super::{Downstream, Process, ProcessResult};
use crate::record::Record;
use crate::task::TaskContext;

pub(crate) struct Filter<F, K, V> {
    pub(crate) predicate: Arc<F>,
    pub(crate) downstream: Downstream<K, V>,
}

impl<F, K, V> Process<K, V> for Filter<F, K, V>
where
    F: Fn(&K, &V) -> bool + Send + Sync,
{
    fn process(&mut self, record: Record<K, V>, context: &mut TaskContext) -> ProcessResult {
        if (self.predicate)(&record.key, &record.value) {
            return self.downstream.process(record, context);
        }
        Ok(())
    }
}
