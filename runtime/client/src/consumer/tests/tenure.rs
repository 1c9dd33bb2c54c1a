//! Partitions that were given up in between: what may still be committed and handed out for them.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use millstream_protocol::{ApiKey, ErrorCode, TopicPartition};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::broker::{FakeBroker, Fault};
use super::{SECOND, connect, tp, values};
use crate::consumer::{Consumer, ConsumerBuilder, ConsumerError, GroupProtocol, RebalanceListener};

fn builder() -> ConsumerBuilder {
    Consumer::builder()
        .group_id("g")
        .group_protocol(GroupProtocol::Consumer)
}

async fn member(broker: &FakeBroker) -> Consumer {
    let consumer = connect(broker, builder()).await;
    consumer.subscribe(["a"]).unwrap();
    read_x(consumer).await
}

async fn read_x(consumer: Consumer) -> Consumer {
    let polled = consumer.poll(5 * SECOND).await.unwrap();
    assert_eq!(values(&polled), ["x"]);
    consumer
}

fn one_record() -> FakeBroker {
    let broker = FakeBroker::new(&[("a", 2)]);
    broker.with("a", 0, |log| log.write(&["x"]));
    broker.consumers().give(&[("a", 0)]);
    broker
}

/// A member that polls on while it commits; the broker takes every attempt for an old epoch's.
fn refused_commit(
    broker: &FakeBroker,
    consumer: &Consumer,
) -> (JoinHandle<()>, JoinHandle<Result<(), ConsumerError>>) {
    for _ in 0..1_000 {
        let stale = Fault::Code(ErrorCode::STALE_MEMBER_EPOCH);
        broker.fault(ApiKey::OffsetCommit, stale);
    }
    let (polling, committing) = (consumer.clone(), consumer.clone());
    let polls = tokio::spawn(async move { while polling.poll(SECOND).await.is_ok() {} });
    let commit = tokio::spawn(async move { committing.commit().await });
    (polls, commit)
}

#[tokio::test(start_paused = true)]
async fn a_commit_does_not_outlive_a_break_in_the_ownership_of_its_partition() {
    let broker = one_record();
    let consumer = member(&broker).await;
    let (polls, commit) = refused_commit(&broker, &consumer);
    sleep(SECOND).await;
    // Another member has the partition for a while, and goes on with it.
    broker.consumers().give(&[("a", 1)]);
    sleep(5 * SECOND).await;
    assert_eq!(consumer.assignment(), [tp("a", 1)]);
    broker.with("a", 0, |log| log.committed = Some(200));
    broker.consumers().give(&[("a", 0)]);
    sleep(5 * SECOND).await;
    broker.forget_faults();
    let error = commit.await.unwrap().unwrap_err();
    assert!(
        matches!(error, ConsumerError::CommitFenced { .. }),
        "{error}"
    );
    broker.with("a", 0, |log| assert_eq!(log.committed, Some(200)));
    polls.abort();
}

/// Another member has the partition for no longer than it takes to give it back.
#[derive(Debug)]
struct ThereAndBack {
    broker: FakeBroker,
}

#[async_trait]
impl RebalanceListener for ThereAndBack {
    async fn on_assigned(&self, _: &Consumer, partitions: &[TopicPartition]) {
        if partitions.contains(&tp("a", 1)) {
            self.broker.with("a", 0, |log| log.committed = Some(200));
            self.broker.consumers().give(&[("a", 0)]);
        } else {
            self.broker.forget_faults();
        }
    }
}

/// No attempt to commit sees the partition away: all of it happens in the pause before one.
#[tokio::test(start_paused = true)]
async fn a_commit_sees_that_its_partition_was_away_between_two_attempts() {
    let broker = one_record();
    let consumer = connect(&broker, builder()).await;
    let listener = ThereAndBack {
        broker: broker.clone(),
    };
    consumer.subscribe_with(["a"], Arc::new(listener)).unwrap();
    let consumer = read_x(consumer).await;
    let (polls, commit) = refused_commit(&broker, &consumer);
    sleep(5 * SECOND).await;
    broker.consumers().give(&[("a", 1)]);
    let error = commit.await.unwrap().unwrap_err();
    assert!(
        matches!(error, ConsumerError::CommitFenced { .. }),
        "{error}"
    );
    assert_eq!(consumer.assignment(), [tp("a", 0)]);
    broker.with("a", 0, |log| assert_eq!(log.committed, Some(200)));
    polls.abort();
}

/// The task of an automatic commit may run when the partition is another member's already, and the
/// epoch the next one.
#[tokio::test(start_paused = true)]
async fn an_automatic_commit_ends_with_the_tenure_that_its_offsets_are_of() {
    for given_up in [false, true] {
        let broker = one_record();
        let automatic = builder().enable_auto_commit(true);
        let consumer = connect(&broker, automatic).await;
        consumer.subscribe(["a"]).unwrap();
        let consumer = read_x(consumer).await;
        sleep(6 * SECOND).await;
        consumer.commit_if_due();
        if given_up {
            let mut group = consumer.inner.group.as_ref().unwrap().lock();
            group.own(BTreeSet::new());
        }
        sleep(SECOND).await;
        let committed = (!given_up).then_some(1);
        broker.with("a", 0, |log| assert_eq!(log.committed, committed));
    }
}

#[tokio::test(start_paused = true)]
async fn an_unsubscribe_whose_answer_is_not_waited_for_still_ends_the_reading() {
    let broker = one_record();
    let consumer = member(&broker).await;
    for _ in 0..3 {
        broker.fault(ApiKey::ConsumerGroupHeartbeat, Fault::Delay(10 * SECOND));
    }
    timeout(SECOND, consumer.unsubscribe()).await.unwrap_err();
    broker.with("a", 0, |log| log.write(&["of somebody else"]));
    let error = consumer.poll(20 * SECOND).await.unwrap_err();
    assert!(matches!(error, ConsumerError::NoPartitions), "{error}");
}
