//! Many topics in one change: what it costs in syncs, and that each has an outcome of its own.

use super::*;

const TOPICS: usize = 100;

fn new(name: &str, partitions: i32) -> NewTopic {
    NewTopic {
        name: name.to_owned(),
        partitions,
        configs: BTreeMap::new(),
    }
}

fn names() -> Vec<String> {
    (0..TOPICS).map(|number| format!("t{number}")).collect()
}

fn new_ones() -> Vec<NewTopic> {
    names().iter().map(|name| new(name, 3)).collect()
}

/// Syncs of files, syncs of directories, and files that were replaced.
fn counts(storage: &FaultyStorage) -> [usize; 3] {
    use OperationKind::{Rename, SyncDirectory, SyncFile};
    [SyncFile, SyncDirectory, Rename].map(|kind| storage.count_of(kind))
}

/// How these have grown since the last look.
fn grown(storage: &FaultyStorage, before: &mut [usize; 3]) -> [usize; 3] {
    let now = counts(storage);
    let grown = std::array::from_fn(|at| now[at] - before[at]);
    *before = now;
    grown
}

fn all_ok<T>(outcomes: Outcomes<T>) -> Vec<T> {
    outcomes.unwrap().into_iter().map(Result::unwrap).collect()
}

#[test]
fn a_hundred_topics_in_one_change_store_the_catalogue_once() {
    for mode in [Durability::Sync, Durability::Os] {
        let storage = FaultyStorage::new();
        let directory = open_in(storage.clone(), mode);
        let mut before = counts(&storage);
        let created = all_ok(directory.create_topics(new_ones()));
        assert_eq!(created.len(), TOPICS);
        assert_eq!(grown(&storage, &mut before), [1, 1, 1], "creation, {mode}");
        let totals: Vec<_> = names().into_iter().map(|name| (name, 4)).collect();
        all_ok(directory.grow_topics(&totals));
        assert_eq!(grown(&storage, &mut before), [1, 1, 1], "growth, {mode}");
        all_ok(directory.delete_topics(&names()));
        let renamed = 1 + TOPICS * 4;
        assert_eq!(grown(&storage, &mut before), [1, 1, renamed], "deletion");
        directory.erase_deleted().unwrap();
        assert_eq!(grown(&storage, &mut before), [0, 1, 0], "removal, {mode}");
        let left = storage.list(Path::new("")).unwrap();
        assert!(
            !left.iter().any(|name| name.starts_with(['t', 'd'])),
            "{left:?}"
        );
    }
}

#[test]
fn topics_with_records_that_are_made_again_at_once_cost_no_more_for_being_many() {
    let mut costs = Vec::new();
    for topics in [1, TOPICS] {
        let storage = FaultyStorage::new();
        let directory = open(storage.clone());
        let names: Vec<String> = names().into_iter().take(topics).collect();
        let new_ones = || names.iter().map(|name| new(name, 3)).collect();
        let first = all_ok(directory.create_topics(new_ones()));
        for name in &names {
            append(&directory, name, 1, 7);
        }
        directory.sync_journal().unwrap();
        directory.checkpoint().unwrap();
        let mut before = counts(&storage);
        all_ok(directory.delete_topics(&names));
        let second = all_ok(directory.create_topics(new_ones()));
        let [files, directories, _] = grown(&storage, &mut before);
        costs.push((files, directories));
        for image in [storage.crash_with(Unsynced::Lost), storage.fork()] {
            let again = open(image);
            for (old, new) in first.iter().zip(&second) {
                let found = again.topic(&new.name).unwrap();
                assert_ne!(old.id, found.id);
                assert_eq!(found.id, new.id);
                assert_eq!(end(&again, &new.name, 1), 0, "no old record is there");
            }
        }
        // The old ones' files go while the new ones are in use.
        append(&directory, &names[0], 1, 8);
        directory.erase_deleted().unwrap();
        assert_eq!(end(&directory, &names[0], 1), 1);
        directory.sync_journal().unwrap();
        directory.checkpoint().unwrap();
        assert_eq!(
            end(&open(storage.crash_with(Unsynced::Lost)), &names[0], 1),
            1
        );
    }
    assert_eq!(costs[0], costs[1]);
}

