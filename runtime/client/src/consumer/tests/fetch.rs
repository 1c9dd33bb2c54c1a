//! Fetching: positions, long polls, resets, races, back-pressure, damage.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use millstream_protocol::{ApiKey, ErrorCode};
use tokio::time::Instant;

use super::super::{AutoOffsetReset, Consumer, ConsumerError, Isolation};
use super::broker::{FakeBroker, Fault};
use super::{SECOND, connect, tp, values};

#[tokio::test(start_paused = true)]
async fn a_poll_hands_out_what_is_there_and_moves_the_position() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.with("a", 0, |log| log.write(&["x", "y"]));
    let consumer = connect(&broker, Consumer::builder()).await;
    consumer.assign(vec![tp("a", 0)]).unwrap();
    assert_eq!(consumer.position(&tp("a", 0)), None);
    let records = consumer.poll(SECOND).await.unwrap();
    assert_eq!(values(&records), ["x", "y"]);
    let part = &records.partitions[0];
    assert_eq!((part.next_offset, part.records[1].offset), (2, 1));
    assert_eq!(
        (part.records[0].timestamp, &part.records[0].key.as_deref()),
        (7, &Some(&b"k"[..]))
    );
    assert_eq!(consumer.position(&tp("a", 0)), Some(2));
    assert_eq!(consumer.lag(&tp("a", 0)), Some(0));
}

#[tokio::test(start_paused = true)]
async fn an_empty_poll_waits_as_long_as_it_may_and_new_data_ends_it_at_once() {
    let broker = FakeBroker::new(&[("a", 1)]);
    let consumer = connect(&broker, Consumer::builder()).await;
    consumer.assign(vec![tp("a", 0)]).unwrap();
    let start = Instant::now();
    assert!(
        consumer
            .poll(2 * SECOND)
            .await
            .unwrap()
            .partitions
            .is_empty()
    );
    assert_eq!(start.elapsed(), 2 * SECOND);
    let writer = broker.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(200)).await;
        writer.with("a", 0, |log| log.write(&["late"]));
    });
    let start = Instant::now();
    assert_eq!(values(&consumer.poll(10 * SECOND).await.unwrap()), ["late"]);
    assert!(
        start.elapsed() < Duration::from_millis(210),
        "{:?}",
        start.elapsed()
    );
    // Waiting is the broker's: two fetches a second, not a busy loop.
    assert!(
        broker.count(ApiKey::Fetch) < 12,
        "{}",
        broker.count(ApiKey::Fetch)
    );
}

#[tokio::test(start_paused = true)]
async fn b52_committed_readers_step_over_aborted_data_and_markers_to_the_very_end() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.with("a", 0, |log| {
        log.transaction(1, &["bad"], false);
        log.transaction(2, &["good"], true);
        log.transaction(1, &["bad"], false);
    });
    let consumer = connect(&broker, Consumer::builder().group_id("g")).await;
    consumer.assign(vec![tp("a", 0)]).unwrap();
    let mut seen = Vec::new();
    while consumer.position(&tp("a", 0)) != Some(6) {
        let records = consumer.poll(SECOND).await.unwrap();
        assert!(
            !records.partitions.is_empty(),
            "stuck at {:?}",
            consumer.positions()
        );
        seen.extend(values(&records));
    }
    assert_eq!(seen, ["good"]);
    assert_eq!(
        consumer.end_offsets(&[tp("a", 0)]).await.unwrap()[&tp("a", 0)],
        6
    );
    // Only control and aborted records from here: a poll without records that still moves on.
    consumer.seek(&tp("a", 0), 4).unwrap();
    let records = consumer.poll(SECOND).await.unwrap();
    assert!(records.is_empty());
    assert_eq!(records.partitions[0].next_offset, 6);
    consumer.commit().await.unwrap();
    broker.with("a", 0, |log| assert_eq!(log.committed, Some(6)));
}

