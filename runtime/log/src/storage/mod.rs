//! Where bytes are kept: the seam between the log and a disk, a disk in memory, or a faulty one.
//!
//! Invariants: every path is relative to the storage's root; nothing is durable until `sync_data`
//! on the file and, for a created, renamed or removed name, `sync_dir` on its directory returned.
//! Never: caches file contents, retries a failed operation, knows what a record is.

mod disk;
mod faulty;
mod file_node;
#[cfg(test)]
pub(crate) mod hooked;
mod image;
mod memory;

pub use disk::DiskStorage;
pub use faulty::{CrashPoint, Fault, FaultyStorage, OperationKind};
pub use file_node::SECTOR_BYTES;
pub use image::Unsynced;
pub use memory::MemoryStorage;

use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::error::LogError;

/// How a file is opened; every mode allows reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist and is not written.
    Read,
    /// The file is created when it is missing; its content is kept.
    Write,
    /// The file must not exist yet.
    CreateNew,
}

/// Held for as long as the directory belongs to this process; dropping it gives the lock back.
pub type LockGuard = Box<dyn Send + Sync>;

/// A tree of files under one root.
pub trait Storage: Send + Sync + Debug {
    /// Creates `path` and every missing parent. The new names are not durable until their parent
    /// directories are synced.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;

    /// The names in a directory, files and directories alike, sorted.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;

    /// Whether a file or directory of that name is there.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Opens a file; its directory must exist.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>>;

    /// Moves a file or directory, replacing a file that has the new name. Atomic for whoever looks;
    /// durable after `sync_dir` on both parents.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file. Handles that are still open keep working.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes a directory and everything below it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in this directory durable (not those below it, nor any file's content).
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Takes the advisory lock of this file, which is created when missing; fails with
    /// `WouldBlock` when another process, or another holder in this one, has it.
    fn lock(&self, path: &Path) -> io::Result<LockGuard>;

    /// Names this storage in messages: the root directory of a disk.
    fn describe(&self) -> String {
        format!("{self:?}")
    }
}

/// One open file. Offsets are absolute, so handles carry no position and may be shared.
pub trait StorageFile: Send + Sync + Debug {
    /// Reads up to `buf.len()` bytes; fewer only at the end of the file, 0 beyond it.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all parts one behind the other from `offset` on; a gap before it reads as zeros.
    fn write_at(&self, parts: &[&[u8]], offset: u64) -> io::Result<()>;

    /// The file's size in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file holds nothing.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Cuts the file, or extends it with zeros.
    fn set_len(&self, size_bytes: u64) -> io::Result<()>;

    /// Makes content and length durable. After an error nothing is known about either.
    fn sync_data(&self) -> io::Result<()>;
}

/// Reads a whole file into memory.
pub fn read_all(file: &dyn StorageFile) -> io::Result<Vec<u8>> {
    let size_bytes = usize::try_from(file.len()?).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidData, "file exceeds the address space")
    })?;
    let mut content = vec![0; size_bytes];
    let mut filled = 0;
    while filled < content.len() {
        match file.read_at(&mut content[filled..], filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    content.truncate(filled);
    Ok(content)
}

/// Replaces a small file so that a crash leaves the old or the new content, never a mix: writes
/// `<path>.tmp`, syncs it, renames it over `path`, syncs the directory.
pub fn replace_file(storage: &dyn Storage, path: &Path, content: &[u8]) -> io::Result<()> {
    replace_in_steps(storage, path, content).map_err(|(_, error)| error)
}

/// As `replace_file`, with an error that says which step failed.
pub(crate) fn replace(
    storage: &dyn Storage,
    path: impl AsRef<Path>,
    content: &[u8],
) -> Result<(), LogError> {
    let path = path.as_ref();
    replace_in_steps(storage, path, content)
        .map_err(|(action, error)| LogError::io(action, path, error))
}

fn replace_in_steps(
    storage: &dyn Storage,
    path: &Path,
    content: &[u8],
) -> Result<(), (&'static str, io::Error)> {
    let step = |action| move |error| (action, error);
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = Path::new(&temporary);
    let file = storage
        .open(temporary, OpenMode::Write)
        .map_err(step("create"))?;
    file.set_len(0).map_err(step("write"))?;
    file.write_at(&[content], 0).map_err(step("write"))?;
    file.sync_data().map_err(step("sync"))?;
    drop(file);
    storage.rename(temporary, path).map_err(step("rename"))?;
    storage
        .sync_dir(path.parent().unwrap_or(Path::new("")))
        .map_err(step("sync"))
}

#[cfg(test)]
mod tests;
