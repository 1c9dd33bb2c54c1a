//! Leader epoch checkpoint: at which offset each leader epoch began, in Kafka's text file.
//!
//! ```text
//! 0            version
//! 2            entries
//! 0 0          epoch, start offset
//! 3 120
//! ```
//!
//! Invariants: epochs and start offsets grow.
//! Never: is trusted over the log; it is rebuilt from it where the two disagree.

use crate::error::LogError;
use crate::storage::{OpenMode, Storage, StorageFile, read_all};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FILE_NAME: &str = "leader-epoch-checkpoint";

/// The epochs of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaderEpochs {
    entries: Vec<(i32, i64)>,
    dirty: bool,
}

/// A file that was written, to be synced.
type Written = (PathBuf, Arc<dyn StorageFile>);

impl LeaderEpochs {
    /// Reads the checkpoint; none or a damaged one is empty.
    pub(crate) fn load(storage: &dyn Storage, directory: &Path) -> Result<LeaderEpochs, LogError> {
        let path = path_in(directory);
        let content = storage.exists(&path).and_then(|exists| {
            if !exists {
                return Ok(Vec::new());
            }
            read_all(storage.open(&path, OpenMode::Read)?.as_ref())
        });
        let content = content.map_err(|error| LogError::io("read", &path, error))?;
        let entries = std::str::from_utf8(&content)
            .ok()
            .and_then(parse)
            .unwrap_or_default();
        Ok(LeaderEpochs {
            entries,
            dirty: false,
        })
    }

    /// A batch of this epoch begins at `offset`.
    pub(crate) fn observe(&mut self, epoch: i32, offset: i64) {
        if epoch >= 0 && self.entries.last().is_none_or(|(last, _)| *last < epoch) {
            self.entries.push((epoch, offset));
            self.dirty = true;
        }
    }

    /// Forgets epochs that begin at or beyond `offset`.
    pub(crate) fn truncate(&mut self, offset: i64) {
        let before = self.entries.len();
        self.entries.retain(|(_, start)| *start < offset);
        self.dirty |= self.entries.len() != before;
    }

    /// The newest epoch, -1 for none.
    pub(crate) fn latest(&self) -> i32 {
        self.entries.last().map_or(-1, |(epoch, _)| *epoch)
    }

    /// The largest known epoch that is at most `epoch`, and the offset where it ends, as Kafka
    /// says it: an epoch before all known ones ends where they begin, one after them is unknown.
    pub(crate) fn end_offset(&self, epoch: i32, log_end: i64) -> Option<(i32, i64)> {
        if epoch < 0 || epoch > self.latest() {
            return None;
        }
        let next = self.entries.partition_point(|(known, _)| *known <= epoch);
        let known = next.checked_sub(1).and_then(|last| self.entries.get(last));
        let end = self.entries.get(next).map_or(log_end, |(_, start)| *start);
        Some((known.map_or(epoch, |(known, _)| *known), end))
    }

    /// Writes the file when something changed. Returns it in that case, to be synced.
    pub(crate) fn write(
        &mut self,
        storage: &dyn Storage,
        directory: &Path,
    ) -> Result<Option<Written>, LogError> {
        if !self.dirty {
            return Ok(None);
        }
        let path = path_in(directory);
        let content = self.text();
        let written = storage.open(&path, OpenMode::Write).and_then(|file| {
            file.set_len(0)?;
            file.write_at(&[content.as_bytes()], 0)?;
            Ok(file)
        });
        let file = written.map_err(|error| LogError::io("write", &path, error))?;
        self.dirty = false;
        Ok(Some((path, file)))
    }

    fn text(&self) -> String {
        let mut text = format!("0\n{}\n", self.entries.len());
        for (epoch, start) in &self.entries {
            text.push_str(&format!("{epoch} {start}\n"));
        }
        text
    }
}

fn path_in(directory: &Path) -> PathBuf {
    directory.join(FILE_NAME)
}

fn parse(text: &str) -> Option<Vec<(i32, i64)>> {
    let mut lines = text.lines();
    if lines.next()? != "0" {
        return None;
    }
    let count: usize = lines.next()?.parse().ok()?;
    let entries: Option<Vec<(i32, i64)>> = lines
        .map(|line| {
            let (epoch, start) = line.split_once(' ')?;
            Some((epoch.parse().ok()?, start.parse().ok()?))
        })
        .collect();
    let entries = entries.filter(|entries| entries.len() == count)?;
    entries
        .windows(2)
        .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1)
        .then_some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::MemoryStorage;

    #[test]
    fn the_file_is_kafkas_and_reads_back() {
        let storage = MemoryStorage::new();
        let directory = Path::new("t-0");
        storage.create_dir_all(directory).unwrap();
        let mut epochs = LeaderEpochs::load(&storage, directory).unwrap();
        assert_eq!(epochs.latest(), -1);
        epochs.observe(0, 0);
        epochs.observe(0, 7);
        epochs.observe(3, 120);
        assert_eq!(epochs.text(), "0\n2\n0 0\n3 120\n");
        assert!(epochs.write(&storage, directory).unwrap().is_some());
        assert!(
            epochs.write(&storage, directory).unwrap().is_none(),
            "nothing changed"
        );
        assert_eq!(LeaderEpochs::load(&storage, directory).unwrap(), epochs);
    }

    #[test]
    fn an_epoch_ends_where_the_next_begins() {
        let mut epochs = LeaderEpochs::default();
        epochs.observe(1, 0);
        epochs.observe(4, 10);
        assert_eq!(epochs.end_offset(-1, 20), None);
        assert_eq!(epochs.end_offset(0, 20), Some((0, 0)));
        assert_eq!(epochs.end_offset(2, 20), Some((1, 10)));
        assert_eq!(epochs.end_offset(4, 20), Some((4, 20)));
        assert_eq!(epochs.end_offset(9, 20), None);
        epochs.truncate(10);
        assert_eq!(epochs.latest(), 1);
    }

    #[test]
    fn a_damaged_file_counts_as_none() {
        for text in ["", "1\n0\n", "0\n2\n0 0\n", "0\n2\n3 0\n1 5\n", "0\nx\n"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
