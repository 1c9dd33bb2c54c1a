//! Committed and pending offsets: live, replayed and compacted histories end up the same.
//!
//! Invariants: a history is a list of log records; its place in the list is its log offset.
//! Never: the log itself.

use std::collections::BTreeMap;

use millstream_protocol::Uuid;
use proptest::prelude::*;

use super::offsets::{CommittedOffset, Offsets};

fn offset(offset: i64, record_offset: i64) -> CommittedOffset {
    CommittedOffset {
        offset,
        leader_epoch: 3,
        metadata: String::new(),
        commit_timestamp_ms: 0,
        expire_timestamp_ms: None,
        topic_id: Uuid::ZERO,
        record_offset,
    }
}

fn read(offsets: &Offsets, partition: i32) -> Option<i64> {
    offsets
        .get("g", "t", partition)
        .map(|committed| committed.offset)
}

#[test]
fn b10_a_commit_marker_makes_the_pending_offsets_count_and_an_abort_drops_them() {
    let mut offsets = Offsets::default();
    offsets.commit("g", "t", 0, offset(1, 0));
    offsets.commit_pending(7, "g", "t", 0, offset(5, 1));
    assert!(offsets.is_pending("g", "t", 0));
    assert_eq!(
        read(&offsets, 0),
        Some(1),
        "an open transaction shows nothing"
    );
    assert_eq!(offsets.end_transaction(7, true, 2), 1);
    assert_eq!(read(&offsets, 0), Some(5));
    assert!(!offsets.is_pending("g", "t", 0) && !offsets.has_pending("g"));

    offsets.commit_pending(7, "g", "t", 0, offset(9, 3));
    assert_eq!(offsets.end_transaction(7, false, 4), 1);
    assert_eq!(read(&offsets, 0), Some(5));
    assert!(!offsets.has_pending("g"));
}

#[test]
fn b13_of_plain_and_transactional_commits_the_later_record_wins() {
    let mut offsets = Offsets::default();
    offsets.commit_pending(7, "g", "t", 0, offset(5, 1));
    offsets.commit("g", "t", 0, offset(3, 2));
    offsets.end_transaction(7, true, 3);
    assert_eq!(
        read(&offsets, 0),
        Some(3),
        "the plain record lies behind the transactional one"
    );
}

#[test]
fn a_marker_does_not_touch_what_came_after_it() {
    let mut offsets = Offsets::default();
    offsets.commit_pending(7, "g", "t", 0, offset(5, 1));
    offsets.commit_pending(7, "g", "t", 1, offset(6, 3));
    assert_eq!(offsets.end_transaction(7, true, 2), 1);
    assert_eq!((read(&offsets, 0), read(&offsets, 1)), (Some(5), None));
    assert!(offsets.is_pending("g", "t", 1));
    assert_eq!(offsets.end_transaction(7, true, 4), 1);
    assert_eq!(read(&offsets, 1), Some(6));
}

#[test]
fn two_producers_may_hold_one_partition_and_it_is_stable_after_both() {
    let mut offsets = Offsets::default();
    offsets.commit_pending(7, "g", "t", 0, offset(5, 1));
    offsets.commit_pending(8, "g", "t", 0, offset(6, 2));
    offsets.end_transaction(8, true, 3);
    assert!(offsets.is_pending("g", "t", 0));
    offsets.end_transaction(7, true, 4);
    assert!(!offsets.is_pending("g", "t", 0));
    assert_eq!(read(&offsets, 0), Some(6));
}

#[test]
fn a_tombstone_takes_the_pending_offsets_with_it() {
    let mut offsets = Offsets::default();
    offsets.commit("g", "t", 0, offset(1, 0));
    offsets.commit_pending(7, "g", "t", 0, offset(5, 1));
    offsets.remove("g", "t", 0);
    assert!(!offsets.knows("g"));
    assert_eq!(offsets.end_transaction(7, true, 3), 0);
    assert_eq!(offsets, Offsets::default(), "nothing is left behind");
}

#[test]
fn all_partitions_of_a_group_are_listed_pending_ones_too() {
    let mut offsets = Offsets::default();
    offsets.commit("g", "t", 0, offset(1, 0));
    offsets.commit_pending(7, "g", "t", 2, offset(5, 1));
    offsets.commit("h", "t", 1, offset(1, 2));
    assert_eq!(
        offsets.partitions("g"),
        BTreeMap::from([("t", [0, 2].into())])
    );
    assert_eq!(offsets.groups().collect::<Vec<_>>(), ["g", "h"]);
}

/// One record of the log.
#[derive(Clone, Debug)]
enum Entry {
    Plain {
        partition: i32,
        value: i64,
    },
    Pending {
        producer: i64,
        partition: i32,
        value: i64,
    },
    Marker {
        producer: i64,
        commit: bool,
    },
    Tombstone {
        partition: i32,
    },
}

