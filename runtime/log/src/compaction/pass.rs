//! One pass over one log: map the dirty keys, filter the segments group by group, swap each group.
//!
//! Invariants: every batch passes its CRC before it is mapped or copied; what a pass read is still
//! in the log when it swaps, or the group is left as it is and the pass ends there; a pass that
//! ends early, for whatever reason, leaves a log from which no key's last record is missing.
//! Never: holds more than a buffer of records, the map and one batch in memory.

use super::filter::{Fate, Filter, Judged, LiveProducers};
use super::offset_map::OffsetMap;
use super::select::{Candidate, groups};
use super::transactions::Transactions;
use crate::error::LogError;
use crate::failpoint;
use crate::index::transaction::AbortedEntry;
use crate::partition::PartitionLog;
use crate::producer_state::snapshot;
use crate::segment::{BatchPlace, BatchScan, Scanned, Segment};
use crate::storage::StorageFile;
use bytes::Bytes;
use millstream_protocol::{BatchRewriter, RecordBatch};
use rustc_hash::FxHashSet;
use std::path::PathBuf;
use std::sync::Arc;

/// Cleaned batches are written in pieces of about this size.
const BUFFER_BYTES: usize = 256 * 1024;

/// A closed segment as a pass reads it: through its own handle, whatever becomes of its name.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) base_offset: i64,
    /// Where the next segment begins.
    pub(crate) end: i64,
    pub(crate) size_bytes: u64,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn StorageFile>,
}

/// What a pass works on, taken at one moment.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) segments: Vec<Source>,
    pub(crate) aborted: Vec<AbortedEntry>,
    /// Producers that are not forgotten.
    pub(crate) producers: FxHashSet<i64>,
    /// As far as compaction came before; older snapshots of producers do not fit the log.
    pub(crate) cleaned_below: i64,
}

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cleaned {
    /// Where the next pass begins.
    pub(crate) next_dirty: i64,
    pub(crate) bytes_before: u64,
    pub(crate) bytes_after: u64,
    pub(crate) judged: Judged,
}

/// Cleans what `candidate` says, as far as the keys fit into a map of this size.
pub(crate) fn run(
    log: &PartitionLog,
    candidate: &Candidate,
    map_bytes_max: usize,
    now_ms: i64,
) -> Result<Cleaned, LogError> {
    let sources = log.cleaning_sources(candidate.end)?;
    let live = live_producers(log, &sources, candidate.end)?;
    let Sources {
        mut segments,
        aborted,
        ..
    } = sources;
    let mut cleaned = Cleaned {
        next_dirty: candidate.first_dirty,
        ..Cleaned::default()
    };
    let transactions = || Transactions::new(aborted.iter().copied());
    let map = mapped(log, candidate, &segments, map_bytes_max, transactions())?;
    segments.retain(|source| source.base_offset < map.end());
    let mut filter = Filter {
        map: &map,
        live,
        transactions: transactions(),
        now_ms,
        delete_retention_ms: log.config().delete_retention_ms,
        round_end: candidate.end,
        max_decompressed_bytes: log.config().max_decompressed_bytes,
        rewriter: BatchRewriter::new(),
        judged: Judged::default(),
    };
    let sizes: Vec<_> = segments
        .iter()
        .map(|source| (source.base_offset..source.end, source.size_bytes))
        .collect();
    let mut is_whole = true;
    for range in groups(&sizes, log.config().segment_bytes) {
        let is_first = range.start == 0;
        let group = segments.get(range).unwrap_or_default();
        cleaned.bytes_before += group.iter().map(|source| source.size_bytes).sum::<u64>();
        let Some(size_bytes) = clean_group(log, &mut filter, group, is_first)? else {
            // Retention took a part of the group, and the rest has what newer records supersede:
            // no tombstone behind it may go, and the next pass has to map those records again.
            is_whole = false;
            break;
        };
        cleaned.bytes_after += size_bytes;
    }
    if is_whole {
        cleaned.next_dirty = map.end();
    }
    cleaned.judged = filter.judged;
    if cleaned.judged.records_without_key > 0 {
        let count = cleaned.judged.records_without_key;
        tracing::warn!(log = ?log.directory(), count, "records without a key were dropped");
    }
    Ok(cleaned)
}

