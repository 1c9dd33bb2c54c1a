//! Records inside a batch: the walk over their bytes, and the owned and borrowed forms of one.
//!
//! Invariants: every length is checked against what is left before it is used, each record ends
//! exactly where its length says, and the last one ends where the batch does.
//! Never: copies a key, value or header; reserves memory from a count on the wire.

use crate::batch::BatchError;
use crate::zigzag;
use bytes::Bytes;
use std::borrow::Cow;
use std::fmt;

/// The least that a record takes: seven one-byte fields.
pub(crate) const MIN_RECORD_BYTES: usize = 7;

/// One record, sharing the memory of its batch (or of the decompressed batch).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Position in the partition (in the batch, while the batch has no base offset).
    pub offset: i64,
    /// Milliseconds since the epoch; the append time where the batch carries that.
    pub timestamp: i64,
    /// `None` is null, which is not the same as empty.
    pub key: Option<Bytes>,
    /// `None` is null: a tombstone on a compacted topic.
    pub value: Option<Bytes>,
    /// In the order they were added, repeated keys kept.
    pub headers: Headers,
}

/// One record, borrowed: what a walk that keeps nothing should use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// Position in the partition.
    pub offset: i64,
    /// Milliseconds since the epoch.
    pub timestamp: i64,
    /// `None` is null.
    pub key: Option<&'a [u8]>,
    /// `None` is null.
    pub value: Option<&'a [u8]>,
    header_count: u32,
    header_bytes: &'a [u8],
}

impl<'a> RecordView<'a> {
    /// How many headers there are, and their bytes.
    pub(crate) fn encoded_headers(&self) -> (u32, &'a [u8]) {
        (self.header_count, self.header_bytes)
    }

    /// Headers in their order, repeated keys kept.
    #[must_use]
    pub fn headers(&self) -> HeaderIter<'a> {
        HeaderIter {
            remaining: self.header_count,
            bytes: self.header_bytes,
        }
    }
}

/// Record headers in their order, repeated keys kept; no memory of their own when there are none.
#[derive(Clone, Default)]
pub struct Headers {
    count: u32,
    /// Headers as the record format writes them, already checked.
    bytes: Bytes,
}

impl Headers {
    /// No headers.
    #[must_use]
    pub const fn new() -> Headers {
        Headers {
            count: 0,
            bytes: Bytes::new(),
        }
    }

    /// How many there are, repeated keys counted each time.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The headers in order.
    #[must_use]
    pub fn iter(&self) -> HeaderIter<'_> {
        HeaderIter {
            remaining: self.count,
            bytes: &self.bytes,
        }
    }

    /// The value of the last header with this key: the one that counts where keys repeat.
    #[must_use]
    pub fn last(&self, key: &str) -> Option<Option<&[u8]>> {
        self.iter()
            .filter(|(name, _)| name == key)
            .last()
            .map(|(_, value)| value)
    }

    pub(crate) fn encoded(&self) -> (u32, &[u8]) {
        (self.count, &self.bytes)
    }
}

impl<'a> IntoIterator for &'a Headers {
    type Item = (Cow<'a, str>, Option<&'a [u8]>);
    type IntoIter = HeaderIter<'a>;

    fn into_iter(self) -> HeaderIter<'a> {
        self.iter()
    }
}

impl<K: AsRef<str>, V: AsRef<[u8]>> FromIterator<(K, Option<V>)> for Headers {
    fn from_iter<I: IntoIterator<Item = (K, Option<V>)>>(pairs: I) -> Headers {
        let mut count = 0;
        let mut bytes = Vec::new();
        for (key, value) in pairs {
            put_header(&mut bytes, key.as_ref(), value.as_ref().map(AsRef::as_ref));
            count += 1;
        }
        Headers {
            count,
            bytes: Bytes::from(bytes),
        }
    }
}

impl PartialEq for Headers {
    fn eq(&self, other: &Headers) -> bool {
        self.count == other.count && self.iter_bytes().eq(other.iter_bytes())
    }
}

impl Eq for Headers {}

impl Headers {
    /// The headers in order, keys as the bytes they are.
    pub fn iter_bytes(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let mut iter = self.iter();
        std::iter::from_fn(move || iter.next_bytes())
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_list()
            .entries(
                self.iter()
                    .map(|(key, value)| (key, value.map(Bytes::copy_from_slice))),
            )
            .finish()
    }
}

