//! A recorded life of a data directory: producers, transactions, topics that come and go, syncs,
//! checkpoints and a clean restart, with a ledger of what was promised when.
//!
//! Invariants: the ledger's order is the order of appends; an event counts as acknowledged only
//! once the journal said so.
//! Never: looks at anything but the public API.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use millstream_log::storage::Fault;
use millstream_log::{
    AppendOrigin, DirectoryConfig, Durability, FaultyStorage, Isolation, LogDirectory, NewTopic,
    PartitionConfig, ReadRequest, Storage,
};
use millstream_protocol::{
    Compression, ControlMarker, ProducerStamp, RecordBatch, RecordBatchBuilder, Uuid, control_batch,
};

/// The topic of the transactions' own records.
pub(crate) const STATE: &str = "__transaction_state";
pub(crate) const NOW_MS: i64 = 1_700_000_000_000;

/// Why a life ended early.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// What an append was, for the checks of transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Data { transaction: u32 },
    Prepare { transaction: u32 },
    Marker { transaction: u32 },
    Complete { transaction: u32 },
}

/// One append.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) topic_id: Uuid,
    pub(crate) partition: i32,
    pub(crate) base_offset: i64,
    pub(crate) last_offset: i64,
    /// As the producer sent it.
    pub(crate) sent: Bytes,
    /// As the log holds it.
    pub(crate) stored: Bytes,
    pub(crate) kind: Kind,
    pub(crate) producer_id: i64,
}

/// When a topic was created and deleted, as numbers of disk operations before and after.
#[derive(Clone, Debug)]
pub(crate) struct TopicLife {
    pub(crate) name: String,
    pub(crate) id: Uuid,
    pub(crate) partitions: i32,
    pub(crate) created: (usize, usize),
    pub(crate) deleted: Option<(usize, usize)>,
}

/// Everything that was done and promised.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) events: Vec<Event>,
    /// After so many disk operations so many events were acknowledged.
    pub(crate) acknowledged: Vec<(usize, usize)>,
    pub(crate) topics: Vec<TopicLife>,
}

impl Ledger {
    /// How many events were acknowledged when the power went after so many operations.
    pub(crate) fn acknowledged_at(&self, operations: usize) -> usize {
        let before = |(at, _): &&(usize, usize)| *at <= operations;
        self.acknowledged
            .iter()
            .filter(before)
            .map(|(_, events)| *events)
            .max()
            .unwrap_or(0)
    }
}

/// Small files, so that a short life rolls and recycles many of them.
pub(crate) fn config() -> DirectoryConfig {
    DirectoryConfig {
        durability: Durability::Sync,
        cluster_id: Some("crash-tests".to_owned()),
        journal_file_bytes: 3000,
        reserve_bytes: 600,
        partition: PartitionConfig {
            segment_bytes: 1600,
            index_interval_bytes: 200,
            ..PartitionConfig::default()
        },
        ..DirectoryConfig::default()
    }
}

pub(crate) fn open(storage: impl Storage + 'static) -> LogDirectory {
    LogDirectory::open(Arc::new(storage), config(), NOW_MS).unwrap()
}

/// A batch of `records` records of `value_bytes` each.
pub(crate) fn batch(records: usize, value_bytes: usize, tag: u8, stamp: ProducerStamp) -> Bytes {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    for index in 0..records {
        let value = vec![tag.wrapping_add(index as u8); value_bytes];
        builder.append(NOW_MS, Some(&[tag]), Some(&value), &[]);
    }
    builder.finish(stamp).unwrap()
}

/// The batch that begins at this offset, as the log holds it.
fn stored(directory: &LogDirectory, topic: &str, partition: i32, offset: i64) -> Bytes {
    let request = ReadRequest {
        offset,
        max_bytes: 1,
        isolation: Isolation::LogEnd,
        at_least_one: true,
    };
    let read = directory
        .partition(topic, partition)
        .unwrap()
        .read(request)
        .unwrap();
    let mut bytes = Bytes::from(read.batches.concat());
    let batch = RecordBatch::split_from(&mut bytes).unwrap().unwrap();
    assert_eq!(batch.base_offset(), offset);
    batch.bytes().clone()
}

struct Transaction {
    producer_id: i64,
    epoch: i16,
    number: u32,
    step: u32,
    commits: bool,
}

/// Who does all this.
pub(crate) struct Workload {
    pub(crate) storage: FaultyStorage,
    pub(crate) ledger: Ledger,
    directory: LogDirectory,
    rng: fastrand::Rng,
    sequences: BTreeMap<(i64, i16, Uuid, i32), i32>,
    transactions: Vec<Transaction>,
    next_transaction: u32,
    durable_ends: BTreeMap<(Uuid, i32), i64>,
}

