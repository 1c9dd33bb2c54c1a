//! The journal: one file sequence that makes the appends of all partitions durable, with one
//! `fdatasync` for everything that was waiting.
//!
//! Invariants: durable position <= appended position; positions grow by whole frames and are never
//! used twice; frames reach the disk in the order of `enqueue`; a file begins only when everything
//! before it is durable; files are removed oldest first.
//! Never: retries a failed write or sync (the failure is final: the journal is poisoned), holds the
//! queue's lock while it writes, fails because a full file's successor cannot be created yet.

mod frame;
mod read;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use millstream_protocol::Uuid;

use crate::error::LogError;
use crate::storage::{OpenMode, Storage, StorageFile};
use frame::{FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FileHeader, FrameHeader};
pub use read::{JournalContent, JournalFrame, read_journal};

/// The directory of the journal's files, below the data directory.
pub const DIRECTORY: &str = "journal";

/// A file that reached this size is followed by a new one.
pub const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The shared write-ahead file of all partitions of one broker.
#[derive(Debug)]
pub struct Journal {
    storage: Arc<dyn Storage>,
    file_bytes_max: u64,
    queue: Mutex<Queue>,
    writer: Mutex<Writer>,
    durable: AtomicU64,
    poison: OnceLock<String>,
    /// Whether the last attempt to begin a file failed, so that this is said once.
    overfull: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    frames: Vec<QueuedFrame>,
    appended: u64,
}

#[derive(Debug)]
struct QueuedFrame {
    topic_id: Uuid,
    partition: i32,
    base_offset: i64,
    position: u64,
    parts: [Bytes; 2],
}

impl QueuedFrame {
    fn size_bytes(&self) -> u64 {
        (FRAME_HEADER_BYTES + self.parts[0].len() + self.parts[1].len()) as u64
    }
}

#[derive(Debug)]
struct Writer {
    /// The file that is written, `None` before `begin` and after `clear`.
    file: Option<Arc<dyn StorageFile>>,
    /// Size of that file.
    file_bytes: u64,
    next_sequence: u64,
    /// All files, oldest first, with the journal position that each begins at.
    files: VecDeque<(PathBuf, u64)>,
    headers: Vec<u8>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while the lock was held would leave the journal poisoned in its own sense at worst:
    // a file that is cut at the next opening.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    /// A journal that continues after what recovery read; it has no file until `begin`.
    pub fn new(storage: Arc<dyn Storage>, found: &JournalContent) -> Journal {
        Journal::with_file_size(storage, found, FILE_BYTES_MAX)
    }

    /// As `new`, with another size at which files are rolled.
    pub fn with_file_size(
        storage: Arc<dyn Storage>,
        found: &JournalContent,
        file_bytes_max: u64,
    ) -> Journal {
        let queue = Queue {
            frames: Vec::new(),
            appended: found.end_position,
        };
        let writer = Writer {
            file: None,
            file_bytes: 0,
            next_sequence: found.next_sequence,
            files: found.files.iter().map(|path| (path.clone(), 0)).collect(),
            headers: Vec::new(),
        };
        Journal {
            storage,
            file_bytes_max,
            queue: Mutex::new(queue),
            writer: Mutex::new(writer),
            durable: AtomicU64::new(found.end_position),
            poison: OnceLock::new(),
            overfull: AtomicBool::new(false),
        }
    }

    /// Adds an append to the queue and returns the journal position behind it: the append is
    /// durable once `durable_position` has reached that. Cheap; keeps `parts` by reference. Called
    /// under the partition's lock, so that a partition's frames are in the order of its offsets.
    pub fn enqueue(
        &self,
        topic_id: Uuid,
        partition: i32,
        base_offset: i64,
        parts: [Bytes; 2],
    ) -> u64 {
        let mut queue = lock(&self.queue);
        let frame = QueuedFrame {
            topic_id,
            partition,
            base_offset,
            position: queue.appended,
            parts,
        };
        queue.appended += frame.size_bytes();
        // After a failure nobody will ever write the queue: only positions go on.
        if !self.poisoned() {
            queue.frames.push(frame);
        }
        queue.appended
    }

