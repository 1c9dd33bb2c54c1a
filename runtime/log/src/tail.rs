//! Tail: the batches appended last, kept in memory so that a reader at the end needs no disk.
//!
//! Invariants: holds a contiguous run of batches that ends at the log end, of at most `BYTES_MAX`.
//! Never: copies a batch when it is appended; is the only place where a batch is.

use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;

/// Most that the tail of one partition holds.
const BYTES_MAX: usize = 1 << 20;

/// One batch: its 17-byte prefix with the offset in the log, and the rest as it came.
#[derive(Clone, Debug)]
pub(crate) struct TailBatch {
    pub(crate) base_offset: i64,
    pub(crate) next_offset: i64,
    pub(crate) parts: [Bytes; 2],
}

impl TailBatch {
    fn size_bytes(&self) -> usize {
        self.parts[0].len() + self.parts[1].len()
    }
}

/// The batches appended last.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    batches: VecDeque<TailBatch>,
    size_bytes: usize,
    /// Whether nothing was added since `age` was called last.
    idle: bool,
}

impl Tail {
    pub(crate) fn push(&mut self, batch: TailBatch) {
        self.idle = false;
        self.size_bytes += batch.size_bytes();
        self.batches.push_back(batch);
        while self.size_bytes > BYTES_MAX
            && let Some(oldest) = self.batches.pop_front()
        {
            self.size_bytes -= oldest.size_bytes();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.batches.clear();
        self.size_bytes = 0;
    }

    /// Forgets the batches that end at or before `offset`.
    pub(crate) fn forget_below(&mut self, offset: i64) {
        while let Some(oldest) = self
            .batches
            .pop_front_if(|first| first.next_offset <= offset)
        {
            self.size_bytes -= oldest.size_bytes();
        }
    }

    /// Gives the memory back when nothing was added since the last call.
    pub(crate) fn age(&mut self) {
        if self.idle {
            self.clear();
        }
        self.idle = true;
    }

    /// Batches from the one that holds `offset` on, below `bound`, of at most `max_bytes` in all,
    /// save that `at_least_one` may exceed it; `None` when the tail does not reach back so far.
    pub(crate) fn read(
        &self,
        offset: i64,
        bound: i64,
        max_bytes: usize,
        at_least_one: bool,
    ) -> Option<Vec<TailBatch>> {
        if self
            .batches
            .front()
            .is_none_or(|first| offset < first.base_offset)
        {
            return None;
        }
        let start = self
            .batches
            .partition_point(|batch| batch.next_offset <= offset);
        let mut taken = Vec::new();
        let mut size_bytes = 0;
        for batch in self.batches.iter().skip(start) {
            size_bytes += batch.size_bytes();
            let fits = size_bytes <= max_bytes || (at_least_one && taken.is_empty());
            if batch.base_offset >= bound || !fits {
                break;
            }
            taken.push(batch.clone());
        }
        Some(taken)
    }
}

/// The batches in one piece.
pub(crate) fn joined(batches: &[TailBatch]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(batches.iter().map(TailBatch::size_bytes).sum());
    for batch in batches {
        bytes.extend_from_slice(&batch.parts[0]);
        bytes.extend_from_slice(&batch.parts[1]);
    }
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail_of(sizes: &[usize]) -> Tail {
        let mut tail = Tail::default();
        for (index, size) in sizes.iter().enumerate() {
            let base_offset = index as i64 * 10;
            let parts = [
                Bytes::from_static(b"p"),
                Bytes::from(vec![index as u8; size - 1]),
            ];
            tail.push(TailBatch {
                base_offset,
                next_offset: base_offset + 10,
                parts,
            });
        }
        tail
    }

    fn bases(batches: Option<Vec<TailBatch>>) -> Option<Vec<i64>> {
        batches.map(|batches| batches.iter().map(|batch| batch.base_offset).collect())
    }

    #[test]
    fn reads_begin_at_the_batch_that_holds_the_offset_and_stop_at_bound_and_size() {
        let tail = tail_of(&[100, 100, 100, 100]);
        assert_eq!(bases(tail.read(15, 40, 1000, true)), Some(vec![10, 20, 30]));
        assert_eq!(bases(tail.read(15, 30, 1000, true)), Some(vec![10, 20]));
        assert_eq!(bases(tail.read(10, 40, 250, true)), Some(vec![10, 20]));
        assert_eq!(bases(tail.read(10, 40, 50, true)), Some(vec![10]));
        assert_eq!(bases(tail.read(10, 40, 50, false)), Some(vec![]));
        assert_eq!(bases(tail.read(40, 40, 50, true)), Some(vec![]));
    }

    #[test]
    fn the_oldest_batches_leave_when_it_is_full() {
        let tail = tail_of(&[BYTES_MAX / 2, BYTES_MAX / 2, 100]);
        assert_eq!(bases(tail.read(5, 30, 1000, true)), None);
        assert_eq!(bases(tail.read(25, 30, 1000, true)), Some(vec![20]));
        assert_eq!(joined(&tail.read(25, 30, 1000, true).unwrap()).len(), 100);
    }

    #[test]
    fn a_tail_that_is_not_added_to_is_given_back() {
        let mut tail = tail_of(&[10]);
        tail.age();
        assert!(tail.read(0, 10, 10, true).is_some());
        tail.age();
        assert!(tail.read(0, 10, 10, true).is_none());
    }
}
