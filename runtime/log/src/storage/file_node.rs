//! One file of a disk in memory, with what was not synced yet.
//!
//! Invariants: undoing the unsynced changes backwards yields the durable content; changes are kept
//! with what they replaced, so that an append costs no copy of the file.
//! Never: knows its name.

use super::image::{NodeId, Unsynced};

/// A disk writes its sectors whole; a torn write ends at a multiple of this.
pub const SECTOR_BYTES: u64 = 512;

#[derive(Clone, Debug)]
enum Change {
    Write {
        offset: u64,
        size_bytes: u64,
        old_len: u64,
        overwritten: Vec<u8>,
    },
    Resize {
        new_len: u64,
        old_len: u64,
        cut: Vec<u8>,
    },
}

#[derive(Clone, Debug, Default)]
pub(super) struct FileNode {
    content: Vec<u8>,
    unsynced: Vec<Change>,
}

/// SplitMix64: the same seed and node always decide the same.
pub(super) fn mix(seed: u64, value: u64) -> u64 {
    let mut z = seed.wrapping_add(value.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl FileNode {
    pub(super) fn len(&self) -> u64 {
        self.content.len() as u64
    }

    pub(super) fn read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        let start = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(self.content.len());
        let available = &self.content[start..];
        let count = available.len().min(buf.len());
        buf[..count].copy_from_slice(&available[..count]);
        count
    }

    pub(super) fn write_at(&mut self, parts: &[&[u8]], offset: u64) {
        let size_bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
        if size_bytes == 0 {
            return;
        }
        let old_len = self.len();
        if offset == old_len {
            self.content.reserve(size_bytes as usize);
            for part in parts {
                self.content.extend_from_slice(part);
            }
            // Appends are the common case and may be many between two syncs: keep one change.
            if let Some(Change::Write {
                offset,
                size_bytes: size,
                overwritten,
                ..
            }) = self.unsynced.last_mut()
                && overwritten.is_empty()
                && *offset + *size == old_len
            {
                *size += size_bytes;
                return;
            }
            let overwritten = Vec::new();
            self.unsynced.push(Change::Write {
                offset,
                size_bytes,
                old_len,
                overwritten,
            });
            return;
        }
        let start = offset.min(old_len) as usize;
        let end = (offset + size_bytes).min(old_len) as usize;
        let overwritten = self.content[start..end].to_vec();
        if old_len < offset + size_bytes {
            self.content.resize((offset + size_bytes) as usize, 0);
        }
        let mut at = offset as usize;
        for part in parts {
            self.content[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.unsynced.push(Change::Write {
            offset,
            size_bytes,
            old_len,
            overwritten,
        });
    }

    pub(super) fn set_len(&mut self, size_bytes: u64) {
        let old_len = self.len();
        let cut = self
            .content
            .get(size_bytes as usize..)
            .unwrap_or_default()
            .to_vec();
        self.content.resize(size_bytes as usize, 0);
        self.unsynced.push(Change::Resize {
            new_len: size_bytes,
            old_len,
            cut,
        });
    }

    pub(super) fn sync(&mut self) {
        self.unsynced.clear();
    }

    /// Goes back to the durable content; returns the changes with their bytes, oldest first.
    fn undo(&mut self) -> Vec<(Change, Vec<u8>)> {
        let mut redo = Vec::new();
        while let Some(change) = self.unsynced.pop() {
            let mut written = Vec::new();
            match &change {
                Change::Write {
                    offset,
                    size_bytes,
                    old_len,
                    overwritten,
                } => {
                    let start = *offset as usize;
                    written.extend_from_slice(&self.content[start..start + *size_bytes as usize]);
                    self.content.truncate(*old_len as usize);
                    if !overwritten.is_empty() {
                        self.content[start..start + overwritten.len()].copy_from_slice(overwritten);
                    }
                }
                Change::Resize {
                    new_len,
                    old_len,
                    cut,
                } => {
                    self.content.truncate(*new_len as usize);
                    self.content.extend_from_slice(cut);
                    self.content.resize(*old_len as usize, 0);
                }
            }
            redo.push((change, written));
        }
        redo.reverse();
        redo
    }

    pub(super) fn cut_power(&mut self, unsynced: Unsynced, id: NodeId) {
        match unsynced {
            Unsynced::Kept => {}
            Unsynced::Lost => drop(self.undo()),
            Unsynced::Mixed { seed } => {
                if mix(seed, id) & 1 == 0 {
                    drop(self.undo());
                }
            }
            Unsynced::Torn {
                thousandths,
                sector,
            } => self.tear(thousandths, sector),
            Unsynced::Scattered { seed } => self.scatter(mix(seed, id)),
        }
        self.unsynced.clear();
    }

    fn tear(&mut self, thousandths: u16, sector: bool) {
        let redo = self.undo();
        let total: u64 = redo.iter().map(|(_, written)| written.len() as u64).sum();
        let mut left = total * u64::from(thousandths) / 1000;
        for (change, written) in redo {
            match change {
                Change::Resize { new_len, .. } => self.content.resize(new_len as usize, 0),
                Change::Write {
                    offset, size_bytes, ..
                } => {
                    let mut kept = left.min(size_bytes);
                    if sector && kept < size_bytes {
                        let end = (offset + kept) / SECTOR_BYTES * SECTOR_BYTES;
                        kept = end.saturating_sub(offset);
                    }
                    self.put(offset, &written[..kept as usize]);
                    if kept < size_bytes {
                        return;
                    }
                    left -= kept;
                }
            }
        }
    }

    fn scatter(&mut self, seed: u64) {
        let live = self.content.clone();
        drop(self.undo());
        self.content.resize(live.len(), 0);
        let sector = SECTOR_BYTES as usize;
        for (index, (old, new)) in self
            .content
            .chunks_mut(sector)
            .zip(live.chunks(sector))
            .enumerate()
        {
            if mix(seed, index as u64) & 1 == 0 {
                old.copy_from_slice(new);
            }
        }
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset as usize + bytes.len();
        if self.content.len() < end {
            self.content.resize(end, 0);
        }
        self.content[offset as usize..end].copy_from_slice(bytes);
    }
}
