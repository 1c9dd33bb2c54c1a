//! Transactions across power cuts (T1, T2, F2, F4, B20, C2, C5, C6), and a cut after every disk
//! operation.
//!
//! Invariants: an answered commit is found again; no transaction is half there, ever.
//! Never: closes a broker in order before a crash.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use millstream_log::storage::{Fault, OperationKind, Unsynced};
use millstream_log::{AppendOrigin, Durability, FaultyStorage, MemoryStorage, Storage};
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::InitProducerIdRequest;
use tokio::time::sleep;

use super::model::Transaction;
use super::state::State;
use super::test_producer::{Producer, TIMEOUT_MS, committed, describe};
use crate::tests::harness::{Client, START_MS, batch, config, open};
use crate::{Broker, BrokerConfig, BrokerError, Clock};

const PAST_TIMEOUT: Duration = Duration::from_millis(TIMEOUT_MS.unsigned_abs() as u64 + 1_000);

/// Logs an outcome as if the power went before the first marker was written.
async fn prepare_only(broker: &Broker, transactional_id: &str, commit: bool) {
    let node = broker.node();
    let current = node.transactions.describe(transactional_id).expect("known");
    let prepared = Transaction {
        state: if commit {
            State::PrepareCommit
        } else {
            State::PrepareAbort
        },
        epoch: current.epoch + 1,
        last_epoch: current.epoch,
        client_version: 2,
        ..current
    };
    let position = node
        .transactions
        .log
        .append(transactional_id, &prepared, node.wall_ms())
        .expect("appended");
    node.durable(position).await.expect("durable");
}

async fn open_transaction(broker: &Broker) -> Producer {
    Client::connect(broker).create_topic("out", 2).await;
    begin(broker).await
}

async fn begin(broker: &Broker) -> Producer {
    let mut producer = Producer::start(broker, "job-1").await;
    assert_eq!(producer.send("out", 0, "a").await, ErrorCode::NONE);
    assert_eq!(producer.send("out", 1, "b").await, ErrorCode::NONE);
    producer
}

#[tokio::test(start_paused = true)]
async fn t1_a_decided_transaction_is_finished_when_the_broker_comes_back() {
    for commit in [true, false] {
        let storage = MemoryStorage::new();
        let broker = open(storage.clone()).await;
        let mut producer = open_transaction(&broker).await;
        prepare_only(&broker, "job-1", commit).await;
        assert!(committed(&broker, "out", 0).await.is_empty());
        broker.halt();

        let broker = open(storage.crash()).await;
        let state = if commit {
            "CompleteCommit"
        } else {
            "CompleteAbort"
        };
        assert_eq!(describe(&broker, "job-1").await.transaction_state, state);
        let (a, b): (&[&str], &[&str]) = if commit { (&["a"], &["b"]) } else { (&[], &[]) };
        assert_eq!(committed(&broker, "out", 0).await, a);
        assert_eq!(committed(&broker, "out", 1).await, b);
        // The client that never heard the answer asks again and goes on.
        producer.client = Client::connect(&broker);
        assert_eq!(producer.end(commit).await, ErrorCode::NONE);
        assert_eq!(producer.send("out", 0, "next").await, ErrorCode::NONE);
        assert_eq!(producer.end(true).await, ErrorCode::NONE);
    }
}

#[tokio::test(start_paused = true)]
async fn t1_markers_that_were_written_before_the_crash_do_no_harm_again() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let mut producer = open_transaction(&broker).await;
    prepare_only(&broker, "job-1", true).await;
    // The first marker is there as well, the second and the Complete record are not.
    let node = broker.node().clone();
    let marker = super::Marker {
        producer: super::Identity {
            epoch: producer.identity.epoch + 1,
            ..producer.identity
        },
        commit: true,
        coordinator_epoch: 0,
        transaction_version: 2,
    };
    let partition = super::machine_tests::partition(0);
    let position = super::write_marker(&node, &partition, marker).expect("written");
    node.durable(position).await.expect("durable");
    broker.halt();

    let storage = storage.crash();
    for _ in 0..2 {
        let broker = open(storage.clone().crash()).await;
        assert_eq!(committed(&broker, "out", 0).await, ["a"]);
        assert_eq!(committed(&broker, "out", 1).await, ["b"]);
        producer.client = Client::connect(&broker);
        assert_eq!(
            producer.end_as(5, producer.identity, true).await.error_code,
            ErrorCode::NONE
        );
        broker.halt();
    }
}

