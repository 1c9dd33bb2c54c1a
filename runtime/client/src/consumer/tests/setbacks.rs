//! What a consumer comes back from by itself: refusals that pass, brokers that move, a coordinator
//! that is away while offsets are committed automatically.
//!
//! Never: part of the product.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_protocol::{ApiKey, ErrorCode, TopicPartition};
use tokio::time::{Instant, sleep};

use super::broker::{FakeBroker, Fault};
use super::{SECOND, connect, tp, values};
use crate::consumer::{AutoOffsetReset, Consumer, ConsumerError, RebalanceListener};
use crate::group::OffsetAndMetadata;

/// A broker with one record.
fn one_record() -> FakeBroker {
    let broker = FakeBroker::new(&[("a", 2)]);
    broker.with("a", 0, |log| log.write(&["0"]));
    broker
}

#[tokio::test(start_paused = true)]
async fn a_refusal_while_a_starting_point_is_looked_up_stops_nothing() {
    for api in [ApiKey::ListOffsets, ApiKey::OffsetFetch] {
        for (code, told) in [
            (ErrorCode::UNKNOWN_SERVER_ERROR, false),
            (ErrorCode::TOPIC_AUTHORIZATION_FAILED, true),
            (ErrorCode::UNSUPPORTED_VERSION, true),
        ] {
            let broker = one_record();
            let consumer = connect(&broker, Consumer::builder().group_id("g")).await;
            broker.fault(api, Fault::Code(code));
            consumer.assign(vec![tp("a", 0)]).unwrap();
            let first = consumer.poll(20 * SECOND).await;
            let read = match first {
                Ok(records) => {
                    assert!(!told, "{api:?} {code}");
                    values(&records)
                }
                Err(error) => {
                    assert!(told, "{error}");
                    let right =
                        matches!(&error, ConsumerError::Refused { code: c, .. } if *c == code);
                    assert!(right, "{error}");
                    values(&consumer.poll(20 * SECOND).await.unwrap())
                }
            };
            assert_eq!(read, ["0"], "{api:?} {code}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_only_a_seek_helps_is_told_by_every_poll_that_has_nothing_else() {
    let broker = one_record();
    let builder = Consumer::builder().auto_offset_reset(AutoOffsetReset::None);
    let consumer = builder.connect(&broker.transport()).await.unwrap();
    consumer.assign(vec![tp("a", 0), tp("a", 1)]).unwrap();
    consumer.seek(&tp("a", 1), 0).unwrap();
    for turn in 0..3 {
        let started = Instant::now();
        let error = consumer.poll(SECOND).await.unwrap_err();
        assert!(matches!(error, ConsumerError::NoOffset { .. }), "{error}");
        // The first time at once; then it does not spin.
        assert_eq!(started.elapsed() >= SECOND, turn > 0);
    }
    broker.with("a", 1, |log| log.write(&["other"]));
    assert_eq!(values(&consumer.poll(SECOND).await.unwrap()), ["other"]);
    // Who does not want it now need not hear of it.
    consumer.pause(&[tp("a", 0)]).unwrap();
    assert!(consumer.poll(SECOND).await.unwrap().is_empty());
    consumer.resume(&[tp("a", 0)]).unwrap();
    consumer.poll(SECOND).await.unwrap_err();
    consumer.seek(&tp("a", 0), 0).unwrap();
    assert_eq!(values(&consumer.poll(SECOND).await.unwrap()), ["0"]);
    assert!(consumer.poll(SECOND).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_moves_to_another_address_is_found_by_both_lanes() {
    const NODE: i32 = 2;
    let broker = FakeBroker::new(&[("a", 2)]);
    for partition in [0, 1] {
        broker.with("a", partition, |log| log.elect(NODE, 1, 0));
    }
    let consumer = connect(&broker, Consumer::builder()).await;
    consumer.assign(vec![tp("a", 0), tp("a", 1)]).unwrap();
    // A partition that comes back while the main lane waits takes the hot lane.
    let hot = async |value: &str| {
        consumer.pause(&[tp("a", 1)]).unwrap();
        consumer.poll(2 * SECOND).await.unwrap();
        let before = broker.lock().seen.len();
        consumer.resume(&[tp("a", 1)]).unwrap();
        broker.with("a", 1, |log| log.write(&[value]));
        assert_eq!(values(&consumer.poll(5 * SECOND).await.unwrap()), [value]);
        let state = broker.lock();
        let hot = |seen: &&super::broker::Seen| seen.api == ApiKey::Fetch && seen.session.1 < 0;
        state.seen[before..].iter().any(|seen| hot(&seen))
    };
    assert!(hot("0").await);
    broker.lock().moves.insert(NODE, 1);
    broker.changed.notify_waiters();
    consumer.poll(5 * SECOND).await.unwrap();
    assert!(hot("1").await, "the hot lane is lost");
}

fn automatic(broker: &FakeBroker) -> impl Future<Output = Consumer> {
    let builder = Consumer::builder().group_id("g").enable_auto_commit(true);
    connect(broker, builder.auto_commit_interval_ms(1_000))
}

/// Reads a record every 500 ms for so long.
async fn read_on(broker: &FakeBroker, consumer: &Consumer, duration: Duration) {
    let end = Instant::now() + duration;
    while Instant::now() < end {
        broker.with("a", 0, |log| log.write(&["x"]));
        consumer.poll(SECOND).await.unwrap();
        sleep(SECOND / 2).await;
    }
}

/// For the next commits.
fn coordinator_loads(broker: &FakeBroker) {
    for _ in 0..40 {
        let loads = Fault::Code(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS);
        broker.fault(ApiKey::OffsetCommit, loads);
    }
}

fn committed(broker: &FakeBroker) -> Vec<i64> {
    let state = broker.lock();
    let offsets = |commit: &millstream_protocol::messages::offset_commit::OffsetCommitRequest| {
        commit.topics[0].partitions[0].committed_offset
    };
    state.commits.iter().map(offsets).collect()
}

#[tokio::test(start_paused = true)]
async fn automatic_commits_do_not_overtake_each_other() {
    let broker = one_record();
    let consumer = automatic(&broker).await;
    consumer.assign(vec![tp("a", 0)]).unwrap();
    coordinator_loads(&broker);
    read_on(&broker, &consumer, 30 * SECOND).await;
    broker.forget_faults();
    read_on(&broker, &consumer, 5 * SECOND).await;
    let all = committed(&broker);
    assert!(all.is_sorted(), "{all:?}");
    let position = consumer.position(&tp("a", 0)).unwrap();
    assert!(position - all.last().unwrap() < 5, "{position}: {all:?}");
}

#[tokio::test(start_paused = true)]
async fn no_automatic_commit_comes_after_the_last_one() {
    let broker = one_record();
    let consumer = automatic(&broker).await;
    consumer.assign(vec![tp("a", 0)]).unwrap();
    coordinator_loads(&broker);
    read_on(&broker, &consumer, 5 * SECOND).await;
    broker.forget_faults();
    consumer.close().await.unwrap();
    let position = broker.with("a", 0, |log| log.committed);
    let count = committed(&broker).len();
    sleep(100 * SECOND).await;
    assert_eq!(committed(&broker).len(), count);
    let late = [(tp("a", 0), OffsetAndMetadata::new(1))];
    let refused = consumer.commit_offsets(&late).await.unwrap_err();
    assert!(matches!(refused, ConsumerError::Closed), "{refused}");
    assert_eq!(committed(&broker).len(), count);
    let last = committed(&broker).last().copied();
    assert_eq!((last, position), (position, Some(last.unwrap())));
}

/// A consumer that is served hears of its brokers for hours without a look at the metadata.
#[tokio::test(start_paused = true)]
async fn a_leader_that_moves_after_a_quiet_time_stops_no_other_topic() {
    let broker = FakeBroker::new(&[("a", 1), ("b", 1)]);
    broker.with("a", 0, |log| log.elect(2, 1, 0));
    for topic in ["a", "b"] {
        broker.with(topic, 0, |log| log.write(&["0"]));
    }
    let consumer = connect(&broker, Consumer::builder()).await;
    consumer.assign(vec![tp("a", 0), tp("b", 0)]).unwrap();
    let mut read = 0;
    while read < 2 {
        read += consumer.poll(SECOND).await.unwrap().len();
    }
    assert!(consumer.poll(3_600 * SECOND).await.unwrap().is_empty());
    let doubted_before = broker.count(ApiKey::OffsetForLeaderEpoch);
    // Its leader dies, so that nobody says who leads now.
    broker.lock().away.insert(2);
    broker.changed.notify_waiters();
    broker.with("a", 0, |log| log.elect(1, 2, 1));
    consumer.poll(5 * SECOND).await.unwrap();
    let doubted = broker.count(ApiKey::OffsetForLeaderEpoch) - doubted_before;
    assert_eq!(doubted, 1, "only the one that moved begins anew");
    for topic in ["b", "a"] {
        broker.with(topic, 0, |log| log.write(&[topic]));
        assert_eq!(values(&consumer.poll(SECOND).await.unwrap()), [topic]);
    }
}

/// Takes its time over what it is given.
#[derive(Debug)]
struct Slow;

#[async_trait]
impl RebalanceListener for Slow {
    async fn on_revoked(&self, _consumer: &Consumer, _partitions: &[TopicPartition]) {}

    async fn on_assigned(&self, _consumer: &Consumer, _partitions: &[TopicPartition]) {
        sleep(10 * SECOND).await;
    }

    async fn on_lost(&self, _consumer: &Consumer, _partitions: &[TopicPartition]) {}
}

#[tokio::test(start_paused = true)]
async fn an_automatic_commit_of_a_poll_that_is_ended_is_over_when_the_group_is_left() {
    let broker = one_record();
    let consumer = automatic(&broker).await;
    consumer.subscribe_with(["a"], Arc::new(Slow)).unwrap();
    let polling = consumer.clone();
    let poll = tokio::spawn(async move { polling.poll(60 * SECOND).await });
    sleep(5 * SECOND).await;
    // The turn is free, and the next commit due, only when the listener has done. By then the
    // coordinator is away.
    let away = Fault::Code(ErrorCode::COORDINATOR_NOT_AVAILABLE);
    broker.fault(ApiKey::Heartbeat, Fault::Code(ErrorCode::NOT_COORDINATOR));
    (0..1_000).for_each(|_| broker.fault(ApiKey::FindCoordinator, away));
    consumer.unsubscribe().await.unwrap();
    poll.await.unwrap().unwrap();
    broker.forget_faults();
    sleep(100 * SECOND).await;
    assert!(committed(&broker).is_empty(), "by one that has left");
}
