//! Where a partition's files lie, and how its directory comes and goes.
//!
//! ```text
//! absent --create--> <topic>-<partition>/ --retire--> deleted~<n>/ --remove--> absent
//! ```
//!
//! Invariants: a directory is durable, with its topic's id in it, before the catalogue names the
//! topic; it leaves its name before its content goes, so no half-removed directory has a topic's
//! name.
//! Never: decides which topics there are (the catalogue does).

use std::path::{Path, PathBuf};

use millstream_protocol::Uuid;

use crate::catalogue::{Catalogue, check_topic_name};
use crate::error::LogError;
use crate::storage::{OpenMode, Storage, read_all};

/// The file with the topic's id, in Kafka's format.
const METADATA: &str = "partition.metadata";
/// '~' is in no topic's name.
const DELETED: &str = "deleted~";

/// The directory of a partition, below the data directory.
pub(crate) fn partition_directory(topic: &str, partition: i32) -> PathBuf {
    PathBuf::from(format!("{topic}-{partition}"))
}

/// Creates a partition's directory; durable once the data directory is synced.
pub(crate) fn create(storage: &dyn Storage, path: &Path, id: Uuid) -> Result<(), LogError> {
    let io = |action| move |error| LogError::io(action, path, error);
    storage.create_dir_all(path).map_err(io("create"))?;
    let metadata = path.join(METADATA);
    let text = format!("version: 0\ntopic_id: {id}\n");
    let file = storage
        .open(&metadata, OpenMode::CreateNew)
        .map_err(io("create"))?;
    file.write_at(&[text.as_bytes()], 0).map_err(io("write"))?;
    file.sync_data().map_err(io("sync"))?;
    storage.sync_dir(path).map_err(io("sync"))
}

/// Checks that a directory belongs to this incarnation of its topic.
pub(crate) fn check(storage: &dyn Storage, path: &Path, id: Uuid) -> Result<(), LogError> {
    let metadata = path.join(METADATA);
    let content = storage
        .open(&metadata, OpenMode::Read)
        .and_then(|file| read_all(&*file))
        .map_err(|error| LogError::io("read", &metadata, error))?;
    let text = String::from_utf8_lossy(&content);
    let found = text
        .lines()
        .find_map(|line| line.strip_prefix("topic_id: "));
    if found.and_then(|text| text.trim().parse().ok()) != Some(id) {
        let reason = format!("it names topic id {found:?}, and the catalogue says {id}");
        return Err(LogError::corrupt(metadata, 0, reason));
    }
    Ok(())
}

/// Removes directories: first their names, durably, then what is in them.
pub(crate) fn remove(storage: &dyn Storage, paths: &[PathBuf]) -> Result<(), LogError> {
    let root = Path::new("");
    let mut number = 0;
    let mut retired = Vec::with_capacity(paths.len());
    for path in paths {
        let io = |error| LogError::io("remove", path, error);
        let target = loop {
            let candidate = PathBuf::from(format!("{DELETED}{number}"));
            number += 1;
            if !storage.exists(&candidate).map_err(io)? {
                break candidate;
            }
        };
        storage.rename(path, &target).map_err(io)?;
        retired.push(target);
    }
    storage
        .sync_dir(root)
        .map_err(|error| LogError::io("sync", root, error))?;
    for path in &retired {
        storage
            .remove_dir_all(path)
            .map_err(|error| LogError::io("remove", path, error))?;
    }
    Ok(())
}

/// Removes directories of these names that a deletion could not remove; refuses when one of them is
/// not ours.
pub(crate) fn make_room(
    storage: &dyn Storage,
    topic: &str,
    paths: &[PathBuf],
) -> Result<(), LogError> {
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
    if stale.is_empty() {
        Ok(())
    } else {
        remove(storage, &stale)
    }
}

/// Removes what creations and deletions that a crash cut short have left behind; returns how many
/// directories that were.
pub(crate) fn sweep(storage: &dyn Storage, catalogue: &Catalogue) -> Result<usize, LogError> {
    let root = Path::new("");
    let mut orphans = Vec::new();
    let mut removed = 0;
    for name in storage
        .list(root)
        .map_err(|error| LogError::io("list", root, error))?
    {
        let path = PathBuf::from(&name);
        if name.starts_with(DELETED) {
            storage
                .remove_dir_all(&path)
                .map_err(|error| LogError::io("remove", &path, error))?;
            removed += 1;
        } else if is_orphan(storage, catalogue, &name) {
            tracing::warn!(directory = name, "removing a partition that no topic has");
            orphans.push(path);
        }
    }
    removed += orphans.len();
    if !orphans.is_empty() {
        remove(storage, &orphans)?;
    }
    Ok(removed)
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
