//! Replay and truncation: how the journal's recovery brings a partition to where it must be.
//!
//! Invariants: afterwards files, indexes and producer state are what appending the same batches
//! would have left.
//! Never: runs while clients append.

use super::PartitionLog;
use super::append::PlacedBatch;
use super::recover;
use super::state::PartitionState;
use crate::error::LogError;
use crate::producer_state::snapshot;
use crate::segment::{Scanned, Segment, check_place, read_exactly};
use bytes::Bytes;
use millstream_protocol::RecordBatch;

impl PartitionState {
    pub(super) fn replay(
        &mut self,
        log: &PartitionLog,
        base_offset: i64,
        bytes: Bytes,
    ) -> Result<(), LogError> {
        self.check_online()?;
        let (batches, next_offset) = self.checked(base_offset, &bytes)?;
        if next_offset <= self.log_start {
            return Ok(());
        }
        if base_offset > self.log_end {
            let reason = format!(
                "the journal continues at offset {base_offset}, the partition ends at {}",
                self.log_end
            );
            let active = self.active();
            return Err(LogError::corrupt(
                active.path(),
                active.size_bytes(),
                reason,
            ));
        }
        if base_offset < self.log_end {
            if self.holds(log, base_offset, &bytes)? {
                return Ok(());
            }
            self.truncate_to(log, base_offset)?;
        }
        self.append_placed(log, base_offset, bytes, &batches)
    }

    /// The batches of a journal frame, and the offset after them.
    fn checked(
        &mut self,
        base_offset: i64,
        bytes: &Bytes,
    ) -> Result<(Vec<RecordBatch>, i64), LogError> {
        let mut batches = Vec::with_capacity(1);
        let mut rest = bytes.clone();
        let mut expected = base_offset;
        while !rest.is_empty() {
            let split = RecordBatch::split_from(&mut rest).map_err(|error| error.to_string());
            let batch = split.and_then(|batch| batch.ok_or("a batch is cut short".to_owned()));
            let checked = batch.and_then(|batch| check_place(&batch, expected, 0).map(|()| batch));
            let batch = checked.map_err(|reason| {
                let active = self.active();
                let reason = format!("journal frame at offset {expected}: {reason}");
                LogError::corrupt(active.path(), active.size_bytes(), reason)
            })?;
            expected = batch.next_offset();
            batches.push(batch);
        }
        Ok((batches, expected))
    }

    fn append_placed(
        &mut self,
        log: &PartitionLog,
        base_offset: i64,
        bytes: Bytes,
        batches: &[RecordBatch],
    ) -> Result<(), LogError> {
        let active = self.active();
        let size_bytes = active.size_bytes();
        let full = size_bytes + bytes.len() as u64 > log.config().segment_bytes;
        let last_offset = batches.last().map_or(base_offset, RecordBatch::last_offset);
        if size_bytes > 0 && (full || !active.takes_offset(last_offset)) {
            self.roll(log)?;
        }
        let placed: Vec<PlacedBatch> = batches.iter().map(PlacedBatch::of).collect();
        self.write_unjournaled(log, base_offset, &[bytes, Bytes::new()], &placed)?;
        // These bytes are a part of a whole journal file in memory: readers go to the disk.
        self.tail.clear();
        for batch in batches {
            self.epochs
                .observe(batch.partition_leader_epoch(), batch.base_offset());
            let ended = self.producers.replay(batch).map_err(|error| {
                let active = self.active();
                LogError::corrupt(active.path(), active.size_bytes(), error.to_string())
            })?;
            if let Some(ended) = ended {
                self.transaction_ended(log, ended);
            }
        }
        self.leader_epoch = self.epochs.latest().max(0);
        self.raise_high_watermark(self.log_end);
        Ok(())
    }

    /// Whether the log holds exactly these bytes at this offset.
    fn holds(
        &mut self,
        log: &PartitionLog,
        base_offset: i64,
        bytes: &Bytes,
    ) -> Result<bool, LogError> {
        let index = self.segment_index(base_offset);
        let Some(segment) = self.segments.get_mut(index) else {
            return Ok(false);
        };
        let Some(position) = position_of(segment, log, base_offset)? else {
            return Ok(false);
        };
        let size_bytes = bytes.len() as u64;
        if position + size_bytes > segment.size_bytes() {
            return Ok(false);
        }
        let found = read_exactly(segment.log().as_ref(), segment.path(), position, size_bytes)?;
        Ok(found == *bytes)
    }

    pub(super) fn truncate_to(&mut self, log: &PartitionLog, offset: i64) -> Result<(), LogError> {
        self.check_online()?;
        if offset >= self.log_end {
            return Ok(());
        }
        let storage = log.storage.as_ref();
        if self
            .segments
            .first()
            .is_none_or(|first| offset < first.base_offset())
        {
            self.start_anew(log, offset)?;
        } else {
            while self.segments.len() > 1 && self.active().base_offset() >= offset {
                if let Some(segment) = self.segments.pop() {
                    segment.remove(storage)?;
                }
            }
            let active = self.active();
            if let Some(position) = position_of(active, log, offset)? {
                active.truncate(storage, position, offset)?;
            }
            self.log_end = offset;
        }
        self.log_start = self.log_start.min(self.log_end);
        self.tail.clear();
        self.undurable.clear();
        self.epochs.truncate(offset);
        self.leader_epoch = self.epochs.latest().max(0);
        // A snapshot of what is cut off must not come back once other records are there.
        snapshot::prune(storage, &log.directory, self.log_end)?;
        self.snapshot_at = None;
        if log.durability.syncs_files() {
            storage
                .sync_dir(&log.directory)
                .map_err(|error| LogError::io("sync", &log.directory, error))?;
        }
        self.names_changed = true;
        self.producers = recover::replayed(log.storage.as_ref(), &log.directory, self)?;
        self.high_watermark = self.high_watermark.min(self.log_end);
        self.raise_high_watermark(self.log_end);
        Ok(())
    }

    /// Drops everything and begins an empty log at `offset`.
    fn start_anew(&mut self, log: &PartitionLog, offset: i64) -> Result<(), LogError> {
        let storage = log.storage.as_ref();
        let fresh = Segment::create(storage, &log.directory, offset)?;
        let old = std::mem::replace(&mut self.segments, vec![fresh]);
        self.log_end = offset;
        for segment in old {
            segment.remove(storage)?;
        }
        Ok(())
    }
}

/// Where the first batch that ends at or beyond `offset` begins; `None` when there is none.
fn position_of(
    segment: &mut Segment,
    log: &PartitionLog,
    offset: i64,
) -> Result<Option<u64>, LogError> {
    // An index entry may name the very batch that ends at the offset before.
    let from = segment.position_for(log.storage.as_ref(), offset - 1)?;
    let mut scan = segment.scan(from);
    loop {
        match scan.next()? {
            Scanned::Batch(position, batch) if batch.last_offset() >= offset => {
                return Ok(Some(position));
            }
            Scanned::Batch(..) => {}
            Scanned::End => return Ok(None),
            Scanned::Damaged(position, reason) => {
                return Err(LogError::corrupt(segment.path(), position, reason));
            }
        }
    }
}
