//! The ends of an edge that is not one to one: a fork where a stream was cloned, and nothing where
//! it ends.
//!
//! Invariants: children get the record in the order in which they were attached; the last one gets
//! the original.
//! Never: clones for a stream that was not cloned by the user.

use super::{Downstream, Process, ProcessResult};
use crate::record::Record;
use crate::task::TaskContext;

pub(crate) struct Fork<K, V> {
    pub(crate) duplicate: fn(&Record<K, V>) -> Record<K, V>,
    pub(crate) first: Vec<Downstream<K, V>>,
    pub(crate) last: Downstream<K, V>,
}

impl<K, V> Process<K, V> for Fork<K, V> {
    fn process(&mut self, record: Record<K, V>, context: &mut TaskContext) -> ProcessResult {
        for child in &mut self.first {
            child.process((self.duplicate)(&record), context)?;
        }
        self.last.process(record, context)
    }
}

/// The end of a stream that nothing reads.
pub(crate) struct Discard;

impl<K, V> Process<K, V> for Discard {
    fn process(&mut self, _: Record<K, V>, _: &mut TaskContext) -> ProcessResult {
        Ok(())
    }
}
