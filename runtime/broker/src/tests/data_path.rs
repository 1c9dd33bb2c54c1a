//! Produce and Fetch: what is appended is what is read, when and how far.
//!
//! Invariants: see the names of the tests.
//! Never: looks at the log behind the broker's back.

use super::harness::*;
use crate::{Broker, BrokerConfig, Clock};
use bytes::Bytes;
use millstream_log::MemoryStorage;
use millstream_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use millstream_protocol::messages::offset_for_leader_epoch::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use millstream_protocol::messages::*;
use millstream_protocol::{Compression, ErrorCode, ProducerStamp, RecordBatchBuilder, Uuid};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

fn idempotent(producer_id: i64, base_sequence: i32) -> ProducerStamp {
    ProducerStamp {
        producer_id,
        producer_epoch: 0,
        base_sequence,
        transactional: false,
    }
}

fn pairs(expected: &[(i64, &str)]) -> Vec<(i64, String)> {
    expected
        .iter()
        .map(|(offset, value)| (*offset, (*value).to_owned()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_produced_is_fetched() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 2).await;
    let first = client.produce("orders", 1, batch(&["a", "b"])).await;
    let second = client.produce("orders", 1, batch(&["c"])).await;
    assert_eq!((first.error_code, first.base_offset), (ErrorCode::NONE, 0));
    assert_eq!(
        (second.error_code, second.base_offset),
        (ErrorCode::NONE, 2)
    );

    let read = client.fetch("orders", 1, 0, 0).await;
    assert_eq!(values(&read), pairs(&[(0, "a"), (1, "b"), (2, "c")]));
    assert_eq!(
        (
            read.high_watermark,
            read.last_stable_offset,
            read.log_start_offset
        ),
        (3, 3, 0)
    );
    let tail = client.fetch("orders", 1, 2, 0).await;
    assert_eq!(values(&tail), pairs(&[(2, "c")]));
    assert_eq!(values(&client.fetch("orders", 0, 0, 0).await), pairs(&[]));
}

#[tokio::test(start_paused = true)]
async fn topic_ids_serve_as_names() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let id = client.create_topic("orders", 1).await;
    let mut produce = produce_request("", 0, batch(&["a"]));
    produce.topic_data[0].topic_id = id;
    let answer = client.ask(13, produce.clone()).await;
    assert_eq!(answer.responses[0].topic_id, id);
    assert_eq!(
        answer.responses[0].partition_responses[0].error_code,
        ErrorCode::NONE
    );
    let mut fetch = fetch_request("", 0, 0, 0);
    fetch.topics[0].topic_id = id;
    let answer = client.ask(18, fetch.clone()).await;
    assert_eq!(answer.responses[0].topic_id, id);
    assert_eq!(
        values(&answer.responses[0].partitions[0]),
        pairs(&[(0, "a")])
    );

    let unknown = Uuid([9; 16]);
    produce.topic_data[0].topic_id = unknown;
    let answer = client.ask(13, produce).await;
    let error = answer.responses[0].partition_responses[0].error_code;
    assert_eq!(error, ErrorCode::UNKNOWN_TOPIC_ID);
    fetch.topics[0].topic_id = unknown;
    let answer = client.ask(18, fetch).await;
    assert_eq!(
        answer.responses[0].partitions[0].error_code,
        ErrorCode::UNKNOWN_TOPIC_ID
    );
}

#[tokio::test(start_paused = true)]
async fn p1_a_retried_batch_is_answered_with_its_first_offset() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    for sequence in 0..3 {
        let sent = client
            .produce("orders", 0, stamped(&["v"], idempotent(5, sequence)))
            .await;
        assert_eq!(sent.base_offset, i64::from(sequence));
    }
    let retried = client
        .produce("orders", 0, stamped(&["v"], idempotent(5, 1)))
        .await;
    assert_eq!(
        (retried.error_code, retried.base_offset),
        (ErrorCode::NONE, 1)
    );
    let gap = client
        .produce("orders", 0, stamped(&["v"], idempotent(5, 7)))
        .await;
    assert_eq!(gap.error_code, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(client.fetch("orders", 0, 0, 0).await.high_watermark, 3);
}

