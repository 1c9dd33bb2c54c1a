//! Reads: from the tail in memory or with one read of a log file, whole batches, never beyond the
//! isolation's bound.
//!
//! Invariants: the bound is taken once a read, before anything is read; every batch from a file
//! passes its CRC before it is handed out; what aborted records a reader of committed ones gets, it
//! is told of, whatever retention removes meanwhile.
//! Never: reads a file under the partition's lock (but for indexes that are used the first time).

use super::state::PartitionState;
use super::{AbortedTransaction, Isolation, LogOffsets, PartitionLog, ReadRequest, ReadResult};
use crate::append_error::ReadError;
use crate::error::LogError;
use crate::index::transaction::collect;
use crate::segment::{BatchScan, Scanned, Segment, read_exactly};
use crate::storage::StorageFile;
use crate::tail::{TailBatch, joined};
use bytes::Bytes;
use millstream_protocol::RecordBatch;
use std::path::PathBuf;
use std::sync::Arc;

/// Read ahead of the first batch because the index is sparse.
const SLACK_BYTES: usize = 8 * 1024;

/// Where the bytes are.
enum Plan {
    Nothing,
    Tail(Vec<TailBatch>),
    File(FileRun),
}

/// A part of a log file.
struct FileRun {
    file: Arc<dyn StorageFile>,
    path: PathBuf,
    start: u64,
    end: u64,
    /// Where to go on when the segment has nothing left from the offset on: compaction took it.
    gap_ends: Option<i64>,
}

/// What a part of a log file holds.
enum Found {
    Nothing,
    Batches(Run),
    /// Nothing before this offset.
    Gap(i64),
}

/// Batches in one piece, and the offset after them.
struct Run {
    bytes: Bytes,
    next_offset: i64,
}

pub(super) fn read(log: &PartitionLog, request: ReadRequest) -> Result<ReadResult, ReadError> {
    let mut sought = request;
    loop {
        let (offsets, swaps, plan) = {
            let mut state = log.lock();
            let offsets = state.offsets();
            (offsets, state.swaps, state.plan(log, &sought, offsets)?)
        };
        let bound = bound_of(offsets, request.isolation);
        let mut result = ReadResult {
            batches: Vec::new(),
            aborted: Vec::new(),
            offsets,
            next_offset: request.offset,
        };
        let run = match read_planned(plan, &sought, bound)? {
            Found::Nothing => return Ok(result),
            Found::Gap(offset) => {
                sought.offset = offset;
                continue;
            }
            Found::Batches(run) => run,
        };
        assert!(
            run.next_offset <= bound,
            "invariant: nothing beyond the bound is handed out"
        );
        if request.isolation == Isolation::LastStable {
            let mut state = log.lock();
            // What is below the log start by now has lost its list of aborted transactions as well.
            state.check_readable(request.offset)?;
            if state.swaps != swaps {
                // The list may not name what was read from a file that compaction has replaced.
                continue;
            }
            result.aborted = state.aborted_within(log, sought.offset, run.next_offset)?;
        }
        result.next_offset = run.next_offset;
        result.batches.push(run.bytes);
        return Ok(result);
    }
}

fn read_planned(plan: Plan, request: &ReadRequest, bound: i64) -> Result<Found, ReadError> {
    match plan {
        Plan::Nothing => Ok(Found::Nothing),
        Plan::Tail(batches) => Ok(batches.last().map_or(Found::Nothing, |last| {
            Found::Batches(Run {
                next_offset: last.next_offset,
                bytes: joined(&batches),
            })
        })),
        Plan::File(run) => read_run(&run, request, bound),
    }
}

fn bound_of(offsets: LogOffsets, isolation: Isolation) -> i64 {
    match isolation {
        Isolation::LogEnd => offsets.log_end,
        Isolation::HighWatermark => offsets.high_watermark,
        Isolation::LastStable => offsets.last_stable,
    }
}

impl PartitionState {
    /// Whether the log is open and reaches from its start to this offset.
    fn check_readable(&self, offset: i64) -> Result<(), ReadError> {
        self.check_open()?;
        let (log_start, log_end) = (self.log_start, self.log_end);
        if (log_start..=log_end).contains(&offset) {
            return Ok(());
        }
        Err(ReadError::OffsetOutOfRange {
            offset,
            log_start,
            log_end,
        })
    }

