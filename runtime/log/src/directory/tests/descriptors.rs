//! No descriptor left: what needs one fails and says so, what does not goes on, and nothing that
//! was acknowledged is in doubt.

use super::counted::Counted;
use super::*;

/// A topic whose every second record begins a segment.
fn with_small_segments(directory: &LogDirectory, name: &str) -> Arc<PartitionLog> {
    let configs = BTreeMap::from([("segment.bytes".to_owned(), "250".to_owned())]);
    let topic = directory.create_topic(name, 1, configs).unwrap();
    topic.partitions[0].clone()
}

fn try_append(log: &PartitionLog, tag: u8) -> Result<Appended, ErrorCode> {
    let appended = log.append(batch(tag), AppendOrigin::Client, NOW_MS);
    appended.map_err(|error| error.error_code())
}

#[test]
fn x2_without_a_descriptor_a_roll_fails_cleanly_and_records_that_need_none_go_on() {
    let storage = Counted::default();
    let directory = open(storage.clone());
    let full = with_small_segments(&directory, "full");
    create(&directory, "roomy", 1);
    let mut taken = 0;
    storage.leave(0);
    for tag in 0..6 {
        match try_append(&full, tag) {
            Ok(_) => taken += 1,
            Err(code) => assert_eq!(code, ErrorCode::KAFKA_STORAGE_ERROR),
        }
        append(&directory, "roomy", 0, tag);
        directory.sync_journal().unwrap();
    }
    assert_eq!(
        taken, 1,
        "one segment is full, the next one cannot be begun"
    );
    assert!(!directory.poisoned());
    assert_eq!(
        full.offsets().log_end,
        1,
        "a refused record changes nothing"
    );
    assert_eq!(full.offsets().high_watermark, 1);

    storage.leave_enough();
    for tag in 0..3 {
        try_append(&full, tag).unwrap();
    }
    directory.sync_journal().unwrap();
    let again = open(storage.inner.crash());
    assert_eq!((end(&again, "full", 0), end(&again, "roomy", 0)), (4, 6));
}

#[test]
fn x2_topics_are_made_changed_and_deleted_wholly_or_not_at_all_however_many_descriptors_are_left() {
    for left in 0..12 {
        let storage = Counted::default();
        let directory = open(storage.clone());
        create(&directory, "a", 2);
        append(&directory, "a", 1, 1);
        create(&directory, "b", 1);
        directory.sync_journal().unwrap();
        storage.leave(left);
        let new = ["c", "d", "e"].map(|name| NewTopic {
            name: name.to_owned(),
            partitions: 2,
            configs: BTreeMap::new(),
        });
        let outcomes = directory.create_topics(new.to_vec());
        let made = outcomes.map_or(0, |all| all.iter().filter(|one| one.is_ok()).count());
        let grown = directory.add_partitions("a", 4).is_ok();
        let gone = directory.delete_topics(&["b".to_owned()]).is_ok();
        directory.erase_deleted().unwrap();
        append(&directory, "a", 1, 2);
        directory.sync_journal().unwrap();
        assert!(!directory.poisoned(), "{left}");
        storage.leave_enough();
        for image in [storage.inner.fork(), storage.inner.crash()] {
            let again = open(image);
            let names: Vec<String> = again.topics().into_iter().map(|one| one.name).collect();
            assert_eq!(
                names.len(),
                2 + made - usize::from(gone),
                "{left}: {names:?}"
            );
            let partitions = again.topic("a").unwrap().partitions.len();
            assert_eq!(partitions, if grown { 4 } else { 2 }, "{left}");
            assert_eq!(end(&again, "a", 1), 2);
        }
        if left == 0 {
            assert_eq!((made, grown, gone), (0, false, false));
        }
        for name in ["c", "d", "e"] {
            if directory.topic(name).is_none() {
                create(&directory, name, 2);
            }
        }
        directory.close(NOW_MS).unwrap();
    }
}

#[test]
fn x2_a_checkpoint_without_a_descriptor_is_made_up_for_by_the_next() {
    let storage = Counted::default();
    let directory = open(storage.clone());
    create(&directory, "a", 2);
    append(&directory, "a", 1, 1);
    directory.sync_journal().unwrap();
    storage.leave(0);
    let refused = directory.checkpoint().unwrap_err();
    assert_eq!(refused.error_code(), ErrorCode::KAFKA_STORAGE_ERROR);
    assert!(!directory.poisoned());
    append(&directory, "a", 1, 2);
    directory.sync_journal().unwrap();
    assert_eq!(end(&open(storage.inner.crash()), "a", 1), 2);
    storage.leave_enough();
    directory.checkpoint().unwrap();
    let points = String::from_utf8(content(&storage, checkpoint::RECOVERY_POINTS)).unwrap();
    assert!(points.contains("a 1 2\n"), "{points}");
    assert_eq!(end(&open(storage.inner.crash()), "a", 1), 2);
}

#[test]
fn x2_an_interval_without_a_descriptor_is_made_up_for_by_the_next() {
    let storage = Counted::default();
    let interval = Durability::Interval(Duration::from_millis(5));
    let directory = open_in(storage.clone(), interval);
    create(&directory, "a", 2);
    append(&directory, "a", 1, 1);
    storage.leave(0);
    let refused = directory.sync_journal().unwrap_err();
    assert_eq!(refused.error_code(), ErrorCode::KAFKA_STORAGE_ERROR);
    assert!(!directory.poisoned());
    storage.leave_enough();
    directory.sync_journal().unwrap();
    assert_eq!(end(&open_in(storage.inner.crash(), interval), "a", 1), 1);
}

#[test]
fn x2_a_partition_that_cannot_be_synced_does_not_keep_the_others_from_it() {
    let storage = FaultyStorage::new();
    let interval = Durability::Interval(Duration::from_millis(5));
    let directory = open_in(storage.clone(), interval);
    create(&directory, "a", 2);
    for partition in 0..2 {
        append(&directory, "a", partition, 1);
    }
    let fails = fault(
        OperationKind::Write,
        "a-0/leader-epoch",
        io::ErrorKind::Other,
    );
    storage.inject(fails);
    directory.sync_journal().unwrap_err();
    let again = open_in(storage.crash_with(Unsynced::Lost), interval);
    assert_eq!((end(&again, "a", 0), end(&again, "a", 1)), (0, 1));
    directory.sync_journal().unwrap();
    let again = open_in(storage.crash_with(Unsynced::Lost), interval);
    assert_eq!(end(&again, "a", 0), 1);
}
