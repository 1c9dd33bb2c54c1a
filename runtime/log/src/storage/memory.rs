//! A disk in memory, shared by its clones, that can lose what was not synced.
//!
//! Invariants: `crash` leaves this storage as it is and returns another one, so writers that
//! outlive the crash cannot reach the image that is recovered.
//! Never: fails for want of space, persists anything.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::image::{Image, NodeId, Unsynced};
use super::{LockGuard, OpenMode, Storage, StorageFile};

/// A storage whose content lives and dies with the process. Clones share it.
#[derive(Clone)]
pub struct MemoryStorage {
    image: Arc<Mutex<Image>>,
    locks: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl MemoryStorage {
    /// An empty storage.
    pub fn new() -> MemoryStorage {
        MemoryStorage::of(Image::new())
    }

    pub(super) fn of(image: Image) -> MemoryStorage {
        MemoryStorage {
            image: Arc::new(Mutex::new(image)),
            locks: Arc::default(),
        }
    }

    pub(super) fn image(&self) -> MutexGuard<'_, Image> {
        // The image is changed in single steps that do not panic half way.
        self.image.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a power cut at this moment leaves when nothing unsynced survives.
    pub fn crash(&self) -> MemoryStorage {
        self.crash_with(Unsynced::Lost)
    }

    /// What a power cut at this moment leaves, given the fate of unsynced data and names.
    pub fn crash_with(&self, unsynced: Unsynced) -> MemoryStorage {
        MemoryStorage::of(self.image().after_power_cut(unsynced))
    }

    /// Another storage with the same live content, as after a killed process: nothing is lost.
    pub fn fork(&self) -> MemoryStorage {
        MemoryStorage::of(self.image().clone())
    }

    /// The bytes in all files.
    pub fn used_bytes(&self) -> u64 {
        self.image().used_bytes()
    }
}

impl Default for MemoryStorage {
    fn default() -> Self {
        MemoryStorage::new()
    }
}

impl fmt::Debug for MemoryStorage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("MemoryStorage")
    }
}

struct MemoryLock {
    locks: Arc<Mutex<BTreeSet<PathBuf>>>,
    path: PathBuf,
}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        self.locks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.path);
    }
}

impl Storage for MemoryStorage {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.image().create_dir_all(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.image().list(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.image().exists(path))
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        let (node, _) = self.image().open(path, mode)?;
        let path = path.to_owned();
        Ok(Arc::new(MemoryFile {
            storage: self.clone(),
            node,
            path,
            mode,
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.image().rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.image().remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.image().remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.image().sync_dir(path)
    }

    fn lock(&self, path: &Path) -> io::Result<LockGuard> {
        self.image().open(path, OpenMode::Write)?;
        let fresh = self
            .locks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(path.to_owned());
        if !fresh {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, "lock is held"));
        }
        Ok(Box::new(MemoryLock {
            locks: self.locks.clone(),
            path: path.to_owned(),
        }))
    }

    fn describe(&self) -> String {
        "memory".to_owned()
    }
}

struct MemoryFile {
    storage: MemoryStorage,
    node: NodeId,
    path: PathBuf,
    mode: OpenMode,
}

impl MemoryFile {
    fn check_writable(&self) -> io::Result<()> {
        if self.mode == OpenMode::Read {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "file is open to read",
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for MemoryFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "MemoryFile({})", self.path.display())
    }
}

impl StorageFile for MemoryFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(self.storage.image().file(self.node)?.read_at(buf, offset))
    }

    fn write_at(&self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        self.check_writable()?;
        self.storage
            .image()
            .file_mut(self.node)?
            .write_at(parts, offset);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.storage.image().file(self.node)?.len())
    }

    fn set_len(&self, size_bytes: u64) -> io::Result<()> {
        self.check_writable()?;
        self.storage
            .image()
            .file_mut(self.node)?
            .set_len(size_bytes);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.storage.image().file_mut(self.node)?.sync();
        Ok(())
    }
}
