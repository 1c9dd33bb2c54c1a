//! The journal against crashes, damage and failing disks.

use std::io;

use super::*;
use crate::storage::{Fault, FaultyStorage, MemoryStorage, OperationKind, Unsynced};

const TOPIC: Uuid = Uuid([7; 16]);

fn begin(storage: Arc<dyn Storage>, file_bytes_max: u64) -> Journal {
    let journal = Journal::with_file_size(storage, &JournalContent::default(), file_bytes_max);
    journal.begin().unwrap();
    journal
}

fn enqueue(journal: &Journal, offset: i64) -> u64 {
    let rest = Bytes::from(vec![offset as u8; 30 + offset as usize * 7]);
    journal.enqueue(TOPIC, 1, offset, [Bytes::from_static(b"prefix"), rest])
}

fn read_back(storage: &dyn Storage) -> Result<(Vec<JournalFrame>, JournalContent), LogError> {
    let mut frames = Vec::new();
    let content = read_journal(storage, |frame| {
        frames.push(frame);
        Ok(())
    })?;
    Ok((frames, content))
}

fn offsets(storage: &dyn Storage) -> Vec<i64> {
    read_back(storage)
        .unwrap()
        .0
        .iter()
        .map(|frame| frame.base_offset)
        .collect()
}

/// Overwrites one byte of a journal file.
fn flip(storage: &dyn Storage, path: &Path, position: u64) {
    let file = storage.open(path, OpenMode::Write).unwrap();
    let mut byte = [0];
    file.read_at(&mut byte, position).unwrap();
    file.write_at(&[&[byte[0] ^ 0x40]], position).unwrap();
}

const CUTS: [Unsynced; 9] = [
    Unsynced::Lost,
    Unsynced::Kept,
    Unsynced::Torn {
        thousandths: 300,
        sector: false,
    },
    Unsynced::Torn {
        thousandths: 700,
        sector: true,
    },
    Unsynced::Torn {
        thousandths: 999,
        sector: false,
    },
    Unsynced::Scattered { seed: 1 },
    Unsynced::Scattered { seed: 2 },
    Unsynced::Mixed { seed: 1 },
    Unsynced::Mixed { seed: 2 },
];

#[test]
fn a_group_becomes_durable_with_one_write_and_one_sync() {
    let storage = FaultyStorage::new();
    let journal = begin(Arc::new(storage.clone()), FILE_BYTES_MAX);
    let (writes, syncs) = (
        storage.count_of(OperationKind::Write),
        storage.count_of(OperationKind::SyncFile),
    );
    let positions: Vec<u64> = (0..20).map(|offset| enqueue(&journal, offset)).collect();
    assert!(positions.is_sorted());
    assert_eq!(journal.durable_position(), 0);
    assert_eq!(journal.write_and_sync().unwrap(), positions[19]);
    assert_eq!(journal.durable_position(), journal.appended_position());
    assert_eq!(storage.count_of(OperationKind::Write), writes + 1);
    assert_eq!(storage.count_of(OperationKind::SyncFile), syncs + 1);
    assert_eq!(journal.write_and_sync().unwrap(), positions[19]);
    assert_eq!(
        storage.count_of(OperationKind::SyncFile),
        syncs + 1,
        "nothing queued, no sync"
    );
}

#[test]
fn l1_frames_that_were_durable_survive_a_power_cut_at_any_operation_and_others_form_a_prefix() {
    let storage = FaultyStorage::new();
    let journal = begin(Arc::new(storage.clone()), 900);
    let mut durable = vec![(storage.operation_count(), 0)];
    let mut next = 0;
    for group in 0..12 {
        for _ in 0..=group % 3 {
            enqueue(&journal, next);
            next += 1;
        }
        journal.write_and_sync().unwrap();
        durable.push((storage.operation_count(), next));
        if group == 7 {
            journal.recycle(journal.durable_position()).unwrap();
        }
    }
    let first_kept = offsets(&storage)[0];
    assert!(first_kept > 0, "recycling removed the oldest files");
    let mut images = 0;
    storage.for_each_crash_point(0, |point| {
        let acknowledged = durable
            .iter()
            .rev()
            .find(|(operations, _)| *operations <= point.operations)
            .map_or(0, |(_, offset)| *offset);
        for cut in CUTS {
            images += 1;
            let found = offsets(&point.image(cut));
            let first = found.first().copied().unwrap_or(0);
            let expected: Vec<i64> = (first..first + found.len() as i64).collect();
            assert_eq!(
                found, expected,
                "after {} {:?} {cut:?}",
                point.operations, point.last
            );
            assert!(first <= first_kept);
            assert!(
                first + found.len() as i64 >= acknowledged,
                "{acknowledged} were durable after {} operations, {cut:?} left {found:?}",
                point.operations,
            );
        }
    });
    assert!(images > 400, "only {images} images");
}

#[test]
fn l1_a_damaged_frame_is_refused_exactly_when_a_later_one_calls_it_durable() {
    let storage = MemoryStorage::new();
    let journal = begin(Arc::new(storage.clone()), FILE_BYTES_MAX);
    for offset in 0..6 {
        enqueue(&journal, offset);
        if offset % 2 == 1 {
            journal.write_and_sync().unwrap();
        }
    }
    let (frames, content) = read_back(&storage).unwrap();
    assert_eq!(content.frames, 6);
    for (index, frame) in frames.iter().enumerate() {
        let image = storage.fork();
        flip(&image, &frame.path, frame.file_position + 60);
        match read_back(&image) {
            Ok((found, content)) => {
                assert!(
                    index >= 4,
                    "frame {index} was durable when the last group was written"
                );
                assert_eq!(found.len(), index);
                assert!(content.bytes_discarded > 0);
            }
            Err(LogError::Corrupt { path, position, .. }) => {
                assert!(index < 4);
                assert_eq!((path, position), (frame.path.clone(), frame.file_position));
            }
            Err(other) => panic!("unexpected {other}"),
        }
    }
}

