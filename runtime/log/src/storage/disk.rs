//! The real file system below one root directory.
//!
//! Invariants: handles never use the file's own position except under `cursor`, where a gathered
//! write needs it.
//! Never: follows a path out of the root, hides an error of the operating system.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, IoSlice, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::{LockGuard, OpenMode, Storage, StorageFile};

/// Files below a directory of this machine.
#[derive(Clone)]
pub struct DiskStorage {
    root: PathBuf,
    /// A descriptor that is given back when there are no others, so that a name can still be
    /// synced: after a rename that must not fail for want of one.
    spare: Arc<Mutex<Option<File>>>,
}

impl DiskStorage {
    /// Everything happens below `root`, which is created by the first `create_dir_all`.
    pub fn new(root: impl Into<PathBuf>) -> DiskStorage {
        DiskStorage {
            root: root.into(),
            spare: Arc::default(),
        }
    }

    /// The directory that relative paths start from.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        let inside = |component| matches!(component, Component::Normal(_) | Component::CurDir);
        if !path.components().all(inside) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} leaves the data directory", path.display()),
            ));
        }
        Ok(self.root.join(path))
    }
}

impl fmt::Debug for DiskStorage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DiskStorage({})", self.root.display())
    }
}

impl Storage for DiskStorage {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let is_new = !fs::exists(&self.root)?;
        fs::create_dir_all(self.resolve(path)?)?;
        match self.root.parent().filter(|_| is_new) {
            // The root's own name is in a directory that no relative path reaches.
            Some(parent) if parent.as_os_str().is_empty() => File::open(".")?.sync_all(),
            Some(parent) => File::open(parent)?.sync_all(),
            None => Ok(()),
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.resolve(path)?)? {
            // Names that are not UTF-8 are none of ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        fs::exists(self.resolve(path)?)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn StorageFile>> {
        let mut options = OpenOptions::new();
        options.read(true);
        match mode {
            OpenMode::Read => {}
            OpenMode::Write => {
                options.write(true).create(true).truncate(false);
            }
            OpenMode::CreateNew => {
                options.write(true).create_new(true);
            }
        }
        let file = options.open(self.resolve(path)?)?;
        Ok(Arc::new(DiskFile {
            file,
            cursor: Mutex::new(()),
            path: path.to_owned(),
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(self.resolve(from)?, self.resolve(to)?)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(self.resolve(path)?)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(self.resolve(path)?)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let path = self.resolve(path)?;
        let spare = || self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = match File::open(&path) {
            Err(error) if is_out_of_descriptors(&error) => {
                spare().take();
                File::open(&path)?
            }
            opened => opened?,
        };
        directory.sync_all()?;
        // The one that is open anyway is the next spare.
        spare().get_or_insert(directory);
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<LockGuard> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.resolve(path)?)?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(file)),
            Err(TryLockError::WouldBlock) => Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "lock is held by another process",
            )),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn describe(&self) -> String {
        self.root.display().to_string()
    }
}

/// Whether this process, or the system, has as many files open as it may.
fn is_out_of_descriptors(error: &io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

struct DiskFile {
    file: File,
    cursor: Mutex<()>,
    path: PathBuf,
}

impl fmt::Debug for DiskFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DiskFile({})", self.path.display())
    }
}

impl StorageFile for DiskFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            match self
                .file
                .read_at(&mut buf[filled..], offset + filled as u64)
            {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        if let [part] = parts {
            return self.file.write_all_at(part, offset);
        }
        // The standard library gathers only at the file's own position.
        let _cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = &self.file;
        file.seek(SeekFrom::Start(offset))?;
        let mut slices: Vec<IoSlice<'_>> = parts
            .iter()
            .filter(|part| !part.is_empty())
            .map(|part| IoSlice::new(part))
            .collect();
        let mut left = slices.as_mut_slice();
        while !left.is_empty() {
            match file.write_vectored(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => IoSlice::advance_slices(&mut left, count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, size_bytes: u64) -> io::Result<()> {
        self.file.set_len(size_bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
