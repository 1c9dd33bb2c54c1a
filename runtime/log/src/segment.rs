//! One segment: a log file in Kafka's format, its three indexes, and the scan over its batches.
//!
//! Invariants: batches lie one behind the other from position 0 to `size_bytes`; what lies beyond
//! in the file is not part of the segment and is overwritten.
//! Never: knows producers, high watermarks or other segments.

use crate::compaction::manifest::{CLEANED, file};
use crate::error::LogError;
use crate::index::offset::{OffsetEntry, position_for};
use crate::index::time::{TimeEntry, offset_before};
use crate::index::transaction::AbortedEntry;
use crate::index::{Entry, Index};
use crate::storage::{OpenMode, Storage, StorageFile};
use bytes::Bytes;
use millstream_protocol::{BatchError, RecordBatch};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const LOG: &str = ".log";
const OFFSET_INDEX: &str = ".index";
const TIME_INDEX: &str = ".timeindex";
const TRANSACTION_INDEX: &str = ".txnindex";
/// What the names of a segment's files end with.
pub(crate) const SEGMENT_FILES: [&str; 4] = [LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX];
const SCAN_BYTES: u64 = 256 * 1024;

/// A segment of one partition.
#[derive(Debug)]
pub(crate) struct Segment {
    base_offset: i64,
    path: PathBuf,
    log: Arc<dyn StorageFile>,
    size_bytes: u64,
    offset_index: Index<OffsetEntry>,
    time_index: Index<TimeEntry>,
    transaction_index: Index<AbortedEntry>,
    bytes_since_index: u64,
    largest: Option<TimeEntry>,
    first_timestamp: Option<i64>,
    /// When retention looked for a timestamp first, since the last batch, and found none.
    first_looked_at: Option<i64>,
    unsynced: bool,
}

/// How new a segment's records are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Newest {
    pub(crate) at_ms: i64,
    /// Whether a record says so.
    pub(crate) recorded: bool,
}

/// Where a batch lies, and what the indexes need of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchPlace {
    pub(crate) position: u64,
    pub(crate) size_bytes: u64,
    pub(crate) last_offset: i64,
    pub(crate) max_timestamp: i64,
}

impl BatchPlace {
    pub(crate) fn of(batch: &RecordBatch, position: u64) -> BatchPlace {
        BatchPlace {
            position,
            size_bytes: batch.size_bytes() as u64,
            last_offset: batch.last_offset(),
            max_timestamp: batch.max_timestamp(),
        }
    }
}

/// The base offset that a log file's name carries.
pub(crate) fn base_offset_of(name: &str) -> Option<i64> {
    let digits = name.strip_suffix(LOG).filter(|digits| digits.len() == 20)?;
    digits.parse().ok()
}

impl Segment {
    /// A new, empty segment. Files that an earlier attempt left are emptied.
    pub(crate) fn create(
        storage: &dyn Storage,
        directory: &Path,
        base_offset: i64,
    ) -> Result<Segment, LogError> {
        let mut segment = Segment::open(storage, directory, base_offset)?;
        if segment.size_bytes > 0 {
            segment
                .log
                .set_len(0)
                .map_err(|error| LogError::io("empty", &segment.path, error))?;
            segment.size_bytes = 0;
        }
        let transaction_index = file(directory, base_offset, TRANSACTION_INDEX);
        if storage
            .exists(&transaction_index)
            .is_ok_and(|exists| exists)
        {
            storage
                .remove_file(&transaction_index)
                .map_err(|error| LogError::io("remove", &transaction_index, error))?;
        }
        segment.offset_index = Index::create(file(directory, base_offset, OFFSET_INDEX));
        segment.time_index = Index::create(file(directory, base_offset, TIME_INDEX));
        segment.transaction_index = Index::create(transaction_index);
        Ok(segment)
    }

    /// A new segment whose files have names of their own until it takes the place of others.
    pub(crate) fn create_cleaned(
        storage: &dyn Storage,
        directory: &Path,
        base_offset: i64,
    ) -> Result<Segment, LogError> {
        let path = |extension: &str| file(directory, base_offset, &format!("{extension}{CLEANED}"));
        let log_path = path(LOG);
        let log = storage
            .open(&log_path, OpenMode::Write)
            .and_then(|log| log.set_len(0).map(|()| log))
            .map_err(|error| LogError::io("create", &log_path, error))?;
        let mut segment = Segment {
            base_offset,
            path: log_path,
            log,
            size_bytes: 0,
            offset_index: Index::create(path(OFFSET_INDEX)),
            time_index: Index::create(path(TIME_INDEX)),
            transaction_index: Index::create(path(TRANSACTION_INDEX)),
            bytes_since_index: 0,
            largest: None,
            first_timestamp: None,
            first_looked_at: None,
            unsynced: true,
        };
        segment.offset_index.write(storage)?;
        segment.time_index.write(storage)?;
        segment.transaction_index.write(storage)?;
        Ok(segment)
    }