#[test]
fn each_topic_of_a_change_has_an_outcome_of_its_own() {
    let storage = FaultyStorage::new();
    let directory = open(storage.clone());
    create(&directory, "old", 1);
    storage.create_dir_all(Path::new("foreign-0")).unwrap();
    let photo = Path::new("foreign-0/photo");
    storage.open(photo, OpenMode::Write).unwrap();
    let soon = BTreeMap::from([("retention.ms".to_owned(), "soon".to_owned())]);
    let senseless = NewTopic {
        configs: soon,
        ..new("senseless", 1)
    };
    let asked = vec![
        new("first", 1),
        new("old", 1),
        new("a b", 1),
        new("first", 2),
        new("foreign", 1),
        new("x.y", 1),
        new("x_y", 1),
        senseless,
        new("none", 0),
        new("last", 2),
    ];
    let outcomes = directory.create_topics(asked).unwrap();
    let codes: Vec<i16> = outcomes
        .iter()
        .map(|outcome| outcome.as_ref().err().map_or(0, |e| e.error_code().code()))
        .collect();
    assert_eq!(codes, [0, 36, 17, 36, 17, 0, 17, 40, 37, 0]);
    let again = open(storage.crash_with(Unsynced::Lost));
    let names: Vec<String> = again.topics().into_iter().map(|topic| topic.name).collect();
    assert_eq!(names, ["first", "last", "old", "x.y"]);

    let totals = [("first", 3), ("old", 1), ("nowhere", 2), ("first", 4)];
    let totals = totals.map(|(name, total)| (name.to_owned(), total));
    let outcomes = directory.grow_topics(&totals).unwrap();
    let ok: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, false, false, false]);
    assert_eq!(directory.topic("first").unwrap().partitions.len(), 3);

    let names = ["first", "nowhere", "old", "first"].map(str::to_owned);
    let outcomes = directory.delete_topics(&names).unwrap();
    let ok: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, false, true, false]);
    let again = open(storage.crash_with(Unsynced::Lost));
    let names: Vec<String> = again.topics().into_iter().map(|topic| topic.name).collect();
    assert_eq!(names, ["last", "x.y"]);
    assert!(storage.exists(photo).unwrap());
}

#[test]
fn a_topic_that_cannot_be_made_does_not_keep_the_others_from_it() {
    for (kind, path) in [
        (OperationKind::CreateDirectory, "b-1"),
        (OperationKind::CreateFile, "b-1/00000000000000000000.log"),
        (OperationKind::Write, "b-0/partition.metadata"),
    ] {
        let storage = FaultyStorage::new();
        let directory = open(storage.clone());
        create(&directory, "a", 1);
        storage.inject(fault(kind, path, io::ErrorKind::Other));
        let asked = vec![new("c", 2), new("b", 2), new("d", 1)];
        let outcomes = directory.create_topics(asked).unwrap();
        let ok: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
        assert_eq!(ok, [true, false, true], "{kind:?}");
        assert!(!storage.exists(Path::new("b-0")).unwrap(), "{kind:?}");
        assert!(!directory.poisoned());

        storage.inject(fault(kind, "a-1", io::ErrorKind::Other));
        let totals = [("c".to_owned(), 3), ("a".to_owned(), 2)];
        let grows = directory.grow_topics(&totals).unwrap();
        assert!(grows[0].is_ok());
        if grows[1].is_err() {
            assert_eq!(directory.topic("a").unwrap().partitions.len(), 1);
            directory.add_partitions("a", 2).unwrap();
        }
        create(&directory, "b", 3);
        append(&directory, "b", 2, 1);
        directory.sync_journal().unwrap();
        let again = open(storage.crash_with(Unsynced::Lost));
        let partitions = |name| again.topic(name).unwrap().partitions.len();
        assert_eq!(["a", "b", "c", "d"].map(partitions), [2, 3, 3, 1]);
        assert_eq!(end(&again, "b", 2), 1);
    }
}

