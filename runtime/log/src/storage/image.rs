//! A file system in memory that knows what a power cut would take: the model behind
//! `MemoryStorage` and `FaultyStorage`.
//!
//! Invariants: a directory's durable names change only in `sync_dir`, a file's durable content
//! only in `sync_data`; undoing a file's unsynced changes backwards yields its durable content.
//! Never: fails on its own account, except as a disk would (missing, existing, wrong kind).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path};

use super::file_node::{FileNode, mix};

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
            .map(|file| file.len())
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
