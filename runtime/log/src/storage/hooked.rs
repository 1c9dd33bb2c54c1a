//! A disk in memory that calls a test back in the middle of an operation.
//!
//! Invariants: a hook is called once, by the first operation of its kind on a file below its path.
//! Never: changes what an operation does.

use super::{LockGuard, MemoryStorage, OpenMode, Storage, StorageFile};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// When a hook is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Before a file is synced.
    BeforeSync,
    /// After bytes of a log file were read.
    AfterRead,
}

type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// The storage; clones share files and hook.
#[derive(Clone)]
pub(crate) struct HookedStorage {
    inner: MemoryStorage,
    moment: Moment,
    path: &'static str,
    hook: Hook,
}

impl HookedStorage {
    pub(crate) fn new(inner: MemoryStorage, moment: Moment, path: &'static str) -> HookedStorage {
        HookedStorage {
            inner,
            moment,
            path,
            hook: Hook::default(),
        }
    }

    /// Calls this once, when the moment comes next.
    pub(crate) fn call_once(&self, hook: impl FnOnce() + Send + 'static) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(hook));
    }
}

impl fmt::Debug for HookedStorage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("HookedStorage")
    }
}

struct HookedFile {
    inner: Arc<dyn StorageFile>,
    hook: Option<(Moment, Hook)>,
}

impl HookedFile {
    fn reach(&self, moment: Moment) {
        let Some((_, hook)) = self.hook.as_ref().filter(|(at, _)| *at == moment) else {
            return;
        };
        let hook = hook.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(hook) = hook {
            hook();
        }
    }
}

impl fmt::Debug for HookedFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(formatter)
    }
}

impl StorageFile for HookedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let read = self.inner.read_at(buf, offset);
        self.reach(Moment::AfterRead);
        read
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
        self.reach(Moment::BeforeSync);
        self.inner.sync_data()
    }
}

impl Storage for HookedStorage {
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
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        let hooked = path.starts_with(self.path) && (is_log || self.moment == Moment::BeforeSync);
        let hook = hooked.then(|| (self.moment, self.hook.clone()));
        Ok(Arc::new(HookedFile { inner, hook }))
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
        self.inner.sync_dir(path)
    }
    fn lock(&self, path: &Path) -> io::Result<LockGuard> {
        self.inner.lock(path)
    }
}
