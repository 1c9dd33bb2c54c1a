//! A broker in memory and a client of raw requests.
//!
//! Invariants: a client's answers are matched to its requests by order and checked by correlation
//! id.
//! Never: retries.

use crate::{Broker, BrokerConfig, Clock, Placement};
use bytes::Bytes;
use millstream_log::{MemoryStorage, Storage};
use millstream_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use millstream_protocol::messages::fetch::{FetchPartition, FetchTopic, PartitionData};
use millstream_protocol::messages::produce::{
    PartitionProduceData, PartitionProduceResponse, TopicProduceData,
};
use millstream_protocol::messages::*;
use millstream_protocol::{
    Compression, ErrorCode, Frame, ProducerStamp, RecordBatch, RecordBatchBuilder, Request, Uuid,
    decode_response, encode_request,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Wall time at which test brokers start.
pub(crate) const START_MS: i64 = 1_700_000_000_000;

/// Settings of a broker whose time is tokio's and whose randomness is fixed.
pub(crate) fn config() -> BrokerConfig {
    BrokerConfig {
        placement: Placement::Runtime {
            sync_delay: Duration::ZERO,
        },
        clock: Clock::starting_at(START_MS),
        seed: Some(7),
        ..Default::default()
    }
}

/// A broker over this storage.
pub(crate) async fn open(storage: impl Storage + 'static) -> Broker {
    Broker::open(Arc::new(storage), config())
        .await
        .expect("opens")
}

/// A fresh broker in memory.
pub(crate) async fn broker() -> Broker {
    open(MemoryStorage::new()).await
}

/// One connection.
pub(crate) struct Client {
    outgoing: mpsc::Sender<Frame>,
    incoming: mpsc::Receiver<Frame>,
    sent: i32,
    received: i32,
}

impl Client {
    /// Connects through `serve`.
    pub(crate) fn connect(broker: &Broker) -> Self {
        let (outgoing, to_broker) = mpsc::channel(16);
        let (from_broker, incoming) = mpsc::channel(16);
        let broker = broker.clone();
        tokio::spawn(async move {
            broker
                .serve(to_broker, from_broker, "test".to_owned())
                .await
        });
        Self {
            outgoing,
            incoming,
            sent: 0,
            received: 0,
        }
    }

    /// Sends without waiting for the answer.
    pub(crate) async fn send<R: Request>(&mut self, version: i16, request: &R) {
        self.sent += 1;
        let frame = encode_request(version, self.sent, Some("tester"), request).expect("encodes");
        self.outgoing.send(frame).await.expect("connected");
    }

    /// Sends a frame that lies in memory as one piece, as it comes from a socket, and returns it.
    pub(crate) async fn send_in_one_piece<R: Request>(
        &mut self,
        version: i16,
        request: &R,
    ) -> Bytes {
        self.sent += 1;
        let frame = encode_request(version, self.sent, Some("tester"), request).expect("encodes");
        let piece = frame.into_contiguous();
        let frame = Frame::from_bytes(piece.clone());
        self.outgoing.send(frame).await.expect("connected");
        piece
    }

    /// Takes the next answer.
    pub(crate) async fn receive<R: Request>(&mut self, version: i16) -> R::Response {
        let frame = self.incoming.recv().await.expect("answered");
        let (correlation_id, response) = decode_response::<R>(frame, version).expect("decodes");
        self.received += 1;
        assert_eq!(
            correlation_id, self.received,
            "answers come in the order of requests"
        );
        response
    }

    /// Sends and waits.
    pub(crate) async fn ask<R: Request>(&mut self, version: i16, request: R) -> R::Response {
        self.send(version, &request).await;
        self.receive::<R>(version).await
    }

    /// Sends raw bytes as one frame.
    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) {
        self.outgoing
            .send(Frame::from_bytes(Bytes::copy_from_slice(bytes)))
            .await
            .expect("sent");
    }

    /// The next frame, `None` once the broker has closed the connection.
    pub(crate) async fn next_frame(&mut self) -> Option<Frame> {
        self.incoming.recv().await
    }

    /// Whether an answer is there already.
    pub(crate) fn has_answer(&mut self) -> bool {
        !self.incoming.is_empty()
    }

    /// Creates a topic and returns its id.
    pub(crate) async fn create_topic(&mut self, name: &str, partitions: i32) -> Uuid {
        self.create_topic_with(name, partitions, &[]).await
    }

    /// Creates a topic with settings and returns its id.
    pub(crate) async fn create_topic_with(
        &mut self,
        name: &str,
        num_partitions: i32,
        configs: &[(&str, &str)],
    ) -> Uuid {
        let configs = configs.iter().map(|(name, value)| CreatableTopicConfig {
            name: (*name).to_owned(),
            value: Some((*value).to_owned()),
        });
        let topic = CreatableTopic {
            name: name.to_owned(),
            num_partitions,
            replication_factor: -1,
            configs: configs.collect(),
            ..Default::default()
        };
        let request = CreateTopicsRequest {
            topics: vec![topic],
            ..Default::default()
        };
        let response = self.ask(7, request).await;
        assert_eq!(response.topics[0].error_code, ErrorCode::NONE);
        response.topics[0].topic_id
    }

    /// Produces one batch with acks -1 by name.
    pub(crate) async fn produce(
        &mut self,
        topic: &str,
        partition: i32,
        batch: Bytes,
    ) -> PartitionProduceResponse {
        let response = self.ask(9, produce_request(topic, partition, batch)).await;
        response.responses[0].partition_responses[0].clone()
    }

    /// Fetches one partition by name without waiting.
    pub(crate) async fn fetch(
        &mut self,
        topic: &str,
        partition: i32,
        offset: i64,
        isolation_level: i8,
    ) -> PartitionData {
        let request = FetchRequest {
            isolation_level,
            ..fetch_request(topic, partition, offset, 0)
        };
        let response = self.ask(12, request).await;
        assert_eq!(response.error_code, ErrorCode::NONE);
        response.responses[0].partitions[0].clone()
    }
}

