//! Transactions as clients see them, by the ids of the fault catalogue: T, F and B over requests.
//!
//! Invariants: see the names of the tests.
//! Never: looks at the coordinator's memory where a request can ask for it.

use std::sync::Arc;
use std::time::Duration;

use millstream_log::storage::{Fault, OperationKind};
use millstream_log::{Durability, FaultyStorage, MemoryStorage};
use millstream_protocol::messages::describe_producers::{ProducerState, TopicRequest};
use millstream_protocol::messages::write_txn_markers::{WritableTxnMarker, WritableTxnMarkerTopic};
use millstream_protocol::messages::*;
use millstream_protocol::{ErrorCode, ProducerStamp};
use tokio::time::{Instant, sleep};

use super::model::{Identity, LAST_CLIENT_EPOCH};
use super::test_producer::{Producer, TIMEOUT_MS, committed, describe};
use crate::tests::harness::{Client, broker, config, produce_request, stamped};
use crate::{Broker, BrokerConfig, Placement};

async fn broker_with(config: BrokerConfig) -> Broker {
    Broker::open(Arc::new(MemoryStorage::new()), config)
        .await
        .expect("opens")
}

async fn with_topic(broker: &Broker) -> Producer {
    Client::connect(broker).create_topic("out", 2).await;
    Producer::start(broker, "job-1").await
}

/// Brings a producer close to the end of its epochs without 32,000 transactions.
async fn start_at_epoch(broker: &Broker, epoch: i16) -> Producer {
    let mut producer = with_topic(broker).await;
    broker
        .node()
        .transactions
        .set_epoch_for_test("job-1", epoch);
    producer.become_producer(producer.identity.id, epoch);
    producer
}

#[tokio::test(start_paused = true)]
async fn a_commit_is_visible_once_it_is_answered_and_an_abort_never() {
    let delay = Duration::from_millis(10);
    let broker = broker_with(BrokerConfig {
        placement: Placement::Runtime { sync_delay: delay },
        ..config()
    })
    .await;
    let mut producer = with_topic(&broker).await;
    assert_eq!(producer.send("out", 0, "a").await, ErrorCode::NONE);
    assert_eq!(producer.send("out", 1, "b").await, ErrorCode::NONE);
    assert!(committed(&broker, "out", 0).await.is_empty());
    let started = Instant::now();
    assert_eq!(producer.end(true).await, ErrorCode::NONE);
    assert_eq!(
        started.elapsed(),
        delay,
        "Prepare, markers and Complete share one sync"
    );
    assert_eq!(committed(&broker, "out", 0).await, ["a"]);
    assert_eq!(committed(&broker, "out", 1).await, ["b"]);
    assert_eq!(
        describe(&broker, "job-1").await.transaction_state,
        "CompleteCommit"
    );

    assert_eq!(producer.send("out", 0, "never").await, ErrorCode::NONE);
    assert_eq!(producer.end(false).await, ErrorCode::NONE);
    assert_eq!(producer.send("out", 0, "c").await, ErrorCode::NONE);
    assert_eq!(producer.end(true).await, ErrorCode::NONE);
    assert_eq!(committed(&broker, "out", 0).await, ["a", "c"]);
}

