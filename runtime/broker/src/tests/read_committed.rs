//! Transactions as readers see them: what is bound, what is listed as aborted, what Produce
//! refuses.
//!
//! Invariants: see the names of the tests.
//! Never: tests the coordinator's states; those tests are its own.

use super::harness::*;
use bytes::Bytes;
use millstream_protocol::messages::add_partitions_to_txn::AddPartitionsToTxnTopic;
use millstream_protocol::messages::fetch::PartitionData;
use millstream_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use millstream_protocol::messages::*;
use millstream_protocol::{ErrorCode, ProducerStamp, RecordBatch};
use std::collections::BTreeSet;
use std::time::Duration;

/// A transactional producer by hand.
pub(super) struct Transactional {
    id: &'static str,
    producer_id: i64,
    epoch: i16,
    sequence: i32,
}

impl Transactional {
    pub(super) async fn init(client: &mut Client, id: &'static str) -> Self {
        let request = InitProducerIdRequest {
            transactional_id: Some(id.to_owned()),
            transaction_timeout_ms: 60_000,
            ..Default::default()
        };
        let answer = client.ask(5, request).await;
        assert_eq!(answer.error_code, ErrorCode::NONE);
        Self {
            id,
            producer_id: answer.producer_id,
            epoch: answer.producer_epoch,
            sequence: 0,
        }
    }

    fn batch(&self, value: &str) -> Bytes {
        let stamp = ProducerStamp {
            producer_id: self.producer_id,
            producer_epoch: self.epoch,
            base_sequence: self.sequence,
            transactional: true,
        };
        stamped(&[value], stamp)
    }

    pub(super) async fn produce(
        &mut self,
        client: &mut Client,
        version: i16,
        value: &str,
    ) -> ErrorCode {
        let request = ProduceRequest {
            transactional_id: Some(self.id.to_owned()),
            ..produce_request("orders", 0, self.batch(value))
        };
        let answer = client.ask(version, request).await;
        let error = answer.responses[0].partition_responses[0].error_code;
        self.sequence += i32::from(error.is_ok());
        error
    }

    pub(super) async fn end(&mut self, client: &mut Client, committed: bool) {
        let request = EndTxnRequest {
            transactional_id: self.id.to_owned(),
            producer_id: self.producer_id,
            producer_epoch: self.epoch,
            committed,
        };
        let answer = client.ask(5, request).await;
        assert_eq!(answer.error_code, ErrorCode::NONE);
        (self.producer_id, self.epoch) = (answer.producer_id, answer.producer_epoch);
        self.sequence = 0;
    }
}

/// What an application sees of a fetch: aborted records are skipped as a client skips them.
fn committed(data: &PartitionData) -> Vec<String> {
    let mut aborted = data.aborted_transactions.clone().unwrap_or_default();
    aborted.sort_by_key(|transaction| transaction.first_offset);
    let mut skipped = BTreeSet::new();
    let mut bytes = data.records.clone().unwrap_or_default();
    let mut seen = Vec::new();
    while let Some(batch) = RecordBatch::split_from(&mut bytes).expect("whole batches") {
        aborted.retain(|transaction| {
            let began = transaction.first_offset <= batch.last_offset();
            if began {
                skipped.insert(transaction.producer_id);
            }
            !began
        });
        if batch.is_control() {
            skipped.remove(&batch.producer_id());
        } else if !(batch.is_transactional() && skipped.contains(&batch.producer_id())) {
            for record in batch.records(1 << 20).expect("readable") {
                let value = record.expect("well formed").value.unwrap_or_default();
                seen.push(String::from_utf8(value.to_vec()).expect("UTF-8"));
            }
        }
    }
    seen
}

async fn latest(client: &mut Client, isolation_level: i8) -> i64 {
    let partition = ListOffsetsPartition {
        timestamp: -1,
        ..Default::default()
    };
    let request = ListOffsetsRequest {
        isolation_level,
        topics: vec![ListOffsetsTopic {
            name: "orders".to_owned(),
            partitions: vec![partition],
        }],
        ..Default::default()
    };
    client.ask(9, request).await.topics[0].partitions[0].offset
}