    /// Writes all queued frames with one gathered write and makes them durable with one sync.
    /// Returns the durable position. Blocks; called by one sync loop.
    pub fn write_and_sync(&self) -> Result<u64, LogError> {
        self.write_and_sync_noting(&mut Vec::new())
    }

    /// As `write_and_sync`; adds the partitions whose frames became durable, without repetition.
    pub(crate) fn write_and_sync_noting(
        &self,
        partitions: &mut Vec<(Uuid, i32)>,
    ) -> Result<u64, LogError> {
        let mut writer = lock(&self.writer);
        self.check()?;
        let (frames, end) = {
            let mut queue = lock(&self.queue);
            (std::mem::take(&mut queue.frames), queue.appended)
        };
        if frames.is_empty() {
            return Ok(self.durable_position());
        }
        match self.write_group(&mut writer, &frames) {
            Ok(()) => {
                self.durable.store(end, Ordering::Release);
                partitions.extend(frames.iter().map(|frame| (frame.topic_id, frame.partition)));
                partitions.sort_unstable();
                partitions.dedup();
                Ok(end)
            }
            Err(error) => {
                self.poison(&error.to_string());
                Err(error)
            }
        }
    }

    fn write_group(&self, writer: &mut Writer, frames: &[QueuedFrame]) -> Result<(), LogError> {
        let group_bytes: u64 = frames.iter().map(QueuedFrame::size_bytes).sum();
        let is_full = writer.file_bytes + group_bytes > self.file_bytes_max
            && writer.file_bytes > FILE_HEADER_BYTES as u64;
        if writer.file.is_none() || is_full {
            match self.create_file(writer) {
                Ok(file) => self.start_file(writer, file)?,
                // Nothing was changed, and the full file is as good as before: on with it.
                Err(error) if writer.file.is_some() => self.note_full(&error),
                Err(error) => return Err(error),
            }
        }
        let Writer {
            file: Some(file),
            file_bytes,
            files,
            headers,
            ..
        } = writer
        else {
            return Err(LogError::Closed);
        };
        let path = files
            .back()
            .map_or(Path::new(DIRECTORY), |(path, _)| path.as_path());
        headers.clear();
        for frame in frames {
            let header = FrameHeader {
                position: frame.position,
                durable_position: self.durable_position(),
                topic_id: frame.topic_id,
                partition: frame.partition,
                base_offset: frame.base_offset,
            };
            header.encode(&[&frame.parts[0], &frame.parts[1]], headers);
        }
        let mut parts: Vec<&[u8]> = Vec::with_capacity(frames.len() * 3);
        for (header, frame) in headers.chunks_exact(FRAME_HEADER_BYTES).zip(frames) {
            parts.extend([header, &frame.parts[0][..], &frame.parts[1][..]]);
        }
        file.write_at(&parts, *file_bytes)
            .map_err(|error| LogError::io("write", path, error))?;
        file.sync_data()
            .map_err(|error| LogError::io("sync", path, error))?;
        *file_bytes += group_bytes;
        Ok(())
    }

    fn note_full(&self, error: &LogError) {
        if !self.overfull.swap(true, Ordering::Relaxed) {
            tracing::error!(%error, "the journal goes on in a file that is full");
        }
    }

    fn create_file(&self, writer: &Writer) -> Result<Arc<dyn StorageFile>, LogError> {
        let path = read::file_path(writer.next_sequence);
        self.storage
            .open(&path, OpenMode::CreateNew)
            .map_err(|error| LogError::io("create", &path, error))
    }

