//! What is left of topics that are gone or never came: under which names, and how it is removed.

use super::counted::Counted;
use super::*;

fn new(name: &str, partitions: i32) -> NewTopic {
    NewTopic {
        name: name.to_owned(),
        partitions,
        configs: BTreeMap::new(),
    }
}

fn left(storage: &dyn Storage) -> Vec<String> {
    let mut names = storage.list(Path::new("")).unwrap();
    names.retain(|name| name.contains('~'));
    names
}

#[test]
fn a_deletion_looks_at_each_directory_no_more_often_for_their_being_many() {
    let storage = Counted::default();
    let directory = open(storage.clone());
    for round in ["x", "y"] {
        let names: Vec<_> = (0..50).map(|n| format!("{round}{n}")).collect();
        let topics = names.iter().map(|name| new(name, 2)).collect();
        directory.create_topics(topics).unwrap();
        storage.take_looks();
        directory.delete_topics(&names).unwrap();
        let looks = storage.take_looks();
        assert!(looks < 10, "{looks} looks, {round}");
    }
    assert_eq!(left(&storage).len(), 200);
    directory.erase_deleted().unwrap();
    assert!(left(&storage).is_empty());
}

#[test]
fn orphans_get_names_that_are_not_taken_when_the_last_process_left_some() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    create(&directory, "a", 3);
    directory.delete_topics(&["a".to_owned()]).unwrap();
    create(&directory, "b", 2);
    drop(directory);
    // As when its process ended after the catalogue had lost it.
    storage.create_dir_all(Path::new("c-0")).unwrap();
    storage.create_dir_all(Path::new("c-1")).unwrap();
    let again = open(storage.clone());
    assert_eq!(again.recovery().directories_removed, 5);
    assert!(left(&storage).is_empty());
    assert!(!storage.exists(Path::new("c-0")).unwrap());
    assert_eq!(again.topic("b").unwrap().partitions.len(), 2);
}

#[test]
fn what_a_creation_that_failed_leaves_is_removed_without_a_restart() {
    let storage = FaultyStorage::new();
    let directory = open(storage.clone());
    storage.inject(fault(OperationKind::Write, "b-1/", io::ErrorKind::Other));
    let gone = fault(
        OperationKind::RemoveDirectory,
        "deleted~0",
        io::ErrorKind::Other,
    );
    storage.inject(gone);
    let topics = vec![new("a", 1), new("b", 2)];
    let outcomes = directory.create_topics(topics).unwrap();
    assert!(outcomes[0].is_ok() && outcomes[1].is_err());
    assert!(directory.must_erase());
    directory.erase_deleted().unwrap_err();
    assert!(
        directory.must_erase(),
        "what could not be removed is tried again"
    );
    directory.erase_deleted().unwrap();
    assert!(!directory.must_erase());
    assert!(left(&storage).is_empty());
    create(&directory, "b", 2);
}

#[test]
fn what_is_in_the_way_of_a_new_topic_is_removed_without_a_restart() {
    let storage = FaultyStorage::new();
    let directory = open(storage.clone());
    create(&directory, "a", 2);
    storage.inject(fault(OperationKind::Rename, "a-0", io::ErrorKind::Other));
    directory.delete_topics(&["a".to_owned()]).unwrap();
    directory.erase_deleted().unwrap();
    assert!(
        storage.exists(Path::new("a-0")).unwrap(),
        "it kept its name"
    );
    create(&directory, "a", 2);
    append(&directory, "a", 0, 1);
    assert!(directory.must_erase());
    directory.erase_deleted().unwrap();
    assert!(left(&storage).is_empty());
    assert_eq!(end(&directory, "a", 0), 1);
}

#[test]
fn a_directory_that_cannot_be_removed_keeps_no_other_one() {
    let storage = FaultyStorage::new();
    let directory = open(storage.clone());
    let names = ["a", "b", "c"].map(str::to_owned);
    for name in &names {
        create(&directory, name, 2);
    }
    let stays = fault(
        OperationKind::RemoveDirectory,
        "deleted~1",
        io::ErrorKind::Other,
    );
    storage.inject(stays.clone());
    directory.delete_topics(&names).unwrap();
    let error = directory.erase_deleted().unwrap_err().to_string();
    assert!(error.contains("deleted~1"), "{error}");
    assert_eq!(left(&storage), ["deleted~1"]);
    assert!(!directory.poisoned());
    // A name that is still there is not given again.
    storage.inject(stays);
    create(&directory, "a", 1);
    directory.delete_topics(&names[..1]).unwrap();
    directory.erase_deleted().unwrap_err();
    assert_eq!(left(&storage), ["deleted~1"]);
    directory.close(NOW_MS).unwrap();
    assert!(left(&storage).is_empty(), "a stop tries again");
}

#[test]
fn x1_a_failed_sync_of_the_names_after_a_creation_that_failed_stops_the_directory() {
    let storage = FaultyStorage::new();
    let directory = open(storage.clone());
    storage.inject(fault(OperationKind::Write, "b-1/", io::ErrorKind::Other));
    directory.create_topic("b", 2, BTreeMap::new()).unwrap_err();
    assert!(!directory.poisoned());
    storage.inject(fault(
        OperationKind::SyncDirectory,
        "",
        io::ErrorKind::Other,
    ));
    directory.erase_deleted().unwrap_err();
    assert!(directory.poisoned());
}

#[test]
fn x1_a_catalogue_whose_sync_finds_no_room_is_not_stored_again() {
    let storage = FaultyStorage::new();
    let directory = open(storage.clone());
    create(&directory, "a", 1);
    let full = fault(
        OperationKind::SyncFile,
        "catalogue",
        io::ErrorKind::StorageFull,
    );
    storage.inject(full);
    directory.delete_topic("a").unwrap_err();
    assert!(directory.poisoned());
}

#[test]
fn a_stop_leaves_most_of_what_the_next_opening_takes_anyway() {
    let storage = MemoryStorage::new();
    let directory = open(storage.clone());
    create(&directory, "a", 150);
    directory.delete_topics(&["a".to_owned()]).unwrap();
    directory.close(NOW_MS).unwrap();
    assert_eq!(left(&storage).len(), 50);
    let again = open(storage.clone());
    assert!(again.recovery().was_clean);
    assert!(left(&storage).is_empty());
}
