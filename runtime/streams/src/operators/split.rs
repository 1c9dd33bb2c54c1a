//! `split`: sends each record to the first branch whose predicate holds.
//!
//! Invariants: a record goes to one branch at most; branches are asked in the order in which they
//! were declared.
//! Never: copies a record.

use std::sync::Arc;

use super::{Downstream, Process, ProcessResult};
use crate::record::Record;
use crate::task::TaskContext;

/// Decides whether a record belongs to a branch.
pub(crate) type Predicate<K, V> = Arc<dyn Fn(&K, &V) -> bool + Send + Sync>;

pub(crate) struct Split<K, V> {
    pub(crate) branches: Vec<(Predicate<K, V>, Downstream<K, V>)>,
}

impl<K, V> Process<K, V> for Split<K, V> {
    fn process(&mut self, record: Record<K, V>, context: &mut TaskContext) -> ProcessResult {
        for (predicate, downstream) in &mut self.branches {
            if predicate(&record.key, &record.value) {
                return downstream.process(record, context);
            }
        }
        Ok(())
    }
}
