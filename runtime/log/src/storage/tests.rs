//! One suite for every storage, and what a power cut leaves of the ones in memory.

use super::*;
use std::path::PathBuf;

fn every_storage(check: impl Fn(&dyn Storage)) {
    let directory = tempfile::tempdir().unwrap();
    check(&DiskStorage::new(directory.path()));
    check(&MemoryStorage::new());
    check(&FaultyStorage::new());
}

fn content(storage: &dyn Storage, path: &str) -> Vec<u8> {
    read_all(&*storage.open(Path::new(path), OpenMode::Read).unwrap()).unwrap()
}

fn write(storage: &dyn Storage, path: &str, bytes: &[u8]) -> Arc<dyn StorageFile> {
    let file = storage.open(Path::new(path), OpenMode::Write).unwrap();
    file.write_at(&[bytes], file.len().unwrap()).unwrap();
    file
}

#[test]
fn files_hold_what_is_written_at_any_offset_in_any_number_of_parts() {
    every_storage(|storage| {
        storage.create_dir_all(Path::new("a/b")).unwrap();
        let file = storage
            .open(Path::new("a/b/f"), OpenMode::CreateNew)
            .unwrap();
        assert!(file.is_empty().unwrap());
        file.write_at(&[b"one", b"", b"two"], 0).unwrap();
        file.write_at(&[b"XY"], 2).unwrap();
        file.write_at(&[b"end"], 10).unwrap();
        assert_eq!(content(storage, "a/b/f"), b"onXYwo\0\0\0\0end");
        let many = vec![&b"0123456789"[..]; 3000];
        file.write_at(&many, 1).unwrap();
        assert_eq!(file.len().unwrap(), 30_001);
        file.set_len(4).unwrap();
        file.set_len(6).unwrap();
        assert_eq!(content(storage, "a/b/f"), b"o012\0\0");
        let mut buf = [0; 8];
        assert_eq!(file.read_at(&mut buf, 3).unwrap(), 3);
        assert_eq!(file.read_at(&mut buf, 6).unwrap(), 0);
        assert_eq!(file.read_at(&mut buf, 600).unwrap(), 0);
        file.sync_data().unwrap();
        storage.sync_dir(Path::new("a/b")).unwrap();
    });
}

#[test]
fn names_are_listed_in_order_moved_replaced_and_removed() {
    every_storage(|storage| {
        storage.create_dir_all(Path::new("d")).unwrap();
        for name in ["d/z", "d/a", "d/m"] {
            write(storage, name, name.as_bytes());
        }
        assert_eq!(storage.list(Path::new("d")).unwrap(), ["a", "m", "z"]);
        storage.rename(Path::new("d/z"), Path::new("d/a")).unwrap();
        assert_eq!(content(storage, "d/a"), b"d/z");
        storage.remove_file(Path::new("d/m")).unwrap();
        assert_eq!(storage.list(Path::new("d")).unwrap(), ["a"]);
        storage.rename(Path::new("d"), Path::new("e")).unwrap();
        assert!(!storage.exists(Path::new("d")).unwrap());
        assert_eq!(content(storage, "e/a"), b"d/z");
        storage.remove_dir_all(Path::new("e")).unwrap();
        assert!(storage.list(Path::new("")).unwrap().is_empty());
    });
}

#[test]
fn what_cannot_be_done_says_why() {
    every_storage(|storage| {
        let kind = |result: io::Result<()>| result.unwrap_err().kind();
        let open = |path: &str, mode| storage.open(Path::new(path), mode).map(drop);
        assert_eq!(kind(open("f", OpenMode::Read)), io::ErrorKind::NotFound);
        assert_eq!(kind(open("d/f", OpenMode::Write)), io::ErrorKind::NotFound);
        write(storage, "f", b"");
        assert_eq!(
            kind(open("f", OpenMode::CreateNew)),
            io::ErrorKind::AlreadyExists
        );
        assert_eq!(
            kind(open("../f", OpenMode::Read)),
            io::ErrorKind::InvalidInput
        );
        let missing = Path::new("missing");
        assert_eq!(
            kind(storage.list(missing).map(drop)),
            io::ErrorKind::NotFound
        );
        assert_eq!(kind(storage.remove_file(missing)), io::ErrorKind::NotFound);
        assert_eq!(
            kind(storage.rename(missing, Path::new("x"))),
            io::ErrorKind::NotFound
        );
        let file = storage.open(Path::new("f"), OpenMode::Read).unwrap();
        assert!(
            file.write_at(&[b"x"], 0).is_err(),
            "a file open to read is not written"
        );
    });
}

#[test]
fn a_lock_has_one_holder_at_a_time() {
    every_storage(|storage| {
        let path = Path::new("lock");
        let guard = storage.lock(path).unwrap();
        let refused = storage.lock(path).map(drop).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(guard);
        assert!(storage.lock(path).is_ok());
    });
}

