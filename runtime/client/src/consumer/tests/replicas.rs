//! Replicas to read from instead of the leader (KIP-392): the fake broker's side of them, and what
//! the consumer makes of them.
//!
//! Invariants: a leader that names a replica sends no record with that.
//! Never: part of the product.

use std::time::Duration;

use millstream_protocol::{ApiKey, ErrorCode};
use tokio::time::Instant;

use super::broker::{FakeBroker, Log, Seen, State};
use super::{SECOND, connect, tp, values};
use crate::consumer::{Consumer, ConsumerBuilder};

const RACK: &str = "east";
/// Where the leader is, and the replica in the rack.
const LEADER: i32 = 1;
const NEAR: i32 = 2;

/// The copies of a log beside the leader's.
#[derive(Debug, Default)]
pub(super) struct Replicas {
    followers: Vec<i32>,
    /// The leader names this one to clients of the rack.
    near: Option<i32>,
    /// Of the copies, where they are behind.
    end: Option<i64>,
    /// What followers answer instead of records.
    refuse: Option<ErrorCode>,
}

impl Log {
    /// Leader and followers.
    pub(super) fn holders(&self) -> Vec<i32> {
        let mut all = vec![self.leadership.node()];
        all.extend(&self.replicas.followers);
        all
    }

    fn is_follower(&self, node: i32) -> bool {
        self.replicas.followers.contains(&node) && node != self.leadership.node()
    }

    pub(super) fn end_at(&self, node: i32) -> i64 {
        let behind = self.replicas.end.filter(|_| self.is_follower(node));
        behind.unwrap_or(self.end)
    }

    /// Followers answer consumers, too.
    pub(super) fn refuses_fetch(&self, node: i32, epoch: i32) -> Option<ErrorCode> {
        if self.is_follower(node) {
            let refused = self.leadership.refuses(self.leadership.node(), epoch);
            return self.replicas.refuse.or(refused);
        }
        self.leadership.refuses(node, epoch)
    }

    /// Whom the leader names to a client of `rack`.
    pub(super) fn names(&self, node: i32, rack: &str) -> Option<i32> {
        let leads = node == self.leadership.node() && rack == RACK;
        self.replicas.near.filter(|_| leads)
    }
}

impl State {
    pub(super) fn moves_of(&self, node: i32) -> i32 {
        self.moves.get(&node).copied().unwrap_or(0)
    }

    pub(super) fn port_of(&self, node: i32) -> i32 {
        9091 + node + 100 * self.moves_of(node)
    }
}

impl FakeBroker {
    /// Comes back when the node has ended, or has moved more often than that.
    pub(super) async fn gone(&self, node: i32, moves: i32) {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.lock();
                if state.away.contains(&node) || state.moves_of(node) != moves {
                    return;
                }
            }
            changed.await;
        }
    }

    fn end_node(&self, node: i32) {
        self.lock().away.insert(node);
        self.changed.notify_waiters();
    }

    /// How many fetches came to the node until now.
    fn fetches_at(&self, node: i32) -> usize {
        let fetches = self.fetches();
        fetches.iter().filter(|seen| seen.node == node).count()
    }
}

fn in_rack() -> ConsumerBuilder {
    Consumer::builder().client_rack(RACK)
}

/// Three partitions of node 1, the first with a copy on node 2 that it names, and one record.
async fn reader(builder: ConsumerBuilder) -> (FakeBroker, Consumer) {
    let broker = FakeBroker::new(&[("a", 3)]);
    broker.with("a", 0, |log| {
        log.replicas.followers = vec![NEAR];
        log.replicas.near = Some(NEAR);
        log.write(&["0"]);
    });
    let consumer = connect(&broker, builder).await;
    consumer
        .assign(vec![tp("a", 0), tp("a", 1), tp("a", 2)])
        .unwrap();
    (broker, consumer)
}

/// The next record, and how long it took.
async fn next(consumer: &Consumer) -> (String, Duration) {
    let start = Instant::now();
    loop {
        let polled = consumer.poll(SECOND).await.unwrap();
        if let [value] = values(&polled).as_slice() {
            return (value.clone(), start.elapsed());
        }
        assert!(start.elapsed() < 20 * SECOND, "nothing comes");
    }
}

/// Writes a record to the partition that has a copy; who was asked for that partition meanwhile.
async fn written(broker: &FakeBroker, consumer: &Consumer, value: &str) -> Vec<i32> {
    consumer.poll(SECOND).await.unwrap();
    let before = broker.lock().seen.len();
    broker.with("a", 0, |log| log.write(&[value]));
    assert_eq!(next(consumer).await.0, value);
    consumer.poll(2 * SECOND).await.unwrap();
    asked_since(broker, before)
}

