//! Positions alone: bounds of what is buffered, and what a pause leaves.

use bytes::Bytes;
use millstream_protocol::{Compression, ProducerStamp, RecordBatchBuilder, patch_prefix};

use super::*;
use crate::consumer::fetched::Decoding;
use crate::consumer::read_committed::Isolation;

const NODE: NodeId = NodeId(1);

fn tp(partition: i32) -> TopicPartition {
    TopicPartition::new("a", partition)
}

fn batch(base_offset: i64, records: usize) -> Bytes {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    for _ in 0..records {
        builder.append(7, None, Some(&[b'x'; 1_000]), &[]);
    }
    let mut bytes = builder.finish(ProducerStamp::NONE).unwrap().to_vec();
    let mut prefix: [u8; 17] = bytes[..17].try_into().unwrap();
    patch_prefix(&mut prefix, base_offset, 0);
    bytes[..17].copy_from_slice(&prefix);
    bytes.into()
}

fn positions(partitions: i32, paused_bytes: usize) -> Positions {
    let mut positions = Positions::new(BufferLimits {
        partition_bytes: 1 << 20,
        total_bytes: 1 << 30,
        paused_bytes,
    });
    positions.assign(&(0..partitions).map(tp).collect());
    for partition in 0..partitions {
        positions.restart(&tp(partition), Position::At(0.into()));
    }
    let leader = Leader {
        node: NODE,
        epoch: 0,
        topic_id: Uuid([1; 16]),
    };
    positions.learn(0, |_| Some(leader), &mut BTreeSet::new());
    positions
}

/// Answers a fetch of everything that is wanted with `records` records each; how many that were.
fn fetch(positions: &mut Positions, fetch: u64, records: usize) -> usize {
    positions.has_room();
    let asked: Vec<_> = positions
        .begin_fetch(0, NODE, fetch)
        .map(|(partition, asked)| (partition.clone(), asked.offset))
        .collect();
    for (partition, offset) in &asked {
        answer(positions, partition, fetch, *offset, records);
    }
    positions.end_fetch(fetch, i64::MIN);
    asked.len()
}

fn answer(
    positions: &mut Positions,
    partition: &TopicPartition,
    fetch: u64,
    offset: i64,
    records: usize,
) {
    let decoding = Decoding {
        isolation: Isolation::ReadCommitted,
        check_crcs: true,
        max_decompressed_bytes: 1 << 20,
    };
    let bytes = batch(offset, records);
    let none = std::iter::empty();
    let fetched = FetchedPartition::new(partition.clone(), offset, bytes, none, decoding);
    let ends = LogOffsets {
        log_start: 0,
        last_stable: 1_000,
        high_watermark: 1_000,
    };
    if let Some(target) = positions.in_fetch(partition, fetch, offset) {
        positions.fetched(&target, fetched.unwrap(), ends);
    }
}

fn held(positions: &Positions) -> usize {
    let all = positions.partitions.values();
    all.flat_map(|state| &state.buffer)
        .map(FetchedPartition::size_bytes)
        .sum()
}

#[test]
fn what_paused_partitions_hold_is_bounded_and_nothing_of_it_is_lost() {
    let mut positions = positions(100, 250_000);
    assert_eq!(fetch(&mut positions, 1, 10), 100);
    assert_eq!(fetch(&mut positions, 2, 10), 100);
    // The third fetch is under way when all of them are paused.
    let asked = positions.begin_fetch(0, NODE, 3).count();
    assert_eq!(asked, 100);
    for partition in 0..100 {
        positions.set_paused(&tp(partition), true);
    }
    assert!(held(&positions) > 2_000_000);
    assert!(positions.has_room(), "paused partitions stop nobody");
    assert!(held(&positions) <= 250_000, "{}", held(&positions));
    assert!(held(&positions) > 200_000, "no more than needed is dropped");
    for partition in 0..100 {
        answer(&mut positions, &tp(partition), 3, 20, 10);
    }
    positions.end_fetch(3, i64::MIN);
    for partition in 0..100 {
        positions.set_paused(&tp(partition), false);
    }
    let mut next: BTreeMap<TopicPartition, i64> = (0..100).map(|p| (tp(p), 0)).collect();
    for round in 4.. {
        fetch(&mut positions, round, 10);
        while let Ok(taken) = positions.take(1_000)
            && !taken.partitions.is_empty()
        {
            for part in taken.partitions {
                let expected = next.get_mut(&part.topic_partition).unwrap();
                for record in part.records {
                    assert_eq!(record.offset, *expected, "{}", part.topic_partition);
                    *expected += 1;
                }
            }
        }
        if next.values().all(|offset| *offset >= 40) {
            break;
        }
    }
}

