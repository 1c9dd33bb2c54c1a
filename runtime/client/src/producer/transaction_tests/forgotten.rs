//! Transactional ids that their coordinator has forgotten, as it does with those that are idle.

use super::*;

/// A coordinator forgets an id that was idle for `transactional.id.expiration.ms`.
#[tokio::test(start_paused = true)]
async fn an_id_that_was_forgotten_costs_one_transaction_and_is_taken_in_again() {
    let forgotten = Step::Error(ErrorCode::INVALID_PRODUCER_ID_MAPPING);
    let apis = [
        (ApiKey::Produce, 2),
        (ApiKey::TxnOffsetCommit, 2),
        (ApiKey::EndTxn, 2),
        (ApiKey::AddPartitionsToTxn, 1),
        (ApiKey::AddOffsetsToTxn, 1),
        (ApiKey::EndTxn, 1),
    ];
    for (api, version) in apis {
        let broker = ScriptedBroker::new(&[("out", 1)]);
        broker.lock().transaction_version = version;
        let builder = Producer::transactional(ID).allow_transaction_version_below_2(true);
        let producer = connect(&broker, builder).await;
        producer.init_transactions().await.unwrap();
        producer.begin().unwrap();
        broker.script(api, &[forgotten]);
        let lost = producer.send(record("lost")).await.unwrap();
        let sent = producer.send_offsets(&offsets(1), &group()).await;
        broker.lock().forget_id(ID);
        let committed = producer.commit().await;
        let error = sent.and(committed).unwrap_err();
        assert!(
            matches!(error, TransactionError::Abortable { .. }),
            "{api:?}: {error}"
        );
        let _ = lost.await;
        producer.abort().await.unwrap();
        let identity = producer.identity().unwrap();
        assert_eq!((identity.producer_id, identity.epoch), (1001, 0), "{api:?}");
        let aborts = ends(&broker).iter().filter(|end| !end.0).count();
        assert_eq!(aborts, 0, "{api:?}: there is nothing at the coordinator");
        let values: &[&str] = match api {
            ApiKey::EndTxn => &["lost", "a"],
            _ => &["a"],
        };
        goes_on_behind(&broker, &producer, values).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_that_a_successor_had_anew_is_fenced() {
    let broker = ScriptedBroker::new(&[("out", 1)]);
    let producer = ready(&broker).await;
    broker.lock().forget_id(ID);
    let successor = ready(&broker).await;
    let forgotten = Step::Error(ErrorCode::INVALID_PRODUCER_ID_MAPPING);
    broker.script(ApiKey::Produce, &[forgotten]);
    producer.begin().unwrap();
    drop(producer.send(record("a")).await.unwrap());
    producer.commit().await.unwrap_err();
    let error = producer.abort().await.unwrap_err();
    assert!(matches!(error, TransactionError::Fenced { .. }), "{error}");
    goes_on(&broker, &successor).await;
}

async fn ready_at(broker: &ScriptedBroker, version: i16) -> Producer {
    broker.lock().transaction_version = version;
    let builder = Producer::transactional(ID).allow_transaction_version_below_2(true);
    let producer = connect(broker, builder.max_block_ms(10_000)).await;
    producer.init_transactions().await.unwrap();
    producer
}

/// A producer whose commit lost its answer, and whose id was forgotten then.
async fn forgotten_in_doubt(broker: &ScriptedBroker, version: i16) -> Producer {
    let producer = ready_at(broker, version).await;
    producer.begin().unwrap();
    drop(producer.send(record("a")).await.unwrap());
    let forgotten = Step::Error(ErrorCode::INVALID_PRODUCER_ID_MAPPING);
    broker.script(ApiKey::EndTxn, &[Step::LoseAnswer, forgotten]);
    let error = producer.commit().await.unwrap_err();
    assert!(
        matches!(error, TransactionError::CommitInDoubt { .. }),
        "{error}"
    );
    broker.lock().forget_id(ID);
    producer
}

#[tokio::test(start_paused = true)]
async fn a_commit_in_doubt_that_the_coordinator_forgot_stays_in_doubt() {
    for version in [1, 2] {
        let broker = ScriptedBroker::new(&[("out", 1)]);
        let producer = forgotten_in_doubt(&broker, version).await;
        producer.init_transactions().await.unwrap();
        assert_eq!(producer.identity().unwrap().producer_id, 1001);
        goes_on_behind(&broker, &producer, &["a", "a"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_in_doubt_whose_id_a_successor_has_anew_is_fenced() {
    for version in [1, 2] {
        let broker = ScriptedBroker::new(&[("out", 1)]);
        let producer = forgotten_in_doubt(&broker, version).await;
        let successor = ready_at(&broker, version).await;
        if version < 2 {
            let forgotten = Step::Error(ErrorCode::INVALID_PRODUCER_ID_MAPPING);
            broker.script(ApiKey::EndTxn, &[forgotten]);
        }
        let error = producer.init_transactions().await.unwrap_err();
        assert!(matches!(error, TransactionError::Fenced { .. }), "{error}");
        goes_on_behind(&broker, &successor, &["a", "a"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_was_refused_is_not_in_doubt_where_no_epoch_comes() {
    for version in [1, 2] {
        let broker = ScriptedBroker::new(&[("out", 1)]);
        let producer = ready_at(&broker, version).await;
        producer.begin().unwrap();
        drop(producer.send(record("lost")).await.unwrap());
        producer.flush().await.unwrap();
        broker.lock().forget_id(ID);
        let loads = Step::Error(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS);
        broker.always(ApiKey::InitProducerId, loads);
        let error = producer.commit().await.unwrap_err();
        assert!(matches!(error, TransactionError::Timeout { .. }), "{error}");
        broker.always(ApiKey::InitProducerId, Step::Pass);
        let error = producer.commit().await.unwrap_err();
        assert!(
            matches!(error, TransactionError::Abortable { .. }),
            "{error}"
        );
        producer.abort().await.unwrap();
        goes_on_behind(&broker, &producer, &["lost", "a"]).await;
    }
}
