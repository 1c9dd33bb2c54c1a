//! The producer against a scripted broker, on a paused clock.

mod acks;
mod doubt;
mod topics;
mod trust;

use millstream_protocol::{ApiKey, ErrorCode, RecordBatch};

use super::*;
use crate::clock::Clock;
use crate::config::ClientConfig;
use crate::scripted::{ScriptedBroker, Step};

fn client() -> ClientConfig {
    ClientConfig {
        clock: Clock::starting_at(1_000_000),
        ..Default::default()
    }
}

async fn producer(broker: &ScriptedBroker, builder: ProducerBuilder) -> Producer {
    builder
        .client(client())
        .connect(&broker.transport())
        .await
        .unwrap()
}

fn record(topic: &str, value: impl Into<bytes::Bytes>) -> ProducerRecord {
    ProducerRecord::new(topic).partition(0).value(value)
}

/// Sends records 0..count of one partition, each in a batch of its own.
async fn send_each(producer: &Producer, count: usize) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    for n in 0..count {
        deliveries.push(
            producer
                .send(record("orders", n.to_string()))
                .await
                .unwrap(),
        );
        producer.handle.shared.lock().seal();
    }
    deliveries
}

fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|n| n.to_string()).collect()
}

/// One record a batch.
fn small() -> ProducerBuilder {
    Producer::builder().batch_size(1)
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_names_the_new_leader_needs_no_metadata() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = producer(&broker, Producer::builder()).await;
    let first = producer.send(record("orders", "0")).await.unwrap();
    first.await.unwrap();
    // From now on nobody answers for the metadata.
    broker.always(ApiKey::Metadata, Step::Mute);
    broker.lock().moved_to = Some((2, 1));
    broker.partition_errors("orders", 0, &[ErrorCode::NOT_LEADER_OR_FOLLOWER]);
    let started = Instant::now();
    let second = producer.send(record("orders", "1")).await.unwrap();
    second.await.unwrap();
    assert!(started.elapsed().as_secs() < 1, "{:?}", started.elapsed());
    assert_eq!(broker.values("orders", 0), ["0", "1"]);
    assert!(broker.lock().ports.contains(&9093));
}

// Rows 7, 79 and 84.
#[tokio::test(start_paused = true)]
async fn a_record_is_acknowledged_with_partition_offset_and_timestamp() {
    let broker = ScriptedBroker::new(&[("orders", 2)]);
    let producer = producer(&broker, Producer::builder()).await;
    let started = Instant::now();
    let first = ProducerRecord::new("orders")
        .partition(1)
        .value("a")
        .timestamp(77);
    let first = producer.send(first).await.unwrap();
    let second = ProducerRecord::new("orders")
        .partition(1)
        .value("b")
        .header("h", None);
    let second = producer.send(second).await.unwrap();
    let first = first.await.unwrap();
    assert_eq!((first.partition, first.offset, first.timestamp), (1, 0, 77));
    assert_eq!(second.await.unwrap().offset, 1);
    assert!(started.elapsed() >= Duration::from_millis(5), "linger.ms");
    assert!(started.elapsed() < Duration::from_millis(20));
    assert_eq!(broker.received(ApiKey::InitProducerId).len(), 1);
    let produced = broker.received(ApiKey::Produce);
    assert_eq!(produced.len(), 1, "both in one batch");
    let batch = RecordBatch::parse(produced[0].batches[0].2.clone()).unwrap();
    assert_eq!(
        (
            batch.producer_id(),
            batch.producer_epoch(),
            batch.base_sequence()
        ),
        (1000, 0, 0)
    );
}

// Row 76, 60.
#[tokio::test(start_paused = true)]
async fn order_holds_when_a_head_batch_fails_with_five_in_flight() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    broker.always(ApiKey::Produce, Step::Delay(Duration::from_millis(10)));
    let retriable = ErrorCode::NOT_LEADER_OR_FOLLOWER;
    broker.partition_errors("orders", 0, &[ErrorCode::NONE, retriable]);
    let producer = producer(&broker, small()).await;
    let deliveries = send_each(&producer, 12).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(broker.most_in_flight(), 1, "the first one goes alone");
    for (n, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap().offset, i64::try_from(n).unwrap());
    }
    assert_eq!(broker.values("orders", 0), numbers(12));
    assert_eq!(broker.most_in_flight(), 5, "never more, and not one by one");
}