#[test]
fn a_missing_or_damaged_file_in_the_middle_is_refused() {
    let storage = MemoryStorage::new();
    let journal = begin(Arc::new(storage.clone()), 200);
    for offset in 0..6 {
        enqueue(&journal, offset);
        journal.write_and_sync().unwrap();
    }
    let (frames, content) = read_back(&storage).unwrap();
    assert!(content.files.len() >= 3);
    let missing = storage.fork();
    missing.remove_file(&content.files[1]).unwrap();
    assert!(matches!(read_back(&missing), Err(LogError::Corrupt { .. })));
    let damaged = storage.fork();
    flip(&damaged, &frames[1].path, frames[1].file_position + 60);
    let refused = read_back(&damaged).unwrap_err().to_string();
    assert!(
        refused.contains("journal") && refused.contains("position"),
        "{refused}"
    );
    let header = storage.fork();
    flip(&header, content.files.last().unwrap(), 9);
    assert!(matches!(
        read_back(&header),
        Err(LogError::Corrupt { position: 0, .. })
    ));
}

#[test]
fn l2_a_failed_sync_poisons_the_journal_and_is_never_retried() {
    for kind in [OperationKind::SyncFile, OperationKind::Write] {
        let storage = FaultyStorage::new();
        let journal = begin(Arc::new(storage.clone()), FILE_BYTES_MAX);
        let durable = enqueue(&journal, 0);
        journal.write_and_sync().unwrap();
        storage.inject(Fault {
            kind,
            path_contains: "journal".to_owned(),
            after: 0,
            error: io::ErrorKind::Other,
        });
        enqueue(&journal, 1);
        assert!(matches!(journal.write_and_sync(), Err(LogError::Io { .. })));
        assert!(journal.poisoned());
        let operations = storage.operation_count();
        let before = journal.appended_position();
        assert!(enqueue(&journal, 2) > before);
        for _ in 0..3 {
            let refused = journal.write_and_sync().unwrap_err();
            assert!(matches!(refused, LogError::Poisoned { .. }));
            assert!(refused.to_string().contains("injected fault"), "{refused}");
        }
        assert_eq!(
            storage.operation_count(),
            operations,
            "nothing is written after a failure"
        );
        assert_eq!(journal.durable_position(), durable);
        assert_eq!(offsets(&storage.crash_with(Unsynced::Lost)), [0]);
    }
}

#[test]
fn x2_a_full_file_goes_on_while_its_successor_cannot_be_created() {
    let storage = FaultyStorage::new();
    let journal = begin(Arc::new(storage.clone()), 100);
    enqueue(&journal, 0);
    journal.write_and_sync().unwrap();
    storage.inject(Fault {
        kind: OperationKind::CreateFile,
        path_contains: "journal".to_owned(),
        after: 0,
        error: io::ErrorKind::Other,
    });
    for (offset, files) in [(1, 1), (2, 2), (3, 3)] {
        enqueue(&journal, offset);
        journal.write_and_sync().unwrap();
        let there = storage.fork().list(Path::new(DIRECTORY)).unwrap().len();
        assert_eq!(there, files, "the next attempt begins a file");
    }
    assert!(!journal.poisoned());
    let cut = storage.crash_with(Unsynced::Lost);
    assert_eq!(offsets(&cut), [0, 1, 2, 3]);
}

#[test]
fn x1_a_full_disk_is_named_and_takes_nothing_that_was_durable() {
    let storage = FaultyStorage::new();
    let journal = begin(Arc::new(storage.clone()), FILE_BYTES_MAX);
    enqueue(&journal, 0);
    journal.write_and_sync().unwrap();
    storage.set_capacity(Some(storage.fork().used_bytes() + 40));
    enqueue(&journal, 1);
    assert!(matches!(
        journal.write_and_sync(),
        Err(LogError::StorageFull { .. })
    ));
    assert_eq!(offsets(&storage.crash_with(Unsynced::Kept)), [0]);
}

#[test]
fn a_record_that_holds_a_frame_is_not_taken_for_one() {
    let storage = MemoryStorage::new();
    let journal = begin(Arc::new(storage.clone()), FILE_BYTES_MAX);
    enqueue(&journal, 0);
    journal.write_and_sync().unwrap();
    enqueue(&journal, 1);
    journal.write_and_sync().unwrap();
    let (frames, content) = read_back(&storage).unwrap();
    let file = storage.open(&content.files[0], OpenMode::Read).unwrap();
    let copy = Bytes::from(crate::storage::read_all(&*file).unwrap())
        .slice(frames[1].file_position as usize..);
    journal.enqueue(TOPIC, 1, 2, [Bytes::new(), copy]);
    journal.write_and_sync().unwrap();
    let (frames, content) = read_back(&storage).unwrap();
    assert_eq!(frames.len(), 3);
    flip(&storage, &content.files[0], frames[2].file_position + 4);
    assert_eq!(offsets(&storage), [0, 1]);
}
