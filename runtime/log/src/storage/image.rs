//! A file system in memory that knows what a power cut would take: the model behind
//! `MemoryStorage` and `FaultyStorage`.
//!
//! Invariants: a directory's durable names change only in `sync_dir`, a file's durable content
//! only in `sync_data`; undoing a file's unsynced changes backwards yields its durable content.
//! Never: fails on its own account, except as a disk would (missing, existing, wrong kind).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path};

/// A disk writes its sectors whole; a torn write ends at a multiple of this.
pub const SECTOR_BYTES: u64 = 512;

/// What becomes of data and names that were not synced when the power went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsynced {
    /// Everything unsynced is gone, names included.
    Lost,
    /// Everything had reached the disk by chance.
    Kept,
    /// Names kept; of each file's unsynced bytes the first `thousandths` of 1000 are kept, cut at
    /// a sector boundary or at any byte.
    Torn {
        /// How much of the unsynced bytes is kept.
        thousandths: u16,
        /// Whether the cut is rounded down to a sector.
        sector: bool,
    },
    /// Names kept; the length is kept as well, each sector of unsynced bytes is kept or reads as
    /// it did before (zeros beyond the old end), decided by the seed.
    Scattered {
        /// Decides which sectors are kept.
        seed: u64,
    },
    /// Each file's unsynced data, and each directory's unsynced names, are lost or kept as a
    /// whole, decided by the seed.
    Mixed {
        /// Decides what is kept.
        seed: u64,
    },
}

/// Identifies a file or directory independently of its name.
pub(super) type NodeId = u64;

const ROOT: NodeId = 0;

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

#[derive(Clone, Debug, Default)]
struct DirectoryNode {
    live: BTreeMap<String, NodeId>,
    durable: BTreeMap<String, NodeId>,
}

#[derive(Clone, Debug)]
enum Node {
    File(FileNode),
    Directory(DirectoryNode),
}

/// The whole file system.
#[derive(Clone, Debug)]
pub(super) struct Image {
    nodes: BTreeMap<NodeId, Node>,
    next_node: NodeId,
}

fn not_found(path: &Path) -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        format!("{} does not exist", path.display()),
    )
}

fn names(path: &Path) -> io::Result<Vec<&str>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => {
                names.push(name.to_str().ok_or_else(|| {
                    io::Error::new(io::ErrorKind::InvalidInput, "path is not UTF-8")
                })?)
            }
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "path leaves the root",
                ));
            }
        }
    }
    Ok(names)
}