#[tokio::test(start_paused = true)]
async fn open_transactions_are_visible_to_uncommitted_readers_only() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.with("a", 0, |log| {
        log.write(&["plain"]);
        log.write(&["open"]);
        log.stable = Some(1);
    });
    let committed = connect(&broker, Consumer::builder()).await;
    committed.assign(vec![tp("a", 0)]).unwrap();
    assert_eq!(values(&committed.poll(SECOND).await.unwrap()), ["plain"]);
    assert!(committed.poll(SECOND).await.unwrap().is_empty());
    assert_eq!(
        committed.end_offsets(&[tp("a", 0)]).await.unwrap()[&tp("a", 0)],
        1
    );
    let all = connect(
        &broker,
        Consumer::builder().isolation(Isolation::ReadUncommitted),
    )
    .await;
    all.assign(vec![tp("a", 0)]).unwrap();
    assert_eq!(values(&all.poll(SECOND).await.unwrap()), ["plain", "open"]);
    assert_eq!(
        all.end_offsets(&[tp("a", 0)]).await.unwrap()[&tp("a", 0)],
        2
    );
    assert_eq!(
        all.beginning_offsets(&[tp("a", 0)]).await.unwrap()[&tp("a", 0)],
        0
    );
    let times = all.offsets_for_times(&[(tp("a", 0), 5)]).await.unwrap();
    assert_eq!(
        times[&tp("a", 0)].map(|found| (found.offset, found.timestamp)),
        Some((0, 7))
    );
    assert_eq!(
        all.offsets_for_times(&[(tp("a", 0), 8)]).await.unwrap()[&tp("a", 0)],
        None
    );
}

#[tokio::test(start_paused = true)]
async fn max_poll_records_bounds_a_poll_and_partitions_take_turns() {
    let broker = FakeBroker::new(&[("a", 2)]);
    for partition in 0..2 {
        broker.with("a", partition, |log| log.write(&["1", "2", "3", "4"]));
    }
    let consumer = connect(&broker, Consumer::builder().max_poll_records(3)).await;
    consumer.assign(vec![tp("a", 0), tp("a", 1)]).unwrap();
    let mut first = BTreeSet::new();
    let mut total = 0;
    while total < 8 {
        let records = consumer.poll(SECOND).await.unwrap();
        assert!(records.len() <= 3);
        total += records.len();
        first.insert(records.partitions[0].topic_partition.clone());
    }
    assert_eq!(first.len(), 2, "one partition starves the other");
}

