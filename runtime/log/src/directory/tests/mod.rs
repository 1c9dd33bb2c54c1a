//! Directories that are opened, closed, crashed, or somebody else's.

mod altering;
mod batches;
mod closing;
mod compaction;
mod concurrent;
mod counted;
mod descriptors;
mod erasing;
mod failing;
mod idle;
mod stale;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use millstream_protocol::{
    Compression, ControlMarker, ErrorCode, ProducerStamp, RecordBatchBuilder, control_batch,
};

use super::*;
use crate::partition::{AppendOrigin, Appended, Isolation, ReadRequest};
use crate::storage::{
    DiskStorage, Fault, FaultyStorage, MemoryStorage, OpenMode, OperationKind, Unsynced,
};

const NOW_MS: i64 = 1_700_000_000_000;

fn config(durability: Durability) -> DirectoryConfig {
    DirectoryConfig {
        durability,
        cluster_id: Some("cluster".to_owned()),
        journal_file_bytes: 2000,
        reserve_bytes: 4000,
        ..DirectoryConfig::default()
    }
}

fn open_in(storage: impl Storage + 'static, durability: Durability) -> LogDirectory {
    LogDirectory::open(Arc::new(storage), config(durability), NOW_MS).unwrap()
}

fn open(storage: impl Storage + 'static) -> LogDirectory {
    open_in(storage, Durability::Sync)
}

fn refused(storage: impl Storage + 'static) -> LogError {
    LogDirectory::open(Arc::new(storage), config(Durability::Sync), NOW_MS).unwrap_err()
}

fn create(directory: &LogDirectory, name: &str, partitions: i32) -> Topic {
    directory
        .create_topic(name, partitions, BTreeMap::new())
        .unwrap()
}

fn batch(tag: u8) -> Bytes {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    builder.append(NOW_MS, Some(&[tag]), Some(&[tag; 100]), &[]);
    builder.finish(ProducerStamp::NONE).unwrap()
}

fn append(directory: &LogDirectory, topic: &str, partition: i32, tag: u8) -> Appended {
    let log = directory.partition(topic, partition).unwrap();
    log.append(batch(tag), AppendOrigin::Client, NOW_MS)
        .unwrap()
}

fn end(directory: &LogDirectory, topic: &str, partition: i32) -> i64 {
    let log = directory.partition(topic, partition).unwrap();
    log.offsets().log_end
}

fn journal_files(storage: &dyn Storage) -> usize {
    storage.list(Path::new(journal::DIRECTORY)).unwrap().len()
}

fn flip(storage: &dyn Storage, path: &str, position: u64) {
    let file = storage.open(Path::new(path), OpenMode::Write).unwrap();
    let mut byte = [0];
    file.read_at(&mut byte, position).unwrap();
    file.write_at(&[&[byte[0] ^ 1]], position).unwrap();
}

fn content(storage: &dyn Storage, path: &str) -> Vec<u8> {
    let file = storage.open(Path::new(path), OpenMode::Read).unwrap();
    crate::storage::read_all(&*file).unwrap()
}

fn fault(kind: OperationKind, path_contains: &str, error: io::ErrorKind) -> Fault {
    let path_contains = path_contains.to_owned();
    Fault {
        kind,
        path_contains,
        after: 0,
        error,
    }
}

#[test]
fn topics_with_their_settings_and_records_survive_a_clean_restart() {
    let root = tempfile::tempdir().unwrap();
    let storage = DiskStorage::new(root.path().join("data"));
    let directory = open(storage.clone());
    let configs = BTreeMap::from([("segment.bytes".to_owned(), "4096".to_owned())]);
    let created = directory.create_topic("orders", 2, configs).unwrap();
    for tag in 0..20 {
        append(&directory, "orders", 1, tag);
    }
    directory.sync_journal().unwrap();
    directory.close(NOW_MS).unwrap();
    assert_eq!(
        journal_files(&storage),
        0,
        "a clean stop empties the journal"
    );
    let again = open(storage.clone());
    assert!(again.recovery().was_clean);
    assert_eq!(again.cluster_id(), "cluster");
    let topic = again.topic("orders").unwrap();
    assert_eq!((topic.id, topic.partitions.len()), (created.id, 2));
    assert_eq!(topic.configs, created.configs);
    assert_eq!(topic.partitions[1].config().segment_bytes, 4096);
    assert_eq!(topic.partitions[1].offsets().high_watermark, 20);
    drop(again);
    let crashed = open(storage);
    assert!(
        !crashed.recovery().was_clean,
        "the marker is good for one start"
    );
    assert_eq!(end(&crashed, "orders", 1), 20);
}

