//! How topics go: out of the catalogue, then out of the table, then their directories lose their
//! names, and some time later, with nobody waiting for it, their files.
//!
//! Invariants: a deletion is durable when it is answered; a directory's content goes only when its
//! name is durably gone; what a crash leaves is removed at the next opening.
//! Never: writes or syncs a file of a topic that is deleted.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, TryLockError};

use millstream_protocol::Uuid;

use super::topics::Outcomes;
use super::{LogDirectory, Structure, Topic, files, lock};
use crate::catalogue::Catalogue;
use crate::error::LogError;
use crate::layout;
use crate::storage::Storage;

/// Most directories of deleted topics that a stop removes.
const ERASED_AT_STOP_MAX: usize = 100;

/// Directories of deleted topics, under names that no topic has.
#[derive(Default)]
pub(super) struct Retired {
    directories: Vec<PathBuf>,
    /// The number in the next one's name. The opening has removed all that there were; none is
    /// given twice, also when a directory could not be removed.
    next: u64,
    /// Whether a power cut could give some of them their old names back.
    unsynced: bool,
}

impl Retired {
    /// Takes the names of these directories away.
    pub(super) fn add(&mut self, storage: &dyn Storage, paths: &[PathBuf]) -> Result<(), LogError> {
        self.unsynced |= !paths.is_empty();
        layout::retire(storage, paths, &mut self.next, &mut self.directories)
    }

    /// Makes sure that the old names do not come back. A sync that fails leaves that open for good.
    pub(super) fn sync(&mut self, storage: &dyn Storage) -> Result<(), LogError> {
        if self.unsynced {
            layout::sync_names(storage)?;
            self.unsynced = false;
        }
        Ok(())
    }
}

/// Removes a topic from a catalogue, if it is the one that is meant.
fn take_out(catalogue: &mut Catalogue, name: &str, id: Option<Uuid>) -> Result<(), LogError> {
    let known = catalogue.topics.get(name).map(|entry| entry.id);
    let name = name.to_owned();
    match id {
        Some(id) if known != Some(id) => Err(LogError::UnknownTopicId { name }),
        None if known.is_none() => Err(LogError::UnknownTopic { name }),
        _ => {
            catalogue.topics.remove(&name);
            Ok(())
        }
    }
}

impl LogDirectory {
    /// Deletes a topic as `delete_topics` does, and its files.
    pub fn delete_topic(&self, name: &str) -> Result<(), LogError> {
        let deleted = self.delete_topics(&[name.to_owned()])?;
        deleted.into_iter().collect::<Result<(), LogError>>()?;
        self.erase_deleted()
    }

    /// Deletes the topics that have these names, as `delete_identified_topics` does.
    pub fn delete_topics(&self, names: &[String]) -> Outcomes<()> {
        let named: Vec<_> = names.iter().map(|name| (name.clone(), None)).collect();
        self.delete_identified_topics(&named)
    }

    /// Deletes topics with their records, durably: after a crash nothing of them is left. One that
    /// is given with its id goes only if that is the one that has the name. On a full disk the
    /// reserve makes room for it. Their files stay, under other names, until `erase_deleted`. A
    /// topic that is not deleted is as it was.
    pub fn delete_identified_topics(&self, topics: &[(String, Option<Uuid>)]) -> Outcomes<()> {
        let inner = &*self.inner;
        let mut structure = self.lock_structure()?;
        let mut catalogue = structure.catalogue.clone();
        let mut found = Vec::new();
        let mut outcomes = Vec::with_capacity(topics.len());
        for (name, id) in topics {
            let outcome = take_out(&mut catalogue, name, *id);
            if outcome.is_ok() {
                found.push(name);
            }
            outcomes.push(outcome);
        }
        if found.is_empty() {
            return Ok(outcomes);
        }
        let mut stored = catalogue.store(&*inner.storage);
        // A sync that fails for want of room is not tried again, as no other one.
        let has_no_room = |error: &LogError| matches!(error, LogError::StorageFull { .. });
        if stored
            .as_ref()
            .is_err_and(|error| has_no_room(error) && !error.is_final())
        {
            self.note(files::remove_if_there(&*inner.storage, files::RESERVE))?;
            stored = catalogue.store(&*inner.storage);
        }
        self.note(stored)?;
        structure.catalogue = catalogue;
        let gone: Vec<Topic> = {
            let mut topics = self.write_topics();
            let found = found.into_iter();
            found.filter_map(|name| topics.remove(name)).collect()
        };
        for topic in &gone {
            self.retire(&mut structure, topic);
        }
        Ok(outcomes)
    }

