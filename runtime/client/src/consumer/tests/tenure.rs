//! Partitions that were given up in between: what may still be committed and handed out for them.

use millstream_protocol::{ApiKey, ErrorCode};
use tokio::time::{sleep, timeout};

use super::broker::{FakeBroker, Fault};
use super::{SECOND, connect, tp, values};
use crate::consumer::{Consumer, ConsumerError, GroupProtocol};

async fn member(broker: &FakeBroker) -> Consumer {
    let builder = Consumer::builder()
        .group_id("g")
        .group_protocol(GroupProtocol::Consumer);
    let consumer = connect(broker, builder).await;
    consumer.subscribe(["a"]).unwrap();
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

#[tokio::test(start_paused = true)]
async fn a_commit_does_not_outlive_a_break_in_the_ownership_of_its_partition() {
    let broker = one_record();
    let consumer = member(&broker).await;
    for _ in 0..1_000 {
        let stale = Fault::Code(ErrorCode::STALE_MEMBER_EPOCH);
        broker.fault(ApiKey::OffsetCommit, stale);
    }
    let polling = consumer.clone();
    let polls = tokio::spawn(async move { while polling.poll(SECOND).await.is_ok() {} });
    let committing = consumer.clone();
    let commit = tokio::spawn(async move { committing.commit().await });
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
