//! What a walk over a log knows of its transactions: which batches were aborted, and which markers
//! have outlived their records.
//!
//! Invariants: batches are told of in the order of the log, from its start on, so that a marker of
//! which no batch was met has none left.
//! Never: decides about a batch at or beyond the last stable offset.

use crate::index::transaction::AbortedEntry;
use millstream_protocol::RecordBatch;
use rustc_hash::{FxHashMap, FxHashSet};

/// The transactions that a walk has met.
#[derive(Debug, Default)]
pub(crate) struct Transactions {
    /// By producer, in the order of their markers.
    aborted: FxHashMap<i64, Vec<AbortedEntry>>,
    /// Producers with a transactional batch since their last marker.
    begun: FxHashSet<i64>,
}

/// What becomes of a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// No batch of the transaction is in the log any more.
    pub(crate) is_spent: bool,
    /// The entry by which readers know the batches that are.
    pub(crate) entry: Option<AbortedEntry>,
}

impl Transactions {
    /// Nothing met yet; `aborted` are the entries of the transaction indexes.
    pub(crate) fn new(aborted: impl IntoIterator<Item = AbortedEntry>) -> Transactions {
        let mut transactions = Transactions::default();
        for entry in aborted {
            let of_producer = transactions.aborted.entry(entry.producer_id).or_default();
            of_producer.push(entry);
        }
        for entries in transactions.aborted.values_mut() {
            entries.sort_unstable_by_key(|entry| entry.last_offset);
        }
        transactions
    }

    /// The aborted transaction that reaches over this offset.
    fn aborted_at(&self, producer_id: i64, offset: i64) -> Option<&AbortedEntry> {
        let entries = self.aborted.get(&producer_id)?;
        let index = entries.partition_point(|entry| entry.last_offset < offset);
        let entry = entries.get(index)?;
        (entry.first_offset <= offset).then_some(entry)
    }

    /// A batch of records; whether it was aborted.
    pub(crate) fn on_batch(&mut self, batch: &RecordBatch) -> bool {
        if !batch.is_transactional() {
            return false;
        }
        self.begun.insert(batch.producer_id());
        self.aborted_at(batch.producer_id(), batch.base_offset())
            .is_some()
    }

    /// A control batch.
    pub(crate) fn on_marker(&mut self, batch: &RecordBatch) -> Ended {
        let is_spent = !self.begun.remove(&batch.producer_id());
        let entry = self
            .aborted_at(batch.producer_id(), batch.base_offset())
            .filter(|entry| entry.last_offset == batch.base_offset() && !is_spent)
            .copied();
        Ended { is_spent, entry }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use millstream_protocol::{
        Compression, ControlMarker, ProducerStamp, RecordBatchBuilder, control_batch, patch_prefix,
    };

    fn at(offset: i64, bytes: &[u8]) -> RecordBatch {
        let mut bytes = bytes.to_vec();
        patch_prefix(bytes.first_chunk_mut().unwrap(), offset, 0);
        RecordBatch::parse(Bytes::from(bytes)).unwrap()
    }

    fn data(offset: i64, producer_id: i64, transactional: bool) -> RecordBatch {
        let mut builder = RecordBatchBuilder::new(Compression::None);
        builder.append(0, Some(b"k"), None, &[]);
        let stamp = ProducerStamp {
            producer_id,
            producer_epoch: 0,
            base_sequence: 0,
            transactional,
        };
        at(offset, &builder.finish(stamp).unwrap())
    }

    fn marker(offset: i64, producer_id: i64, commit: bool) -> RecordBatch {
        let marker = ControlMarker::new(commit, 0);
        at(offset, &control_batch(marker, producer_id, 0, 0))
    }

    fn entry(producer_id: i64, first_offset: i64, last_offset: i64) -> AbortedEntry {
        AbortedEntry {
            producer_id,
            first_offset,
            last_offset,
            last_stable_offset: 0,
        }
    }

    #[test]
    fn only_batches_between_first_offset_and_abort_marker_are_aborted() {
        let entries = [entry(1, 30, 40), entry(1, 10, 20), entry(2, 12, 25)];
        let mut transactions = Transactions::new(entries);
        assert!(!transactions.on_batch(&data(5, 1, true)));
        assert!(transactions.on_batch(&data(10, 1, true)));
        assert!(transactions.on_batch(&data(19, 1, true)));
        assert!(!transactions.on_batch(&data(19, 1, false)));
        assert!(!transactions.on_batch(&data(19, 3, true)));
        assert!(!transactions.on_batch(&data(21, 1, true)));
        assert!(transactions.on_batch(&data(21, 2, true)));
        assert!(transactions.on_batch(&data(39, 1, true)));
    }

    #[test]
    fn a_marker_is_spent_once_no_batch_of_its_transaction_was_met() {
        let mut transactions = Transactions::new([entry(1, 10, 20), entry(1, 30, 40)]);
        transactions.on_batch(&data(10, 1, true));
        let first = transactions.on_marker(&marker(20, 1, false));
        assert_eq!(first.entry, Some(entry(1, 10, 20)));
        assert!(!first.is_spent);
        let second = transactions.on_marker(&marker(40, 1, false));
        assert_eq!((second.is_spent, second.entry), (true, None));
        transactions.on_batch(&data(50, 1, true));
        let committed = transactions.on_marker(&marker(60, 1, true));
        assert_eq!((committed.is_spent, committed.entry), (false, None));
        assert!(transactions.on_marker(&marker(61, 1, true)).is_spent);
    }
}
