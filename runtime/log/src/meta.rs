//! `meta.properties`: which cluster a data directory belongs to and which format it has.
//!
//! Invariants: written once, when the directory is first used; the cluster id never changes.
//! Never: accepts a format that is newer than this code.

use std::path::Path;

use crate::error::LogError;
use crate::storage::{OpenMode, Storage, read_all, replace};

/// The file, below the data directory.
pub(crate) const FILE: &str = "meta.properties";
/// The directory format that this code writes, and the newest that it reads.
pub(crate) const FORMAT_VERSION: u32 = 1;

/// Reads the cluster id, or writes the file with the id that `fresh` makes.
pub(crate) fn open(
    storage: &dyn Storage,
    configured: Option<&str>,
    fresh: impl FnOnce() -> String,
) -> Result<String, LogError> {
    let path = Path::new(FILE);
    if !storage
        .exists(path)
        .map_err(|error| LogError::io("look for", path, error))?
    {
        let cluster_id = configured.map_or_else(fresh, str::to_owned);
        if cluster_id.is_empty() || cluster_id.contains(['\n', '\r']) {
            return Err(LogError::InvalidConfig {
                name: "cluster.id".to_owned(),
                reason: "it must be one line of text".to_owned(),
            });
        }
        let text = format!("version=1\ncluster.id={cluster_id}\nformat.version={FORMAT_VERSION}\n");
        replace(storage, path, text.as_bytes())?;
        return Ok(cluster_id);
    }
    let content = storage
        .open(path, OpenMode::Read)
        .and_then(|file| read_all(&*file))
        .map_err(|error| LogError::io("read", path, error))?;
    let text = String::from_utf8_lossy(&content);
    let value = |key: &str| {
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once('='))
            .find_map(|(name, value)| (name.trim() == key).then(|| value.trim().to_owned()))
    };
    let format = value("format.version")
        .and_then(|text| text.parse::<u32>().ok())
        .ok_or_else(|| {
            LogError::corrupt(
                path,
                0,
                "format.version is missing: is this a data directory of ours?",
            )
        })?;
    if format > FORMAT_VERSION {
        return Err(LogError::NewerFormat {
            directory: storage.describe(),
            found: format,
            supported: FORMAT_VERSION,
        });
    }
    let found =
        value("cluster.id").ok_or_else(|| LogError::corrupt(path, 0, "cluster.id is missing"))?;
    match configured {
        Some(expected) if expected != found => Err(LogError::OtherCluster {
            directory: storage.describe(),
            found,
            expected: expected.to_owned(),
        }),
        _ => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::{MemoryStorage, replace_file};

    fn made() -> String {
        "made".to_owned()
    }

    fn with(text: &str) -> MemoryStorage {
        let storage = MemoryStorage::new();
        replace_file(&storage, Path::new(FILE), text.as_bytes()).unwrap();
        storage
    }

    #[test]
    fn the_cluster_id_is_made_once_and_kept() {
        let storage = MemoryStorage::new();
        assert_eq!(open(&storage, None, made).unwrap(), "made");
        let storage = storage.crash();
        assert_eq!(
            open(&storage, None, || panic!("made twice")).unwrap(),
            "made"
        );
        assert_eq!(open(&storage, Some("made"), made).unwrap(), "made");
        let refused = open(&storage, Some("other"), made).unwrap_err();
        assert!(matches!(refused, LogError::OtherCluster { .. }));
        assert!(refused.to_string().contains("made"), "{refused}");
    }

    #[test]
    fn a_newer_format_and_a_foreign_file_are_refused() {
        let newer = with("version=1\ncluster.id=c\nformat.version=2\n");
        let refused = open(&newer, None, made).unwrap_err();
        assert!(
            matches!(refused, LogError::NewerFormat { found: 2, .. }),
            "{refused}"
        );
        for text in [
            "",
            "version=1\nnode.id=1\n",
            "version=1\nformat.version=1\n",
        ] {
            assert!(matches!(
                open(&with(text), None, made),
                Err(LogError::Corrupt { .. })
            ));
        }
    }
}
