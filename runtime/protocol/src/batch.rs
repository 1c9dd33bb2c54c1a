//! Record batch, format v2: a checked view of its header over the bytes it came in.
//!
//! ```text
//!  0 base offset i64 | 8 length i32 | 12 leader epoch i32 | 16 magic i8 |   <- patched by append
//! 17 crc u32 of all that follows |
//! 21 attributes i16 | 23 last offset delta i32 | 27 base timestamp i64 | 35 max timestamp i64 |
//! 43 producer id i64 | 51 producer epoch i16 | 53 base sequence i32 | 57 record count i32 | 61 …
//! ```
//!
//! Invariants: a `RecordBatch` holds exactly one batch of at least 61 bytes, magic 2, with a known
//! codec, and no negative count or delta. The CRC is checked only by `verify_crc`.
//! Never: decodes records before they are asked for; copies, except to restamp.

use crate::compression::{self, Compression};
use crate::control::ControlMarker;
use crate::record::{MIN_RECORD_BYTES, Records};
use bytes::Bytes;

/// Bytes before the length field's count starts: base offset and the length itself.
const LENGTH_OVERHEAD: usize = 12;
const CRC_START: usize = 21;
const MAGIC: i8 = 2;

pub(crate) const COMPRESSION_MASK: i16 = 0x07;
pub(crate) const LOG_APPEND_TIME: i16 = 0x08;
pub(crate) const TRANSACTIONAL: i16 = 0x10;
pub(crate) const CONTROL: i16 = 0x20;
pub(crate) const DELETE_HORIZON: i16 = 0x40;

/// What is wrong with the bytes of a record batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// Fewer bytes than a header has.
    #[error("a record batch needs {needed} bytes, there are {available}")]
    TooShort {
        /// Bytes that a header takes.
        needed: usize,
        /// Bytes that are there.
        available: usize,
    },
    /// The length field disagrees with what is there, or cannot hold a header.
    #[error("a record batch declares a length of {declared}, {available} bytes follow the field")]
    WrongLength {
        /// The field.
        declared: i32,
        /// Bytes after the field.
        available: usize,
    },
    /// An old message format, or garbage.
    #[error("record batch magic is {magic}, only 2 is supported")]
    UnsupportedMagic {
        /// The byte at 16.
        magic: i8,
    },
    /// The bytes are not those that the producer wrote.
    #[error("record batch CRC is {computed:#010x}, its header says {stored:#010x}")]
    WrongCrc {
        /// In the header.
        stored: u32,
        /// Of the bytes.
        computed: u32,
    },
    /// The attributes name a codec that Kafka has not defined.
    #[error("record batch names the unknown compression codec {code}")]
    UnknownCodec {
        /// The lowest three bits of the attributes.
        code: u8,
    },
    /// Record count or last offset delta is negative or impossible.
    #[error("record batch has {record_count} records and last offset delta {last_offset_delta}")]
    WrongCount {
        /// Records that the header announces.
        record_count: i32,
        /// Last offset less base offset.
        last_offset_delta: i32,
    },
    /// Offset deltas of a new batch must be 0, 1, 2, …
    #[error("record {index} of the batch has offset delta {offset_delta}")]
    WrongOffsetDelta {
        /// Position of the record in the batch.
        index: i32,
        /// What it carries.
        offset_delta: i32,
    },
    /// A record does not fit its own lengths.
    #[error("record {index} of the batch is malformed: {field}")]
    MalformedRecord {
        /// Position of the record in the batch.
        index: i32,
        /// The field that does not hold.
        field: &'static str,
    },
    /// The records end before the batch does.
    #[error("{bytes} bytes follow the last record of the batch")]
    BytesAfterRecords {
        /// How many.
        bytes: usize,
    },
    /// A control batch whose record is not a transaction marker.
    #[error("control batch is malformed: {field}")]
    MalformedControl {
        /// The field that does not hold.
        field: &'static str,
    },
    /// Compressed records that the codec refuses.
    #[error("{codec}: {reason}")]
    Codec {
        /// Which codec.
        codec: Compression,
        /// What it said.
        reason: String,
    },
    /// Records that decompress to more than is allowed.
    #[error("records decompress to more than {max_bytes} bytes")]
    TooLargeDecompressed {
        /// The cap.
        max_bytes: usize,
    },
    /// A batch of more than 2 GiB cannot be written.
    #[error("a record batch of {size_bytes} bytes does not fit the format")]
    TooLarge {
        /// What it would take.
        size_bytes: usize,
    },
    /// A batch without records cannot be written.
    #[error("a record batch without records")]
    Empty,
}

