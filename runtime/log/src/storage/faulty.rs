//! A memory disk that records what is done to it, fails on demand, and can go back to every
//! moment at which the power could have gone.
//!
//! Invariants: replaying the recorded operations over the base image yields the live image, node
//! by node; an operation that fails is recorded only as far as it took effect.
//! Never: fails unless told to; decides anything at random.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::image::{Image, NodeId, Unsynced};
use super::{LockGuard, MemoryStorage, OpenMode, Storage, StorageFile};

/// What a recorded operation does to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperationKind {
    /// A directory and its parents are created.
    CreateDirectory,
    /// A file is created.
    CreateFile,
    /// Bytes are written.
    Write,
    /// A file's length is set.
    SetLength,
    /// A file is synced.
    SyncFile,
    /// A directory is synced.
    SyncDirectory,
    /// A name is changed.
    Rename,
    /// A file is removed.
    RemoveFile,
    /// A directory is removed.
    RemoveDirectory,
}

#[derive(Clone, Debug)]
enum Operation {
    CreateDirectory(PathBuf),
    CreateFile(PathBuf),
    Write {
        node: NodeId,
        offset: u64,
        bytes: Vec<u8>,
    },
    SetLength {
        node: NodeId,
        size_bytes: u64,
    },
    SyncFile {
        node: NodeId,
    },
    SyncDirectory(PathBuf),
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    RemoveFile(PathBuf),
    RemoveDirectory(PathBuf),
}

impl Operation {
    fn kind(&self) -> OperationKind {
        match self {
            Operation::CreateDirectory(_) => OperationKind::CreateDirectory,
            Operation::CreateFile(_) => OperationKind::CreateFile,
            Operation::Write { .. } => OperationKind::Write,
            Operation::SetLength { .. } => OperationKind::SetLength,
            Operation::SyncFile { .. } => OperationKind::SyncFile,
            Operation::SyncDirectory(_) => OperationKind::SyncDirectory,
            Operation::Rename { .. } => OperationKind::Rename,
            Operation::RemoveFile(_) => OperationKind::RemoveFile,
            Operation::RemoveDirectory(_) => OperationKind::RemoveDirectory,
        }
    }

    fn apply(&self, image: &mut Image) -> io::Result<()> {
        match self {
            Operation::CreateDirectory(path) => image.create_dir_all(path),
            Operation::CreateFile(path) => image.open(path, OpenMode::Write).map(drop),
            Operation::Write {
                node,
                offset,
                bytes,
            } => {
                image.file_mut(*node)?.write_at(&[bytes], *offset);
                Ok(())
            }
            Operation::SetLength {
                node, size_bytes, ..
            } => {
                image.file_mut(*node)?.set_len(*size_bytes);
                Ok(())
            }
            Operation::SyncFile { node, .. } => {
                image.file_mut(*node)?.sync();
                Ok(())
            }
            Operation::SyncDirectory(path) => image.sync_dir(path),
            Operation::Rename { from, to } => image.rename(from, to),
            Operation::RemoveFile(path) => image.remove_file(path),
            Operation::RemoveDirectory(path) => image.remove_dir_all(path),
        }
    }
}

/// An error to return instead of doing what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Only operations of this kind fail.
    pub kind: OperationKind,
    /// Only operations on paths that contain this text fail; empty means all.
    pub path_contains: String,
    /// How many such operations still succeed before the one that fails.
    pub after: usize,
    /// What the caller gets. A failing write leaves the first half of its bytes behind; a file
    /// whose sync failed once is never durable again, whatever later syncs say.
    pub error: io::ErrorKind,
}

#[derive(Debug, Default)]
struct Plan {
    trace: Vec<(PathBuf, Operation)>,
    faults: Vec<Fault>,
    capacity_bytes: Option<u64>,
    sync_is_broken: BTreeSet<NodeId>,
    halted: bool,
}

/// A `MemoryStorage` under observation. Clones share it.
#[derive(Clone)]
pub struct FaultyStorage {
    inner: MemoryStorage,
    base: Arc<Image>,
    plan: Arc<Mutex<Plan>>,
}

/// One moment at which the power could have gone: after the first `operations` operations.
#[derive(Debug)]
pub struct CrashPoint<'trace> {
    /// How many operations had happened.
    pub operations: usize,
    /// What the last of them did; `None` before the first.
    pub last: Option<OperationKind>,
    /// The file or directory that it did it to.
    pub last_path: Option<&'trace Path>,
    image: &'trace Image,
}

