//! Codecs of record batches: none, gzip, snappy, lz4 and zstd, in the framings that Kafka uses.
//!
//! Invariants: `decompress` never returns more than its cap, and the memory it takes grows with
//! what was really produced (snappy's declared sizes are checked against what the codec can reach).
//! Never: trusts a size that the compressed bytes declare; spans more than one batch.

use crate::batch::BatchError;
use bytes::Bytes;
use std::fmt;
use std::io::{Read, Write};
use std::str::FromStr;

/// The codec of a record batch, as its attributes name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Compression {
    /// Records are stored as they are.
    #[default]
    None,
    /// RFC 1952.
    Gzip,
    /// Snappy blocks in the xerial framing; raw snappy is understood when reading.
    Snappy,
    /// An LZ4 frame of independent 64 KiB blocks.
    Lz4,
    /// A Zstandard frame.
    Zstd,
}

impl Compression {
    /// Every codec, in the order of its code.
    pub const ALL: [Compression; 5] = [
        Compression::None,
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ];

    /// The number in the lowest three bits of a batch's attributes.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The codec with this number; `None` for the numbers that Kafka has not given away.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Compression> {
        Compression::ALL.get(usize::from(code)).copied()
    }

    /// Kafka's name, as in `compression.type`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Snappy => "snappy",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The name is not one of `none`, `gzip`, `snappy`, `lz4` and `zstd`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown compression {name:?}: use none, gzip, snappy, lz4 or zstd")]
pub struct UnknownCompression {
    /// What was given.
    pub name: String,
}

impl FromStr for Compression {
    type Err = UnknownCompression;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Compression::ALL
            .into_iter()
            .find(|codec| codec.name() == name)
            .ok_or_else(|| UnknownCompression {
                name: name.to_owned(),
            })
    }
}

const GZIP_LEVEL: u32 = 1;
const ZSTD_LEVEL: i32 = 1;
/// Magic, version 1, lowest compatible version 1.
const XERIAL_HEADER: [u8; 16] = [
    0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1,
];
const XERIAL_MAGIC_BYTES: usize = 8;
const XERIAL_BLOCK_BYTES: usize = 32 * 1024;
/// A three-byte copy element makes at most 64 bytes: snappy cannot expand further than this.
const SNAPPY_EXPANSION_MAX: usize = 22;

/// Compresses batches one after another and keeps what is costly to set up.
pub(crate) struct Compressor {
    codec: Compression,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    snappy: snap::raw::Encoder,
}

impl fmt::Debug for Compressor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Compressor")
            .field("codec", &self.codec)
            .finish_non_exhaustive()
    }
}

impl Compressor {
    pub(crate) fn new(codec: Compression) -> Compressor {
        Compressor {
            codec,
            zstd: None,
            snappy: snap::raw::Encoder::new(),
        }
    }

    pub(crate) fn codec(&self) -> Compression {
        self.codec
    }

