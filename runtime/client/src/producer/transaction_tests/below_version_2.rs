//! Transactions of clusters whose `transaction.version` is below 2: partitions are added by
//! requests of their own, and an end brings no epoch.

use super::*;

#[tokio::test(start_paused = true)]
async fn version_1_adds_partitions_and_offsets_before_they_are_written() {
    let broker = ScriptedBroker::new(&[("out", 2)]);
    broker.lock().transaction_version = 1;
    let busy = Step::Error(ErrorCode::CONCURRENT_TRANSACTIONS);
    broker.script(ApiKey::AddPartitionsToTxn, &[busy, Step::LoseAnswer]);
    let builder = Producer::transactional(ID).allow_transaction_version_below_2(true);
    let producer = connect(&broker, builder).await;
    producer.init_transactions().await.unwrap();
    for n in 0..2 {
        producer.begin().unwrap();
        drop(producer.send(record(&n.to_string())).await.unwrap());
        producer.send_offsets(&offsets(n), &group()).await.unwrap();
        producer.commit().await.unwrap();
    }
    assert_eq!(broker.received(ApiKey::AddOffsetsToTxn).len(), 2);
    assert_eq!(broker.received(ApiKey::AddPartitionsToTxn).len(), 4);
    let produced = broker.received(ApiKey::Produce);
    assert!(produced.iter().all(|request| request.version <= 11));
    assert!(
        broker
            .received(ApiKey::TxnOffsetCommit)
            .iter()
            .all(|request| request.version <= 4)
    );
    let sequences: Vec<_> = produced
        .iter()
        .map(|r| RecordBatch::parse(r.batches[0].2.clone()).unwrap())
        .map(|batch| (batch.producer_epoch(), batch.base_sequence()))
        .collect();
    assert_eq!(sequences, [(0, 0), (0, 1)], "one epoch, sequences go on");
    assert_eq!(broker.values("out", 0), ["0", "1"]);
}

// Row 125: before transaction version 2 an abort leaves the epoch as it was.
#[tokio::test(start_paused = true)]
async fn under_version_1_an_old_epoch_at_the_log_is_left_by_an_abort_and_then_the_next() {
    for at_group in [false, true] {
        let broker = ScriptedBroker::new(&[("out", 1)]);
        broker.lock().transaction_version = 1;
        let builder = Producer::transactional(ID).allow_transaction_version_below_2(true);
        let producer = connect(&broker, builder).await;
        producer.init_transactions().await.unwrap();
        producer.begin().unwrap();
        let error = old_epoch(&broker, &producer, at_group).await;
        assert!(
            matches!(error, TransactionError::Abortable { .. }),
            "{error}"
        );
        producer.abort().await.unwrap();
        assert_eq!(
            ends(&broker),
            [(false, 0)],
            "asked for an epoch before, the coordinator would fence"
        );
        assert_eq!(broker.received(ApiKey::InitProducerId).len(), 2);
        assert_eq!(producer.identity().unwrap().epoch, 1);
        goes_on(&broker, &producer).await;
    }
}

#[tokio::test(start_paused = true)]
async fn under_version_1_a_partition_that_never_got_in_costs_one_transaction() {
    let refused = [
        Step::Error(ErrorCode::TOPIC_AUTHORIZATION_FAILED),
        // The markers of the transaction before are still on their way.
        Step::Error(ErrorCode::CONCURRENT_TRANSACTIONS),
        Step::Swallow,
    ];
    for (step, before) in refused
        .into_iter()
        .flat_map(|step| [(step, false), (step, true)])
    {
        let broker = ScriptedBroker::new(&[("out", 1)]);
        let producer = ready_below_2(&broker).await;
        let mut values = vec!["a"];
        if before {
            goes_on(&broker, &producer).await;
            values.push("a");
        }
        broker.always(ApiKey::AddPartitionsToTxn, step);
        producer.begin().unwrap();
        drop(producer.send(record("lost")).await.unwrap());
        tokio::time::sleep(Duration::from_secs(1)).await;
        producer.abort().await.unwrap();
        broker.always(ApiKey::AddPartitionsToTxn, Step::Pass);
        assert_eq!(producer.identity().unwrap().epoch, 1, "{step:?} {before}");
        goes_on_behind(&broker, &producer, &values).await;
    }
}

async fn ready_below_2(broker: &ScriptedBroker) -> Producer {
    broker.lock().transaction_version = 1;
    let builder = Producer::transactional(ID).allow_transaction_version_below_2(true);
    let producer = connect(broker, builder.max_block_ms(10_000)).await;
    producer.init_transactions().await.unwrap();
    producer
}

#[tokio::test(start_paused = true)]
async fn under_version_1_a_commit_in_doubt_is_decided_before_an_epoch_is_asked_for() {
    for lost in [Step::Swallow, Step::Mute] {
        let broker = ScriptedBroker::new(&[("out", 1)]);
        let producer = ready_below_2(&broker).await;
        producer.begin().unwrap();
        drop(producer.send(record("a")).await.unwrap());
        broker.always(ApiKey::EndTxn, lost);
        let error = producer.commit().await.unwrap_err();
        assert!(
            matches!(error, TransactionError::CommitInDoubt { .. }),
            "{error}"
        );
        let error = producer.init_transactions().await.unwrap_err();
        assert!(
            matches!(error, TransactionError::CommitInDoubt { .. }),
            "{error}"
        );
        broker.always(ApiKey::EndTxn, Step::Pass);
        producer.init_transactions().await.unwrap();
        assert_eq!(broker.lock().ended, [(1000, 0, true)], "{lost:?}");
        assert_eq!(producer.identity().unwrap().epoch, 1);
        goes_on_behind(&broker, &producer, &["a", "a"]).await;
    }
}

/// The request about the partitions waits for a coordinator that is away, and is the last to find
/// out that it has come back.
#[tokio::test(start_paused = true)]
async fn under_version_1_an_abort_waits_for_what_is_said_of_the_partitions() {
    let answers = [
        Step::Pass,
        Step::Error(ErrorCode::TOPIC_AUTHORIZATION_FAILED),
        Step::Error(ErrorCode::INVALID_PRODUCER_ID_MAPPING),
    ];
    let waits = (4_000..5_000).step_by(200);
    for (answer, wait_ms) in answers
        .into_iter()
        .flat_map(|answer| waits.clone().map(move |wait| (answer, wait)))
    {
        let broker = ScriptedBroker::new(&[("out", 1)]);
        let producer = ready_below_2(&broker).await;
        let moved = Step::Error(ErrorCode::NOT_COORDINATOR);
        broker.script(ApiKey::AddPartitionsToTxn, &[moved, answer]);
        let away = Step::Error(ErrorCode::COORDINATOR_NOT_AVAILABLE);
        broker.always(ApiKey::FindCoordinator, away);
        producer.begin().unwrap();
        drop(producer.send(record("lost")).await.unwrap());
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        let back = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            broker.always(ApiKey::FindCoordinator, Step::Pass);
        };
        let (aborted, ()) = tokio::join!(producer.abort(), back);
        aborted.unwrap();
        producer.begin().unwrap();
        // Whatever is late has come.
        tokio::time::sleep(Duration::from_secs(2)).await;
        drop(producer.send(record("a")).await.unwrap());
        let committed = producer.commit().await;
        assert!(committed.is_ok(), "{answer:?} {wait_ms}: {committed:?}");
        assert_eq!(broker.values("out", 0), ["a"], "{answer:?} {wait_ms}");
    }
}
