//! A life of a compacted topic, cut after every disk operation: appends, transactions, checkpoints,
//! restarts and rounds of compaction.
//!
//! Invariants: whatever was cut, the last committed record of every key that survived is there, no
//! record is there that was not written, and retries are recognised.
//! Never: looks at anything but the public API and the names of files.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use millstream_log::{
    AppendOrigin, DirectoryConfig, Durability, FaultyStorage, Isolation, LogDirectory,
    MemoryStorage, PartitionConfig, PartitionLog, ReadRequest, Storage,
};
use millstream_protocol::{
    Compression, ControlMarker, ProducerStamp, RecordBatch, RecordBatchBuilder, control_batch,
};

use crate::workload::Failure;

const TOPIC: &str = "table";
const PARTITIONS: i32 = 2;
const KEYS: u8 = 5;
const START_MS: i64 = 1_700_000_000_000;

/// One append.
#[derive(Clone, Debug)]
struct Event {
    partition: i32,
    base_offset: i64,
    next_offset: i64,
    producer_id: i64,
    sent: Bytes,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    /// Keys and values; in a transaction of the producer or not.
    Records(Vec<(u8, Option<u32>)>, bool),
    Marker(bool),
}

/// Who lives it.
pub(crate) struct Life {
    pub(crate) storage: FaultyStorage,
    directory: LogDirectory,
    rng: fastrand::Rng,
    now_ms: i64,
    events: Vec<Event>,
    /// (Disk operations, events acknowledged by then.)
    acknowledged: Vec<(usize, usize)>,
    /// Partition, producer: next sequence and epoch.
    producers: BTreeMap<(i32, i64), (i32, i16)>,
    values: u32,
    pub(crate) swaps: usize,
}

fn config() -> DirectoryConfig {
    DirectoryConfig {
        durability: Durability::Sync,
        cluster_id: Some("compaction".to_owned()),
        journal_file_bytes: 3_000,
        reserve_bytes: 300,
        compaction_map_bytes_max: 250,
        partition: PartitionConfig {
            segment_bytes: 900,
            index_interval_bytes: 200,
            ..PartitionConfig::default()
        },
        ..DirectoryConfig::default()
    }
}

pub(crate) fn open(storage: impl Storage + 'static) -> Result<LogDirectory, Failure> {
    Ok(LogDirectory::open(Arc::new(storage), config(), START_MS)?)
}

impl Life {
    pub(crate) fn begin(seed: u64) -> Life {
        let storage = FaultyStorage::new();
        let directory = open(storage.clone()).unwrap();
        let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let configs = BTreeMap::from([
            setting("cleanup.policy", "compact"),
            setting("min.cleanable.dirty.ratio", "0.01"),
            setting("max.compaction.lag.ms", "1"),
            setting("delete.retention.ms", "150"),
        ]);
        directory.create_topic(TOPIC, PARTITIONS, configs).unwrap();
        Life {
            storage,
            directory,
            rng: fastrand::Rng::with_seed(seed),
            now_ms: START_MS,
            events: Vec::new(),
            acknowledged: Vec::new(),
            producers: BTreeMap::new(),
            values: 0,
            swaps: 0,
        }
    }

    /// Lives on for so many steps, or until something fails.
    pub(crate) fn live(&mut self, steps: usize) -> Result<(), Failure> {
        for step in 0..steps {
            self.now_ms += 20;
            match self.rng.u32(0..100) {
                0..45 => self.put()?,
                45..60 => self.end()?,
                60..72 => self.sync()?,
                72..79 => self.directory.checkpoint()?,
                79..98 => self.compact()?,
                _ if step > 20 => self.restart()?,
                _ => self.sync()?,
            }
        }
        self.compact()?;
        self.compact()
    }

    fn log(&self, partition: i32) -> Arc<PartitionLog> {
        self.directory.partition(TOPIC, partition).unwrap()
    }

    fn put(&mut self) -> Result<(), Failure> {
        let partition = self.rng.i32(0..PARTITIONS);
        // 0 is not transactional, 1 and 2 are.
        let producer_id = self.rng.choice([0, 0, 1, 2]).unwrap_or(0);
        let next = self.producers.entry((partition, producer_id)).or_default();
        let mut builder = RecordBatchBuilder::new(match self.rng.bool() {
            true => Compression::None,
            false => Compression::Lz4,
        });
        let mut records = Vec::new();
        for _ in 0..self.rng.usize(1..4) {
            self.values += 1;
            let key = self.rng.u8(..KEYS);
            let value = (self.rng.u32(..5) > 0).then_some(self.values);
            let bytes = value.map(|value| value.to_be_bytes().repeat(8));
            builder.append(self.now_ms, Some(&[key]), bytes.as_deref(), &[]);
            records.push((key, value));
        }
        let stamp = ProducerStamp {
            producer_id,
            producer_epoch: next.1,
            base_sequence: next.0,
            transactional: producer_id > 0,
        };
        next.0 += records.len() as i32;
        let sent = builder.finish(stamp)?;
        let content = Content::Records(records, producer_id > 0);
        self.append(partition, sent, AppendOrigin::Client, producer_id, content)
    }

