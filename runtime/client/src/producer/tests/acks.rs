//! What `acks` and `retries` promise, and what they do not.

use super::*;

// Row 62: nobody is waited for, so nothing is sent again, and the offset is not known.
#[tokio::test(start_paused = true)]
async fn with_acks_0_retries_have_no_effect_and_a_loss_is_not_seen() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    broker.script(
        ApiKey::Produce,
        &[Step::Error(ErrorCode::NOT_LEADER_OR_FOLLOWER)],
    );
    let builder = small().acks(Acks::None).retries(1_000);
    let producer = producer(&broker, builder).await;
    for delivery in send_each(&producer, 2).await {
        assert_eq!(delivery.await.unwrap().offset, -1);
    }
    producer.flush().await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(broker.received(ApiKey::Produce).len(), 2, "each once");
    assert_eq!(broker.values("orders", 0), ["1"], "the first one is lost");
}

// Row 62: what the connection has not taken is neither acknowledged nor forgotten.
#[tokio::test(start_paused = true)]
async fn with_acks_0_what_a_slow_broker_has_not_taken_is_waited_for() {
    use futures::FutureExt;

    let broker = ScriptedBroker::new(&[("orders", 1)]).with_capacity(1);
    broker.always(ApiKey::Produce, Step::Delay(Duration::from_secs(1)));
    let producer = producer(&broker, small().acks(Acks::None)).await;
    let mut deliveries = send_each(&producer, 20).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let done = deliveries
        .iter_mut()
        .filter_map(|delivery| delivery.now_or_never());
    assert!(done.count() <= 2, "one is being served, one is queued");
    producer.close(Duration::from_secs(100)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(broker.values("orders", 0), numbers(20));
}

// Row 62: a connection takes what it had taken with it, and no more.
#[tokio::test(start_paused = true)]
async fn with_acks_0_what_a_lost_connection_had_not_taken_goes_over_the_next() {
    let broker = ScriptedBroker::new(&[("orders", 1)]).with_capacity(1);
    let late = Step::Delay(Duration::from_secs(1));
    broker.script(ApiKey::Produce, &[late, Step::Disconnect]);
    let producer = producer(&broker, small().acks(Acks::None)).await;
    drop(send_each(&producer, 20).await);
    producer.close(Duration::from_secs(100)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let there = broker.values("orders", 0);
    assert!(there.len() >= 17, "{there:?}");
    let mut in_order = numbers(20);
    in_order.retain(|value| there.contains(value));
    assert_eq!(there, in_order);
}

// Row 63, the producer's half of it: the leader's word is enough, and what it has acknowledged is
// not sent again. That the record goes with the leader is played here; on brokers that replicate it
// is shown by `acks_1_loses_what_the_leader_alone_had` of tests/compat's suite `replicas`.
#[tokio::test(start_paused = true)]
async fn with_acks_1_an_acknowledged_record_is_lost_with_its_leader() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = producer(&broker, small().acks(Acks::Leader)).await;
    let delivery = producer.send(record("orders", "lost")).await.unwrap();
    assert_eq!(delivery.await.unwrap().offset, 0, "the leader has it");
    // The next leader has an empty log, and is found by a refusal.
    broker.lock().topics.get_mut("orders").unwrap()[0] = crate::scripted::Partition::default();
    broker.script(
        ApiKey::Produce,
        &[Step::Error(ErrorCode::NOT_LEADER_OR_FOLLOWER)],
    );
    let delivery = producer.send(record("orders", "kept")).await.unwrap();
    assert_eq!(delivery.await.unwrap().offset, 0);
    producer.flush().await.unwrap();
    assert_eq!(broker.values("orders", 0), ["kept"]);
}

// Row 49: the application sees an acknowledgement, late; the metadata was asked for anew.
#[tokio::test(start_paused = true)]
async fn a_leader_that_has_moved_is_found_without_the_applications_notice() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = producer(&broker, small()).await;
    let first = producer.send(record("orders", "a")).await.unwrap();
    first.await.unwrap();
    let asked = broker.received(ApiKey::Metadata).len();
    broker.script(
        ApiKey::Produce,
        &[Step::Error(ErrorCode::NOT_LEADER_OR_FOLLOWER)],
    );
    let second = producer.send(record("orders", "b")).await.unwrap();
    assert_eq!(second.await.unwrap().offset, 1);
    assert!(broker.received(ApiKey::Metadata).len() > asked);
    assert_eq!(broker.values("orders", 0), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn retries_end_the_attempts_before_the_time_does() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    broker.always(ApiKey::Produce, Step::Error(ErrorCode::NOT_ENOUGH_REPLICAS));
    let producer = producer(&broker, small().retries(3)).await;
    let delivery = producer.send(record("orders", "a")).await.unwrap();
    let error = delivery.await.unwrap_err();
    let DeliveryError::RetriesExhausted {
        retries, in_doubt, ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!((*retries, *in_doubt), (3, false));
    assert!(error.to_string().contains("NOT_ENOUGH_REPLICAS"), "{error}");
    assert_eq!(broker.received(ApiKey::Produce).len(), 4);

    // The next batch does not suffer from it: it has an epoch of its own.
    broker.always(ApiKey::Produce, Step::Pass);
    let delivery = producer.send(record("orders", "b")).await.unwrap();
    assert_eq!(delivery.await.unwrap().offset, 0);
}

#[tokio::test(start_paused = true)]
async fn a_batch_without_retries_whose_answer_is_lost_is_in_doubt() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    broker.script(ApiKey::Produce, &[Step::LoseAnswer]);
    let producer = producer(&broker, small().retries(0)).await;
    let delivery = producer.send(record("orders", "a")).await.unwrap();
    let error = delivery.await.unwrap_err();
    assert!(
        matches!(
            error,
            DeliveryError::RetriesExhausted { in_doubt: true, .. }
        ),
        "{error}"
    );
    assert_eq!(broker.received(ApiKey::Produce).len(), 1, "at most once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_returns_when_the_callbacks_have_run() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = producer(&broker, Producer::builder().linger_ms(0)).await;
    let called = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    for round in 1..=200 {
        let delivery = producer.send(record("orders", "v")).await.unwrap();
        let counted = Arc::clone(&called);
        delivery.on_resolved(move |_| {
            // Long enough that whoever does not wait for it is there first.
            for _ in 0..2_000 {
                std::thread::yield_now();
            }
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        });
        producer.flush().await.unwrap();
        assert_eq!(called.load(std::sync::atomic::Ordering::SeqCst), round);
    }
}
