//! What must hold after a crash, whatever was lost: compared with the ledger.
//!
//! Invariants: every check names the moment of the crash and what became of unsynced data.
//! Never: repairs anything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use millstream_log::{
    AppendOrigin, Durability, Isolation, LogDirectory, MemoryStorage, PartitionLog, PartitionSetup,
    ReadRequest, Recovery, Storage, Topic,
};
use millstream_protocol::{ProducerStamp, RecordBatch, Uuid};

use crate::workload::{Event, Kind, Ledger, NOW_MS, batch, config, open};

/// Everything in a partition, as bytes.
fn all_bytes(log: &PartitionLog) -> Bytes {
    let mut offset = log.offsets().log_start;
    let mut bytes = Vec::new();
    while offset < log.offsets().log_end {
        let isolation = Isolation::LogEnd;
        let request = ReadRequest {
            offset,
            max_bytes: 1 << 20,
            isolation,
            at_least_one: true,
        };
        let mut read = Bytes::from(log.read(request).unwrap().batches.concat());
        bytes.extend_from_slice(&read);
        while let Some(batch) = RecordBatch::split_from(&mut read).unwrap() {
            assert_eq!(batch.base_offset(), offset, "offsets are contiguous");
            batch.verify_crc().unwrap();
            offset = batch.next_offset();
        }
    }
    bytes.into()
}

/// Opens a crash image and compares what is in it with the ledger. `operations` is when the
/// recorded life ended.
pub(crate) fn check_image(
    image: &MemoryStorage,
    ledger: &Ledger,
    operations: usize,
    context: &str,
) {
    let directory = match LogDirectory::open(Arc::new(image.clone()), config(), NOW_MS) {
        Ok(directory) => directory,
        Err(error) => panic!("{context}: opening is refused: {error}"),
    };
    let topics = check_topics(image, &directory, ledger, operations, context);
    check_events(&topics, ledger, operations, context);
    let bare = without_state(image, &topics);
    for topic in topics.values() {
        for log in &topic.partitions {
            let offsets = log.offsets();
            assert_eq!(offsets.high_watermark, offsets.log_end, "{context}");
            check_full_replay(&bare, topic, log, context);
        }
    }
    check_retries(&topics, ledger, context);
}

/// Topics are there or not as was promised, with all their directories and no others.
fn check_topics(
    image: &MemoryStorage,
    directory: &LogDirectory,
    ledger: &Ledger,
    operations: usize,
    context: &str,
) -> BTreeMap<Uuid, Topic> {
    let topics: BTreeMap<_, _> = directory
        .topics()
        .into_iter()
        .map(|topic| (topic.id, topic))
        .collect();
    for life in &ledger.topics {
        let created = life.created.1 <= operations;
        let untouched = life.deleted.is_none_or(|(before, _)| before >= operations);
        let gone = life.deleted.is_some_and(|(_, after)| after <= operations);
        let found = topics.get(&life.id);
        if created && untouched {
            assert!(found.is_some(), "{context}: topic {} is lost", life.name);
        }
        if let Some(found) = found {
            let partitions = life.partitions as usize;
            assert_eq!(found.partitions.len(), partitions, "{context}");
        }
        assert!(
            !(gone && found.is_some()),
            "{context}: deleted topic {} is back",
            life.name
        );
        assert!(life.created.0 < operations || found.is_none(), "{context}");
    }
    let expected: BTreeSet<String> = topics
        .values()
        .flat_map(|topic| {
            (0..topic.partitions.len()).map(|partition| format!("{}-{partition}", topic.name))
        })
        .collect();
    let ours = |name: &String| name.contains('~') || name.starts_with(['a', 'b', '_']);
    let found: BTreeSet<String> = image
        .list(Path::new(""))
        .unwrap()
        .into_iter()
        .filter(ours)
        .collect();
    assert_eq!(
        found, expected,
        "{context}: directories do not match the catalogue"
    );
    topics
}

/// The events that survived are a prefix of all, with their bytes, and hold all acknowledged ones.
fn check_events(topics: &BTreeMap<Uuid, Topic>, ledger: &Ledger, operations: usize, context: &str) {
    let acknowledged = ledger.acknowledged_at(operations);
    let mut expected: BTreeMap<_, Vec<u8>> = BTreeMap::new();
    let mut survivors: Vec<&Event> = Vec::new();
    let mut lost: Option<usize> = None;
    for (index, event) in ledger.events.iter().enumerate() {
        let Some(topic) = topics.get(&event.topic_id) else {
            continue;
        };
        let end = topic.partitions[event.partition as usize].offsets().log_end;
        if event.last_offset < end {
            assert!(
                lost.is_none(),
                "{context}: event {index} survived, an earlier one ({lost:?}) did not",
            );
            let key = (event.topic_id, event.partition);
            expected
                .entry(key)
                .or_default()
                .extend_from_slice(&event.stored);
            survivors.push(event);
        } else {
            assert!(
                index >= acknowledged,
                "{context}: acknowledged event {index} is lost"
            );
            lost = lost.or(Some(index));
        }
    }
    for topic in topics.values() {
        for (partition, log) in topic.partitions.iter().enumerate() {
            let bytes = expected.get(&(topic.id, partition as i32));
            assert_eq!(
                all_bytes(log),
                bytes.map(Vec::as_slice).unwrap_or_default(),
                "{context}: {}-{partition} holds other bytes than were appended",
                topic.name,
            );
        }
    }
    check_transactions(&survivors, context);
}

