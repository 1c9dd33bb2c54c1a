//! A storage in memory that counts the files that are open, syncs and looks, and may run out of
//! descriptors.
//!
//! Invariants: as on a disk, a directory can be synced when no descriptor is left.
//! Never: changes what an operation does.

use super::*;
use crate::storage::{LockGuard, StorageFile};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The storage; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Counted {
    pub(super) inner: MemoryStorage,
    open: Arc<AtomicUsize>,
    syncs: Arc<AtomicUsize>,
    looks: Arc<AtomicUsize>,
    /// Most files that may be open; 0 for no limit.
    open_max: Arc<AtomicUsize>,
}

impl Counted {
    pub(super) fn open_files(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// What a killed process leaves, as a storage whose counts begin again.
    pub(super) fn fork(&self) -> Counted {
        Counted {
            inner: self.inner.fork(),
            ..Counted::default()
        }
    }

    /// Syncs since the last call.
    pub(super) fn take_syncs(&self) -> usize {
        self.syncs.swap(0, Ordering::Relaxed)
    }

    /// How often somebody has asked whether something is there, since the last call.
    pub(super) fn take_looks(&self) -> usize {
        self.looks.swap(0, Ordering::Relaxed)
    }

    /// From now on at most so many more files are opened.
    pub(super) fn leave(&self, descriptors: usize) {
        let open_max = self.open_files() + descriptors;
        self.open_max.store(open_max, Ordering::Relaxed);
    }

    /// Descriptors are there again.
    pub(super) fn leave_enough(&self) {
        self.open_max.store(0, Ordering::Relaxed);
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
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.inner.exists(path)
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        const EMFILE: i32 = 24;
        let open_max = self.open_max.load(Ordering::Relaxed);
        if open_max > 0 && self.open_files() >= open_max {
            return Err(io::Error::from_raw_os_error(EMFILE));
        }
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