    /// Ends a cleaned segment. All its files are there, so that each replaces the old one.
    pub(crate) fn seal_cleaned(&mut self, storage: &dyn Storage) -> Result<(), LogError> {
        self.seal(storage)?;
        self.transaction_index.write(storage)
    }

    /// From now on the files have the names of the segment that this one replaces.
    pub(crate) fn take_place(&mut self, directory: &Path) {
        self.path = file(directory, self.base_offset, LOG);
        let path = |extension| file(directory, self.base_offset, extension);
        self.offset_index.renamed(path(OFFSET_INDEX));
        self.time_index.renamed(path(TIME_INDEX));
        self.transaction_index.renamed(path(TRANSACTION_INDEX));
    }

    /// A segment whose log file is there, or is created.
    pub(crate) fn open(
        storage: &dyn Storage,
        directory: &Path,
        base_offset: i64,
    ) -> Result<Segment, LogError> {
        let path = file(directory, base_offset, LOG);
        let opened = storage
            .open(&path, OpenMode::Write)
            .and_then(|log| log.len().map(|size_bytes| (log, size_bytes)));
        let (log, size_bytes) = opened.map_err(|error| LogError::io("open", &path, error))?;
        Ok(Segment {
            base_offset,
            path,
            log,
            size_bytes,
            offset_index: Index::open(file(directory, base_offset, OFFSET_INDEX)),
            time_index: Index::open(file(directory, base_offset, TIME_INDEX)),
            transaction_index: Index::open(file(directory, base_offset, TRANSACTION_INDEX)),
            bytes_since_index: 0,
            largest: None,
            first_timestamp: None,
            first_looked_at: None,
            unsynced: false,
        })
    }