/// Iterator over headers: key (invalid UTF-8 replaced) and value, `None` for null.
#[derive(Clone, Debug)]
pub struct HeaderIter<'a> {
    remaining: u32,
    bytes: &'a [u8],
}

impl<'a> HeaderIter<'a> {
    /// The next header with its key as the bytes it is.
    pub fn next_bytes(&mut self) -> Option<(&'a [u8], Option<&'a [u8]>)> {
        if self.remaining == 0 {
            return None;
        }
        let mut at = 0;
        let header = read_header(self.bytes, &mut at)?;
        self.bytes = self.bytes.get(at..)?;
        self.remaining -= 1;
        Some(header)
    }
}

impl<'a> Iterator for HeaderIter<'a> {
    type Item = (Cow<'a, str>, Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = self.next_bytes()?;
        Some((String::from_utf8_lossy(key), value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining as usize, Some(self.remaining as usize))
    }
}

impl ExactSizeIterator for HeaderIter<'_> {}

/// Appends one header in the record format.
pub(crate) fn put_header(target: &mut Vec<u8>, key: &str, value: Option<&[u8]>) {
    let mut varint = [0; zigzag::MAX_BYTES_I64];
    let length = zigzag::put_i64(&mut varint, key.len() as i64);
    target.extend_from_slice(&varint[..length]);
    target.extend_from_slice(key.as_bytes());
    let length = zigzag::put_i64(&mut varint, value.map_or(-1, |value| value.len() as i64));
    target.extend_from_slice(&varint[..length]);
    target.extend_from_slice(value.unwrap_or_default());
}

/// Bytes that [`put_header`] appends.
pub(crate) fn header_size_bytes(key: &str, value: Option<&[u8]>) -> usize {
    let value_bytes = value.map_or(0, <[u8]>::len);
    zigzag::size_i64(key.len() as i64)
        + key.len()
        + zigzag::size_i64(value.map_or(-1, |value| value.len() as i64))
        + value_bytes
}

/// The parts of one record as they lie in the payload.
struct Parts<'a> {
    timestamp_delta: i64,
    offset_delta: i32,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
    header_count: u32,
    headers: &'a [u8],
}

/// A nullable run: the outer `None` is malformed, the inner one is null.
#[inline]
fn read_run<'a>(bytes: &'a [u8], at: &mut usize) -> Option<Option<&'a [u8]>> {
    let length = zigzag::read_i32(bytes, at)?;
    let Ok(length) = usize::try_from(length) else {
        return (length == -1).then_some(None);
    };
    let run = bytes.get(*at..)?.get(..length)?;
    *at += length;
    Some(Some(run))
}

#[inline]
fn read_header<'a>(bytes: &'a [u8], at: &mut usize) -> Option<(&'a [u8], Option<&'a [u8]>)> {
    let key = read_run(bytes, at)??;
    let value = read_run(bytes, at)?;
    Some((key, value))
}

/// Reads the record at `*at`; the error names the field that does not hold.
#[inline]
fn read_record<'a>(bytes: &'a [u8], at: &mut usize) -> Result<Parts<'a>, &'static str> {
    let length = zigzag::read_i32(bytes, at).ok_or("length")?;
    let end = usize::try_from(length)
        .ok()
        .and_then(|length| at.checked_add(length));
    let body = end.and_then(|end| bytes.get(..end)).ok_or("length")?;
    *at += 1; // attributes: none are defined
    let timestamp_delta = zigzag::read_i64(body, at).ok_or("timestamp delta")?;
    let offset_delta = zigzag::read_i32(body, at).ok_or("offset delta")?;
    let key = read_run(body, at).ok_or("key length")?;
    let value = read_run(body, at).ok_or("value length")?;
    let header_count = zigzag::read_i32(body, at).ok_or("header count")?;
    let header_count = u32::try_from(header_count).map_err(|_| "header count")?;
    let headers = body.get(*at..).ok_or("header")?;
    for _ in 0..header_count {
        read_header(body, at).ok_or("header")?;
    }
    if *at != body.len() {
        return Err("length (bytes are left over)");
    }
    Ok(Parts {
        timestamp_delta,
        offset_delta,
        key,
        value,
        header_count,
        headers,
    })
}

