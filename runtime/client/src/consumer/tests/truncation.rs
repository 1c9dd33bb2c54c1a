//! Leader changes: positions are validated, lost tails are noticed, hints are used.

use std::time::Duration;

use millstream_protocol::{ApiKey, ErrorCode};
use tokio::time::Instant;

use super::broker::{FakeBroker, Fault, Log};
use super::{SECOND, connect, tp, values};
use crate::consumer::{AutoOffsetReset, Consumer, ConsumerBuilder, ConsumerError};
use crate::group::OffsetAndMetadata;

/// A log with a record in each of the offsets 0 to 4, written in epoch 0.
fn five() -> FakeBroker {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.with("a", 0, |log| {
        for value in ["0", "1", "2", "3", "4"] {
            log.write(&[value]);
        }
    });
    broker
}

async fn reader(broker: &FakeBroker, builder: ConsumerBuilder) -> Consumer {
    let consumer = builder.connect(&broker.transport()).await.unwrap();
    consumer.assign(vec![tp("a", 0)]).unwrap();
    consumer
}

async fn all(consumer: &Consumer, count: usize) -> Vec<String> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let polled = consumer.poll(5 * SECOND).await.unwrap();
        assert!(!polled.partitions.is_empty(), "after {seen:?}");
        seen.extend(values(&polled));
    }
    seen
}