impl CrashPoint<'_> {
    /// What is found on the disk afterwards.
    pub fn image(&self, unsynced: Unsynced) -> MemoryStorage {
        MemoryStorage::of(self.image.after_power_cut(unsynced))
    }
}

impl FaultyStorage {
    /// An empty disk.
    pub fn new() -> FaultyStorage {
        FaultyStorage::over(&MemoryStorage::new())
    }

    /// A disk that starts with a copy of what `storage` holds now.
    pub fn over(storage: &MemoryStorage) -> FaultyStorage {
        let inner = storage.fork();
        let base = Arc::new(inner.image().clone());
        FaultyStorage {
            inner,
            base,
            plan: Arc::default(),
        }
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many changing operations took effect so far.
    pub fn operation_count(&self) -> usize {
        self.plan().trace.len()
    }

    /// How many operations of this kind took effect so far.
    pub fn count_of(&self, kind: OperationKind) -> usize {
        self.plan()
            .trace
            .iter()
            .filter(|(_, operation)| operation.kind() == kind)
            .count()
    }

    /// Adds an error to come.
    pub fn inject(&self, fault: Fault) {
        self.plan().faults.push(fault);
    }

    /// Limits the bytes in all files; beyond it writes fail with `StorageFull`.
    pub fn set_capacity(&self, capacity_bytes: Option<u64>) {
        self.plan().capacity_bytes = capacity_bytes;
    }

    /// From now on nothing changes this disk: every changing operation fails, as if the process
    /// had been killed just before.
    pub fn halt(&self) {
        self.plan().halted = true;
    }

    /// The live content as a storage of its own.
    pub fn fork(&self) -> MemoryStorage {
        self.inner.fork()
    }

    /// What a power cut at this moment leaves.
    pub fn crash_with(&self, unsynced: Unsynced) -> MemoryStorage {
        self.inner.crash_with(unsynced)
    }

    /// Visits every moment at which the power could have gone, before the first operation and
    /// after each one, from operation `first` on.
    pub fn for_each_crash_point(&self, first: usize, mut visit: impl FnMut(&CrashPoint<'_>)) {
        let trace = self.plan().trace.clone();
        let mut image = Image::clone(&self.base);
        let mut done = None;
        for index in 0..=trace.len() {
            if index >= first {
                visit(&CrashPoint {
                    operations: index,
                    last: done.map(|(_, operation): &(PathBuf, Operation)| operation.kind()),
                    last_path: done.map(|(path, _)| path.as_path()),
                    image: &image,
                });
            }
            done = trace.get(index);
            if let Some((path, operation)) = done {
                let applied = operation.apply(&mut image);
                debug_assert!(applied.is_ok(), "{path:?} cannot be replayed: {applied:?}");
            }
        }
    }

    /// Asks the plan for a fault, does the operation, and records it.
    fn record(&self, path: &Path, operation: Operation) -> io::Result<()> {
        let mut plan = self.plan();
        plan.check(operation.kind(), path)?;
        operation.apply(&mut self.inner.image())?;
        plan.trace.push((path.to_owned(), operation));
        Ok(())
    }
}

impl Plan {
    fn check(&mut self, kind: OperationKind, path: &Path) -> io::Result<()> {
        if self.halted {
            return Err(io::Error::other("the process was killed"));
        }
        let path = path.to_string_lossy();
        let mut failure = None;
        for fault in &mut self.faults {
            if fault.kind != kind || !path.contains(fault.path_contains.as_str()) {
                continue;
            }
            if fault.after == 0 && failure.is_none() {
                failure = Some(fault.error);
                fault.after = usize::MAX;
            } else if fault.after != usize::MAX {
                fault.after -= 1;
            }
        }
        self.faults.retain(|fault| fault.after != usize::MAX);
        match failure {
            Some(error) => Err(io::Error::new(error, "injected fault")),
            None => Ok(()),
        }
    }
}

impl Default for FaultyStorage {
    fn default() -> Self {
        FaultyStorage::new()
    }
}

impl fmt::Debug for FaultyStorage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("FaultyStorage")
    }
}