fn entry() -> impl Strategy<Value = Entry> {
    let partition = 0..3_i32;
    let producer = 0..3_i64;
    prop_oneof![
        3 => (partition.clone(), 0..1000_i64)
            .prop_map(|(partition, value)| Entry::Plain { partition, value }),
        5 => (producer.clone(), partition.clone(), 0..1000_i64)
            .prop_map(|(producer, partition, value)| Entry::Pending { producer, partition, value }),
        3 => (producer, any::<bool>())
            .prop_map(|(producer, commit)| Entry::Marker { producer, commit }),
        1 => partition.prop_map(|partition| Entry::Tombstone { partition }),
    ]
}

fn play(offsets: &mut Offsets, at: i64, entry: &Entry) {
    match entry {
        Entry::Plain { partition, value } => {
            offsets.commit("g", "t", *partition, offset(*value, at));
        }
        Entry::Pending {
            producer,
            partition,
            value,
        } => {
            offsets.commit_pending(*producer, "g", "t", *partition, offset(*value, at));
        }
        Entry::Marker { producer, commit } => {
            offsets.end_transaction(*producer, *commit, at);
        }
        Entry::Tombstone { partition } => offsets.remove("g", "t", *partition),
    }
}

fn play_all<'a>(log: impl IntoIterator<Item = &'a (i64, Entry)>) -> Offsets {
    let mut offsets = Offsets::default();
    for (at, entry) in log {
        play(&mut offsets, *at, entry);
    }
    offsets
}

/// What a transaction's records came to in the end; `None` while it is open.
fn outcome(log: &[(i64, Entry)], producer: i64, at: i64) -> Option<bool> {
    log.iter().find_map(|(place, entry)| match entry {
        Entry::Marker {
            producer: ended,
            commit,
        } if *ended == producer && *place > at => Some(*commit),
        _ => None,
    })
}

/// Compaction: aborted records go, and of the decided records of a key the last one stays.
fn compact(log: &[(i64, Entry)]) -> Vec<(i64, Entry)> {
    let decided = |at: i64, entry: &Entry| match entry {
        Entry::Plain { partition, .. } | Entry::Tombstone { partition } => Some((*partition, true)),
        Entry::Pending {
            producer,
            partition,
            ..
        } => outcome(log, *producer, at).map(|commit| (*partition, commit)),
        Entry::Marker { .. } => None,
    };
    let mut last: BTreeMap<i32, i64> = BTreeMap::new();
    for (at, entry) in log {
        if let Some((partition, true)) = decided(*at, entry) {
            last.insert(partition, *at);
        }
    }
    let keep = |at: i64, entry: &Entry| match decided(at, entry) {
        Some((partition, commit)) => commit && last.get(&partition) == Some(&at),
        None => true,
    };
    log.iter()
        .filter(|(at, entry)| keep(*at, entry))
        .cloned()
        .collect()
}

proptest! {
    #[test]
    fn g3_live_replayed_and_compacted_histories_agree(
        entries in prop::collection::vec(entry(), 1..60),
        late in prop::collection::vec(0..4_usize, 60),
    ) {
        let log: Vec<(i64, Entry)> = (0..).zip(entries).collect();
        let replayed = play_all(&log);

        // Live, the coordinator hears of a marker a little after it was appended, when other
        // groups' records may lie behind it; the same producer has nothing behind it yet.
        let mut live = Offsets::default();
        let mut heard: Vec<(usize, i64, Entry)> = Vec::new();
        for (step, (at, entry)) in log.iter().enumerate() {
            let overtakes = |marker: &Entry| match (marker, entry) {
                (Entry::Marker { producer, .. }, Entry::Marker { producer: now, .. })
                | (Entry::Marker { producer, .. }, Entry::Pending { producer: now, .. }) => {
                    producer == now
                }
                _ => false,
            };
            let mut waiting = Vec::new();
            for (due, place, marker) in heard {
                if due <= step || overtakes(&marker) {
                    play(&mut live, place, &marker);
                } else {
                    waiting.push((due, place, marker));
                }
            }
            heard = waiting;
            if matches!(entry, Entry::Marker { .. }) {
                heard.push((step + late[step % late.len()], *at, entry.clone()));
            } else {
                play(&mut live, *at, entry);
            }
        }
        for (_, place, marker) in heard {
            play(&mut live, place, &marker);
        }
        prop_assert_eq!(&live, &replayed);

        let compacted = play_all(&compact(&log));
        for partition in 0..3 {
            prop_assert_eq!(read(&compacted, partition), read(&replayed, partition));
        }
    }

    #[test]
    fn an_offset_is_pending_exactly_while_a_transaction_of_its_is_open(
        entries in prop::collection::vec(entry(), 1..60),
    ) {
        let log: Vec<(i64, Entry)> = (0..).zip(entries).collect();
        let offsets = play_all(&log);
        for wanted in 0..3 {
            let buried = log.iter().rev().find_map(|(at, entry)| match entry {
                Entry::Tombstone { partition } if *partition == wanted => Some(*at),
                _ => None,
            });
            let open = log.iter().any(|(at, entry)| match entry {
                Entry::Pending { producer, partition, .. } => {
                    *partition == wanted
                        && buried.is_none_or(|buried| *at > buried)
                        && outcome(&log, *producer, *at).is_none()
                }
                _ => false,
            });
            prop_assert_eq!(offsets.is_pending("g", "t", wanted), open);
        }
    }
}
