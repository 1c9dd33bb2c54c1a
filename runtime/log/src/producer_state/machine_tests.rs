//! The producer state machine cell by cell, the P-, T- rows of the fault catalogue that it decides,
//! and a property test against a model that remembers everything.

use super::*;
use proptest::prelude::*;

fn batch(epoch: i16, base_sequence: i32, last_sequence: i32, base_offset: i64) -> BatchEvent {
    let count = i64::from(last_sequence.wrapping_sub(base_sequence) & i32::MAX);
    BatchEvent {
        epoch,
        transactional: false,
        mark: BatchMark {
            base_sequence,
            last_sequence,
            base_offset,
            last_offset: base_offset + count,
            timestamp: base_offset,
        },
    }
}

fn transactional(event: BatchEvent) -> BatchEvent {
    BatchEvent {
        transactional: true,
        ..event
    }
}

fn marker(epoch: i16, coordinator_epoch: i32) -> MarkerEvent {
    MarkerEvent {
        epoch,
        coordinator_epoch,
        offset: 1_000,
        timestamp: 1_000,
    }
}

fn entry_after(epoch: i16, events: &[BatchEvent]) -> ProducerEntry {
    let mut entry = ProducerEntry::new(epoch);
    for event in events {
        entry.apply_batch(event);
    }
    entry
}

/// Six batches of two records, sequences 0..12, offsets 100..112.
fn six() -> Vec<BatchEvent> {
    (0..6)
        .map(|n| batch(3, n * 2, n * 2 + 1, 100 + i64::from(n) * 2))
        .collect()
}

fn refused_sequence(expected: i32) -> Verdict {
    Verdict::Refuse(Refusal::Sequence {
        expected: Some(expected),
    })
}

#[test]
fn p1_retry_of_any_of_the_last_five_batches_answers_with_the_original_offsets() {
    let entry = entry_after(3, &six());
    for event in &six()[1..] {
        let retry = BatchEvent {
            mark: BatchMark {
                base_offset: 500,
                last_offset: 501,
                ..event.mark
            },
            ..*event
        };
        for checks in [Checks::Client, Checks::LegacyClient] {
            let verdict = check_batch(Some(&entry), &retry, checks);
            assert_eq!(verdict, Verdict::Duplicate(event.mark));
        }
    }
    let other_length = batch(3, 10, 12, 500);
    assert_eq!(
        check_batch(Some(&entry), &other_length, Checks::Client),
        refused_sequence(12)
    );
    let other_epoch = batch(4, 10, 11, 500);
    assert_eq!(
        check_batch(Some(&entry), &other_epoch, Checks::Client),
        refused_sequence(0)
    );
}

#[test]
fn p2_retry_of_the_sixth_oldest_batch_is_out_of_order() {
    let entry = entry_after(3, &six());
    assert_eq!(
        check_batch(Some(&entry), &six()[0], Checks::Client),
        refused_sequence(12)
    );
}

// Row 12.
#[test]
fn p3_a_gap_is_out_of_order_and_the_right_batch_is_accepted_afterwards() {
    let entry = entry_after(3, &six());
    let gap = batch(3, 13, 13, 112);
    assert_eq!(
        check_batch(Some(&entry), &gap, Checks::Client),
        refused_sequence(12)
    );
    let next = batch(3, 12, 12, 112);
    assert_eq!(
        check_batch(Some(&entry), &next, Checks::Client),
        Verdict::Append
    );
}

#[test]
fn p4_sequences_wrap_also_inside_a_batch() {
    let spanning = batch(0, i32::MAX - 2, 1, 10);
    assert_eq!(spanning.mark.last_offset, 14, "five records");
    let entry = entry_after(0, &[batch(0, i32::MAX - 4, i32::MAX - 3, 8)]);
    assert_eq!(
        check_batch(Some(&entry), &spanning, Checks::Client),
        Verdict::Append
    );
    let entry = entry_after(0, &[spanning]);
    assert_eq!(
        check_batch(Some(&entry), &batch(0, 2, 2, 15), Checks::Client),
        Verdict::Append
    );
    let retry = check_batch(Some(&entry), &spanning, Checks::Client);
    assert_eq!(retry, Verdict::Duplicate(spanning.mark));
    let to_the_end = entry_after(0, &[batch(0, i32::MAX - 1, i32::MAX, 10)]);
    let from_zero = batch(0, 0, 0, 12);
    assert_eq!(
        check_batch(Some(&to_the_end), &from_zero, Checks::Client),
        Verdict::Append
    );
}

