//! Where a partition's files lie, and how its directory comes and goes.
//!
//! ```text
//! absent --create--> <topic>-<partition>/ --retire--> deleted~<n>/ --erase--> absent
//! ```
//!
//! Invariants: a directory's name is durable when the catalogue names its topic, what is in it when
//! its log is flushed first; until then a power cut may empty it, and nothing is lost by that. It
//! leaves its name, durably, before its content goes, so no half-removed directory has a topic's
//! name, and before a topic of the same name is made.
//! Never: decides which topics there are (the catalogue does).

use std::io;
use std::path::{Path, PathBuf};

use millstream_protocol::Uuid;

use crate::catalogue::{Catalogue, check_topic_name};
use crate::error::LogError;
use crate::storage::{OpenMode, Storage, read_all};

/// The file with the topic's id, in Kafka's format.
pub(crate) const METADATA: &str = "partition.metadata";
/// '~' is in no topic's name.
const DELETED: &str = "deleted~";

/// The directory of a partition, below the data directory.
pub(crate) fn partition_directory(topic: &str, partition: i32) -> PathBuf {
    PathBuf::from(format!("{topic}-{partition}"))
}

/// Creates a partition's directory. Nothing is synced: the name is durable once the data directory
/// is, the content once the partition's log is flushed.
pub(crate) fn create(storage: &dyn Storage, path: &Path, id: Uuid) -> Result<(), LogError> {
    storage
        .create_dir_all(path)
        .map_err(|error| LogError::io("create", path, error))?;
    write_metadata(storage, path, id, OpenMode::CreateNew)
}

fn metadata_of(id: Uuid) -> String {
    format!("version: 0\ntopic_id: {id}\n")
}

fn write_metadata(
    storage: &dyn Storage,
    directory: &Path,
    id: Uuid,
    mode: OpenMode,
) -> Result<(), LogError> {
    let path = directory.join(METADATA);
    let io = |action| {
        let path = &path;
        move |error| LogError::io(action, path, error)
    };
    let file = storage.open(&path, mode).map_err(io("create"))?;
    if mode != OpenMode::CreateNew {
        file.set_len(0).map_err(io("write"))?;
    }
    file.write_at(&[metadata_of(id).as_bytes()], 0)
        .map_err(io("write"))
}

/// Checks that a directory belongs to this incarnation of its topic. Where no record in it was made
/// durable yet, a power cut may have taken the file that says so, or a part of it: it is written
/// again.
pub(crate) fn check(
    storage: &dyn Storage,
    directory: &Path,
    id: Uuid,
    has_durable_records: bool,
) -> Result<(), LogError> {
    let path = directory.join(METADATA);
    let content = storage
        .open(&path, OpenMode::Read)
        .and_then(|file| read_all(&*file));
    let content = match content {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !has_durable_records => Vec::new(),
        content => content.map_err(|error| LogError::io("read", &path, error))?,
    };
    let whole = metadata_of(id);
    if content == whole.as_bytes() {
        return Ok(());
    }
    if !has_durable_records && is_remnant(&content, whole.as_bytes()) {
        return write_metadata(storage, directory, id, OpenMode::Write);
    }
    let text = String::from_utf8_lossy(&content);
    let found = text
        .lines()
        .find_map(|line| line.strip_prefix("topic_id: "));
    if found.and_then(|text| text.trim().parse().ok()) == Some(id) {
        return Ok(());
    }
    let reason = format!("it names topic id {found:?}, and the catalogue says {id}");
    Err(LogError::corrupt(path, 0, reason))
}

/// Whether this can be what a power cut has left of a file that was to hold `whole`.
fn is_remnant(content: &[u8], whole: &[u8]) -> bool {
    let mut pairs = content.iter().zip(whole);
    content.len() <= whole.len() && pairs.all(|(byte, written)| *byte == 0 || byte == written)
}