    /// Ends a topic's logs and takes the names of their directories away.
    fn retire(&self, structure: &mut Structure, topic: &Topic) {
        let mut directories = Vec::with_capacity(topic.partitions.len());
        for (log, partition) in topic.partitions.iter().zip(0..) {
            // From now on it refuses appends; what it has not written does not matter any more.
            log.retire();
            directories.push(layout::partition_directory(&topic.name, partition));
        }
        let retired = structure.retired.add(&*self.inner.storage, &directories);
        if let Err(error) = retired {
            let topic = &topic.name;
            tracing::warn!(topic, %error, "its files stay until the next opening");
        }
    }

    /// Whether there is something for `erase_deleted`: also a creation may leave it.
    #[cfg(test)]
    pub(super) fn must_erase(&self) -> bool {
        !lock(&self.inner.structure).retired.directories.is_empty()
    }

    /// Removes the files of topics that were deleted, which may take a while. Topics come and go
    /// meanwhile. Who calls it while another one is at it leaves the work to that one. After an
    /// error everything is removed that can be; the next call and the stop try the rest again.
    pub fn erase_deleted(&self) -> Result<(), LogError> {
        match self.inner.erasing.try_lock() {
            Ok(erasing) => self.erase_all(erasing),
            Err(TryLockError::Poisoned(poisoned)) => self.erase_all(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Ok(()),
        }
    }

    /// As `erase_deleted`, and waits for who is at it: what was deleted before takes no room then.
    pub fn erase_deleted_and_wait(&self) -> Result<(), LogError> {
        self.erase_all(lock(&self.inner.erasing))
    }

    fn erase_all(&self, erasing: MutexGuard<'_, ()>) -> Result<(), LogError> {
        let mut kept = Vec::new();
        let mut outcome = Ok(());
        loop {
            let mut structure = self.lock_structure()?;
            if structure.retired.directories.is_empty() {
                structure.retired.directories = kept;
                // Given back first: whoever adds to the list from now on finds it free.
                drop(erasing);
                return outcome;
            }
            let directories = self.take_retired(&mut structure)?;
            drop(structure);
            let erased = self.erase(directories, &mut kept);
            outcome = outcome.and(erased);
        }
    }

    /// As `erase_deleted`, for a directory that closes: the caller holds `erasing`. It does not
    /// wait for more than some directories: the next opening takes the rest.
    pub(super) fn erase_before_close(&self) -> Result<(), LogError> {
        let inner = &*self.inner;
        let mut directories = self.take_retired(&mut lock(&inner.structure))?;
        directories.truncate(ERASED_AT_STOP_MAX);
        for path in directories {
            if let Err(error) = layout::erase(&*inner.storage, &path) {
                tracing::warn!(%error, "files of a deleted topic stay until the next opening");
            }
        }
        Ok(())
    }

    /// The directories that are to be removed; their old names do not come back.
    fn take_retired(&self, structure: &mut Structure) -> Result<Vec<PathBuf>, LogError> {
        self.note(structure.retired.sync(&*self.inner.storage))?;
        Ok(std::mem::take(&mut structure.retired.directories))
    }

    /// Removes directories until the directory closes; `kept` gets those that cannot be removed,
    /// the first one's error is told.
    fn erase(&self, directories: Vec<PathBuf>, kept: &mut Vec<PathBuf>) -> Result<(), LogError> {
        let inner = &*self.inner;
        let mut outcome = Ok(());
        for path in directories {
            if inner.closed.load(Ordering::Acquire) {
                return Err(LogError::Closed);
            }
            let erased = layout::erase(&*inner.storage, &path);
            if erased.is_err() {
                kept.push(path);
            }
            outcome = outcome.and(erased);
        }
        files::write_reserve(&*inner.storage, inner.config.reserve_bytes);
        outcome
    }
}