impl Workload {
    /// Lives a life that depends on the seed only.
    pub(crate) fn run(seed: u64, steps: usize) -> Workload {
        let mut workload = Workload::new(seed);
        workload.live(steps).unwrap();
        workload
    }

    /// The same life, until this fault makes something fail; `None` when nothing did.
    pub(crate) fn run_into(seed: u64, steps: usize, fault: Fault) -> Option<(Workload, Failure)> {
        let mut workload = Workload::new(seed);
        workload.storage.inject(fault);
        let failure = workload.live(steps).err()?;
        if workload.directory.poisoned() {
            // Nothing may become durable, and so be acknowledged, after such a failure.
            assert!(workload.sync().is_err());
        }
        Some((workload, failure))
    }

    fn new(seed: u64) -> Workload {
        let storage = FaultyStorage::new();
        let directory = open(storage.clone());
        let transaction = |producer_id| Transaction {
            producer_id,
            epoch: 0,
            number: producer_id as u32,
            step: 0,
            commits: true,
        };
        Workload {
            storage,
            directory,
            ledger: Ledger::default(),
            rng: fastrand::Rng::with_seed(seed),
            sequences: BTreeMap::new(),
            transactions: vec![transaction(100), transaction(101)],
            next_transaction: 1000,
            durable_ends: BTreeMap::new(),
        }
    }

    fn live(&mut self, steps: usize) -> Result<(), Failure> {
        self.create(&[(STATE, 1), ("a", 2)])?;
        for step in 0..steps {
            match step * 100 / steps {
                10 if !self.is_there("ba") => self.create(&[("ba", 1), ("bb", 2), ("bc", 1)])?,
                20 if !self.is_there("b") => self.create(&[("b", 1)])?,
                // Made again at once, while the files of the old ones are still there.
                35 if self.is_there("bc") => {
                    self.delete(&["ba", "bb", "bc"])?;
                    self.create(&[("bb", 1), ("bd", 2), ("ba", 2)])?;
                }
                45 if self.is_there("b") => self.delete(&["b"])?,
                50 => self.directory.erase_deleted()?,
                55 if !self.is_there("b") => self.create(&[("b", 2)])?,
                60 if self.is_there("bd") => self.delete(&["bd", "ba"])?,
                65 if step * 100 % steps < 100 => self.restart()?,
                80 if self.is_there("b") => self.delete(&["b", "bb"])?,
                _ => self.step()?,
            }
        }
        Ok(())
    }

    fn is_there(&self, topic: &str) -> bool {
        self.directory.topic(topic).is_some()
    }

    fn step(&mut self) -> Result<(), Failure> {
        match self.rng.u32(0..100) {
            0..35 => self.produce(),
            35..65 => self.transact(),
            65..95 => self.sync(),
            _ => Ok(self.directory.checkpoint()?),
        }
    }

    fn sync(&mut self) -> Result<(), Failure> {
        self.directory.sync_journal()?;
        self.note_acknowledged();
        Ok(())
    }

    fn note_acknowledged(&mut self) {
        self.ledger
            .acknowledged
            .push((self.storage.operation_count(), self.ledger.events.len()));
        for event in &self.ledger.events {
            self.durable_ends
                .insert((event.topic_id, event.partition), event.last_offset + 1);
        }
    }

    fn create(&mut self, topics: &[(&str, i32)]) -> Result<(), Failure> {
        let before = self.storage.operation_count();
        let new = topics.iter().map(|(name, partitions)| NewTopic {
            name: (*name).to_owned(),
            partitions: *partitions,
            configs: BTreeMap::new(),
        });
        let created = self.directory.create_topics(new.collect())?;
        for topic in created.into_iter().collect::<Result<Vec<_>, _>>()? {
            self.ledger.topics.push(TopicLife {
                name: topic.name,
                id: topic.id,
                partitions: topic.partitions.len() as i32,
                created: (before, self.storage.operation_count()),
                deleted: None,
            });
        }
        Ok(())
    }

    fn delete(&mut self, names: &[&str]) -> Result<(), Failure> {
        let before = self.storage.operation_count();
        let ids = names.iter().map(|name| self.directory.topic(name));
        let ids: Vec<Uuid> = ids.map(|topic| topic.unwrap().id).collect();
        self.note_deleted(&ids, (before, usize::MAX));
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let deleted = self.directory.delete_topics(&names)?;
        deleted.into_iter().collect::<Result<(), _>>()?;
        self.note_deleted(&ids, (before, self.storage.operation_count()));
        Ok(())
    }

    fn note_deleted(&mut self, ids: &[Uuid], deleted: (usize, usize)) {
        let lives = self.ledger.topics.iter_mut();
        lives
            .filter(|life| ids.contains(&life.id))
            .for_each(|life| life.deleted = Some(deleted));
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.directory.close(NOW_MS)?;
        self.note_acknowledged();
        let storage = Arc::new(self.storage.clone());
        self.directory = LogDirectory::open(storage, config(), NOW_MS)?;
        assert!(self.directory.recovery().was_clean);
        Ok(())
    }

