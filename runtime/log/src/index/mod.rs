//! Index files of a segment: fixed-size entries, appended in order, held in memory while in use.
//!
//! Invariants: the file is a prefix of the entries (entries wait in memory until `write`, since
//! whatever is lost is rebuilt from the log); entries only follow each other as `Entry` says.
//! Never: fails an append of the log; is trusted beyond what its log holds.

pub(crate) mod offset;
pub(crate) mod time;
pub(crate) mod transaction;

use crate::error::LogError;
use crate::storage::{OpenMode, Storage, StorageFile, read_all};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One entry of an index file.
pub(crate) trait Entry: Copy + Debug {
    /// Size on disk.
    const BYTES: usize;
    /// Appends the entry's bytes.
    fn encode(&self, bytes: &mut Vec<u8>);
    /// Reads an entry; `None` when its bytes cannot be one.
    fn decode(bytes: &[u8]) -> Option<Self>;
    /// Whether the entry may come after `previous`.
    fn follows(&self, previous: &Self) -> bool;
}

/// An index file and its entries.
#[derive(Debug)]
pub(crate) struct Index<E> {
    path: PathBuf,
    /// Open while there is something to sync: an index that is not written to holds no descriptor.
    file: Option<Arc<dyn StorageFile>>,
    /// Whether the file is there and holds the written entries and nothing else.
    settled: bool,
    /// `None` until it is first used.
    entries: Option<Vec<E>>,
    /// Entries that are in the file.
    written: usize,
    /// Whether the file has entries that were not synced.
    unsynced: bool,
}

impl<E: Entry> Index<E> {
    /// The index of a new segment: empty, whatever is in the file.
    pub(crate) fn create(path: PathBuf) -> Index<E> {
        Index {
            path,
            file: None,
            settled: false,
            entries: Some(Vec::new()),
            written: 0,
            unsynced: false,
        }
    }

    /// The index of a segment that was written before; read when it is first used.
    pub(crate) fn open(path: PathBuf) -> Index<E> {
        Index {
            path,
            file: None,
            settled: false,
            entries: None,
            written: 0,
            unsynced: false,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file has another name from now on.
    pub(crate) fn renamed(&mut self, path: PathBuf) {
        self.path = path;
    }

    /// Whether the file is there and has whole entries.
    pub(crate) fn is_plausible(&self, storage: &dyn Storage) -> Result<bool, LogError> {
        let size = storage.exists(&self.path).and_then(|exists| {
            if !exists {
                return Ok(None);
            }
            storage.open(&self.path, OpenMode::Read)?.len().map(Some)
        });
        let size = size.map_err(|error| LogError::io("read", &self.path, error))?;
        Ok(size.is_some_and(|size| size % E::BYTES as u64 == 0))
    }

    /// The entries, read from the file the first time. Damaged ones and those after them are left
    /// out: a look-up that finds no entry walks the log instead.
    pub(crate) fn entries(&mut self, storage: &dyn Storage) -> Result<&Vec<E>, LogError> {
        if self.entries.is_none() {
            let (entries, settled) = self.read(storage)?;
            self.written = entries.len();
            self.settled = settled;
            self.entries = Some(entries);
        }
        Ok(self.entries.get_or_insert_default())
    }

    /// The good entries, and whether they are all that is in the file.
    fn read(&self, storage: &dyn Storage) -> Result<(Vec<E>, bool), LogError> {
        let bytes = storage.exists(&self.path).and_then(|exists| {
            if !exists {
                return Ok(None);
            }
            read_all(storage.open(&self.path, OpenMode::Read)?.as_ref()).map(Some)
        });
        let bytes = bytes.map_err(|error| LogError::io("read", &self.path, error))?;
        let Some(bytes) = bytes else {
            return Ok((Vec::new(), false));
        };
        let mut entries: Vec<E> = Vec::with_capacity(bytes.len() / E::BYTES);
        for chunk in bytes.chunks_exact(E::BYTES) {
            match E::decode(chunk) {
                Some(entry) if entries.last().is_none_or(|last| entry.follows(last)) => {
                    entries.push(entry);
                }
                _ => {
                    tracing::warn!(path = ?self.path, "damaged index entries passed over");
                    break;
                }
            }
        }
        let settled = entries.len() * E::BYTES == bytes.len();
        Ok((entries, settled))
    }

    /// Adds an entry where it follows the last one; needs `entries` to have been read.
    pub(crate) fn push(&mut self, entry: E) {
        let entries = self.entries.get_or_insert_default();
        if entries.last().is_none_or(|last| entry.follows(last)) {
            entries.push(entry);
        }
    }

    pub(crate) fn last(&self) -> Option<&E> {
        self.entries.as_ref().and_then(|entries| entries.last())
    }

    /// Keeps the first entries for which `keep` holds.
    pub(crate) fn truncate(
        &mut self,
        storage: &dyn Storage,
        keep: impl Fn(&E) -> bool,
    ) -> Result<(), LogError> {
        self.entries(storage)?;
        let entries = self.entries.get_or_insert_default();
        let kept = entries.iter().take_while(|entry| keep(entry)).count();
        entries.truncate(kept);
        if self.written > kept {
            self.written = kept;
            let file = self.file(storage)?;
            file.set_len((kept * E::BYTES) as u64)
                .map_err(|error| LogError::io("truncate", &self.path, error))?;
            self.unsynced = true;
        }
        Ok(())
    }

    /// Forgets all entries, to rebuild them.
    pub(crate) fn clear(&mut self, storage: &dyn Storage) -> Result<(), LogError> {
        let file = self.file(storage)?;
        file.set_len(0)
            .map_err(|error| LogError::io("truncate", &self.path, error))?;
        self.entries = Some(Vec::new());
        self.written = 0;
        self.settled = true;
        self.unsynced = true;
        Ok(())
    }

    /// Writes the entries that are not in the file yet, and creates it.
    pub(crate) fn write(&mut self, storage: &dyn Storage) -> Result<(), LogError> {
        let Some(entries) = &self.entries else {
            return Ok(());
        };
        let waiting = entries.get(self.written..).unwrap_or_default();
        if waiting.is_empty() && self.settled {
            return Ok(());
        }
        let mut bytes = Vec::with_capacity(waiting.len() * E::BYTES);
        waiting.iter().for_each(|entry| entry.encode(&mut bytes));
        let (start, count) = ((self.written * E::BYTES) as u64, entries.len());
        self.settled = false;
        let file = self.file(storage)?;
        // What a failed write or an earlier life left behind the entries goes with it.
        let written = file
            .set_len(start)
            .and_then(|()| file.write_at(&[&bytes], start));
        written.map_err(|error| LogError::io("write", &self.path, error))?;
        self.written = count;
        self.settled = true;
        self.unsynced = true;
        Ok(())
    }

    pub(crate) fn is_unsynced(&self) -> bool {
        self.unsynced
    }

    /// The file, if it holds what was not synced; it counts as synced from now on.
    pub(crate) fn take_unsynced(&mut self) -> Option<(PathBuf, Arc<dyn StorageFile>)> {
        let file = self.file.take()?;
        std::mem::take(&mut self.unsynced).then(|| (self.path.clone(), file))
    }

    fn file(&mut self, storage: &dyn Storage) -> Result<Arc<dyn StorageFile>, LogError> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        let file = storage
            .open(&self.path, OpenMode::Write)
            .map_err(|error| LogError::io("open", &self.path, error))?;
        self.file = Some(file.clone());
        Ok(file)
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