    pub(crate) fn base_offset(&self) -> i64 {
        self.base_offset
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn log(&self) -> &Arc<dyn StorageFile> {
        &self.log
    }

    /// Timestamp of the first batch.
    pub(crate) fn first_timestamp(&self) -> Option<i64> {
        self.first_timestamp
    }

    /// As `first_timestamp`, read from the file when it is not known.
    pub(crate) fn find_first_timestamp(&mut self) -> Result<Option<i64>, LogError> {
        if self.first_timestamp.is_none()
            && let Scanned::Batch(_, first) = self.scan(0).next()?
        {
            self.first_timestamp = Some(first.max_timestamp());
        }
        Ok(self.first_timestamp)
    }

    fn relative(&self, offset: i64) -> i64 {
        offset.saturating_sub(self.base_offset)
    }

    /// Whether an offset can be written relative to the base offset.
    pub(crate) fn takes_offset(&self, offset: i64) -> bool {
        self.relative(offset) <= i32::MAX.into()
    }

    /// Whether the index files can be those of this log file. A missing transaction index is an
    /// empty one.
    pub(crate) fn has_plausible_indexes(&self, storage: &dyn Storage) -> Result<bool, LogError> {
        let transactions = storage.exists(self.transaction_index.path());
        let transactions = transactions
            .map_err(|error| LogError::io("read", self.transaction_index.path(), error))?;
        Ok(self.offset_index.is_plausible(storage)?
            && self.time_index.is_plausible(storage)?
            && (!transactions || self.transaction_index.is_plausible(storage)?))
    }

    /// Writes behind the last batch. On an error the segment is what it was before, or the error
    /// says so (`false`: the file could not be cut back).
    pub(crate) fn write(&mut self, parts: &[&[u8]]) -> Result<u64, (LogError, bool)> {
        let position = self.size_bytes;
        self.unsynced = true;
        if let Err(error) = self.log.write_at(parts, position) {
            let restored = self.log.set_len(position).is_ok();
            return Err((LogError::io("append to", &self.path, error), restored));
        }
        self.size_bytes += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        Ok(position)
    }

    /// Keeps the indexes up with a batch that lies in the file.
    pub(crate) fn index_batch(&mut self, place: &BatchPlace, interval_bytes: u64) {
        let relative = i32::try_from(self.relative(place.last_offset)).unwrap_or(i32::MAX);
        self.first_timestamp.get_or_insert(place.max_timestamp);
        self.first_looked_at = None;
        if self
            .largest
            .is_none_or(|largest| place.max_timestamp > largest.timestamp)
        {
            self.largest = Some(TimeEntry {
                timestamp: place.max_timestamp,
                relative_offset: relative,
            });
        }
        if self.bytes_since_index > interval_bytes
            && let Ok(position) = i32::try_from(place.position)
        {
            self.offset_index.push(OffsetEntry {
                relative_offset: relative,
                position,
            });
            self.time_index.push(self.largest.unwrap_or(TimeEntry {
                timestamp: place.max_timestamp,
                relative_offset: relative,
            }));
            self.bytes_since_index = 0;
        }
        self.bytes_since_index += place.size_bytes;
    }

    /// Size of the larger one of the two indexes that grow with the log.
    pub(crate) fn index_bytes(&mut self, storage: &dyn Storage) -> Result<u64, LogError> {
        let offsets = self.offset_index.entries(storage)?.len() * OffsetEntry::BYTES;
        let times = self.time_index.entries(storage)?.len() * TimeEntry::BYTES;
        Ok(offsets.max(times) as u64)
    }

    /// Adds an aborted transaction whose marker lies in this segment.
    pub(crate) fn add_aborted(&mut self, storage: &dyn Storage, entry: AbortedEntry) {
        if self.transaction_index.entries(storage).is_ok() {
            self.transaction_index.push(entry);
        }
    }

    /// The aborted transactions whose marker lies in this segment.
    pub(crate) fn aborted(
        &mut self,
        storage: &dyn Storage,
    ) -> Result<&Vec<AbortedEntry>, LogError> {
        self.transaction_index.entries(storage)
    }

    /// Where to begin to look for an offset.
    pub(crate) fn position_for(
        &mut self,
        storage: &dyn Storage,
        offset: i64,
    ) -> Result<u64, LogError> {
        let relative = self.relative(offset);
        let size_bytes = self.size_bytes;
        let entries = self.offset_index.entries(storage)?;
        Ok(Some(position_for(entries, relative))
            .filter(|at| *at < size_bytes)
            .unwrap_or(0))
    }

    /// Where to begin to look for a batch with a timestamp of at least `timestamp`; `None` when
    /// there is none.
    pub(crate) fn position_for_timestamp(
        &mut self,
        storage: &dyn Storage,
        timestamp: i64,
    ) -> Result<Option<u64>, LogError> {
        if self
            .largest(storage)?
            .is_none_or(|largest| largest.timestamp < timestamp)
        {
            return Ok(None);
        }
        let relative = offset_before(self.time_index.entries(storage)?, timestamp);
        self.position_for(storage, self.base_offset + relative)
            .map(Some)
    }

    /// The largest timestamp, and the last offset of the batch that has it.
    pub(crate) fn largest(&mut self, storage: &dyn Storage) -> Result<Option<TimeEntry>, LogError> {
        if self.largest.is_none() {
            self.largest = self.time_index.entries(storage)?.last().copied();
        }
        Ok(self.largest)
    }

    /// How new its records are: the largest timestamp, or, where there is none, the time of the
    /// first look at the last of them.
    pub(crate) fn newest(
        &mut self,
        storage: &dyn Storage,
        now_ms: i64,
    ) -> Result<Newest, LogError> {
        let largest = self.largest(storage)?.map(|entry| entry.timestamp);
        Ok(match largest.filter(|timestamp| *timestamp >= 0) {
            Some(at_ms) => Newest {
                at_ms,
                recorded: true,
            },
            None => Newest {
                at_ms: *self.first_looked_at.get_or_insert(now_ms),
                recorded: false,
            },
        })
    }

    /// Takes up a segment that was closed cleanly, to append to it.
    pub(crate) fn resume(&mut self, storage: &dyn Storage) -> Result<(), LogError> {
        self.largest(storage)?;
        self.transaction_index.entries(storage)?;
        let last = self.offset_index.entries(storage)?.last().copied();
        let indexed = last.map_or(0, |entry| entry.position.unsigned_abs().into());
        self.bytes_since_index = self.size_bytes.saturating_sub(indexed);
        if let Scanned::Batch(_, first) = self.scan(0).next()? {
            self.first_timestamp = Some(first.max_timestamp());
        }
        Ok(())
    }

    /// Begins to rebuild the indexes: forgets them.
    pub(crate) fn begin_rebuild(&mut self, storage: &dyn Storage) -> Result<(), LogError> {
        self.offset_index.clear(storage)?;
        self.time_index.clear(storage)?;
        if self.aborted(storage)?.is_empty() {
            self.transaction_index = Index::create(self.transaction_index.path().to_owned());
        } else {
            self.transaction_index.clear(storage)?;
        }
        self.bytes_since_index = 0;
        self.largest = None;
        self.first_timestamp = None;
        // What another process wrote may not be on the disk yet.
        self.unsynced = true;
        Ok(())
    }

    /// Cuts the log file; the indexes keep what lies below `offset`.
    pub(crate) fn truncate(
        &mut self,
        storage: &dyn Storage,
        position: u64,
        offset: i64,
    ) -> Result<(), LogError> {
        self.log
            .set_len(position)
            .map_err(|error| LogError::io("truncate", &self.path, error))?;
        self.size_bytes = position;
        self.unsynced = true;
        let base = self.base_offset;
        self.offset_index.truncate(storage, |entry| {
            base + i64::from(entry.relative_offset) < offset
        })?;
        self.time_index.truncate(storage, |entry| {
            base + i64::from(entry.relative_offset) < offset
        })?;
        if !self.aborted(storage)?.is_empty() {
            self.transaction_index
                .truncate(storage, |entry| entry.last_offset < offset)?;
        }
        self.recompute(storage)
    }

    /// Finds largest and first timestamp again, from the last index entry on.
    fn recompute(&mut self, storage: &dyn Storage) -> Result<(), LogError> {
        self.largest = self.time_index.entries(storage)?.last().copied();
        let last = self.offset_index.entries(storage)?.last().copied();
        let from = last.map_or(0, |entry| entry.position.unsigned_abs().into());
        self.first_timestamp = match self.scan(0).next()? {
            Scanned::Batch(_, first) => Some(first.max_timestamp()),
            _ => None,
        };
        self.bytes_since_index = self.size_bytes.saturating_sub(from);
        let mut scan = self.scan(from);
        let mut largest = self.largest;
        while let Scanned::Batch(position, batch) = scan.next()? {
            let place = BatchPlace::of(&batch, position);
            if largest.is_none_or(|largest| place.max_timestamp > largest.timestamp) {
                let relative = i32::try_from(self.relative(place.last_offset)).unwrap_or(i32::MAX);
                largest = Some(TimeEntry {
                    timestamp: place.max_timestamp,
                    relative_offset: relative,
                });
            }
        }
        self.largest = largest;
        Ok(())
    }

    /// The batches from a position on.
    pub(crate) fn scan(&self, from: u64) -> BatchScan<'_> {
        BatchScan {
            file: self.log.as_ref(),
            path: &self.path,
            position: from,
            end: self.size_bytes,
            buffer: Bytes::new(),
        }
    }

