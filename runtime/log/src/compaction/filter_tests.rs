//! Tests of the filter, batch by batch: what goes, what stays, what is emptied or marked.

use super::*;
use millstream_protocol::{
    Compression, ControlMarker, ProducerStamp, Record, RecordBatchBuilder, control_batch,
    patch_prefix,
};

const NOW: i64 = 1_000_000;
const RETENTION: i64 = 500;

fn placed(offset: i64, bytes: &[u8]) -> RecordBatch {
    let mut bytes = bytes.to_vec();
    patch_prefix(bytes.first_chunk_mut().unwrap(), offset, 2);
    RecordBatch::parse(Bytes::from(bytes)).unwrap()
}

fn stamp(producer_id: i64, base_sequence: i32, transactional: bool) -> ProducerStamp {
    ProducerStamp {
        producer_id,
        producer_epoch: 0,
        base_sequence,
        transactional,
    }
}

type Pair<'a> = (Option<&'a str>, Option<&'a str>);

fn batch(offset: i64, records: &[Pair<'_>], stamp: ProducerStamp) -> RecordBatch {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    for (key, value) in records {
        builder.append(NOW, key.map(str::as_bytes), value.map(str::as_bytes), &[]);
    }
    placed(offset, &builder.finish(stamp).unwrap())
}

fn plain(offset: i64, records: &[Pair<'_>]) -> RecordBatch {
    batch(offset, records, ProducerStamp::NONE)
}

fn marker(offset: i64, producer_id: i64, commit: bool) -> RecordBatch {
    let marker = ControlMarker::new(commit, 0);
    placed(offset, &control_batch(marker, producer_id, 1, NOW))
}

fn map_of(batches: &[RecordBatch]) -> OffsetMap {
    let mut map = OffsetMap::new(0, 1 << 20, 7);
    for batch in batches {
        map.add(batch, 1 << 20).unwrap();
    }
    map
}

fn filter(map: &OffsetMap) -> Filter<'_> {
    Filter {
        map,
        live: LiveProducers::default(),
        transactions: Transactions::default(),
        now_ms: NOW,
        delete_retention_ms: RETENTION,
        round_end: i64::MAX,
        max_decompressed_bytes: 1 << 20,
        rewriter: BatchRewriter::new(),
        judged: Judged::default(),
    }
}