/// Whose clock the timestamps of a batch are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimestampType {
    /// The producer's.
    CreateTime,
    /// The broker's, when it appended the batch.
    LogAppendTime,
}

/// Who produced a batch, and its place in that producer's sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerStamp {
    /// -1 for none.
    pub producer_id: i64,
    /// -1 for none.
    pub producer_epoch: i16,
    /// Sequence number of the first record; -1 for none.
    pub base_sequence: i32,
    /// Whether the records belong to a transaction.
    pub transactional: bool,
}

impl ProducerStamp {
    /// A producer that is not idempotent.
    pub const NONE: ProducerStamp = ProducerStamp {
        producer_id: -1,
        producer_epoch: -1,
        base_sequence: -1,
        transactional: false,
    };
}

/// What one walk over the records of a batch found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSummary {
    /// Records counted.
    pub record_count: i32,
    /// Smallest timestamp of a record; records without one (-1) do not count, unless
    /// there are no others.
    pub min_timestamp: i64,
    /// Largest timestamp of a record.
    pub max_timestamp: i64,
    /// Offset delta of the first record with that timestamp.
    pub max_timestamp_delta: i32,
    /// Records whose key is null: a compacted topic takes none.
    pub without_key: i32,
    /// Bytes of the records after decompression.
    pub plain_bytes: usize,
}

/// One record batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordBatch {
    bytes: Bytes,
}

impl RecordBatch {
    /// Bytes of the header, which is all of a batch that is never compressed.
    pub const HEADER_BYTES: usize = 61;

    /// Takes exactly one batch; its CRC and records are not looked at.
    pub fn parse(bytes: Bytes) -> Result<RecordBatch, BatchError> {
        let header = header_of(&bytes)?;
        let total = checked_header(header, bytes.len())?;
        if total != bytes.len() {
            return Err(wrong_length(header, bytes.len()));
        }
        Ok(RecordBatch { bytes })
    }

    /// Takes the first batch off `bytes`; `None` at the end, or when only a part of one is left, as
    /// a fetch answer may end. `bytes` stays as it is on `None` and on an error.
    pub fn split_from(bytes: &mut Bytes) -> Result<Option<RecordBatch>, BatchError> {
        let Ok(header) = header_of(bytes) else {
            return Ok(None);
        };
        let total = match checked_header(header, bytes.len()) {
            Ok(total) => total,
            Err(BatchError::WrongLength { declared, .. }) if longer(declared, bytes.len()) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        Ok(Some(RecordBatch {
            bytes: bytes.split_to(total),
        }))
    }

    /// Size of the batch that starts with these bytes, as its length field says; `None` for fewer
    /// than 12 bytes or a length that cannot hold a header.
    #[must_use]
    pub fn declared_size_bytes(start: &[u8]) -> Option<usize> {
        let field = start.get(8..LENGTH_OVERHEAD)?.first_chunk::<4>()?;
        let size = usize::try_from(i32::from_be_bytes(*field)).ok()? + LENGTH_OVERHEAD;
        (size >= RecordBatch::HEADER_BYTES).then_some(size)
    }

    /// The whole batch.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The whole batch, given away.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Bytes of the whole batch.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn header(&self) -> &[u8; RecordBatch::HEADER_BYTES] {
        self.bytes
            .first_chunk()
            .expect("invariant: a batch is at least as long as its header")
    }

