//! The journal's bytes: a header for each file, and one frame for each append.
//!
//! ```text
//! file   magic 8 | sequence 8 | base position 8 | CRC-32C 4 | zeros 4
//! frame  magic 4 | payload bytes 4 | CRC-32C 4 | position 8 | position known durable 8
//!        | topic id 16 | partition 4 | base offset 8 | payload
//! ```
//!
//! Invariants: integers are big-endian; a frame's CRC covers all of it but the CRC itself; the
//! position of a frame is the file's base position plus the frame bytes before it.
//! Never: trusts a length before it is compared with the bytes that are there.

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use millstream_protocol::Uuid;

pub(super) const FILE_HEADER_BYTES: usize = 32;
pub(super) const FRAME_HEADER_BYTES: usize = 56;
pub(super) const FRAME_MAGIC: [u8; 4] = *b"MsFr";
const FILE_MAGIC: [u8; 8] = *b"MsJrnl01";

/// The header of one journal file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub(super) sequence: u64,
    pub(super) base_position: u64,
}

/// Everything about a frame but its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) position: u64,
    pub(super) durable_position: u64,
    pub(super) topic_id: Uuid,
    pub(super) partition: i32,
    pub(super) base_offset: i64,
}

fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for part in parts {
        digest.update(part);
    }
    // A 32-bit algorithm leaves the upper half empty.
    digest.finalize() as u32
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

impl FileHeader {
    pub(super) fn encode(self) -> [u8; FILE_HEADER_BYTES] {
        let mut header = [0; FILE_HEADER_BYTES];
        header[..8].copy_from_slice(&FILE_MAGIC);
        header[8..16].copy_from_slice(&self.sequence.to_be_bytes());
        header[16..24].copy_from_slice(&self.base_position.to_be_bytes());
        let crc = crc32c(&[&header[..24]]);
        header[24..28].copy_from_slice(&crc.to_be_bytes());
        header
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<FileHeader> {
        let covered = bytes.get(..24)?;
        if array(bytes, 0) != Some(FILE_MAGIC)
            || array(bytes, 24).map(u32::from_be_bytes) != Some(crc32c(&[covered]))
        {
            return None;
        }
        Some(FileHeader {
            sequence: u64::from_be_bytes(array(bytes, 8)?),
            base_position: u64::from_be_bytes(array(bytes, 16)?),
        })
    }
}

impl FrameHeader {
    /// Appends the encoded header, CRC over `payload` included.
    pub(super) fn encode(&self, payload: &[&[u8]], out: &mut Vec<u8>) {
        let start = out.len();
        let payload_bytes: usize = payload.iter().map(|part| part.len()).sum();
        out.extend_from_slice(&FRAME_MAGIC);
        out.extend_from_slice(&(payload_bytes as u32).to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.position.to_be_bytes());
        out.extend_from_slice(&self.durable_position.to_be_bytes());
        out.extend_from_slice(&self.topic_id.0);
        out.extend_from_slice(&self.partition.to_be_bytes());
        out.extend_from_slice(&self.base_offset.to_be_bytes());
        let mut covered: Vec<&[u8]> = vec![&out[start..start + 8], &out[start + 12..]];
        covered.extend_from_slice(payload);
        let crc = crc32c(&covered);
        out[start + 8..start + 12].copy_from_slice(&crc.to_be_bytes());
    }

    /// The frame that starts at `at` of `file`, if a whole and undamaged one does.
    pub(super) fn decode(file: &Bytes, at: usize) -> Option<(FrameHeader, Bytes)> {
        let header = file.get(at..at.checked_add(FRAME_HEADER_BYTES)?)?;
        if array(header, 0) != Some(FRAME_MAGIC) {
            return None;
        }
        let payload_bytes = u32::from_be_bytes(array(header, 4)?) as usize;
        let start = at + FRAME_HEADER_BYTES;
        let end = start.checked_add(payload_bytes)?;
        let payload = file.get(start..end)?;
        let crc = u32::from_be_bytes(array(header, 8)?);
        if crc != crc32c(&[&header[..8], &header[12..], payload]) {
            return None;
        }
        let frame = FrameHeader {
            position: u64::from_be_bytes(array(header, 12)?),
            durable_position: u64::from_be_bytes(array(header, 20)?),
            topic_id: Uuid(array(header, 28)?),
            partition: i32::from_be_bytes(array(header, 44)?),
            base_offset: i64::from_be_bytes(array(header, 48)?),
        };
        Some((frame, file.slice(start..end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: FrameHeader = FrameHeader {
        position: 7,
        durable_position: 5,
        topic_id: Uuid([3; 16]),
        partition: 2,
        base_offset: 41,
    };

    #[test]
    fn a_frame_reads_back_and_any_flipped_bit_is_noticed() {
        let mut bytes = Vec::new();
        FRAME.encode(&[b"ab", b"cde"], &mut bytes);
        bytes.extend_from_slice(b"abcde");
        let whole = Bytes::from(bytes.clone());
        assert_eq!(
            FrameHeader::decode(&whole, 0),
            Some((FRAME, Bytes::from_static(b"abcde")))
        );
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FrameHeader::decode(&flipped.into(), 0), None, "bit {bit}");
        }
        for size_bytes in 0..bytes.len() {
            assert_eq!(FrameHeader::decode(&whole.slice(..size_bytes), 0), None);
        }
    }

    #[test]
    fn a_file_header_reads_back_and_any_flipped_bit_is_noticed() {
        let header = FileHeader {
            sequence: 9,
            base_position: 1 << 40,
        };
        let bytes = header.encode();
        assert_eq!(FileHeader::decode(&bytes), Some(header));
        for bit in 0..28 * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(FileHeader::decode(&flipped), None, "bit {bit}");
        }
    }
}
