//! What is said, and done, about batches that a log may have.
//!
//! Invariants tested: "it was not appended" is said only where that is proved; a batch that a log
//! may have is sent again as the same bytes or not at all.

use millstream_protocol::TopicPartition;

use super::*;
use crate::cluster::{LeaderHint, NodeId};
use crate::transport::BrokerAddress;

const MOVED: ErrorCode = ErrorCode::NOT_LEADER_OR_FOLLOWER;
const UNORDERED: ErrorCode = ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER;

/// The broker appends, and answers something else a moment later.
fn done_but(code: ErrorCode) -> Step {
    Step::DoneBut(Duration::from_secs(3), code)
}

/// One acknowledged record, so that the log knows the producer.
async fn known(broker: &ScriptedBroker, builder: ProducerBuilder) -> Producer {
    let producer = producer(broker, builder).await;
    let first = producer.send(record("orders", "0")).await.unwrap();
    first.await.unwrap();
    producer
}

/// Epoch and first sequence of everything that was sent.
fn stamps(broker: &ScriptedBroker) -> Vec<(i16, i32)> {
    let produced = broker.received(ApiKey::Produce).into_iter();
    let batches = produced.flat_map(|request| request.batches);
    batches
        .map(|(_, _, bytes)| RecordBatch::parse(bytes).unwrap())
        .map(|batch| (batch.producer_epoch(), batch.base_sequence()))
        .collect()
}

