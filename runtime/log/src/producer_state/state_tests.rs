//! Tests of a partition's producer state: expiry, transactions, equality.

use super::machine::BatchMark;
use super::*;

fn event(epoch: i16, sequence: i32, offset: i64, transactional: bool) -> BatchEvent {
    BatchEvent {
        epoch,
        transactional,
        mark: BatchMark {
            base_sequence: sequence,
            last_sequence: sequence,
            base_offset: offset,
            last_offset: offset,
            timestamp: 1_000,
        },
    }
}

fn marker(epoch: i16, offset: i64) -> MarkerEvent {
    MarkerEvent {
        epoch,
        coordinator_epoch: 0,
        offset,
        timestamp: 2_000,
    }
}

#[test]
fn silent_producers_expire_but_never_with_a_transaction_open() {
    let mut state = ProducerState::default();
    state.heard(1, 10_000);
    state.apply_batch(1, &event(0, 0, 0, false));
    state.heard(2, 10_000);
    state.apply_batch(2, &event(0, 0, 1, true));
    state.expire(10_999, 1_000);
    assert!(state.entry(1).is_some());
    state.expire(11_000, 1_000);
    assert!(state.entry(1).is_none());
    assert!(state.entry(2).is_some(), "open");
    state.apply_marker(2, &marker(1, 2), true);
    state.expire(11_000, 1_000);
    assert!(state.entry(2).is_none());
}

#[test]
fn old_event_times_do_not_expire_a_producer_that_was_just_heard_of() {
    let mut state = ProducerState::default();
    state.heard(1, 1_000_000);
    state.apply_batch(1, &event(0, 0, 0, false));
    state.expire(1_000_500, 1_000);
    assert!(state.entry(1).is_some());
}

#[test]
fn nobody_expires_for_a_time_in_which_nobody_could_be_heard() {
    let mut state = ProducerState::default();
    state.heard(1, 10_000);
    state.apply_batch(1, &event(0, 0, 0, false));
    state.hear_all(900_000);
    state.expire(900_000, 1_000);
    assert!(state.entry(1).is_some());
    state.expire(901_000, 1_000);
    assert!(state.entry(1).is_none());
}

#[test]
fn a_producer_known_from_the_log_is_heard_of_when_expiry_first_looks() {
    let mut state = ProducerState::default();
    state.apply_batch(1, &event(0, 0, 0, false));
    state.expire(1_000_000, 1_000);
    assert!(state.entry(1).is_some());
    state.expire(1_001_000, 1_000);
    assert!(state.entry(1).is_none());
}

#[test]
fn b3_a_marker_counts_as_a_sign_of_life() {
    let mut state = ProducerState::default();
    state.apply_batch(1, &event(0, 0, 0, true));
    state.apply_marker(1, &marker(1, 1), false);
    assert_eq!(state.entry(1).unwrap().last_timestamp, 2_000);
}

#[test]
fn an_ended_transaction_is_reported_once() {
    let mut state = ProducerState::default();
    state.apply_batch(7, &event(0, 0, 5, true));
    let ended = state.apply_marker(7, &marker(1, 9), false).unwrap();
    let expected = EndedTransaction {
        producer_id: 7,
        first_offset: 5,
        marker_offset: 9,
        committed: false,
    };
    assert_eq!(ended, expected);
    assert_eq!(state.apply_marker(7, &marker(1, 10), false), None);
    assert_eq!(
        state.stable.first_unstable(),
        Some(5),
        "the marker is not below the watermark"
    );
}