#[tokio::test(start_paused = true)]
async fn committed_readers_stop_before_open_transactions() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let mut producer = Transactional::init(&mut client, "job").await;
    client.produce("orders", 0, batch(&["plain"])).await;
    assert_eq!(
        producer.produce(&mut client, 12, "open").await,
        ErrorCode::NONE
    );
    client.produce("orders", 0, batch(&["behind"])).await;

    let stable = client.fetch("orders", 0, 0, 1).await;
    assert_eq!(committed(&stable), ["plain"]);
    assert_eq!((stable.last_stable_offset, stable.high_watermark), (1, 3));
    assert_eq!(values(&client.fetch("orders", 0, 0, 0).await).len(), 3);
    assert_eq!(
        (latest(&mut client, 1).await, latest(&mut client, 0).await),
        (1, 3)
    );

    producer.end(&mut client, true).await;
    let stable = client.fetch("orders", 0, 0, 1).await;
    assert_eq!(
        committed(&stable),
        ["plain", "open", "behind"],
        "visible once EndTxn is answered"
    );
    assert_eq!(
        (latest(&mut client, 1).await, latest(&mut client, 0).await),
        (4, 4)
    );
}

#[tokio::test(start_paused = true)]
async fn aborted_records_are_listed_for_committed_readers_only() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let mut producer = Transactional::init(&mut client, "job").await;
    for (value, commit) in [("a", true), ("b", false), ("c", true), ("d", false)] {
        assert_eq!(
            producer.produce(&mut client, 12, value).await,
            ErrorCode::NONE
        );
        producer.end(&mut client, commit).await;
    }
    let stable = client.fetch("orders", 0, 0, 1).await;
    assert_eq!(committed(&stable), ["a", "c"]);
    assert_eq!(
        stable.aborted_transactions.map(|aborted| aborted.len()),
        Some(2)
    );
    let dirty = client.fetch("orders", 0, 0, 0).await;
    assert_eq!(dirty.aborted_transactions, None);
    assert_eq!(values(&dirty).len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_committed_reader_that_waits_wakes_with_the_commit() {
    let broker = broker().await;
    let (mut reader, mut client) = (Client::connect(&broker), Client::connect(&broker));
    client.create_topic("orders", 1).await;
    let mut producer = Transactional::init(&mut client, "job").await;
    producer.produce(&mut client, 12, "a").await;
    let waiting = FetchRequest {
        isolation_level: 1,
        ..fetch_request("orders", 0, 0, 60_000)
    };
    reader.send(12, &waiting).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!reader.has_answer());
    producer.end(&mut client, true).await;
    let answer = reader.receive::<FetchRequest>(12).await;
    assert_eq!(committed(&answer.responses[0].partitions[0]), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn an_older_client_must_add_its_partition_first() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let mut producer = Transactional::init(&mut client, "job").await;
    let errors = [
        producer.produce(&mut client, 9, "a").await,
        producer.produce(&mut client, 11, "a").await,
    ];
    assert_eq!(
        errors,
        [
            ErrorCode::INVALID_TXN_STATE,
            ErrorCode::TRANSACTION_ABORTABLE
        ]
    );
    assert_eq!(
        client.fetch("orders", 0, 0, 0).await.high_watermark,
        0,
        "nothing was appended"
    );
    let request = AddPartitionsToTxnRequest {
        v3_and_below_transactional_id: "job".to_owned(),
        v3_and_below_producer_id: producer.producer_id,
        v3_and_below_producer_epoch: producer.epoch,
        v3_and_below_topics: vec![AddPartitionsToTxnTopic {
            name: "orders".to_owned(),
            partitions: vec![0],
        }],
        ..Default::default()
    };
    client.ask(3, request).await;
    assert_eq!(producer.produce(&mut client, 9, "a").await, ErrorCode::NONE);
}

#[tokio::test(start_paused = true)]
async fn transactional_batches_need_their_owner() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let mut first = Transactional::init(&mut client, "job").await;
    let mut second = Transactional::init(&mut client, "job").await;
    // F1, T6: the fenced producer's data is refused, on Produce with 47.
    let fenced = first.produce(&mut client, 12, "zombie").await;
    assert_eq!(fenced, ErrorCode::INVALID_PRODUCER_EPOCH);
    let anonymous = client.produce("orders", 0, second.batch("anonymous")).await;
    assert_eq!(
        anonymous.error_code,
        ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    );
    second.id = "somebody-else";
    let stranger = second.produce(&mut client, 12, "stranger").await;
    assert_eq!(stranger, ErrorCode::INVALID_PRODUCER_ID_MAPPING);
    second.id = "job";
    assert_eq!(
        second.produce(&mut client, 12, "owner").await,
        ErrorCode::NONE
    );
    second.end(&mut client, true).await;
    assert_eq!(committed(&client.fetch("orders", 0, 0, 1).await), ["owner"]);
}