/// The batches of a source, in order; every one was checked.
fn each_batch(
    log: &PartitionLog,
    source: &Source,
    mut visit: impl FnMut(RecordBatch) -> Result<bool, LogError>,
) -> Result<(), LogError> {
    let (file, size_bytes) = (source.file.as_ref(), source.size_bytes);
    let corrupt = |position: u64, reason: String| LogError::corrupt(&source.path, position, reason);
    let mut scan = BatchScan::over(file, &source.path, 0, size_bytes);
    let (mut next, mut checked_at) = (source.base_offset, 0);
    loop {
        let (position, batch) = match scan.next()? {
            Scanned::Batch(position, batch) => (position, batch),
            Scanned::End => return Ok(()),
            Scanned::Damaged(position, reason) => return Err(corrupt(position, reason)),
        };
        if position >= checked_at {
            // A log that was closed meanwhile is left alone soon.
            log.check_online()?;
            checked_at = position + BUFFER_BYTES as u64;
        }
        if batch.base_offset() < next || batch.next_offset() > source.end {
            let offset = batch.base_offset();
            return Err(corrupt(
                position,
                format!("offset {offset} is out of place"),
            ));
        }
        batch
            .verify_crc()
            .map_err(|error| corrupt(position, error.to_string()))?;
        next = batch.next_offset();
        if !visit(batch)? {
            return Ok(());
        }
    }
}

fn undecodable(source: &Source, batch: &RecordBatch, error: &dyn std::fmt::Display) -> LogError {
    let offset = batch.base_offset();
    LogError::corrupt(
        &source.path,
        0,
        format!("batch at offset {offset}: {error}"),
    )
}

/// The producers as they were at `end`: from a snapshot, and the batches since.
fn live_producers(
    log: &PartitionLog,
    sources: &Sources,
    end: i64,
) -> Result<LiveProducers, LogError> {
    let within = sources.cleaned_below..=end;
    let loaded = snapshot::load(log.storage(), log.directory(), within)?;
    let (from, mut producers) = loaded.unwrap_or_default();
    for source in sources.segments.iter().filter(|source| source.end > from) {
        each_batch(log, source, |batch| {
            if batch.base_offset() >= from {
                producers
                    .replay(&batch)
                    .map_err(|error| undecodable(source, &batch, &error))?;
            }
            Ok(true)
        })?;
    }
    Ok(LiveProducers::of(&producers, &sources.producers))
}

/// The keys of the dirty part.
fn mapped(
    log: &PartitionLog,
    candidate: &Candidate,
    segments: &[Source],
    size_bytes_max: usize,
    mut transactions: Transactions,
) -> Result<OffsetMap, LogError> {
    let config = log.config();
    let max_bytes = config.max_decompressed_bytes;
    let mut map = OffsetMap::new(candidate.first_dirty, size_bytes_max, config.hash_seed);
    for source in segments {
        if source.end <= candidate.first_dirty {
            continue;
        }
        each_batch(log, source, |batch| {
            if batch.next_offset() <= candidate.first_dirty {
                return Ok(true);
            }
            if batch.is_control() || transactions.on_batch(&batch) {
                map.pass(batch.next_offset());
                return Ok(true);
            }
            map.add(&batch, max_bytes)
                .map_err(|error| undecodable(source, &batch, &error))?;
            Ok(!map.is_full())
        })?;
        if map.is_full() {
            break;
        }
        map.pass(source.end);
    }
    Ok(map)
}