    fn end(&mut self) -> Result<(), Failure> {
        let all = (0..PARTITIONS).flat_map(|partition| [(partition, 1), (partition, 2)]);
        let open: Vec<(i32, i64)> = all
            .filter(|(partition, id)| self.log(*partition).has_open_transaction(*id))
            .collect();
        let Some(&(partition, producer_id)) = self.rng.choice(&open) else {
            return self.put();
        };
        let next = self.producers.entry((partition, producer_id)).or_default();
        *next = (0, next.1 + 1);
        let commit = self.rng.bool();
        let marker = ControlMarker::new(commit, 0);
        let sent = control_batch(marker, producer_id, next.1, self.now_ms);
        let origin = AppendOrigin::Marker {
            coordinator_epoch: 0,
            transaction_version: 2,
        };
        self.append(
            partition,
            sent,
            origin,
            producer_id,
            Content::Marker(commit),
        )
    }

    fn append(
        &mut self,
        partition: i32,
        sent: Bytes,
        origin: AppendOrigin,
        producer_id: i64,
        content: Content,
    ) -> Result<(), Failure> {
        let appended = self
            .log(partition)
            .append(sent.clone(), origin, self.now_ms)?;
        assert!(!appended.duplicate);
        self.events.push(Event {
            partition,
            base_offset: appended.base_offset,
            next_offset: appended.last_offset + 1,
            producer_id,
            sent,
            content,
        });
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Failure> {
        self.directory.sync_journal()?;
        self.note_acknowledged();
        Ok(())
    }

    fn note_acknowledged(&mut self) {
        let operations = self.storage.operation_count();
        self.acknowledged.push((operations, self.events.len()));
    }

    fn compact(&mut self) -> Result<(), Failure> {
        let report = self.directory.compact(self.now_ms)?;
        assert_eq!(report.uncleanable, []);
        if let Some(failed) = report.failed.first() {
            return Err(failed.reason.clone().into());
        }
        self.swaps += report.compacted.len();
        Ok(())
    }

    fn restart(&mut self) -> Result<(), Failure> {
        self.directory.close(self.now_ms)?;
        self.note_acknowledged();
        self.directory = open(self.storage.clone())?;
        assert!(self.directory.recovery().was_clean);
        Ok(())
    }

    fn acknowledged_at(&self, operations: usize) -> usize {
        let before = self.acknowledged.iter().filter(|(at, _)| *at <= operations);
        before.map(|(_, events)| *events).max().unwrap_or(0)
    }

    /// Opens what a crash has left and compares it with what was done.
    pub(crate) fn check(&self, image: &MemoryStorage, operations: usize, context: &str) {
        let directory = match open(image.clone()) {
            Ok(directory) => directory,
            Err(error) => panic!("{context}: opening is refused: {error}"),
        };
        if directory.topic(TOPIC).is_none() {
            assert!(
                self.acknowledged_at(operations) == 0,
                "{context}: the topic is lost"
            );
            return;
        }
        let acknowledged = self.acknowledged_at(operations);
        let mut lost = None;
        for (index, event) in self.events.iter().enumerate() {
            let log = directory.partition(TOPIC, event.partition).unwrap();
            if event.next_offset <= log.offsets().log_end {
                assert!(
                    lost.is_none(),
                    "{context}: {index} survived, {lost:?} did not"
                );
            } else {
                assert!(
                    index >= acknowledged,
                    "{context}: acknowledged {index} is lost"
                );
                lost = lost.or(Some(index));
            }
        }
        self.check_tables(&directory, context);
        for partition in 0..PARTITIONS {
            self.check_retries(&directory, partition, context);
            let names = image
                .list(Path::new(&format!("{TOPIC}-{partition}")))
                .unwrap();
            let stray = names.iter().find(|name| name.ends_with(".cleaned"));
            assert_eq!(stray, None, "{context}");
        }
        // Life goes on: another round changes nothing that counts.
        let later = self.now_ms + 10_000;
        let report = directory.compact(later).unwrap();
        assert_eq!(
            (report.failed, report.uncleanable),
            (vec![], vec![]),
            "{context}"
        );
        self.check_tables(&directory, context);
    }

    fn check_tables(&self, directory: &LogDirectory, context: &str) {
        for partition in 0..PARTITIONS {
            let log = directory.partition(TOPIC, partition).unwrap();
            let offsets = log.offsets();
            assert_eq!(offsets.log_start, 0, "{context}");
            let written = self.written(partition, offsets.log_end);
            let mut expected = BTreeMap::new();
            for (offset, (key, value, is_committed)) in written.range(..offsets.last_stable) {
                if *is_committed {
                    expected.insert(*key, (*offset, *value));
                }
            }
            let mut found = BTreeMap::new();
            for (offset, key, value) in committed(&log) {
                assert_eq!(
                    written[&offset],
                    (key, value, true),
                    "{context}: at {offset}"
                );
                found.insert(key, (offset, value));
            }
            for key in 0..KEYS {
                let (found, expected) = (found.get(&key), expected.get(&key));
                let is_deleted = expected.is_some_and(|(_, value)| value.is_none());
                assert!(
                    found == expected || (is_deleted && found.is_none()),
                    "{context}: key {key} of {partition} is {found:?}, {expected:?} was written"
                );
            }
        }
    }

    /// Every record below `end`: key, value, and whether it is committed below it.
    fn written(&self, partition: i32, end: i64) -> BTreeMap<i64, (u8, Option<u32>, bool)> {
        let mut written = BTreeMap::new();
        let mut open: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        for event in &self.events {
            if event.partition != partition || event.next_offset > end {
                continue;
            }
            match &event.content {
                Content::Records(records, in_transaction) => {
                    for ((key, value), offset) in records.iter().zip(event.base_offset..) {
                        written.insert(offset, (*key, *value, !in_transaction));
                        if *in_transaction {
                            open.entry(event.producer_id).or_default().push(offset);
                        }
                    }
                }
                Content::Marker(commit) => {
                    for offset in open.remove(&event.producer_id).unwrap_or_default() {
                        written
                            .entry(offset)
                            .and_modify(|record| record.2 = *commit);
                    }
                }
            }
        }
        written
    }

    /// P1 after compaction and crash.
    fn check_retries(&self, directory: &LogDirectory, partition: i32, context: &str) {
        let log = directory.partition(TOPIC, partition).unwrap();
        let end = log.offsets().log_end;
        let of_producer = |event: &&Event| {
            event.partition == partition && event.producer_id == 0 && event.next_offset <= end
        };
        for event in self.events.iter().rev().filter(of_producer).take(5) {
            let sent = event.sent.clone();
            let appended = log.append(sent, AppendOrigin::Client, self.now_ms).unwrap();
            assert!(appended.duplicate, "{context}: a retry was appended again");
            assert_eq!(appended.base_offset, event.base_offset, "{context}");
        }
    }
}

/// What a reader of committed records gets: offset, key, value.
fn committed(log: &PartitionLog) -> Vec<(i64, u8, Option<u32>)> {
    let mut offset = log.offsets().log_start;
    let mut found = Vec::new();
    loop {
        let request = ReadRequest {
            offset,
            max_bytes: 400,
            isolation: Isolation::LastStable,
            at_least_one: true,
        };
        let read = log.read(request).unwrap();
        let mut bytes = Bytes::from(read.batches.concat());
        if bytes.is_empty() {
            return found;
        }
        let mut ahead = read.aborted;
        let mut aborted: Vec<i64> = Vec::new();
        while let Some(batch) = RecordBatch::split_from(&mut bytes).unwrap() {
            batch.verify_crc().unwrap();
            assert!(batch.next_offset() > offset);
            offset = batch.next_offset();
            let begun = ahead.extract_if(.., |entry| entry.first_offset < offset);
            aborted.extend(begun.map(|entry| entry.producer_id));
            let id = batch.producer_id();
            match batch.control().unwrap() {
                Some(ControlMarker::Abort { .. }) => aborted.retain(|other| *other != id),
                Some(ControlMarker::Commit { .. }) => {}
                None if batch.is_transactional() && aborted.contains(&id) => {}
                None => {
                    for record in batch.records(1 << 20).unwrap() {
                        let record = record.unwrap();
                        let value = record
                            .value
                            .as_deref()
                            .and_then(|value| value.first_chunk());
                        let value = value.map(|bytes| u32::from_be_bytes(*bytes));
                        found.push((record.offset, record.key.unwrap()[0], value));
                    }
                }
            }
        }
    }
}
