//! The file by which cleaned segments take the place of others: all of them or none, whatever is
//! cut short.
//!
//! ```text
//! millstream-compaction 1
//! cleaned-below 1200           offsets below may be missing from the log
//! swap 0 500 900               `<offset>.log.cleaned` and its indexes replace these segments
//! drop 500 900                 (or: nothing replaces these)
//! crc32c 1a2b3c4d              over everything before
//!
//!   *.cleaned written, synced ──▶ manifest with `swap` ──▶ renames, removals, sync ──▶ without
//!        (a cut here: swept)          (a cut from here on: done again at the next opening)
//! ```
//!
//! Invariants: the manifest is replaced as a whole; while it names a swap, no file `*.cleaned` is
//! there but those of that swap; doing a swap again changes nothing.
//! Never: removes a log file before what replaces it is durable.

use std::path::{Path, PathBuf};

use crate::error::LogError;
use crate::segment::SEGMENT_FILES;
use crate::storage::{OpenMode, Storage, read_all, replace};

const FILE: &str = "compaction";
const VERSION: u32 = 1;
/// What a cleaned file's name ends with until it takes its place.
pub(crate) const CLEANED: &str = ".cleaned";

/// Segments that go, and what takes their place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Swap {
    /// Base offsets of the old segments, in order.
    pub(crate) old: Vec<i64>,
    /// Whether a cleaned segment replaces them; it has the first one's base offset.
    pub(crate) is_replaced: bool,
}

/// What compaction did to a partition, and may have to do again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Between batches that lie below, offsets may be missing.
    pub(crate) cleaned_below: i64,
    pub(crate) swap: Option<Swap>,
}

impl Manifest {
    /// Reads the file; a partition that was never compacted has none.
    pub(crate) fn load(storage: &dyn Storage, directory: &Path) -> Result<Manifest, LogError> {
        let path = directory.join(FILE);
        let content = storage.exists(&path).and_then(|exists| {
            if !exists {
                return Ok(None);
            }
            read_all(storage.open(&path, OpenMode::Read)?.as_ref()).map(Some)
        });
        match content.map_err(|error| LogError::io("read", &path, error))? {
            None => Ok(Manifest::default()),
            Some(content) => decode(&content).ok_or_else(|| {
                LogError::corrupt(&path, 0, "it is not what compaction writes there")
            }),
        }
    }

    /// Replaces the file durably.
    pub(crate) fn store(&self, storage: &dyn Storage, directory: &Path) -> Result<(), LogError> {
        replace(storage, directory.join(FILE), &self.encode())
    }

    fn encode(&self) -> Vec<u8> {
        let mut text = format!(
            "millstream-compaction {VERSION}\ncleaned-below {}\n",
            self.cleaned_below
        );
        if let Some(swap) = &self.swap {
            text.push_str(if swap.is_replaced { "swap" } else { "drop" });
            for base in &swap.old {
                text.push_str(&format!(" {base}"));
            }
            text.push('\n');
        }
        let crc = crc_fast::crc32_iscsi(text.as_bytes());
        text.push_str(&format!("crc32c {crc:08x}\n"));
        text.into_bytes()
    }
}

fn decode(content: &[u8]) -> Option<Manifest> {
    let text = std::str::from_utf8(content).ok()?;
    let at = text.rfind("crc32c ")?;
    let (body, crc) = text.split_at_checked(at)?;
    let crc = crc.strip_prefix("crc32c ")?.strip_suffix('\n')?;
    if u32::from_str_radix(crc, 16).ok()? != crc_fast::crc32_iscsi(body.as_bytes()) {
        return None;
    }
    let mut lines = body.lines();
    let version: u32 = lines
        .next()?
        .strip_prefix("millstream-compaction ")?
        .parse()
        .ok()?;
    let cleaned_below = lines.next()?.strip_prefix("cleaned-below ")?.parse().ok()?;
    let swap = match lines.next() {
        None => None,
        Some(line) => {
            let mut words = line.split(' ');
            let is_replaced = match words.next()? {
                "swap" => true,
                "drop" => false,
                _ => return None,
            };
            let old: Option<Vec<i64>> = words.map(|word| word.parse().ok()).collect();
            let old = old.filter(|old| !old.is_empty())?;
            Some(Swap { old, is_replaced })
        }
    };
    (version == VERSION).then_some(Manifest {
        cleaned_below,
        swap,
    })
}

/// One file of a segment.
pub(crate) fn file(directory: &Path, base_offset: i64, extension: &str) -> PathBuf {
    directory.join(format!("{base_offset:020}{extension}"))
}