#[tokio::test(start_paused = true)]
async fn t3_a_retried_end_gets_the_same_answer_and_not_before_it_is_durable() {
    let delay = Duration::from_millis(10);
    let broker = broker_with(BrokerConfig {
        placement: Placement::Runtime { sync_delay: delay },
        ..config()
    })
    .await;
    let mut producer = with_topic(&broker).await;
    producer.send("out", 0, "a").await;
    let request = producer.end_request(producer.identity, true);
    let mut second = Client::connect(&broker);
    let started = Instant::now();
    producer.client.send(5, &request).await;
    let retried = second.ask(5, request.clone()).await;
    assert!(started.elapsed() >= delay, "{:?}", started.elapsed());
    let first = producer.client.receive::<EndTxnRequest>(5).await;
    assert_eq!((first.error_code, &first), (ErrorCode::NONE, &retried));
    assert_eq!(first.producer_epoch, producer.identity.epoch + 1);
    assert_eq!(second.ask(5, request).await, first);
    assert_eq!(committed(&broker, "out", 0).await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn t2_t4_a_timeout_aborts_and_fences_the_commit_that_comes_too_late() {
    let broker = broker().await;
    let mut producer = with_topic(&broker).await;
    let owner = producer.identity;
    producer.send("out", 0, "lost").await;
    sleep(Duration::from_millis(
        u64::from(TIMEOUT_MS.unsigned_abs()) + 1_000,
    ))
    .await;
    let described = describe(&broker, "job-1").await;
    assert_eq!(described.transaction_state, "CompleteAbort");
    assert_eq!(described.producer_epoch, owner.epoch + 1);
    // T6, B26: data that comes too late is fenced, not an invalid state.
    assert_eq!(
        producer.send("out", 0, "late").await,
        ErrorCode::INVALID_PRODUCER_EPOCH
    );
    assert_eq!(producer.end(true).await, ErrorCode::PRODUCER_FENCED);
    assert_eq!(producer.end(false).await, ErrorCode::NONE);
    assert_eq!(producer.send("out", 0, "kept").await, ErrorCode::NONE);
    assert_eq!(producer.end(true).await, ErrorCode::NONE);
    assert_eq!(committed(&broker, "out", 0).await, ["kept"]);
}

#[tokio::test(start_paused = true)]
async fn t4_t5_ends_that_contradict_or_come_late_change_nothing() {
    let broker = broker().await;
    let mut producer = with_topic(&broker).await;
    let first = producer.identity;
    producer.send("out", 0, "a").await;
    assert_eq!(producer.end(true).await, ErrorCode::NONE);
    let opposite = producer.end_as(5, first, false).await;
    assert_eq!(opposite.error_code, ErrorCode::INVALID_TXN_STATE);
    producer.send("out", 0, "b").await;
    for commit in [true, false] {
        let late = producer.end_as(5, first, commit).await;
        assert_eq!(late.error_code, ErrorCode::PRODUCER_FENCED);
    }
    assert_eq!(
        committed(&broker, "out", 0).await,
        ["a"],
        "the second one is still open"
    );
    assert_eq!(producer.end(true).await, ErrorCode::NONE);
    assert_eq!(committed(&broker, "out", 0).await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn t6_b2_data_after_the_end_is_refused_and_pins_nothing() {
    let broker = broker().await;
    let mut producer = with_topic(&broker).await;
    producer.send("out", 0, "a").await;
    let late = producer.batch("out", 0, "late");
    assert_eq!(producer.end(false).await, ErrorCode::NONE);
    let request = ProduceRequest {
        transactional_id: Some("job-1".to_owned()),
        ..produce_request("out", 0, late)
    };
    let answer = producer.client.ask(12, request).await;
    let error = answer.responses[0].partition_responses[0].error_code;
    assert_eq!(error, ErrorCode::INVALID_PRODUCER_EPOCH);
    let read = producer.client.fetch("out", 0, 0, 1).await;
    assert_eq!(read.last_stable_offset, read.high_watermark);
}

#[tokio::test(start_paused = true)]
async fn older_clients_commit_without_a_bump_and_are_verified() {
    let broker = broker().await;
    let mut producer = with_topic(&broker).await;
    let identity = producer.identity;
    for (version, error) in [
        (10, ErrorCode::INVALID_TXN_STATE),
        (11, ErrorCode::TRANSACTION_ABORTABLE),
    ] {
        let refused = producer.send_as(version, "out", 1, "x").await.error_code;
        assert_eq!(refused, error, "not added");
    }
    producer.become_producer(-1, -1);
    producer.become_producer(identity.id, identity.epoch);
    for value in ["a", "b"] {
        assert_eq!(producer.add("out", 0).await, ErrorCode::NONE);
        assert_eq!(
            producer.send_as(10, "out", 0, value).await.error_code,
            ErrorCode::NONE
        );
        let ended = producer.end_as(4, identity, true).await;
        assert_eq!(
            (ended.error_code, ended.producer_epoch),
            (ErrorCode::NONE, -1)
        );
        assert_eq!(
            producer.end_as(4, identity, true).await.error_code,
            ErrorCode::NONE
        );
        let opposite = producer.end_as(4, identity, false).await.error_code;
        assert_eq!(opposite, ErrorCode::INVALID_TXN_STATE);
    }
    assert_eq!(committed(&broker, "out", 0).await, ["a", "b"]);
    // T6 for them: the partition is not in a transaction any more.
    let late = producer.send_as(10, "out", 0, "late").await.error_code;
    assert_eq!(late, ErrorCode::INVALID_TXN_STATE);
    let read = producer.client.fetch("out", 0, 0, 1).await;
    assert_eq!(read.last_stable_offset, read.high_watermark);
    assert_eq!(
        producer.add("nowhere", 0).await,
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
    );
}

#[tokio::test(start_paused = true)]
async fn t9_an_empty_abort_bumps_and_an_empty_commit_is_refused() {
    let broker = broker().await;
    let mut producer = with_topic(&broker).await;
    assert_eq!(producer.end(true).await, ErrorCode::INVALID_TXN_STATE);
    let before = producer.identity;
    assert_eq!(producer.end(false).await, ErrorCode::NONE);
    assert_eq!(
        producer.identity,
        Identity {
            epoch: before.epoch + 1,
            ..before
        }
    );
    assert_eq!(
        describe(&broker, "job-1").await.transaction_state,
        "CompleteAbort"
    );
    // B21: the next transaction is not fenced by it.
    assert_eq!(producer.send("out", 0, "a").await, ErrorCode::NONE);
    assert_eq!(producer.end(true).await, ErrorCode::NONE);
    assert_eq!(producer.end(false).await, ErrorCode::NONE);
    assert_eq!(producer.send("out", 0, "b").await, ErrorCode::NONE);
    assert_eq!(producer.end(true).await, ErrorCode::NONE);
    assert_eq!(committed(&broker, "out", 0).await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn t10_b22_transactions_go_on_over_the_end_of_the_epochs() {
    let broker = broker().await;
    let mut producer = start_at_epoch(&broker, LAST_CLIENT_EPOCH - 3).await;
    let first_id = producer.identity.id;
    let mut sent = Vec::new();
    for round in 0..8 {
        let value = round.to_string();
        assert_eq!(
            producer.send("out", 0, &value).await,
            ErrorCode::NONE,
            "round {round}"
        );
        let owner = producer.identity;
        assert_eq!(producer.end(true).await, ErrorCode::NONE, "round {round}");
        let retried = producer.end_as(5, owner, true).await;
        assert_eq!(retried.error_code, ErrorCode::NONE);
        let answered = Identity {
            id: retried.producer_id,
            epoch: retried.producer_epoch,
        };
        assert_eq!(answered, producer.identity, "round {round}");
        sent.push(value);
    }
    assert_ne!(producer.identity.id, first_id);
    assert_eq!(producer.identity.epoch, 4);
    assert_eq!(committed(&broker, "out", 0).await, sent);
}

#[tokio::test(start_paused = true)]
async fn b27_a_timeout_at_the_last_epoch_leaves_a_producer_that_works() {
    let broker = broker().await;
    let mut producer = start_at_epoch(&broker, LAST_CLIENT_EPOCH).await;
    let owner = producer.identity;
    producer.send("out", 0, "lost").await;
    sleep(Duration::from_secs(62)).await;
    assert_eq!(
        producer.send("out", 0, "late").await,
        ErrorCode::INVALID_PRODUCER_EPOCH
    );
    assert_eq!(producer.end(false).await, ErrorCode::NONE);
    assert_ne!(producer.identity.id, owner.id);
    assert_eq!(producer.send("out", 0, "a").await, ErrorCode::NONE);
    assert_eq!(producer.end(true).await, ErrorCode::NONE);
    assert_eq!(committed(&broker, "out", 0).await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn t11_a_plain_batch_of_a_producer_inside_its_transaction_is_refused() {
    let broker = broker().await;
    let mut producer = with_topic(&broker).await;
    producer.send("out", 0, "a").await;
    let stamp = ProducerStamp {
        producer_id: producer.identity.id,
        producer_epoch: producer.identity.epoch,
        base_sequence: 1,
        transactional: false,
    };
    let plain = producer
        .client
        .produce("out", 0, stamped(&["x"], stamp))
        .await;
    assert_eq!(plain.error_code, ErrorCode::INVALID_TXN_STATE);
}

#[tokio::test(start_paused = true)]
async fn t12_timeouts_outside_the_broker_s_limit_are_refused() {
    let broker = broker().await;
    let mut producer = Producer::new(&broker, "job-1");
    for timeout_ms in [900_001, 0, -1] {
        let refused = producer.init_with(None, timeout_ms).await;
        assert_eq!(
            refused,
            ErrorCode::INVALID_TRANSACTION_TIMEOUT,
            "{timeout_ms}"
        );
    }
    assert_eq!(producer.init_with(None, 900_000).await, ErrorCode::NONE);
    let mut nameless = Producer::new(&broker, "");
    assert_eq!(nameless.init(None).await, ErrorCode::INVALID_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn f1_a_second_instance_takes_over_within_a_second_and_the_first_writes_nothing_visible() {
    let broker = broker().await;
    let mut first = with_topic(&broker).await;
    first.send("out", 0, "lost").await;
    let started = Instant::now();
    let mut second = Producer::new(&broker, "job-1");
    assert_eq!(second.init(None).await, ErrorCode::CONCURRENT_TRANSACTIONS);
    assert_eq!(second.init(None).await, ErrorCode::NONE);
    assert!(started.elapsed() < Duration::from_secs(1));
    assert!(second.identity.epoch > first.identity.epoch);
    assert_eq!(
        first.send("out", 0, "zombie").await,
        ErrorCode::INVALID_PRODUCER_EPOCH
    );
    assert_eq!(
        first.send("out", 1, "zombie").await,
        ErrorCode::INVALID_PRODUCER_EPOCH
    );
    assert_eq!(first.end(true).await, ErrorCode::PRODUCER_FENCED);
    assert_eq!(first.end(false).await, ErrorCode::PRODUCER_FENCED);
    let again = first.init(Some(first.identity)).await;
    assert_eq!(again, ErrorCode::PRODUCER_FENCED);
    assert_eq!(second.send("out", 0, "a").await, ErrorCode::NONE);
    assert_eq!(second.end(true).await, ErrorCode::NONE);
    assert_eq!(committed(&broker, "out", 0).await, ["a"]);
    assert!(committed(&broker, "out", 1).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_transaction_over_a_deleted_topic_still_ends() {
    let broker = broker().await;
    let mut producer = with_topic(&broker).await;
    producer.client.create_topic("gone", 1).await;
    producer.send("gone", 0, "x").await;
    producer.send("out", 0, "a").await;
    let gone = vec![("gone".to_owned(), None)];
    assert_eq!(broker.node().delete_topics(gone).await, [Ok(())]);
    assert_eq!(producer.end(true).await, ErrorCode::NONE);
    assert_eq!(committed(&broker, "out", 0).await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn c4_an_expired_id_is_forgotten_and_starts_anew() {
    let broker = broker_with(BrokerConfig {
        transactional_id_expiration_ms: 10_000,
        transaction_remove_expired_scan_ms: 1_000,
        ..config()
    })
    .await;
    let mut producer = with_topic(&broker).await;
    let old = producer.identity;
    producer.send("out", 0, "a").await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(
        producer.end(true).await,
        ErrorCode::NONE,
        "an open transaction does not expire"
    );
    sleep(Duration::from_secs(12)).await;
    let described = describe(&broker, "job-1").await;
    assert_eq!(described.error_code, ErrorCode::TRANSACTIONAL_ID_NOT_FOUND);
    assert_eq!(
        producer.end(false).await,
        ErrorCode::INVALID_PRODUCER_ID_MAPPING
    );
    assert_eq!(producer.init(None).await, ErrorCode::NONE);
    assert_ne!(producer.identity.id, old.id);
    assert_eq!(producer.identity.epoch, 0);
}

async fn producers(client: &mut Client, topic: &str) -> Vec<ProducerState> {
    let request = DescribeProducersRequest {
        topics: vec![TopicRequest {
            name: topic.to_owned(),
            partition_indexes: vec![0],
        }],
    };
    let answer = client.ask(0, request).await;
    answer.topics[0].partitions[0].active_producers.clone()
}

async fn write_marker(
    client: &mut Client,
    producer: Identity,
    coordinator_epoch: i32,
    transaction_version: i8,
) -> ErrorCode {
    let marker = WritableTxnMarker {
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        transaction_result: false,
        topics: vec![WritableTxnMarkerTopic {
            name: "out".to_owned(),
            partition_indexes: vec![0],
        }],
        coordinator_epoch,
        transaction_version,
    };
    let answer = client
        .ask(
            2,
            WriteTxnMarkersRequest {
                markers: vec![marker],
            },
        )
        .await;
    answer.markers[0].topics[0].partitions[0].error_code
}

#[tokio::test(start_paused = true)]
async fn t13_a_hanging_transaction_is_seen_and_can_be_aborted_by_hand() {
    let broker = broker_with(BrokerConfig {
        transaction_partition_verification_enable: false,
        ..config()
    })
    .await;
    let mut client = Client::connect(&broker);
    client.create_topic("out", 1).await;
    let orphan = Identity { id: 77, epoch: 3 };
    let stamp = ProducerStamp {
        producer_id: orphan.id,
        producer_epoch: orphan.epoch,
        base_sequence: 0,
        transactional: true,
    };
    let request = ProduceRequest {
        transactional_id: Some("nobody".to_owned()),
        ..produce_request("out", 0, stamped(&["x"], stamp))
    };
    let answer = client.ask(9, request).await;
    assert_eq!(
        answer.responses[0].partition_responses[0].error_code,
        ErrorCode::NONE
    );
    client
        .produce("out", 0, crate::tests::harness::batch(&["y"]))
        .await;
    let stuck = producers(&mut client, "out").await;
    assert_eq!((stuck[0].producer_id, stuck[0].producer_epoch), (77, 3));
    assert_eq!(stuck[0].current_txn_start_offset, 0);
    assert!(committed(&broker, "out", 0).await.is_empty(), "pinned");
    assert_eq!(
        write_marker(&mut client, orphan, 0, 0).await,
        ErrorCode::NONE
    );
    assert_eq!(committed(&broker, "out", 0).await, ["y"]);
    assert_eq!(
        producers(&mut client, "out").await[0].current_txn_start_offset,
        -1
    );
}

#[tokio::test(start_paused = true)]
async fn t7_t8_b24_b25_markers_again_late_and_of_old_coordinators() {
    let broker = broker().await;
    let mut producer = with_topic(&broker).await;
    producer.send("out", 0, "a").await;
    producer.end(true).await;
    let marked = producer.identity;
    let mut operator = Client::connect(&broker);
    // B25: the same marker again, with nothing open, is a retry.
    assert_eq!(
        write_marker(&mut operator, marked, 0, 2).await,
        ErrorCode::NONE
    );
    producer.send("out", 0, "b").await;
    // B24: with the next transaction open under that epoch it must not end it.
    let late = write_marker(&mut operator, marked, 0, 2).await;
    assert_eq!(late, ErrorCode::INVALID_PRODUCER_EPOCH);
    assert_eq!(producer.end(true).await, ErrorCode::NONE);
    assert_eq!(committed(&broker, "out", 0).await, ["a", "b"]);

    let newer = Identity {
        epoch: producer.identity.epoch + 1,
        ..producer.identity
    };
    assert_eq!(
        write_marker(&mut operator, newer, 0, 2).await,
        ErrorCode::NONE
    );
    let old = write_marker(&mut operator, newer, -1, 2).await;
    assert_eq!(old, ErrorCode::TRANSACTION_COORDINATOR_FENCED);
}

#[tokio::test(start_paused = true)]
async fn transactions_are_listed_by_state_producer_age_and_pattern() {
    let broker = broker().await;
    let mut open = with_topic(&broker).await;
    open.send("out", 0, "a").await;
    let idle = Producer::start(&broker, "other").await;
    sleep(Duration::from_secs(5)).await;
    let mut client = Client::connect(&broker);
    let mut list = async |request: ListTransactionsRequest| {
        let answer = client.ask(2, request).await;
        assert_eq!(answer.error_code, ErrorCode::NONE);
        let states = answer.transaction_states.into_iter();
        let ids: Vec<String> = states.map(|state| state.transactional_id).collect();
        (ids, answer.unknown_state_filters)
    };
    let all = ListTransactionsRequest::default();
    assert_eq!(list(all.clone()).await.0, ["job-1", "other"]);
    let states = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let ongoing = ListTransactionsRequest {
        state_filters: states(&["Ongoing"]),
        ..all.clone()
    };
    assert_eq!(list(ongoing).await.0, ["job-1"]);
    let unknown = ListTransactionsRequest {
        state_filters: states(&["Odd"]),
        ..all.clone()
    };
    assert_eq!(list(unknown).await, (vec![], vec!["Odd".to_owned()]));
    let by_id = ListTransactionsRequest {
        producer_id_filters: vec![idle.identity.id],
        ..all.clone()
    };
    assert_eq!(list(by_id).await.0, ["other"]);
    let old = ListTransactionsRequest {
        state_filters: states(&["Ongoing"]),
        duration_filter: 4_000,
        ..all.clone()
    };
    assert_eq!(list(old.clone()).await.0, ["job-1"]);
    assert!(
        list(ListTransactionsRequest {
            duration_filter: 6_000,
            ..old
        })
        .await
        .0
        .is_empty()
    );
    let pattern = Some("(oth|no)[a-f]+r".to_owned());
    let pattern = ListTransactionsRequest {
        transactional_id_pattern: pattern,
        ..all
    };
    assert_eq!(list(pattern).await.0, ["other"]);
    let described = describe(&broker, "job-1").await;
    assert_eq!(described.topics[0].topic, "out");
    assert_eq!(described.topics[0].partitions, [0]);
    assert_eq!(described.transaction_timeout_ms, TIMEOUT_MS);
}

#[tokio::test(start_paused = true)]
async fn producer_ids_of_idempotent_producers_are_never_given_twice() {
    let broker = broker_with(BrokerConfig {
        durability: Durability::Memory,
        ..config()
    })
    .await;
    let mut client = Client::connect(&broker);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..2_500 {
        let request = InitProducerIdRequest {
            transactional_id: None,
            ..Default::default()
        };
        let answer = client.ask(5, request).await;
        assert_eq!(
            (answer.error_code, answer.producer_epoch),
            (ErrorCode::NONE, 0)
        );
        assert!(seen.insert(answer.producer_id));
    }
}

#[tokio::test(start_paused = true)]
async fn a_marker_of_a_later_coordinator_is_refused_so_that_commits_stay_whole() {
    let broker = broker().await;
    let mut producer = with_topic(&broker).await;
    let mut operator = Client::connect(&broker);
    let refused = write_marker(&mut operator, producer.identity, 5, 0).await;
    assert_eq!(refused, ErrorCode::TRANSACTION_COORDINATOR_FENCED);
    producer.send("out", 0, "a").await;
    producer.send("out", 1, "b").await;
    assert_eq!(producer.end(true).await, ErrorCode::NONE);
    assert_eq!(committed(&broker, "out", 0).await, ["a"]);
    assert_eq!(committed(&broker, "out", 1).await, ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_marker_that_is_refused_while_its_transaction_is_open_is_not_taken_for_written() {
    let broker = broker().await;
    let mut producer = with_topic(&broker).await;
    // A directory in which an operator has got such a marker written.
    let marker = super::Marker {
        producer: producer.identity,
        commit: false,
        coordinator_epoch: super::COORDINATOR_EPOCH + 1,
        transaction_version: 0,
    };
    let partition = super::machine_tests::partition(0);
    super::write_marker(broker.node(), &partition, marker).expect("written");
    producer.send("out", 0, "a").await;
    producer.send("out", 1, "b").await;
    let answer = producer.end(true).await;
    assert_eq!(answer, ErrorCode::CONCURRENT_TRANSACTIONS);
    sleep(Duration::from_secs(5)).await;
    let state = describe(&broker, "job-1").await.transaction_state;
    assert_eq!(state, "PrepareCommit", "nobody is told that it is complete");
}

#[tokio::test(start_paused = true)]
async fn markers_that_are_written_are_not_written_again_while_others_are_missing() {
    let storage = FaultyStorage::new();
    let broker = crate::tests::harness::open(storage.clone()).await;
    let mut producer = with_topic(&broker).await;
    producer.send("out", 0, "a").await;
    producer.send("out", 1, "b").await;
    storage.inject(Fault {
        kind: OperationKind::Write,
        path_contains: "out-1/".to_owned(),
        after: 0,
        error: std::io::ErrorKind::StorageFull,
    });
    let producer_of_both = producer.identity;
    assert_eq!(producer.end(true).await, ErrorCode::CONCURRENT_TRANSACTIONS);
    let state = describe(&broker, "job-1").await.transaction_state;
    assert_eq!(state, "PrepareCommit");
    // The client asks again; neither waits for a timer.
    let mut again = producer.end_as(5, producer_of_both, true).await;
    assert_eq!(again.error_code, ErrorCode::CONCURRENT_TRANSACTIONS);
    again = producer.end_as(5, producer_of_both, true).await;
    assert_eq!(again.error_code, ErrorCode::NONE);
    let state = describe(&broker, "job-1").await.transaction_state;
    assert_eq!(state, "CompleteCommit");
    assert_eq!(committed(&broker, "out", 1).await, ["b"]);
    for partition in 0..2 {
        let log = broker.node().partition("out", partition).expect("there");
        assert_eq!(log.offsets().log_end, 2, "a record and one marker");
    }
}