    /// Ends the segment: its time index says the largest timestamp.
    pub(crate) fn seal(&mut self, storage: &dyn Storage) -> Result<(), LogError> {
        if let Some(largest) = self.largest(storage)? {
            self.time_index.entries(storage)?;
            self.time_index.push(largest);
        }
        self.write_indexes(storage)
    }

    /// Writes what waits in the indexes.
    pub(crate) fn write_indexes(&mut self, storage: &dyn Storage) -> Result<(), LogError> {
        self.offset_index.write(storage)?;
        self.time_index.write(storage)?;
        if self.transaction_index.last().is_some() {
            self.transaction_index.write(storage)?;
        }
        Ok(())
    }

    /// Whether it is empty, and was left so.
    pub(crate) fn is_untouched(&self) -> bool {
        self.size_bytes == 0
            && !self.unsynced
            && !self.offset_index.is_unsynced()
            && !self.time_index.is_unsynced()
            && !self.transaction_index.is_unsynced()
    }

    /// The files that hold what was not synced; they count as synced from now on.
    pub(crate) fn take_unsynced(&mut self, files: &mut Vec<(PathBuf, Arc<dyn StorageFile>)>) {
        if std::mem::take(&mut self.unsynced) {
            files.push((self.path.clone(), self.log.clone()));
        }
        files.extend(self.offset_index.take_unsynced());
        files.extend(self.time_index.take_unsynced());
        files.extend(self.transaction_index.take_unsynced());
    }