// Row 23.
#[test]
fn p5_a_lower_epoch_is_fenced_whoever_appends() {
    let entry = entry_after(3, &six());
    for checks in [Checks::Client, Checks::LegacyClient, Checks::Coordinator] {
        for event in [batch(2, 0, 0, 112), transactional(batch(2, 12, 12, 112))] {
            let verdict = check_batch(Some(&entry), &event, checks);
            assert_eq!(verdict, Verdict::Refuse(Refusal::StaleEpoch { current: 3 }));
        }
    }
}

#[test]
fn p6_a_higher_epoch_begins_with_sequence_0_and_resets_the_window() {
    let mut entry = entry_after(3, &six());
    let wrong = batch(4, 12, 12, 112);
    assert_eq!(
        check_batch(Some(&entry), &wrong, Checks::Client),
        refused_sequence(0)
    );
    let right = batch(4, 0, 0, 112);
    assert_eq!(
        check_batch(Some(&entry), &right, Checks::Client),
        Verdict::Append
    );
    entry.apply_batch(&right);
    assert_eq!(entry.window, [right.mark]);
    assert_eq!(entry.last_sequence(), 0);
}

#[test]
fn p7_without_state_a_transactional_batch_begins_with_sequence_0() {
    let event = transactional(batch(0, 7, 8, 0));
    assert_eq!(
        check_batch(None, &event, Checks::Client),
        refused_sequence(0)
    );
    assert_eq!(
        check_batch(None, &event, Checks::LegacyClient),
        Verdict::Append
    );
    let plain = batch(0, 7, 8, 0);
    assert_eq!(check_batch(None, &plain, Checks::Client), Verdict::Append);
    let first = transactional(batch(0, 0, 1, 0));
    assert_eq!(check_batch(None, &first, Checks::Client), Verdict::Append);
}

#[test]
fn after_a_marker_that_raised_the_epoch_sequences_begin_again() {
    let mut entry = entry_after(0, &[transactional(batch(0, 0, 1, 0))]);
    entry.apply_marker(&marker(1, 0));
    assert!(entry.window.is_empty());
    assert_eq!(
        check_batch(Some(&entry), &batch(1, 2, 2, 9), Checks::Client),
        refused_sequence(0)
    );
    let next = transactional(batch(1, 0, 0, 9));
    assert_eq!(
        check_batch(Some(&entry), &next, Checks::Client),
        Verdict::Append
    );
}

#[test]
fn after_a_marker_of_the_same_epoch_sequences_go_on() {
    let mut entry = entry_after(0, &[transactional(batch(0, 0, 1, 0))]);
    entry.apply_marker(&marker(0, 0));
    let next = transactional(batch(0, 2, 2, 9));
    assert_eq!(
        check_batch(Some(&entry), &next, Checks::LegacyClient),
        Verdict::Append
    );
}

#[test]
fn t6_a_late_batch_of_an_ended_transaction_is_fenced_even_as_a_retry() {
    let late = transactional(batch(0, 0, 1, 0));
    let mut entry = entry_after(0, &[late]);
    entry.apply_marker(&marker(1, 0));
    let verdict = check_batch(Some(&entry), &late, Checks::Client);
    assert_eq!(verdict, Verdict::Refuse(Refusal::StaleEpoch { current: 1 }));
}

#[test]
fn t7_an_equal_epoch_is_a_retry_with_nothing_open_and_late_with_a_transaction_open() {
    let mut entry = entry_after(0, &[transactional(batch(0, 0, 1, 0))]);
    let stale = Err(Refusal::StaleEpoch { current: 0 });
    assert_eq!(check_marker(Some(&entry), &marker(0, 0), 2), stale, "open");
    assert_eq!(
        check_marker(Some(&entry), &marker(0, 0), 1),
        Ok(()),
        "version 1 keeps the epoch"
    );
    assert_eq!(check_marker(Some(&entry), &marker(1, 0), 2), Ok(()));
    entry.apply_marker(&marker(1, 0));
    assert_eq!(
        check_marker(Some(&entry), &marker(1, 0), 2),
        Ok(()),
        "nothing open"
    );
    assert_eq!(
        entry.apply_marker(&marker(1, 0)),
        None,
        "and nothing ends again"
    );
    assert_eq!(
        check_marker(Some(&entry), &marker(0, 0), 2),
        Err(Refusal::StaleEpoch { current: 1 })
    );
    assert_eq!(
        check_marker(Some(&entry), &marker(0, 0), 0),
        Err(Refusal::StaleEpoch { current: 1 })
    );
}

