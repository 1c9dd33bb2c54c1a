//! Random histories of a compacted log against a model that keeps every record: after any number of
//! passes, stops and power cuts the last committed record of every key is there, nothing is there
//! that was not written, and producers and transactions stand where they stood.

use super::compaction::{MAP_BYTES, compacted, open, pairs};
use super::*;
use crate::storage::Unsynced;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Step {
    Put {
        producer: i64,
        keys: Vec<(u8, bool)>,
        transactional: bool,
    },
    End {
        producer: i64,
        commit: bool,
    },
    Roll,
    Clean {
        map_bytes: usize,
        wait_ms: i64,
    },
    CloseAndOpen,
    CrashAndOpen,
    PowerCutAndOpen,
}

fn step() -> impl Strategy<Value = Step> {
    let keys = prop::collection::vec((0_u8..6, prop::bool::weighted(0.8)), 1..4);
    prop_oneof![
        10 => (-1_i64..3, keys, any::<bool>()).prop_map(|(producer, keys, transactional)| {
            Step::Put { producer, keys, transactional }
        }),
        4 => (0_i64..3, any::<bool>())
            .prop_map(|(producer, commit)| Step::End { producer, commit }),
        2 => Just(Step::Roll),
        3 => (prop_oneof![Just(1_usize), Just(150), Just(MAP_BYTES)], 0_i64..1_500)
            .prop_map(|(map_bytes, wait_ms)| Step::Clean { map_bytes, wait_ms }),
        1 => Just(Step::CloseAndOpen),
        1 => Just(Step::CrashAndOpen),
        1 => Just(Step::PowerCutAndOpen),
    ]
}

/// A record as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Written {
    key: String,
    value: Option<String>,
    /// Of its transaction, if it has one: the producer, and how it ended.
    transaction: Option<(i64, Option<bool>)>,
}

struct World {
    storage: MemoryStorage,
    log: PartitionLog,
    written: BTreeMap<i64, Written>,
    sent: Vec<(i64, i16, Bytes, i64)>,
    first_dirty: i64,
    now_ms: i64,
    count: u32,
}

impl World {
    fn put(&mut self, producer: i64, keys: &[(u8, bool)], is_transactional: bool) {
        let known = self.log.producer(producer);
        let is_open = self.log.has_open_transaction(producer);
        let in_transaction = producer >= 0 && (is_transactional || is_open);
        let epoch = known.map_or(0, |known| known.producer_epoch);
        let stamp = match producer {
            0.. => ProducerStamp {
                transactional: in_transaction,
                ..stamp(
                    producer,
                    epoch,
                    known.map_or(0, |known| known.last_sequence + 1),
                )
            },
            _ => ProducerStamp::NONE,
        };
        let texts: Vec<(String, Option<String>)> = keys
            .iter()
            .map(|(key, has_value)| {
                self.count += 1;
                (
                    format!("k{key}"),
                    has_value.then(|| format!("v{}", self.count)),
                )
            })
            .collect();
        let records: Vec<_> = texts
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_deref()))
            .collect();
        let bytes = pairs(&records, stamp);
        let appended = self.log.put(bytes.clone());
        self.sent
            .push((producer, epoch, bytes, appended.base_offset));
        for ((key, value), offset) in texts.into_iter().zip(appended.base_offset..) {
            let transaction = in_transaction.then_some((producer, None));
            let written = Written {
                key,
                value,
                transaction,
            };
            self.written.insert(offset, written);
        }
    }

    fn end(&mut self, producer: i64, commit: bool) {
        let epoch = self
            .log
            .producer(producer)
            .map_or(0, |known| known.producer_epoch);
        self.log
            .end_transaction(producer, epoch + 1, commit)
            .unwrap();
        for written in self.written.values_mut() {
            if written.transaction == Some((producer, None)) {
                written.transaction = Some((producer, Some(commit)));
            }
        }
    }

    fn step(&mut self, step: &Step) {
        let end = self.log.offsets().log_end;
        let synced = Recovery::Unclean {
            checkpoint_offset: end,
        };
        match step {
            Step::Put {
                producer,
                keys,
                transactional,
            } => self.put(*producer, keys, *transactional),
            Step::End { producer, commit } => self.end(*producer, *commit),
            Step::Roll => self.log.roll_now(),
            Step::Clean { map_bytes, wait_ms } => {
                self.now_ms += wait_ms;
                let before = self.log.producers();
                let cleaned = self
                    .log
                    .clean_from(self.first_dirty, *map_bytes, self.now_ms);
                assert!(cleaned.bytes_after <= cleaned.bytes_before + 61);
                assert_eq!(self.log.producers(), before);
                self.first_dirty = cleaned.next_dirty;
                self.check();
            }
            Step::CloseAndOpen => {
                self.log.close().unwrap();
                self.storage = self.storage.crash_with(Unsynced::Lost);
                self.log = open(&self.storage, Recovery::Clean);
            }
            Step::CrashAndOpen => {
                self.storage = self.storage.fork();
                self.log = open(
                    &self.storage,
                    Recovery::Unclean {
                        checkpoint_offset: 0,
                    },
                );
            }
            Step::PowerCutAndOpen => {
                self.log.flush().unwrap();
                self.storage = self.storage.crash_with(Unsynced::Lost);
                self.log = open(&self.storage, synced);
            }
        }
        let offsets = self.log.offsets();
        assert!(offsets.log_end >= end && offsets.log_start == 0);
    }

    /// Last record of each key below `end` that is committed.
    fn expected(&self, end: i64) -> BTreeMap<&str, (i64, Option<&str>)> {
        let mut last = BTreeMap::new();
        for (offset, written) in self.written.range(..end) {
            if written
                .transaction
                .is_none_or(|(_, ended)| ended == Some(true))
            {
                last.insert(&*written.key, (*offset, written.value.as_deref()));
            }
        }
        last
    }

    fn check(&self) {
        check_view(self, &self.log);
        // What replay alone finds, without snapshots and indexes.
        let bare = self.storage.fork();
        for name in self.log.files() {
            if name.ends_with(".snapshot") || name.ends_with("index") {
                bare.remove_file(&Path::new("orders-0").join(name)).unwrap();
            }
        }
        let bare = open(
            &bare,
            Recovery::Unclean {
                checkpoint_offset: 0,
            },
        );
        check_view(self, &bare);
        assert_eq!(bare.offsets(), self.log.offsets());
        assert_eq!(
            bare.open_transactions().len(),
            self.log.open_transactions().len()
        );
        let of = |log: &PartitionLog| -> BTreeMap<i64, (i16, i32)> {
            let state =
                |it: ProducerSummary| (it.producer_id, (it.producer_epoch, it.last_sequence));
            log.producers().into_iter().map(state).collect()
        };
        assert_eq!(of(&bare), of(&self.log), "sequences survive");
        for base in self.log.bases(0, Isolation::LastStable) {
            let aborted = |log: &PartitionLog| -> Vec<i64> {
                let read = log.read_from(base, Isolation::LastStable);
                read.aborted.iter().map(|entry| entry.producer_id).collect()
            };
            // The index may still name a transaction whose batches the last pass has removed.
            let known = aborted(&self.log);
            for producer in aborted(&bare) {
                assert!(known.contains(&producer), "transaction index at {base}");
            }
        }
        for producer in 0..3 {
            let known = self.log.producer(producer);
            let mine = self.sent.iter().filter(|(id, epoch, ..)| {
                *id == producer && known.is_some_and(|known| known.producer_epoch == *epoch)
            });
            let newest: Vec<_> = mine.collect();
            for (_, _, bytes, offset) in newest.iter().rev().take(5) {
                let appended = bare.put(bytes.clone());
                assert_eq!(
                    (appended.duplicate, appended.base_offset),
                    (true, *offset),
                    "P1"
                );
            }
        }
    }
}

