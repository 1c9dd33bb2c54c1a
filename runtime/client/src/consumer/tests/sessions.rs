//! Fetch sessions: the fake broker's side of them, and what the consumer makes of them.
//!
//! Invariants: a session's answer leaves out what has neither records nor an error nor a new end.
//! Never: part of the product.

use std::collections::BTreeMap;

use millstream_protocol::messages::fetch::{
    FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData,
};
use millstream_protocol::{ApiKey, ErrorCode, Uuid};
use tokio::time::Instant;

use super::broker::{FakeBroker, Fault, Seen};
use super::{SECOND, connect, tp, values};
use crate::consumer::Consumer;

type Key = (Uuid, String, i32);

#[derive(Debug, Default)]
struct Session {
    next_epoch: i32,
    parts: BTreeMap<Key, FetchPartition>,
    /// High watermark and log start, as told last.
    told: BTreeMap<Key, (i64, i64)>,
}

/// The sessions of one broker.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    pub(super) refused: bool,
    /// The next request of a session is refused with this.
    refuse_once: Option<ErrorCode>,
    last_id: i32,
    pub(super) open: BTreeMap<i32, OpenSession>,
}

/// Opaque to the tests.
#[derive(Debug, Default)]
pub(super) struct OpenSession(Session);

/// What a request means once its session is known.
#[derive(Clone, Debug)]
pub(super) struct Continued {
    id: i32,
    incremental: bool,
    pub(super) topics: Vec<FetchTopic>,
}

impl Sessions {
    pub(super) fn resolve(&mut self, request: &FetchRequest) -> Result<Continued, ErrorCode> {
        let (id, epoch) = (request.session_id, request.session_epoch);
        let full = Continued {
            id: 0,
            incremental: false,
            topics: request.topics.clone(),
        };
        if epoch <= 0 {
            self.open.remove(&id);
            if epoch < 0 || self.refused {
                return Ok(full);
            }
            self.last_id += 1;
            let mut session = Session {
                next_epoch: 1,
                ..Default::default()
            };
            session.update(request);
            self.open.insert(self.last_id, OpenSession(session));
            let id = self.last_id;
            return Ok(Continued { id, ..full });
        }
        if let Some(code) = self.refuse_once.take() {
            return Err(code);
        }
        let Some(OpenSession(session)) = self.open.get_mut(&id) else {
            return Err(ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
        };
        if epoch != session.next_epoch {
            return Err(ErrorCode::INVALID_FETCH_SESSION_EPOCH);
        }
        session.next_epoch += 1;
        session.update(request);
        Ok(Continued {
            id,
            incremental: true,
            topics: session.topics(),
        })
    }

    /// Leaves out what the session knows already.
    pub(super) fn thin(&mut self, to: &Continued, mut response: FetchResponse) -> FetchResponse {
        let Some(OpenSession(session)) = self.open.get_mut(&to.id) else {
            return response;
        };
        response.session_id = to.id;
        for topic in &mut response.responses {
            let (id, name) = (topic.topic_id, topic.topic.clone());
            topic.partitions.retain(|part| {
                let key = (id, name.clone(), part.partition_index);
                let news = session.news(key, part);
                news || !to.incremental
            });
        }
        response
            .responses
            .retain(|topic| !topic.partitions.is_empty());
        response
    }
}

impl Session {
    fn update(&mut self, request: &FetchRequest) {
        for topic in &request.forgotten_topics_data {
            for partition in &topic.partitions {
                let key = (topic.topic_id, topic.topic.clone(), *partition);
                assert!(self.parts.remove(&key).is_some(), "{key:?} was not held");
                self.told.remove(&key);
            }
        }
        for topic in &request.topics {
            for part in &topic.partitions {
                let key = (topic.topic_id, topic.topic.clone(), part.partition);
                self.parts.insert(key, part.clone());
            }
        }
    }

    fn topics(&self) -> Vec<FetchTopic> {
        let mut topics: Vec<FetchTopic> = Vec::new();
        for ((topic_id, topic, _), part) in &self.parts {
            if topics.last().is_none_or(|last| last.topic_id != *topic_id) {
                topics.push(FetchTopic {
                    topic: topic.clone(),
                    topic_id: *topic_id,
                    partitions: Vec::new(),
                });
            }
            topics.last_mut().unwrap().partitions.push(part.clone());
        }
        topics
    }

    fn news(&mut self, key: Key, part: &PartitionData) -> bool {
        let ends = (part.high_watermark, part.log_start_offset);
        let moved = self.told.insert(key, ends) != Some(ends);
        let named = part.preferred_read_replica >= 0;
        moved
            || named
            || !part.error_code.is_ok()
            || part.records.as_ref().is_some_and(|r| !r.is_empty())
    }
}

impl FakeBroker {
    pub(super) fn fetches(&self) -> Vec<Seen> {
        let state = self.lock();
        let all = state.seen.iter().filter(|seen| seen.api == ApiKey::Fetch);
        // The hot lane has no session.
        all.filter(|seen| seen.session.1 >= 0).cloned().collect()
    }

