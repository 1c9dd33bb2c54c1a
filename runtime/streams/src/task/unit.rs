//! Stage `process`: one record through one task's operators.
//!
//! Invariants: `next_offset` rises; the collector holds the outputs of the record just processed
//! and of no other.
//! Never: decides what becomes of a poison record; it reports it.

use std::sync::Arc;

use millstream_protocol::TopicPartition;

use super::{Collector, TaskContext, TaskEvent, TaskMachine, TaskState};
use crate::error::{BoxError, StreamsError};
use crate::operators::{ProcessError, SourceChain};
use crate::record::{RecordContext, SourceRecord};

/// `<sub-topology>_<partition>`, as in Kafka Streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TaskId {
    pub(crate) subtopology: usize,
    pub(crate) partition: i32,
}

impl std::fmt::Display for TaskId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}_{}", self.subtopology, self.partition)
    }
}

/// What became of a record.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It went through; its outputs are in the collector.
    Processed,
    /// It is poison; nothing is in the collector.
    Poison { operator: Box<str>, cause: BoxError },
}

pub(crate) struct Task {
    pub(crate) id: TaskId,
    pub(crate) partition: TopicPartition,
    chain: Box<dyn SourceChain>,
    context: TaskContext,
    machine: TaskMachine,
    /// Offset (exclusive) up to which the task has taken its partition.
    pub(crate) next_offset: Option<i64>,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task")
            .field("id", &self.id)
            .field("partition", &self.partition)
            .field("state", &self.machine.state())
            .field("next_offset", &self.next_offset)
            .finish_non_exhaustive()
    }
}

impl Task {
    pub(crate) fn new(
        id: TaskId,
        partition: TopicPartition,
        chain: Box<dyn SourceChain>,
        stream_time: i64,
    ) -> Self {
        let record = RecordContext {
            topic: Arc::clone(&partition.topic),
            partition: partition.partition,
            offset: -1,
            timestamp: -1,
            stream_time,
        };
        let context = TaskContext {
            record,
            collector: Collector::default(),
        };
        Self {
            id,
            partition,
            chain,
            context,
            machine: TaskMachine::new(),
            next_offset: None,
        }
    }

    pub(crate) fn state(&self) -> TaskState {
        self.machine.state()
    }

    /// Moves the task's machine.
    pub(crate) fn on(&mut self, event: TaskEvent) -> Result<TaskState, StreamsError> {
        self.machine.on(event).map_err(|illegal| StreamsError::Bug {
            what: format!("task {} of {}: {illegal}", self.id, self.partition),
        })
    }

    pub(crate) fn stream_time(&self) -> i64 {
        self.context.record.stream_time
    }

    pub(crate) fn collector(&self) -> &Collector {
        &self.context.collector
    }

    /// Sends one record through the operators.
    ///
    /// # Errors
    /// Where an operator failed for a reason that is not the record.
    pub(crate) fn process(&mut self, record: &SourceRecord) -> Result<Outcome, StreamsError> {
        let context = &mut self.context;
        context.collector.clear();
        context.record.offset = record.offset;
        context.record.timestamp = record.timestamp;
        context.record.stream_time = context.record.stream_time.max(record.timestamp);
        match self.chain.process(record, context) {
            Ok(()) => Ok(Outcome::Processed),
            Err(ProcessError::Poison { operator, cause }) => {
                context.collector.clear();
                Ok(Outcome::Poison { operator, cause })
            }
            Err(ProcessError::Failed { operator, cause }) => Err(StreamsError::Operator {
                operator: operator.into(),
                partition: self.partition.clone(),
                offset: record.offset,
                cause,
            }),
        }
    }
}