#[tokio::test(start_paused = true)]
async fn t2_c6_an_undecided_transaction_times_out_after_the_restart_and_not_before() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let mut producer = open_transaction(&broker).await;
    broker.halt();

    // The wall clock jumped an hour ahead while the broker was down.
    let clock = Clock::starting_at(START_MS + 3_600_000);
    let storage = Arc::new(storage.crash());
    let broker = Broker::open(storage, BrokerConfig { clock, ..config() })
        .await
        .expect("opens");
    sleep(PAST_TIMEOUT / 2).await;
    assert_eq!(
        describe(&broker, "job-1").await.transaction_state,
        "Ongoing"
    );
    sleep(PAST_TIMEOUT / 2).await;
    let described = describe(&broker, "job-1").await;
    assert_eq!(described.transaction_state, "CompleteAbort");
    assert_eq!(described.producer_epoch, producer.identity.epoch + 1);
    assert!(committed(&broker, "out", 0).await.is_empty());
    producer.client = Client::connect(&broker);
    assert_eq!(producer.end(true).await, ErrorCode::PRODUCER_FENCED);
}

#[tokio::test(start_paused = true)]
async fn an_undecided_transaction_can_be_committed_after_the_restart() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let mut producer = open_transaction(&broker).await;
    broker.halt();
    let broker = open(storage.crash()).await;
    producer.client = Client::connect(&broker);
    assert_eq!(producer.send("out", 0, "c").await, ErrorCode::NONE);
    assert_eq!(producer.end(true).await, ErrorCode::NONE);
    assert_eq!(committed(&broker, "out", 0).await, ["a", "c"]);
    assert_eq!(committed(&broker, "out", 1).await, ["b"]);
}

#[tokio::test(start_paused = true)]
async fn f2_b28_a_retried_init_is_answered_the_same_after_a_crash() {
    let mut storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let mut producer = Producer::start(&broker, "job-1").await;
    let before = producer.identity;
    assert_eq!(producer.init(Some(before)).await, ErrorCode::NONE);
    let answered = producer.identity;
    assert_ne!(answered, before);
    broker.halt();
    for _ in 0..3 {
        storage = storage.crash();
        let broker = open(storage.clone()).await;
        producer.client = Client::connect(&broker);
        assert_eq!(producer.init(Some(before)).await, ErrorCode::NONE);
        assert_eq!(producer.identity, answered);
        broker.halt();
    }
}

#[tokio::test(start_paused = true)]
async fn f4_a_fence_that_cannot_be_logged_burns_no_epoch() {
    let storage = FaultyStorage::new();
    let broker = open(storage.clone()).await;
    let owner = open_transaction(&broker).await;
    storage.inject(Fault {
        kind: OperationKind::Write,
        path_contains: "__transaction_state".to_owned(),
        after: 0,
        error: io::ErrorKind::StorageFull,
    });
    let mut second = Producer::new(&broker, "job-1");
    let error = second.init(None).await;
    assert!(
        matches!(
            error,
            ErrorCode::NOT_COORDINATOR | ErrorCode::COORDINATOR_NOT_AVAILABLE
        ),
        "{error}"
    );
    let described = describe(&broker, "job-1").await;
    assert_eq!(described.transaction_state, "Ongoing");
    assert_eq!(described.producer_epoch, owner.identity.epoch);
    broker.halt();

    let broker = open(storage.crash_with(Unsynced::Lost)).await;
    assert_eq!(
        describe(&broker, "job-1").await.producer_epoch,
        owner.identity.epoch
    );
    let mut second = Producer::new(&broker, "job-1");
    assert_eq!(second.init(None).await, ErrorCode::CONCURRENT_TRANSACTIONS);
    assert_eq!(second.init(None).await, ErrorCode::NONE);
    assert_eq!(second.identity.epoch, owner.identity.epoch + 2);
}