/// Renames and removes what a swap says, as far as that is still to be done.
pub(crate) fn carry_out(
    storage: &dyn Storage,
    directory: &Path,
    swap: &Swap,
) -> Result<(), LogError> {
    let replacement = swap.old.first().filter(|_| swap.is_replaced);
    let is_there = |path: &Path| {
        storage
            .exists(path)
            .map_err(|error| LogError::io("look for", path, error))
    };
    for base in &swap.old {
        for extension in SEGMENT_FILES {
            let path = file(directory, *base, extension);
            if Some(base) == replacement {
                let cleaned = file(directory, *base, &format!("{extension}{CLEANED}"));
                if is_there(&cleaned)? {
                    storage
                        .rename(&cleaned, &path)
                        .map_err(|error| LogError::io("rename", &cleaned, error))?;
                }
            } else if is_there(&path)? {
                storage
                    .remove_file(&path)
                    .map_err(|error| LogError::io("remove", &path, error))?;
            }
        }
    }
    Ok(())
}

/// At opening: finishes a swap that was cut short and removes what belongs to none.
pub(crate) fn settle(storage: &dyn Storage, directory: &Path) -> Result<Manifest, LogError> {
    let mut manifest = Manifest::load(storage, directory)?;
    if let Some(swap) = manifest.swap.take() {
        tracing::info!(
            ?directory,
            ?swap,
            "finishing a compaction that was cut short"
        );
        carry_out(storage, directory, &swap)?;
        storage
            .sync_dir(directory)
            .map_err(|error| LogError::io("sync", directory, error))?;
        manifest.store(storage, directory)?;
    }
    sweep(storage, directory)?;
    Ok(manifest)
}

/// Removes cleaned files that never took their place.
pub(crate) fn sweep(storage: &dyn Storage, directory: &Path) -> Result<(), LogError> {
    let names = storage
        .list(directory)
        .map_err(|error| LogError::io("list", directory, error))?;
    for name in names.iter().filter(|name| name.ends_with(CLEANED)) {
        let path = directory.join(name);
        storage
            .remove_file(&path)
            .map_err(|error| LogError::io("remove", &path, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::MemoryStorage;

    fn manifest() -> Manifest {
        Manifest {
            cleaned_below: 1200,
            swap: Some(Swap {
                old: vec![0, 500, 900],
                is_replaced: true,
            }),
        }
    }

    #[test]
    fn a_manifest_reads_back_and_a_damaged_one_is_refused() {
        let storage = MemoryStorage::new();
        let directory = Path::new("p-0");
        storage.create_dir_all(directory).unwrap();
        let load = || Manifest::load(&storage, directory);
        assert_eq!(load().unwrap(), Manifest::default());
        for swap in [manifest().swap, None] {
            let manifest = Manifest { swap, ..manifest() };
            manifest.store(&storage, directory).unwrap();
            assert_eq!(load().unwrap(), manifest);
        }
        let bytes = manifest().encode();
        for size_bytes in 0..bytes.len() {
            assert_eq!(decode(&bytes[..size_bytes]), None, "cut to {size_bytes}");
        }
        for at in 0..bytes.len() - 10 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged), None, "byte {at}");
        }
    }

    #[test]
    fn a_swap_that_was_cut_short_anywhere_is_finished_and_done_twice_changes_nothing() {
        let directory = Path::new("p-0");
        let write = |storage: &MemoryStorage, path: &Path, text: &str| {
            let file = storage.open(path, OpenMode::Write).unwrap();
            file.write_at(&[text.as_bytes()], 0).unwrap();
        };
        for is_renamed in [[false; 4], [true, false, true, false], [true; 4]] {
            let storage = MemoryStorage::new();
            storage.create_dir_all(directory).unwrap();
            for base in [0, 500, 900, 1200] {
                for extension in SEGMENT_FILES {
                    write(&storage, &file(directory, base, extension), "old");
                }
            }
            for (extension, is_renamed) in SEGMENT_FILES.into_iter().zip(is_renamed) {
                let cleaned = format!("{extension}{CLEANED}");
                let name = if is_renamed { extension } else { &cleaned };
                write(&storage, &file(directory, 0, name), "new");
            }
            write(
                &storage,
                &file(directory, 1200, ".log.cleaned"),
                "left over",
            );
            manifest().store(&storage, directory).unwrap();
            for _ in 0..2 {
                let settled = settle(&storage, directory).unwrap();
                assert_eq!((settled.cleaned_below, settled.swap), (1200, None));
                let names = storage.list(directory).unwrap();
                assert_eq!(names.len(), 9, "{names:?}");
                for extension in SEGMENT_FILES {
                    let content = |base| {
                        let path = file(directory, base, extension);
                        read_all(&*storage.open(&path, OpenMode::Read).unwrap()).unwrap()
                    };
                    assert_eq!(
                        (content(0), content(1200)),
                        (b"new".to_vec(), b"old".to_vec())
                    );
                }
            }
        }
    }
}