    /// Offset of the first record.
    #[must_use]
    pub fn base_offset(&self) -> i64 {
        i64_at::<0>(self.header())
    }

    /// Offset of the last record.
    #[must_use]
    pub fn last_offset(&self) -> i64 {
        self.base_offset()
            .saturating_add(i64::from(self.last_offset_delta()))
    }

    /// Offset after the last record.
    #[must_use]
    pub fn next_offset(&self) -> i64 {
        self.last_offset().saturating_add(1)
    }

    /// Epoch of the leader that appended the batch.
    #[must_use]
    pub fn partition_leader_epoch(&self) -> i32 {
        i32_at::<12>(self.header())
    }

    /// The checksum in the header.
    #[must_use]
    pub fn crc(&self) -> u32 {
        i32_at::<17>(self.header()) as u32
    }

    pub(crate) fn attributes(&self) -> i16 {
        i16_at::<21>(self.header())
    }

    /// The codec of the records.
    #[must_use]
    pub fn compression(&self) -> Compression {
        Compression::from_code((self.attributes() & COMPRESSION_MASK) as u8).unwrap_or_default()
    }

    /// Whose clock the timestamps are from.
    #[must_use]
    pub fn timestamp_type(&self) -> TimestampType {
        if self.attributes() & LOG_APPEND_TIME == 0 {
            TimestampType::CreateTime
        } else {
            TimestampType::LogAppendTime
        }
    }

    /// Whether the batch belongs to a transaction.
    #[must_use]
    pub fn is_transactional(&self) -> bool {
        self.attributes() & TRANSACTIONAL != 0
    }

    /// Whether the batch carries a marker instead of records for applications.
    #[must_use]
    pub fn is_control(&self) -> bool {
        self.attributes() & CONTROL != 0
    }

    /// Last offset less base offset.
    #[must_use]
    pub fn last_offset_delta(&self) -> i32 {
        i32_at::<23>(self.header())
    }

    /// Timestamp that the records' deltas count from.
    #[must_use]
    pub fn base_timestamp(&self) -> i64 {
        i64_at::<27>(self.header())
    }

    /// From when on log compaction may drop the batch's tombstones, or its marker; `None` before
    /// compaction has met them. It stands in place of the base timestamp.
    #[must_use]
    pub fn delete_horizon_ms(&self) -> Option<i64> {
        (self.attributes() & DELETE_HORIZON != 0).then(|| self.base_timestamp())
    }

    /// Largest timestamp, or the append time.
    #[must_use]
    pub fn max_timestamp(&self) -> i64 {
        i64_at::<35>(self.header())
    }

    /// -1 for a producer that is not idempotent.
    #[must_use]
    pub fn producer_id(&self) -> i64 {
        i64_at::<43>(self.header())
    }

    /// -1 for a producer that is not idempotent.
    #[must_use]
    pub fn producer_epoch(&self) -> i16 {
        i16_at::<51>(self.header())
    }

    /// Sequence number of the first record; -1 for none.
    #[must_use]
    pub fn base_sequence(&self) -> i32 {
        i32_at::<53>(self.header())
    }

    /// Sequence number of the last record; after 2^31 - 1 comes 0; -1 for none.
    #[must_use]
    pub fn last_sequence(&self) -> i32 {
        match self.base_sequence() {
            base if base < 0 => base,
            base => base.wrapping_add(self.last_offset_delta()) & i32::MAX,
        }
    }

    /// Records that the header announces.
    #[must_use]
    pub fn record_count(&self) -> i32 {
        i32_at::<57>(self.header())
    }

    /// Who produced the batch.
    #[must_use]
    pub fn stamp(&self) -> ProducerStamp {
        ProducerStamp {
            producer_id: self.producer_id(),
            producer_epoch: self.producer_epoch(),
            base_sequence: self.base_sequence(),
            transactional: self.is_transactional(),
        }
    }