#[test]
fn one_process_at_a_time_and_the_second_is_told_where() {
    let root = tempfile::tempdir().unwrap();
    let storage = DiskStorage::new(root.path());
    let directory = open(storage.clone());
    let error = refused(storage.clone());
    assert!(matches!(error, LogError::Locked { .. }));
    let text = error.to_string();
    assert!(text.contains(&root.path().display().to_string()), "{text}");
    assert_eq!(error.error_code(), ErrorCode::KAFKA_STORAGE_ERROR);
    directory.close(NOW_MS).unwrap();
    open(storage);
}

#[test]
fn a_cluster_id_is_made_where_none_is_given_and_depends_on_the_seed() {
    let made = |seed| {
        let config = DirectoryConfig {
            seed,
            ..DirectoryConfig::default()
        };
        let storage = Arc::new(MemoryStorage::new());
        let directory = LogDirectory::open(storage, config, NOW_MS).unwrap();
        directory.cluster_id().to_owned()
    };
    assert_eq!(made(1), made(1));
    assert_ne!(made(1), made(2));
}

#[test]
fn a_topic_created_again_under_a_name_is_another_topic() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    let first = create(&directory, "a", 1);
    for tag in 0..9 {
        append(&directory, "a", 0, tag);
    }
    directory.sync_journal().unwrap();
    directory.checkpoint().unwrap();
    directory.delete_topic("a").unwrap();
    assert!(directory.topic("a").is_none());
    let refused = first.partitions[0].append(batch(1), AppendOrigin::Client, NOW_MS);
    assert!(refused.is_err(), "a deleted topic takes no more records");
    let second = create(&directory, "a", 2);
    assert_ne!(first.id, second.id);
    append(&directory, "a", 0, 77);
    directory.sync_journal().unwrap();
    let again = open(storage.crash());
    assert_eq!(again.topic("a").unwrap().id, second.id);
    assert_eq!((end(&again, "a", 0), end(&again, "a", 1)), (1, 0));
    assert!(matches!(
        directory.delete_topic("missing"),
        Err(LogError::UnknownTopic { .. })
    ));
}

#[test]
fn topics_that_cannot_be_are_refused_with_their_code() {
    let directory = open(MemoryStorage::new());
    create(&directory, "a.b", 1);
    let code = |name: &str, partitions, value: &str| {
        let configs = BTreeMap::from([("retention.ms".to_owned(), value.to_owned())]);
        let refused = directory.create_topic(name, partitions, configs);
        refused.unwrap_err().error_code()
    };
    assert_eq!(code("a b", 1, "1"), ErrorCode::INVALID_TOPIC_EXCEPTION);
    assert_eq!(code("a_b", 1, "1"), ErrorCode::INVALID_TOPIC_EXCEPTION);
    assert_eq!(code("a.b", 1, "1"), ErrorCode::TOPIC_ALREADY_EXISTS);
    assert_eq!(code("c", 0, "1"), ErrorCode::INVALID_PARTITIONS);
    assert_eq!(code("c", 1, "soon"), ErrorCode::INVALID_CONFIG);
    assert!(!directory.poisoned());
    create(&directory, "c", 1);
}

#[test]
fn a_power_cut_takes_only_what_was_not_acknowledged() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    create(&directory, "a", 2);
    let acknowledged = append(&directory, "a", 0, 1);
    assert_eq!(
        directory
            .partition("a", 0)
            .unwrap()
            .offsets()
            .high_watermark,
        0
    );
    let durable = directory.sync_journal().unwrap();
    assert!(durable >= acknowledged.journal_position);
    assert_eq!(
        directory
            .partition("a", 0)
            .unwrap()
            .offsets()
            .high_watermark,
        1
    );
    append(&directory, "a", 0, 2);
    append(&directory, "a", 1, 3);
    let lost = open(storage.crash());
    assert_eq!((end(&lost, "a", 0), end(&lost, "a", 1)), (1, 0));
    assert_eq!(lost.recovery().frames_replayed, 1);
    let kept = open(storage.crash_with(Unsynced::Kept));
    assert_eq!(
        (end(&kept, "a", 0), end(&kept, "a", 1)),
        (1, 0),
        "valid, but behind the journal's last good frame"
    );
    assert_eq!(kept.recovery().records_cut, 2);
}

