//! Incremental fetches as a client sees them, over logs that move.
//!
//! Invariants: what an answer leaves out is named in the test, not only what it has.
//! Never: the table of ids and epochs; that is tested where it is written.

use super::harness::*;
use super::read_committed::Transactional;
use crate::{Broker, BrokerConfig};
use millstream_log::MemoryStorage;
use millstream_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use millstream_protocol::messages::delete_topics::DeleteTopicState;
use millstream_protocol::messages::fetch::{
    FetchPartition, FetchTopic, ForgottenTopic, PartitionData,
};
use millstream_protocol::messages::*;
use millstream_protocol::{ErrorCode, Uuid};
use std::sync::Arc;
use std::time::Duration;

const BY_NAME: i16 = 12;
const BY_ID: i16 = 18;

/// A client that reads one topic in a session.
struct Reader {
    client: Client,
    version: i16,
    topic: &'static str,
    id: Uuid,
    session: i32,
    epoch: i32,
    request: FetchRequest,
}

impl Reader {
    async fn new(broker: &Broker, version: i16, topic: &'static str, partitions: i32) -> Self {
        let mut client = Client::connect(broker);
        let id = client.create_topic(topic, partitions).await;
        Self {
            client,
            version,
            topic,
            id,
            session: 0,
            epoch: 0,
            request: fetch_request("", 0, 0, 0),
        }
    }

    /// What is new: partitions with the offsets to read at.
    fn build(&self, changed: &[(i32, i64)]) -> FetchRequest {
        let partitions = changed.iter().map(|(partition, offset)| FetchPartition {
            partition: *partition,
            fetch_offset: *offset,
            partition_max_bytes: 1 << 20,
            ..Default::default()
        });
        let (topic, topic_id) = self.names();
        let topic = FetchTopic {
            topic,
            topic_id,
            partitions: partitions.collect(),
        };
        FetchRequest {
            session_id: self.session,
            session_epoch: self.epoch,
            topics: Some(topic)
                .filter(|_| !changed.is_empty())
                .into_iter()
                .collect(),
            ..self.request.clone()
        }
    }

    fn names(&self) -> (String, Uuid) {
        match self.version {
            ..13 => (self.topic.to_owned(), Uuid::ZERO),
            _ => (String::new(), self.id),
        }
    }

    async fn send(&mut self, changed: &[(i32, i64)], forgotten: &[i32]) {
        let mut request = self.build(changed);
        if !forgotten.is_empty() {
            let (topic, topic_id) = self.names();
            request.forgotten_topics_data = vec![ForgottenTopic {
                topic,
                topic_id,
                partitions: forgotten.to_vec(),
            }];
        }
        self.client.send(self.version, &request).await;
    }

    async fn receive(&mut self) -> Vec<PartitionData> {
        let answer = self.client.receive::<FetchRequest>(self.version).await;
        assert_eq!(answer.error_code, ErrorCode::NONE);
        assert!(self.epoch == 0 || answer.session_id == self.session);
        self.session = answer.session_id;
        self.epoch += 1;
        let topics = answer.responses.into_iter();
        topics.flat_map(|topic| topic.partitions).collect()
    }

    async fn fetch(&mut self, changed: &[(i32, i64)]) -> Vec<PartitionData> {
        self.send(changed, &[]).await;
        self.receive().await
    }

    async fn refusal(&mut self, session: i32, epoch: i32) -> ErrorCode {
        let request = FetchRequest {
            session_id: session,
            session_epoch: epoch,
            ..Default::default()
        };
        let answer = self.client.ask(self.version, request).await;
        assert_eq!((answer.session_id, answer.responses.len()), (0, 0));
        answer.error_code
    }
}

fn indexes(answer: &[PartitionData]) -> Vec<i32> {
    answer.iter().map(|data| data.partition_index).collect()
}