impl Storage for FaultyStorage {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        if self.inner.exists(path)? {
            return Ok(());
        }
        self.record(path, Operation::CreateDirectory(path.to_owned()))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.inner.list(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        if mode != OpenMode::Read && !self.inner.exists(path)? {
            self.record(path, Operation::CreateFile(path.to_owned()))?;
        } else if mode == OpenMode::CreateNew {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "file exists"));
        }
        let mode = if mode == OpenMode::CreateNew {
            OpenMode::Write
        } else {
            mode
        };
        let (node, _) = self.inner.image().open(path, mode)?;
        Ok(Arc::new(FaultyFile {
            storage: self.clone(),
            node,
            path: path.to_owned(),
            mode,
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.record(
            from,
            Operation::Rename {
                from: from.to_owned(),
                to: to.to_owned(),
            },
        )
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.record(path, Operation::RemoveFile(path.to_owned()))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        // As a file system does it: name by name, in an order that nobody promised, so that a crash
        // may come in between.
        for name in self.inner.list(path)?.into_iter().rev() {
            let child = path.join(name);
            if self.inner.list(&child).is_ok() {
                self.remove_dir_all(&child)?;
            } else {
                self.remove_file(&child)?;
            }
        }
        self.record(path, Operation::RemoveDirectory(path.to_owned()))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.record(path, Operation::SyncDirectory(path.to_owned()))
    }

    fn lock(&self, path: &Path) -> io::Result<LockGuard> {
        if !self.inner.exists(path)? {
            self.record(path, Operation::CreateFile(path.to_owned()))?;
        }
        self.inner.lock(path)
    }

    fn describe(&self) -> String {
        "faulty memory".to_owned()
    }
}

struct FaultyFile {
    storage: FaultyStorage,
    node: NodeId,
    path: PathBuf,
    mode: OpenMode,
}

impl FaultyFile {
    fn check_writable(&self) -> io::Result<()> {
        if self.mode == OpenMode::Read {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "file is open to read",
            ));
        }
        Ok(())
    }

    /// How many of these bytes still fit, or all of them.
    fn room(&self, plan: &Plan, offset: u64, size_bytes: usize) -> io::Result<usize> {
        let Some(capacity_bytes) = plan.capacity_bytes else {
            return Ok(size_bytes);
        };
        let image = self.storage.inner.image();
        let held = image.file(self.node)?.len();
        let free = capacity_bytes.saturating_sub(image.used_bytes());
        let end = held.max(offset).saturating_add(free);
        Ok(usize::try_from(end.saturating_sub(offset))
            .unwrap_or(usize::MAX)
            .min(size_bytes))
    }
}

impl fmt::Debug for FaultyFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "FaultyFile({})", self.path.display())
    }
}

impl StorageFile for FaultyFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(self
            .storage
            .inner
            .image()
            .file(self.node)?
            .read_at(buf, offset))
    }

    fn write_at(&self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        self.check_writable()?;
        let mut bytes = parts.concat();
        let mut plan = self.storage.plan();
        let mut outcome = plan.check(OperationKind::Write, &self.path);
        if plan.halted {
            return outcome;
        }
        if outcome.is_err() {
            bytes.truncate(bytes.len() / 2);
        }
        let room = self.room(&plan, offset, bytes.len())?;
        if room < bytes.len() {
            bytes.truncate(room);
            outcome = outcome.and(Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "disk is full",
            )));
        }
        let operation = Operation::Write {
            node: self.node,
            offset,
            bytes,
        };
        operation.apply(&mut self.storage.inner.image())?;
        plan.trace.push((self.path.clone(), operation));
        outcome
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.storage.inner.image().file(self.node)?.len())
    }

    fn set_len(&self, size_bytes: u64) -> io::Result<()> {
        self.check_writable()?;
        self.storage.record(
            &self.path,
            Operation::SetLength {
                node: self.node,
                size_bytes,
            },
        )
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut plan = self.storage.plan();
        let outcome = plan.check(OperationKind::SyncFile, &self.path);
        if outcome.is_err() {
            plan.sync_is_broken.insert(self.node);
            return outcome;
        }
        if !plan.sync_is_broken.contains(&self.node) {
            let operation = Operation::SyncFile { node: self.node };
            operation.apply(&mut self.storage.inner.image())?;
            plan.trace.push((self.path.clone(), operation));
        }
        Ok(())
    }
}