#[tokio::test(start_paused = true)]
async fn c2_a_record_that_is_not_understood_fails_the_open_and_is_named() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let producer = open_transaction(&broker).await;
    let partition = broker
        .node()
        .transactions
        .log
        .partition_of("job-1")
        .expect("there");
    let (index, end) = (partition.name().partition, partition.offsets().log_end);
    let appended = partition.append(batch(&["not a transaction"]), AppendOrigin::Coordinator);
    broker
        .node()
        .durable(appended.expect("appended").journal_position)
        .await
        .expect("durable");
    broker.halt();
    drop(producer);

    let error = Broker::open(Arc::new(storage.crash()), config())
        .await
        .expect_err("refused");
    let BrokerError::CorruptCoordinatorLog {
        topic,
        partition,
        offset,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(
        (*topic, *partition, *offset),
        ("__transaction_state", index, end)
    );
}

#[tokio::test(start_paused = true)]
async fn c5_producer_ids_are_never_given_again_after_a_crash() {
    let mut storage = MemoryStorage::new();
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..5 {
        let broker = open(storage.clone()).await;
        let mut client = Client::connect(&broker);
        for _ in 0..3 {
            let request = InitProducerIdRequest {
                transactional_id: None,
                ..Default::default()
            };
            let answer = client.ask(5, request).await;
            assert_eq!(answer.error_code, ErrorCode::NONE);
            assert!(seen.insert(answer.producer_id), "round {round}");
        }
        broker.halt();
        storage = storage.crash();
    }
}

#[tokio::test(start_paused = true)]
async fn c5_without_a_journal_a_block_of_ids_is_synced_before_its_first_id_is_told() {
    let mut storage = MemoryStorage::new();
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..3 {
        let config = BrokerConfig {
            durability: Durability::Os,
            ..config()
        };
        let broker = Broker::open(Arc::new(storage.clone()), config)
            .await
            .expect("opens");
        let mut client = Client::connect(&broker);
        let request = InitProducerIdRequest {
            transactional_id: None,
            ..Default::default()
        };
        let answer = client.ask(5, request).await;
        assert!(seen.insert(answer.producer_id), "round {round}: {seen:?}");
        broker.halt();
        storage = storage.crash();
    }
}

#[tokio::test(start_paused = true)]
async fn b20_while_a_marker_cannot_be_written_nothing_joins_and_a_restart_finishes_it() {
    let storage = FaultyStorage::new();
    let broker = open(storage.clone()).await;
    let mut producer = open_transaction(&broker).await;
    // Whoever asks lets it be tried again: each of the five requests below.
    for after in 0..5 {
        storage.inject(Fault {
            kind: OperationKind::Write,
            path_contains: "out-1".to_owned(),
            after,
            error: io::ErrorKind::StorageFull,
        });
    }
    let owner = producer.identity;
    for _ in 0..2 {
        assert_eq!(producer.end(true).await, ErrorCode::CONCURRENT_TRANSACTIONS);
    }
    assert_eq!(
        describe(&broker, "job-1").await.transaction_state,
        "PrepareCommit"
    );
    let opposite = producer.end_as(5, owner, false).await.error_code;
    assert_eq!(opposite, ErrorCode::INVALID_TXN_STATE);
    assert_eq!(
        producer.init(None).await,
        ErrorCode::CONCURRENT_TRANSACTIONS
    );
    producer.become_producer(owner.id, owner.epoch + 1);
    assert_eq!(
        producer.send("out", 0, "early").await,
        ErrorCode::CONCURRENT_TRANSACTIONS
    );
    broker.halt();

    let broker = open(storage.crash_with(Unsynced::Lost)).await;
    assert_eq!(
        describe(&broker, "job-1").await.transaction_state,
        "CompleteCommit"
    );
    assert_eq!(committed(&broker, "out", 0).await, ["a"]);
    assert_eq!(committed(&broker, "out", 1).await, ["b"]);
    producer.client = Client::connect(&broker);
    let retried = producer.end_as(5, owner, true).await;
    assert_eq!(
        (retried.error_code, retried.producer_epoch),
        (ErrorCode::NONE, owner.epoch + 1)
    );
}