    fn produce(&mut self) -> Result<(), Failure> {
        let topics: Vec<String> = ["a", "b", "ba", "bb", "bc", "bd"]
            .into_iter()
            .filter(|name| self.is_there(name))
            .map(str::to_owned)
            .collect();
        let topic = topics[self.rng.usize(..topics.len())].clone();
        let partitions = self.directory.topic(&topic).unwrap().partitions.len();
        let partition = self.rng.usize(..partitions) as i32;
        let producer_id = self.rng.i64(-1..3);
        let value_bytes = if self.rng.u32(..6) == 0 {
            700
        } else {
            self.rng.usize(10..120)
        };
        let records = self.rng.usize(1..4);
        let stamp = if producer_id < 0 {
            ProducerStamp::NONE
        } else {
            self.stamp(producer_id, 0, false, &topic, partition, records)
        };
        let tag = self.rng.u8(..);
        let sent = batch(records, value_bytes, tag, stamp);
        self.append(
            &topic,
            partition,
            sent,
            AppendOrigin::Client,
            Kind::Plain,
            producer_id,
        )
    }

    fn stamp(
        &mut self,
        producer_id: i64,
        producer_epoch: i16,
        transactional: bool,
        topic: &str,
        partition: i32,
        records: usize,
    ) -> ProducerStamp {
        let id = self.directory.topic(topic).unwrap().id;
        let next = self
            .sequences
            .entry((producer_id, producer_epoch, id, partition))
            .or_default();
        let base_sequence = *next;
        *next += records as i32;
        ProducerStamp {
            producer_id,
            producer_epoch,
            base_sequence,
            transactional,
        }
    }

    /// One step of one of the transactions: data in two partitions, Prepare, two markers, Complete.
    fn transact(&mut self) -> Result<(), Failure> {
        let index = self.rng.usize(..self.transactions.len());
        let Transaction {
            producer_id,
            epoch,
            number: transaction,
            step,
            commits,
        } = self.transactions[index];
        let marker = match commits {
            true => ControlMarker::Commit {
                coordinator_epoch: 0,
            },
            false => ControlMarker::Abort {
                coordinator_epoch: 0,
            },
        };
        match step {
            0..=2 => {
                let partition = step as i32 % 2;
                let stamp = self.stamp(producer_id, epoch, true, "a", partition, 2);
                let sent = batch(2, 60, transaction as u8, stamp);
                let kind = Kind::Data { transaction };
                self.append(
                    "a",
                    partition,
                    sent,
                    AppendOrigin::Client,
                    kind,
                    producer_id,
                )?;
            }
            4 | 5 => {
                let sent = control_batch(marker, producer_id, epoch + 1, NOW_MS);
                let origin = AppendOrigin::Marker {
                    coordinator_epoch: 0,
                    transaction_version: 2,
                };
                let kind = Kind::Marker { transaction };
                self.append("a", step as i32 % 2, sent, origin, kind, producer_id)?;
            }
            _ => {
                let sent = batch(1, 40, transaction as u8, ProducerStamp::NONE);
                let kind = match step {
                    3 => Kind::Prepare { transaction },
                    _ => Kind::Complete { transaction },
                };
                self.append(STATE, 0, sent, AppendOrigin::Coordinator, kind, -1)?;
            }
        }
        let next = &mut self.transactions[index];
        next.step += 1;
        if next.step == 7 {
            next.step = 0;
            next.epoch += 1;
            next.commits = self.rng.bool();
            next.number = self.next_transaction;
            self.next_transaction += 1;
        }
        Ok(())
    }

    fn append(
        &mut self,
        topic: &str,
        partition: i32,
        sent: Bytes,
        origin: AppendOrigin,
        kind: Kind,
        producer_id: i64,
    ) -> Result<(), Failure> {
        let topic_id = self.directory.topic(topic).unwrap().id;
        let log = self.directory.partition(topic, partition).unwrap();
        let appended = log.append(sent.clone(), origin, NOW_MS)?;
        assert!(!appended.duplicate);
        let durable = self
            .durable_ends
            .get(&(topic_id, partition))
            .copied()
            .unwrap_or(0);
        let offsets = log.offsets();
        assert_eq!(
            offsets.high_watermark, durable,
            "readers see what a power cut could take"
        );
        assert!(offsets.last_stable <= offsets.high_watermark);
        let (base_offset, last_offset) = (appended.base_offset, appended.last_offset);
        let stored = stored(&self.directory, topic, partition, base_offset);
        self.ledger.events.push(Event {
            topic_id,
            partition,
            base_offset,
            last_offset,
            sent,
            stored,
            kind,
            producer_id,
        });
        Ok(())
    }
}