    fn plan(
        &mut self,
        log: &PartitionLog,
        request: &ReadRequest,
        offsets: LogOffsets,
    ) -> Result<Plan, ReadError> {
        let offset = request.offset;
        let bound = bound_of(offsets, request.isolation);
        self.check_readable(offset)?;
        if offset >= bound {
            return Ok(Plan::Nothing);
        }
        let cached = self
            .tail
            .read(offset, bound, request.max_bytes, request.at_least_one);
        if let Some(batches) = cached {
            return Ok(Plan::Tail(batches));
        }
        let index = self.segment_index(offset);
        let next = self.segments.get(index + 1).map(Segment::base_offset);
        let gap_ends = next.filter(|next| *next <= self.cleaned_below);
        let Some(segment) = self.segments.get_mut(index) else {
            return Ok(Plan::Nothing);
        };
        Ok(Plan::File(FileRun {
            start: segment.position_for(log.storage.as_ref(), offset)?,
            end: segment.size_bytes(),
            file: segment.log().clone(),
            path: segment.path().to_owned(),
            gap_ends,
        }))
    }

    /// The aborted transactions that overlap `from..upper`, in the order of their markers.
    fn aborted_within(
        &mut self,
        log: &PartitionLog,
        from: i64,
        upper: i64,
    ) -> Result<Vec<AbortedTransaction>, LogError> {
        if !self.has_aborted {
            return Ok(Vec::new());
        }
        let first = self.segment_index(from);
        let mut found = Vec::new();
        for segment in self.segments.iter_mut().skip(first) {
            if collect(
                segment.aborted(log.storage.as_ref())?,
                from,
                upper,
                &mut found,
            ) {
                break;
            }
        }
        let aborted = found.into_iter().map(|entry| AbortedTransaction {
            producer_id: entry.producer_id,
            first_offset: entry.first_offset,
        });
        Ok(aborted.collect())
    }
}

/// Batches from `request.offset` on. That offset lies below the bound, so a segment that has no
/// batch for it has lost some, or compaction took them.
fn read_run(run: &FileRun, request: &ReadRequest, bound: i64) -> Result<Found, ReadError> {
    let mut position = run.start;
    let mut want = request.max_bytes.saturating_add(SLACK_BYTES) as u64;
    while position < run.end {
        let left = run.end - position;
        let mut buffer = read_exactly(run.file.as_ref(), &run.path, position, want.min(left))?;
        let before = position;
        skip_before(run, &mut buffer, &mut position, request.offset)?;
        let first_bytes = RecordBatch::declared_size_bytes(&buffer).unwrap_or_default();
        if first_bytes > 0 && buffer.len() >= first_bytes {
            return take_batches(run, request, bound, buffer, position);
        }
        if first_bytes > request.max_bytes && !request.at_least_one {
            return Ok(Found::Nothing);
        }
        if position == before && (buffer.len() as u64) < want.max(1) {
            return Err(corrupt(
                run,
                request.offset,
                position,
                "a batch is cut short",
            ));
        }
        // Batches before the offset filled the buffer, or the first one is larger than it.
        want = want.max(first_bytes as u64);
    }
    run.gap_ends.map(Found::Gap).ok_or_else(|| {
        let reason = "the segment has no batch for this offset";
        corrupt(run, request.offset, run.end, reason)
    })
}

/// Passes over batches that end before `offset`.
fn skip_before(
    run: &FileRun,
    buffer: &mut Bytes,
    position: &mut u64,
    offset: i64,
) -> Result<(), ReadError> {
    loop {
        let mut rest = buffer.clone();
        let split = RecordBatch::split_from(&mut rest)
            .map_err(|error| corrupt(run, offset, *position, &error.to_string()))?;
        match split {
            Some(batch) if batch.last_offset() < offset => {
                *position += batch.size_bytes() as u64;
                *buffer = rest;
            }
            _ => return Ok(()),
        }
    }
}

/// Whole batches from the start of the buffer on, each with a good CRC.
fn take_batches(
    run: &FileRun,
    request: &ReadRequest,
    bound: i64,
    buffer: Bytes,
    position: u64,
) -> Result<Found, ReadError> {
    let mut rest = buffer.clone();
    let mut taken = 0;
    let mut next_offset = request.offset;
    loop {
        let here = position + taken as u64;
        let broken = |reason: String| corrupt(run, next_offset, here, &reason);
        let split = RecordBatch::split_from(&mut rest).map_err(|error| broken(error.to_string()));
        let batch = match split {
            Ok(Some(batch)) => batch,
            Ok(None) => break,
            // What was good before is handed out; the next read begins at the damage.
            Err(_) if taken > 0 => break,
            Err(error) => return Err(error),
        };
        let fits = taken + batch.size_bytes() <= request.max_bytes;
        if batch.base_offset() >= bound || !(fits || (taken == 0 && request.at_least_one)) {
            break;
        }
        match batch.verify_crc() {
            Ok(()) => {}
            Err(_) if taken > 0 => break,
            Err(error) => return Err(broken(error.to_string())),
        }
        taken += batch.size_bytes();
        next_offset = batch.next_offset();
    }
    if taken == 0 {
        return Ok(Found::Nothing);
    }
    Ok(Found::Batches(Run {
        bytes: buffer.slice(..taken),
        next_offset,
    }))
}

