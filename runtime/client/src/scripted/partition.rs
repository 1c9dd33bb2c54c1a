//! A partition of the scripted broker: its log, and what it knows of producers.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use millstream_protocol::{ErrorCode, RecordBatch};

#[derive(Clone, Debug, Default)]
struct ProducerState {
    epoch: i16,
    /// First sequence, last sequence, base offset.
    last_five: VecDeque<(i32, i32, i64)>,
}

#[derive(Debug, Default)]
pub(crate) struct Partition {
    pub(crate) batches: Vec<Bytes>,
    next_offset: i64,
    producers: BTreeMap<i64, ProducerState>,
    /// Answers for this partition only, before anything else is looked at.
    pub(crate) errors: VecDeque<ErrorCode>,
}

impl Partition {
    /// Appends as a broker does: window of five, epochs, sequences without gaps.
    pub(super) fn append(&mut self, bytes: Bytes, limit: usize) -> Result<i64, ErrorCode> {
        if let Some(code) = self.errors.pop_front()
            && !code.is_ok()
        {
            return Err(code);
        }
        if bytes.len() > limit {
            return Err(ErrorCode::MESSAGE_TOO_LARGE);
        }
        let batch = RecordBatch::parse(bytes.clone()).unwrap();
        batch.verify_crc().unwrap();
        let span = (batch.base_sequence(), batch.last_sequence());
        let offset = self.next_offset;
        if batch.producer_id() >= 0 {
            let known = self.producers.get(&batch.producer_id()).cloned();
            let mut state = known.clone().unwrap_or_default();
            if known.is_some() && batch.producer_epoch() == state.epoch {
                let same = state.last_five.iter().find(|(f, l, _)| (*f, *l) == span);
                if let Some((_, _, offset)) = same {
                    return Ok(*offset);
                }
                let next =
                    state.last_five.back().map_or(
                        0,
                        |(_, last, _)| {
                            if *last == i32::MAX { 0 } else { last + 1 }
                        },
                    );
                if span.0 != next {
                    return Err(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
                }
            } else if known.is_some() {
                if batch.producer_epoch() < state.epoch {
                    return Err(ErrorCode::INVALID_PRODUCER_EPOCH);
                }
                if span.0 != 0 {
                    return Err(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
                }
                state.last_five.clear();
            }
            state.epoch = batch.producer_epoch();
            state.last_five.push_back((span.0, span.1, offset));
            if state.last_five.len() > 5 {
                state.last_five.pop_front();
            }
            self.producers.insert(batch.producer_id(), state);
        }
        self.next_offset += i64::from(batch.record_count());
        self.batches.push(bytes);
        Ok(offset)
    }
}