/// A Produce request with one batch, acks -1.
pub(crate) fn produce_request(topic: &str, index: i32, batch: Bytes) -> ProduceRequest {
    ProduceRequest {
        acks: -1,
        timeout_ms: 30_000,
        topic_data: vec![TopicProduceData {
            name: topic.to_owned(),
            partition_data: vec![PartitionProduceData {
                index,
                records: Some(batch),
            }],
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// A Fetch request for one partition: any byte is enough.
pub(crate) fn fetch_request(
    topic: &str,
    partition: i32,
    fetch_offset: i64,
    max_wait_ms: i32,
) -> FetchRequest {
    FetchRequest {
        max_wait_ms,
        min_bytes: 1,
        topics: vec![FetchTopic {
            topic: topic.to_owned(),
            partitions: vec![FetchPartition {
                partition,
                fetch_offset,
                partition_max_bytes: 1 << 20,
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    }
}

/// A batch of these values from nobody in particular.
pub(crate) fn batch(values: &[&str]) -> Bytes {
    stamped(values, ProducerStamp::NONE)
}

/// A batch of these values from an idempotent producer.
pub(crate) fn stamped(values: &[&str], stamp: ProducerStamp) -> Bytes {
    let mut builder = RecordBatchBuilder::new(Compression::None);
    for value in values {
        builder.append(START_MS, Some(b"k"), Some(value.as_bytes()), &[]);
    }
    builder.finish(stamp).expect("builds")
}

/// The values in what a fetch returned, with their offsets; control batches are skipped.
pub(crate) fn values(data: &PartitionData) -> Vec<(i64, String)> {
    assert_eq!(data.error_code, ErrorCode::NONE);
    let mut bytes = data.records.clone().unwrap_or_default();
    let mut values = Vec::new();
    while let Some(batch) = RecordBatch::split_from(&mut bytes).expect("whole batches") {
        if batch.is_control() {
            continue;
        }
        for record in batch.records(1 << 20).expect("readable") {
            let record = record.expect("well formed");
            let value = record.value.unwrap_or_default();
            values.push((
                record.offset,
                String::from_utf8(value.to_vec()).expect("UTF-8"),
            ));
        }
    }
    values
}
