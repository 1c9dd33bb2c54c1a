//! Transactions against a scripted broker, on a paused clock.

mod below_version_2;
mod forgotten;

use millstream_protocol::{ApiKey, ErrorCode, RecordBatch, TopicPartition};

use super::transaction::machine::State;
use super::*;
use crate::clock::Clock;
use crate::config::ClientConfig;
use crate::error::TransactionError;
use crate::group::{GroupMetadata, OffsetAndMetadata};
use crate::scripted::{ScriptedBroker, Step};

const ID: &str = "orders-enrichment-1";

async fn connect(broker: &ScriptedBroker, builder: ProducerBuilder) -> Producer {
    let client = ClientConfig {
        clock: Clock::starting_at(1_000_000),
        ..Default::default()
    };
    builder
        .client(client)
        .connect(&broker.transport())
        .await
        .unwrap()
}

async fn ready(broker: &ScriptedBroker) -> Producer {
    let producer = connect(broker, Producer::transactional(ID).max_block_ms(10_000)).await;
    producer.init_transactions().await.unwrap();
    producer
}

fn record(value: &str) -> ProducerRecord {
    ProducerRecord::new("out")
        .partition(0)
        .value(value.to_owned())
}

fn group() -> GroupMetadata {
    GroupMetadata {
        group_id: "g".into(),
        generation_id: 3,
        member_id: "m".into(),
        group_instance_id: None,
        auto_commit: false,
    }
}

fn offsets(offset: i64) -> Vec<(TopicPartition, OffsetAndMetadata)> {
    vec![(
        TopicPartition::new("orders", 0),
        OffsetAndMetadata::new(offset),
    )]
}

fn ends(broker: &ScriptedBroker) -> Vec<(bool, i16)> {
    let ends = broker.received(ApiKey::EndTxn).into_iter();
    ends.map(|r| (r.committed.unwrap(), r.producer.unwrap().1))
        .collect()
}

// Rows 112, 113 and 138.
#[tokio::test(start_paused = true)]
async fn a_transaction_commits_records_and_offsets_and_the_next_has_the_next_epoch() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let producer = ready(&broker).await;
    for n in 0..3_i64 {
        producer.begin_transaction().unwrap();
        let delivery = producer.send(record(&n.to_string())).await.unwrap();
        producer
            .send_offsets(&offsets(n + 1), &group())
            .await
            .unwrap();
        producer.commit().await.unwrap();
        delivery.await.unwrap();
    }
    assert_eq!(broker.values("out", 0), ["0", "1", "2"]);
    assert_eq!(ends(&broker), [(true, 0), (true, 1), (true, 2)]);
    assert!(broker.received(ApiKey::AddPartitionsToTxn).is_empty());
    assert!(broker.received(ApiKey::AddOffsetsToTxn).is_empty());
    let offsets: Vec<i64> = broker
        .lock()
        .offsets
        .iter()
        .map(|offset| offset.3)
        .collect();
    assert_eq!(offsets, [1, 2, 3]);
    for (epoch, request) in broker.received(ApiKey::Produce).into_iter().enumerate() {
        assert!(request.version >= 12);
        let batch = RecordBatch::parse(request.batches[0].2.clone()).unwrap();
        assert!(batch.is_transactional());
        let expected = (i16::try_from(epoch).unwrap(), 0);
        assert_eq!((batch.producer_epoch(), batch.base_sequence()), expected);
    }
    assert_eq!(broker.received(ApiKey::InitProducerId).len(), 1);
}

