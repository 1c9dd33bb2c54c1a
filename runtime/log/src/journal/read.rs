//! Reading the journal back after a crash: the good frames in order, and where they end.
//!
//! Invariants: frames are visited in the order in which they were appended, without a gap;
//! everything behind the first bad frame is left out, good or not.
//! Never: accepts a bad frame that a later frame, or a later file, calls durable.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use millstream_protocol::Uuid;

use super::DIRECTORY;
use super::frame::{FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FRAME_MAGIC, FileHeader, FrameHeader};
use crate::error::LogError;
use crate::storage::{OpenMode, Storage, read_all};

/// One append as the journal kept it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalFrame {
    /// The topic's id.
    pub topic_id: Uuid,
    /// The partition within the topic.
    pub partition: i32,
    /// The first offset of the batches in `payload`.
    pub base_offset: i64,
    /// Whole record batches, as the partition file holds them.
    pub payload: Bytes,
    /// The journal file, for messages.
    pub path: PathBuf,
    /// Where the frame starts in that file.
    pub file_position: u64,
}

/// What was found besides the frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalContent {
    /// The journal's files, oldest first; none when the last run kept no journal.
    pub files: Vec<PathBuf>,
    /// The sequence that the next file gets.
    pub next_sequence: u64,
    /// The journal position behind the last good frame.
    pub end_position: u64,
    /// How many good frames there are.
    pub frames: u64,
    /// Bytes behind the last good frame.
    pub bytes_discarded: u64,
}

pub(super) fn file_path(sequence: u64) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{sequence:020}.journal"))
}

/// The sequences of the journal's files, oldest first.
fn sequences(storage: &dyn Storage) -> Result<Vec<u64>, LogError> {
    let directory = Path::new(DIRECTORY);
    let io = |source| LogError::io("list", directory, source);
    if !storage.exists(directory).map_err(io)? {
        return Ok(Vec::new());
    }
    let names = storage.list(directory).map_err(io)?;
    let mut sequences: Vec<u64> = names
        .iter()
        .filter_map(|name| name.strip_suffix(".journal")?.parse().ok())
        .collect();
    sequences.sort_unstable();
    Ok(sequences)
}

fn read_file(storage: &dyn Storage, path: &Path) -> Result<Bytes, LogError> {
    storage
        .open(path, OpenMode::Read)
        .and_then(|file| read_all(&*file))
        .map(Bytes::from)
        .map_err(|source| LogError::io("read", path, source))
}

/// The undamaged frames at or behind `at`, wherever they start: how far the journal reaches that
/// they call durable; `None` when there are none.
fn durable_claim(file: &Bytes, base_position: Option<u64>, mut at: usize) -> Option<u64> {
    let mut claim = None;
    while let Some(found) = file.get(at..).and_then(|rest| {
        rest.windows(FRAME_MAGIC.len())
            .position(|bytes| bytes == FRAME_MAGIC)
    }) {
        at += found;
        if let Some((frame, _)) = FrameHeader::decode(file, at) {
            // A record may hold the bytes of a frame; only one in its own place counts.
            let in_place = base_position.is_none_or(|base| {
                at >= FILE_HEADER_BYTES && frame.position == base + (at - FILE_HEADER_BYTES) as u64
            });
            if in_place {
                claim = claim.max(Some(frame.durable_position));
            }
        }
        at += 1;
    }
    claim
}

/// The place where the good frames end before the bytes do.
struct BadFrame {
    path: PathBuf,
    file_position: u64,
    journal_position: u64,
}

impl BadFrame {
    fn refuse(&self, because: &str) -> LogError {
        LogError::corrupt(
            &self.path,
            self.file_position,
            format!("the journal frame here is damaged, but {because} says that it was durable"),
        )
    }
}

/// Visits the good frames and says where they end.
pub fn read_journal(
    storage: &dyn Storage,
    mut visit: impl FnMut(JournalFrame) -> Result<(), LogError>,
) -> Result<JournalContent, LogError> {
    let mut content = JournalContent::default();
    let mut bad: Option<BadFrame> = None;
    let mut expected_base = None;
    for sequence in sequences(storage)? {
        let path = file_path(sequence);
        let file = read_file(storage, &path)?;
        content.next_sequence = sequence + 1;
        content.files.push(path.clone());
        let Some(header) = FileHeader::decode(&file).filter(|found| found.sequence == sequence)
        else {
            // A header is synced before the first frame is written, so this file was being created.
            if durable_claim(&file, None, 0).is_some() {
                return Err(LogError::corrupt(
                    &path,
                    0,
                    "the journal file's header is damaged, but frames follow it",
                ));
            }
            content.bytes_discarded += file.len() as u64;
            let journal_position = expected_base.unwrap_or(0);
            bad = bad.or(Some(BadFrame {
                path,
                file_position: 0,
                journal_position,
            }));
            continue;
        };
        if let Some(bad) = &bad {
            // A file begins when all before it is durable.
            return Err(bad.refuse("the file behind it"));
        }
        if expected_base.is_some_and(|expected| expected != header.base_position) {
            return Err(LogError::corrupt(
                &path,
                16,
                "the journal file in front of this one is missing",
            ));
        }
        bad = read_frames(&path, &file, header, &mut content, &mut visit)?;
        expected_base = Some(content.end_position);
    }
    Ok(content)
}

/// Visits one file's frames; `None` when they reach the file's end.
fn read_frames(
    path: &Path,
    file: &Bytes,
    header: FileHeader,
    content: &mut JournalContent,
    visit: &mut impl FnMut(JournalFrame) -> Result<(), LogError>,
) -> Result<Option<BadFrame>, LogError> {
    let mut at = FILE_HEADER_BYTES;
    content.end_position = header.base_position;
    while at < file.len() {
        let decoded = FrameHeader::decode(file, at)
            .filter(|(frame, _)| frame.position == content.end_position);
        let Some((frame, payload)) = decoded else {
            let bad = BadFrame {
                path: path.to_owned(),
                file_position: at as u64,
                journal_position: content.end_position,
            };
            let claim = durable_claim(file, Some(header.base_position), at + 1);
            if claim.is_some_and(|durable| durable > bad.journal_position) {
                return Err(bad.refuse("a frame behind it"));
            }
            content.bytes_discarded += (file.len() - at) as u64;
            return Ok(Some(bad));
        };
        let frame_bytes = FRAME_HEADER_BYTES + payload.len();
        visit(JournalFrame {
            topic_id: frame.topic_id,
            partition: frame.partition,
            base_offset: frame.base_offset,
            payload,
            path: path.to_owned(),
            file_position: at as u64,
        })?;
        content.frames += 1;
        content.end_position += frame_bytes as u64;
        at += frame_bytes;
    }
    Ok(None)
}