/// Writes what stays of a group and swaps it in; returns its size, or `None` when it was left
/// alone.
fn clean_group(
    log: &PartitionLog,
    filter: &mut Filter<'_>,
    group: &[Source],
    is_first: bool,
) -> Result<Option<u64>, LogError> {
    let base_offset = group.first().map_or(0, |source| source.base_offset);
    let mut output = Output::new(log, base_offset);
    let written = write_group(log, filter, group, is_first, &mut output)
        .and_then(|()| output.finish())
        .and_then(|segment| {
            let size_bytes = segment.as_ref().map_or(0, Segment::size_bytes);
            failpoint::hit("log.compaction.before-swap");
            let is_in = log.swap_in(group, segment)?;
            Ok(is_in.then_some(size_bytes))
        });
    if let Err(cause) = &written {
        log.abandon_cleaning(cause);
    }
    written
}

fn write_group(
    log: &PartitionLog,
    filter: &mut Filter<'_>,
    group: &[Source],
    is_first: bool,
    output: &mut Output<'_>,
) -> Result<(), LogError> {
    let mut last: Option<RecordBatch> = None;
    for source in group {
        each_batch(log, source, |batch| {
            let (fate, entry) = filter
                .judge(&batch)
                .map_err(|error| undecodable(source, &batch, &error))?;
            output.aborted.extend(entry);
            match fate {
                Fate::Drop => {}
                Fate::Keep => output.append(batch.bytes())?,
                Fate::Replace(bytes) => output.append(&bytes)?,
            }
            last = Some(batch);
            Ok(true)
        })?;
    }
    let Some(last) = last.filter(|_| is_first && output.is_empty()) else {
        return Ok(());
    };
    // The first segment says where the log begins and how old it is: it never goes as a whole.
    let emptied = filter.rewriter.placeholder(&last);
    output
        .append(&emptied.map_err(|error| LogError::corrupt(log.directory(), 0, error.to_string()))?)
}

/// The cleaned segment of a group; its files are there once something was written.
struct Output<'a> {
    log: &'a PartitionLog,
    base_offset: i64,
    segment: Option<Segment>,
    buffer: Vec<u8>,
    aborted: Vec<AbortedEntry>,
}

impl<'a> Output<'a> {
    fn new(log: &'a PartitionLog, base_offset: i64) -> Output<'a> {
        Output {
            log,
            base_offset,
            segment: None,
            buffer: Vec::new(),
            aborted: Vec::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.segment.is_none()
    }

    fn append(&mut self, bytes: &Bytes) -> Result<(), LogError> {
        let segment = match &mut self.segment {
            Some(segment) => segment,
            none => none.insert(self.log.create_cleaned(self.base_offset)?),
        };
        let position = segment.size_bytes() + self.buffer.len() as u64;
        let batch = RecordBatch::parse(bytes.clone())
            .map_err(|error| LogError::corrupt(segment.path(), position, error.to_string()))?;
        let interval_bytes = self.log.config().index_interval_bytes;
        segment.index_batch(&BatchPlace::of(&batch, position), interval_bytes);
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER_BYTES {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), LogError> {
        if let Some(segment) = &mut self.segment {
            segment.write(&[&self.buffer]).map_err(|(error, _)| error)?;
            self.buffer.clear();
        }
        Ok(())
    }

    /// The segment with its indexes, synced; `None` when nothing was written.
    fn finish(&mut self) -> Result<Option<Segment>, LogError> {
        self.write()?;
        let Some(mut segment) = self.segment.take() else {
            return Ok(None);
        };
        let storage = self.log.storage();
        for entry in self.aborted.drain(..) {
            segment.add_aborted(storage, entry);
        }
        segment.seal_cleaned(storage)?;
        let mut files = Vec::new();
        segment.take_unsynced(&mut files);
        if self.log.durability().syncs_files() {
            for (path, file) in files {
                file.sync_data()
                    .map_err(|error| LogError::io("sync", &path, error))?;
            }
        }
        Ok(Some(segment))
    }
}