// Row 112.
#[tokio::test(start_paused = true)]
async fn calls_out_of_order_are_typed_errors_that_send_nothing() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let producer = connect(&broker, Producer::transactional(ID)).await;
    let out_of_order = |error: TransactionError| {
        assert!(
            matches!(error, TransactionError::OutOfOrder { .. }),
            "{error}"
        );
        error.to_string()
    };
    out_of_order(producer.begin().unwrap_err());
    out_of_order(producer.commit().await.unwrap_err());
    let text = producer.send(record("x")).await.unwrap_err().to_string();
    assert!(text.contains("begin_transaction()"), "{text}");
    producer.init_transactions().await.unwrap();
    out_of_order(producer.init_transactions().await.unwrap_err());
    let text = out_of_order(producer.commit().await.unwrap_err());
    assert!(text.contains("begin_transaction()"), "{text}");
    out_of_order(producer.abort().await.unwrap_err());
    out_of_order(
        producer
            .send_offsets(&offsets(1), &group())
            .await
            .unwrap_err(),
    );
    producer.begin().unwrap();
    out_of_order(producer.begin().unwrap_err());
    assert!(ends(&broker).is_empty());
    let plain = connect(&broker, Producer::idempotent()).await;
    let error = plain.begin().unwrap_err();
    assert!(
        matches!(error, TransactionError::NotTransactional { .. }),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn b21_an_empty_transaction_ends_without_a_request() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let producer = ready(&broker).await;
    producer.begin().unwrap();
    drop(producer.send(record("a")).await.unwrap());
    producer.commit().await.unwrap();
    producer.begin().unwrap();
    producer.abort().await.unwrap();
    producer.begin().unwrap();
    producer.commit().await.unwrap();
    producer.begin().unwrap();
    // Accepted and dropped again before anything went out.
    drop(producer.try_send(&record("b")).unwrap());
    producer.abort().await.unwrap();
    producer.begin().unwrap();
    drop(producer.send(record("c")).await.unwrap());
    producer.commit().await.unwrap();
    assert_eq!(ends(&broker), [(true, 0), (true, 1)]);
    assert_eq!(broker.values("out", 0), ["a", "c"]);
}