#[test]
fn the_mode_may_change_between_starts_whatever_stopped_the_last_one() {
    let modes = [
        Durability::Sync,
        Durability::Os,
        Durability::Interval(Duration::from_millis(5)),
        Durability::Memory,
    ];
    for first in modes {
        for second in modes {
            for clean in [true, false] {
                let storage = MemoryStorage::new();
                let directory = open_in(storage.clone(), first);
                create(&directory, "a", 1);
                for tag in 0..5 {
                    append(&directory, "a", 0, tag);
                }
                directory.sync_journal().unwrap();
                if clean {
                    directory.close(NOW_MS).unwrap();
                }
                let storage = storage.fork();
                let directory = open_in(storage.clone(), second);
                assert_eq!(end(&directory, "a", 0), 5, "{first} then {second}, {clean}");
                for tag in 0..5 {
                    append(&directory, "a", 0, tag);
                }
                directory.sync_journal().unwrap();
                let log = directory.partition("a", 0).unwrap();
                assert_eq!(log.offsets().high_watermark, 10);
                let third = open_in(storage.fork(), first);
                assert_eq!(
                    end(&third, "a", 0),
                    10,
                    "{first}, {second}, {first}, {clean}"
                );
            }
        }
    }
}

/// Neither a checkpoint, nor a clean stop, nor the start after it may say that it is durable.
#[test]
fn what_was_never_synced_may_be_gone_after_a_power_cut() {
    let open_memory = |storage: &MemoryStorage| open_in(storage.clone(), Durability::Memory);
    for (stopped, restarted) in [(false, false), (true, false), (true, true)] {
        let storage = MemoryStorage::new();
        let directory = open_memory(&storage);
        create(&directory, "a", 1);
        for tag in 0..5 {
            append(&directory, "a", 0, tag);
        }
        directory.checkpoint().unwrap();
        if stopped {
            directory.close(NOW_MS).unwrap();
        }
        if restarted {
            assert_eq!(end(&open_memory(&storage), "a", 0), 5);
        }
        let cut = open_memory(&storage.crash());
        assert_eq!(end(&cut, "a", 0), 0, "{stopped}, {restarted}");
    }
}

#[test]
fn modes_without_a_journal_keep_what_they_say_they_keep() {
    for (mode, kept_after_sync) in [
        (Durability::Os, 0),
        (Durability::Interval(Duration::from_millis(5)), 3),
    ] {
        let storage = MemoryStorage::new();
        let directory = open_in(storage.clone(), mode);
        create(&directory, "a", 1);
        for tag in 0..3 {
            append(&directory, "a", 0, tag);
        }
        let log = directory.partition("a", 0).unwrap();
        assert_eq!(log.offsets().high_watermark, 3, "acknowledged at once");
        directory.sync_journal().unwrap();
        let killed = open_in(storage.fork(), mode);
        assert_eq!(end(&killed, "a", 0), 3, "{mode} survives a killed process");
        let cut = open_in(storage.crash(), mode);
        assert_eq!(end(&cut, "a", 0), kept_after_sync, "{mode} and a power cut");
        directory.checkpoint().unwrap();
        assert_eq!(end(&open_in(storage.crash(), mode), "a", 0), 3);
        assert!(
            !storage
                .exists(Path::new("journal/00000000000000000000.journal"))
                .unwrap()
        );
    }
}

#[test]
fn the_marker_of_a_clean_stop_is_good_for_one_start_in_every_mode() {
    for mode in [Durability::Sync, Durability::Os] {
        let storage = MemoryStorage::new();
        open_in(storage.clone(), mode).close(NOW_MS).unwrap();
        let directory = open_in(storage.clone(), mode);
        assert!(directory.recovery().was_clean, "{mode}");
        create(&directory, "a", 1);
        append(&directory, "a", 0, 1);
        for image in [storage.fork(), storage.crash()] {
            assert!(!open_in(image, mode).recovery().was_clean, "{mode}");
        }
    }
}