impl Filter<'_> {
    fn fate(&mut self, batch: &RecordBatch) -> Fate {
        self.judge(batch).unwrap().0
    }

    fn replaced(&mut self, batch: &RecordBatch) -> RecordBatch {
        match self.fate(batch) {
            Fate::Replace(bytes) => RecordBatch::parse(bytes).unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

fn offsets(batch: &RecordBatch) -> Vec<i64> {
    let records = batch.records(1 << 20).unwrap();
    let offset = |record: Result<Record, BatchError>| record.unwrap().offset;
    records.map(offset).collect()
}

#[test]
fn only_the_last_record_of_a_key_stays_and_records_without_a_key_go() {
    let first = plain(0, &[(Some("a"), Some("1")), (Some("b"), Some("1"))]);
    let second = plain(2, &[(Some("a"), Some("2")), (None, Some("x"))]);
    let third = plain(4, &[(Some("a"), Some("3"))]);
    let beyond = plain(5, &[(Some("a"), Some("4")), (None, None)]);
    let map = map_of(&[first.clone(), second.clone(), third.clone()]);
    let mut filter = filter(&map);
    assert_eq!(offsets(&filter.replaced(&first)), [1]);
    assert_eq!(filter.fate(&second), Fate::Drop);
    assert_eq!(filter.fate(&third), Fate::Keep);
    // A tombstone gets its horizon also beyond what was mapped; nothing there goes.
    assert_eq!(offsets(&filter.replaced(&beyond)), [5, 6]);
    let judged = Judged {
        records_read: 7,
        records_kept: 4,
        records_without_key: 1,
    };
    assert_eq!(filter.judged, judged);
}

#[test]
fn a_tombstone_is_marked_at_first_and_goes_at_its_horizon() {
    let deleted = plain(0, &[(Some("a"), None), (Some("b"), Some("1"))]);
    let map = map_of(std::slice::from_ref(&deleted));
    let mut filter = filter(&map);
    let marked = filter.replaced(&deleted);
    assert_eq!(marked.delete_horizon_ms(), Some(NOW + RETENTION));
    assert_eq!(offsets(&marked), [0, 1]);
    filter.now_ms = NOW + RETENTION - 1;
    assert_eq!(filter.fate(&marked), Fate::Keep);
    filter.now_ms = NOW + RETENTION;
    assert_eq!(offsets(&filter.replaced(&marked)), [1]);
}

#[test]
fn a_superseded_tombstone_goes_at_once() {
    let deleted = plain(0, &[(Some("a"), None)]);
    let again = plain(1, &[(Some("a"), Some("1"))]);
    let map = map_of(&[deleted.clone(), again.clone()]);
    let mut filter = filter(&map);
    assert_eq!(filter.fate(&deleted), Fate::Drop);
    assert_eq!(filter.fate(&again), Fate::Keep);
}

#[test]
fn aborted_records_go_and_their_marker_waits_for_the_next_pass_and_its_horizon() {
    let aborted = batch(0, &[(Some("a"), Some("1"))], stamp(7, 0, true));
    let end = marker(1, 7, false);
    let entry = AbortedEntry {
        producer_id: 7,
        first_offset: 0,
        last_offset: 1,
        last_stable_offset: 2,
    };
    let map = map_of(&[]);
    let mut first = filter(&map);
    first.transactions = Transactions::new([entry]);
    assert_eq!(first.fate(&aborted), Fate::Drop);
    assert_eq!(first.judge(&end).unwrap(), (Fate::Keep, Some(entry)));
    let mut second = filter(&map);
    second.transactions = Transactions::new([entry]);
    let (fate, kept) = second.judge(&end).unwrap();
    let Fate::Replace(marked) = fate else {
        panic!("{fate:?}");
    };
    assert_eq!(kept, None);
    let marked = RecordBatch::parse(marked).unwrap();
    assert_eq!(marked.delete_horizon_ms(), Some(NOW + RETENTION));
    assert_eq!(marked.control(), end.control());
    let mut third = filter(&map);
    assert_eq!(third.fate(&marked), Fate::Keep);
    third.now_ms = NOW + RETENTION;
    assert_eq!(third.fate(&marked), Fate::Drop);
}

#[test]
fn a_commit_marker_stays_as_long_as_a_batch_of_its_transaction() {
    let committed = batch(0, &[(Some("a"), Some("1"))], stamp(7, 0, true));
    let end = marker(1, 7, true);
    let again = plain(2, &[(Some("a"), Some("2"))]);
    let map = map_of(std::slice::from_ref(&committed));
    let mut filter = filter(&map);
    filter.now_ms = i64::MAX;
    assert_eq!(filter.fate(&committed), Fate::Keep);
    assert_eq!(filter.fate(&end), Fate::Keep);
    let map = map_of(&[committed.clone(), again]);
    let mut filter = super::Filter {
        map: &map,
        ..filter
    };
    assert_eq!(filter.fate(&committed), Fate::Drop);
    assert_eq!(
        filter.fate(&end),
        Fate::Keep,
        "its records were met in this pass"
    );
    assert!(matches!(filter.fate(&end), Fate::Replace(_)));
}

#[test]
fn a_live_producers_window_and_the_rounds_last_batch_are_emptied_instead() {
    let batches: Vec<RecordBatch> = (0..3)
        .map(|n| batch(n, &[(Some("a"), Some("1"))], stamp(7, n as i32, false)))
        .collect();
    let last = plain(3, &[(Some("a"), Some("2"))]);
    let beyond = plain(4, &[(Some("a"), Some("3"))]);
    let mut all = batches.clone();
    all.extend([last.clone(), beyond]);
    let map = map_of(&all);
    let mut filter = filter(&map);
    filter.round_end = 4;
    let live = LiveProducer {
        epoch: 0,
        window: vec![1, 2],
    };
    filter.live.entries.insert(7, live);
    assert_eq!(filter.fate(&batches[0]), Fate::Drop);
    for kept in &batches[1..] {
        let emptied = filter.replaced(kept);
        assert_eq!(offsets(&emptied), []);
        assert_eq!(emptied.stamp(), kept.stamp());
        assert_eq!(filter.fate(&emptied), Fate::Keep);
    }
    let emptied = filter.replaced(&last);
    assert_eq!((emptied.base_offset(), emptied.next_offset()), (3, 4));
    assert_eq!(emptied.partition_leader_epoch(), 2);
    filter.live = LiveProducers::default();
    filter.round_end = 9;
    assert_eq!(filter.fate(&emptied), Fate::Drop);
}

#[test]
fn the_marker_that_alone_tells_a_live_producers_epoch_stays() {
    let end = marker(1, 7, false);
    let map = map_of(&[]);
    let mut filter = filter(&map);
    filter.now_ms = 0;
    let marked = filter.replaced(&end);
    filter.now_ms = i64::MAX;
    let mut live = LiveProducer {
        epoch: 1,
        window: Vec::new(),
    };
    filter.live.entries.insert(7, live);
    assert_eq!(filter.fate(&marked), Fate::Keep);
    live = LiveProducer {
        epoch: 1,
        window: vec![5],
    };
    filter.live.entries.insert(7, live);
    assert_eq!(filter.fate(&marked), Fate::Drop);
}
