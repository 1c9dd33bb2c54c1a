//! Retention: which old segments go, and how far the log start may move.
//!
//! Invariants: records without a timestamp are as old as the first look at their segment tells; the
//! log start never passes the last stable offset (Kafka: the high watermark), so an
//! open transaction keeps its records; an active segment that goes is followed by an empty one at
//! the log end before it goes; the newest snapshot of the producers is durable before any goes.
//! Never: deletes a segment before the log start is past it; touches a file of a log that is
//! closed, whose names a later topic may have.

use crate::error::LogError;
use crate::partition::PartitionLog;
use crate::partition::PartitionState;
use crate::partition_config::PartitionConfig;
use crate::segment::Segment;
use crate::storage::{OpenMode, Storage, read_all, replace_file};
use std::path::Path;

const LOG_START_FILE: &str = "log-start-offset";

/// The log start that was written, 0 for none.
pub(crate) fn read_log_start(storage: &dyn Storage, directory: &Path) -> Result<i64, LogError> {
    let path = directory.join(LOG_START_FILE);
    let content = storage.exists(&path).and_then(|exists| {
        if !exists {
            return Ok(Vec::new());
        }
        read_all(storage.open(&path, OpenMode::Read)?.as_ref())
    });
    let content = content.map_err(|error| LogError::io("read", &path, error))?;
    let text = String::from_utf8_lossy(&content);
    Ok(text.trim().parse().unwrap_or(0).max(0))
}

/// Keeps the log start where it cannot be told from the first segment.
pub(crate) fn write_log_start(
    storage: &dyn Storage,
    directory: &Path,
    log_start: i64,
) -> Result<(), LogError> {
    let path = directory.join(LOG_START_FILE);
    replace_file(storage, &path, format!("{log_start}\n").as_bytes())
        .map_err(|error| LogError::io("write", &path, error))
}

/// Deletes what `retention.ms` and `retention.bytes` give up; returns how many segments.
pub(crate) fn apply(
    log: &PartitionLog,
    state: &mut PartitionState,
    now_ms: i64,
) -> Result<usize, LogError> {
    state.check_online()?;
    state.tail.age();
    // Once: what is deleted is decided by settings that were in force together.
    let config = log.config();
    state
        .producers
        .expire(now_ms, config.producer_id_expiration_ms);
    if !config.delete {
        return Ok(0);
    }
    let count = deletable(log, &config, state, now_ms)?;
    if count == state.segments.len() {
        // What is deleted below was the last one, which is not written any longer by then.
        state.roll(log)?;
    }
    if count > 0 {
        // No segment tells of the producers of what goes from now on.
        state.sync_snapshot(log)?;
    }
    delete_first(log, state, count)?;
    Ok(count)
}

/// How many segments, oldest first, are past their time or in excess of the size.
fn deletable(
    log: &PartitionLog,
    config: &PartitionConfig,
    state: &mut PartitionState,
    now_ms: i64,
) -> Result<usize, LogError> {
    let last_stable = state.offsets().last_stable;
    let storage = log.storage();
    let total: u64 = state.segments.iter().map(Segment::size_bytes).sum();
    let mut excess = match u64::try_from(config.retention_bytes) {
        Ok(kept) => total.saturating_sub(kept),
        Err(_) => 0,
    };
    let ends: Vec<i64> = state
        .segments
        .iter()
        .skip(1)
        .map(Segment::base_offset)
        .chain([state.log_end])
        .collect();
    let mut count = 0;
    let mut kept = false;
    for (segment, end) in state.segments.iter_mut().zip(ends) {
        if segment.size_bytes() == 0 {
            // The active one, when nothing was written to it yet.
            break;
        }
        let newest = segment.newest(storage, now_ms)?;
        let too_old = now_ms.saturating_sub(newest.at_ms) > config.retention_ms;
        let too_old = config.retention_ms >= 0 && too_old;
        let too_much = excess > 0 && excess >= segment.size_bytes();
        kept |= end > last_stable || !(too_old || too_much);
        if kept && newest.recorded {
            break;
        }
        if kept {
            // Those behind it may be without a timestamp too: their time begins now.
            continue;
        }
        excess = excess.saturating_sub(segment.size_bytes());
        count += 1;
    }
    Ok(count)
}

/// Deletes the first `count` segments; there are more.
fn delete_first(
    log: &PartitionLog,
    state: &mut PartitionState,
    count: usize,
) -> Result<(), LogError> {
    if count == 0 {
        return Ok(());
    }
    let start = state
        .segments
        .get(count)
        .map_or(state.log_start, Segment::base_offset);
    if start > state.log_start {
        write_log_start(log.storage(), log.directory(), start)?;
        state.log_start = start;
    }
    state.names_changed = true;
    for segment in state.segments.drain(..count).collect::<Vec<_>>() {
        segment.remove(log.storage())?;
    }
    Ok(())
}

/// Moves the log start to `offset`, at most to the last stable offset, and deletes the segments
/// below it. `None` when the offset is above the high watermark.
pub(crate) fn delete_before(
    log: &PartitionLog,
    state: &mut PartitionState,
    offset: i64,
) -> Result<Option<i64>, LogError> {
    state.check_online()?;
    let offsets = state.offsets();
    if offset > offsets.high_watermark {
        return Ok(None);
    }
    let start = offset.min(offsets.last_stable);
    if start <= state.log_start {
        return Ok(Some(state.log_start));
    }
    write_log_start(log.storage(), log.directory(), start)?;
    state.log_start = start;
    let whole = state
        .segments
        .iter()
        .skip(1)
        .filter(|next| next.base_offset() <= start)
        .count();
    delete_first(log, state, whole)?;
    Ok(Some(state.log_start))
}