fn corrupt(run: &FileRun, offset: i64, position: u64, reason: &str) -> ReadError {
    let path = run.path.display().to_string();
    ReadError::Corrupt {
        offset,
        path,
        position,
        reason: reason.to_owned(),
    }
}

/// A segment's file from where a timestamp may first occur.
struct TimeRun {
    file: Arc<dyn StorageFile>,
    path: PathBuf,
    start: u64,
    end: u64,
}

pub(super) fn offset_for_timestamp(
    log: &PartitionLog,
    timestamp_ms: i64,
) -> Result<Option<(i64, i64)>, ReadError> {
    let (log_start, runs) = {
        let mut state = log.lock();
        state.check_open()?;
        (state.log_start, state.time_runs(log, timestamp_ms)?)
    };
    for run in runs {
        let mut scan = BatchScan::over(run.file.as_ref(), &run.path, run.start, run.end);
        while let Scanned::Batch(_, batch) = scan.next()? {
            if batch.max_timestamp() < timestamp_ms || batch.last_offset() < log_start {
                continue;
            }
            let found = first_record(log, &batch, |offset, timestamp| {
                timestamp >= timestamp_ms && offset >= log_start
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
    }
    Ok(None)
}

pub(super) fn max_timestamp(log: &PartitionLog) -> Result<Option<(i64, i64)>, ReadError> {
    let largest = {
        let mut state = log.lock();
        state.check_open()?;
        let mut largest: Option<i64> = None;
        for segment in &mut state.segments {
            let found = segment.largest(log.storage.as_ref())?;
            largest = largest.max(found.map(|entry| entry.timestamp));
        }
        largest
    };
    let Some(largest) = largest else {
        return Ok(None);
    };
    match offset_for_timestamp(log, largest)? {
        Some(found) => Ok(Some(found)),
        // It is that of a batch which compaction has emptied.
        None => max_timestamp_of_records(log),
    }
}

fn max_timestamp_of_records(log: &PartitionLog) -> Result<Option<(i64, i64)>, ReadError> {
    let (log_start, runs) = {
        let mut state = log.lock();
        (state.log_start, state.time_runs(log, i64::MIN)?)
    };
    let mut largest: Option<i64> = None;
    for run in runs {
        let mut scan = BatchScan::over(run.file.as_ref(), &run.path, run.start, run.end);
        while let Scanned::Batch(_, batch) = scan.next()? {
            if batch.record_count() > 0 && batch.last_offset() >= log_start {
                largest = largest.max(Some(batch.max_timestamp()));
            }
        }
    }
    largest.map_or(Ok(None), |timestamp| offset_for_timestamp(log, timestamp))
}

impl PartitionState {
    fn time_runs(
        &mut self,
        log: &PartitionLog,
        timestamp_ms: i64,
    ) -> Result<Vec<TimeRun>, LogError> {
        let storage = log.storage.as_ref();
        let mut runs = Vec::new();
        for segment in &mut self.segments {
            if let Some(start) = segment.position_for_timestamp(storage, timestamp_ms)? {
                runs.push(TimeRun {
                    file: segment.log().clone(),
                    path: segment.path().to_owned(),
                    start,
                    end: segment.size_bytes(),
                });
            }
        }
        Ok(runs)
    }
}

/// The first record of a batch for which `wanted` holds: its offset and timestamp.
fn first_record(
    log: &PartitionLog,
    batch: &RecordBatch,
    wanted: impl Fn(i64, i64) -> bool,
) -> Result<Option<(i64, i64)>, ReadError> {
    let broken = |error: millstream_protocol::BatchError| ReadError::Corrupt {
        offset: batch.base_offset(),
        path: log.directory.display().to_string(),
        position: 0,
        reason: error.to_string(),
    };
    let mut records = batch
        .records(log.config().max_decompressed_bytes)
        .map_err(broken)?;
    while let Some(record) = records.next_view() {
        let record = record.map_err(broken)?;
        if wanted(record.offset, record.timestamp) {
            return Ok(Some((record.offset, record.timestamp)));
        }
    }
    Ok(None)
}
