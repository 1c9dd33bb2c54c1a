//! Writes elementary values into the segments of a frame.
//!
//! Invariants: concatenated in order, `segments` and then `buffer` are what was written.
//! Never: copies a long run of bytes; it becomes a segment of its own, by reference.

use bytes::{BufMut, Bytes, BytesMut};

use crate::frame::Frame;

/// A run of bytes of at least this size is passed on by reference.
const REFERENCE_BYTES_MIN: usize = 1024;

/// Why a value has no form on the wire.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A value is longer than its length field can say.
    #[error("{what} of {length} is longer than the wire allows")]
    Length {
        /// The kind of value: string, bytes or array.
        what: &'static str,
        /// Its length.
        length: usize,
    },
    /// A field is null in a version that does not allow it.
    #[error("{message}.{field} is null, which version {version} does not allow")]
    Null {
        /// The structure.
        message: &'static str,
        /// The field.
        field: &'static str,
        /// The version.
        version: i16,
    },
    /// A field that the version lacks has a value that must not be lost.
    #[error("{message}.{field} is set, but version {version} has no such field")]
    Unsupported {
        /// The structure.
        message: &'static str,
        /// The field.
        field: &'static str,
        /// The version.
        version: i16,
    },
    /// The version is none that the message has.
    #[error("{message} has no version {version}")]
    Version {
        /// The message.
        message: &'static str,
        /// The version asked for.
        version: i16,
    },
}

/// Collects the bytes of one frame.
#[derive(Debug, Default)]
pub struct Encoder {
    segments: Vec<Bytes>,
    buffer: BytesMut,
}

macro_rules! fixed {
    ($($(#[$doc:meta])* $name:ident($type:ty), $put:ident;)*) => {$(
        $(#[$doc])*
        #[inline]
        pub fn $name(&mut self, value: $type) {
            self.buffer.$put(value);
        }
    )*};
}

impl Encoder {
    /// Starts an empty frame.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(128)
    }

    /// Starts an empty frame with room for `size` bytes of small fields.
    #[must_use]
    pub fn with_capacity(size: usize) -> Self {
        Self {
            segments: Vec::new(),
            buffer: BytesMut::with_capacity(size),
        }
    }

    fixed! {
        /// Writes one signed byte.
        i8(i8), put_i8;
        /// Writes one byte.
        u8(u8), put_u8;
        /// Writes a big-endian 16-bit integer.
        i16(i16), put_i16;
        /// Writes a big-endian unsigned 16-bit integer.
        u16(u16), put_u16;
        /// Writes a big-endian 32-bit integer.
        i32(i32), put_i32;
        /// Writes a big-endian unsigned 32-bit integer.
        u32(u32), put_u32;
        /// Writes a big-endian 64-bit integer.
        i64(i64), put_i64;
        /// Writes a big-endian 64-bit float.
        f64(f64), put_f64;
    }

    /// Writes an unsigned variable-length integer.
    #[inline]
    pub fn unsigned_varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.buffer.put_u8((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.buffer.put_u8(value as u8);
    }

    /// Copies bytes as they are, without a length.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Adds bytes as they are, without a length: a long run by reference, a short one as a copy.
    pub fn shared(&mut self, bytes: &Bytes) {
        if bytes.len() < REFERENCE_BYTES_MIN {
            self.buffer.extend_from_slice(bytes);
            return;
        }
        if !self.buffer.is_empty() {
            self.segments.push(self.buffer.split().freeze());
        }
        self.segments.push(bytes.clone());
    }

    /// Writes one tagged field: tag, size and the value that `write` encodes.
    ///
    /// # Errors
    /// Those of `write`, and [`EncodeError::Length`] for a value of more than 4 GiB.
    pub fn tagged(
        &mut self,
        tag: u32,
        write: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let mut value = Encoder::new();
        write(&mut value)?;
        let value = value.finish();
        let length = value.size_bytes();
        let size = u32::try_from(length).map_err(|_| EncodeError::Length {
            what: "tagged field",
            length,
        })?;
        self.unsigned_varint(tag);
        self.unsigned_varint(size);
        for segment in value.segments() {
            self.shared(segment);
        }
        Ok(())
    }

    /// Ends the frame.
    #[must_use]
    pub fn finish(mut self) -> Frame {
        if !self.buffer.is_empty() {
            self.segments.push(self.buffer.freeze());
        }
        Frame::from_segments(self.segments)
    }
}
