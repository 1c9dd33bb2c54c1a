//! Every cell of the session's table, and a model that plays the broker.

use std::collections::BTreeMap;

use millstream_protocol::messages::fetch::PartitionData;
use proptest::prelude::*;

use super::*;

const ORDERS: Uuid = Uuid([1; 16]);
const OTHERS: Uuid = Uuid([2; 16]);

fn tp(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition::new(topic, partition)
}

fn asked(topic_id: Uuid, offset: i64) -> Asked {
    Asked {
        topic_id,
        offset,
        leader_epoch: 3,
    }
}

type Wanted = BTreeMap<TopicPartition, Asked>;

fn wanted(parts: &[(i32, i64)]) -> Wanted {
    parts
        .iter()
        .map(|(partition, offset)| (tp("orders", *partition), asked(ORDERS, *offset)))
        .collect()
}

fn plan(session: &mut FetchSession, wanted: &Wanted) -> SessionRequest {
    session.plan(wanted.iter().map(|(partition, asked)| (partition, *asked)))
}

fn answer(session_id: i32, indexes: &[i32]) -> FetchResponse {
    FetchResponse {
        session_id,
        responses: vec![FetchableTopicResponse {
            topic_id: ORDERS,
            partitions: indexes
                .iter()
                .map(|index| PartitionData {
                    partition_index: *index,
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn refusal(error_code: ErrorCode) -> FetchResponse {
    FetchResponse {
        error_code,
        ..Default::default()
    }
}

/// A session with id 7 over the partitions 0 and 1, whose next epoch is 1.
fn open() -> (FetchSession, Wanted) {
    let mut session = FetchSession::new();
    let both = wanted(&[(0, 10), (1, 20)]);
    let first = plan(&mut session, &both);
    assert_eq!((first.id, first.epoch, first.changed.len()), (0, 0, 2));
    session.answered(&answer(7, &[0, 1]));
    (session, both)
}

#[test]
fn a_request_of_a_session_names_only_what_has_changed() {
    let (mut session, mut now) = open();
    let same = plan(&mut session, &now);
    assert_eq!((same.id, same.epoch), (7, 1));
    assert!(same.changed.is_empty() && same.forgotten.is_empty() && same.by_id);
    session.answered(&answer(7, &[]));

    now.insert(tp("orders", 1), asked(ORDERS, 25));
    let moved = plan(&mut session, &now);
    assert_eq!(moved.changed, [(tp("orders", 1), asked(ORDERS, 25))]);
    assert_eq!(moved.epoch, 2);
    session.answered(&answer(7, &[1]));

    // A partition that is paused, or whose buffer is full, leaves; it comes back with its offset.
    let one = wanted(&[(1, 25)]);
    let left = plan(&mut session, &one);
    assert_eq!(left.forgotten, [(tp("orders", 0), ORDERS)]);
    assert!(left.changed.is_empty());
    session.answered(&answer(7, &[]));
    let back = plan(&mut session, &now);
    assert_eq!(back.changed, [(tp("orders", 0), asked(ORDERS, 10))]);
    assert!(back.forgotten.is_empty());
}

#[test]
fn every_way_a_request_can_end_decides_about_the_next_one() {
    let cases: &[(&str, Option<FetchResponse>, (i32, i32))] = &[
        ("continued", Some(answer(7, &[])), (7, 2)),
        ("continued with data", Some(answer(7, &[1])), (7, 2)),
        ("ended by the broker", Some(answer(0, &[])), (0, 0)),
        ("a strange partition", Some(answer(7, &[9])), (7, 0)),
        (
            "evicted",
            Some(refusal(ErrorCode::FETCH_SESSION_ID_NOT_FOUND)),
            (0, 0),
        ),
        (
            "out of step",
            Some(refusal(ErrorCode::INVALID_FETCH_SESSION_EPOCH)),
            (7, 0),
        ),
        (
            "ids and names mixed",
            Some(refusal(ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR)),
            (7, 0),
        ),
        (
            "unknown id",
            Some(refusal(ErrorCode::UNKNOWN_TOPIC_ID)),
            (7, 0),
        ),
        (
            "another id",
            Some(refusal(ErrorCode::INCONSISTENT_TOPIC_ID)),
            (7, 0),
        ),
        ("no answer", None, (7, 0)),
    ];
    for (name, outcome, (id, epoch)) in cases {
        let (mut session, both) = open();
        plan(&mut session, &both);
        match outcome {
            Some(response) => session.answered(response),
            None => session.unanswered(),
        }
        let next = plan(&mut session, &both);
        assert_eq!((next.id, next.epoch), (*id, *epoch), "{name}");
        let all = *epoch == 0;
        assert_eq!(next.changed.len(), if all { 2 } else { 0 }, "{name}");
    }
}

#[test]
fn every_way_a_full_request_can_end_decides_about_the_next_one() {
    let cases: &[(&str, Option<FetchResponse>, (i32, i32))] = &[
        ("begun", Some(answer(9, &[0, 1])), (9, 1)),
        ("no sessions there", Some(answer(0, &[0, 1])), (0, 0)),
        ("omitted", Some(answer(9, &[0])), (0, 0)),
        ("throttled", Some(answer(0, &[])), (0, 0)),
        (
            "refused",
            Some(refusal(ErrorCode::UNKNOWN_SERVER_ERROR)),
            (0, 0),
        ),
        ("no answer", None, (0, 0)),
    ];
    for (name, outcome, (id, epoch)) in cases {
        let mut session = FetchSession::new();
        let both = wanted(&[(0, 10), (1, 20)]);
        plan(&mut session, &both);
        match outcome {
            Some(response) => session.answered(response),
            None => session.unanswered(),
        }
        let next = plan(&mut session, &both);
        assert_eq!((next.id, next.epoch), (*id, *epoch), "{name}");
    }
}

#[test]
fn a_lost_session_is_ended_by_the_request_that_asks_for_the_next() {
    let (mut session, both) = open();
    plan(&mut session, &both);
    session.unanswered();
    assert_eq!(session.open_id(), Some(7));
    let full = plan(&mut session, &both);
    assert_eq!((full.id, full.epoch, full.changed.len()), (7, 0, 2));
    session.answered(&answer(8, &[0, 1]));
    let next = plan(&mut session, &both);
    assert_eq!((next.id, next.epoch), (8, 1));
}

#[test]
fn a_topic_that_was_made_anew_is_forgotten_under_its_old_id() {
    let (mut session, _) = open();
    let again: Wanted = [(tp("orders", 0), asked(OTHERS, 0))].into();
    let request = plan(&mut session, &again);
    assert_eq!(
        request.forgotten,
        [(tp("orders", 0), ORDERS), (tp("orders", 1), ORDERS)]
    );
    assert_eq!(request.changed, [(tp("orders", 0), asked(OTHERS, 0))]);
    assert!(session.find(&answer(7, &[]).responses[0], 0).is_none());
}

#[test]
fn a_topic_without_an_id_makes_the_session_begin_again_by_name() {
    let (mut session, mut now) = open();
    now.insert(tp("unknown", 0), asked(Uuid::ZERO, 0));
    let full = plan(&mut session, &now);
    assert_eq!((full.id, full.epoch, full.by_id), (7, 0, false));
    assert_eq!((full.changed.len(), full.forgotten.len()), (3, 0));
    let named = FetchableTopicResponse {
        topic: "orders".into(),
        ..Default::default()
    };
    let found = session
        .find(&named, 1)
        .map(|(partition, _)| partition.clone());
    assert_eq!(found, Some(tp("orders", 1)));
}

#[test]
fn the_epoch_wraps_to_one() {
    let (mut session, both) = open();
    session.epoch = i32::MAX;
    plan(&mut session, &both);
    session.answered(&answer(7, &[]));
    assert_eq!(plan(&mut session, &both).epoch, 1);
}

#[test]
fn without_a_session_every_request_is_full_and_asks_for_none() {
    let mut session = FetchSession::none();
    let both = wanted(&[(0, 10), (1, 20)]);
    for _ in 0..2 {
        let request = plan(&mut session, &both);
        assert_eq!(
            (request.id, request.epoch, request.changed.len()),
            (0, -1, 2)
        );
        session.answered(&answer(0, &[0, 1]));
    }
    session.unanswered();
    assert_eq!(plan(&mut session, &both).epoch, -1);
    assert_eq!(session.open_id(), None);
}

proptest! {
    /// Whatever comes and goes, a broker that keeps what it is told holds what is wanted.
    #[test]
    fn the_broker_holds_what_is_wanted(
        rounds in proptest::collection::vec(
            (
                proptest::collection::btree_map(0..6_i32, 0..3_i64, 0..6),
                0..8_u8,
                proptest::bool::weighted(0.2),
            ),
            1..30,
        )
    ) {
        let mut session = FetchSession::new();
        let mut broker: BTreeMap<(TopicPartition, Uuid), Asked> = BTreeMap::new();
        let mut broker_session = (0, 0);
        for (parts, fate, renamed) in rounds {
            let id = if renamed { OTHERS } else { ORDERS };
            let now: Wanted = parts
                .iter()
                .map(|(partition, offset)| {
                    let other = partition % 2 == 0;
                    let topic = if other { "a" } else { "b" };
                    let id = if other { id } else { Uuid([3; 16]) };
                    (tp(topic, *partition), asked(id, *offset))
                })
                .collect();
            let request = plan(&mut session, &now);
            if request.epoch == 0 {
                broker.clear();
                broker_session = (broker_session.0 + 1, 0);
            } else {
                prop_assert_eq!((request.id, request.epoch), broker_session);
            }
            for (partition, id) in &request.forgotten {
                prop_assert!(broker.remove(&(partition.clone(), *id)).is_some());
            }
            for (partition, asked) in &request.changed {
                broker.insert((partition.clone(), asked.topic_id), *asked);
            }
            let held: Wanted = broker
                .iter()
                .map(|((partition, _), asked)| (partition.clone(), *asked))
                .collect();
            prop_assert_eq!(&held, &now);
            prop_assert_eq!(broker.len(), now.len());
            match fate {
                0 => session.unanswered(),
                1 => {
                    session.answered(&refusal(ErrorCode::FETCH_SESSION_ID_NOT_FOUND));
                }
                _ => {
                    broker_session.1 += 1;
                    let responses = broker.iter().map(|((partition, id), _)| {
                        FetchableTopicResponse {
                            topic_id: *id,
                            partitions: vec![PartitionData {
                                partition_index: partition.partition,
                                ..Default::default()
                            }],
                            ..Default::default()
                        }
                    });
                    session.answered(&FetchResponse {
                        session_id: broker_session.0,
                        responses: responses.collect(),
                        ..Default::default()
                    });
                }
            }
        }
    }
}