/// Nodes that were asked for the partition that has a copy.
fn asked_since(broker: &FakeBroker, before: usize) -> Vec<i32> {
    let state = broker.lock();
    let asks = |seen: &&Seen| seen.fetched.iter().any(|(p, _)| *p == tp("a", 0));
    let mut nodes: Vec<i32> = state.seen[before..]
        .iter()
        .filter(asks)
        .map(|seen| seen.node)
        .collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

#[tokio::test(start_paused = true)]
async fn records_come_from_the_replica_that_the_leader_names() {
    let (broker, consumer) = reader(in_rack()).await;
    let (value, waited) = next(&consumer).await;
    assert_eq!(value, "0");
    assert!(waited.as_millis() < 50, "{waited:?}");
    assert_eq!(written(&broker, &consumer, "1").await, [NEAR]);
    // Each node has a session of its own; the others' is the leader's still.
    let fetches = broker.fetches();
    assert!(fetches.iter().all(|seen| seen.rack == RACK));
    let of = |node| fetches.iter().rev().find(move |seen| seen.node == node);
    let (leader, near) = (of(LEADER).unwrap(), of(NEAR).unwrap());
    assert_ne!(leader.session.0, near.session.0);
    assert!(leader.session.1 > 2 && near.session.1 > 2);
    let at_leader: Vec<i32> = leader.fetched.iter().map(|(p, _)| p.partition).collect();
    assert_eq!(at_leader, [1, 2]);
    assert_eq!(near.fetched.len(), 1);
    consumer.close().await.unwrap();
    assert_eq!(broker.lock().sessions.open.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_rack_the_leader_is_read() {
    for builder in [Consumer::builder(), Consumer::builder().client_rack("")] {
        let (broker, consumer) = reader(builder).await;
        assert_eq!(next(&consumer).await.0, "0");
        assert_eq!(broker.fetches_at(NEAR), 0);
        assert!(broker.fetches().iter().all(|seen| seen.rack.is_empty()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_counts_for_the_age_of_metadata_and_then_the_leader_is_asked_again() {
    let age = 60_000;
    let (broker, consumer) = reader(in_rack().set("metadata.max.age.ms", age)).await;
    assert_eq!(next(&consumer).await.0, "0");
    let before = broker.lock().seen.len();
    consumer.poll(55 * SECOND).await.unwrap();
    assert_eq!(asked_since(&broker, before), [NEAR]);
    broker.with("a", 0, |log| log.replicas.near = None);
    consumer.poll(10 * SECOND).await.unwrap();
    assert_eq!(written(&broker, &consumer, "1").await, [LEADER]);
}

#[tokio::test(start_paused = true)]
async fn the_death_of_a_replica_leads_back_to_the_leader() {
    let (broker, consumer) = reader(in_rack()).await;
    assert_eq!(next(&consumer).await.0, "0");
    consumer.poll(SECOND).await.unwrap();
    // The leader names it on, until it knows.
    broker.end_node(NEAR);
    broker.with("a", 0, |log| log.write(&["1"]));
    let polled = consumer.poll(5 * SECOND).await.unwrap();
    assert!(polled.is_empty(), "{:?}", values(&polled));
    let asked = broker.count(ApiKey::Fetch);
    assert!(asked < 100, "{asked} fetches in 5 s");
    broker.with("a", 0, |log| log.replicas.near = None);
    assert_eq!(next(&consumer).await.0, "1");
    assert_eq!(written(&broker, &consumer, "2").await, [LEADER]);
}

#[tokio::test(start_paused = true)]
async fn a_position_that_the_replica_does_not_hold_is_the_leaders_to_judge() {
    let (broker, consumer) = reader(in_rack()).await;
    assert_eq!(next(&consumer).await.0, "0");
    consumer.poll(SECOND).await.unwrap();
    broker.with("a", 0, |log| {
        log.replicas.near = None;
        log.replicas.end = Some(0);
        log.write(&["1"]);
    });
    // No reset: it would hand out "0" once more.
    assert_eq!(next(&consumer).await.0, "1");
    assert_eq!(written(&broker, &consumer, "2").await, [LEADER]);
    assert_eq!(broker.count(ApiKey::ListOffsets), 1);
    // What the leader does not hold either is reset as ever.
    broker.with("a", 0, |log| {
        log.replicas.near = Some(NEAR);
        log.replicas.end = None;
        log.start = 2;
    });
    consumer.seek(&tp("a", 0), 1).unwrap();
    assert_eq!(next(&consumer).await.0, "2");
    assert_eq!(broker.count(ApiKey::ListOffsets), 2);
}

#[tokio::test(start_paused = true)]
async fn what_a_replica_refuses_is_asked_of_the_leader() {
    for code in [
        ErrorCode::NOT_LEADER_OR_FOLLOWER,
        ErrorCode::REPLICA_NOT_AVAILABLE,
        ErrorCode::FENCED_LEADER_EPOCH,
        ErrorCode::UNKNOWN_LEADER_EPOCH,
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode::UNKNOWN_TOPIC_ID,
        ErrorCode::KAFKA_STORAGE_ERROR,
        ErrorCode::OFFSET_NOT_AVAILABLE,
        ErrorCode::UNKNOWN_SERVER_ERROR,
    ] {
        let (broker, consumer) = reader(in_rack()).await;
        assert_eq!(next(&consumer).await.0, "0");
        consumer.poll(SECOND).await.unwrap();
        broker.with("a", 0, |log| {
            log.replicas.near = None;
            log.replicas.refuse = Some(code);
            log.write(&["1"]);
        });
        let (value, waited) = next(&consumer).await;
        assert_eq!(value, "1", "{code}");
        assert!(waited < SECOND, "{code}: {waited:?}");
        assert_eq!(written(&broker, &consumer, "2").await, [LEADER], "{code}");
    }
}

/// What happens to partition 0 while nobody asks for it, and is learnt because of partition 1; who
/// is asked for it from then on, until its next record has come.
async fn meanwhile(
    broker: &FakeBroker,
    consumer: &Consumer,
    change: impl FnOnce(&mut Log),
) -> Vec<i32> {
    assert_eq!(next(consumer).await.0, "0");
    consumer.pause(&[tp("a", 0)]).unwrap();
    consumer.poll(2 * SECOND).await.unwrap();
    broker.with("a", 0, |log| {
        change(log);
        log.write(&["1"]);
    });
    broker.with("a", 1, |log| {
        log.elect(NEAR, 1, 0);
        log.elect(LEADER, 2, 0);
    });
    consumer.poll(2 * SECOND).await.unwrap();
    let before = broker.lock().seen.len();
    consumer.resume(&[tp("a", 0)]).unwrap();
    assert_eq!(next(consumer).await.0, "1");
    consumer.poll(SECOND).await.unwrap();
    asked_since(broker, before)
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_the_metadata_has_no_more_is_not_asked_again() {
    let (broker, consumer) = reader(in_rack()).await;
    let asked = meanwhile(&broker, &consumer, |log| {
        log.replicas = Replicas::default();
    });
    assert_eq!(asked.await, [LEADER]);
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_is_asked_first_and_may_name_another() {
    let (broker, consumer) = reader(in_rack()).await;
    let asked = meanwhile(&broker, &consumer, |log| {
        log.replicas.followers = vec![LEADER, NEAR, 3];
        log.replicas.near = Some(LEADER);
        log.elect(3, 1, 1);
    });
    assert_eq!(asked.await, [LEADER, 3]);
    assert_eq!(written(&broker, &consumer, "2").await, [LEADER]);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_the_metadata_does_not_know_yet_is_looked_up_first() {
    let broker = FakeBroker::new(&[("a", 3)]);
    broker.with("a", 2, |log| log.elect(NEAR, 1, 0));
    let consumer = connect(&broker, in_rack()).await;
    consumer
        .assign(vec![tp("a", 0), tp("a", 1), tp("a", 2)])
        .unwrap();
    consumer.poll(SECOND).await.unwrap();
    let (metadata, before) = (broker.count(ApiKey::Metadata), broker.lock().seen.len());
    // Its node is known, but not that it has this partition.
    broker.with("a", 0, |log| {
        log.replicas.near = Some(NEAR);
        log.write(&["0"]);
    });
    assert!(consumer.poll(5 * SECOND).await.unwrap().is_empty());
    assert!(broker.count(ApiKey::Metadata) > metadata);
    assert_eq!(asked_since(&broker, before), [LEADER]);
    let requests = broker.lock().seen.len() - before;
    assert!(requests < 200, "{requests} requests in 5 s");
    broker.with("a", 0, |log| log.replicas.followers = vec![NEAR]);
    assert_eq!(next(&consumer).await.0, "0");
    assert_eq!(written(&broker, &consumer, "1").await, [NEAR]);
}