#[tokio::test(start_paused = true)]
async fn p8_a_lost_answer_is_asked_for_with_the_same_bytes_and_gives_one_copy() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    broker.script(ApiKey::Produce, &[Step::Pass, Step::LoseAnswer]);
    let producer = producer(&broker, small()).await;
    let deliveries = send_each(&producer, 6).await;
    for (n, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap().offset, i64::try_from(n).unwrap());
    }
    assert_eq!(broker.values("orders", 0), numbers(6));
}

// Row 99: these are handled inside, the caller sees an acknowledgement.
#[tokio::test(start_paused = true)]
async fn b53_every_repetition_of_a_batch_has_the_same_bytes() {
    for compression in [
        millstream_protocol::Compression::None,
        millstream_protocol::Compression::Lz4,
    ] {
        let broker = ScriptedBroker::new(&[("orders", 1)]);
        let steps = [
            Step::LoseAnswer,
            Step::Disconnect,
            Step::Error(ErrorCode::NOT_ENOUGH_REPLICAS),
            Step::Mute,
            Step::Error(ErrorCode::NOT_LEADER_OR_FOLLOWER),
            Step::Error(ErrorCode::LEADER_NOT_AVAILABLE),
            Step::Error(ErrorCode::NETWORK_EXCEPTION),
        ];
        broker.script(ApiKey::Produce, &steps);
        let producer = producer(&broker, small().compression(compression)).await;
        for delivery in send_each(&producer, 5).await {
            delivery.await.unwrap();
        }
        let mut seen = std::collections::BTreeMap::new();
        for request in broker.received(ApiKey::Produce) {
            for (_, _, bytes) in request.batches {
                let batch = RecordBatch::parse(bytes.clone()).unwrap();
                let first = seen
                    .entry(batch.base_sequence())
                    .or_insert_with(|| bytes.clone());
                assert_eq!(*first, bytes);
            }
        }
        assert_eq!(seen.len(), 5);
        assert_eq!(broker.values("orders", 0), numbers(5));
    }
}

#[tokio::test(start_paused = true)]
async fn the_delivery_timeout_bounds_everything_and_says_what_is_in_doubt() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    broker.always(ApiKey::Produce, Step::Error(ErrorCode::NOT_ENOUGH_REPLICAS));
    let producer = producer(&broker, Producer::builder().delivery_timeout_ms(40_000)).await;
    let started = Instant::now();
    let error = producer
        .send(record("orders", "a"))
        .await
        .unwrap()
        .await
        .unwrap_err();
    assert_eq!(started.elapsed(), Duration::from_secs(40));
    let DeliveryError::Timeout {
        attempts, in_doubt, ..
    } = &error
    else {
        panic!("{error}")
    };
    assert!(*attempts > 5 && !in_doubt);
    assert!(error.to_string().contains("NOT_ENOUGH_REPLICAS"), "{error}");

    broker.always(ApiKey::Produce, Step::Mute);
    let started = Instant::now();
    let error = producer
        .send(record("orders", "b"))
        .await
        .unwrap()
        .await
        .unwrap_err();
    assert_eq!(
        started.elapsed(),
        Duration::from_secs(40),
        "no retry passes the budget"
    );
    assert!(
        matches!(error, DeliveryError::Timeout { in_doubt: true, .. }),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn b54_records_after_a_timeout_in_doubt_are_not_taken_for_the_old_ones() {
    // Never answered until the budget is used up: appended, then not appended.
    for (step, expected, last_stamp) in [
        (Step::Mute, vec!["a", "b", "c"], (0, 2)),
        (Step::Swallow, vec!["a", "c"], (1, 0)),
    ] {
        let broker = ScriptedBroker::new(&[("orders", 1)]);
        broker.script(ApiKey::Produce, &[Step::Pass, step, step]);
        let producer = producer(&broker, small().delivery_timeout_ms(31_000)).await;
        producer
            .send(record("orders", "a"))
            .await
            .unwrap()
            .await
            .unwrap();
        let error = producer
            .send(record("orders", "b"))
            .await
            .unwrap()
            .await
            .unwrap_err();
        assert!(
            matches!(error, DeliveryError::Timeout { in_doubt: true, .. }),
            "{error}"
        );
        let late = producer
            .send(record("orders", "c"))
            .await
            .unwrap()
            .await
            .unwrap();
        assert_eq!(usize::try_from(late.offset).unwrap(), expected.len() - 1);
        assert_eq!(broker.values("orders", 0), expected);
        let produced = broker.received(ApiKey::Produce);
        let last = RecordBatch::parse(produced.last().unwrap().batches[0].2.clone()).unwrap();
        assert_eq!((last.producer_epoch(), last.base_sequence()), last_stamp);
    }
}

#[tokio::test(start_paused = true)]
async fn b39_a_batch_rejected_in_the_middle_costs_no_order_and_no_duplicate() {
    let broker = ScriptedBroker::new(&[("orders", 2)]);
    broker.always(ApiKey::Produce, Step::Delay(Duration::from_millis(10)));
    let rejected = ErrorCode::INVALID_RECORD;
    broker.partition_errors("orders", 0, &[ErrorCode::NONE, ErrorCode::NONE, rejected]);
    let producer = producer(&broker, small()).await;
    let other = producer
        .send(ProducerRecord::new("orders").partition(1).value("x"))
        .await
        .unwrap();
    let mut results = Vec::new();
    for delivery in send_each(&producer, 8).await {
        results.push(delivery.await);
    }
    other.await.unwrap();
    assert!(matches!(&results[2], Err(DeliveryError::Rejected { code, .. }) if *code == rejected));
    assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1);
    assert_eq!(
        broker.values("orders", 0),
        ["0", "1", "3", "4", "5", "6", "7"]
    );
    producer
        .send(ProducerRecord::new("orders").partition(1).value("y"))
        .await
        .unwrap()
        .await
        .unwrap();
    assert_eq!(
        broker.values("orders", 1),
        ["x", "y"],
        "the other partition goes on"
    );
    assert_eq!(
        broker.received(ApiKey::InitProducerId).len(),
        1,
        "the epoch is bumped locally"
    );
}