fn policy(reset: AutoOffsetReset) -> ConsumerBuilder {
    Consumer::builder().auto_offset_reset(reset)
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_with_the_same_log_is_asked_once_and_reading_goes_on() {
    let broker = five();
    let consumer = reader(&broker, policy(AutoOffsetReset::Earliest)).await;
    assert_eq!(all(&consumer, 5).await, ["0", "1", "2", "3", "4"]);
    assert_eq!(broker.count(ApiKey::OffsetForLeaderEpoch), 0);
    broker.with("a", 0, |log| {
        log.elect(2, 1, 5);
        log.write(&["5"]);
    });
    assert_eq!(all(&consumer, 1).await, ["5"]);
    assert_eq!(broker.count(ApiKey::OffsetForLeaderEpoch), 1);
    let offsets = consumer.offsets_to_commit();
    assert_eq!(offsets[0].1.offset, 6);
    assert_eq!(offsets[0].1.leader_epoch, Some(1));
}

#[tokio::test(start_paused = true)]
async fn b45_a_log_that_lost_its_tail_is_an_error_that_names_where_it_parts() {
    for builder in [
        // Nothing but the position says where to begin.
        policy(AutoOffsetReset::None),
        // A job under exactly-once: what it made of the records cannot be taken back.
        policy(AutoOffsetReset::Earliest).out_of_range_fails(true),
    ] {
        let broker = five();
        let consumer = reader(&broker, builder).await;
        consumer.seek(&tp("a", 0), 0).unwrap();
        assert_eq!(all(&consumer, 5).await.len(), 5);
        // Others are written where the lost ones were, so that the offset alone shows nothing.
        broker.with("a", 0, |log| {
            log.elect(2, 1, 3);
            for value in ["three", "four", "five"] {
                log.write(&[value]);
            }
        });
        let error = loop {
            match consumer.poll(SECOND).await {
                Ok(records) => assert!(records.is_empty(), "{:?}", values(&records)),
                Err(error) => break error,
            }
        };
        let ConsumerError::LogTruncation {
            offset,
            leader_epoch,
            divergent_offset,
            ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!((*offset, *leader_epoch, *divergent_offset), (5, 0, Some(3)));
        let text = error.to_string();
        assert!(
            text.contains("a-0") && text.contains("before offset 5"),
            "{text}"
        );
        // Nothing else happens before a seek; then it goes on.
        let again = consumer.poll(SECOND).await.unwrap_err();
        assert_eq!(again.to_string(), text);
        consumer.seek(&tp("a", 0), 3).unwrap();
        assert_eq!(all(&consumer, 3).await, ["three", "four", "five"]);
    }
}

#[tokio::test(start_paused = true)]
async fn with_a_policy_reading_goes_on_where_the_log_parts() {
    let broker = five();
    let consumer = reader(&broker, policy(AutoOffsetReset::Latest)).await;
    consumer.seek(&tp("a", 0), 0).unwrap();
    assert_eq!(all(&consumer, 5).await.len(), 5);
    broker.with("a", 0, |log| {
        log.elect(2, 1, 3);
        log.write(&["three"]);
        log.write(&["four"]);
    });
    assert_eq!(all(&consumer, 2).await, ["three", "four"]);
    // An epoch that the leader does not know at all: as the policy says.
    broker.with("a", 0, |log| log.start = 2);
    let committed = OffsetAndMetadata {
        offset: 4,
        leader_epoch: Some(1),
        ..Default::default()
    };
    broker.fault(ApiKey::OffsetForLeaderEpoch, Fault::Delay(Duration::ZERO));
    consumer.seek(&tp("a", 0), committed).unwrap();
    assert_eq!(all(&consumer, 1).await, ["four"]);
}

#[tokio::test(start_paused = true)]
async fn a_committed_offset_is_validated_under_the_epoch_that_was_committed_with_it() {
    let broker = five();
    let group = || policy(AutoOffsetReset::None).group_id("g");
    let first = reader(&broker, group()).await;
    first.seek(&tp("a", 0), 0).unwrap();
    assert_eq!(all(&first, 5).await.len(), 5);
    first.commit().await.unwrap();
    first.close().await.unwrap();
    broker.with("a", 0, |log| {
        assert_eq!((log.committed, log.committed_epoch), (Some(5), Some(0)));
        log.elect(2, 1, 2);
        for value in ["two", "three", "four", "five"] {
            log.write(&[value]);
        }
    });
    let second = reader(&broker, group()).await;
    let error = second.poll(5 * SECOND).await.unwrap_err();
    let lost = matches!(
        error,
        ConsumerError::LogTruncation {
            offset: 5,
            divergent_offset: Some(2),
            ..
        }
    );
    assert!(lost, "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_committed_epoch_that_is_newer_than_the_metadata_waits_for_new_metadata() {
    let broker = five();
    broker.with("a", 0, |log| {
        log.committed = Some(4);
        log.committed_epoch = Some(1);
    });
    let builder = policy(AutoOffsetReset::None).group_id("g");
    let consumer = reader(&broker, builder).await;
    // A broker that lags: it must be neither fetched from nor believed.
    assert!(consumer.poll(2 * SECOND).await.unwrap().is_empty());
    assert_eq!(broker.count(ApiKey::Fetch), 0);
    broker.with("a", 0, |log| {
        log.elect(2, 1, 3);
        log.write(&["three"]);
        log.write(&["four"]);
    });
    assert_eq!(all(&consumer, 1).await, ["four"]);
}

#[tokio::test(start_paused = true)]
async fn validation_is_asked_again_until_the_leader_can_answer() {
    let broker = five();
    let consumer = reader(&broker, policy(AutoOffsetReset::None)).await;
    consumer.seek(&tp("a", 0), 0).unwrap();
    assert_eq!(all(&consumer, 5).await.len(), 5);
    for fault in [
        Fault::Code(ErrorCode::FENCED_LEADER_EPOCH),
        Fault::Code(ErrorCode::UNKNOWN_LEADER_EPOCH),
        Fault::Code(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        Fault::Disconnect,
    ] {
        broker.fault(ApiKey::OffsetForLeaderEpoch, fault);
    }
    broker.with("a", 0, |log| {
        log.elect(2, 1, 5);
        log.write(&["5"]);
    });
    assert_eq!(all(&consumer, 1).await, ["5"]);
    assert_eq!(broker.count(ApiKey::OffsetForLeaderEpoch), 5);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_names_the_new_leader_needs_no_metadata() {
    let broker = five();
    let consumer = reader(&broker, policy(AutoOffsetReset::Earliest)).await;
    assert_eq!(all(&consumer, 5).await.len(), 5);
    // Nobody answers for the metadata.
    for _ in 0..1_000 {
        broker.fault(ApiKey::Metadata, Fault::Delay(60 * SECOND));
    }
    broker.with("a", 0, |log| {
        log.elect(2, 1, 5);
        log.write(&["5"]);
    });
    let start = Instant::now();
    assert_eq!(all(&consumer, 1).await, ["5"]);
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_reset_by_duration_begins_at_what_is_young_enough_else_at_the_end() {
    // All records of the fake broker are from millisecond 7, long before now.
    let hour = Duration::from_secs(3_600);
    let broker = five();
    let consumer = reader(&broker, policy(AutoOffsetReset::ByDuration(hour))).await;
    assert!(consumer.poll(SECOND).await.unwrap().is_empty());
    assert_eq!(consumer.position(&tp("a", 0)), Some(5));
    broker.with("a", 0, |log| log.write(&["new"]));
    assert_eq!(all(&consumer, 1).await, ["new"]);

    let ages = AutoOffsetReset::ByDuration(Duration::from_secs(200 * 365 * 86_400));
    let consumer = connect(&broker, policy(ages)).await;
    drop(consumer);
    let consumer = reader(&broker, policy(ages)).await;
    assert_eq!(all(&consumer, 6).await.len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_reset_by_duration_skips_nothing_that_is_written_between_its_questions() {
    let broker = five();
    for _ in 0..2 {
        broker.fault(ApiKey::ListOffsets, Fault::Delay(SECOND));
    }
    let hour = Duration::from_secs(3_600);
    let consumer = reader(&broker, policy(AutoOffsetReset::ByDuration(hour))).await;
    assert!(consumer.poll(SECOND * 3 / 2).await.unwrap().is_empty());
    broker.with("a", 0, |log| log.write(&["between"]));
    assert_eq!(all(&consumer, 1).await, ["between"]);
}

/// The next batch is looked into before the poll ends, but nothing of it was read.
#[tokio::test(start_paused = true)]
async fn a_position_at_a_batchs_end_has_the_epoch_of_the_record_before_it() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.with("a", 0, |log| {
        log.write(&["0"]);
        log.elect(2, 1, 1);
        log.write(&["1"]);
    });
    let consumer = reader(
        &broker,
        policy(AutoOffsetReset::Earliest).max_poll_records(1),
    )
    .await;
    for (offset, epoch) in [(1, 0), (2, 1)] {
        assert_eq!(all(&consumer, 1).await.len(), 1);
        let position = consumer.offsets_to_commit().remove(0).1;
        assert_eq!(
            (position.offset, position.leader_epoch),
            (offset, Some(epoch))
        );
    }
}

/// It was away, and has lost a tail: the node is the same, the epoch is not.
#[tokio::test(start_paused = true)]
async fn a_leader_that_is_elected_again_is_asked_as_another_one_is() {
    let broker = five();
    let consumer = reader(&broker, policy(AutoOffsetReset::Latest)).await;
    consumer.seek(&tp("a", 0), 0).unwrap();
    assert_eq!(all(&consumer, 5).await.len(), 5);
    broker.with("a", 0, |log| {
        log.elect(1, 1, 3);
        for value in ["three", "four", "five"] {
            log.write(&[value]);
        }
    });
    assert_eq!(all(&consumer, 3).await, ["three", "four", "five"]);
}

/// The first leader that the metadata names in the end is one that has lost what was committed.
#[tokio::test(start_paused = true)]
async fn a_position_that_waited_for_a_leader_is_validated_by_it() {
    let broker = five();
    broker.with("a", 0, |log| {
        log.committed = Some(5);
        log.committed_epoch = Some(1);
    });
    let builder = policy(AutoOffsetReset::None).group_id("g");
    let consumer = reader(&broker, builder).await;
    assert!(consumer.poll(2 * SECOND).await.unwrap().is_empty());
    broker.with("a", 0, |log| {
        log.elect(2, 2, 3);
        for value in ["three", "four", "five"] {
            log.write(&[value]);
        }
    });
    let error = consumer.poll(5 * SECOND).await.unwrap_err();
    let lost = matches!(
        error,
        ConsumerError::LogTruncation {
            offset: 5,
            divergent_offset: Some(3),
            ..
        }
    );
    assert!(lost, "{error}");
}

/// A node that does not know yet that it leads no more must not say where the log ends.
#[tokio::test(start_paused = true)]
async fn a_reset_asks_under_the_epoch_of_the_leader() {
    let broker = five();
    let first = reader(&broker, policy(AutoOffsetReset::Earliest)).await;
    assert_eq!(all(&first, 5).await.len(), 5);
    broker.with("a", 0, |log| log.elect(1, 1, 5));
    first.seek_to_end(&tp("a", 0)).unwrap();
    assert!(first.poll(SECOND).await.unwrap().is_empty());
    assert_eq!(first.position(&tp("a", 0)), Some(5));
    assert!(broker.count(ApiKey::ListOffsets) > 2, "refused once");
}

/// What is buffered was read while it was there.
#[tokio::test(start_paused = true)]
async fn records_in_the_buffer_are_handed_out_before_the_log_is_out_of_range() {
    let broker = five();
    let builder = policy(AutoOffsetReset::Earliest).max_poll_records(1);
    let consumer = reader(&broker, builder).await;
    assert_eq!(all(&consumer, 1).await, ["0"]);
    broker.with("a", 0, |log| {
        for value in ["5", "6", "7"] {
            log.write(&[value]);
        }
        log.start = 7;
        log.batches.retain(|batch| batch.base_offset() >= 7);
    });
    tokio::time::sleep(SECOND).await;
    assert_eq!(all(&consumer, 5).await, ["1", "2", "3", "4", "7"]);
}

/// Nobody knows where the log parts from what was read: it begins where the policy says.
#[tokio::test(start_paused = true)]
async fn where_the_leader_knows_no_epochs_the_policy_decides() {
    let broker = five();
    let consumer = reader(&broker, policy(AutoOffsetReset::Earliest)).await;
    broker.with("a", 0, Log::forget_epochs);
    let position = OffsetAndMetadata {
        offset: 3,
        leader_epoch: Some(0),
        ..Default::default()
    };
    consumer.seek(&tp("a", 0), position).unwrap();
    assert_eq!(all(&consumer, 5).await, ["0", "1", "2", "3", "4"]);
}
