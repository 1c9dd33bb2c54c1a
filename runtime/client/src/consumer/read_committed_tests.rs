//! The filter by example, and against a model that knows each transaction as a set of offsets.
//!
//! Never: a network; batches are built in place.

use std::collections::BTreeSet;

use bytes::Bytes;
use millstream_protocol::{
    BatchRewriter, Compression, ControlMarker, ProducerStamp, RecordBatch, RecordBatchBuilder,
    control_batch, patch_prefix,
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
fn batches_that_compaction_has_emptied_are_passed_over() {
    let emptied = |batch: RecordBatch| {
        let bytes = BatchRewriter::new().without_records(&batch).unwrap();
        RecordBatch::parse(bytes).unwrap()
    };
    let log = [
        emptied(data(0, Some(1), 2, PLAIN)),
        emptied(marker(4, 1, false)),
        emptied(data(9, None, 5, PLAIN)),
        data(20, Some(1), 1, PLAIN),
        marker(21, 1, true),
    ];
    for isolation in [Isolation::ReadCommitted, Isolation::ReadUncommitted] {
        assert_eq!(visible(isolation, &[], &log), [20]);
    }
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