    /// Removes the files, the log file first: an index without a log file is nothing.
    pub(crate) fn remove(self, storage: &dyn Storage) -> Result<(), LogError> {
        let indexes = [
            self.offset_index.path(),
            self.time_index.path(),
            self.transaction_index.path(),
        ];
        storage
            .remove_file(&self.path)
            .map_err(|error| LogError::io("remove", &self.path, error))?;
        for path in indexes {
            let removed = match storage.exists(path) {
                Ok(false) => Ok(()),
                Ok(true) => storage.remove_file(path),
                Err(error) => Err(error),
            };
            removed.map_err(|error| LogError::io("remove", path, error))?;
        }
        Ok(())
    }
}

/// What a scan met.
#[derive(Debug)]
pub(crate) enum Scanned {
    /// A batch, and where it begins. Its CRC was not checked.
    Batch(u64, RecordBatch),
    /// The end of the segment.
    End,
    /// Bytes that are no whole batch.
    Damaged(u64, String),
}

/// Batches of a segment, one after another.
#[derive(Debug)]
pub(crate) struct BatchScan<'a> {
    file: &'a dyn StorageFile,
    path: &'a Path,
    position: u64,
    end: u64,
    buffer: Bytes,
}

impl<'a> BatchScan<'a> {
    /// A scan over a part of a log file that no lock protects: `end` is as far as it goes.
    pub(crate) fn over(
        file: &'a dyn StorageFile,
        path: &'a Path,
        position: u64,
        end: u64,
    ) -> BatchScan<'a> {
        BatchScan {
            file,
            path,
            position,
            end,
            buffer: Bytes::new(),
        }
    }

    /// The next batch.
    pub(crate) fn next(&mut self) -> Result<Scanned, LogError> {
        if self.position >= self.end {
            return Ok(Scanned::End);
        }
        let position = self.position;
        let mut split = RecordBatch::split_from(&mut self.buffer);
        if split == Ok(None) {
            let needed = self.fill(SCAN_BYTES)?;
            if needed > SCAN_BYTES {
                self.fill(needed)?;
            }
            split = RecordBatch::split_from(&mut self.buffer);
        }
        match split {
            Ok(Some(batch)) => {
                self.position += batch.size_bytes() as u64;
                Ok(Scanned::Batch(position, batch))
            }
            Ok(None) => Ok(Scanned::Damaged(
                position,
                "a batch is cut short".to_owned(),
            )),
            Err(error) => Ok(Scanned::Damaged(position, error.to_string())),
        }
    }

    /// Reads from the position on and returns how many bytes the batch there takes.
    fn fill(&mut self, want: u64) -> Result<u64, LogError> {
        let want = want.min(self.end - self.position);
        self.buffer = read_exactly(self.file, self.path, self.position, want)?;
        let declared = RecordBatch::declared_size_bytes(&self.buffer).unwrap_or_default() as u64;
        Ok(if declared > self.end - self.position {
            0
        } else {
            declared
        })
    }
}

/// Reads `size_bytes` at `position`; fewer only when the file ends before.
pub(crate) fn read_exactly(
    file: &dyn StorageFile,
    path: &Path,
    position: u64,
    size_bytes: u64,
) -> Result<Bytes, LogError> {
    let mut buffer = vec![0; usize::try_from(size_bytes).unwrap_or(usize::MAX)];
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let read = file
            .read_at(rest, position + filled as u64)
            .map_err(|error| LogError::io("read", path, error))?;
        if read == 0 {
            break;
        }
        filled += read;
    }
    buffer.truncate(filled);
    Ok(Bytes::from(buffer))
}

/// Whether a log goes on at `found` where `expected` was to follow: compaction may have taken what
/// lies between, as far as it came.
pub(crate) fn follows(found: i64, expected: i64, cleaned_below: i64) -> bool {
    found == expected || (expected < found && found <= cleaned_below)
}

/// Checks a batch as it lies in a log: its CRC, and that it begins where the last one ended, or
/// behind what compaction took.
pub(crate) fn check_place(
    batch: &RecordBatch,
    expected_offset: i64,
    cleaned_below: i64,
) -> Result<(), String> {
    if !follows(batch.base_offset(), expected_offset, cleaned_below) {
        let found = batch.base_offset();
        return Err(format!(
            "a batch has offset {found}, {expected_offset} was to follow"
        ));
    }
    batch
        .verify_crc()
        .map_err(|error: BatchError| error.to_string())
}