    /// Begins the next file; everything enqueued before is durable.
    fn start_file(&self, writer: &mut Writer, file: Arc<dyn StorageFile>) -> Result<(), LogError> {
        let sequence = writer.next_sequence;
        let path = read::file_path(sequence);
        let base_position = self.durable_position();
        let header = FileHeader {
            sequence,
            base_position,
        }
        .encode();
        let directory = Path::new(DIRECTORY);
        file.write_at(&[&header], 0)
            .map_err(|error| LogError::io("write", &path, error))?;
        file.sync_data()
            .map_err(|error| LogError::io("sync", &path, error))?;
        self.storage
            .sync_dir(directory)
            .map_err(|error| LogError::io("sync", directory, error))?;
        writer.next_sequence = sequence + 1;
        writer.file = Some(file);
        writer.file_bytes = FILE_HEADER_BYTES as u64;
        writer.files.push_back((path, base_position));
        self.overfull.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Starts the first file of this run. Its presence tells the next opening that acknowledged
    /// records are those of the checkpoint and of the journal, and no others.
    pub(crate) fn begin(&self) -> Result<(), LogError> {
        let directory = Path::new(DIRECTORY);
        let root = Path::new("");
        let mut writer = lock(&self.writer);
        self.storage
            .create_dir_all(directory)
            .and_then(|()| self.storage.sync_dir(root))
            .map_err(|error| LogError::io("create", directory, error))?;
        let file = self.create_file(&writer)?;
        self.start_file(&mut writer, file)
    }

    /// Removes the files whose frames all lie below `position`, oldest first, but never the one
    /// that is written. The partition files must hold those frames durably. One caller at a time.
    pub(crate) fn recycle(&self, position: u64) -> Result<(), LogError> {
        loop {
            let oldest = {
                let writer = lock(&self.writer);
                match (writer.files.front(), writer.files.get(1)) {
                    (Some((path, _)), Some((_, next))) if *next <= position => path.clone(),
                    _ => return Ok(()),
                }
            };
            // Appends go on while the file is removed.
            self.remove(&oldest)?;
            lock(&self.writer).files.pop_front();
        }
    }

    /// Removes all files: everything in them is in the partition files, durably.
    pub(crate) fn clear(&self) -> Result<(), LogError> {
        let mut writer = lock(&self.writer);
        writer.file = None;
        writer.file_bytes = 0;
        while let Some((path, _)) = writer.files.front().cloned() {
            self.remove(&path)?;
            writer.files.pop_front();
        }
        Ok(())
    }

    /// Removes one file durably before the next is touched, so that no gap can be left behind.
    fn remove(&self, path: &Path) -> Result<(), LogError> {
        if let Err(error) = self.storage.remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(LogError::io("remove", path, error));
        }
        let directory = Path::new(DIRECTORY);
        self.storage
            .sync_dir(directory)
            .map_err(|error| LogError::io("sync", directory, error))
    }

    /// The position behind everything enqueued.
    pub fn appended_position(&self) -> u64 {
        lock(&self.queue).appended
    }

    /// The position up to which a power cut loses nothing.
    pub fn durable_position(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Bytes in the journal's files that a checkpoint could free.
    pub fn recyclable_bytes(&self) -> u64 {
        let writer = lock(&self.writer);
        let oldest = writer.files.front().map_or(0, |(_, base)| *base);
        self.durable_position().saturating_sub(oldest)
    }

    /// Whether a write or sync failed; nothing becomes durable any more.
    pub fn poisoned(&self) -> bool {
        self.poison.get().is_some()
    }

    /// Refuses everything from now on. The first reason is kept.
    pub(crate) fn poison(&self, reason: &str) {
        if self.poison.set(reason.to_owned()).is_ok() {
            tracing::error!(reason, "the journal stopped: nothing more becomes durable");
            lock(&self.queue).frames = Vec::new();
        }
    }

    /// Fails when the journal is poisoned.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        match self.poison.get() {
            Some(reason) => Err(LogError::Poisoned {
                reason: reason.clone(),
            }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