/// SplitMix64: the same seed and node always decide the same.
fn mix(seed: u64, value: u64) -> u64 {
    let mut z = seed.wrapping_add(value.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Image {
    pub(super) fn new() -> Image {
        let root = Node::Directory(DirectoryNode::default());
        Image {
            nodes: BTreeMap::from([(ROOT, root)]),
            next_node: ROOT + 1,
        }
    }

    fn add(&mut self, node: Node) -> NodeId {
        let id = self.next_node;
        self.next_node += 1;
        self.nodes.insert(id, node);
        id
    }

    fn directory(&self, id: NodeId, path: &Path) -> io::Result<&DirectoryNode> {
        match self.nodes.get(&id) {
            Some(Node::Directory(directory)) => Ok(directory),
            Some(Node::File(_)) => Err(io::Error::new(
                io::ErrorKind::NotADirectory,
                format!("{} is a file", path.display()),
            )),
            None => Err(not_found(path)),
        }
    }

    fn directory_mut(&mut self, id: NodeId, path: &Path) -> io::Result<&mut DirectoryNode> {
        self.directory(id, path)?;
        match self.nodes.get_mut(&id) {
            Some(Node::Directory(directory)) => Ok(directory),
            _ => Err(not_found(path)),
        }
    }

    fn find(&self, path: &Path) -> io::Result<NodeId> {
        let mut id = ROOT;
        for name in names(path)? {
            id = *self
                .directory(id, path)?
                .live
                .get(name)
                .ok_or_else(|| not_found(path))?;
        }
        Ok(id)
    }

    fn parent<'path>(&self, path: &'path Path) -> io::Result<(NodeId, &'path str)> {
        let mut names = names(path)?;
        let name = names.pop().ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "the root has no parent directory",
            )
        })?;
        let mut id = ROOT;
        for name in names {
            id = *self
                .directory(id, path)?
                .live
                .get(name)
                .ok_or_else(|| not_found(path))?;
        }
        Ok((id, name))
    }

    pub(super) fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let mut id = ROOT;
        for name in names(path)? {
            id = match self.directory(id, path)?.live.get(name) {
                Some(next) => *next,
                None => {
                    let next = self.add(Node::Directory(DirectoryNode::default()));
                    self.directory_mut(id, path)?
                        .live
                        .insert(name.to_owned(), next);
                    next
                }
            };
            self.directory(id, path)?;
        }
        Ok(())
    }

    pub(super) fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        Ok(self
            .directory(self.find(path)?, path)?
            .live
            .keys()
            .cloned()
            .collect())
    }

    pub(super) fn exists(&self, path: &Path) -> bool {
        self.find(path).is_ok()
    }

    /// Finds or creates a file; says whether it was created.
    pub(super) fn open(
        &mut self,
        path: &Path,
        mode: super::OpenMode,
    ) -> io::Result<(NodeId, bool)> {
        let (parent, name) = self.parent(path)?;
        match (self.directory(parent, path)?.live.get(name).copied(), mode) {
            (Some(_), super::OpenMode::CreateNew) => Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("{} exists", path.display()),
            )),
            (Some(id), _) => match self.nodes.get(&id) {
                Some(Node::File(_)) => Ok((id, false)),
                _ => Err(io::Error::new(
                    io::ErrorKind::IsADirectory,
                    "is a directory",
                )),
            },
            (None, super::OpenMode::Read) => Err(not_found(path)),
            (None, _) => {
                let id = self.add(Node::File(FileNode::default()));
                self.directory_mut(parent, path)?
                    .live
                    .insert(name.to_owned(), id);
                Ok((id, true))
            }
        }
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_parent, from_name) = self.parent(from)?;
        let (to_parent, to_name) = self.parent(to)?;
        let id = self.find(from)?;
        if let Some(existing) = self.directory(to_parent, to)?.live.get(to_name)
            && let Some(Node::Directory(directory)) = self.nodes.get(existing)
            && !directory.live.is_empty()
        {
            return Err(io::Error::new(
                io::ErrorKind::DirectoryNotEmpty,
                "target is not empty",
            ));
        }
        self.directory_mut(from_parent, from)?
            .live
            .remove(from_name);
        self.directory_mut(to_parent, to)?
            .live
            .insert(to_name.to_owned(), id);
        Ok(())
    }

    pub(super) fn remove_file(&mut self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        if let Some(Node::Directory(_)) = self.nodes.get(&self.find(path)?) {
            return Err(io::Error::new(
                io::ErrorKind::IsADirectory,
                "is a directory",
            ));
        }
        self.directory_mut(parent, path)?.live.remove(name);
        Ok(())
    }

    pub(super) fn remove_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        self.directory(self.find(path)?, path)?;
        self.directory_mut(parent, path)?.live.remove(name);
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, path: &Path) -> io::Result<()> {
        let id = self.find(path)?;
        let directory = self.directory_mut(id, path)?;
        directory.durable = directory.live.clone();
        Ok(())
    }

    pub(super) fn file(&self, id: NodeId) -> io::Result<&FileNode> {
        match self.nodes.get(&id) {
            Some(Node::File(file)) => Ok(file),
            _ => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "file handle is stale",
            )),
        }
    }

    pub(super) fn file_mut(&mut self, id: NodeId) -> io::Result<&mut FileNode> {
        match self.nodes.get_mut(&id) {
            Some(Node::File(file)) => Ok(file),
            _ => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "file handle is stale",
            )),
        }
    }

    /// Bytes held by files that have a name, for capacity limits.
    pub(super) fn used_bytes(&self) -> u64 {
        self.reachable(|directory| &directory.live)
            .into_iter()
            .filter_map(|id| self.file(id).ok())
            .map(|file| file.content.len() as u64)
            .sum()
    }

    fn reachable(
        &self,
        entries: impl Fn(&DirectoryNode) -> &BTreeMap<String, NodeId>,
    ) -> Vec<NodeId> {
        let mut found = vec![ROOT];
        let mut next = 0;
        while let Some(id) = found.get(next).copied() {
            next += 1;
            if let Some(Node::Directory(directory)) = self.nodes.get(&id) {
                found.extend(entries(directory).values().copied());
            }
        }
        found
    }

    /// What a machine finds on this disk after the power came back.
    pub(super) fn after_power_cut(&self, unsynced: Unsynced) -> Image {
        let mut nodes = self.nodes.clone();
        for (id, node) in &mut nodes {
            match node {
                Node::Directory(directory) => {
                    let lost = match unsynced {
                        Unsynced::Lost => true,
                        Unsynced::Mixed { seed } => mix(seed, *id) & 1 == 0,
                        _ => false,
                    };
                    if lost {
                        directory.live = directory.durable.clone();
                    } else {
                        directory.durable = directory.live.clone();
                    }
                }
                Node::File(file) => file.cut_power(unsynced, *id),
            }
        }
        let mut image = Image {
            nodes,
            next_node: self.next_node,
        };
        let kept: BTreeSet<NodeId> = image
            .reachable(|directory| &directory.live)
            .into_iter()
            .collect();
        image.nodes.retain(|id, _| kept.contains(id));
        image
    }
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

    fn cut_power(&mut self, unsynced: Unsynced, id: NodeId) {
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
