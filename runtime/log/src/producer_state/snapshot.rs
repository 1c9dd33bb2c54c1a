//! Producer snapshots: the producer state at one offset, in a file, all five batches of each
//! producer included.
//!
//! ```text
//! magic "MSPS" | version u16 | producers u32 |
//!   id i64, epoch i16, coordinator epoch i32, last timestamp i64, open since i64 (-1 none),
//!   batches u8,
//!     base sequence i32, last sequence i32, base offset i64, last offset i64, timestamp i64, … |
//! CRC-32C u32 of all before
//! ```
//!
//! Invariants: what is loaded is what was written, or nothing (the CRC decides).
//! Never: trusts a count before the bytes for it are there.

use super::ProducerState;
use super::machine::{BatchMark, ProducerEntry, WINDOW_BATCHES};
use crate::error::LogError;
use crate::storage::{OpenMode, Storage, read_all};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 4] = b"MSPS";
const VERSION: u16 = 1;
const EXTENSION: &str = ".snapshot";
/// Snapshots kept: the newest and those to fall back to.
const KEPT: usize = 3;

/// The state as the bytes of a snapshot.
pub(crate) fn encode(state: &ProducerState) -> Vec<u8> {
    let entries = state.entries();
    let mut bytes = Vec::with_capacity(14 + entries.len() * 64);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_be_bytes());
    bytes.extend_from_slice(&(entries.len() as u32).to_be_bytes());
    for (producer_id, entry) in entries {
        bytes.extend_from_slice(&producer_id.to_be_bytes());
        bytes.extend_from_slice(&entry.epoch.to_be_bytes());
        bytes.extend_from_slice(&entry.coordinator_epoch.to_be_bytes());
        bytes.extend_from_slice(&entry.last_timestamp.to_be_bytes());
        bytes.extend_from_slice(&entry.open_since.unwrap_or(-1).to_be_bytes());
        bytes.push(entry.window.len() as u8);
        for mark in &entry.window {
            bytes.extend_from_slice(&mark.base_sequence.to_be_bytes());
            bytes.extend_from_slice(&mark.last_sequence.to_be_bytes());
            bytes.extend_from_slice(&mark.base_offset.to_be_bytes());
            bytes.extend_from_slice(&mark.last_offset.to_be_bytes());
            bytes.extend_from_slice(&mark.timestamp.to_be_bytes());
        }
    }
    let crc = crc_fast::crc32_iscsi(&bytes);
    bytes.extend_from_slice(&crc.to_be_bytes());
    bytes
}

/// The state that these bytes hold; `None` when they are damaged or of another version.
pub(crate) fn decode(bytes: &[u8]) -> Option<ProducerState> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    if crc_fast::crc32_iscsi(body) != u32::from_be_bytes(*crc) {
        return None;
    }
    let mut rest = body.strip_prefix(MAGIC)?;
    if u16::from_be_bytes(take(&mut rest)?) != VERSION {
        return None;
    }
    let mut state = ProducerState::default();
    for _ in 0..u32::from_be_bytes(take(&mut rest)?) {
        let producer_id = i64::from_be_bytes(take(&mut rest)?);
        let mut entry = ProducerEntry::new(i16::from_be_bytes(take(&mut rest)?));
        entry.coordinator_epoch = i32::from_be_bytes(take(&mut rest)?);
        entry.last_timestamp = i64::from_be_bytes(take(&mut rest)?);
        entry.open_since =
            Some(i64::from_be_bytes(take(&mut rest)?)).filter(|first_offset| *first_offset >= 0);
        let [batches] = take(&mut rest)?;
        if usize::from(batches) > WINDOW_BATCHES {
            return None;
        }
        for _ in 0..batches {
            entry.window.push_back(BatchMark {
                base_sequence: i32::from_be_bytes(take(&mut rest)?),
                last_sequence: i32::from_be_bytes(take(&mut rest)?),
                base_offset: i64::from_be_bytes(take(&mut rest)?),
                last_offset: i64::from_be_bytes(take(&mut rest)?),
                timestamp: i64::from_be_bytes(take(&mut rest)?),
            });
        }
        state.insert(producer_id, entry);
    }
    rest.is_empty().then_some(state)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (field, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*field)
}

fn path_of(directory: &Path, offset: i64) -> PathBuf {
    directory.join(format!("{offset:020}{EXTENSION}"))
}

fn offset_of(name: &str) -> Option<i64> {
    name.strip_suffix(EXTENSION)?
        .parse()
        .ok()
        .filter(|offset| *offset >= 0)
}

/// Offsets of the snapshots in a directory, newest first.
pub(crate) fn list(storage: &dyn Storage, directory: &Path) -> Result<Vec<i64>, LogError> {
    let names = storage
        .list(directory)
        .map_err(|error| LogError::io("list", directory, error))?;
    let mut offsets: Vec<i64> = names.iter().filter_map(|name| offset_of(name)).collect();
    offsets.sort_unstable_by(|a, b| b.cmp(a));
    Ok(offsets)
}

/// Writes the state at `offset`. The CRC tells a torn file, so nothing is synced here.
pub(crate) fn write(
    storage: &dyn Storage,
    directory: &Path,
    offset: i64,
    state: &ProducerState,
) -> Result<PathBuf, LogError> {
    let path = path_of(directory, offset);
    let bytes = encode(state);
    let written = storage.open(&path, OpenMode::Write).and_then(|file| {
        file.set_len(0)?;
        file.write_at(&[&bytes], 0)
    });
    written.map_err(|error| LogError::io("write", &path, error))?;
    Ok(path)
}

/// The newest good snapshot within these offsets, with its own. Damaged ones are passed over.
pub(crate) fn load(
    storage: &dyn Storage,
    directory: &Path,
    within: RangeInclusive<i64>,
) -> Result<Option<(i64, ProducerState)>, LogError> {
    for offset in list(storage, directory)?
        .into_iter()
        .filter(|offset| within.contains(offset))
    {
        let path = path_of(directory, offset);
        let bytes = storage
            .open(&path, OpenMode::Read)
            .and_then(|file| read_all(file.as_ref()))
            .map_err(|error| LogError::io("read", &path, error))?;
        match decode(&bytes) {
            Some(state) => return Ok(Some((offset, state))),
            None => tracing::warn!(?path, "damaged producer snapshot passed over"),
        }
    }
    Ok(None)
}

/// Removes snapshots above `at_most`, and the oldest beyond those that are kept.
pub(crate) fn prune(storage: &dyn Storage, directory: &Path, at_most: i64) -> Result<(), LogError> {
    let mut kept = 0;
    for offset in list(storage, directory)? {
        if offset <= at_most && kept < KEPT {
            kept += 1;
            continue;
        }
        let path = path_of(directory, offset);
        storage
            .remove_file(&path)
            .map_err(|error| LogError::io("remove", &path, error))?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
