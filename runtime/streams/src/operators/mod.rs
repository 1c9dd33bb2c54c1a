//! The operators: one file each, typed, chained by one virtual call an edge.
//!
//! Invariants: a record goes depth first through everything downstream before the next one enters;
//! an operator passes a record on at most once an edge.
//! Never: I/O, clocks, or anything shared between two tasks but the user's own closures.

mod filter;
mod fork;
mod join_global;
mod map;
mod process_values;
mod sink;
mod source;
mod split;

pub(crate) use filter::Filter;
pub(crate) use fork::{Discard, Fork};
pub(crate) use join_global::JoinGlobal;
pub(crate) use map::{FlatMap, Map, MapValues, Peek, TryMapValues};
pub(crate) use process_values::ProcessValues;
pub use process_values::{ProcessorContext, ValueProcessor};
pub(crate) use sink::Sink;
pub(crate) use source::{Source, SourceChain};
pub(crate) use split::{Predicate, Split};

use crate::error::BoxError;
use crate::record::Record;
use crate::task::TaskContext;

/// What stops a record on its way.
#[derive(Debug)]
pub(crate) enum ProcessError {
    /// The record itself is at fault: the poison policy decides.
    Poison {
        /// Operator that refused it.
        operator: Box<str>,
        /// Why.
        cause: BoxError,
    },
    /// The operator failed whatever the record; the instance stops.
    Failed {
        /// Operator that failed.
        operator: Box<str>,
        /// Why.
        cause: BoxError,
    },
}

pub(crate) type ProcessResult = Result<(), ProcessError>;

/// One end of an edge: takes records of one type.
pub(crate) trait Process<K, V>: Send {
    fn process(&mut self, record: Record<K, V>, context: &mut TaskContext) -> ProcessResult;
}

/// A boxed operator with everything downstream of it.
pub(crate) type Downstream<K, V> = Box<dyn Process<K, V>>;