#[test]
fn a_deletion_is_answered_before_its_files_are_gone_and_a_stop_takes_them() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    create(&directory, "a", 2);
    let retired = |storage: &MemoryStorage| {
        let names = storage.list(Path::new("")).unwrap();
        names.iter().filter(|name| name.contains('~')).count()
    };
    all_ok(directory.delete_topics(&["a".to_owned()]));
    assert!(directory.topic("a").is_none());
    assert_eq!(retired(&storage), 2);
    for image in [storage.fork(), storage.crash()] {
        let again = open(image.clone());
        assert_eq!(again.recovery().directories_removed, 2);
        assert_eq!(retired(&image), 0, "the next opening takes them");
    }
    directory.close(NOW_MS).unwrap();
    assert_eq!(retired(&storage), 0);
    assert!(matches!(directory.erase_deleted(), Err(LogError::Closed)));
}

#[test]
fn what_a_power_cut_leaves_of_an_empty_partition_is_made_whole_again() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    create(&directory, "a", 8);
    directory.checkpoint().unwrap();
    let metadata = "a-3/partition.metadata";
    let whole = content(&storage, metadata);
    let torn = |thousandths| Unsynced::Torn {
        thousandths,
        sector: false,
    };
    let mut fates = vec![Unsynced::Lost, torn(1), torn(400), torn(990)];
    fates.extend((0..8).map(|seed| Unsynced::Mixed { seed }));
    fates.extend((0..8).map(|seed| Unsynced::Scattered { seed }));
    for closes in [false, true] {
        if closes {
            directory.close(NOW_MS).unwrap();
        }
        for unsynced in fates.clone() {
            let image = storage.crash_with(unsynced);
            let again = open(image.clone());
            assert_eq!(again.recovery().was_clean, closes);
            assert_eq!(content(&image, metadata), whole, "{unsynced:?}");
            append(&again, "a", 3, 1);
            again.sync_journal().unwrap();
            again.checkpoint().unwrap();
            // From now on the directory has to say whose it is.
            let image = image.crash();
            assert_eq!(content(&image, metadata), whole, "{unsynced:?}");
            assert_eq!(end(&open(image.fork()), "a", 3), 1);
            image.remove_file(Path::new(metadata)).unwrap();
            assert!(refused(image).to_string().contains("partition.metadata"));
        }
    }
}

#[test]
fn an_empty_directory_of_another_topic_is_refused() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    create(&directory, "a", 1);
    create(&directory, "b", 1);
    let other = content(&storage, "b-0/partition.metadata");
    let path = Path::new("a-0/partition.metadata");
    let file = storage.open(path, OpenMode::Write).unwrap();
    file.write_at(&[&other], 0).unwrap();
    assert!(matches!(refused(storage.fork()), LogError::Corrupt { .. }));
}

#[test]
fn a_topic_is_deleted_by_an_id_that_is_its_own_only() {
    let directory = open(MemoryStorage::new());
    let first = create(&directory, "a", 1).id;
    directory.delete_topic("a").unwrap();
    let by_id = |id| {
        let outcomes = directory.delete_identified_topics(&[("a".to_owned(), Some(id))]);
        outcomes
            .unwrap()
            .remove(0)
            .map_err(|error| error.error_code())
    };
    assert_eq!(by_id(first), Err(ErrorCode::UNKNOWN_TOPIC_ID));
    let second = create(&directory, "a", 1).id;
    append(&directory, "a", 0, 1);
    assert_eq!(by_id(first), Err(ErrorCode::UNKNOWN_TOPIC_ID));
    assert_eq!(end(&directory, "a", 0), 1, "the second one is as it was");
    assert_eq!(by_id(second), Ok(()));
    assert!(directory.topic("a").is_none());
}