    /// Compares the checksum with the bytes.
    pub fn verify_crc(&self) -> Result<(), BatchError> {
        let stored = self.crc();
        let computed = crc_of(&self.bytes);
        if stored == computed {
            Ok(())
        } else {
            Err(BatchError::WrongCrc { stored, computed })
        }
    }

    /// The records, decompressed if need be to at most `max_decompressed_bytes`.
    pub fn records(&self, max_decompressed_bytes: usize) -> Result<Records, BatchError> {
        let packed = self.bytes.slice(RecordBatch::HEADER_BYTES..);
        let payload = compression::decompress(self.compression(), &packed, max_decompressed_bytes)?;
        let count = self.record_count();
        if count as usize > payload.len() / MIN_RECORD_BYTES {
            let last_offset_delta = self.last_offset_delta();
            return Err(BatchError::WrongCount {
                record_count: count,
                last_offset_delta,
            });
        }
        let append_time = match self.timestamp_type() {
            TimestampType::CreateTime => None,
            TimestampType::LogAppendTime => Some(self.max_timestamp()),
        };
        let (offset, timestamp) = (self.base_offset(), self.base_timestamp());
        Ok(Records::new(payload, count, offset, timestamp, append_time))
    }

    /// Walks the records once as a broker must before it appends a new batch: they are well formed,
    /// as many as the header says, and their offset deltas are 0, 1, 2, …
    pub fn validate_records(
        &self,
        max_decompressed_bytes: usize,
    ) -> Result<BatchSummary, BatchError> {
        let (record_count, last_offset_delta) = (self.record_count(), self.last_offset_delta());
        if record_count == 0 || last_offset_delta != record_count - 1 {
            return Err(BatchError::WrongCount {
                record_count,
                last_offset_delta,
            });
        }
        let mut records = self.records(max_decompressed_bytes)?;
        let mut summary = BatchSummary {
            record_count,
            min_timestamp: i64::MAX,
            max_timestamp: i64::MIN,
            max_timestamp_delta: 0,
            without_key: 0,
            plain_bytes: records.plain_bytes(),
        };
        let mut index = 0;
        while let Some(shape) = records.next_shape() {
            let (offset_delta, timestamp, has_key) = shape?;
            if offset_delta != index {
                return Err(BatchError::WrongOffsetDelta {
                    index,
                    offset_delta,
                });
            }
            if timestamp > summary.max_timestamp {
                summary.max_timestamp = timestamp;
                summary.max_timestamp_delta = offset_delta;
            }
            if timestamp != -1 {
                summary.min_timestamp = summary.min_timestamp.min(timestamp);
            }
            summary.without_key += i32::from(!has_key);
            index += 1;
        }
        if summary.min_timestamp == i64::MAX {
            summary.min_timestamp = -1;
        }
        Ok(summary)
    }

    /// The marker of a control batch; `None` for a batch of ordinary records.
    pub fn control(&self) -> Result<Option<ControlMarker>, BatchError> {
        if !self.is_control() {
            return Ok(None);
        }
        let mut records = self.records(self.bytes.len())?;
        match records.next_view() {
            Some(view) => ControlMarker::from_record(&view?).map(Some),
            None => Err(BatchError::MalformedControl { field: "no record" }),
        }
    }

    /// A copy from another producer or place in its sequence, with a new CRC.
    #[must_use]
    pub fn restamped(&self, stamp: ProducerStamp) -> Bytes {
        let mut copy = self.bytes.to_vec();
        if let Some(header) = copy.first_chunk_mut() {
            let mut attributes = self.attributes() & !TRANSACTIONAL;
            if stamp.transactional {
                attributes |= TRANSACTIONAL;
            }
            put::<21, 2>(header, attributes.to_be_bytes());
            put::<43, 8>(header, stamp.producer_id.to_be_bytes());
            put::<51, 2>(header, stamp.producer_epoch.to_be_bytes());
            put::<53, 4>(header, stamp.base_sequence.to_be_bytes());
        }
        seal(&mut copy);
        Bytes::from(copy)
    }