// Row 127.
#[tokio::test(start_paused = true)]
async fn w10_a_commit_without_an_answer_is_only_ever_repeated_as_that_commit() {
    for step in [
        Step::Mute,
        Step::LoseAnswer,
        Step::Swallow,
        Step::Disconnect,
    ] {
        let broker = ScriptedBroker::new(&[("out", 1)]);
        let producer = ready(&broker).await;
        producer.begin().unwrap();
        drop(producer.send(record("a")).await.unwrap());
        broker.always(ApiKey::EndTxn, step);
        let error = producer.commit().await.unwrap_err();
        assert!(
            matches!(error, TransactionError::CommitInDoubt { .. }),
            "{error}"
        );
        assert!(error.to_string().contains("never abort()"), "{error}");
        assert_eq!(producer.transaction_state(), Some(State::Committing));
        let refused = producer.abort().await.unwrap_err();
        assert!(
            matches!(refused, TransactionError::OutOfOrder { .. }),
            "{refused}"
        );
        producer.begin().unwrap_err();
        producer.send(record("b")).await.unwrap_err();
        // A retriable refusal does not clear the doubt.
        broker.always(
            ApiKey::EndTxn,
            Step::Error(ErrorCode::COORDINATOR_NOT_AVAILABLE),
        );
        let error = producer.commit().await.unwrap_err();
        assert!(
            matches!(error, TransactionError::CommitInDoubt { .. }),
            "{error}"
        );
        broker.always(ApiKey::EndTxn, Step::Pass);
        producer.commit().await.unwrap();
        assert!(
            ends(&broker).iter().all(|end| *end == (true, 0)),
            "same epoch, commits only"
        );
        assert_eq!(broker.lock().ended, [(1000, 0, true)], "{step:?}");
        producer.begin().unwrap();
        drop(producer.send(record("b")).await.unwrap());
        producer.commit().await.unwrap();
        assert_eq!(broker.values("out", 0), ["a", "b"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_in_doubt_can_be_decided_by_initialising_again() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let producer = ready(&broker).await;
    producer.begin().unwrap();
    drop(producer.send(record("a")).await.unwrap());
    broker.always(ApiKey::EndTxn, Step::Swallow);
    producer.commit().await.unwrap_err();
    producer.init_transactions().await.unwrap();
    assert_eq!(
        broker.lock().ended,
        [(1000, 1, false)],
        "the coordinator has aborted it"
    );
    assert_eq!(producer.transaction_state(), Some(State::Ready));
    broker.always(ApiKey::EndTxn, Step::Pass);
    producer.begin().unwrap();
    drop(producer.send(record("b")).await.unwrap());
    producer.commit().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_was_dropped_half_way_is_in_doubt() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let producer = ready(&broker).await;
    producer.begin().unwrap();
    drop(producer.send(record("a")).await.unwrap());
    broker.script(ApiKey::EndTxn, &[Step::Delay(Duration::from_secs(5))]);
    let dropped = tokio::time::timeout(Duration::from_secs(1), producer.commit()).await;
    assert!(dropped.is_err());
    producer.abort().await.unwrap_err();
    producer.commit().await.unwrap();
    assert_eq!(broker.lock().ended, [(1000, 0, true)]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_record_makes_commit_refuse_without_a_request_and_abort_goes_on() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let producer = ready(&broker).await;
    producer.begin().unwrap();
    drop(producer.send(record("a")).await.unwrap());
    broker.partition_errors("out", 0, &[ErrorCode::NONE, ErrorCode::INVALID_RECORD]);
    producer.flush().await.unwrap();
    let bad = producer.send(record("bad")).await.unwrap();
    let error = producer.commit().await.unwrap_err();
    assert!(
        matches!(error, TransactionError::Abortable { .. }),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("INVALID_RECORD") && text.contains("abort()"),
        "{text}"
    );
    bad.await.unwrap_err();
    assert!(ends(&broker).is_empty());
    let error = producer.send(record("c")).await.unwrap_err();
    assert!(
        matches!(error, UsageError::TransactionFailed { .. }),
        "{error}"
    );
    producer.abort().await.unwrap();
    assert_eq!(ends(&broker), [(false, 0)]);
    producer.begin().unwrap();
    drop(producer.send(record("again")).await.unwrap());
    producer.commit().await.unwrap();
    assert_eq!(ends(&broker), [(false, 0), (true, 1)]);
}

// Row 125.
#[tokio::test(start_paused = true)]
async fn an_old_epoch_at_the_log_is_recovered_from_with_a_new_epoch() {
    for (at_group, refused) in [(false, false), (false, true), (true, false), (true, true)] {
        recovers_from_an_old_epoch(at_group, refused).await;
    }
}

/// The abort brings the new epoch; where that is refused, the coordinator is asked for one.
async fn recovers_from_an_old_epoch(at_group: bool, refused: bool) {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let producer = ready(&broker).await;
    producer.begin().unwrap();
    let error = old_epoch(&broker, &producer, at_group).await;
    assert!(
        matches!(error, TransactionError::Abortable { .. }),
        "{error}"
    );
    if refused {
        broker.script(ApiKey::EndTxn, &[Step::Error(ErrorCode::PRODUCER_FENCED)]);
    }
    producer.abort().await.unwrap();
    assert_eq!(ends(&broker), [(false, 0)]);
    let asked = broker.received(ApiKey::InitProducerId);
    assert_eq!(asked.len() > 1, refused);
    assert!(producer.identity().unwrap().epoch >= 1);
    goes_on(&broker, &producer).await;
}

/// What a partition, or the log of the group, that has seen a newer epoch makes of a transaction.
async fn old_epoch(
    broker: &ScriptedBroker,
    producer: &Producer,
    at_group: bool,
) -> TransactionError {
    let code = ErrorCode::INVALID_PRODUCER_EPOCH;
    if at_group {
        broker.script(ApiKey::TxnOffsetCommit, &[Step::Error(code)]);
        return producer
            .send_offsets(&offsets(1), &group())
            .await
            .unwrap_err();
    }
    broker.partition_errors("out", 0, &[code]);
    drop(producer.send(record("a")).await.unwrap());
    producer.commit().await.unwrap_err()
}

async fn goes_on(broker: &ScriptedBroker, producer: &Producer) {
    goes_on_behind(broker, producer, &["a"]).await;
}

async fn goes_on_behind(broker: &ScriptedBroker, producer: &Producer, values: &[&str]) {
    producer.begin().unwrap();
    drop(producer.send(record("a")).await.unwrap());
    producer.commit().await.unwrap();
    assert_eq!(broker.values("out", 0), values);
}

// Rows 110 and 153.
#[tokio::test(start_paused = true)]
async fn f1_a_second_instance_fences_the_first_and_the_error_names_id_and_epochs() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let first = ready(&broker).await;
    first.begin().unwrap();
    drop(first.send(record("a")).await.unwrap());
    first.flush().await.unwrap();
    let second = ready(&broker).await;
    let error = first.commit().await.unwrap_err();
    let TransactionError::Fenced {
        our_epoch,
        newer_epoch,
        ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!((*our_epoch, *newer_epoch), (0, Some(1)));
    let text = error.to_string();
    for part in [ID, "epoch 0", "epoch 1", "newer instance", "close it"] {
        assert!(text.contains(part), "{text}");
    }
    for error in [first.abort().await.unwrap_err(), first.begin().unwrap_err()] {
        assert!(matches!(error, TransactionError::Fenced { .. }), "{error}");
    }
    assert!(matches!(
        first.send(record("b")).await,
        Err(UsageError::Failed { .. })
    ));
    second.begin().unwrap();
    drop(second.send(record("b")).await.unwrap());
    second.commit().await.unwrap();

    // Nobody to ask: the epoch is unknown.
    let third = ready(&broker).await;
    second.begin().unwrap();
    drop(second.send(record("c")).await.unwrap());
    broker.always(ApiKey::DescribeTransactions, Step::Swallow);
    let text = second.commit().await.unwrap_err().to_string();
    assert!(text.contains("epoch unknown"), "{text}");
    drop(third);
}

#[tokio::test(start_paused = true)]
async fn init_waits_for_a_transaction_that_is_still_ending() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let busy = Step::Error(ErrorCode::CONCURRENT_TRANSACTIONS);
    let loading = Step::Error(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS);
    let moved = Step::Error(ErrorCode::NOT_COORDINATOR);
    broker.script(
        ApiKey::InitProducerId,
        &[busy, busy, loading, moved, Step::Mute],
    );
    let producer = connect(&broker, Producer::transactional(ID)).await;
    producer.init_transactions().await.unwrap();
    assert_eq!(broker.received(ApiKey::InitProducerId).len(), 6);
    assert_eq!(
        broker.received(ApiKey::FindCoordinator).len(),
        3,
        "moved, and a lost connection"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cluster_with_old_transactions_is_refused_with_the_upgrade_named() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    broker.lock().transaction_version = 1;
    let producer = connect(&broker, Producer::transactional(ID)).await;
    let error = producer.init_transactions().await.unwrap_err();
    assert!(
        matches!(error, TransactionError::TransactionVersion { found: 1 }),
        "{error}"
    );
    let text = error.to_string();
    for part in ["transaction.version=2", "allow_transaction_version_below_2"] {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_abort_drops_what_was_not_sent_and_nothing_of_it_shows_later() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let producer = ready(&broker).await;
    producer.begin().unwrap();
    drop(producer.send(record("sent")).await.unwrap());
    producer.flush().await.unwrap();
    let unsent = producer.send(record("unsent")).await.unwrap();
    producer.abort().await.unwrap();
    let error = unsent.await.unwrap_err();
    assert!(matches!(error, DeliveryError::Aborted { .. }), "{error}");
    producer.begin().unwrap();
    drop(producer.send(record("next")).await.unwrap());
    producer.commit().await.unwrap();
    assert_eq!(broker.values("out", 0), ["sent", "next"]);
    assert_eq!(ends(&broker), [(false, 0), (true, 1)]);
}

#[tokio::test(start_paused = true)]
async fn b49_a_retriable_failure_inside_a_transaction_loses_nothing() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let producer = ready(&broker).await;
    for n in 0..20 {
        let step = [
            Step::LoseAnswer,
            Step::Error(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        ][n % 2];
        broker.script(ApiKey::Produce, &[step]);
        producer.begin().unwrap();
        drop(producer.send(record(&n.to_string())).await.unwrap());
        producer.commit().await.unwrap();
    }
    let expected: Vec<_> = (0..20).map(|n| n.to_string()).collect();
    assert_eq!(broker.values("out", 0), expected);
}

#[tokio::test(start_paused = true)]
async fn f3_offsets_of_a_lost_membership_fail_the_transaction_not_the_producer() {
    for code in [
        ErrorCode::ILLEGAL_GENERATION,
        ErrorCode::UNKNOWN_MEMBER_ID,
        ErrorCode::FENCED_INSTANCE_ID,
    ] {
        let broker = ScriptedBroker::new(&[("out", 1)]);
        let producer = ready(&broker).await;
        producer.begin().unwrap();
        drop(producer.send(record("a")).await.unwrap());
        broker.script(ApiKey::TxnOffsetCommit, &[Step::Error(code)]);
        let error = producer
            .send_offsets(&offsets(1), &group())
            .await
            .unwrap_err();
        assert!(
            matches!(error, TransactionError::Abortable { .. }),
            "{code}: {error}"
        );
        producer.commit().await.unwrap_err();
        producer.abort().await.unwrap();
        assert!(broker.lock().offsets.is_empty());
        producer.begin().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn offsets_whose_sending_was_dropped_keep_the_transaction_from_committing() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let producer = ready(&broker).await;
    producer.begin().unwrap();
    drop(producer.send(record("a")).await.unwrap());
    broker.script(ApiKey::TxnOffsetCommit, &[Step::Mute]);
    let (group, offsets) = (group(), offsets(1));
    let dropped = producer.send_offsets(&offsets, &group);
    assert!(
        tokio::time::timeout(Duration::from_secs(1), dropped)
            .await
            .is_err()
    );
    let error = producer.commit().await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("send_offsets() did not complete"),
        "{error}"
    );
    producer.abort().await.unwrap();
}

// Row 114.
#[tokio::test(start_paused = true)]
async fn offsets_of_a_consumer_that_breaks_exactly_once_are_refused() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let producer = ready(&broker).await;
    producer.begin().unwrap();
    let auto_commit = GroupMetadata {
        auto_commit: true,
        ..group()
    };
    let error = producer
        .send_offsets(&offsets(1), &auto_commit)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("enable.auto.commit"), "{error}");
    let nameless = GroupMetadata {
        member_id: String::new(),
        ..group()
    };
    let error = producer
        .send_offsets(&offsets(1), &nameless)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("member id"), "{error}");
    assert_eq!(producer.transaction_state(), Some(State::InTransaction));
    let alone = GroupMetadata::without_membership("g");
    producer.send_offsets(&offsets(1), &alone).await.unwrap();
    producer.commit().await.unwrap();
}

// Row 123.
#[tokio::test(start_paused = true)]
async fn while_the_coordinator_is_away_calls_wait_and_then_say_so() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let producer = ready(&broker).await;
    producer.begin().unwrap();
    drop(producer.send(record("a")).await.unwrap());
    producer.flush().await.unwrap();
    broker.lock().refuse_connections = true;
    producer.cluster().disconnect();
    let started = Instant::now();
    let error = producer.commit().await.unwrap_err();
    assert!(started.elapsed() <= Duration::from_secs(11));
    assert!(
        matches!(error, TransactionError::Timeout { .. }),
        "nothing was sent: {error}"
    );
    broker.lock().refuse_connections = false;
    producer.commit().await.unwrap();
    assert_eq!(ends(&broker), [(true, 0)]);
}

#[tokio::test(start_paused = true)]
async fn close_aborts_the_open_transaction_and_stays_bounded() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let producer = ready(&broker).await;
    producer.begin().unwrap();
    drop(producer.send(record("a")).await.unwrap());
    producer.flush().await.unwrap();
    producer.close(Duration::from_secs(5)).await;
    assert_eq!(ends(&broker), [(false, 0)]);

    let silent = ready(&broker).await;
    silent.begin().unwrap();
    drop(silent.send(record("b")).await.unwrap());
    silent.flush().await.unwrap();
    broker.always(ApiKey::EndTxn, Step::Swallow);
    let started = Instant::now();
    silent.close(Duration::from_secs(2)).await;
    assert_eq!(started.elapsed(), Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_was_carried_out_is_told_whatever_ends_the_producer_meanwhile() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let producer = ready(&broker).await;
    producer.begin().unwrap();
    drop(producer.send(record("a")).await.unwrap());
    producer.flush().await.unwrap();
    broker.script(ApiKey::EndTxn, &[Step::Delay(Duration::from_secs(2))]);
    let ending = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let reason = "the credentials are refused";
        producer.handle.shared.fail_producer(&reason.into());
    };
    let (committed, ()) = tokio::join!(producer.commit(), ending);
    committed.unwrap();
    assert_eq!(ends(&broker), [(true, 0)]);
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_used_up_its_buffer_time_cannot_commit() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let builder = Producer::transactional(ID).max_block_ms(1_000);
    let producer = connect(&broker, builder).await;
    producer.init_transactions().await.unwrap();
    producer.begin().unwrap();
    let lost = producer
        .send(ProducerRecord::new("nowhere").value("x"))
        .await
        .unwrap();
    lost.await.unwrap_err();
    let error = producer.commit().await.unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
    producer.abort().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_commit_in_doubt_that_is_then_refused_is_ended_by_a_new_epoch_not_by_an_abort() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let producer = ready(&broker).await;
    producer.begin().unwrap();
    drop(producer.send(record("a")).await.unwrap());
    let abortable = Step::Error(ErrorCode::TRANSACTION_ABORTABLE);
    broker.script(ApiKey::EndTxn, &[Step::Disconnect, abortable]);
    let error = producer.commit().await.unwrap_err();
    assert!(
        matches!(error, TransactionError::Abortable { .. }),
        "{error}"
    );
    producer.abort().await.unwrap();
    assert_eq!(ends(&broker), [(true, 0), (true, 0)]);
    assert_eq!(broker.received(ApiKey::InitProducerId).len(), 2);
    producer.begin().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_cannot_be_built_costs_its_transaction_and_not_its_partition() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let producer = ready(&broker).await;
    for round in 0..3 {
        producer.begin().unwrap();
        let lost = producer.send(record("lost")).await.unwrap();
        producer.handle.shared.lock().spoil_head(0);
        producer.flush().await.unwrap();
        lost.await.unwrap_err();
        let error = producer.commit().await.unwrap_err();
        assert!(
            matches!(error, TransactionError::Abortable { .. }),
            "{error}"
        );
        producer.abort().await.unwrap();
        producer.begin().unwrap();
        let text = round.to_string();
        producer.send(record(&text)).await.unwrap().await.unwrap();
        producer.commit().await.unwrap();
    }
    assert_eq!(broker.values("out", 0), ["0", "1", "2"]);
}

