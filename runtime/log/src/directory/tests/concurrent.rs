//! Appends that happen while a checkpoint is under way.

use super::*;

type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// Calls back before a file whose path begins with `path` is synced.
#[derive(Clone)]
struct HookedStorage {
    inner: MemoryStorage,
    path: &'static str,
    hook: Hook,
}

impl fmt::Debug for HookedStorage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("HookedStorage")
    }
}

struct HookedFile {
    inner: Arc<dyn StorageFile>,
    hook: Option<Hook>,
}

impl fmt::Debug for HookedFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(formatter)
    }
}

impl StorageFile for HookedFile {
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
        let hook = self.hook.as_ref().and_then(|hook| lock(hook).take());
        if let Some(hook) = hook {
            hook();
        }
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
        let hook = path.starts_with(self.path).then(|| self.hook.clone());
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

#[test]
fn appends_during_a_checkpoint_go_on_and_a_power_cut_tears_nothing_between_partitions() {
    let inner = MemoryStorage::new();
    let hook = Arc::default();
    let storage = HookedStorage {
        inner: inner.clone(),
        path: "a-0",
        hook,
    };
    let directory = open(storage.clone());
    create(&directory, "a", 2);
    append(&directory, "a", 0, 1);
    directory.sync_journal().unwrap();
    // While a-0 is being synced: more records in a-0, then in a-1, none of them in the journal.
    let appender = directory.clone();
    *lock(&storage.hook) = Some(Box::new(move || {
        append(&appender, "a", 0, 2);
        append(&appender, "a", 1, 3);
    }));
    directory.checkpoint().unwrap();
    assert_eq!((end(&directory, "a", 0), end(&directory, "a", 1)), (2, 1));
    let cut = open(inner.crash());
    assert_eq!(
        (end(&cut, "a", 0), end(&cut, "a", 1)),
        (1, 0),
        "a-1 was synced after its record, a-0 before: keeping both ends would tear them apart"
    );
}