#[test]
fn replacing_a_file_leaves_the_old_or_the_new_content_at_every_crash_point() {
    let storage = FaultyStorage::new();
    replace_file(&storage, Path::new("f"), b"old").unwrap();
    let first = storage.operation_count();
    replace_file(&storage, Path::new("f"), b"the new one").unwrap();
    let mut seen = std::collections::BTreeSet::new();
    storage.for_each_crash_point(first, |point| {
        for seed in 0..8 {
            for unsynced in [
                Unsynced::Lost,
                Unsynced::Kept,
                Unsynced::Torn {
                    thousandths: 500,
                    sector: seed % 2 == 0,
                },
                Unsynced::Scattered { seed },
                Unsynced::Mixed { seed },
            ] {
                seen.insert(content(&point.image(unsynced), "f"));
            }
        }
    });
    assert_eq!(seen, [b"old".to_vec(), b"the new one".to_vec()].into());
}

#[test]
fn a_power_cut_takes_unsynced_bytes_and_unsynced_names() {
    let storage = MemoryStorage::new();
    let file = write(&storage, "f", b"durable");
    file.sync_data().unwrap();
    assert!(
        !storage.crash().exists(Path::new("f")).unwrap(),
        "the name was not synced"
    );
    storage.sync_dir(Path::new("")).unwrap();
    write(&storage, "f", b" and more");
    assert_eq!(content(&storage.crash(), "f"), b"durable");
    assert_eq!(
        content(&storage.crash_with(Unsynced::Kept), "f"),
        b"durable and more"
    );
    let torn = storage.crash_with(Unsynced::Torn {
        thousandths: 500,
        sector: false,
    });
    assert_eq!(content(&torn, "f"), b"durable and");
    let sector = storage.crash_with(Unsynced::Torn {
        thousandths: 500,
        sector: true,
    });
    assert_eq!(content(&sector, "f"), b"durable");
    storage.rename(Path::new("f"), Path::new("g")).unwrap();
    assert_eq!(storage.crash().list(Path::new("")).unwrap(), ["f"]);
    storage.sync_dir(Path::new("")).unwrap();
    assert_eq!(storage.crash().list(Path::new("")).unwrap(), ["g"]);
    storage.remove_file(Path::new("g")).unwrap();
    assert_eq!(content(&storage.crash(), "g"), b"durable");
    assert!(
        storage
            .crash_with(Unsynced::Kept)
            .list(Path::new(""))
            .unwrap()
            .is_empty()
    );
}

#[test]
fn overwrites_and_cuts_are_undone_by_a_power_cut() {
    let storage = MemoryStorage::new();
    let file = write(&storage, "f", b"0123456789");
    file.sync_data().unwrap();
    storage.sync_dir(Path::new("")).unwrap();
    file.write_at(&[b"ab"], 8).unwrap();
    file.write_at(&[b"cdef"], 9).unwrap();
    file.set_len(4).unwrap();
    file.write_at(&[b"zz"], 3).unwrap();
    file.set_len(40).unwrap();
    assert_eq!(content(&storage.crash(), "f"), b"0123456789");
    file.sync_data().unwrap();
    assert_eq!(&content(&storage.crash(), "f")[..6], b"012zz\0");
}

#[test]
fn writers_that_outlive_a_crash_do_not_reach_the_image() {
    let storage = MemoryStorage::new();
    let file = write(&storage, "f", b"one");
    let image = storage.crash_with(Unsynced::Kept);
    file.write_at(&[b"two"], 0).unwrap();
    assert_eq!(content(&image, "f"), b"one");
    assert!(image.lock(Path::new("lock")).is_ok());
}

#[test]
fn a_fault_hits_the_operation_it_is_meant_for() {
    let storage = FaultyStorage::new();
    let file = storage.open(Path::new("a.log"), OpenMode::Write).unwrap();
    let other = storage.open(Path::new("b.log"), OpenMode::Write).unwrap();
    storage.sync_dir(Path::new("")).unwrap();
    storage.inject(Fault {
        kind: OperationKind::SyncFile,
        path_contains: "a.log".to_owned(),
        after: 1,
        error: io::ErrorKind::Other,
    });
    file.write_at(&[b"1"], 0).unwrap();
    file.sync_data().unwrap();
    other.sync_data().unwrap();
    file.write_at(&[b"2"], 1).unwrap();
    assert!(file.sync_data().is_err());
    file.sync_data().unwrap();
    let left = storage.crash_with(Unsynced::Lost);
    assert_eq!(
        content(&left, "a.log"),
        b"1",
        "a sync after a failed one proves nothing"
    );
    storage.set_capacity(Some(4));
    let refused = other.write_at(&[b"abcdef"], 0).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    assert_eq!(other.len().unwrap(), 2);
    storage.halt();
    assert!(other.write_at(&[b"z"], 0).is_err());
    assert_eq!(storage.list(&PathBuf::new()).unwrap(), ["a.log", "b.log"]);
}