/// Takes directories' names away, and adds those that they have now to `retired`. Not durable
/// before the data directory is synced. `next` is above the number of each that was retired before
/// and may be there still: so many directories need no more looks than few.
pub(crate) fn retire(
    storage: &dyn Storage,
    paths: &[PathBuf],
    next: &mut u64,
    retired: &mut Vec<PathBuf>,
) -> Result<(), LogError> {
    for path in paths {
        let target = PathBuf::from(format!("{DELETED}{next}"));
        *next = next.saturating_add(1);
        storage
            .rename(path, &target)
            .map_err(|error| LogError::io("remove", path, error))?;
        retired.push(target);
    }
    Ok(())
}

/// Makes the names in the data directory durable.
pub(crate) fn sync_names(storage: &dyn Storage) -> Result<(), LogError> {
    let root = Path::new("");
    storage
        .sync_dir(root)
        .map_err(|error| LogError::io("sync", root, error))
}

/// Removes a retired directory, whose old name is durably gone, with what is in it.
pub(crate) fn erase(storage: &dyn Storage, retired: &Path) -> Result<(), LogError> {
    match storage.remove_dir_all(retired) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(LogError::io("remove", retired, error))
        }
        _ => Ok(()),
    }
}

/// The directories of these names that a deletion could not remove; refuses when one of them is not
/// ours.
pub(crate) fn stale(
    storage: &dyn Storage,
    topic: &str,
    paths: &[PathBuf],
) -> Result<Vec<PathBuf>, LogError> {
    let mut stale = Vec::new();
    for path in paths {
        if !storage
            .exists(path)
            .map_err(|error| LogError::io("look for", path, error))?
        {
            continue;
        }
        if !is_ours(storage, path) {
            return Err(LogError::InvalidTopic {
                name: topic.to_owned(),
                reason: format!("the data directory holds a foreign {}", path.display()),
            });
        }
        stale.push(path.clone());
    }
    Ok(stale)
}

/// Removes what creations and deletions that a crash cut short have left behind; returns how many
/// directories that were.
pub(crate) fn sweep(storage: &dyn Storage, catalogue: &Catalogue) -> Result<usize, LogError> {
    let root = Path::new("");
    let mut orphans = Vec::new();
    let mut retired = Vec::new();
    let mut next = 0;
    for name in storage
        .list(root)
        .map_err(|error| LogError::io("list", root, error))?
    {
        let path = PathBuf::from(&name);
        if let Some(number) = name.strip_prefix(DELETED) {
            let number = number.parse::<u32>().unwrap_or(0);
            next = next.max(u64::from(number) + 1);
            retired.push(path);
        } else if is_orphan(storage, catalogue, &name) {
            tracing::warn!(directory = name, "removing a partition that no topic has");
            orphans.push(path);
        }
    }
    retire(storage, &orphans, &mut next, &mut retired)?;
    if !retired.is_empty() {
        // Also for what was retired before: the last process may not have come to it.
        sync_names(storage)?;
        for path in &retired {
            erase(storage, path)?;
        }
    }
    Ok(retired.len())
}

/// Whether this is a partition's directory that the catalogue does not know. Directories that do
/// not look like ours are left alone, whatever their name.
fn is_orphan(storage: &dyn Storage, catalogue: &Catalogue, name: &str) -> bool {
    let Some((topic, partition)) = name.rsplit_once('-') else {
        return false;
    };
    let Ok(partition) = partition.parse::<i32>() else {
        return false;
    };
    if partition < 0 || check_topic_name(topic).is_err() {
        return false;
    }
    if catalogue
        .topics
        .get(topic)
        .is_some_and(|entry| partition < entry.partitions)
    {
        return false;
    }
    is_ours(storage, Path::new(name))
}

fn is_ours(storage: &dyn Storage, path: &Path) -> bool {
    match storage.list(path) {
        Ok(names) => names.is_empty() || names.iter().any(|name| name == METADATA),
        Err(_) => false,
    }
}