#[tokio::test(start_paused = true)]
async fn a_log_that_lost_its_end_is_written_on_with_a_new_epoch() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = producer(&broker, small()).await;
    for delivery in send_each(&producer, 3).await {
        delivery.await.unwrap();
    }
    broker.partition_errors("orders", 0, &[ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER]);
    for delivery in send_each(&producer, 4).await {
        delivery.await.unwrap();
    }
    assert_eq!(
        broker.values("orders", 0),
        ["0", "1", "2", "0", "1", "2", "3"]
    );
    let produced = broker.received(ApiKey::Produce);
    let last = RecordBatch::parse(produced.last().unwrap().batches[0].2.clone()).unwrap();
    assert_eq!((last.producer_epoch(), last.base_sequence()), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_too_large_is_split_and_a_record_that_is_too_large_is_rejected() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    broker.lock().max_message_bytes = 400;
    let producer = producer(&broker, Producer::builder().linger_ms(50)).await;
    let mut deliveries = Vec::new();
    for n in 0..20 {
        let value = format!("{n:0>30}");
        deliveries.push(producer.send(record("orders", value)).await.unwrap());
    }
    let huge = producer
        .send(record("orders", vec![b'h'; 1000]))
        .await
        .unwrap();
    let after = producer.send(record("orders", "after")).await.unwrap();
    for (n, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap().offset, i64::try_from(n).unwrap());
    }
    let error = huge.await.unwrap_err();
    assert!(error.to_string().contains("MESSAGE_TOO_LARGE"), "{error}");
    assert_eq!(after.await.unwrap().offset, 20);
    let mut expected: Vec<_> = (0..20).map(|n| format!("{n:0>30}")).collect();
    expected.push("after".into());
    assert_eq!(broker.values("orders", 0), expected);
}

// Row 73.
#[tokio::test(start_paused = true)]
async fn a_full_buffer_makes_send_wait_and_fails_the_delivery_after_max_block() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    broker.always(ApiKey::Produce, Step::Swallow);
    let builder = Producer::builder()
        .batch_size(1000)
        .buffer_memory(2000)
        .max_block_ms(700);
    let producer = producer(&broker, builder).await;
    let first = producer
        .send(record("orders", vec![b'x'; 900]))
        .await
        .unwrap();
    drop(first);
    drop(
        producer
            .send(record("orders", vec![b'x'; 900]))
            .await
            .unwrap(),
    );
    let started = Instant::now();
    let third = producer
        .send(record("orders", vec![b'x'; 900]))
        .await
        .unwrap();
    assert_eq!(started.elapsed(), Duration::from_millis(700));
    let error = third.await.unwrap_err();
    assert!(
        matches!(error, DeliveryError::BufferExhausted { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("max.block.ms=700"), "{error}");
    assert_eq!(producer.buffered_bytes(), 2000);
}

#[tokio::test(start_paused = true)]
async fn a_send_that_waits_for_space_goes_on_when_there_is_some_and_leaves_nothing_if_dropped() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    broker.always(ApiKey::Produce, Step::Delay(Duration::from_millis(100)));
    let builder = Producer::builder()
        .batch_size(1000)
        .buffer_memory(2000)
        .linger_ms(10_000);
    let producer = producer(&broker, builder).await;
    let value = |name: u8| vec![name; 900];
    drop(producer.send(record("orders", value(b'a'))).await.unwrap());
    drop(producer.send(record("orders", value(b'b'))).await.unwrap());
    let cancelled = producer.send(record("orders", value(b'c')));
    let waited = tokio::time::timeout(Duration::from_millis(1), cancelled).await;
    assert!(waited.is_err(), "the buffer is full");
    producer
        .send(record("orders", value(b'd')))
        .await
        .unwrap()
        .await
        .unwrap();
    let firsts: Vec<_> = broker
        .values("orders", 0)
        .iter()
        .map(|v| v[..1].to_owned())
        .collect();
    assert_eq!(firsts, ["a", "b", "d"]);
}

