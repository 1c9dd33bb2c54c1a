//! Damaged, failing and full disks.

use super::*;

#[test]
fn l1_damage_below_a_recovery_point_is_refused_by_file_and_position_and_left_as_it_is() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    create(&directory, "a", 1);
    for tag in 0..4 {
        append(&directory, "a", 0, tag);
    }
    directory.sync_journal().unwrap();
    let log = "a-0/00000000000000000000.log";
    let batch_bytes = content(&storage, log).len() as u64 / 4;
    let unsynced = storage.fork();
    flip(&unsynced, log, batch_bytes + 80);
    assert_eq!(
        end(&open(unsynced), "a", 0),
        4,
        "the journal still has these records"
    );
    directory.close(NOW_MS).unwrap();
    let storage = storage.fork();
    storage
        .remove_file(Path::new(files::CLEAN_SHUTDOWN))
        .unwrap();
    flip(&storage, log, batch_bytes + 80);
    let before = content(&storage, log);
    match refused(storage.clone()) {
        LogError::Corrupt { path, position, .. } => {
            assert_eq!((path, position), (PathBuf::from(log), batch_bytes));
        }
        other => panic!("unexpected {other}"),
    }
    assert_eq!(content(&storage, log), before, "evidence is not cut away");
    assert!(matches!(refused(storage), LogError::Corrupt { .. }));
}

#[test]
fn a_lost_file_that_decides_about_records_is_named() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    create(&directory, "a", 1);
    append(&directory, "a", 0, 1);
    directory.sync_journal().unwrap();
    directory.checkpoint().unwrap();
    for (lost, named) in [
        (checkpoint::RECOVERY_POINTS, checkpoint::RECOVERY_POINTS),
        ("a-0/partition.metadata", "partition.metadata"),
        ("a-0/00000000000000000000.log", "a-0"),
    ] {
        let image = storage.fork();
        image.remove_file(Path::new(lost)).unwrap();
        let text = refused(image).to_string();
        assert!(text.contains(named), "{text}");
    }
    let image = storage.fork();
    image.remove_dir_all(Path::new("a-0")).unwrap();
    let text = refused(image).to_string();
    assert!(text.contains("a-0") && text.contains("missing"), "{text}");
}

#[test]
fn l2_a_failed_sync_stops_the_directory_until_it_is_opened_again() {
    for path in ["journal", "a-0"] {
        let storage = FaultyStorage::new();
        let directory = open(storage.clone());
        create(&directory, "a", 1);
        append(&directory, "a", 0, 1);
        directory.sync_journal().unwrap();
        append(&directory, "a", 0, 2);
        storage.inject(fault(OperationKind::SyncFile, path, io::ErrorKind::Other));
        let failed = match path {
            "journal" => directory.sync_journal().map(drop),
            _ => directory.checkpoint(),
        };
        assert!(failed.unwrap_err().to_string().contains("injected"));
        assert!(directory.poisoned());
        let log = directory.partition("a", 0).unwrap();
        let refused = log
            .append(batch(3), AppendOrigin::Client, NOW_MS)
            .unwrap_err();
        assert_eq!(refused.error_code(), ErrorCode::KAFKA_STORAGE_ERROR);
        let syncs = storage.count_of(OperationKind::SyncFile);
        assert!(matches!(
            directory.sync_journal(),
            Err(LogError::Poisoned { .. })
        ));
        assert!(matches!(
            directory.checkpoint(),
            Err(LogError::Poisoned { .. })
        ));
        assert!(matches!(
            directory.create_topic("b", 1, BTreeMap::new()),
            Err(LogError::Poisoned { .. })
        ));
        assert!(matches!(
            directory.close(NOW_MS),
            Err(LogError::Poisoned { .. })
        ));
        assert_eq!(
            storage.count_of(OperationKind::SyncFile),
            syncs,
            "never retried"
        );
        assert_eq!(
            log.offsets().high_watermark,
            1,
            "readers see durable records only"
        );
        let again = open(storage.crash_with(Unsynced::Lost));
        assert!(!again.recovery().was_clean);
        assert_eq!(end(&again, "a", 0), 1);
    }
}

