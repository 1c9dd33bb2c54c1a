//! One request or response on its way, as a list of byte runs.
//!
//! Invariants: the 4-byte length prefix is not part of a frame; no segment is empty.
//! Never: copies a segment unless asked for one contiguous run.

use bytes::{Bytes, BytesMut};

/// The bytes of one request or response: header, body, and record batches by reference.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    segments: Vec<Bytes>,
    size_bytes: usize,
}

impl Frame {
    /// A frame of one segment.
    #[must_use]
    pub fn from_bytes(bytes: Bytes) -> Self {
        Self::from_segments(vec![bytes])
    }

    /// A frame of these segments, in order; empty ones are dropped.
    #[must_use]
    pub fn from_segments(mut segments: Vec<Bytes>) -> Self {
        segments.retain(|segment| !segment.is_empty());
        let size_bytes = segments.iter().map(Bytes::len).sum();
        Self {
            segments,
            size_bytes,
        }
    }

    /// The length of all segments together: what the length prefix on a socket says.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// The segments, in order.
    #[must_use]
    pub fn segments(&self) -> &[Bytes] {
        &self.segments
    }

    /// The segments, in order.
    #[must_use]
    pub fn into_segments(self) -> Vec<Bytes> {
        self.segments
    }

    /// All bytes in one run: by reference for a frame of one segment, else a copy.
    #[must_use]
    pub fn into_contiguous(mut self) -> Bytes {
        if self.segments.len() == 1
            && let Some(only) = self.segments.pop()
        {
            return only;
        }
        let mut bytes = BytesMut::with_capacity(self.size_bytes);
        for segment in &self.segments {
            bytes.extend_from_slice(segment);
        }
        bytes.freeze()
    }
}
