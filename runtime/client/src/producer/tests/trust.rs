//! What a refused connection does to a producer: some end it, some pass.

use std::io;

use async_trait::async_trait;

use super::*;
use crate::error::TransactionError;
use crate::security::{Mechanism, SecurityError};
use crate::transport::{BrokerAddress, FrameConnection, Transport};

fn expired() -> SecurityError {
    SecurityError::Tls {
        broker: BrokerAddress::new("scripted", 9092),
        reason: "the certificate has expired".into(),
        next_step: "renew it",
    }
}

fn wrong_password() -> SecurityError {
    SecurityError::AuthenticationFailed {
        mechanism: Mechanism::ScramSha512,
        user: "orders".into(),
        broker: BrokerAddress::new("scripted", 9092),
        code: ErrorCode::SASL_AUTHENTICATION_FAILED,
        message: "".into(),
    }
}

/// A producer that has written one record, and then lost its connections.
async fn trusted(broker: &ScriptedBroker) -> Producer {
    let producer = producer(broker, small()).await;
    let first = producer.send(record("orders", "0")).await.unwrap();
    first.await.unwrap();
    producer
}

async fn refused(producer: &Producer, broker: &ScriptedBroker, how: SecurityError) -> Delivery {
    broker.lock().distrust = Some(how);
    producer.cluster().disconnect();
    producer.send(record("orders", "1")).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_expires_is_waited_for_until_it_is_renewed() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = trusted(&broker).await;
    let delivery = refused(&producer, &broker, expired()).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    broker.lock().distrust = None;
    assert_eq!(delivery.await.unwrap().offset, 1);
    producer.flush().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_stays_expired_is_named_when_the_time_is_over() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = trusted(&broker).await;
    let delivery = refused(&producer, &broker, expired()).await;
    let started = Instant::now();
    let error = delivery.await.unwrap_err();
    assert!(started.elapsed() >= Duration::from_secs(119));
    assert!(matches!(error, DeliveryError::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("expired"), "{error}");
    broker.lock().distrust = None;
    let next = producer.send(record("orders", "2")).await.unwrap();
    next.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_end_a_producer_that_has_worked() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = trusted(&broker).await;
    let started = Instant::now();
    let delivery = refused(&producer, &broker, wrong_password()).await;
    let error = delivery.await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(matches!(error, DeliveryError::Security { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_was_never_believed_fails_at_once() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    broker.lock().distrust = Some(expired());
    let cluster = Cluster::new(broker.transport(), client());
    let started = Instant::now();
    let error = cluster
        .topic_within("orders", Duration::from_secs(60))
        .await;
    assert!(error.unwrap_err().security().is_some());
    assert!(started.elapsed() < Duration::from_secs(5));
}

/// Two addresses of one cluster; at one of them the certificate has expired.
#[derive(Debug)]
struct TwoAddresses {
    broker: ScriptedBroker,
    expired: u16,
}

#[async_trait]
impl Transport for TwoAddresses {
    async fn connect(&self, address: &BrokerAddress) -> io::Result<FrameConnection> {
        match address.port == self.expired {
            true => Err(io::Error::other(expired())),
            false => self.broker.connect(address).await,
        }
    }

    fn bootstrap(&self) -> Vec<BrokerAddress> {
        [1, 2]
            .map(|port| BrokerAddress::new("scripted", port))
            .into()
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_certificate_at_one_address_keeps_nobody_from_the_others() {
    for expired in [1, 2] {
        let broker = ScriptedBroker::new(&[("orders", 1)]);
        let cluster = Cluster::new(Arc::new(TwoAddresses { broker, expired }), client());
        let found = cluster
            .topic_within("orders", Duration::from_secs(60))
            .await;
        found.unwrap();
    }
}

/// Whatever keeps it from being asked again, it may have been carried out.
#[tokio::test(start_paused = true)]
async fn a_commit_whose_answer_was_lost_stays_in_doubt_when_credentials_are_refused() {
    let broker = ScriptedBroker::new(&[("orders", 1)]);
    let producer = producer(&broker, Producer::transactional("t")).await;
    producer.init_transactions().await.unwrap();
    producer.begin().unwrap();
    drop(producer.send(record("orders", "0")).await.unwrap());
    producer.flush().await.unwrap();
    broker.script(ApiKey::EndTxn, &[Step::LoseAnswer]);
    broker.lock().distrust = Some(wrong_password());
    let error = producer.commit().await.unwrap_err();
    assert!(
        matches!(error, TransactionError::CommitInDoubt { .. }),
        "{error}"
    );
}
