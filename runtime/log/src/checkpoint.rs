//! Checkpoint files: for each partition an offset, in Kafka's text format.
//!
//! ```text
//! 0                      version
//! 2                      entries
//! orders 0 1250          topic, partition, offset
//! orders 1 17
//! ```
//!
//! Invariants: every record below a recovery point is synced in the partition's own files and,
//! under `sync`, was durable in the journal as well; the file is replaced as a whole.
//! Never: syncs a partition itself (`LogDirectory::checkpoint` does, before it writes this).

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::LogError;
use crate::storage::{OpenMode, Storage, read_all, replace};

/// Recovery points: below them a partition's files need no check.
pub(crate) const RECOVERY_POINTS: &str = "recovery-point-offset-checkpoint";
/// Log start offsets that lie above the first segment's base offset, or did once.
pub(crate) const LOG_START_OFFSETS: &str = "log-start-offset-checkpoint";

/// Where compaction goes on: what lies below was cleaned. Advisory; log starts stand in for it.
pub(crate) const CLEANER_OFFSETS: &str = "cleaner-offset-checkpoint";

/// Offsets by topic and partition.
pub(crate) type Offsets = BTreeMap<(String, i32), i64>;

fn encode(offsets: &Offsets) -> Vec<u8> {
    let mut text = format!("0\n{}\n", offsets.len());
    for ((topic, partition), offset) in offsets {
        text.push_str(&format!("{topic} {partition} {offset}\n"));
    }
    text.into_bytes()
}

fn decode(text: &str) -> Result<Offsets, String> {
    let mut lines = text.lines();
    let version = lines.next().unwrap_or_default();
    if version != "0" {
        return Err(format!("line 1: version {version:?} is not 0"));
    }
    let count: usize = lines
        .next()
        .and_then(|line| line.parse().ok())
        .ok_or_else(|| "line 2: the number of entries is missing".to_owned())?;
    let mut offsets = Offsets::new();
    for (index, line) in lines.enumerate() {
        let mut words = line.split(' ');
        let mut entry = || {
            let topic = words.next()?.to_owned();
            let partition = words.next()?.parse().ok()?;
            let offset = words.next()?.parse().ok().filter(|offset| *offset >= 0)?;
            words
                .next()
                .is_none()
                .then_some(((topic, partition), offset))
        };
        let (key, offset) =
            entry().ok_or_else(|| format!("line {}: {line:?} is no entry", index + 3))?;
        offsets.insert(key, offset);
    }
    if offsets.len() != count {
        return Err(format!(
            "it holds {} entries and claims {count}",
            offsets.len()
        ));
    }
    Ok(offsets)
}

/// Reads a checkpoint file; `None` when there is none yet.
pub(crate) fn load(storage: &dyn Storage, name: &str) -> Result<Option<Offsets>, LogError> {
    let path = Path::new(name);
    let io = |error| LogError::io("read", path, error);
    if !storage.exists(path).map_err(io)? {
        return Ok(None);
    }
    let file = storage.open(path, OpenMode::Read).map_err(io)?;
    let content = read_all(&*file).map_err(io)?;
    let text = std::str::from_utf8(&content).map_err(|_| "it is not UTF-8".to_owned());
    text.and_then(decode)
        .map(Some)
        .map_err(|reason| LogError::corrupt(path, 0, reason))
}

/// Replaces a checkpoint file durably.
pub(crate) fn store(storage: &dyn Storage, name: &str, offsets: &Offsets) -> Result<(), LogError> {
    replace(storage, name, &encode(offsets))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::MemoryStorage;

    #[test]
    fn a_checkpoint_reads_back_in_kafkas_format() {
        let storage = MemoryStorage::new();
        let offsets = Offsets::from([(("orders".to_owned(), 0), 1250), (("a-b".to_owned(), 3), 0)]);
        assert_eq!(load(&storage, RECOVERY_POINTS).unwrap(), None);
        store(&storage, RECOVERY_POINTS, &offsets).unwrap();
        assert_eq!(
            load(&storage.crash(), RECOVERY_POINTS).unwrap(),
            Some(offsets.clone())
        );
        assert_eq!(encode(&offsets), b"0\n2\na-b 3 0\norders 0 1250\n");
    }

    #[test]
    fn a_damaged_checkpoint_is_refused_by_its_line() {
        for text in [
            "",
            "1\n0\n",
            "0\n",
            "0\nx\n",
            "0\n2\na 0 1\n",
            "0\n1\na 0\n",
            "0\n1\na 0 -1\n",
        ] {
            assert!(decode(text).is_err(), "{text:?}");
        }
        assert!(decode("0\n1\na 0 1 2\n").unwrap_err().contains("line 3"));
    }
}