    /// A copy with the same records under another codec, with a new CRC.
    pub fn recompressed(
        &self,
        codec: Compression,
        max_decompressed_bytes: usize,
    ) -> Result<Bytes, BatchError> {
        let packed = self.bytes.slice(RecordBatch::HEADER_BYTES..);
        let plain = compression::decompress(self.compression(), &packed, max_decompressed_bytes)?;
        let mut copy = self.bytes.slice(..RecordBatch::HEADER_BYTES).to_vec();
        compression::Compressor::new(codec).compress(&plain, &mut copy)?;
        let size_bytes = copy.len();
        let length = i32::try_from(size_bytes.saturating_sub(LENGTH_OVERHEAD))
            .map_err(|_| BatchError::TooLarge { size_bytes })?;
        if let Some(header) = copy.first_chunk_mut() {
            let attributes = self.attributes() & !COMPRESSION_MASK | i16::from(codec.code());
            put::<8, 4>(header, length.to_be_bytes());
            put::<21, 2>(header, attributes.to_be_bytes());
        }
        seal(&mut copy);
        Ok(Bytes::from(copy))
    }

    /// A copy whose header says so of the largest timestamp, with a new CRC.
    #[must_use]
    pub fn with_max_timestamp(&self, ms: i64) -> Bytes {
        let mut copy = self.bytes.to_vec();
        if let Some(header) = copy.first_chunk_mut() {
            put::<35, 8>(header, ms.to_be_bytes());
        }
        seal(&mut copy);
        Bytes::from(copy)
    }

    /// A copy whose records carry the broker's time of appending, with a new CRC.
    #[must_use]
    pub fn with_log_append_time(&self, ms: i64) -> Bytes {
        let mut copy = self.bytes.to_vec();
        if let Some(header) = copy.first_chunk_mut() {
            put::<21, 2>(header, (self.attributes() | LOG_APPEND_TIME).to_be_bytes());
            put::<35, 8>(header, ms.to_be_bytes());
        }
        seal(&mut copy);
        Bytes::from(copy)
    }
}

/// Writes base offset and leader epoch into the first 17 bytes of a batch, the part that its CRC
/// leaves out; length and magic stay.
pub fn patch_prefix(prefix: &mut [u8; 17], base_offset: i64, leader_epoch: i32) {
    prefix[0..8].copy_from_slice(&base_offset.to_be_bytes());
    prefix[12..16].copy_from_slice(&leader_epoch.to_be_bytes());
}

/// The fields of a header that its writer decides.
pub(crate) struct HeaderFields {
    pub(crate) attributes: i16,
    pub(crate) last_offset_delta: i32,
    pub(crate) base_timestamp: i64,
    pub(crate) max_timestamp: i64,
    pub(crate) stamp: ProducerStamp,
    pub(crate) record_count: i32,
}

/// Fills in the header of a batch that is otherwise complete, length and CRC included.
pub(crate) fn write_header(batch: &mut [u8], fields: &HeaderFields) -> Result<(), BatchError> {
    let size_bytes = batch.len();
    let length = i32::try_from(size_bytes.saturating_sub(LENGTH_OVERHEAD))
        .map_err(|_| BatchError::TooLarge { size_bytes })?;
    let header = batch.first_chunk_mut().ok_or(BatchError::TooShort {
        needed: RecordBatch::HEADER_BYTES,
        available: size_bytes,
    })?;
    let mut attributes = fields.attributes;
    if fields.stamp.transactional {
        attributes |= TRANSACTIONAL;
    }
    put::<0, 8>(header, 0_i64.to_be_bytes());
    put::<8, 4>(header, length.to_be_bytes());
    put::<12, 4>(header, (-1_i32).to_be_bytes());
    put::<16, 1>(header, MAGIC.to_be_bytes());
    put::<21, 2>(header, attributes.to_be_bytes());
    put::<23, 4>(header, fields.last_offset_delta.to_be_bytes());
    put::<27, 8>(header, fields.base_timestamp.to_be_bytes());
    put::<35, 8>(header, fields.max_timestamp.to_be_bytes());
    put::<43, 8>(header, fields.stamp.producer_id.to_be_bytes());
    put::<51, 2>(header, fields.stamp.producer_epoch.to_be_bytes());
    put::<53, 4>(header, fields.stamp.base_sequence.to_be_bytes());
    put::<57, 4>(header, fields.record_count.to_be_bytes());
    seal(batch);
    Ok(())
}