// Row 74.
#[tokio::test(start_paused = true)]
async fn the_first_metadata_is_waited_for_at_most_max_block() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    broker.script(
        ApiKey::Metadata,
        &[Step::Error(ErrorCode::LEADER_NOT_AVAILABLE); 4],
    );
    let producer = producer(&broker, Producer::builder().max_block_ms(5_000)).await;
    producer
        .send(record("orders", "a"))
        .await
        .unwrap()
        .await
        .unwrap();
    let started = Instant::now();
    let error = producer
        .send(record("nowhere", "a"))
        .await
        .unwrap()
        .await
        .unwrap_err();
    assert!(started.elapsed() <= Duration::from_secs(5));
    assert!(error.to_string().contains("nowhere"), "{error}");
    let error = producer
        .send(ProducerRecord::new("orders").partition(9))
        .await
        .unwrap_err();
    assert!(
        matches!(error, UsageError::UnknownPartition { partitions: 1, .. }),
        "{error}"
    );
}

// Row 82.
#[tokio::test(start_paused = true)]
async fn flush_waits_for_records_before_it_and_not_for_later_ones() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    broker.always(ApiKey::Produce, Step::Delay(Duration::from_millis(50)));
    let producer = producer(&broker, Producer::builder().linger_ms(60_000)).await;
    producer.prepare(&"orders".into()).await.unwrap();
    let before = producer.send(record("orders", "before")).await.unwrap();
    let flush = producer.flush();
    let later = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        [producer.send(record("orders", "later")).await.unwrap()]
    };
    let started = Instant::now();
    let (flushed, [later]) = tokio::join!(flush, later);
    flushed.unwrap();
    assert!(started.elapsed() < Duration::from_millis(200));
    before.await.unwrap();
    assert_eq!(broker.values("orders", 0), ["before"]);
    producer.flush().await.unwrap();
    later.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn errors_of_enqueued_records_come_out_of_flush_once() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = producer(&broker, Producer::builder()).await;
    let topic: Arc<str> = "orders".into();
    let enqueue = || producer.enqueue(&topic, None, Some(b"k"), Some(b"v"), &[], 1);
    let blocked = enqueue().unwrap_err();
    assert!(matches!(blocked, EnqueueError::UnknownTopic { .. }));
    producer.unblock(&blocked).await.unwrap();
    assert_eq!(enqueue().unwrap().partition, 0);
    producer.flush().await.unwrap();
    broker.partition_errors("orders", 0, &[ErrorCode::INVALID_RECORD]);
    enqueue().unwrap();
    let error = producer.flush().await.unwrap_err();
    assert!(matches!(error, DeliveryError::Rejected { .. }), "{error}");
    enqueue().unwrap();
    producer.flush().await.unwrap();
    assert_eq!(broker.values("orders", 0), ["v", "v"]);
}

