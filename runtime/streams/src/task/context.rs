//! What operators share while one record is under way.
//!
//! Invariants: it describes exactly one source record.
//! Never: outlives the task that owns it.

use super::Collector;
use crate::record::RecordContext;

#[derive(Debug)]
pub(crate) struct TaskContext {
    pub(crate) record: RecordContext,
    pub(crate) collector: Collector,
}
