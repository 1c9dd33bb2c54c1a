//! The cache cell by cell: what there is of a session, against what a request may say.
//!
//! Invariants: every cell begins with a cache of its own.
//! Never: partitions for their own sake; `model_tests` has those.

use super::super::session::{Asked, TopicKey};
use super::*;
use millstream_protocol::Uuid;

const ID: i32 = 42;
const BY_ID: bool = true;

fn session(partitions: i32) -> Session {
    named(TopicKey::Id(Uuid([7; 16])), partitions)
}

fn named(topic: TopicKey, partitions: i32) -> Session {
    let mut session = Session::new(BY_ID);
    let asked = Asked {
        offset: 0,
        bytes_max: 1,
        leader_epoch: -1,
    };
    for index in 0..partitions {
        session.ask(&topic, index, asked);
    }
    session
}

fn cache_with(id: i32, now_ms: i64) -> Cache {
    let mut cache = Cache::new(2);
    assert_eq!(cache.keep(session(1), now_ms, || id as u64), id);
    cache
}

fn take(cache: &mut Cache, id: i32, epoch: i32, now_ms: i64) -> (Loan, Box<Session>) {
    match cache.begin(id, epoch, BY_ID, now_ms) {
        Begun::Incremental(loan, session) => (loan, session),
        other => panic!("{other:?}"),
    }
}

/// What the table says of a cell.
fn said(begun: &Begun) -> &'static str {
    match begun {
        Begun::Initial => "initial",
        Begun::Sessionless => "sessionless",
        Begun::Incremental(..) => "taken",
        Begun::Refused(ErrorCode::FETCH_SESSION_ID_NOT_FOUND) => "70",
        Begun::Refused(ErrorCode::INVALID_FETCH_SESSION_EPOCH) => "71",
        Begun::Refused(ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR) => "106",
        Begun::Refused(_) => "another error",
    }
}

#[test]
fn every_request_meets_every_state_of_a_session() {
    // The session is at epoch 3; `busy` has been taken with epoch 2.
    //    id, epoch, ids,       none           idle                 busy
    let table = [
        (0, 0, true, ["initial", "initial kept", "initial kept"]),
        (
            0,
            -1,
            true,
            ["sessionless", "sessionless kept", "sessionless kept"],
        ),
        (0, 3, true, ["70", "70 kept", "70 kept"]),
        (ID, 0, true, ["initial", "initial gone", "initial gone"]),
        (
            ID,
            -1,
            true,
            ["sessionless", "sessionless gone", "sessionless gone"],
        ),
        (ID, 2, true, ["70", "71 kept", "71 kept"]),
        (ID, 3, true, ["70", "taken kept", "71 kept"]),
        (ID, 4, true, ["70", "71 kept", "71 kept"]),
        (ID, -7, true, ["70", "71 kept", "71 kept"]),
        (ID, i32::MAX, true, ["70", "71 kept", "71 kept"]),
        (ID, 3, false, ["70", "106 kept", "71 kept"]),
        (ID, 2, false, ["70", "71 kept", "71 kept"]),
        (-ID, 3, true, ["70", "70 kept", "70 kept"]),
        (ID + 1, 3, true, ["70", "70 kept", "70 kept"]),
        (ID + 1, 0, true, ["initial", "initial kept", "initial kept"]),
        (
            ID + 1,
            -1,
            true,
            ["sessionless", "sessionless kept", "sessionless kept"],
        ),
    ];
    for (id, epoch, by_id, [none, idle, busy]) in table {
        let cell = format!("id {id}, epoch {epoch}, by id {by_id}");
        assert_eq!(
            said(&Cache::new(2).begin(id, epoch, by_id, 0)),
            none,
            "{cell}"
        );
        for (expected, is_busy) in [(idle, false), (busy, true)] {
            let mut cache = cache_with(ID, 0);
            let (loan, session) = take(&mut cache, ID, 1, 0);
            assert_eq!(cache.give_back(loan, session, 0), ID);
            let (loan, session) = take(&mut cache, ID, 2, 0);
            let held = if is_busy {
                Some((loan, session))
            } else {
                cache.give_back(loan, session, 0);
                None
            };
            let begun = cache.begin(id, epoch, by_id, 0);
            let fate = if cache.len() == 1 { "kept" } else { "gone" };
            let found = format!("{} {fate}", said(&begun));
            assert_eq!(found, expected, "{cell}, busy {is_busy}");
            // Whatever was said, what comes back brings nothing to life again.
            if let Some((loan, session)) = held {
                assert_eq!(cache.give_back(loan, session, 0), ID);
                assert_eq!(cache.len(), usize::from(fate == "kept"), "{cell}");
            }
        }
    }
}