    /// Appends the compressed form of `input` to `output`.
    pub(crate) fn compress(
        &mut self,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(), BatchError> {
        let codec = self.codec;
        let done = match codec {
            Compression::None => {
                output.extend_from_slice(input);
                Ok(())
            }
            Compression::Gzip => compress_gzip(input, output),
            Compression::Snappy => self.compress_snappy(input, output),
            Compression::Lz4 => compress_lz4(input, output),
            Compression::Zstd => self.compress_zstd(input, output),
        };
        done.map_err(|reason| BatchError::Codec { codec, reason })
    }

    fn compress_snappy(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<(), String> {
        output.extend_from_slice(&XERIAL_HEADER);
        for block in input.chunks(XERIAL_BLOCK_BYTES) {
            let packed = self.snappy.compress_vec(block).map_err(|e| e.to_string())?;
            let length = i32::try_from(packed.len()).map_err(|e| e.to_string())?;
            output.extend_from_slice(&length.to_be_bytes());
            output.extend_from_slice(&packed);
        }
        Ok(())
    }

    fn compress_zstd(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<(), String> {
        let context = match &mut self.zstd {
            Some(context) => context,
            empty => {
                let made = zstd::bulk::Compressor::new(ZSTD_LEVEL).map_err(|e| e.to_string())?;
                empty.insert(made)
            }
        };
        output.extend_from_slice(&context.compress(input).map_err(|e| e.to_string())?);
        Ok(())
    }
}

fn compress_gzip(input: &[u8], output: &mut Vec<u8>) -> Result<(), String> {
    let level = flate2::Compression::new(GZIP_LEVEL);
    let mut encoder = flate2::write::GzEncoder::new(output, level);
    encoder
        .write_all(input)
        .and_then(|()| encoder.finish())
        .map_err(|e| e.to_string())?;
    Ok(())
}

fn compress_lz4(input: &[u8], output: &mut Vec<u8>) -> Result<(), String> {
    use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
    let info = FrameInfo::new()
        .block_size(BlockSize::Max64KB)
        .block_mode(BlockMode::Independent);
    let mut encoder = FrameEncoder::with_frame_info(info, output);
    encoder.write_all(input).map_err(|e| e.to_string())?;
    encoder.finish().map_err(|e| e.to_string())?;
    Ok(())
}

/// The plain form of `input`; an error when it would be longer than `max_bytes`.
pub(crate) fn decompress(
    codec: Compression,
    input: &Bytes,
    max_bytes: usize,
) -> Result<Bytes, BatchError> {
    let broken = |reason: String| BatchError::Codec { codec, reason };
    let plain = match codec {
        Compression::None => return Ok(input.clone()),
        Compression::Gzip => read_capped(
            flate2::bufread::MultiGzDecoder::new(input.as_ref()),
            max_bytes,
        ),
        Compression::Snappy => decompress_snappy(input, max_bytes),
        Compression::Lz4 => read_capped(
            lz4_flex::frame::FrameDecoder::new(input.as_ref()),
            max_bytes,
        ),
        Compression::Zstd => decompress_zstd(input, max_bytes),
    };
    match plain {
        Ok(Some(plain)) => Ok(Bytes::from(plain)),
        Ok(None) => Err(BatchError::TooLargeDecompressed { max_bytes }),
        Err(reason) => Err(broken(reason)),
    }
}

/// `None` when there is more than `max_bytes`.
fn read_capped(reader: impl Read, max_bytes: usize) -> Result<Option<Vec<u8>>, String> {
    let mut plain = Vec::new();
    let limit = max_bytes as u64 + 1;
    reader
        .take(limit)
        .read_to_end(&mut plain)
        .map_err(|e| e.to_string())?;
    Ok((plain.len() <= max_bytes).then_some(plain))
}

fn decompress_zstd(input: &[u8], max_bytes: usize) -> Result<Option<Vec<u8>>, String> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(input).map_err(|e| e.to_string())?;
    // The window is memory that the frame's header asks for before anything is decoded.
    let window_log = max_bytes.max(1).ilog2().saturating_add(1).clamp(20, 27);
    decoder
        .window_log_max(window_log)
        .map_err(|e| e.to_string())?;
    read_capped(decoder, max_bytes)
}

fn decompress_snappy(input: &[u8], max_bytes: usize) -> Result<Option<Vec<u8>>, String> {
    let mut plain = Vec::new();
    if !input.starts_with(&XERIAL_HEADER[..XERIAL_MAGIC_BYTES]) {
        return Ok(snappy_block(input, max_bytes, &mut plain)?.then_some(plain));
    }
    let mut rest = input
        .get(XERIAL_HEADER.len()..)
        .ok_or("the xerial header is cut short".to_owned())?;
    while !rest.is_empty() {
        let (length, after) = rest
            .split_first_chunk::<4>()
            .ok_or("a block length is cut short")?;
        let length = usize::try_from(i32::from_be_bytes(*length))
            .map_err(|_| "a block length is negative".to_owned())?;
        let block = after
            .get(..length)
            .ok_or("a block is longer than what is left")?;
        if !snappy_block(block, max_bytes, &mut plain)? {
            return Ok(None);
        }
        rest = after.get(length..).unwrap_or_default();
    }
    Ok(Some(plain))
}

/// Appends one raw block; `false` when the result would exceed `max_bytes`.
fn snappy_block(block: &[u8], max_bytes: usize, plain: &mut Vec<u8>) -> Result<bool, String> {
    let length = snap::raw::decompress_len(block).map_err(|e| e.to_string())?;
    if length > block.len().saturating_mul(SNAPPY_EXPANSION_MAX) {
        return Err("a block declares more than it can hold".to_owned());
    }
    let start = plain.len();
    if length > max_bytes.saturating_sub(start) {
        return Ok(false);
    }
    plain.resize(start + length, 0);
    let target = plain.get_mut(start..).unwrap_or_default();
    let written = snap::raw::Decoder::new()
        .decompress(block, target)
        .map_err(|e| e.to_string())?;
    plain.truncate(start + written);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CAP: usize = 1 << 20;

    fn compressed(codec: Compression, input: &[u8]) -> Bytes {
        let mut output = Vec::new();
        Compressor::new(codec).compress(input, &mut output).unwrap();
        Bytes::from(output)
    }

    #[test]
    fn a_bomb_is_stopped_at_the_cap() {
        let zeros = vec![0; 4 * CAP];
        for codec in Compression::ALL
            .into_iter()
            .filter(|codec| *codec != Compression::None)
        {
            let packed = compressed(codec, &zeros);
            assert!(packed.len() < CAP, "{codec} must compress zeros");
            let error = decompress(codec, &packed, CAP).unwrap_err();
            assert_eq!(
                error,
                BatchError::TooLargeDecompressed { max_bytes: CAP },
                "{codec}"
            );
            assert_eq!(
                decompress(codec, &packed, zeros.len()).unwrap().len(),
                zeros.len()
            );
        }
    }

    #[test]
    fn raw_snappy_is_read_as_well_as_xerial() {
        let raw = snap::raw::Encoder::new()
            .compress_vec(b"hello hello hello")
            .unwrap();
        let plain = decompress(Compression::Snappy, &Bytes::from(raw), CAP).unwrap();
        assert_eq!(plain.as_ref(), b"hello hello hello");
    }

    #[test]
    fn a_snappy_block_that_declares_too_much_takes_no_memory() {
        // Declares 2^28 bytes, holds none.
        let raw = Bytes::from_static(&[0x80, 0x80, 0x80, 0x80, 0x01, 0x00]);
        let error = decompress(Compression::Snappy, &raw, usize::MAX / 2).unwrap_err();
        assert!(matches!(error, BatchError::Codec { .. }), "{error}");
    }

    #[test]
    fn a_zstd_window_larger_than_the_cap_is_refused() {
        // Magic, frame header without single segment: window descriptor for 2^41 bytes.
        let frame = Bytes::from_static(&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf8, 0x01, 0x00, 0x00]);
        assert!(decompress(Compression::Zstd, &frame, CAP).is_err());
    }

    #[test]
    fn names_and_codes_are_kafkas() {
        for (code, codec) in Compression::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(codec.code()), code);
            assert_eq!(Compression::from_code(codec.code()), Some(codec));
            assert_eq!(codec.name().parse(), Ok(codec));
        }
        assert_eq!(Compression::from_code(5), None);
        assert!("brotli".parse::<Compression>().is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_codec_gives_back_what_it_took(
            input in proptest::collection::vec(0_u8..8, 0..100_000),
        ) {
            for codec in Compression::ALL {
                let packed = compressed(codec, &input);
                let plain = decompress(codec, &packed, input.len()).unwrap();
                prop_assert_eq!(plain.as_ref(), input.as_slice());
            }
        }

        #[test]
        fn garbage_is_an_error_or_capped_but_never_a_panic(
            mut input in proptest::collection::vec(any::<u8>(), 0..200),
            flip in any::<prop::sample::Index>(),
        ) {
            for codec in Compression::ALL {
                let _ = decompress(codec, &Bytes::from(input.clone()), 4096);
                let mut packed = compressed(codec, &input).to_vec();
                if !packed.is_empty() {
                    let at = flip.index(packed.len());
                    packed[at] ^= 0x55;
                    if let Ok(plain) = decompress(codec, &Bytes::from(packed), 4096) {
                        prop_assert!(plain.len() <= 4096);
                    }
                }
            }
            input.clear();
        }
    }
}
