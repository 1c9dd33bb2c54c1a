//! Tests of producer snapshots: round trip, damage, falling back, pruning.

use super::super::machine::{BatchEvent, MarkerEvent};
use super::*;
use crate::storage::MemoryStorage;
use proptest::prelude::*;

fn state_of(events: &[(i64, i16, bool, bool)]) -> ProducerState {
    let mut state = ProducerState::default();
    for (index, (producer_id, epoch, transactional, is_marker)) in events.iter().enumerate() {
        let offset = index as i64;
        if *is_marker {
            let event = MarkerEvent {
                epoch: *epoch,
                coordinator_epoch: 3,
                offset,
                timestamp: offset,
            };
            state.apply_marker(*producer_id, &event, true);
        } else {
            let mark = BatchMark {
                base_sequence: index as i32,
                last_sequence: index as i32,
                base_offset: offset,
                last_offset: offset,
                timestamp: offset,
            };
            let event = BatchEvent {
                epoch: *epoch,
                transactional: *transactional,
                mark,
            };
            state.apply_batch(*producer_id, &event);
        }
    }
    state.stable.on_high_watermark(i64::MAX);
    state
}

fn directory(storage: &MemoryStorage) -> PathBuf {
    let directory = PathBuf::from("t-0");
    storage.create_dir_all(&directory).unwrap();
    directory
}

#[test]
fn all_five_batches_of_a_producer_are_kept() {
    let events: Vec<_> = (0..7).map(|_| (1, 0, false, false)).collect();
    let state = decode(&encode(&state_of(&events))).unwrap();
    let window = &state.entry(1).unwrap().window;
    assert_eq!(
        window
            .iter()
            .map(|mark| mark.base_sequence)
            .collect::<Vec<_>>(),
        [2, 3, 4, 5, 6]
    );
}

#[test]
fn l4_a_damaged_snapshot_is_passed_over_for_an_older_one() {
    let storage = MemoryStorage::new();
    let directory = directory(&storage);
    let old = state_of(&[(1, 0, false, false)]);
    write(&storage, &directory, 10, &old).unwrap();
    let path = write(&storage, &directory, 20, &state_of(&[(2, 0, false, false)])).unwrap();
    let (offset, _) = load(&storage, &directory, 0..=100).unwrap().unwrap();
    assert_eq!(offset, 20);
    let file = storage.open(&path, OpenMode::Write).unwrap();
    file.write_at(&[&[0xff]], 12).unwrap();
    assert_eq!(
        load(&storage, &directory, 0..=100).unwrap(),
        Some((10, old))
    );
    assert_eq!(load(&storage, &directory, 0..=9).unwrap(), None);
    assert_eq!(load(&storage, &directory, 11..=100).unwrap(), None);
}

#[test]
fn only_the_newest_snapshots_up_to_the_log_end_are_kept() {
    let storage = MemoryStorage::new();
    let directory = directory(&storage);
    for offset in [10, 20, 30, 40, 50] {
        write(&storage, &directory, offset, &ProducerState::default()).unwrap();
    }
    prune(&storage, &directory, 45).unwrap();
    assert_eq!(list(&storage, &directory).unwrap(), [40, 30, 20]);
}

proptest! {
    #[test]
    fn a_snapshot_reads_back_and_any_damage_is_noticed(
        events in prop::collection::vec((0_i64..4, 0_i16..3, any::<bool>(), any::<bool>()), 0..40),
        at in any::<prop::sample::Index>(),
        flip in 1_u8..,
    ) {
        let state = state_of(&events);
        let bytes = encode(&state);
        prop_assert_eq!(decode(&bytes), Some(state));
        let mut damaged = bytes.clone();
        let index = at.index(bytes.len());
        damaged[index] ^= flip;
        prop_assert_eq!(decode(&damaged), None);
        prop_assert_eq!(decode(&bytes[..index]), None);
    }
}