fn header_of(bytes: &[u8]) -> Result<&[u8; RecordBatch::HEADER_BYTES], BatchError> {
    bytes.first_chunk().ok_or(BatchError::TooShort {
        needed: RecordBatch::HEADER_BYTES,
        available: bytes.len(),
    })
}

/// Checks what later code relies on and returns the size of the whole batch.
fn checked_header(
    header: &[u8; RecordBatch::HEADER_BYTES],
    available: usize,
) -> Result<usize, BatchError> {
    let magic = header[16] as i8;
    if magic != MAGIC {
        return Err(BatchError::UnsupportedMagic { magic });
    }
    let total = RecordBatch::declared_size_bytes(header)
        .filter(|total| *total <= available)
        .ok_or_else(|| wrong_length(header, available))?;
    let code = (i16_at::<21>(header) & COMPRESSION_MASK) as u8;
    if Compression::from_code(code).is_none() {
        return Err(BatchError::UnknownCodec { code });
    }
    let (last_offset_delta, record_count) = (i32_at::<23>(header), i32_at::<57>(header));
    if last_offset_delta < 0 || record_count < 0 {
        return Err(BatchError::WrongCount {
            record_count,
            last_offset_delta,
        });
    }
    Ok(total)
}

fn wrong_length(header: &[u8; RecordBatch::HEADER_BYTES], available: usize) -> BatchError {
    let available = available.saturating_sub(LENGTH_OVERHEAD);
    BatchError::WrongLength {
        declared: i32_at::<8>(header),
        available,
    }
}

/// Whether a batch of this declared length is merely cut short, rather than impossible.
fn longer(declared: i32, available: usize) -> bool {
    usize::try_from(declared).is_ok_and(|length| length + LENGTH_OVERHEAD > available)
}

fn crc_of(batch: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(batch.get(CRC_START..).unwrap_or_default())
}

fn seal(batch: &mut [u8]) {
    let crc = crc_of(batch);
    if let Some(header) = batch.first_chunk_mut() {
        put::<17, 4>(header, crc.to_be_bytes());
    }
}

#[inline]
fn put<const AT: usize, const N: usize>(
    header: &mut [u8; RecordBatch::HEADER_BYTES],
    field: [u8; N],
) {
    const { assert!(AT + N <= RecordBatch::HEADER_BYTES) };
    header[AT..AT + N].copy_from_slice(&field);
}

#[inline]
fn field<const AT: usize, const N: usize>(header: &[u8; RecordBatch::HEADER_BYTES]) -> [u8; N] {
    const { assert!(AT + N <= RecordBatch::HEADER_BYTES) };
    let mut field = [0; N];
    field.copy_from_slice(&header[AT..AT + N]);
    field
}

#[inline]
fn i16_at<const AT: usize>(header: &[u8; RecordBatch::HEADER_BYTES]) -> i16 {
    i16::from_be_bytes(field::<AT, 2>(header))
}

#[inline]
fn i32_at<const AT: usize>(header: &[u8; RecordBatch::HEADER_BYTES]) -> i32 {
    i32::from_be_bytes(field::<AT, 4>(header))
}

#[inline]
fn i64_at<const AT: usize>(header: &[u8; RecordBatch::HEADER_BYTES]) -> i64 {
    i64::from_be_bytes(field::<AT, 8>(header))
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
