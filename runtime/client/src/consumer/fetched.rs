//! One partition's part of a fetch answer, decoded batch by batch as `poll` takes records out.
//!
//! Invariants: `next_offset` only rises, and is past everything that was handed out or stepped
//! over; nothing below the offset that was asked for comes out, even where a batch begins earlier.
//! Never: copies record bytes, decodes what is not taken, or hands out a record of a batch whose
//! CRC is wrong (unless the check is switched off).

use bytes::Bytes;
use millstream_protocol::{BatchError, RecordBatch, Records, TopicPartition};

use super::read_committed::{BatchFilter, Isolation, Verdict};
use super::records::ConsumerRecord;

/// How answers are decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decoding {
    pub(crate) isolation: Isolation,
    pub(crate) check_crcs: bool,
    pub(crate) max_decompressed_bytes: usize,
}

/// What is wrong with an answer, and where.
#[derive(Clone, Debug)]
pub(crate) struct Undecodable {
    /// Offset of the batch.
    pub(crate) offset: i64,
    pub(crate) cause: BatchError,
}

/// The undelivered rest of an answer.
#[derive(Debug)]
pub(crate) struct FetchedPartition {
    topic_partition: TopicPartition,
    decoding: Decoding,
    filter: BatchFilter,
    /// Whole batches that are still to come (a partial one at the end is dropped).
    ahead: Bytes,
    current: Option<OpenBatch>,
    next_offset: i64,
    /// Of the batch that was handed out of, or stepped over, last.
    last_epoch: Option<i32>,
    /// Where the answer ends: the offset to fetch from after it.
    end_offset: i64,
}

#[derive(Debug)]
struct OpenBatch {
    records: Records,
    next_offset: i64,
    epoch: Option<i32>,
    size_bytes: usize,
}

impl FetchedPartition {
    /// Takes the answer to a fetch from `fetch_offset`. `None` when it holds no whole batch.
    pub(crate) fn new(
        topic_partition: TopicPartition,
        fetch_offset: i64,
        mut records: Bytes,
        aborted: impl Iterator<Item = (i64, i64)>,
        decoding: Decoding,
    ) -> Result<Option<FetchedPartition>, Undecodable> {
        let end_offset = end_of(&mut records, fetch_offset)?;
        if records.is_empty() {
            return Ok(None);
        }
        Ok(Some(FetchedPartition {
            topic_partition,
            decoding,
            filter: BatchFilter::new(decoding.isolation, aborted),
            ahead: records,
            current: None,
            next_offset: fetch_offset,
            last_epoch: None,
            end_offset,
        }))
    }

    /// The offset after the last one handed out or stepped over.
    pub(crate) fn next_offset(&self) -> i64 {
        self.next_offset
    }

    /// The epoch of the leader that wrote the record before `next_offset`.
    pub(crate) fn last_epoch(&self) -> Option<i32> {
        self.last_epoch
    }

    /// The offset to ask for after this answer.
    pub(crate) fn end_offset(&self) -> i64 {
        self.end_offset
    }

    /// Bytes that are still to be handed out.
    pub(crate) fn size_bytes(&self) -> usize {
        self.ahead.len() + self.current.as_ref().map_or(0, |batch| batch.size_bytes)
    }

    /// Whether everything has been handed out.
    pub(crate) fn is_drained(&self) -> bool {
        self.current.is_none() && self.ahead.is_empty()
    }

    /// Moves up to `max_records` records to `out`. After an error the rest is not to be used.
    pub(crate) fn drain(
        &mut self,
        max_records: usize,
        out: &mut Vec<ConsumerRecord>,
    ) -> Result<(), Undecodable> {
        let mut left = max_records;
        loop {
            let Some(batch) = &mut self.current else {
                if !self.open_next()? {
                    return Ok(());
                }
                let records = self
                    .current
                    .as_ref()
                    .map_or(0, |batch| batch.records.remaining());
                out.reserve(records.min(left));
                continue;
            };
            let (from, before) = (self.next_offset, batch.next_offset);
            if left == 0 && batch.records.remaining() > 0 {
                return Ok(());
            }
            while left > 0 {
                let record = match batch.records.next() {
                    Some(Ok(record)) => record,
                    Some(Err(cause)) => {
                        return Err(Undecodable {
                            offset: self.next_offset,
                            cause,
                        });
                    }
                    None => break,
                };
                if record.offset < from || record.offset >= before {
                    continue;
                }
                self.next_offset = record.offset + 1;
                self.last_epoch = batch.epoch;
                left -= 1;
                out.push(ConsumerRecord {
                    topic: self.topic_partition.topic.clone(),
                    partition: self.topic_partition.partition,
                    offset: record.offset,
                    timestamp: record.timestamp,
                    key: record.key,
                    value: record.value,
                    headers: record.headers,
                });
            }
            if batch.records.remaining() == 0 {
                self.next_offset = self.next_offset.max(before);
                self.last_epoch = batch.epoch;
                self.current = None;
            }
        }
    }

    /// Goes on to the next batch with records to show. `false` at the end.
    fn open_next(&mut self) -> Result<bool, Undecodable> {
        loop {
            let offset = self.next_offset;
            let wrong = |cause| Undecodable { offset, cause };
            let Some(batch) = RecordBatch::split_from(&mut self.ahead).map_err(wrong)? else {
                self.ahead = Bytes::new();
                return Ok(false);
            };
            if self.decoding.check_crcs {
                batch.verify_crc().map_err(wrong)?;
            }
            let verdict = self.filter.judge(&batch).map_err(wrong)?;
            let epoch = Some(batch.partition_leader_epoch()).filter(|epoch| *epoch >= 0);
            if verdict != Verdict::Deliver || batch.next_offset() <= self.next_offset {
                self.last_epoch = epoch;
                self.next_offset = self.next_offset.max(batch.next_offset());
                continue;
            }
            let records = batch
                .records(self.decoding.max_decompressed_bytes)
                .map_err(wrong)?;
            self.current = Some(OpenBatch {
                records,
                next_offset: batch.next_offset(),
                epoch,
                size_bytes: batch.size_bytes(),
            });
            return Ok(true);
        }
    }
}

/// The offset after the last whole batch; cuts off what follows it.
fn end_of(records: &mut Bytes, fetch_offset: i64) -> Result<i64, Undecodable> {
    let mut rest = records.clone();
    let mut end = fetch_offset;
    loop {
        match RecordBatch::split_from(&mut rest) {
            Ok(Some(batch)) => end = end.max(batch.next_offset()),
            Ok(None) => break,
            Err(cause) => return Err(Undecodable { offset: end, cause }),
        }
    }
    records.truncate(records.len() - rest.len());
    Ok(end)
}
