//! A producer of raw requests for the tests of the coordinator, and a read_committed reader.
//!
//! Invariants: sends what it is told to, with the identity it holds; checks nothing.
//! Never: retries.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use millstream_protocol::messages::add_partitions_to_txn::AddPartitionsToTxnTopic;
use millstream_protocol::messages::describe_transactions::TransactionState;
use millstream_protocol::messages::fetch::PartitionData;
use millstream_protocol::messages::produce::PartitionProduceResponse;
use millstream_protocol::messages::*;
use millstream_protocol::{ErrorCode, ProducerStamp, RecordBatch};

use super::model::Identity;
use crate::Broker;
use crate::tests::harness::{Client, produce_request, stamped};

pub(super) const TIMEOUT_MS: i32 = 60_000;

/// One instance of a transactional producer.
pub(super) struct Producer {
    pub(super) client: Client,
    pub(super) transactional_id: &'static str,
    pub(super) identity: Identity,
    sequences: BTreeMap<(String, i32), i32>,
}

impl Producer {
    /// Connects, and asks for nothing yet.
    pub(super) fn new(broker: &Broker, transactional_id: &'static str) -> Producer {
        Producer {
            client: Client::connect(broker),
            transactional_id,
            identity: Identity::NONE,
            sequences: BTreeMap::new(),
        }
    }

    /// Connects and gets an identity, waiting for an older transaction to be aborted.
    pub(super) async fn start(broker: &Broker, transactional_id: &'static str) -> Producer {
        let mut producer = Producer::new(broker, transactional_id);
        let mut error = producer.init(None).await;
        if error == ErrorCode::CONCURRENT_TRANSACTIONS {
            error = producer.init(None).await;
        }
        assert_eq!(error, ErrorCode::NONE);
        producer
    }

    pub(super) async fn init(&mut self, expected: Option<Identity>) -> ErrorCode {
        self.init_with(expected, TIMEOUT_MS).await
    }

    pub(super) async fn init_with(
        &mut self,
        expected: Option<Identity>,
        timeout_ms: i32,
    ) -> ErrorCode {
        let expected = expected.unwrap_or(Identity::NONE);
        let request = InitProducerIdRequest {
            transactional_id: Some(self.transactional_id.to_owned()),
            transaction_timeout_ms: timeout_ms,
            producer_id: expected.id,
            producer_epoch: expected.epoch,
        };
        let answer = self.client.ask(5, request).await;
        if answer.error_code.is_ok() {
            self.become_producer(answer.producer_id, answer.producer_epoch);
        }
        answer.error_code
    }

    pub(super) fn become_producer(&mut self, id: i64, epoch: i16) {
        let identity = Identity { id, epoch };
        if identity != self.identity {
            self.sequences.clear();
        }
        self.identity = identity;
    }

    /// The next batch of this producer, with one value.
    pub(super) fn batch(&mut self, topic: &str, partition: i32, value: &str) -> Bytes {
        let sequence = self
            .sequences
            .entry((topic.to_owned(), partition))
            .or_default();
        let stamp = ProducerStamp {
            producer_id: self.identity.id,
            producer_epoch: self.identity.epoch,
            base_sequence: *sequence,
            transactional: true,
        };
        *sequence += 1;
        stamped(&[value], stamp)
    }

    /// Sends one value as a client of this Produce version; 12 adds the partition by itself.
    pub(super) async fn send_as(
        &mut self,
        version: i16,
        topic: &str,
        partition: i32,
        value: &str,
    ) -> PartitionProduceResponse {
        let batch = self.batch(topic, partition, value);
        let request = ProduceRequest {
            transactional_id: Some(self.transactional_id.to_owned()),
            ..produce_request(topic, partition, batch)
        };
        let answer = self.client.ask(version, request).await;
        answer.responses[0].partition_responses[0].clone()
    }

    pub(super) async fn send(&mut self, topic: &str, partition: i32, value: &str) -> ErrorCode {
        self.send_as(12, topic, partition, value).await.error_code
    }

    /// AddPartitionsToTxn as clients before version 2 send it.
    pub(super) async fn add(&mut self, topic: &str, partition: i32) -> ErrorCode {
        let request = AddPartitionsToTxnRequest {
            v3_and_below_transactional_id: self.transactional_id.to_owned(),
            v3_and_below_producer_id: self.identity.id,
            v3_and_below_producer_epoch: self.identity.epoch,
            v3_and_below_topics: vec![AddPartitionsToTxnTopic {
                name: topic.to_owned(),
                partitions: vec![partition],
            }],
            ..Default::default()
        };
        let answer = self.client.ask(3, request).await;
        let topic = &answer.results_by_topic_v3_and_below[0];
        topic.results_by_partition[0].partition_error_code
    }

    /// Ends the transaction and takes over the identity for the next one.
    pub(super) async fn end(&mut self, committed: bool) -> ErrorCode {
        let answer = self.end_as(5, self.identity, committed).await;
        if answer.error_code.is_ok() {
            self.become_producer(answer.producer_id, answer.producer_epoch);
        }
        answer.error_code
    }

    pub(super) async fn end_as(
        &mut self,
        version: i16,
        identity: Identity,
        committed: bool,
    ) -> EndTxnResponse {
        let request = self.end_request(identity, committed);
        self.client.ask(version, request).await
    }

    pub(super) fn end_request(&self, identity: Identity, committed: bool) -> EndTxnRequest {
        EndTxnRequest {
            transactional_id: self.transactional_id.to_owned(),
            producer_id: identity.id,
            producer_epoch: identity.epoch,
            committed,
        }
    }
}

/// What the coordinator says of an id.
pub(super) async fn describe(broker: &Broker, transactional_id: &str) -> TransactionState {
    let request = DescribeTransactionsRequest {
        transactional_ids: vec![transactional_id.to_owned()],
    };
    let answer = Client::connect(broker).ask(0, request).await;
    answer.transaction_states[0].clone()
}

/// The values that a read_committed reader of the partition sees.
pub(super) async fn committed(broker: &Broker, topic: &str, partition: i32) -> Vec<String> {
    read_committed(&Client::connect(broker).fetch(topic, partition, 0, 1).await)
}

fn read_committed(data: &PartitionData) -> Vec<String> {
    assert_eq!(data.error_code, ErrorCode::NONE);
    let mut aborted = data.aborted_transactions.clone().unwrap_or_default();
    aborted.sort_by_key(|transaction| transaction.first_offset);
    let mut aborted = aborted.into_iter().peekable();
    let mut skipped = BTreeSet::new();
    let mut bytes = data.records.clone().unwrap_or_default();
    let mut values = Vec::new();
    while let Some(batch) = RecordBatch::split_from(&mut bytes).expect("whole batches") {
        while let Some(next) = aborted.next_if(|next| next.first_offset <= batch.last_offset()) {
            skipped.insert(next.producer_id);
        }
        if batch.is_control() {
            let marker = batch.control().expect("a marker").expect("a marker");
            if !marker.is_commit() {
                skipped.remove(&batch.producer_id());
            }
        } else if !(batch.is_transactional() && skipped.contains(&batch.producer_id())) {
            for record in batch.records(1 << 20).expect("readable") {
                let value = record.expect("well formed").value.unwrap_or_default();
                values.push(String::from_utf8(value.to_vec()).expect("UTF-8"));
            }
        }
    }
    values
}