/// How far a walk has come.
#[derive(Clone, Debug)]
struct Progress {
    at: usize,
    next_index: i32,
    count: i32,
}

impl Progress {
    #[inline]
    fn next<'a>(&mut self, payload: &'a [u8]) -> Option<Result<Parts<'a>, BatchError>> {
        let index = self.next_index;
        if index >= self.count {
            if self.at < payload.len() {
                let bytes = payload.len() - self.at;
                self.at = payload.len();
                return Some(Err(BatchError::BytesAfterRecords { bytes }));
            }
            return None;
        }
        self.next_index += 1;
        match read_record(payload, &mut self.at) {
            Ok(parts) => Some(Ok(parts)),
            Err(field) => {
                self.next_index = self.count;
                self.at = payload.len();
                Some(Err(BatchError::MalformedRecord { index, field }))
            }
        }
    }
}

/// What turns a record's deltas into offset and timestamp.
#[derive(Clone, Copy, Debug)]
struct Bases {
    offset: i64,
    timestamp: i64,
    append_time: Option<i64>,
}

impl Bases {
    #[inline]
    fn offset(&self, parts: &Parts<'_>) -> i64 {
        self.offset.saturating_add(i64::from(parts.offset_delta))
    }

    #[inline]
    fn timestamp(&self, parts: &Parts<'_>) -> i64 {
        self.append_time
            .unwrap_or_else(|| self.timestamp.saturating_add(parts.timestamp_delta))
    }
}

/// The records of one batch, in order. After an error nothing more comes.
#[derive(Clone, Debug)]
pub struct Records {
    payload: Bytes,
    progress: Progress,
    bases: Bases,
}

impl Records {
    pub(crate) fn new(
        payload: Bytes,
        count: i32,
        base_offset: i64,
        base_timestamp: i64,
        append_time: Option<i64>,
    ) -> Records {
        let progress = Progress {
            at: 0,
            next_index: 0,
            count,
        };
        let bases = Bases {
            offset: base_offset,
            timestamp: base_timestamp,
            append_time,
        };
        Records {
            payload,
            progress,
            bases,
        }
    }

    /// How many records the batch says are still to come.
    #[must_use]
    pub fn remaining(&self) -> usize {
        usize::try_from(self.progress.count - self.progress.next_index).unwrap_or_default()
    }

    pub(crate) fn plain_bytes(&self) -> usize {
        self.payload.len()
    }

    /// The next record, borrowed: half the cost of the owned one.
    #[inline]
    pub fn next_view(&mut self) -> Option<Result<RecordView<'_>, BatchError>> {
        let bases = self.bases;
        match self.progress.next(&self.payload)? {
            Ok(parts) => Some(Ok(RecordView {
                offset: bases.offset(&parts),
                timestamp: bases.timestamp(&parts),
                key: parts.key,
                value: parts.value,
                header_count: parts.header_count,
                header_bytes: parts.headers,
            })),
            Err(error) => Some(Err(error)),
        }
    }

    /// The next record's offset delta, timestamp and whether it has a key.
    #[inline]
    pub(crate) fn next_shape(&mut self) -> Option<Result<(i32, i64, bool), BatchError>> {
        match self.progress.next(&self.payload)? {
            Ok(parts) => {
                let timestamp = self.bases.timestamp(&parts);
                Some(Ok((parts.offset_delta, timestamp, parts.key.is_some())))
            }
            Err(error) => Some(Err(error)),
        }
    }
}

impl Iterator for Records {
    type Item = Result<Record, BatchError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let parts = match self.progress.next(&self.payload)? {
            Ok(parts) => parts,
            Err(error) => return Some(Err(error)),
        };
        let headers = if parts.header_count == 0 {
            Headers::new()
        } else {
            Headers {
                count: parts.header_count,
                bytes: self.payload.slice_ref(parts.headers),
            }
        };
        Some(Ok(Record {
            offset: self.bases.offset(&parts),
            timestamp: self.bases.timestamp(&parts),
            key: parts.key.map(|key| self.payload.slice_ref(key)),
            value: parts.value.map(|value| self.payload.slice_ref(value)),
            headers,
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let most = self.payload.len().saturating_sub(self.progress.at) / MIN_RECORD_BYTES;
        (0, Some(most.min(self.remaining()) + 1))
    }
}
