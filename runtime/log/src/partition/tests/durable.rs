//! High watermark under `Durability::Sync`: nothing counts before the journal is durable.

use super::*;
use crate::journal::read_journal;
use std::sync::atomic::{AtomicUsize, Ordering};

fn journaled(storage: &MemoryStorage) -> (PartitionLog, Arc<Journal>) {
    let shared: Arc<dyn Storage> = Arc::new(storage.clone());
    let found = read_journal(shared.as_ref(), |_| Ok(())).unwrap();
    let journal = Arc::new(Journal::new(shared.clone(), &found));
    journal.begin().unwrap();
    let log = PartitionLog::open(PartitionSetup {
        journal: Some(journal.clone()),
        durability: Durability::Sync,
        ..setup(shared, Recovery::Clean)
    });
    (log.unwrap(), journal)
}

fn sync(log: &PartitionLog, journal: &Journal) {
    log.on_durable(journal.write_and_sync().unwrap());
}

#[test]
fn the_high_watermark_is_what_the_journal_made_durable() {
    let (log, journal) = journaled(&MemoryStorage::new());
    let first = log.put(plain(2));
    let second = log.put(plain(3));
    assert!(second.journal_position > first.journal_position);
    let offsets = log.offsets();
    assert_eq!(
        (offsets.last_stable, offsets.high_watermark, offsets.log_end),
        (0, 0, 5)
    );
    assert!(log.bases(0, Isolation::HighWatermark).is_empty());
    assert_eq!(log.bases(0, Isolation::LogEnd), [0, 2]);
    log.on_durable(first.journal_position);
    assert_eq!(log.offsets().high_watermark, 2);
    log.on_durable(second.journal_position - 1);
    assert_eq!(log.offsets().high_watermark, 2);
    sync(&log, &journal);
    assert_eq!(log.offsets().high_watermark, 5);
}

#[test]
fn a_marker_counts_only_once_it_is_durable() {
    let (log, journal) = journaled(&MemoryStorage::new());
    log.put(batch(1, transactional(stamp(1, 0, 0))));
    log.put(plain(1));
    sync(&log, &journal);
    log.end_transaction(1, 1, true).unwrap();
    let offsets = log.offsets();
    assert_eq!((offsets.last_stable, offsets.high_watermark), (0, 2));
    sync(&log, &journal);
    assert_eq!(log.stable(), 3);
}

#[test]
fn a_duplicate_waits_for_its_original() {
    let (log, _journal) = journaled(&MemoryStorage::new());
    let original = log.put(batch(1, stamp(1, 0, 0)));
    let retry = log.put(batch(1, stamp(1, 0, 0)));
    assert!(retry.duplicate);
    assert!(retry.journal_position >= original.journal_position);
}

#[test]
fn the_journal_holds_the_bytes_of_the_log_in_order() {
    let storage = MemoryStorage::new();
    let (log, journal) = journaled(&storage);
    log.put(plain(2));
    log.append(
        [plain(1), plain(1)].concat().into(),
        AppendOrigin::Coordinator,
        NOW,
    )
    .unwrap();
    sync(&log, &journal);
    let mut frames = Vec::new();
    read_journal(&storage, |frame| {
        assert_eq!((frame.topic_id, frame.partition), (Uuid([7; 16]), 0));
        frames.push((frame.base_offset, frame.payload));
        Ok(())
    })
    .unwrap();
    assert_eq!(
        frames.iter().map(|(base, _)| *base).collect::<Vec<_>>(),
        [0, 2]
    );
    let joined: Vec<u8> = frames
        .iter()
        .flat_map(|(_, payload)| payload.to_vec())
        .collect();
    assert_eq!(joined, content(&storage, FIRST_LOG));
}

#[test]
fn the_listener_hears_every_move_and_nothing_else() {
    let (log, journal) = journaled(&MemoryStorage::new());
    let log = Arc::new(log);
    let count = Arc::new(AtomicUsize::new(0));
    let (heard, listened) = (count.clone(), Arc::downgrade(&log));
    log.set_change_listener(Arc::new(move || {
        heard.fetch_add(1, Ordering::SeqCst);
        // Called outside the lock: the log can be asked.
        let _ = listened.upgrade().map(|log| log.offsets());
    }));
    log.put(batch(1, stamp(1, 0, 0)));
    assert_eq!(count.load(Ordering::SeqCst), 1, "the end moved");
    log.put(batch(1, stamp(1, 0, 0)));
    assert_eq!(count.load(Ordering::SeqCst), 1, "a duplicate moves nothing");
    sync(&log, &journal);
    assert_eq!(count.load(Ordering::SeqCst), 2, "the high watermark moved");
    sync(&log, &journal);
    assert_eq!(count.load(Ordering::SeqCst), 2);
}
