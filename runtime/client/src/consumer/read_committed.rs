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

/// Control records of kinds that this client does not know end no transaction.
fn is_abort(batch: &RecordBatch) -> Result<bool, BatchError> {
    match batch.control() {
        Ok(marker) => Ok(matches!(marker, Some(ControlMarker::Abort { .. }))),
        Err(BatchError::MalformedControl {
            field: "type" | "value",
        }) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bytes::Bytes;
    use millstream_protocol::{
        Compression, ControlMarker, ProducerStamp, RecordBatch, RecordBatchBuilder, control_batch,
        patch_prefix,
    };
    use proptest::prelude::*;

    use super::*;

    fn at_offset(bytes: Bytes, offset: i64) -> RecordBatch {
        let mut bytes = bytes.to_vec();
        let mut prefix: [u8; 17] = bytes[..17].try_into().unwrap();
        patch_prefix(&mut prefix, offset, 0);
        bytes[..17].copy_from_slice(&prefix);
        RecordBatch::parse(Bytes::from(bytes)).unwrap()
    }

    fn data(offset: i64, producer: Option<i64>, count: usize, codec: Compression) -> RecordBatch {
        let mut builder = RecordBatchBuilder::new(codec);
        for _ in 0..count {
            builder.append(0, None, Some(b"value"), &[]);
        }
        let stamp = producer.map_or(ProducerStamp::NONE, |producer_id| ProducerStamp {
            producer_id,
            producer_epoch: 0,
            base_sequence: 0,
            transactional: true,
        });
        at_offset(builder.finish(stamp).unwrap(), offset)
    }

    fn marker(offset: i64, producer: i64, commit: bool) -> RecordBatch {
        at_offset(
            control_batch(ControlMarker::new(commit, 0), producer, 0, 0),
            offset,
        )
    }

    fn visible(isolation: Isolation, aborted: &[(i64, i64)], log: &[RecordBatch]) -> Vec<i64> {
        let mut filter = BatchFilter::new(isolation, aborted.iter().copied());
        log.iter()
            .filter(|batch| filter.judge(batch).unwrap() == Verdict::Deliver)
            .flat_map(|batch| {
                batch
                    .records(1 << 20)
                    .unwrap()
                    .map(|record| record.unwrap().offset)
            })
            .collect()
    }

    const PLAIN: Compression = Compression::None;

    #[test]
    fn aborted_records_are_skipped_and_later_ones_of_the_producer_are_not() {
        let log = [
            data(0, Some(1), 2, PLAIN),
            data(2, Some(2), 1, PLAIN),
            data(3, None, 1, PLAIN),
            marker(4, 1, false),
            data(5, Some(1), 1, PLAIN),
            marker(6, 2, true),
            marker(7, 1, true),
        ];
        assert_eq!(
            visible(Isolation::ReadCommitted, &[(1, 0)], &log),
            [2, 3, 5]
        );
    }

    #[test]
    fn read_uncommitted_shows_aborted_data_but_never_markers() {
        let log = [data(0, Some(1), 2, PLAIN), marker(2, 1, false)];
        assert_eq!(visible(Isolation::ReadUncommitted, &[(1, 0)], &log), [0, 1]);
    }

    #[test]
    fn b48_aborted_batches_are_skipped_whatever_their_codec() {
        for codec in [
            Compression::None,
            Compression::Gzip,
            Compression::Snappy,
            Compression::Lz4,
            Compression::Zstd,
        ] {
            let log = [
                data(0, Some(1), 3, codec),
                marker(3, 1, false),
                data(4, Some(1), 1, codec),
            ];
            assert_eq!(
                visible(Isolation::ReadCommitted, &[(1, 0)], &log),
                [4],
                "{codec:?}"
            );
        }
    }

    #[test]
    fn b52_the_marker_of_an_empty_aborted_transaction_ends_no_other() {
        // Producer 2's ABORT at 1 belongs to a transaction without data here; its next one,
        // from 2 on, is aborted as well.
        let log = [
            data(0, Some(1), 1, PLAIN),
            marker(1, 2, false),
            data(2, Some(2), 1, PLAIN),
            marker(3, 1, false),
            data(4, Some(2), 1, PLAIN),
            marker(5, 2, false),
        ];
        assert!(visible(Isolation::ReadCommitted, &[(1, 0), (2, 2)], &log).is_empty());
    }

    #[test]
    fn b55_the_list_of_aborted_transactions_may_come_unsorted() {
        let log = [
            data(0, Some(1), 1, PLAIN),
            marker(1, 1, false),
            data(2, Some(2), 1, PLAIN),
            marker(3, 2, false),
            data(4, Some(1), 1, PLAIN),
            marker(5, 1, false),
            data(6, Some(1), 1, PLAIN),
        ];
        let aborted = [(1, 4), (2, 2), (1, 0)];
        assert_eq!(visible(Isolation::ReadCommitted, &aborted, &log), [6]);
    }

    #[test]
    fn a_transaction_that_began_before_the_answer_is_known_from_its_first_offset() {
        let log = [
            data(10, Some(1), 1, PLAIN),
            marker(11, 1, false),
            data(12, None, 1, PLAIN),
        ];
        assert_eq!(visible(Isolation::ReadCommitted, &[(1, 3)], &log), [12]);
    }

    #[test]
    fn a_plain_batch_of_a_producer_with_an_aborted_transaction_is_delivered() {
        let idempotent = {
            let mut builder = RecordBatchBuilder::new(PLAIN);
            builder.append(0, None, None, &[]);
            let stamp = ProducerStamp {
                producer_id: 1,
                producer_epoch: 0,
                base_sequence: 0,
                transactional: false,
            };
            at_offset(builder.finish(stamp).unwrap(), 1)
        };
        let log = [data(0, Some(1), 1, PLAIN), idempotent, marker(2, 1, false)];
        assert_eq!(visible(Isolation::ReadCommitted, &[(1, 0)], &log), [1]);
    }

    /// One step of a generated log.
    #[derive(Clone, Debug)]
    enum Step {
        Plain,
        Data(i64),
        End(i64, bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            1 => Just(Step::Plain),
            4 => (0_i64..4).prop_map(Step::Data),
            2 => (0_i64..4, any::<bool>()).prop_map(|(producer, commit)| Step::End(producer, commit)),
        ]
    }

    /// The model knows each transaction as the set of its offsets; the filter knows only a list.
    #[derive(Default)]
    struct Model {
        log: Vec<RecordBatch>,
        /// Producer, first offset, offset of the marker.
        aborted: Vec<(i64, i64, i64)>,
        visible: BTreeSet<i64>,
        last_stable: i64,
    }

    fn model(steps: &[Step]) -> Model {
        let mut model = Model::default();
        let mut open: Vec<Vec<i64>> = vec![Vec::new(); 4];
        let mut offset = 0;
        for step in steps {
            match step {
                Step::Plain => {
                    model.log.push(data(offset, None, 1, PLAIN));
                    model.visible.insert(offset);
                    offset += 1;
                }
                Step::Data(producer) => {
                    model.log.push(data(offset, Some(*producer), 2, PLAIN));
                    open[*producer as usize].extend([offset, offset + 1]);
                    // A gap, as compaction leaves them.
                    offset += 3;
                }
                Step::End(producer, commit) => {
                    model.log.push(marker(offset, *producer, *commit));
                    let offsets = std::mem::take(&mut open[*producer as usize]);
                    if *commit {
                        model.visible.extend(offsets);
                    } else if let Some(first) = offsets.first() {
                        model.aborted.push((*producer, *first, offset));
                    }
                    offset += 1;
                }
            }
        }
        model.last_stable = open
            .iter()
            .filter_map(|o| o.first())
            .min()
            .copied()
            .unwrap_or(offset);
        model
    }

    proptest! {
        #[test]
        fn a_reader_sees_exactly_what_a_naive_model_sees(
            steps in proptest::collection::vec(step(), 0..60),
            from in 0_usize..20,
            shuffle in any::<u64>(),
        ) {
            let Model { log, mut aborted, visible: all, last_stable } = model(&steps);
            let log: Vec<RecordBatch> = log
                .into_iter()
                .skip(from)
                .take_while(|batch| batch.base_offset() < last_stable)
                .collect();
            let start = log.first().map_or(0, RecordBatch::base_offset);
            // What a broker lists: transactions that end at or after the fetch offset; order free.
            let half = if aborted.is_empty() { 0 } else { shuffle as usize % aborted.len() };
            aborted.rotate_left(half);
            let end = log.last().map_or(0, RecordBatch::next_offset);
            let ends: Vec<(i64, i64)> = aborted
                .into_iter()
                .filter(|(_, first, marker)| *marker >= start && *first < end)
                .map(|(producer, first, _)| (producer, first))
                .collect();
            let seen = visible(Isolation::ReadCommitted, &ends, &log);
            let expected: Vec<i64> =
                all.into_iter().filter(|offset| (start..end).contains(offset)).collect();
            prop_assert_eq!(seen, expected);
        }
    }
}