#[test]
fn x1_a_full_disk_refuses_records_and_still_closes_cleanly() {
    let storage = FaultyStorage::new();
    let directory = open(storage.clone());
    create(&directory, "a", 1);
    append(&directory, "a", 0, 1);
    directory.sync_journal().unwrap();
    storage.set_capacity(Some(storage.fork().used_bytes() + 50));
    let log = directory.partition("a", 0).unwrap();
    for _ in 0..3 {
        let refused = log
            .append(batch(2), AppendOrigin::Client, NOW_MS)
            .unwrap_err();
        assert_eq!(
            refused.error_code(),
            ErrorCode::KAFKA_STORAGE_ERROR,
            "{refused}"
        );
    }
    let refused = directory.create_topic("b", 3, BTreeMap::new()).unwrap_err();
    assert!(matches!(refused, LogError::StorageFull { .. }), "{refused}");
    assert!(!directory.poisoned(), "nothing acknowledged is in doubt");
    assert_eq!(log.offsets().high_watermark, 1);
    directory.close(NOW_MS).unwrap();
    storage.set_capacity(None);
    let again = open(storage.fork());
    assert!(
        again.recovery().was_clean,
        "the reserve made room for a clean stop"
    );
    assert_eq!(end(&again, "a", 0), 1);
    assert!(again.topic("b").is_none());
    create(&again, "b", 3);
}

#[test]
fn x1_a_topic_can_be_deleted_on_a_full_disk() {
    let storage = FaultyStorage::new();
    let directory = open(storage.clone());
    create(&directory, "a", 1);
    create(&directory, "b", 1);
    for tag in 0..40 {
        append(&directory, "a", 0, tag);
    }
    directory.sync_journal().unwrap();
    directory.checkpoint().unwrap();
    storage.set_capacity(Some(storage.fork().used_bytes() + 10));
    directory.delete_topic("a").unwrap();
    assert!(!directory.poisoned());
    append(&directory, "b", 0, 1);
    directory.sync_journal().unwrap();
    let reserve = Path::new(files::RESERVE);
    assert!(storage.exists(reserve).unwrap(), "it is kept again");
    let again = open(storage.crash_with(Unsynced::Lost));
    assert!(again.topic("a").is_none());
    assert_eq!(end(&again, "b", 0), 1);
}

#[test]
fn x1_space_that_comes_back_is_used() {
    let storage = FaultyStorage::new();
    let directory = open(storage.clone());
    create(&directory, "a", 1);
    storage.set_capacity(Some(storage.fork().used_bytes() + 50));
    let log = directory.partition("a", 0).unwrap();
    assert!(log.append(batch(2), AppendOrigin::Client, NOW_MS).is_err());
    storage.set_capacity(None);
    append(&directory, "a", 0, 3);
    directory.sync_journal().unwrap();
    let again = open(storage.crash_with(Unsynced::Lost));
    assert_eq!(end(&again, "a", 0), 1);
}

#[test]
fn a_creation_that_fails_at_any_operation_leaves_a_topic_or_none() {
    let kinds = [
        OperationKind::CreateDirectory,
        OperationKind::CreateFile,
        OperationKind::Write,
        OperationKind::SyncFile,
        OperationKind::SyncDirectory,
        OperationKind::Rename,
    ];
    let mut failures = 0;
    for kind in kinds {
        for after in 0..20 {
            let storage = FaultyStorage::new();
            let directory = open(storage.clone());
            create(&directory, "kept", 1);
            append(&directory, "kept", 0, 1);
            directory.sync_journal().unwrap();
            storage.inject(Fault {
                after,
                ..fault(kind, "", io::ErrorKind::Other)
            });
            if directory.create_topic("new", 2, BTreeMap::new()).is_ok() {
                break;
            }
            failures += 1;
            assert!(directory.topic("new").is_none());
            for image in [storage.fork(), storage.crash_with(Unsynced::Lost)] {
                let again = open(image.clone());
                assert_eq!(end(&again, "kept", 0), 1);
                let there = again.topic("new").is_some();
                let directories = [Path::new("new-0"), Path::new("new-1")];
                for path in directories {
                    assert_eq!(image.exists(path).unwrap(), there, "{kind:?} {after}");
                }
                if !there {
                    create(&again, "new", 2);
                }
            }
        }
    }
    assert!(failures > 10, "only {failures} operations failed");
}

