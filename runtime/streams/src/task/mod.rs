//! A task: one source topic's partition, with a chain of operators of its own.
//!
//! Invariants: one owner at a time, one record at a time; what a record leads to is collected whole
//! or not at all.
//! Never: awaits anything while a record is under way.

mod collector;
mod context;
mod global_store;
mod machine;
mod unit;

pub(crate) use collector::{Collected, Collector};
pub(crate) use context::TaskContext;
pub(crate) use global_store::{GlobalStore, GlobalStores};
pub(crate) use machine::{TaskEvent, TaskMachine, TaskState};
pub(crate) use unit::{Outcome, Task, TaskId};