#[test]
fn b24_a_marker_of_the_last_transaction_does_not_end_the_next_one() {
    let mut entry = entry_after(0, &[transactional(batch(0, 0, 1, 0))]);
    entry.apply_marker(&marker(1, 0));
    entry.apply_batch(&transactional(batch(1, 0, 0, 10)));
    let replayed = check_marker(Some(&entry), &marker(1, 0), 2);
    assert_eq!(replayed, Err(Refusal::StaleEpoch { current: 1 }));
    assert_eq!(entry.open_since, Some(10));
}

#[test]
fn t8_an_old_coordinator_is_fenced() {
    let mut entry = entry_after(0, &[]);
    entry.apply_marker(&marker(1, 5));
    let old = check_marker(Some(&entry), &marker(2, 4), 2);
    assert_eq!(old, Err(Refusal::StaleCoordinator { current: 5 }));
    assert_eq!(check_marker(Some(&entry), &marker(2, 5), 2), Ok(()));
    assert_eq!(check_marker(None, &marker(0, -1), 2), Ok(()));
}

#[test]
fn t11_a_batch_outside_the_open_transaction_is_refused() {
    let entry = entry_after(0, &[transactional(batch(0, 0, 1, 40))]);
    let plain = batch(0, 2, 2, 42);
    for checks in [Checks::Client, Checks::LegacyClient, Checks::Coordinator] {
        let verdict = check_batch(Some(&entry), &plain, checks);
        assert_eq!(
            verdict,
            Verdict::Refuse(Refusal::OutsideTransaction { open_since: 40 })
        );
    }
    let inside = check_batch(Some(&entry), &transactional(plain), Checks::Client);
    assert_eq!(inside, Verdict::Append);
}

#[test]
fn the_brokers_own_batches_need_no_sequence_and_leave_the_window_alone() {
    let mut entry = entry_after(0, &[batch(0, 0, 1, 0)]);
    let own = transactional(batch(0, -1, -1, 2));
    assert_eq!(
        check_batch(Some(&entry), &own, Checks::Coordinator),
        Verdict::Append
    );
    assert_eq!(entry.apply_batch(&own), Some(2), "it opens the transaction");
    assert_eq!(entry.last_sequence(), 1);
}

#[test]
fn a_transaction_begins_once_and_ends_once() {
    let mut entry = ProducerEntry::new(0);
    assert_eq!(
        entry.apply_batch(&transactional(batch(0, 0, 0, 5))),
        Some(5)
    );
    assert_eq!(entry.apply_batch(&transactional(batch(0, 1, 1, 6))), None);
    assert_eq!(entry.apply_marker(&marker(1, 0)), Some(5));
    assert_eq!(entry.apply_marker(&marker(2, 0)), None);
    assert_eq!(
        (entry.epoch, entry.coordinator_epoch, entry.last_timestamp),
        (2, 0, 1_000)
    );
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Batch(BatchEvent),
    Marker(MarkerEvent, i16),
}

/// Remembers every accepted event and derives the answer from them all.
#[derive(Default)]
struct Model {
    history: Vec<Event>,
}

impl Model {
    fn epoch(&self) -> Option<i16> {
        self.history.last().map(|event| match event {
            Event::Batch(batch) => batch.epoch,
            Event::Marker(marker, _) => marker.epoch,
        })
    }

    fn batches_of_epoch(&self) -> Vec<BatchEvent> {
        let epoch = self.epoch();
        let of_epoch = self.history.iter().rev().take_while(|event| match event {
            Event::Batch(batch) => Some(batch.epoch) == epoch,
            Event::Marker(marker, _) => Some(marker.epoch) == epoch,
        });
        let mut batches: Vec<BatchEvent> = of_epoch
            .filter_map(|event| match event {
                Event::Batch(batch) => Some(*batch),
                Event::Marker(..) => None,
            })
            .collect();
        batches.reverse();
        batches
    }