#[test]
fn an_answer_that_was_asked_for_before_a_leader_change_counts_no_more() {
    let mut positions = positions(1, 1 << 20);
    fetch(&mut positions, 1, 2);
    assert_eq!(positions.take(1).unwrap().len(), 1);
    assert_eq!(positions.begin_fetch(0, NODE, 2).count(), 1);
    let second = Leader {
        node: NodeId(2),
        epoch: 1,
        topic_id: Uuid([1; 16]),
    };
    positions.learn(0, |_| Some(second), &mut BTreeSet::new());
    assert_eq!(positions.nodes(), [NodeId(2)]);
    answer(&mut positions, &tp(0), 2, 2, 1);
    assert_eq!(held(&positions), 0);
    assert!(!positions.wants(0, NodeId(2)), "not before the validation");
    let doubts = positions.begin_validation(0);
    assert_eq!(doubts[0].1.at.offset, 1);
    assert_eq!((doubts[0].1.epoch, doubts[0].1.leader.node), (0, NodeId(2)));
    assert!(positions.begin_validation(0).is_empty());
    positions.validated(&doubts[0].0, doubts[0].1.at);
    assert!(positions.wants(0, NodeId(2)));
    // The same leader again casts no doubt.
    positions.learn(0, |_| Some(second), &mut BTreeSet::new());
    assert!(positions.wants(0, NodeId(2)));
}

#[test]
fn a_topic_that_was_made_again_has_epochs_of_its_own() {
    let mut positions = positions(1, 1 << 20);
    let led = |epoch, id| Leader {
        node: NODE,
        epoch,
        topic_id: Uuid([id; 16]),
    };
    positions.learn(0, |_| Some(led(5, 1)), &mut BTreeSet::new());
    let five = At {
        offset: 3,
        epoch: Some(5),
    };
    positions.restart(&tp(0), Position::At(five));
    let doubts = positions.begin_validation(0);
    positions.validated(&doubts[0].0, five);
    // Metadata that is behind is not believed, a new topic is.
    let mut stale = BTreeSet::new();
    positions.learn(0, |_| Some(led(4, 1)), &mut stale);
    assert_eq!((stale.len(), positions.wants(0, NODE)), (1, false));
    positions.learn(0, |_| Some(led(0, 2)), &mut BTreeSet::new());
    assert!(positions.wants(0, NODE));
    assert_eq!(positions.position(&tp(0)), Some(3));
}

#[test]
fn while_no_leader_is_known_nobody_speaks_for_it() {
    let mut positions = positions(1, 1 << 20);
    let replica = NodeId(2);
    let version = positions.partitions[&tp(0)].version;
    let target = Target {
        topic_partition: tp(0),
        version,
        offset: 0,
    };
    positions.prefer(&target, replica, i64::MAX);
    assert!(!positions.leave_replica(&target, NODE), "the leader's word");
    positions.learn(0, |_| None, &mut BTreeSet::new());
    assert!(positions.is_current(&target), "answers still count");
    for node in [replica, NODE] {
        assert!(positions.leave_replica(&target, node), "{node:?}");
    }
}