#[test]
fn a_checkpoint_frees_the_journal_and_names_the_recovery_points() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    create(&directory, "a", 1);
    for tag in 0..60 {
        append(&directory, "a", 0, tag);
        directory.sync_journal().unwrap();
    }
    assert!(journal_files(&storage) > 4);
    let recyclable = directory.journal().recyclable_bytes();
    directory.checkpoint().unwrap();
    assert_eq!(journal_files(&storage), 1);
    assert!(directory.journal().recyclable_bytes() < recyclable);
    append(&directory, "a", 0, 61);
    directory.checkpoint().unwrap();
    let points = String::from_utf8(content(&storage, checkpoint::RECOVERY_POINTS)).unwrap();
    assert_eq!(
        points, "0\n1\na 0 60\n",
        "what the journal has not made durable is not covered"
    );
    assert_eq!(end(&open(storage.crash()), "a", 0), 60);
}

#[test]
fn directories_of_others_are_left_alone_and_named_when_they_are_in_the_way() {
    let storage = MemoryStorage::new();
    storage.create_dir_all(Path::new("backup-2024")).unwrap();
    storage
        .open(Path::new("backup-2024/photo"), OpenMode::Write)
        .unwrap();
    storage.create_dir_all(Path::new("x-0")).unwrap();
    storage
        .open(Path::new("x-0/notes"), OpenMode::Write)
        .unwrap();
    storage.create_dir_all(Path::new("half-0")).unwrap();
    let directory = open(storage.clone());
    assert!(storage.exists(Path::new("backup-2024/photo")).unwrap());
    assert!(
        !storage.exists(Path::new("half-0")).unwrap(),
        "an empty one is ours"
    );
    let refused = directory.create_topic("x", 1, BTreeMap::new()).unwrap_err();
    assert!(refused.to_string().contains("x-0"), "{refused}");
    assert!(!directory.poisoned());
    assert!(storage.exists(Path::new("x-0/notes")).unwrap());
}

#[test]
fn given_up_records_stay_given_up() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    create(&directory, "a", 1);
    for tag in 0..8 {
        append(&directory, "a", 0, tag);
    }
    directory.sync_journal().unwrap();
    let log = directory.partition("a", 0).unwrap();
    assert_eq!(log.delete_records_before(5).unwrap(), Some(5));
    directory.checkpoint().unwrap();
    let again = open(storage.crash());
    let log = again.partition("a", 0).unwrap();
    assert_eq!((log.offsets().log_start, log.offsets().log_end), (5, 8));
    let isolation = Isolation::HighWatermark;
    let request = ReadRequest {
        offset: 4,
        max_bytes: 1000,
        isolation,
        at_least_one: true,
    };
    assert!(log.read(request).is_err(), "below the log start");
}

#[test]
fn records_that_were_deleted_stay_so_when_the_journal_brings_them_back() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    let log = create(&directory, "a", 1).partitions[0].clone();
    let mut builder = RecordBatchBuilder::new(Compression::None);
    for _ in 0..10 {
        builder.append(NOW_MS, None, Some(b"v"), &[]);
    }
    let ten = builder.finish(ProducerStamp::NONE).unwrap();
    log.append(ten, AppendOrigin::Client, NOW_MS).unwrap();
    directory.sync_journal().unwrap();
    assert_eq!(log.delete_records_before(5).unwrap(), Some(5));
    let mut cut = storage.crash();
    for _ in 0..2 {
        let again = open(cut.clone());
        let offsets = again.partition("a", 0).unwrap().offsets();
        assert_eq!((offsets.log_start, offsets.log_end), (5, 10));
        drop(again);
        cut = cut.crash();
    }
}

#[test]
fn a_closed_directory_refuses_everything() {
    let directory = open(MemoryStorage::new());
    create(&directory, "a", 1);
    let log = directory.partition("a", 0).unwrap();
    directory.close(NOW_MS).unwrap();
    directory.close(NOW_MS).unwrap();
    assert!(matches!(directory.sync_journal(), Err(LogError::Closed)));
    assert!(matches!(directory.checkpoint(), Err(LogError::Closed)));
    assert!(matches!(directory.delete_topic("a"), Err(LogError::Closed)));
    assert!(log.append(batch(1), AppendOrigin::Client, NOW_MS).is_err());
}
