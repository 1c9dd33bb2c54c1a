//! Topics that are made again, deleted, or not used any more.

use super::*;

/// The topics that each Metadata request named.
fn asked(broker: &ScriptedBroker) -> Vec<Vec<String>> {
    let asked = broker.received(ApiKey::Metadata).into_iter();
    asked.map(|request| request.topics).collect()
}

async fn send(producer: &Producer, topic: &str, value: &str) {
    let sent = producer.send(record(topic, value.to_owned())).await;
    sent.unwrap().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn keys_go_by_the_partitions_of_a_topic_that_was_made_again_with_fewer() {
    let broker = ScriptedBroker::new(&[("orders", 12)]);
    let producer = producer(&broker, small()).await;
    let keyed = |n: u64| ProducerRecord::new("orders").key(n.to_string());
    for n in 0..40 {
        producer.send(keyed(n)).await.unwrap().await.unwrap();
    }
    broker.make_again("orders", 4);
    // The metadata is refreshed when it is old, whether there are records or not.
    tokio::time::sleep(Duration::from_secs(301)).await;
    let started = Instant::now();
    for n in 0..40 {
        let metadata = producer.send(keyed(n)).await.unwrap().await.unwrap();
        let expected = partitioner::partition_of_key(n.to_string().as_bytes(), 4);
        assert_eq!(metadata.partition, expected);
        let sticky = ProducerRecord::new("orders").value("v");
        producer.send(sticky).await.unwrap().await.unwrap();
    }
    assert!(started.elapsed() < Duration::from_secs(5));
    let beyond = ProducerRecord::new("orders").partition(4).value("v");
    let error = producer.send(beyond).await.unwrap_err();
    assert!(
        matches!(error, UsageError::UnknownPartition { partitions: 4, .. }),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_topic_that_is_not_written_to_any_more_is_not_asked_about() {
    let broker = ScriptedBroker::new(&[("live", 1), ("tmp", 1)]);
    let producer = producer(&broker, small()).await;
    send(&producer, "tmp", "0").await;
    for n in 0..20 {
        send(&producer, "live", &n.to_string()).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    assert_eq!(asked(&broker).last().unwrap(), &["live"]);
    let quiet = asked(&broker).len();
    tokio::time::sleep(Duration::from_secs(7_200)).await;
    let all = asked(&broker);
    assert!(all.len() <= quiet + 1, "a producer at rest asks nothing");
    send(&producer, "tmp", "1").await;
    assert_eq!(broker.values("tmp", 0), ["0", "1"]);
    let produced = broker.received(ApiKey::Produce);
    let last = RecordBatch::parse(produced.last().unwrap().batches[0].2.clone()).unwrap();
    assert_eq!(last.base_sequence(), 1, "its sequences go on");
    assert_eq!(asked(&broker).last().unwrap(), &["tmp"]);
}

#[tokio::test(start_paused = true)]
async fn a_topic_with_records_under_way_is_not_forgotten() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let builder = small().delivery_timeout_ms(3_600_000);
    let producer = producer(&broker, builder).await;
    send(&producer, "orders", "0").await;
    broker.always(
        ApiKey::Produce,
        Step::Error(ErrorCode::NOT_LEADER_OR_FOLLOWER),
    );
    let waiting = producer.send(record("orders", "1")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1_800)).await;
    broker.always(ApiKey::Produce, Step::Pass);
    waiting.await.unwrap();
    assert_eq!(broker.values("orders", 0), numbers(2));
}