#[test]
fn l3_an_index_that_a_recovery_was_rebuilding_when_it_was_cut_short_is_rebuilt_again() {
    let aborted = |directory: &LogDirectory| {
        let log = directory.partition("a", 0).unwrap();
        let request = ReadRequest {
            offset: 0,
            max_bytes: 10_000,
            isolation: Isolation::LastStable,
            at_least_one: true,
        };
        log.read(request).unwrap().aborted.len()
    };
    let storage = FaultyStorage::new();
    let directory = open(storage.clone());
    let configs = BTreeMap::from([("segment.bytes".to_owned(), "400".to_owned())]);
    directory.create_topic("a", 1, configs).unwrap();
    let log = directory.partition("a", 0).unwrap();
    let mut builder = RecordBatchBuilder::new(Compression::None);
    builder.append(NOW_MS, None, Some(&[1; 100]), &[]);
    let stamp = ProducerStamp {
        producer_id: 5,
        producer_epoch: 0,
        base_sequence: 0,
        transactional: true,
    };
    let data = builder.finish(stamp).unwrap();
    log.append(data, AppendOrigin::Client, NOW_MS).unwrap();
    let marker = ControlMarker::Abort {
        coordinator_epoch: 0,
    };
    let origin = AppendOrigin::Marker {
        coordinator_epoch: 0,
        transaction_version: 2,
    };
    let marker = control_batch(marker, 5, 1, NOW_MS);
    log.append(marker, origin, NOW_MS).unwrap();
    directory.sync_journal().unwrap();
    directory.checkpoint().unwrap();
    // The checkpoint ends with the first segment; the second one's name is not durable yet.
    append(&directory, "a", 0, 2);
    directory.sync_journal().unwrap();
    assert_eq!(aborted(&directory), 1);
    assert!(
        storage
            .exists(Path::new("a-0/00000000000000000002.log"))
            .unwrap()
    );
    let recovering = FaultyStorage::over(&storage.crash_with(Unsynced::Lost));
    assert_eq!(aborted(&open(recovering.clone())), 1);
    recovering.for_each_crash_point(0, |point| {
        let torn = |thousandths| Unsynced::Torn {
            thousandths,
            sector: false,
        };
        let mut fates = vec![Unsynced::Lost, Unsynced::Kept, torn(1), torn(500)];
        fates.extend((0..6).map(|seed| Unsynced::Mixed { seed }));
        for unsynced in fates {
            let again = open(point.image(unsynced));
            let context = (point.operations, point.last_path, unsynced);
            assert_eq!(end(&again, "a", 0), 3, "{context:?}");
            assert_eq!(
                aborted(&again),
                1,
                "an aborted record is visible: {context:?}"
            );
        }
    });
}

#[test]
fn x1_a_checkpoint_that_finds_no_room_is_made_up_for_by_the_next() {
    for file in ["leader-epoch-checkpoint", ".index", ".timeindex"] {
        let storage = FaultyStorage::new();
        let directory = open(storage.clone());
        create(&directory, "a", 1);
        for tag in 0..40 {
            append(&directory, "a", 0, tag);
        }
        directory.sync_journal().unwrap();
        let full = io::ErrorKind::StorageFull;
        storage.inject(fault(OperationKind::Write, file, full));
        let refused = directory.checkpoint().unwrap_err();
        assert!(matches!(refused, LogError::StorageFull { .. }), "{refused}");
        for tag in 40..80 {
            append(&directory, "a", 0, tag);
            directory.sync_journal().unwrap();
        }
        directory.checkpoint().unwrap();
        assert_eq!(journal_files(&storage.fork()), 1, "the journal is recycled");
        let again = open(storage.crash_with(Unsynced::Lost));
        assert_eq!(end(&again, "a", 0), 80);
    }
}