/// Whether the transaction of `out-0` and `out-1` is visible; it must not be half there.
async fn outcome(image: impl Storage + 'static, at: usize) -> bool {
    let broker = open(image).await;
    if broker.node().partition("out", 0).is_none() {
        broker.halt();
        return false;
    }
    sleep(PAST_TIMEOUT).await;
    let state = describe(&broker, "job-1").await.transaction_state;
    assert!(
        !matches!(&*state, "Ongoing" | "PrepareCommit" | "PrepareAbort"),
        "{state} at {at}"
    );
    let mut seen = Vec::new();
    for partition in 0..2 {
        let mut client = Client::connect(&broker);
        let read = client.fetch("out", partition, 0, 1).await;
        assert_eq!(
            read.last_stable_offset, read.high_watermark,
            "pinned at {at}"
        );
        seen.push(committed(&broker, "out", partition).await);
    }
    assert_eq!(
        seen[0].is_empty(),
        seen[1].is_empty(),
        "torn at {at}: {seen:?}"
    );
    if !seen[0].is_empty() {
        assert_eq!(seen, [["a"], ["b"]], "at {at}");
    }
    // And the id goes on working.
    let mut producer = Producer::start(&broker, "job-1").await;
    assert_eq!(producer.send("out", 0, "more").await, ErrorCode::NONE);
    assert_eq!(producer.end(true).await, ErrorCode::NONE);
    broker.halt();
    !seen[0].is_empty()
}

#[tokio::test(start_paused = true)]
async fn w5_w8_a_cut_after_any_disk_operation_leaves_the_transaction_whole_or_absent() {
    let storage = FaultyStorage::new();
    let broker = open(storage.clone()).await;
    Client::connect(&broker).create_topic("out", 2).await;
    let first = storage.operation_count();
    let mut producer = begin(&broker).await;
    let before_end = storage.operation_count();
    assert_eq!(producer.end(true).await, ErrorCode::NONE);
    let answered = storage.operation_count();
    broker.halt();
    let modes = [
        Unsynced::Lost,
        Unsynced::Kept,
        Unsynced::Torn {
            thousandths: 300,
            sector: false,
        },
        Unsynced::Torn {
            thousandths: 700,
            sector: true,
        },
        Unsynced::Torn {
            thousandths: 950,
            sector: false,
        },
    ];
    let mut images = Vec::new();
    storage.for_each_crash_point(first, |point| {
        for mode in modes {
            images.push((point.operations, mode, point.image(mode)));
        }
    });
    assert!(images.len() > 10 * modes.len(), "{} images", images.len());
    let (mut visible, mut absent) = (0, 0);
    for (operations, mode, image) in images {
        let seen = outcome(image, operations).await;
        if operations >= answered {
            assert!(
                seen,
                "an answered commit is gone after {operations}, {mode:?}"
            );
        }
        if operations <= before_end {
            assert!(!seen, "visible before it was ended, {operations}, {mode:?}");
        }
        visible += i32::from(seen);
        absent += i32::from(!seen);
    }
    assert!(
        visible > 0 && absent > 0,
        "{visible} visible, {absent} absent"
    );
}