/// The coordinator's time-out took the producer's epoch; nobody else has one. Ours says 90 to the
/// commit then, an Apache Kafka 48.
#[tokio::test(start_paused = true)]
async fn a_commit_that_comes_after_the_coordinators_time_out_is_abortable() {
    let codes = [ErrorCode::PRODUCER_FENCED, ErrorCode::INVALID_TXN_STATE];
    let before = [None, Some(Step::Disconnect)];
    for (refused, before) in codes
        .into_iter()
        .flat_map(|code| before.map(|step| (code, step)))
    {
        let broker = ScriptedBroker::new(&[("out", 1)]);
        let producer = ready(&broker).await;
        producer.begin().unwrap();
        drop(producer.send(record("late")).await.unwrap());
        producer.flush().await.unwrap();
        let fenced = Step::Error(refused);
        let steps: Vec<_> = before.into_iter().chain([fenced]).collect();
        broker.script(ApiKey::EndTxn, &steps);
        let error = producer.commit().await.unwrap_err();
        let TransactionError::Abortable { code, .. } = &error else {
            panic!("{before:?}: {error}");
        };
        assert_eq!(*code, Some(refused));
        let text = error.to_string();
        assert!(text.contains("transaction.timeout.ms"), "{text}");
        let asked = broker.received(ApiKey::InitProducerId);
        if refused == ErrorCode::PRODUCER_FENCED {
            assert_eq!(
                asked.last().unwrap().producer,
                Some((1000, 0)),
                "it asks with the epoch it had, which a successor's would refuse"
            );
        }
        producer.abort().await.unwrap();
        if refused == ErrorCode::INVALID_TXN_STATE {
            assert_eq!(ends(&broker).last(), Some(&(false, 0)));
            assert_eq!(asked.len(), 1, "the abort brings the next epoch");
        }
        producer.begin().unwrap();
        drop(producer.send(record("again")).await.unwrap());
        producer.commit().await.unwrap();
        assert_eq!(ends(&broker).last(), Some(&(true, 1)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_comes_back_too_large_during_the_abort_is_gone_with_its_transaction() {
    for version in [2, 1] {
        let broker = ScriptedBroker::new(&[("out", 1)]);
        broker.lock().transaction_version = version;
        broker.lock().max_message_bytes = 300;
        let builder = Producer::transactional(ID).allow_transaction_version_below_2(true);
        let producer = connect(&broker, builder.linger_ms(50)).await;
        producer.init_transactions().await.unwrap();
        producer.begin().unwrap();
        broker.script(ApiKey::Produce, &[Step::Delay(Duration::from_secs(5))]);
        let mut deliveries = Vec::new();
        for n in 0..20 {
            let record = record(&format!("{n:0>30}"));
            deliveries.push(producer.send(record).await.unwrap());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(broker.received(ApiKey::Produce).len(), 0, "on its way");
        producer.abort().await.unwrap();
        for delivery in deliveries {
            let error = delivery.await.unwrap_err();
            assert!(matches!(error, DeliveryError::Aborted { .. }), "{error}");
        }
        assert_eq!(producer.buffered_bytes(), 0);
        goes_on(&broker, &producer).await;
        assert_eq!(broker.received(ApiKey::Produce).len(), 2, "{version}");
    }
}