#[tokio::test(start_paused = true)]
async fn the_first_answer_has_all_and_the_next_ones_what_moved() {
    for version in [7, 11, BY_NAME, 13, BY_ID] {
        let broker = broker().await;
        let mut reader = Reader::new(&broker, version, "orders", 3).await;
        let mut writer = Client::connect(&broker);
        writer.produce("orders", 1, batch(&["a"])).await;
        let all = [(0, 0), (1, 0), (2, 0)];
        let first = reader.fetch(&all).await;
        assert_eq!(indexes(&first), [0, 1, 2], "version {version}");
        assert!(reader.session > 0, "a session was asked for");
        assert_eq!(values(&first[1]), [(0, "a".to_owned())]);

        assert!(reader.fetch(&[(1, 1)]).await.is_empty());
        writer.produce("orders", 2, batch(&["b", "c"])).await;
        let moved = reader.fetch(&[]).await;
        assert_eq!(indexes(&moved), [2], "version {version}");
        assert_eq!(values(&moved[0]).len(), 2);
        // Not taken: it comes again.
        assert_eq!(indexes(&reader.fetch(&[]).await), [2]);
        assert!(reader.fetch(&[(2, 2)]).await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn offsets_that_move_without_records_to_read_are_told_once() {
    let broker = broker().await;
    let mut reader = Reader::new(&broker, BY_ID, "orders", 2).await;
    let mut writer = Client::connect(&broker);
    let mut producer = Transactional::init(&mut writer, "job").await;
    producer.produce(&mut writer, 12, "open").await;
    // Partition 0 is read where its transaction began, by a reader of committed records.
    reader.request.isolation_level = 1;
    let first = reader.fetch(&[(1, 0), (0, 0)]).await;
    assert_eq!(indexes(&first), [1, 0]);
    assert_eq!(
        (first[1].last_stable_offset, first[1].high_watermark),
        (0, 1)
    );

    // The high watermark.
    producer.produce(&mut writer, 12, "more").await;
    let moved = reader.fetch(&[]).await;
    assert_eq!(indexes(&moved), [0]);
    assert_eq!(
        (moved[0].last_stable_offset, moved[0].high_watermark),
        (0, 2)
    );
    assert!(values(&moved[0]).is_empty());
    assert!(reader.fetch(&[]).await.is_empty(), "told once");

    // The last stable offset, by the marker; another partition takes all the room there is.
    reader.request.max_bytes = 1;
    writer.produce("orders", 1, batch(&["x"])).await;
    producer.end(&mut writer, true).await;
    let moved = reader.fetch(&[]).await;
    assert_eq!(indexes(&moved), [1, 0]);
    assert_eq!(
        (moved[1].last_stable_offset, moved[1].high_watermark),
        (3, 3)
    );
    assert!(
        moved[1]
            .records
            .as_ref()
            .is_some_and(|records| records.is_empty())
    );

    // And now it is the other one's turn, though partition 1 was not read on.
    let moved = reader.fetch(&[]).await;
    assert_eq!(indexes(&moved), [0]);
    assert_eq!(
        values(&moved[0]).len(),
        1,
        "one batch: there is room for one byte"
    );
    assert_eq!(indexes(&reader.fetch(&[(0, 3)]).await), [1]);

    // The start of the log.
    let request = DeleteRecordsRequest {
        topics: vec![DeleteRecordsTopic {
            name: "orders".to_owned(),
            partitions: vec![DeleteRecordsPartition {
                partition_index: 0,
                offset: 2,
            }],
        }],
        timeout_ms: 1_000,
    };
    assert!(reader.fetch(&[(1, 1)]).await.is_empty());
    writer.ask(2, request).await;
    let moved = reader.fetch(&[]).await;
    assert_eq!((indexes(&moved), moved[0].log_start_offset), (vec![0], 2));
    assert!(reader.fetch(&[]).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_marker_alone_wakes_a_session_that_waits() {
    let broker = broker().await;
    let mut reader = Reader::new(&broker, BY_ID, "orders", 1).await;
    let mut writer = Client::connect(&broker);
    let mut producer = Transactional::init(&mut writer, "job").await;
    producer.produce(&mut writer, 12, "a").await;
    reader.request.isolation_level = 1;
    reader.fetch(&[(0, 0)]).await;
    reader.request.max_wait_ms = 60_000;
    reader.send(&[], &[]).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!reader.client.has_answer());
    producer.end(&mut writer, true).await;
    let answer = reader.receive().await;
    assert_eq!((indexes(&answer), values(&answer[0]).len()), (vec![0], 1));
}

#[tokio::test(start_paused = true)]
async fn a_session_waits_on_all_that_it_has_and_on_nothing_that_was_forgotten() {
    for version in [BY_NAME, BY_ID] {
        let broker = broker().await;
        let mut reader = Reader::new(&broker, version, "orders", 3).await;
        let mut writer = Client::connect(&broker);
        reader.fetch(&[(0, 0), (1, 0), (2, 0)]).await;
        reader.request.max_wait_ms = 60_000;
        reader.send(&[], &[1]).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        writer.produce("orders", 1, batch(&["forgotten"])).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!reader.client.has_answer());
        writer.produce("orders", 2, batch(&["a"])).await;
        assert_eq!(indexes(&reader.receive().await), [2]);
        // It comes again as something new, with all that there is.
        let back = reader.fetch(&[(1, 0), (2, 1)]).await;
        assert_eq!((indexes(&back), values(&back[0]).len()), (vec![1], 1));
        // Nothing left: the session ends, and the answer does not wait for anything.
        reader.send(&[], &[0, 1, 2]).await;
        let answer = reader.client.receive::<FetchRequest>(version).await;
        assert_eq!((answer.session_id, answer.responses.len()), (0, 0));
        let (session, epoch) = (reader.session, reader.epoch + 1);
        let gone = reader.refusal(session, epoch).await;
        assert_eq!(gone, ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_is_told_until_it_is_gone_and_then_the_partition_is() {
    let broker = broker().await;
    let mut reader = Reader::new(&broker, BY_NAME, "orders", 1).await;
    let mut writer = Client::connect(&broker);
    let first = reader.fetch(&[(0, 0), (7, 0)]).await;
    assert_eq!(first[1].error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(indexes(&reader.fetch(&[]).await), [7], "again");

    delete(&mut writer, "orders").await;
    let gone = reader.fetch(&[]).await;
    assert_eq!(indexes(&gone), [0, 7]);
    assert_eq!(gone[0].error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);

    writer.create_topic("orders", 8).await;
    let back = reader.fetch(&[]).await;
    assert_eq!(
        indexes(&back),
        [0, 7],
        "nothing moved, but the errors are gone"
    );
    assert!(back.iter().all(|data| data.error_code.is_ok()));
    assert!(reader.fetch(&[]).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_id_of_a_topic_that_is_made_again_stays_unknown_and_the_new_one_is_read() {
    let broker = broker().await;
    let mut reader = Reader::new(&broker, BY_ID, "orders", 1).await;
    let mut writer = Client::connect(&broker);
    reader.fetch(&[(0, 0)]).await;
    delete(&mut writer, "orders").await;
    let new = writer.create_topic("orders", 1).await;
    writer.produce("orders", 0, batch(&["new"])).await;
    for _ in 0..2 {
        let answer = reader.fetch(&[]).await;
        assert_eq!(answer[0].error_code, ErrorCode::UNKNOWN_TOPIC_ID);
    }
    // As clients do it: the old id goes and the new one comes, in one request.
    let old = std::mem::replace(&mut reader.id, new);
    let mut request = reader.build(&[(0, 0)]);
    request.forgotten_topics_data = vec![ForgottenTopic {
        topic: String::new(),
        topic_id: old,
        partitions: vec![0],
    }];
    reader.client.send(BY_ID, &request).await;
    let answer = reader.receive().await;
    assert_eq!((answer.len(), values(&answer[0]).len()), (1, 1));
    assert!(reader.fetch(&[(0, 1)]).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_id_that_nobody_knows_yet_is_resolved_once_there_is_a_topic() {
    // By name: a partition, and a topic, that come later than the session.
    let broker = broker().await;
    let mut reader = Reader::new(&broker, BY_NAME, "orders", 1).await;
    reader.topic = "later";
    let first = reader.fetch(&[(0, 0)]).await;
    assert_eq!(first[0].error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let mut writer = Client::connect(&broker);
    writer.create_topic("later", 1).await;
    writer.produce("later", 0, batch(&["a"])).await;
    assert_eq!(values(&reader.fetch(&[]).await[0]).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_request_at_a_time_has_a_session() {
    let broker = broker().await;
    let mut reader = Reader::new(&broker, BY_ID, "orders", 1).await;
    let mut other = Reader::new(&broker, BY_ID, "others", 1).await;
    reader.fetch(&[(0, 0)]).await;
    let session = reader.session;
    reader.request.max_wait_ms = 60_000;
    reader.send(&[], &[]).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    for epoch in [1, 2, 3] {
        let refused = other.refusal(session, epoch).await;
        assert_eq!(refused, ErrorCode::INVALID_FETCH_SESSION_EPOCH);
    }
    // Its client begins anew elsewhere: the old session ends, whatever still waits in it.
    other.session = session;
    assert_eq!(indexes(&other.fetch(&[(0, 0)]).await), [0]);
    assert_ne!(other.session, session);
    Client::connect(&broker)
        .produce("orders", 0, batch(&["a"]))
        .await;
    assert_eq!(indexes(&reader.receive().await), [0]);
    let gone = reader.refusal(session, 2).await;
    assert_eq!(gone, ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
    assert!(other.fetch(&[]).await.is_empty(), "its own goes on");
}

#[tokio::test(start_paused = true)]
async fn a_session_outlives_its_connection_and_a_request_that_was_cut_off() {
    let broker = broker().await;
    let mut reader = Reader::new(&broker, BY_ID, "orders", 2).await;
    reader.fetch(&[(0, 0)]).await;
    reader.request.max_wait_ms = 60_000;
    reader.send(&[(1, 0)], &[]).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    // The connection goes while the request waits.
    reader.client = Client::connect(&broker);
    tokio::time::sleep(Duration::from_secs(61)).await;
    let stale = reader.refusal(reader.session, 1).await;
    assert_eq!(stale, ErrorCode::INVALID_FETCH_SESSION_EPOCH, "it was used");
    reader.epoch = 2;
    reader.request.max_wait_ms = 0;
    Client::connect(&broker)
        .produce("orders", 1, batch(&["a"]))
        .await;
    assert_eq!(indexes(&reader.fetch(&[]).await), [1]);
}

#[tokio::test(start_paused = true)]
async fn without_a_free_slot_fetches_are_full_ones_until_somebody_is_idle() {
    let config = BrokerConfig {
        max_incremental_fetch_session_cache_slots: 1,
        ..config()
    };
    let broker = Broker::open(Arc::new(MemoryStorage::new()), config).await;
    let broker = broker.expect("opens");
    let mut first = Reader::new(&broker, BY_ID, "orders", 1).await;
    let mut second = Reader::new(&broker, BY_ID, "others", 1).await;
    first.fetch(&[(0, 0)]).await;
    for _ in 0..2 {
        second.epoch = 0;
        assert_eq!(indexes(&second.fetch(&[(0, 0)]).await), [0]);
        assert_eq!(second.session, 0);
    }
    tokio::time::sleep(Duration::from_secs(121)).await;
    second.epoch = 0;
    second.fetch(&[(0, 0)]).await;
    assert_ne!(second.session, 0);
    let evicted = first.refusal(first.session, 1).await;
    assert_eq!(evicted, ErrorCode::FETCH_SESSION_ID_NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn names_do_not_go_on_in_a_session_of_ids() {
    let broker = broker().await;
    for (begun, then) in [(BY_ID, BY_NAME), (BY_NAME, BY_ID)] {
        let topic = if begun == BY_ID { "orders" } else { "others" };
        let mut reader = Reader::new(&broker, begun, topic, 1).await;
        reader.fetch(&[(0, 0)]).await;
        reader.version = then;
        let mixed = reader.refusal(reader.session, 1).await;
        assert_eq!(mixed, ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR);
        reader.version = begun;
        assert!(reader.fetch(&[]).await.is_empty(), "nothing happened to it");
    }
}

async fn delete(client: &mut Client, topic: &str) {
    let topic = DeleteTopicState {
        name: Some(topic.to_owned()),
        ..Default::default()
    };
    let request = DeleteTopicsRequest {
        topics: vec![topic],
        ..Default::default()
    };
    let answer = client.ask(6, request).await;
    assert_eq!(answer.responses[0].error_code, ErrorCode::NONE);
}
