//! Random histories: whatever was appended, stopped, cut and opened again, the log is the one that
//! appending what is left would have made. A snapshot and the tail equal a full replay.

use super::*;
use crate::storage::Unsynced;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Append {
        producer: i64,
        count: i32,
        transactional: bool,
    },
    End {
        producer: i64,
        commit: bool,
    },
    Retry {
        producer: i64,
    },
    Flush,
    CloseAndOpen,
    CrashAndOpen,
    PowerCutAndOpen,
    Truncate(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_i64..3, 1_i32..4, any::<bool>()).prop_map(|(producer, count, transactional)| {
            Step::Append { producer, count, transactional }
        }),
        3 => (0_i64..3, any::<bool>())
            .prop_map(|(producer, commit)| Step::End { producer, commit }),
        1 => (0_i64..3).prop_map(|producer| Step::Retry { producer }),
        1 => Just(Step::Flush),
        1 => Just(Step::CloseAndOpen),
        1 => Just(Step::CrashAndOpen),
        1 => Just(Step::PowerCutAndOpen),
        1 => any::<prop::sample::Index>().prop_map(Step::Truncate),
    ]
}

struct World {
    storage: MemoryStorage,
    log: PartitionLog,
    flushed: i64,
    batches: Vec<RecordBatch>,
}

fn open(storage: &MemoryStorage, recovery: Recovery) -> PartitionLog {
    let config = PartitionConfig {
        segment_bytes: 700,
        ..config()
    };
    let setup = setup(Arc::new(storage.clone()), recovery);
    PartitionLog::open(PartitionSetup { config, ..setup }).unwrap()
}

impl World {
    fn stamp_of(&self, producer: i64, is_transactional: bool) -> ProducerStamp {
        let known = self.log.producer(producer);
        let epoch = known.map_or(0, |known| known.producer_epoch);
        let sequence = known.map_or(0, |known| known.last_sequence + 1);
        ProducerStamp {
            transactional: is_transactional,
            ..stamp(producer, epoch, sequence)
        }
    }

    fn remember(&mut self, appended: Appended) {
        let request = ReadRequest {
            offset: appended.base_offset,
            max_bytes: 0,
            isolation: Isolation::LogEnd,
            at_least_one: true,
        };
        self.batches
            .extend(parsed(&self.log.read(request).unwrap()));
    }

    fn reopen(&mut self, storage: MemoryStorage, recovery: Recovery) {
        self.log = open(&storage, recovery);
        self.storage = storage;
        let end = self.log.offsets().log_end;
        assert!(end >= self.flushed, "what was flushed is there");
        self.batches.retain(|batch| batch.base_offset() < end);
    }

    /// Sends the producer's last batch once more.
    fn retry(&mut self, producer: i64) {
        let known = self.log.producer(producer);
        let epoch = known.map(|known| known.producer_epoch);
        let mut newest_first = self.batches.iter().rev();
        let last =
            newest_first.find(|batch| batch.producer_id() == producer && !batch.is_control());
        if let Some(last) = last.filter(|last| Some(last.producer_epoch()) == epoch) {
            let again = batch(last.record_count(), last.stamp());
            let appended = self.log.put(again);
            assert!(appended.duplicate);
            assert_eq!(appended.base_offset, last.base_offset());
        }
    }

    fn step(&mut self, step: &Step) {
        let checkpoint = Recovery::Unclean {
            checkpoint_offset: self.flushed,
        };
        match step {
            Step::Append {
                producer,
                count,
                transactional,
            } => {
                let in_transaction = self.log.has_open_transaction(*producer);
                let stamp = self.stamp_of(*producer, *transactional || in_transaction);
                let appended = self.log.put(batch(*count, stamp));
                self.remember(appended);
            }
            Step::End { producer, commit } => {
                let epoch = self
                    .log
                    .producer(*producer)
                    .map_or(0, |known| known.producer_epoch);
                let appended = self
                    .log
                    .end_transaction(*producer, epoch + 1, *commit)
                    .unwrap();
                self.remember(appended);
            }
            Step::Retry { producer } => self.retry(*producer),
            Step::Flush => self.flushed = self.log.flush().unwrap(),
            Step::CloseAndOpen => {
                self.flushed = self.log.close().unwrap();
                self.reopen(self.storage.crash_with(Unsynced::Lost), Recovery::Clean);
            }
            Step::CrashAndOpen => {
                let end = self.log.offsets().log_end;
                self.reopen(self.storage.fork(), checkpoint);
                assert_eq!(
                    self.log.offsets().log_end,
                    end,
                    "a killed process loses nothing"
                );
            }
            Step::PowerCutAndOpen => {
                self.reopen(self.storage.crash_with(Unsynced::Lost), checkpoint);
            }
            Step::Truncate(index) => {
                let beyond: Vec<i64> = self
                    .batches
                    .iter()
                    .map(RecordBatch::base_offset)
                    .filter(|base| *base >= self.flushed)
                    .collect();
                if !beyond.is_empty() {
                    let offset = *index.get(&beyond);
                    self.log.truncate_to(offset).unwrap();
                    self.batches.retain(|batch| batch.base_offset() < offset);
                }
            }
        }
    }

    fn check(&self) {
        let fresh = open(&MemoryStorage::new(), Recovery::Clean);
        for batch in &self.batches {
            fresh
                .replay(batch.base_offset(), batch.bytes().clone())
                .unwrap();
        }
        assert_eq!(self.log.offsets(), fresh.offsets());
        assert!(
            self.log.producer_state() == fresh.producer_state(),
            "full replay"
        );
        let copy = unclean(&self.storage.fork(), 0);
        assert!(
            copy.producer_state() == fresh.producer_state(),
            "snapshot and tail"
        );
        self.log.forget_tail();
        for isolation in [Isolation::LogEnd, Isolation::LastStable] {
            assert_eq!(self.log.bases(0, isolation), fresh.bases(0, isolation));
        }
        let end = self.log.offsets().last_stable;
        for batch in self
            .batches
            .iter()
            .filter(|batch| batch.last_offset() < end)
        {
            let of = |log: &PartitionLog| {
                log.forget_tail();
                let request = ReadRequest {
                    offset: batch.base_offset(),
                    max_bytes: 0,
                    isolation: Isolation::LastStable,
                    at_least_one: true,
                };
                log.read(request).unwrap()
            };
            let (ours, theirs) = (of(&self.log), of(&fresh));
            assert_eq!(ours.batches, [batch.bytes().clone()]);
            assert_eq!(ours.aborted, theirs.aborted, "at {}", batch.base_offset());
        }
    }
}

proptest! {
    #[test]
    fn snapshot_and_tail_equal_a_full_replay_whatever_happened(
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let storage = MemoryStorage::new();
        let log = open(&storage, Recovery::Clean);
        let mut world = World { storage, log, flushed: 0, batches: Vec::new() };
        for step in &steps {
            world.step(step);
        }
        world.check();
    }
}