#[tokio::test(start_paused = true)]
async fn pipelined_batches_of_one_connection_arrive_in_order() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    for sequence in 0..8 {
        let batch = stamped(&["v"], idempotent(5, sequence));
        client.send(9, &produce_request("orders", 0, batch)).await;
    }
    for sequence in 0..8 {
        let answer = client.receive::<ProduceRequest>(9).await;
        let answer = &answer.responses[0].partition_responses[0];
        assert_eq!(
            (answer.error_code, answer.base_offset),
            (ErrorCode::NONE, sequence)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_fetch_wakes_when_data_comes() {
    let broker = broker().await;
    let (mut reader, mut writer) = (Client::connect(&broker), Client::connect(&broker));
    writer.create_topic("orders", 1).await;
    let started = Instant::now();
    reader
        .send(12, &fetch_request("orders", 0, 0, 60_000))
        .await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!reader.has_answer(), "nothing to read yet");
    writer.produce("orders", 0, batch(&["a"])).await;
    let answer = reader.receive::<FetchRequest>(12).await;
    assert_eq!(
        values(&answer.responses[0].partitions[0]),
        pairs(&[(0, "a")])
    );
    assert_eq!(started.elapsed(), Duration::from_millis(20));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_fetch_does_not_hold_up_its_connection() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    client
        .send(12, &fetch_request("orders", 0, 0, 60_000))
        .await;
    client
        .send(9, &produce_request("orders", 0, batch(&["a"])))
        .await;
    let started = Instant::now();
    let fetched = client.receive::<FetchRequest>(12).await;
    assert_eq!(
        values(&fetched.responses[0].partitions[0]),
        pairs(&[(0, "a")])
    );
    let produced = client.receive::<ProduceRequest>(9).await;
    assert_eq!(
        produced.responses[0].partition_responses[0].error_code,
        ErrorCode::NONE
    );
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_fetch_waits_for_its_least_bytes_or_its_time() {
    let broker = broker().await;
    let (mut reader, mut writer) = (Client::connect(&broker), Client::connect(&broker));
    writer.create_topic("orders", 1).await;
    writer.produce("orders", 0, batch(&["a"])).await;
    let started = Instant::now();
    let request = FetchRequest {
        min_bytes: 100_000,
        ..fetch_request("orders", 0, 0, 500)
    };
    let answer = reader.ask(12, request.clone()).await;
    assert_eq!(
        values(&answer.responses[0].partitions[0]),
        pairs(&[(0, "a")])
    );
    assert_eq!(started.elapsed(), Duration::from_millis(500));

    let started = Instant::now();
    reader.send(12, &request).await;
    let large = "x".repeat(100_000);
    writer.produce("orders", 0, batch(&[&large])).await;
    let answer = reader.receive::<FetchRequest>(12).await;
    assert_eq!(values(&answer.responses[0].partitions[0]).len(), 2);
    assert!(started.elapsed() < Duration::from_millis(500));
}

#[tokio::test(start_paused = true)]
async fn a_small_limit_still_returns_one_batch() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    for value in ["a", "b"] {
        client.produce("orders", 0, batch(&[value])).await;
    }
    let request = FetchRequest {
        max_bytes: 1,
        ..fetch_request("orders", 0, 0, 0)
    };
    let answer = client.ask(12, request).await;
    assert_eq!(
        values(&answer.responses[0].partitions[0]),
        pairs(&[(0, "a")])
    );
}

#[tokio::test(start_paused = true)]
async fn an_offset_outside_the_log_is_an_error_with_the_ends() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    client.produce("orders", 0, batch(&["a"])).await;
    assert_eq!(values(&client.fetch("orders", 0, 1, 0).await), pairs(&[]));
    for offset in [-1, 2] {
        let answer = client.fetch("orders", 0, offset, 0).await;
        assert_eq!(
            answer.error_code,
            ErrorCode::OFFSET_OUT_OF_RANGE,
            "offset {offset}"
        );
        assert_eq!((answer.high_watermark, answer.log_start_offset), (1, 0));
    }
    let unknown = client.fetch("orders", 3, 0, 0).await;
    assert_eq!(unknown.error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
}

#[tokio::test(start_paused = true)]
async fn errors_are_per_partition() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let mut request = produce_request("orders", 0, batch(&["a"]));
    let missing = produce_request("nowhere", 0, batch(&["b"]));
    request.topic_data.extend(missing.topic_data);
    let internal = produce_request("__consumer_offsets", 0, batch(&["b"]));
    request.topic_data.extend(internal.topic_data);
    let answer = client.ask(9, request).await;
    let errors: Vec<_> = answer
        .responses
        .iter()
        .map(|topic| topic.partition_responses[0].error_code)
        .collect();
    assert_eq!(
        errors,
        [
            ErrorCode::NONE,
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode::INVALID_TOPIC_EXCEPTION
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn acks_0_is_not_answered() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let request = ProduceRequest {
        acks: 0,
        ..produce_request("orders", 0, batch(&["a"]))
    };
    client.send(9, &request).await;
    let silent = tokio::time::timeout(Duration::from_secs(1), client.next_frame()).await;
    assert!(silent.is_err(), "no frame comes");
    let mut reader = Client::connect(&broker);
    assert_eq!(
        values(&reader.fetch("orders", 0, 0, 0).await),
        pairs(&[(0, "a")])
    );

    let request = ProduceRequest {
        acks: 0,
        ..produce_request("nowhere", 0, batch(&["a"]))
    };
    client.send(9, &request).await;
    assert!(
        client.next_frame().await.is_none(),
        "an error without an answer closes"
    );
}

#[tokio::test(start_paused = true)]
async fn i6_other_acks_are_refused() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    for acks in [2, -2, 100] {
        let request = ProduceRequest {
            acks,
            ..produce_request("orders", 0, batch(&["a"]))
        };
        let answer = client.ask(9, request).await;
        let error = answer.responses[0].partition_responses[0].error_code;
        assert_eq!(error, ErrorCode::INVALID_REQUIRED_ACKS);
    }
    let one = ProduceRequest {
        acks: 1,
        ..produce_request("orders", 0, batch(&["a"]))
    };
    let answer = client.ask(9, one).await;
    assert_eq!(answer.responses[0].partition_responses[0].base_offset, 0);
}

#[tokio::test(start_paused = true)]
async fn offsets_are_listed_by_time_and_by_end() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    client.produce("orders", 0, batch(&["a", "b", "c"])).await;
    let mut found = Vec::new();
    for timestamp in [-1, -2, START_MS, START_MS + 1, -5] {
        let partition = ListOffsetsPartition {
            timestamp,
            ..Default::default()
        };
        let topic = ListOffsetsTopic {
            name: "orders".to_owned(),
            partitions: vec![partition],
        };
        let request = ListOffsetsRequest {
            replica_id: -1,
            isolation_level: 1,
            topics: vec![topic],
            ..Default::default()
        };
        let answer = client.ask(9, request).await;
        let answer = answer.topics[0].partitions[0].clone();
        assert_eq!(answer.error_code, ErrorCode::NONE);
        found.push((answer.offset, answer.timestamp));
    }
    assert_eq!(found, [(3, -1), (0, -1), (0, START_MS), (-1, -1), (-1, -1)]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_none_is_refused_and_the_log_goes_on() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let mut damaged = batch(&["abc"]).to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    // I4
    let answer = client.produce("orders", 0, Bytes::from(damaged)).await;
    assert_eq!(answer.error_code, ErrorCode::CORRUPT_MESSAGE);
    let control = millstream_protocol::control_batch(
        millstream_protocol::ControlMarker::new(true, 0),
        5,
        0,
        START_MS,
    );
    let answer = client.produce("orders", 0, control).await;
    assert_eq!(answer.error_code, ErrorCode::INVALID_RECORD);
    let answer = client.produce("orders", 0, Bytes::new()).await;
    assert_eq!(answer.error_code, ErrorCode::INVALID_RECORD);
    // I5
    let answer = client
        .produce("orders", 0, batch(&[&"x".repeat(2 << 20)]))
        .await;
    assert_eq!(answer.error_code, ErrorCode::MESSAGE_TOO_LARGE);
    let answer = client.produce("orders", 0, batch(&["fine"])).await;
    assert_eq!(
        (answer.error_code, answer.base_offset),
        (ErrorCode::NONE, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_small_batch_does_not_keep_the_large_frame_in_which_it_came() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("cold", 1).await;
    for small in [batch(&["a"]), batch(&[&"b".repeat(20_000)])] {
        let mut request = produce_request("cold", 0, small);
        let large = Bytes::from(vec![0; 1_000_000]);
        let elsewhere = produce_request("missing", 0, large);
        request.topic_data.extend(elsewhere.topic_data);
        let frame = client.send_in_one_piece(9, &request).await;
        let answer = client.receive::<ProduceRequest>(9).await;
        let appended = &answer.responses[0].partition_responses[0];
        assert_eq!(appended.error_code, ErrorCode::NONE);
        assert!(frame.is_unique(), "nothing refers to it any more");
    }
    assert_eq!(values(&client.fetch("cold", 0, 0, 0).await).len(), 2);
}

/// A leader knows its epoch before it writes in it: ListOffsets names it for an empty partition,
/// so who asks where it ends must not be told of a truncation.
#[tokio::test(start_paused = true)]
async fn the_epoch_of_an_empty_partition_is_known_and_a_later_one_is_not() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("t", 1).await;
    for (leader_epoch, found) in [(0, (0, 0)), (1, (-1, -1)), (-1, (-1, -1))] {
        let partition = OffsetForLeaderPartition {
            leader_epoch,
            ..Default::default()
        };
        let request = OffsetForLeaderEpochRequest {
            topics: vec![OffsetForLeaderTopic {
                topic: "t".to_owned(),
                partitions: vec![partition],
            }],
            ..Default::default()
        };
        let answer = client.ask(4, request).await;
        let end = &answer.topics[0].partitions[0];
        assert_eq!(end.error_code, ErrorCode::NONE);
        assert_eq!((end.leader_epoch, end.end_offset), found, "{leader_epoch}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_the_machine_has_slept_records_of_the_present_are_taken_and_deadlines_stand() {
    const HOUR_MS: i64 = 3_600_000;
    static WALL_MS: AtomicI64 = AtomicI64::new(START_MS);
    let config = BrokerConfig {
        clock: Clock::starting_at(START_MS).with_wall(|| WALL_MS.load(Ordering::Relaxed)),
        ..config()
    };
    let broker = Broker::open(Arc::new(MemoryStorage::new()), config);
    let broker = broker.await.expect("opens");
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let stamped_at = |timestamp_ms| {
        let mut builder = RecordBatchBuilder::new(Compression::None);
        builder.append(timestamp_ms, None, Some(b"now"), &[]);
        builder.finish(ProducerStamp::NONE).expect("builds")
    };
    let future = stamped_at(START_MS + 2 * HOUR_MS);
    let refused = client.produce("orders", 0, future.clone()).await;
    assert_eq!(refused.error_code, ErrorCode::INVALID_TIMESTAMP);
    WALL_MS.store(START_MS + 2 * HOUR_MS, Ordering::Relaxed);
    let taken = client.produce("orders", 0, future).await;
    assert_eq!(taken.error_code, ErrorCode::NONE);
    assert_eq!(broker.node().now_ms(), START_MS, "no deadline has come");
}
