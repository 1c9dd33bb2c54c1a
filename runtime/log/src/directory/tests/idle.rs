//! What a directory of many quiet partitions takes: descriptors, and syncs at a stop and a start.
//!
//! Invariants: one open file a partition, the log that is written; a start after a clean stop syncs
//! nothing for a partition to which nothing happened.
//! Never: measures time or memory.

use super::*;
use crate::storage::{LockGuard, StorageFile};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

const PARTITIONS: i32 = 50;

/// A storage in memory that counts the files that are open, and syncs.
#[derive(Clone, Debug, Default)]
struct Counted {
    inner: MemoryStorage,
    open: Arc<AtomicUsize>,
    syncs: Arc<AtomicUsize>,
}

impl Counted {
    fn open_files(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Syncs since the last call.
    fn take_syncs(&self) -> usize {
        self.syncs.swap(0, Ordering::Relaxed)
    }
}

struct CountedFile {
    inner: Arc<dyn StorageFile>,
    counts: Counted,
}

impl Drop for CountedFile {
    fn drop(&mut self) {
        self.counts.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for CountedFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(formatter)
    }
}

impl StorageFile for CountedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(buf, offset)
    }
    fn write_at(&self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        self.inner.write_at(parts, offset)
    }
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn set_len(&self, size_bytes: u64) -> io::Result<()> {
        self.inner.set_len(size_bytes)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.counts.syncs.fetch_add(1, Ordering::Relaxed);
        self.inner.sync_data()
    }
}

impl Storage for Counted {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir_all(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.inner.list(path)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        let inner = self.inner.open(path, mode)?;
        self.open.fetch_add(1, Ordering::Relaxed);
        let counts = self.clone();
        Ok(Arc::new(CountedFile { inner, counts }))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_file(path)
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_dir_all(path)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.inner.sync_dir(path)
    }
    fn lock(&self, path: &Path) -> io::Result<LockGuard> {
        self.inner.lock(path)
    }
}

#[test]
fn a_quiet_partition_has_one_file_open_and_costs_a_stop_and_a_start_no_sync() {
    let storage = Counted::default();
    let directory = open(storage.clone());
    let before = storage.open_files();
    create(&directory, "a", PARTITIONS);
    for partition in 0..PARTITIONS {
        append(&directory, "a", partition, 1);
    }
    directory.sync_journal().unwrap();
    directory.checkpoint().unwrap();
    let partitions = PARTITIONS as usize;
    assert_eq!(storage.open_files() - before, partitions);
    directory.close(NOW_MS).unwrap();
    drop(directory);

    for _ in 0..2 {
        storage.take_syncs();
        let directory = open(storage.clone());
        assert!(directory.recovery().was_clean);
        assert_eq!(storage.open_files() - before, partitions);
        directory.checkpoint().unwrap();
        assert_eq!(end(&directory, "a", 0), 1);
        directory.close(NOW_MS).unwrap();
        let syncs = storage.take_syncs();
        assert!(syncs < partitions, "{syncs} syncs");
    }
    // What was not synced again was durable.
    assert_eq!(end(&open(storage.inner.crash()), "a", 7), 1);
}
