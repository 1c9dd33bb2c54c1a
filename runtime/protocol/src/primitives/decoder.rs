//! Reads elementary values from a frame's chain of segments.
//!
//! Invariants:
//! - what is reserved for a value is never more than the bytes that remain
//! - `remaining` = bytes of `current` + bytes of `rest`
//! - a run of bytes that lies in one segment is handed out by reference
//!
//! Never: panics on input, whatever its bytes are.

use bytes::{Buf, Bytes, BytesMut};

use crate::frame::Frame;

/// Why bytes could not be read as the value that was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The input ends inside a value.
    #[error("input ends early: {needed} bytes needed, {remaining} remain")]
    Truncated {
        /// Bytes that the value takes.
        needed: usize,
        /// Bytes that are left.
        remaining: usize,
    },
    /// A length or count cannot be right for the bytes that remain.
    #[error("{what} of {length} cannot fit the {remaining} bytes that remain")]
    Length {
        /// The kind of value: string, bytes or array.
        what: &'static str,
        /// The length or count found.
        length: i64,
        /// Bytes that are left.
        remaining: usize,
    },
    /// A value that must be there is null.
    #[error("{what} is null where the version does not allow it")]
    Null {
        /// The kind of value or the field.
        what: &'static str,
    },
    /// A string is not UTF-8.
    #[error("string is not UTF-8")]
    Utf8,
    /// A variable-length integer does not end, or is too large for its type.
    #[error("variable-length integer is longer than its type")]
    Varint,
    /// The version is none that the message has.
    #[error("{message} has no version {version}")]
    Version {
        /// The message.
        message: &'static str,
        /// The version asked for.
        version: i16,
    },
    /// A tagged field is longer or shorter than it says.
    #[error("tagged field {tag} says {size} bytes but its value takes {taken}")]
    TagSize {
        /// The field's tag.
        tag: u32,
        /// The size announced.
        size: usize,
        /// The bytes that the value took.
        taken: usize,
    },
    /// A field could not be read.
    #[error("{message}.{field}: {source}")]
    Field {
        /// The structure.
        message: &'static str,
        /// The field.
        field: &'static str,
        /// What was wrong with it.
        source: Box<DecodeError>,
    },
    /// Bytes are left after the message.
    #[error("{bytes} bytes follow the message")]
    Trailing {
        /// How many.
        bytes: usize,
    },
}

impl DecodeError {
    /// Says in which field of which structure the error arose.
    #[cold]
    #[must_use]
    pub fn in_field(self, message: &'static str, field: &'static str) -> Self {
        Self::Field {
            message,
            field,
            source: Box::new(self),
        }
    }
}

/// A cursor over the bytes of one frame.
#[derive(Debug, Clone)]
pub struct Decoder {
    current: Bytes,
    rest: std::vec::IntoIter<Bytes>,
    remaining: usize,
    reserved: usize,
}