#[tokio::test(start_paused = true)]
async fn a_seek_drops_what_was_fetched_and_what_is_on_its_way() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.with("a", 0, |log| {
        for value in ["0", "1", "2", "3", "4"] {
            log.write(&[value]);
        }
    });
    let consumer = connect(&broker, Consumer::builder().max_poll_records(1)).await;
    consumer.assign(vec![tp("a", 0)]).unwrap();
    assert_eq!(values(&consumer.poll(SECOND).await.unwrap()), ["0"]);
    consumer.seek(&tp("a", 0), 3).unwrap();
    assert_eq!(consumer.position(&tp("a", 0)), Some(3));
    assert_eq!(values(&consumer.poll(SECOND).await.unwrap()), ["3"]);
    // An answer that comes after the seek was asked for before it.
    broker.fault(ApiKey::Fetch, Fault::Delay(SECOND));
    consumer.seek(&tp("a", 0), 1).unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    consumer.seek(&tp("a", 0), 4).unwrap();
    assert_eq!(values(&consumer.poll(5 * SECOND).await.unwrap()), ["4"]);
    consumer.seek_to_beginning(&tp("a", 0)).unwrap();
    assert_eq!(values(&consumer.poll(SECOND).await.unwrap()), ["0"]);
    consumer.seek_to_end(&tp("a", 0)).unwrap();
    assert!(consumer.poll(SECOND).await.unwrap().is_empty());
    assert_eq!(consumer.position(&tp("a", 0)), Some(5));
    assert!(matches!(
        consumer.seek(&tp("a", 9), 0),
        Err(ConsumerError::NotAssigned { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn partitions_that_are_reassigned_away_hand_out_nothing_more() {
    let broker = FakeBroker::new(&[("a", 2)]);
    broker.with("a", 0, |log| log.write(&["gone"]));
    broker.with("a", 1, |log| log.write(&["kept", "on"]));
    let consumer = connect(&broker, Consumer::builder().max_poll_records(1)).await;
    consumer.assign(vec![tp("a", 1)]).unwrap();
    assert_eq!(values(&consumer.poll(SECOND).await.unwrap()), ["kept"]);
    consumer.assign(vec![tp("a", 0), tp("a", 1)]).unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    consumer.assign(vec![tp("a", 1)]).unwrap();
    assert_eq!(values(&consumer.poll(SECOND).await.unwrap()), ["on"]);
    assert!(consumer.poll(SECOND).await.unwrap().is_empty());
    assert_eq!(consumer.assignment(), [tp("a", 1)]);
}

#[tokio::test(start_paused = true)]
async fn paused_partitions_are_neither_handed_out_nor_fetched_and_keep_their_buffer() {
    let broker = FakeBroker::new(&[("a", 2)]);
    broker.with("a", 0, |log| log.write(&["p0"]));
    broker.with("a", 1, |log| log.write(&["p1"]));
    let consumer = connect(&broker, Consumer::builder()).await;
    consumer.assign(vec![tp("a", 0), tp("a", 1)]).unwrap();
    consumer.pause(&[tp("a", 0)]).unwrap();
    assert_eq!(consumer.paused(), [tp("a", 0)]);
    assert_eq!(values(&consumer.poll(SECOND).await.unwrap()), ["p1"]);
    assert!(consumer.poll(SECOND).await.unwrap().is_empty());
    let asked = |broker: &FakeBroker| {
        let state = broker.lock();
        state
            .seen
            .iter()
            .flat_map(|s| s.fetched.clone())
            .filter(|(p, _)| *p == tp("a", 0))
            .count()
    };
    assert_eq!(asked(&broker), 0);
    consumer.resume(&[tp("a", 0)]).unwrap();
    let start = Instant::now();
    assert_eq!(values(&consumer.poll(SECOND).await.unwrap()), ["p0"]);
    // The other partition's long poll does not hold this one up.
    assert!(
        start.elapsed() < Duration::from_millis(20),
        "{:?}",
        start.elapsed()
    );
    // What was buffered before the pause comes out after it, without another fetch.
    broker.with("a", 0, |log| log.write(&["again"]));
    tokio::time::sleep(SECOND).await;
    consumer.pause(&[tp("a", 0)]).unwrap();
    assert!(consumer.poll(SECOND).await.unwrap().is_empty());
    consumer.resume(&[tp("a", 0)]).unwrap();
    let fetches = asked(&broker);
    assert_eq!(values(&consumer.poll(SECOND).await.unwrap()), ["again"]);
    assert!(asked(&broker) <= fetches + 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_fetched_beyond_what_may_be_buffered() {
    let broker = FakeBroker::new(&[("a", 1)]);
    let big = "x".repeat(1000);
    broker.with("a", 0, |log| {
        for _ in 0..100 {
            log.write(&[&big]);
        }
    });
    let builder = Consumer::builder()
        .max_partition_fetch_bytes(5_000)
        .max_poll_records(1);
    let consumer = connect(&broker, builder).await;
    consumer.assign(vec![tp("a", 0)]).unwrap();
    consumer.poll(SECOND).await.unwrap();
    tokio::time::sleep(10 * SECOND).await;
    let fetches = broker.count(ApiKey::Fetch);
    assert!(
        fetches <= 3,
        "{fetches} fetches without anybody taking records"
    );
    let mut seen = 1;
    while seen < 100 {
        seen += consumer.poll(SECOND).await.unwrap().len();
    }
    assert_eq!(consumer.position(&tp("a", 0)), Some(100));
}

#[tokio::test(start_paused = true)]
async fn an_offset_outside_the_log_is_reset_as_the_policy_says() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.with("a", 0, |log| {
        for value in ["0", "1", "2", "3"] {
            log.write(&[value]);
        }
        log.start = 2;
    });
    let earliest = connect(&broker, Consumer::builder()).await;
    earliest.assign(vec![tp("a", 0)]).unwrap();
    earliest.seek(&tp("a", 0), 0).unwrap();
    assert_eq!(values(&earliest.poll(SECOND).await.unwrap()), ["2", "3"]);

    let builder = Consumer::builder().auto_offset_reset(AutoOffsetReset::Latest);
    let latest = builder.connect(&broker.transport()).await.unwrap();
    latest.assign(vec![tp("a", 0)]).unwrap();
    latest.seek(&tp("a", 0), 99).unwrap();
    assert!(latest.poll(SECOND).await.unwrap().is_empty());
    assert_eq!(latest.position(&tp("a", 0)), Some(4));

    let builder = Consumer::builder().auto_offset_reset(AutoOffsetReset::None);
    let none = builder.connect(&broker.transport()).await.unwrap();
    none.assign(vec![tp("a", 0)]).unwrap();
    let error = none.poll(SECOND).await.unwrap_err();
    assert!(matches!(error, ConsumerError::NoOffset { .. }), "{error}");
    none.seek(&tp("a", 0), 1).unwrap();
    let error = none.poll(SECOND).await.unwrap_err().to_string();
    assert!(
        error.contains("a-0") && error.contains("offset 1") && error.contains("at 2"),
        "{error}"
    );
    none.seek(&tp("a", 0), 3).unwrap();
    assert_eq!(values(&none.poll(SECOND).await.unwrap()), ["3"]);
}

#[tokio::test(start_paused = true)]
async fn g2_reading_begins_at_the_committed_offset_once_it_is_decided() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.with("a", 0, |log| {
        for value in ["0", "1", "2"] {
            log.write(&[value]);
        }
        log.committed = Some(1);
        log.undecided = true;
    });
    let consumer = connect(&broker, Consumer::builder().group_id("g")).await;
    consumer.assign(vec![tp("a", 0)]).unwrap();
    assert!(consumer.poll(SECOND).await.unwrap().is_empty());
    assert_eq!(consumer.position(&tp("a", 0)), None);
    let decider = broker.clone();
    tokio::spawn(async move {
        tokio::time::sleep(SECOND).await;
        decider.with("a", 0, |log| {
            log.committed = Some(2);
            log.undecided = false;
        });
    });
    let committed = consumer.committed(&[tp("a", 0)]).await.unwrap();
    assert_eq!(committed[&tp("a", 0)].as_ref().map(|c| c.offset), Some(2));
    assert_eq!(values(&consumer.poll(5 * SECOND).await.unwrap()), ["2"]);
}

#[tokio::test(start_paused = true)]
async fn an_offset_that_stays_undecided_is_a_timeout_and_never_a_guess() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.with("a", 0, |log| log.undecided = true);
    let builder = Consumer::builder()
        .group_id("g")
        .default_api_timeout_ms(3_000);
    let consumer = connect(&broker, builder).await;
    let error = consumer.committed(&[tp("a", 0)]).await.unwrap_err();
    assert!(matches!(error, ConsumerError::Timeout { .. }), "{error}");
    for word in ["a-0", "UNSTABLE_OFFSET_COMMIT", "find-hanging"] {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn leader_changes_and_lost_connections_are_ridden_out() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.with("a", 0, |log| log.write(&["x"]));
    for fault in [
        Fault::Code(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        Fault::Disconnect,
        Fault::Code(ErrorCode::FENCED_LEADER_EPOCH),
        Fault::Disconnect,
        Fault::Code(ErrorCode::KAFKA_STORAGE_ERROR),
    ] {
        broker.fault(ApiKey::Fetch, fault);
    }
    broker.fault(
        ApiKey::ListOffsets,
        Fault::Code(ErrorCode::LEADER_NOT_AVAILABLE),
    );
    broker.fault(ApiKey::Metadata, Fault::Disconnect);
    let consumer = connect(&broker, Consumer::builder()).await;
    consumer.assign(vec![tp("a", 0)]).unwrap();
    assert_eq!(values(&consumer.poll(30 * SECOND).await.unwrap()), ["x"]);
    let metadata = broker.count(ApiKey::Metadata);
    assert!(metadata >= 3, "metadata was asked for {metadata} times");
}

#[tokio::test(start_paused = true)]
async fn a_refused_fetch_is_reported_with_the_partition_and_tried_again() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.with("a", 0, |log| log.write(&["x"]));
    broker.fault(
        ApiKey::Fetch,
        Fault::Code(ErrorCode::TOPIC_AUTHORIZATION_FAILED),
    );
    let consumer = connect(&broker, Consumer::builder()).await;
    consumer.assign(vec![tp("a", 0)]).unwrap();
    let error = consumer.poll(SECOND).await.unwrap_err().to_string();
    assert!(
        error.contains("a-0") && error.contains("TOPIC_AUTHORIZATION_FAILED"),
        "{error}"
    );
    assert_eq!(values(&consumer.poll(5 * SECOND).await.unwrap()), ["x"]);
}

#[tokio::test(start_paused = true)]
async fn l7_a_damaged_batch_is_reported_and_not_skipped() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.with("a", 0, |log| log.write(&["fine"]));
    broker.with("a", 0, |log| {
        let mut other = super::broker::Log::default();
        other.write(&["damaged"]);
        let mut bytes = other.take_last().to_vec();
        // The last letter of the value; behind it stands the number of headers.
        *bytes.iter_mut().nth_back(1).unwrap() ^= 1;
        log.push(bytes.into());
        log.write(&["after"]);
    });
    let consumer = connect(&broker, Consumer::builder()).await;
    consumer.assign(vec![tp("a", 0)]).unwrap();
    assert_eq!(values(&consumer.poll(SECOND).await.unwrap()), ["fine"]);
    for _ in 0..2 {
        let error = consumer.poll(SECOND).await.unwrap_err();
        assert!(
            matches!(error, ConsumerError::Damaged { offset: 1, .. }),
            "{error}"
        );
    }
    assert_eq!(consumer.position(&tp("a", 0)), Some(1));
    consumer.seek(&tp("a", 0), 2).unwrap();
    assert_eq!(values(&consumer.poll(SECOND).await.unwrap()), ["after"]);
    let unchecked = connect(&broker, Consumer::builder().check_crcs(false)).await;
    unchecked.assign(vec![tp("a", 0)]).unwrap();
    assert_eq!(unchecked.poll(SECOND).await.unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn commits_of_a_consumer_with_its_own_partitions_name_no_member() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.with("a", 0, |log| log.write(&["x"]));
    for code in [
        ErrorCode::NOT_COORDINATOR,
        ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode::COORDINATOR_NOT_AVAILABLE,
    ] {
        broker.fault(ApiKey::OffsetCommit, Fault::Code(code));
    }
    broker.fault(ApiKey::OffsetCommit, Fault::Disconnect);
    let consumer = connect(&broker, Consumer::builder().group_id("g")).await;
    consumer.assign(vec![tp("a", 0)]).unwrap();
    consumer.poll(SECOND).await.unwrap();
    consumer.commit().await.unwrap();
    broker.with("a", 0, |log| assert_eq!(log.committed, Some(1)));
    let last = broker.lock().commits.last().unwrap().clone();
    assert_eq!(
        (last.generation_id_or_member_epoch, last.member_id.as_str()),
        (-1, "")
    );
    // The coordinator was looked up again after it had moved.
    assert!(broker.count(ApiKey::FindCoordinator) >= 3);
}

#[tokio::test(start_paused = true)]
async fn b55_a_commit_that_the_coordinator_refuses_is_never_a_success() {
    let broker = FakeBroker::new(&[("a", 1)]);
    let builder = Consumer::builder()
        .group_id("g")
        .default_api_timeout_ms(2_000);
    let consumer = connect(&broker, builder).await;
    for code in [
        ErrorCode::UNKNOWN_SERVER_ERROR,
        ErrorCode::GROUP_AUTHORIZATION_FAILED,
        ErrorCode::OFFSET_METADATA_TOO_LARGE,
        ErrorCode::TOPIC_AUTHORIZATION_FAILED,
    ] {
        for _ in 0..40 {
            broker.fault(ApiKey::OffsetCommit, Fault::Code(code));
        }
        let result = consumer.commit_offsets(&[(tp("a", 0), 5.into())]).await;
        let error = result.expect_err("a refused commit").to_string();
        assert!(error.contains(code.name()), "{error}");
        broker.forget_faults();
    }
    broker.with("a", 0, |log| assert_eq!(log.committed, None));
}

#[tokio::test(start_paused = true)]
async fn the_stream_yields_every_record_in_order() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.with("a", 0, |log| {
        for batch in [["0", "1"], ["2", "3"]] {
            log.write(&batch);
        }
    });
    let consumer = connect(&broker, Consumer::builder().max_poll_records(1)).await;
    consumer.assign(vec![tp("a", 0)]).unwrap();
    let offsets: Vec<i64> = consumer
        .into_stream()
        .take(4)
        .map(|record| record.unwrap().offset)
        .collect()
        .await;
    assert_eq!(offsets, [0, 1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn misuse_is_an_error_that_says_what_to_do() {
    let broker = FakeBroker::new(&[("a", 1)]);
    let consumer = connect(&broker, Consumer::builder()).await;
    assert!(matches!(
        consumer.poll(SECOND).await,
        Err(ConsumerError::NoPartitions)
    ));
    assert!(matches!(
        consumer.subscribe(["a"]),
        Err(ConsumerError::NoGroup { .. })
    ));
    assert!(matches!(
        consumer.commit().await,
        Err(ConsumerError::NoGroup { .. })
    ));
    let member = connect(&broker, Consumer::builder().group_id("g")).await;
    member.assign(vec![tp("a", 0)]).unwrap();
    let error = member.subscribe(["a"]).unwrap_err().to_string();
    assert!(
        error.contains("subscribe(..)") && error.contains("assign(..)"),
        "{error}"
    );
    member.close().await.unwrap();
    assert!(matches!(
        member.poll(SECOND).await,
        Err(ConsumerError::Closed)
    ));
    assert!(matches!(
        member.assign(Vec::new()),
        Err(ConsumerError::Closed)
    ));
    member.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dropped_consumer_leaves_no_task_behind() {
    let broker = FakeBroker::new(&[("a", 1)]);
    let consumer = connect(&broker, Consumer::builder().group_id("g")).await;
    consumer.assign(vec![tp("a", 0)]).unwrap();
    consumer.poll(SECOND).await.unwrap();
    let clone = consumer.clone();
    drop(consumer);
    broker.with("a", 0, |log| log.write(&["x"]));
    assert_eq!(values(&clone.poll(SECOND).await.unwrap()), ["x"]);
    drop(clone);
    tokio::time::sleep(SECOND).await;
    let fetches = broker.count(ApiKey::Fetch);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(broker.count(ApiKey::Fetch), fetches);
}

#[tokio::test(start_paused = true)]
async fn closing_ends_a_poll_that_waits_and_a_second_poll_waits_no_longer_than_it_may() {
    let broker = FakeBroker::new(&[("a", 1)]);
    let consumer = connect(&broker, Consumer::builder().group_id("g")).await;
    consumer.subscribe(["a"]).unwrap();
    let first = consumer.clone();
    let waiting = tokio::spawn(async move { first.poll(600 * SECOND).await });
    tokio::time::sleep(SECOND).await;
    let start = Instant::now();
    assert!(consumer.poll(2 * SECOND).await.unwrap().is_empty());
    assert_eq!(start.elapsed(), 2 * SECOND);
    consumer.close().await.unwrap();
    assert!(start.elapsed() < 3 * SECOND);
    assert!(waiting.await.unwrap().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn polls_that_do_not_wait_get_records_as_well() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.with("a", 0, |log| log.write(&["x"]));
    let consumer = connect(&broker, Consumer::builder()).await;
    consumer.assign(vec![tp("a", 0)]).unwrap();
    for _ in 0..1_000 {
        if !consumer.poll(Duration::ZERO).await.unwrap().is_empty() {
            return;
        }
    }
    panic!("a thousand polls without waiting saw nothing");
}

#[tokio::test(start_paused = true)]
async fn a_busy_partition_is_not_held_up_by_the_long_poll_of_an_idle_one() {
    let broker = FakeBroker::new(&[("a", 2)]);
    let consumer = connect(&broker, Consumer::builder().max_poll_records(1)).await;
    consumer.assign(vec![tp("a", 0), tp("a", 1)]).unwrap();
    consumer.poll(SECOND).await.unwrap();
    let start = Instant::now();
    for round in 0..20 {
        // The idle partition's fetch is in the broker when the busy one goes on.
        consumer.pause(&[tp("a", 0)]).unwrap();
        broker.with("a", 0, |log| log.write(&["x"]));
        tokio::time::sleep(Duration::from_millis(100)).await;
        consumer.resume(&[tp("a", 0)]).unwrap();
        let asked = Instant::now();
        assert_eq!(
            consumer.poll(SECOND).await.unwrap().len(),
            1,
            "round {round}"
        );
        assert!(
            asked.elapsed() < Duration::from_millis(20),
            "round {round}: {:?}",
            asked.elapsed()
        );
    }
    // Both lanes together stay far from a busy loop.
    let fetches = broker.count(ApiKey::Fetch);
    assert!(fetches < 700, "{fetches} fetches in {:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_waits_in_paused_partitions_does_not_stop_the_others() {
    let broker = FakeBroker::new(&[("a", 2)]);
    let large = "x".repeat(300);
    broker.with("a", 0, |log| log.write(&[&large]));
    let consumer = connect(&broker, Consumer::builder().fetch_buffer_bytes(200)).await;
    consumer.assign(vec![tp("a", 0), tp("a", 1)]).unwrap();
    // It arrives, fills the whole buffer, and is not taken.
    tokio::time::sleep(SECOND).await;
    consumer.pause(&[tp("a", 0)]).unwrap();
    broker.with("a", 1, |log| log.write(&["1"]));
    assert_eq!(values(&consumer.poll(5 * SECOND).await.unwrap()), ["1"]);
    // Those that are not paused keep to the limit: one that is full stops the rest.
    consumer.resume(&[tp("a", 0)]).unwrap();
    consumer.pause(&[tp("a", 1)]).unwrap();
    assert_eq!(values(&consumer.poll(SECOND).await.unwrap()), [large]);
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_is_refused_half_way_still_lets_others_be_fetched() {
    let broker = FakeBroker::new(&[("a", 2)]);
    broker.with("a", 0, |log| log.write(&["large"]));
    let consumer = connect(&broker, Consumer::builder().fetch_buffer_bytes(10)).await;
    consumer.assign(vec![tp("a", 0), tp("a", 1)]).unwrap();
    tokio::time::sleep(SECOND).await;
    broker.with("a", 1, |log| log.write(&["1"]));
    // The first is paused, the second is nobody's.
    consumer.pause(&[tp("a", 0), tp("a", 9)]).unwrap_err();
    assert_eq!(consumer.paused(), [tp("a", 0)]);
    assert_eq!(values(&consumer.poll(5 * SECOND).await.unwrap()), ["1"]);
}

#[tokio::test(start_paused = true)]
async fn a_position_outside_the_log_is_an_error_where_that_was_asked_for() {
    for (position, error_expected) in [(2, true), (9, true), (3, false), (5, false)] {
        let broker = FakeBroker::new(&[("a", 1)]);
        broker.with("a", 0, |log| {
            for value in ["0", "1", "2", "3", "4"] {
                log.write(&[value]);
            }
            log.start = 3;
        });
        let builder = Consumer::builder().out_of_range_fails(true);
        let consumer = connect(&broker, builder).await;
        consumer.assign(vec![tp("a", 0)]).unwrap();
        consumer.seek(&tp("a", 0), position).unwrap();
        let polled = consumer.poll(SECOND).await;
        match polled {
            Err(ConsumerError::OffsetOutOfRange { offset, .. }) if error_expected => {
                assert_eq!(offset, position);
            }
            Ok(_) if !error_expected => {}
            other => panic!("{position}: {other:?}"),
        }
    }
}