#[test]
fn a_refusal_leaves_the_session_to_the_request_that_fits() {
    let mut cache = cache_with(ID, 0);
    for (epoch, by_id) in [(2, true), (1, false), (-7, true)] {
        assert!(matches!(
            cache.begin(ID, epoch, by_id, 0),
            Begun::Refused(_)
        ));
    }
    let (loan, session) = take(&mut cache, ID, 1, 0);
    assert_eq!(session.len(), 1);
    assert_eq!(cache.give_back(loan, session, 0), ID);
    take(&mut cache, ID, 2, 0);
}

#[test]
fn the_epoch_after_the_last_one_is_one() {
    let mut cache = cache_with(ID, 0);
    cache.slots.get_mut(&ID).expect("there").epoch = i32::MAX;
    let (loan, session) = take(&mut cache, ID, i32::MAX, 0);
    cache.give_back(loan, session, 0);
    take(&mut cache, ID, 1, 0);
}

#[test]
fn an_id_is_positive_and_free() {
    let mut cache = cache_with(ID, 0);
    let mut drawn = [0, 1 << 31, ID as u64, u64::MAX].into_iter();
    let id = cache.keep(session(1), 0, || drawn.next().expect("enough"));
    assert_eq!(id, i32::MAX);
}

#[test]
fn a_newcomer_gets_the_slot_that_was_unused_for_long_and_no_other() {
    let mut cache = cache_with(ID, 0);
    assert_eq!(cache.keep(session(1), 1, || 2), 2);
    assert_eq!(cache.keep(session(9), EVICTION_MS, || 3), NO_SESSION);
    assert_eq!(cache.len(), 2);
    assert_eq!(cache.keep(session(1), EVICTION_MS + 1, || 3), 3);
    assert_eq!(said(&cache.begin(ID, 1, BY_ID, 0)), "70", "the oldest went");
    // Used: it counts from there.
    let (loan, session_2) = take(&mut cache, 2, 1, EVICTION_MS + 2);
    cache.give_back(loan, session_2, EVICTION_MS + 3);
    let now_ms = 2 * EVICTION_MS + 2;
    assert_eq!(cache.keep(session(1), now_ms, || 4), 4);
    assert_eq!(said(&cache.begin(3, 1, BY_ID, now_ms)), "70");
    take(&mut cache, 2, 2, now_ms);
}

#[test]
fn a_session_that_comes_back_late_is_not_its_successor() {
    let mut cache = cache_with(ID, 0);
    let (loan, old) = take(&mut cache, ID, 1, 0);
    assert_eq!(said(&cache.begin(ID, 0, BY_ID, 0)), "initial");
    assert_eq!(cache.keep(session(3), 0, || ID as u64), ID);
    cache.give_back(loan, old, 0);
    assert_eq!(take(&mut cache, ID, 1, 0).1.len(), 3);
}

#[test]
fn a_session_without_partitions_ends() {
    let mut cache = cache_with(ID, 0);
    let (loan, _) = take(&mut cache, ID, 1, 0);
    let empty = Box::new(Session::new(BY_ID));
    assert_eq!(cache.give_back(loan, empty, 0), NO_SESSION);
    assert_eq!((cache.len(), cache.bytes), (0, 0));
    assert_eq!(cache.keep(Session::new(BY_ID), 0, || 5), NO_SESSION);
}

#[test]
fn all_sessions_together_hold_so_much_memory_and_no_more() {
    let mut cache = Cache::new(1_000);
    let name = TopicKey::Name("x".repeat(30_000).into());
    let large = || named(name.clone(), 1_000);
    let mut id = 0;
    while cache.keep(large(), 0, || id + 1) != NO_SESSION {
        id += 1;
        assert!(cache.bytes <= BYTES_MAX);
    }
    assert_eq!(id, (BYTES_MAX / large().bytes()) as u64);
    // One that grows has to go as well.
    let (loan, mut session) = take(&mut cache, 1, 1, 0);
    let asked = Asked {
        offset: 0,
        bytes_max: 1,
        leader_epoch: -1,
    };
    for index in 0..3_000 {
        session.ask(&name, index, asked);
    }
    assert_eq!(cache.give_back(loan, session, 0), NO_SESSION);
    assert!(cache.bytes <= BYTES_MAX && cache.len() as u64 == id - 1);
}
