//! Gives out producer ids that were never given out before, also across restarts.
//!
//! Ids come from blocks; the record that reserves a block is written before its first id is used.
//! Under `sync` the journal's order makes it durable before anything that carries such an id, and
//! answers wait for `reserved_at`. In the other modes the reservation is synced on the spot.
//!
//! Invariants: every id given out lies below the last reservation in the log.
//! Never: gives an id back; what a crash skips stays unused.

use std::sync::{Mutex, PoisonError};

use millstream_log::Durability;
use millstream_protocol::ErrorCode;

use super::log::TransactionLog;

/// Ids in a block. A restart skips what is left of one.
const BLOCK: i64 = 1_000;

/// The allocator.
#[derive(Debug)]
pub(super) struct ProducerIds {
    durability: Durability,
    block: Mutex<Block>,
}

#[derive(Debug, Default)]
struct Block {
    next: i64,
    end: i64,
    reserved_at: u64,
}

impl ProducerIds {
    /// An allocator that owns nothing yet.
    pub(super) fn new(durability: Durability) -> ProducerIds {
        ProducerIds {
            durability,
            block: Mutex::default(),
        }
    }

    /// Ids below `next` are taken: seen in the log at open.
    pub(super) fn taken_below(&self, next: i64) {
        let mut block = self.block.lock().unwrap_or_else(PoisonError::into_inner);
        block.next = block.next.max(next);
        block.end = block.end.max(block.next);
    }

    /// An id that nobody has, and the journal position that must be durable before it is told.
    pub(super) fn next(&self, log: &TransactionLog, now_ms: i64) -> Result<(i64, u64), ErrorCode> {
        let mut block = self.block.lock().unwrap_or_else(PoisonError::into_inner);
        if block.next >= block.end {
            let end = block.next + BLOCK;
            block.reserved_at = log.append_block(end, now_ms)?;
            if matches!(self.durability, Durability::Interval(_) | Durability::Os) {
                log.block_partition()?.log().flush().map_err(|error| {
                    tracing::error!(%error, "a block of producer ids cannot be reserved");
                    ErrorCode::COORDINATOR_NOT_AVAILABLE
                })?;
            }
            block.end = end;
        }
        let id = block.next;
        block.next += 1;
        Ok((id, block.reserved_at))
    }
}