    fn last_fetch(&self) -> Seen {
        self.fetches().pop().unwrap()
    }
}

async fn idle_reader(partitions: usize) -> (FakeBroker, Consumer) {
    let broker = FakeBroker::new(&[("a", partitions)]);
    let consumer = connect(&broker, Consumer::builder()).await;
    let all = (0..partitions).map(|partition| tp("a", i32::try_from(partition).unwrap()));
    consumer.assign(all.collect()).unwrap();
    consumer.poll(3 * SECOND).await.unwrap();
    (broker, consumer)
}

#[tokio::test(start_paused = true)]
async fn a_request_of_an_idle_session_names_no_partition() {
    let (broker, consumer) = idle_reader(100).await;
    let all = broker.fetches();
    assert_eq!((all[0].session, all[0].named), ((0, 0), 100));
    for (seen, epoch) in all[1..].iter().zip(1..) {
        assert_eq!((seen.session, seen.named), ((1, epoch), 0));
        assert_eq!(seen.fetched.len(), 100);
    }
    // Only what has moved is named.
    broker.with("a", 42, |log| log.write(&["x"]));
    assert_eq!(values(&consumer.poll(SECOND).await.unwrap()), ["x"]);
    consumer.poll(SECOND).await.unwrap();
    assert!(broker.fetches().iter().any(|seen| seen.named == 1));
    assert_eq!(broker.last_fetch().named, 0);
    let last = broker.last_fetch();
    println!(
        "100 partitions: full request {} bytes, idle request {} bytes",
        all[0].bytes, last.bytes
    );
    assert!(all[0].bytes > 2_000 && last.bytes < 100, "{}", last.bytes);
}

#[tokio::test(start_paused = true)]
async fn a_paused_partition_leaves_the_session_and_comes_back() {
    let (broker, consumer) = idle_reader(3).await;
    consumer.pause(&[tp("a", 1)]).unwrap();
    consumer.poll(SECOND).await.unwrap();
    let parts = |broker: &FakeBroker| -> Vec<i32> {
        let fetched = broker.last_fetch().fetched;
        fetched.iter().map(|(p, _)| p.partition).collect()
    };
    assert_eq!(parts(&broker), [0, 2]);
    assert_eq!(broker.last_fetch().session.0, 1);
    broker.with("a", 1, |log| log.write(&["kept"]));
    assert!(consumer.poll(SECOND).await.unwrap().is_empty());
    consumer.resume(&[tp("a", 1)]).unwrap();
    assert_eq!(values(&consumer.poll(SECOND).await.unwrap()), ["kept"]);
    consumer.poll(SECOND).await.unwrap();
    assert_eq!(parts(&broker), [0, 1, 2]);
    assert_eq!(broker.last_fetch().session.0, 1);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_the_broker_lost_begins_anew_at_once() {
    let (broker, consumer) = idle_reader(3).await;
    broker.lock().sessions.open.clear();
    let before = broker.count(ApiKey::Metadata);
    let start = Instant::now();
    broker.with("a", 2, |log| log.write(&["x"]));
    let polled = consumer.poll(SECOND).await.unwrap();
    assert_eq!(values(&polled), ["x"]);
    assert!(start.elapsed().as_millis() < 20, "{:?}", start.elapsed());
    consumer.poll(SECOND).await.unwrap();
    assert_eq!(broker.last_fetch().session.0, 2);
    assert_eq!(broker.count(ApiKey::Metadata), before);
}

#[tokio::test(start_paused = true)]
async fn errors_of_a_session_lead_to_a_new_one_and_lose_nothing() {
    for code in [
        ErrorCode::FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode::INVALID_FETCH_SESSION_EPOCH,
        ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode::UNKNOWN_TOPIC_ID,
        ErrorCode::INCONSISTENT_TOPIC_ID,
    ] {
        let (broker, consumer) = idle_reader(2).await;
        broker.lock().sessions.refuse_once = Some(code);
        broker.with("a", 1, |log| log.write(&["x"]));
        let polled = consumer.poll(5 * SECOND).await.unwrap();
        assert_eq!(values(&polled), ["x"], "{code}");
        broker.with("a", 0, |log| log.write(&["y"]));
        assert_eq!(values(&consumer.poll(5 * SECOND).await.unwrap()), ["y"]);
        consumer.poll(SECOND).await.unwrap();
        assert_eq!(broker.last_fetch().session.0, 2, "{code}");
        // The old one is not left behind.
        let left = usize::from(code == ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
        assert_eq!(broker.lock().sessions.open.len(), 1 + left, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_followed_by_a_new_session_that_ends_the_old_one() {
    let (broker, consumer) = idle_reader(2).await;
    broker.fault(ApiKey::Fetch, Fault::Disconnect);
    broker.with("a", 1, |log| log.write(&["x"]));
    let mut seen = Vec::new();
    while seen.is_empty() {
        seen = values(&consumer.poll(5 * SECOND).await.unwrap());
    }
    assert_eq!(seen, ["x"]);
    consumer.poll(SECOND).await.unwrap();
    let renewed = broker.fetches().into_iter().rev().find(|f| f.named == 2);
    assert_eq!(renewed.unwrap().session, (1, 0));
    assert_eq!(broker.lock().sessions.open.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn closing_ends_the_session() {
    let (broker, consumer) = idle_reader(2).await;
    assert_eq!(broker.lock().sessions.open.len(), 1);
    let start = Instant::now();
    consumer.close().await.unwrap();
    assert_eq!(broker.lock().sessions.open.len(), 0);
    assert!(start.elapsed().as_millis() < 50, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_broker_without_sessions_is_asked_in_full() {
    let broker = FakeBroker::new(&[("a", 100)]);
    broker.lock().sessions.refused = true;
    let consumer = connect(&broker, Consumer::builder()).await;
    let all = (0..100).map(|partition| tp("a", partition));
    consumer.assign(all.collect()).unwrap();
    consumer.poll(3 * SECOND).await.unwrap();
    for seen in broker.fetches() {
        assert_eq!((seen.session, seen.named), ((0, 0), 100));
    }
    broker.with("a", 42, |log| log.write(&["x"]));
    assert_eq!(values(&consumer.poll(SECOND).await.unwrap()), ["x"]);
}