fn check_view(world: &World, log: &PartitionLog) {
    let offsets = log.offsets();
    let committed = log.records(Isolation::LastStable);
    let uncommitted = log.records(Isolation::LogEnd);
    for (offset, key, value) in committed.iter().chain(&uncommitted) {
        let written = &world.written[offset];
        assert_eq!((key, value), (&written.key, &written.value), "at {offset}");
    }
    let mut last = BTreeMap::new();
    for (offset, key, value) in &committed {
        let ended = world.written[offset].transaction;
        assert!(
            ended.is_none_or(|(_, ended)| ended == Some(true)),
            "{offset} was not committed"
        );
        last.insert(key.as_str(), (*offset, value.as_deref()));
    }
    for (key, expected) in world.expected(offsets.last_stable) {
        match (last.remove(key), expected) {
            (found, (_, Some(_))) => assert_eq!(found, Some(expected), "{key}"),
            // A tombstone may be gone by now; an older value must not be back.
            (found, (_, None)) => {
                assert!(found.is_none_or(|it| it == expected), "{key}: {found:?}")
            }
        }
    }
    assert!(last.is_empty(), "{last:?}");
    // Whoever reads uncommitted records misses nothing of what is open either.
    let found: std::collections::BTreeSet<i64> =
        uncommitted.iter().map(|(offset, ..)| *offset).collect();
    for (offset, written) in world.written.range(offsets.last_stable..) {
        assert!(found.contains(offset), "{offset} {written:?}");
    }
}

proptest! {
    #[test]
    fn l6_the_last_committed_record_of_every_key_stays_whatever_is_cleaned_or_cut(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let storage = MemoryStorage::new();
        let log = open(&storage, Recovery::Clean);
        prop_assert!(*log.config() == compacted());
        let mut world = World {
            storage,
            log,
            written: BTreeMap::new(),
            sent: Vec::new(),
            first_dirty: 0,
            now_ms: NOW,
            count: 0,
        };
        for step in &steps {
            world.step(step);
        }
        world.log.roll_now();
        for wait_ms in [0, 2_000, 2_000] {
            world.step(&Step::Clean { map_bytes: MAP_BYTES, wait_ms });
        }
    }
}