// Row 83.
#[tokio::test(start_paused = true)]
async fn close_sends_what_it_has_and_is_bounded_when_no_broker_answers() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let lingering = || Producer::builder().linger_ms(60_000);
    let healthy = producer(&broker, lingering()).await;
    let sent = healthy.send(record("orders", "a")).await.unwrap();
    healthy.close(Duration::from_secs(5)).await;
    sent.await.unwrap();
    let error = healthy.send(record("orders", "b")).await.unwrap_err();
    assert!(matches!(error, UsageError::Closed), "{error}");

    let silent = producer(&broker, lingering()).await;
    broker.always(ApiKey::Produce, Step::Swallow);
    let unsent = silent.send(record("orders", "c")).await.unwrap();
    let started = Instant::now();
    silent.close(Duration::from_secs(3)).await;
    assert_eq!(started.elapsed(), Duration::from_secs(3));
    let error = unsent.await.unwrap_err();
    assert!(
        matches!(error, DeliveryError::Closed { in_doubt: true, .. }),
        "{error}"
    );

    let at_once = producer(&broker, lingering()).await;
    let dropped = at_once.send(record("orders", "d")).await.unwrap();
    let started = Instant::now();
    at_once.close(Duration::ZERO).await;
    assert_eq!(started.elapsed(), Duration::ZERO);
    let error = dropped.await.unwrap_err();
    assert!(
        matches!(
            error,
            DeliveryError::Closed {
                in_doubt: false,
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_accepted_is_sent_after_the_last_handle_is_gone() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = producer(&broker, Producer::builder().linger_ms(60_000)).await;
    let delivery = producer.send(record("orders", "a")).await.unwrap();
    drop(producer);
    delivery.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn b38_no_record_reaches_another_topic_while_batches_expire_and_connections_break() {
    let names = ["a", "b", "c"];
    let broker = ScriptedBroker::new(&names.map(|name| (name, 2)));
    let faults = [
        Step::Pass,
        Step::Disconnect,
        Step::LoseAnswer,
        Step::Mute,
        Step::Pass,
        Step::Error(ErrorCode::NOT_LEADER_OR_FOLLOWER),
    ];
    for _ in 0..20 {
        broker.script(ApiKey::Produce, &faults);
    }
    let mut settings = client();
    settings.request_timeout = Duration::from_millis(200);
    let producer = Producer::builder()
        .batch_size(200)
        .buffer_memory(4000)
        .delivery_timeout_ms(400)
        .client(settings)
        .connect(&broker.transport())
        .await
        .unwrap();
    let (mut failed, mut acknowledged) = (0, Vec::new());
    let mut waiting = Vec::new();
    for n in 0..300 {
        let topic = names[n % 3];
        let value = format!("{topic}-{n}");
        let record = ProducerRecord::new(topic)
            .key(value.clone())
            .value(value.clone());
        waiting.push((value, producer.send(record).await.unwrap()));
    }
    for (value, delivery) in waiting {
        match delivery.await {
            Ok(metadata) => acknowledged.push((value, metadata)),
            Err(_) => failed += 1,
        }
    }
    assert!(failed > 0 && acknowledged.len() > 50, "{failed} failed");
    for name in names {
        for partition in 0..2 {
            let values = broker.values(name, partition);
            assert!(
                values.iter().all(|value| value.starts_with(name)),
                "{name}: {values:?}"
            );
            let unique: std::collections::BTreeSet<_> = values.iter().collect();
            assert_eq!(unique.len(), values.len(), "duplicates in {name}");
        }
    }
    for (value, metadata) in acknowledged {
        let partition = usize::try_from(metadata.partition).unwrap();
        let offset = usize::try_from(metadata.offset).unwrap();
        assert_eq!(broker.values(&metadata.topic, partition)[offset], value);
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_broker_is_ridden_through() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = producer(&broker, small()).await;
    producer
        .send(record("orders", "0"))
        .await
        .unwrap()
        .await
        .unwrap();
    broker.lock().refuse_connections = true;
    producer.cluster().disconnect();
    let deliveries = send_each(&producer, 3).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    broker.lock().refuse_connections = false;
    for delivery in deliveries {
        delivery.await.unwrap();
    }
    assert_eq!(broker.values("orders", 0), ["0", "0", "1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn callbacks_run_in_the_order_of_the_records() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = producer(&broker, Producer::builder()).await;
    let (sender, receiver) = std::sync::mpsc::channel();
    for n in 0..10 {
        let sender = sender.clone();
        let delivery = producer.send(record("orders", "v")).await.unwrap();
        delivery.on_resolved(move |result| sender.send((n, result.unwrap().offset)).unwrap());
    }
    producer.flush().await.unwrap();
    assert_eq!(
        receiver.try_iter().collect::<Vec<_>>(),
        (0..10).map(|n| (n, n)).collect::<Vec<_>>()
    );
}

#[tokio::test(start_paused = true)]
async fn without_acknowledgements_a_record_is_done_when_it_is_sent() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = producer(&broker, Producer::builder().acks(Acks::None)).await;
    let metadata = producer
        .send(record("orders", "a"))
        .await
        .unwrap()
        .await
        .unwrap();
    assert_eq!(metadata.offset, -1);
    producer.flush().await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(broker.values("orders", 0), ["a"]);
    assert!(
        broker.received(ApiKey::InitProducerId).is_empty(),
        "no idempotence without acks"
    );
}

// Row 66.
#[test]
fn one_producer_is_shared_by_all_tasks() {
    fn shared<T: Send + Sync + Clone>() {}
    shared::<Producer>();
}