    fn open_since(&self) -> Option<i64> {
        let since = self
            .history
            .iter()
            .rposition(|event| matches!(event, Event::Marker(..)));
        self.history
            .iter()
            .skip(since.map_or(0, |at| at + 1))
            .find_map(|event| match event {
                Event::Batch(batch) if batch.transactional => Some(batch.mark.base_offset),
                _ => None,
            })
    }

    fn coordinator_epoch(&self) -> i32 {
        let mut markers = self.history.iter().filter_map(|event| match event {
            Event::Marker(marker, _) => Some(marker.coordinator_epoch),
            Event::Batch(_) => None,
        });
        markers.next_back().unwrap_or(-1)
    }

    fn accepts_batch(&self, event: &BatchEvent) -> Result<bool, ()> {
        let Some(epoch) = self.epoch() else {
            return if event.transactional && event.mark.base_sequence != 0 {
                Err(())
            } else {
                Ok(true)
            };
        };
        let batches = self.batches_of_epoch();
        let sequences = |batch: &BatchEvent| (batch.mark.base_sequence, batch.mark.last_sequence);
        let is_known = batches
            .iter()
            .rev()
            .take(5)
            .any(|b| sequences(b) == sequences(event));
        if event.epoch == epoch && is_known {
            return Ok(false);
        }
        let next = match batches.last() {
            Some(last) => (last.mark.last_sequence + 1) % i32::MAX,
            None => 0,
        };
        let expected = if event.epoch == epoch { next } else { 0 };
        let in_order = event.epoch >= epoch && event.mark.base_sequence == expected;
        if in_order && (event.transactional || self.open_since().is_none()) {
            Ok(true)
        } else {
            Err(())
        }
    }

    fn accepts_marker(&self, event: &MarkerEvent, version: i16) -> bool {
        let Some(epoch) = self.epoch() else {
            return true;
        };
        let epoch_is_fine = event.epoch > epoch
            || (event.epoch == epoch && (version < 2 || self.open_since().is_none()));
        epoch_is_fine && event.coordinator_epoch >= self.coordinator_epoch()
    }
}

fn event() -> impl Strategy<Value = Event> {
    let batches =
        (0_i16..3, 0_i32..8, 0_i32..2, any::<bool>()).prop_map(|(epoch, base, more, t)| {
            Event::Batch(BatchEvent {
                transactional: t,
                ..batch(epoch, base, base + more, 0)
            })
        });
    let markers = (0_i16..4, 0_i32..2, 0_i16..3).prop_map(|(epoch, coordinator, version)| {
        Event::Marker(marker(epoch, coordinator), version)
    });
    prop_oneof![4 => batches, 1 => markers]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_machine_decides_as_a_model_that_remembers_everything(
        events in prop::collection::vec(event(), 1..60),
    ) {
        let mut model = Model::default();
        let mut entry: Option<ProducerEntry> = None;
        for (index, event) in events.into_iter().enumerate() {
            let offset = index as i64 * 10;
            match event {
                Event::Batch(mut event) => {
                    event.mark.base_offset = offset;
                    event.mark.last_offset = offset + 1;
                    let verdict = check_batch(entry.as_ref(), &event, Checks::Client);
                    let expected = model.accepts_batch(&event);
                    prop_assert_eq!(verdict == Verdict::Append, expected == Ok(true));
                    prop_assert_eq!(
                        matches!(verdict, Verdict::Duplicate(_)), expected == Ok(false));
                    if verdict == Verdict::Append {
                        let entry = entry.get_or_insert_with(|| ProducerEntry::new(event.epoch));
                        entry.apply_batch(&event);
                        model.history.push(Event::Batch(event));
                    }
                }
                Event::Marker(mut event, version) => {
                    event.offset = offset;
                    let verdict = check_marker(entry.as_ref(), &event, version);
                    prop_assert_eq!(verdict.is_ok(), model.accepts_marker(&event, version));
                    if verdict.is_ok() {
                        let open = model.open_since();
                        let entry = entry.get_or_insert_with(|| ProducerEntry::new(event.epoch));
                        prop_assert_eq!(entry.apply_marker(&event), open);
                        model.history.push(Event::Marker(event, version));
                    }
                }
            }
            if let Some(entry) = &entry {
                prop_assert_eq!(entry.open_since, model.open_since());
                prop_assert_eq!(Some(entry.epoch), model.epoch());
                prop_assert!(entry.window.len() <= WINDOW_BATCHES);
            }
        }
    }
}
