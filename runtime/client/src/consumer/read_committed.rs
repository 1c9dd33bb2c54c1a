//! Which batches of a fetch answer an application may see: the filter of the `read` stage.
//!
//! A fetch answer that was asked for committed data ends at the last stable offset and lists the
//! aborted transactions that overlap it. The filter walks the batches in offset order and keeps
//! the set of producers that are inside an aborted transaction.
//!
//! ```text
//! listed (producer, first offset) --batch reaches it--> aborted --ABORT marker--> forgotten
//! ```
//!
//! Invariants: batches come in offset order; a listed transaction that has no data in the answer
//! cannot disturb another one; markers are never shown, but the position moves past them.
//! Never: looks into data records, so compressed batches are skipped like all others.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use millstream_protocol::{BatchError, ControlMarker, RecordBatch};

/// What may be seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// Records of committed transactions and records outside transactions, up to the last stable
    /// offset. The default here; Kafka's is the other one.
    #[default]
    ReadCommitted,
    /// Everything up to the high watermark, aborted and undecided transactions included.
    ReadUncommitted,
}

impl Isolation {
    /// The level's number in requests.
    pub(crate) fn level(self) -> i8 {
        match self {
            Isolation::ReadUncommitted => 0,
            Isolation::ReadCommitted => 1,
        }
    }
}

/// What to do with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Hand its records out.
    Deliver,
    /// Part of an aborted transaction: move past it.
    Aborted,
    /// A marker: move past it.
    Control,
}

/// The filter of one partition's part of one fetch answer.
#[derive(Debug)]
pub(crate) struct BatchFilter {
    isolation: Isolation,
    /// Aborted transactions that the walk has not reached, by first offset.
    ahead: BinaryHeap<Reverse<(i64, i64)>>,
    /// Producers inside an aborted transaction. Few at a time.
    aborted: Vec<i64>,
}

impl BatchFilter {
    /// `aborted` are the answer's (producer id, first offset) pairs, in any order.
    pub(crate) fn new(isolation: Isolation, aborted: impl Iterator<Item = (i64, i64)>) -> Self {
        let ahead = match isolation {
            Isolation::ReadCommitted => aborted
                .map(|(producer, first)| Reverse((first, producer)))
                .collect(),
            Isolation::ReadUncommitted => BinaryHeap::new(),
        };
        BatchFilter {
            isolation,
            ahead,
            aborted: Vec::new(),
        }
    }

    /// Judges the next batch of the walk.
    pub(crate) fn judge(&mut self, batch: &RecordBatch) -> Result<Verdict, BatchError> {
        if self.isolation == Isolation::ReadUncommitted {
            return Ok(if batch.is_control() {
                Verdict::Control
            } else {
                Verdict::Deliver
            });
        }
        while let Some(&Reverse((first, producer))) = self.ahead.peek()
            && first <= batch.last_offset()
        {
            self.ahead.pop();
            if !self.aborted.contains(&producer) {
                self.aborted.push(producer);
            }
        }
        if batch.is_control() {
            if is_abort(batch)? {
                self.aborted
                    .retain(|producer| *producer != batch.producer_id());
            }
            return Ok(Verdict::Control);
        }
        let aborted = batch.is_transactional() && self.aborted.contains(&batch.producer_id());
        Ok(if aborted {
            Verdict::Aborted
        } else {
            Verdict::Deliver
        })
    }
}

/// Control records of kinds that this client does not know end no transaction; nor does one that
/// compaction on Apache Kafka has emptied, since nothing of its transaction is left.
fn is_abort(batch: &RecordBatch) -> Result<bool, BatchError> {
    if batch.record_count() == 0 {
        return Ok(false);
    }
    match batch.control() {
        Ok(marker) => Ok(matches!(marker, Some(ControlMarker::Abort { .. }))),
        Err(BatchError::MalformedControl {
            field: "type" | "value",
        }) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[path = "read_committed_tests.rs"]
mod tests;
