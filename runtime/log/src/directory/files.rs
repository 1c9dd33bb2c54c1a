//! The small files at the top of a data directory: lock, marker of a clean stop, reserve.
//!
//! Invariants: the marker is written last and removed first.
//! Never: fails an opening because there is no room for the reserve.

use std::io;
use std::path::Path;

use crate::error::LogError;
use crate::storage::{LockGuard, OpenMode, Storage};

pub(super) const CLEAN_SHUTDOWN: &str = "clean-shutdown";
pub(super) const RESERVE: &str = "reserve";
const LOCK: &str = "lock";

/// Takes the directory for this process.
pub(super) fn take_lock(storage: &dyn Storage) -> Result<LockGuard, LogError> {
    storage
        .lock(Path::new(LOCK))
        .map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => LogError::Locked {
                directory: storage.describe(),
            },
            _ => LogError::io("lock", LOCK, error),
        })
}

/// Removes a file durably; says whether it was there.
pub(super) fn remove_if_there(storage: &dyn Storage, name: &str) -> Result<bool, LogError> {
    let root = Path::new("");
    match storage.remove_file(Path::new(name)) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(LogError::io("remove", name, error)),
    }
    storage
        .sync_dir(root)
        .map_err(|error| LogError::io("sync", root, error))?;
    Ok(true)
}

/// Keeps room, unless it is kept already, for a clean stop on a disk that fills up. Without it
/// everything else still works.
pub(super) fn write_reserve(storage: &dyn Storage, size_bytes: usize) {
    let is_there = storage.exists(Path::new(RESERVE)).unwrap_or(false);
    if size_bytes == 0 || is_there {
        return;
    }
    let written = storage
        .open(Path::new(RESERVE), OpenMode::Write)
        .and_then(|file| file.write_at(&[&vec![0; size_bytes]], 0));
    if let Err(error) = written {
        tracing::warn!(%error, size_bytes, "no room for the reserve: a clean stop may fail");
    }
}

/// Says that the directory was closed; the last thing that is written.
pub(super) fn write_marker(storage: &dyn Storage) -> Result<(), LogError> {
    let io = |action| move |error| LogError::io(action, CLEAN_SHUTDOWN, error);
    let file = storage
        .open(Path::new(CLEAN_SHUTDOWN), OpenMode::Write)
        .map_err(io("create"))?;
    file.write_at(&[b"version=1\n"], 0).map_err(io("write"))?;
    file.sync_data().map_err(io("sync"))?;
    storage.sync_dir(Path::new("")).map_err(io("sync"))
}