macro_rules! fixed {
    ($($(#[$doc:meta])* $name:ident -> $type:ty, $get:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// [`DecodeError::Truncated`] if too few bytes remain.
        #[inline]
        pub fn $name(&mut self) -> Result<$type, DecodeError> {
            const SIZE: usize = size_of::<$type>();
            if self.current.len() >= SIZE {
                self.remaining -= SIZE;
                return Ok(self.current.$get());
            }
            self.gather::<SIZE>().map(<$type>::from_be_bytes)
        }
    )*};
}

impl Decoder {
    /// Starts at the first byte of a frame.
    #[must_use]
    pub fn new(frame: Frame) -> Self {
        let remaining = frame.size_bytes();
        let rest = frame.into_segments().into_iter();
        Self {
            current: Bytes::new(),
            rest,
            remaining,
            reserved: 0,
        }
    }

    /// Starts at the first byte of a contiguous buffer.
    #[must_use]
    pub fn from_bytes(bytes: Bytes) -> Self {
        let remaining = bytes.len();
        Self {
            current: bytes,
            rest: Vec::new().into_iter(),
            remaining,
            reserved: 0,
        }
    }

    /// Bytes not yet read.
    #[inline]
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.remaining
    }

    /// Bytes of memory taken so far for what was decoded: strings, copied runs and arrays.
    ///
    /// It stays within a small multiple of the input, whatever the input says.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        self.reserved
    }

    /// Notes memory that a value took.
    #[inline]
    pub(super) fn note_reserved(&mut self, bytes: usize) {
        self.reserved = self.reserved.saturating_add(bytes);
    }

    fixed! {
        /// Reads one signed byte.
        i8 -> i8, get_i8;
        /// Reads one byte.
        u8 -> u8, get_u8;
        /// Reads a big-endian 16-bit integer.
        i16 -> i16, get_i16;
        /// Reads a big-endian unsigned 16-bit integer.
        u16 -> u16, get_u16;
        /// Reads a big-endian 32-bit integer.
        i32 -> i32, get_i32;
        /// Reads a big-endian unsigned 32-bit integer.
        u32 -> u32, get_u32;
        /// Reads a big-endian 64-bit integer.
        i64 -> i64, get_i64;
        /// Reads a big-endian 64-bit float.
        f64 -> f64, get_f64;
    }

    /// Reads a fixed run of bytes, which may span segments.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if too few bytes remain.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        if let Some((head, _)) = self.current.split_first_chunk::<N>() {
            let head = *head;
            self.current.advance(N);
            self.remaining -= N;
            return Ok(head);
        }
        self.gather()
    }

    /// The slow way to read a fixed run: byte by byte over the segments' borders.
    #[cold]
    fn gather<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        self.require(N)?;
        let mut out = [0; N];
        for byte in &mut out {
            self.refill();
            *byte = self.current.get_u8();
        }
        self.remaining -= N;
        Ok(out)
    }

    /// Reads an unsigned variable-length integer of at most 32 bits.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] at the end of input, [`DecodeError::Varint`] beyond 32 bits.
    #[inline]
    pub fn unsigned_varint(&mut self) -> Result<u32, DecodeError> {
        let first = self.u8()?;
        if first < 0x80 {
            return Ok(u32::from(first));
        }
        let mut value = u32::from(first & 0x7f);
        for shift in [7, 14, 21, 28] {
            let byte = self.u8()?;
            if shift == 28 && byte > 0x0f {
                return Err(DecodeError::Varint);
            }
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Varint)
    }

    /// Takes the next `size` bytes: by reference if they lie in one segment, else as a copy.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if too few bytes remain.
    pub fn take(&mut self, size: usize) -> Result<Bytes, DecodeError> {
        self.require(size)?;
        if self.current.is_empty() && size > 0 {
            self.refill();
        }
        self.remaining -= size;
        if self.current.len() >= size {
            return Ok(self.current.split_to(size));
        }
        self.note_reserved(size);
        let mut out = BytesMut::with_capacity(size);
        while out.len() < size {
            self.refill();
            let part = self.current.len().min(size - out.len());
            out.extend_from_slice(&self.current.split_to(part));
        }
        Ok(out.freeze())
    }

    /// Takes the next `size` bytes as UTF-8 text.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if too few bytes remain, [`DecodeError::Utf8`] if it is no text.
    pub fn text(&mut self, size: usize) -> Result<String, DecodeError> {
        let bytes = self.take(size)?;
        self.note_reserved(size);
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(DecodeError::Utf8),
        }
    }

    /// Passes over the next `size` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] if too few bytes remain.
    pub fn skip(&mut self, size: usize) -> Result<(), DecodeError> {
        self.require(size)?;
        self.remaining -= size;
        let mut left = size;
        while left > 0 {
            self.refill();
            let part = self.current.len().min(left);
            self.current.advance(part);
            left -= part;
        }
        Ok(())
    }

    /// Passes over all tagged fields of a structure.
    ///
    /// # Errors
    /// Those of reading counts and sizes.
    pub fn skip_tags(&mut self) -> Result<(), DecodeError> {
        for _ in 0..self.unsigned_varint()? {
            self.unsigned_varint()?;
            let size = self.unsigned_varint()?;
            self.skip(size as usize)?;
        }
        Ok(())
    }

    /// Fails if bytes are left.
    ///
    /// # Errors
    /// [`DecodeError::Trailing`].
    pub fn expect_end(&self) -> Result<(), DecodeError> {
        match self.remaining {
            0 => Ok(()),
            bytes => Err(DecodeError::Trailing { bytes }),
        }
    }

    #[inline]
    fn require(&self, needed: usize) -> Result<(), DecodeError> {
        if needed > self.remaining {
            return Err(DecodeError::Truncated {
                needed,
                remaining: self.remaining,
            });
        }
        Ok(())
    }

    /// Moves to the next segment that has bytes, if the current one is used up.
    fn refill(&mut self) {
        while self.current.is_empty() {
            match self.rest.next() {
                Some(next) => self.current = next,
                None => return,
            }
        }
    }
}