// Row 99.
#[tokio::test(start_paused = true)]
async fn what_a_deposed_leader_refuses_may_be_in_the_log() {
    for code in [
        MOVED,
        ErrorCode::KAFKA_STORAGE_ERROR,
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode::REQUEST_TIMED_OUT,
        ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ] {
        let broker = ScriptedBroker::new(&[("orders", 1)]);
        let producer = known(&broker, small().delivery_timeout_ms(31_000)).await;
        broker.script(ApiKey::Produce, &[done_but(code)]);
        broker.always(ApiKey::Produce, Step::Error(ErrorCode::NOT_ENOUGH_REPLICAS));
        let delivery = producer.send(record("orders", "1")).await.unwrap();
        let error = delivery.await.unwrap_err();
        assert!(
            matches!(error, DeliveryError::Timeout { in_doubt: true, .. }),
            "{code}: {error}"
        );
        assert!(!error.to_string().contains("not appended"), "{error}");
        assert_eq!(broker.values("orders", 0), ["0", "1"], "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_does_not_know_what_went_wrong_leaves_doubt() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = known(&broker, small()).await;
    broker.script(
        ApiKey::Produce,
        &[done_but(ErrorCode::UNKNOWN_SERVER_ERROR)],
    );
    let delivery = producer.send(record("orders", "1")).await.unwrap();
    let error = delivery.await.unwrap_err();
    assert!(
        matches!(error, DeliveryError::Rejected { in_doubt: true, .. }),
        "{error}"
    );
    let after = producer.send(record("orders", "2")).await.unwrap();
    after.await.unwrap();
    assert_eq!(broker.values("orders", 0), numbers(3));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_before_the_append_is_no_doubt() {
    for code in [
        ErrorCode::NOT_ENOUGH_REPLICAS,
        ErrorCode::CORRUPT_MESSAGE,
        ErrorCode::COORDINATOR_NOT_AVAILABLE,
    ] {
        let broker = ScriptedBroker::new(&[("orders", 1)]);
        broker.always(ApiKey::Produce, Step::Error(code));
        let producer = producer(&broker, small().delivery_timeout_ms(31_000)).await;
        let delivery = producer.send(record("orders", "0")).await.unwrap();
        let error = delivery.await.unwrap_err();
        assert!(error.to_string().contains("not appended"), "{error}");
    }
}

// Row 9.
#[tokio::test(start_paused = true)]
async fn batches_that_a_deposed_leader_may_have_appended_are_not_numbered_anew() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = known(&broker, small().delivery_timeout_ms(31_000)).await;
    broker.script(ApiKey::Produce, &[done_but(MOVED); 3]);
    broker.always(ApiKey::Produce, Step::Error(ErrorCode::NOT_ENOUGH_REPLICAS));
    let mut deliveries = Vec::new();
    for n in 1..4 {
        let record = record("orders", n.to_string());
        deliveries.push(producer.send(record).await.unwrap());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let oldest = deliveries.remove(0).await.unwrap_err();
    assert!(
        matches!(oldest, DeliveryError::Timeout { in_doubt: true, .. }),
        "{oldest}"
    );
    // The new leader, which has all of them, is well again before the younger ones' time is over.
    broker.always(ApiKey::Produce, Step::Pass);
    for (delivery, offset) in deliveries.into_iter().zip(2..) {
        assert_eq!(delivery.await.unwrap().offset, offset);
    }
    assert_eq!(broker.values("orders", 0), numbers(4));
    assert!(stamps(&broker).iter().all(|(epoch, _)| *epoch == 0));
    let late = producer.send(record("orders", "4")).await.unwrap();
    late.await.unwrap();
    assert_eq!(broker.values("orders", 0), numbers(5));
    assert_eq!(
        stamps(&broker).last(),
        Some(&(1, 0)),
        "a sequence is missing"
    );
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_the_broker_may_have_forgotten_is_not_sent_as_a_new_one() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = known(&broker, small()).await;
    // Appended without an answer; then the broker knows only that this sequence is not the next.
    broker.script(ApiKey::Produce, &[Step::LoseAnswer]);
    broker.partition_errors("orders", 0, &[ErrorCode::NONE, UNORDERED]);
    let delivery = producer.send(record("orders", "1")).await.unwrap();
    let error = delivery.await.unwrap_err();
    assert!(
        matches!(
            error,
            DeliveryError::Rejected {
                code: UNORDERED,
                in_doubt: true,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("may or may not"), "{error}");
    assert_eq!(broker.values("orders", 0), numbers(2));
    let after = producer.send(record("orders", "2")).await.unwrap();
    after.await.unwrap();
    assert_eq!(broker.values("orders", 0), numbers(3));
}

#[tokio::test(start_paused = true)]
async fn behind_a_batch_that_no_log_has_nothing_can_be_in_a_log_and_all_is_numbered_anew() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = known(&broker, small()).await;
    broker.script(
        ApiKey::Produce,
        &[Step::Delay(Duration::from_secs(1)), Step::LoseAnswer],
    );
    broker.partition_errors(
        "orders",
        0,
        &[ErrorCode::INVALID_RECORD, UNORDERED, UNORDERED],
    );
    let mut deliveries = send_each(&producer, 3).await.into_iter();
    deliveries.next().unwrap().await.unwrap_err();
    for delivery in deliveries {
        delivery.await.unwrap();
    }
    assert_eq!(broker.values("orders", 0), ["0", "1", "2"]);
    assert_eq!(stamps(&broker).last(), Some(&(1, 1)));
}

// Row 76.
#[tokio::test(start_paused = true)]
async fn what_is_on_its_way_to_a_deposed_leader_is_decided_before_more_goes_to_the_next_one() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = known(&broker, small()).await;
    broker.script(ApiKey::Produce, &[Step::Mute]);
    let frozen = producer.send(record("orders", "1")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let hint = LeaderHint {
        partition: TopicPartition::new("orders", 0),
        leader: NodeId(2),
        epoch: 1,
    };
    broker.lock().moved_to = Some((2, 1));
    let two = vec![(NodeId(2), BrokerAddress::new("scripted", 9093))];
    assert_eq!(producer.cluster().adopt_leaders(&[hint], two), 1);
    let later = producer.send(record("orders", "2")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(broker.values("orders", 0), numbers(2), "it waits");
    frozen.await.unwrap();
    later.await.unwrap();
    assert_eq!(broker.values("orders", 0), numbers(3));
    assert_eq!(stamps(&broker), [(0, 0), (0, 1), (0, 1), (0, 2)]);
}

#[tokio::test(start_paused = true)]
async fn halves_of_a_batch_that_a_log_may_have_are_not_written_beside_it() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = known(&broker, Producer::builder().linger_ms(50)).await;
    broker.script(ApiKey::Produce, &[done_but(MOVED)]);
    let mut deliveries = Vec::new();
    for n in 1..5 {
        let value = format!("{n:0>30}");
        deliveries.push(producer.send(record("orders", value)).await.unwrap());
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let limit_later = async {
        tokio::time::sleep(Duration::from_millis(2_060)).await;
        broker.lock().max_message_bytes = 150;
    };
    limit_later.await;
    for delivery in deliveries {
        let error = delivery.await.unwrap_err();
        assert!(
            matches!(error, DeliveryError::Rejected { in_doubt: true, .. }),
            "{error}"
        );
    }
    assert_eq!(broker.values("orders", 0).len(), 5, "one copy of each");
}