/// Implied by the prefix, and said again in the words of transactions.
fn check_transactions(survivors: &[&Event], context: &str) {
    let mut seen: BTreeMap<u32, [usize; 4]> = BTreeMap::new();
    for event in survivors {
        let (transaction, index) = match event.kind {
            Kind::Plain => continue,
            Kind::Data { transaction } => (transaction, 0),
            Kind::Prepare { transaction } => (transaction, 1),
            Kind::Marker { transaction } => (transaction, 2),
            Kind::Complete { transaction } => (transaction, 3),
        };
        let counts = seen.entry(transaction).or_default();
        counts[index] += 1;
        let [data, prepared, markers, completed] = *counts;
        assert!(
            prepared == 0 || data == 3,
            "{context}: {transaction} is prepared without data"
        );
        assert!(
            markers == 0 || prepared == 1,
            "{context}: {transaction} has markers too early"
        );
        assert!(
            completed == 0 || markers == 2,
            "{context}: {transaction} lacks a marker"
        );
    }
}

/// The same records without snapshots, indexes and epochs.
fn without_state(image: &MemoryStorage, topics: &BTreeMap<Uuid, Topic>) -> MemoryStorage {
    let bare = image.fork();
    for log in topics.values().flat_map(|topic| &topic.partitions) {
        for name in bare.list(log.directory()).unwrap() {
            if !name.ends_with(".log") && name != "partition.metadata" {
                bare.remove_file(&log.directory().join(name)).unwrap();
            }
        }
    }
    bare
}

/// The state from snapshot, indexes and tail equals that of a replay of the records alone.
fn check_full_replay(bare: &MemoryStorage, topic: &Topic, log: &PartitionLog, context: &str) {
    let replayed = PartitionLog::open(PartitionSetup {
        storage: Arc::new(bare.clone()),
        directory: PathBuf::from(log.directory()),
        topic_id: topic.id,
        partition: log.partition(),
        config: (*log.config()).clone(),
        journal: None,
        durability: Durability::Memory,
        recovery: Recovery::Unclean {
            checkpoint_offset: 0,
        },
    })
    .unwrap();
    assert_eq!(replayed.offsets(), log.offsets(), "{context}");
    assert_eq!(replayed.producers(), log.producers(), "{context}");
    assert_eq!(
        replayed.open_transactions(),
        log.open_transactions(),
        "{context}"
    );
    let aborted = |log: &PartitionLog| {
        let isolation = Isolation::LastStable;
        let offset = log.offsets().log_start;
        let request = ReadRequest {
            offset,
            max_bytes: 1 << 20,
            isolation,
            at_least_one: true,
        };
        log.read(request).unwrap().aborted
    };
    assert_eq!(aborted(&replayed), aborted(log), "{context}");
}

/// P1: each of the last five batches of a producer is recognised, whatever crash lies between.
fn check_retries(topics: &BTreeMap<Uuid, Topic>, ledger: &Ledger, context: &str) {
    let mut last: BTreeMap<_, Vec<&Event>> = BTreeMap::new();
    for event in &ledger.events {
        let Some(topic) = topics.get(&event.topic_id) else {
            continue;
        };
        let end = topic.partitions[event.partition as usize].offsets().log_end;
        if (0..100).contains(&event.producer_id) && event.last_offset < end {
            let key = (event.topic_id, event.partition, event.producer_id);
            last.entry(key).or_default().push(event);
        }
    }
    for ((topic_id, partition, _), events) in last {
        let log = &topics[&topic_id].partitions[partition as usize];
        for event in events.iter().rev().take(5) {
            let appended = log
                .append(event.sent.clone(), AppendOrigin::Client, NOW_MS)
                .unwrap();
            assert!(appended.duplicate, "{context}: a retry was appended again");
            assert_eq!(appended.base_offset, event.base_offset, "{context}");
        }
    }
}

/// Life goes on after recovery: what is acknowledged now survives the next power cut.
pub(crate) fn check_next_life(image: &MemoryStorage, context: &str) {
    let directory = open(image.clone());
    let mut ends = BTreeMap::new();
    for topic in directory.topics() {
        for (partition, log) in topic.partitions.iter().enumerate() {
            let sent = batch(2, 50, 7, ProducerStamp::NONE);
            let appended = log.append(sent, AppendOrigin::Coordinator, NOW_MS).unwrap();
            ends.insert(
                (topic.name.clone(), partition as i32),
                appended.last_offset + 1,
            );
        }
    }
    directory.sync_journal().unwrap();
    let again = open(image.crash());
    for ((topic, partition), end) in ends {
        let offsets = again.partition(&topic, partition).unwrap().offsets();
        assert_eq!(offsets.log_end, end, "{context}: {topic}-{partition}");
    }
}
