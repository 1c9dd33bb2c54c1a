//! Membership under the consumer protocol (KIP-848): what is said to the coordinator and when, what
//! the listener hears, and which epoch commits and look-ups carry.

use std::sync::Arc;

use millstream_protocol::{ApiKey, ErrorCode};

use super::super::{Consumer, ConsumerBuilder, ConsumerError, GroupProtocol};
use super::broker::{FakeBroker, Fault, id_of};
use super::member::{Diary, start, wait};
use super::{SECOND, connect, tp};

fn group() -> ConsumerBuilder {
    Consumer::builder()
        .group_id("g")
        .group_protocol(GroupProtocol::Consumer)
}

#[tokio::test(start_paused = true)]
async fn a_member_tells_everything_once_takes_over_what_it_is_given_and_says_so() {
    let broker = FakeBroker::new(&[("a", 2)]);
    broker.with("a", 0, |log| log.write(&["x"]));
    broker.consumers().give(&[("a", 0), ("a", 1)]);
    let builder = group().client_rack("r").group_remote_assignor("uniform");
    let member = start(&broker, builder, Diary::watching(&broker)).await;
    wait(SECOND / 2).await;
    assert_eq!(member.diary.read(), ["assigned a-0,a-1"]);
    assert_eq!(*member.seen.lock().unwrap(), ["x"]);
    let heard = broker.consumers().heard.clone();
    let [join, acknowledgement] = &heard[..] else {
        panic!("{heard:?}");
    };
    assert_eq!((join.member_epoch, join.member_id.len()), (0, 22));
    assert_eq!(join.subscribed_topic_names, Some(vec!["a".to_owned()]));
    assert_eq!(join.topic_partitions, Some(Vec::new()));
    assert_eq!(join.rack_id.as_deref(), Some("r"));
    assert_eq!(join.server_assignor.as_deref(), Some("uniform"));
    assert_eq!(join.rebalance_timeout_ms, 300_000);
    assert_eq!(acknowledgement.member_epoch, 2);
    assert_eq!(acknowledgement.subscribed_topic_names, None);
    assert_eq!(
        broker.consumers().owned(),
        Some(vec![(id_of("a"), vec![0, 1])])
    );
    // The coordinator wants to hear of it every second, and there is nothing to say.
    wait(10 * SECOND).await;
    let heard = broker.consumers().heard.split_off(2);
    assert_eq!(heard.len(), 10);
    assert!(heard.iter().all(|beat| beat.topic_partitions.is_none()));
    let who = member.consumer.group_metadata().unwrap();
    assert_eq!((who.generation_id, &who.member_id), (2, &join.member_id));
    member.consumer.commit().await.unwrap();
    let last = broker.lock().commits.last().unwrap().clone();
    assert_eq!(
        (last.generation_id_or_member_epoch, &last.member_id),
        (2, &join.member_id)
    );
    // Committed offsets were asked for as a member.
    assert_eq!(broker.consumers().fetches, [2]);
}

#[tokio::test(start_paused = true)]
async fn a_partition_is_let_go_of_only_after_the_listener_has_committed_it() {
    let broker = FakeBroker::new(&[("a", 2)]);
    broker.consumers().give(&[("a", 0), ("a", 1)]);
    let mut diary = Diary::watching(&broker);
    (diary.commits, diary.pause) = (true, 4 * SECOND);
    let member = start(&broker, group(), diary).await;
    wait(SECOND).await;
    broker.with("a", 0, |log| log.write(&["x"]));
    wait(SECOND).await;
    broker.consumers().give(&[("a", 1)]);
    wait(3 * SECOND).await;
    let beats = broker.consumers().heard.len();
    assert_eq!(member.diary.read(), ["assigned a-0,a-1"]);
    wait(3 * SECOND).await;
    // Heartbeats went on meanwhile, and the rest is still read.
    assert!(broker.consumers().heard.len() >= beats + 3);
    assert_eq!(member.diary.read(), ["revoked a-0", "assigned "]);
    broker.with("a", 0, |log| assert_eq!(log.committed, Some(1)));
    assert_eq!(
        broker.consumers().owned(),
        Some(vec![(id_of("a"), vec![1])])
    );
    assert_eq!(member.consumer.assignment(), [tp("a", 1)]);
    broker.with("a", 1, |log| log.write(&["y"]));
    wait(SECOND).await;
    assert_eq!(*member.seen.lock().unwrap(), ["x", "y"]);
}

#[tokio::test(start_paused = true)]
async fn a_target_that_changes_while_the_listener_works_is_taken_over_next() {
    let broker = FakeBroker::new(&[("a", 3)]);
    broker.consumers().give(&[("a", 0), ("a", 1)]);
    let mut diary = Diary::watching(&broker);
    diary.pause = 5 * SECOND;
    let member = start(&broker, group(), diary).await;
    wait(SECOND).await;
    broker.consumers().give(&[("a", 1)]);
    wait(3 * SECOND).await;
    broker.consumers().give(&[("a", 1), ("a", 2)]);
    wait(10 * SECOND).await;
    assert_eq!(
        member.diary.read(),
        [
            "assigned a-0,a-1",
            "revoked a-0",
            "assigned ",
            "assigned a-2"
        ]
    );
    assert_eq!(
        broker.consumers().owned(),
        Some(vec![(id_of("a"), vec![1, 2])])
    );
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_not_known_any_more_loses_everything_and_joins_again_under_its_id() {
    for code in [
        ErrorCode::UNKNOWN_MEMBER_ID,
        ErrorCode::FENCED_MEMBER_EPOCH,
        ErrorCode::GROUP_ID_NOT_FOUND,
    ] {
        let broker = FakeBroker::new(&[("a", 1)]);
        broker.consumers().give(&[("a", 0)]);
        let member = start(&broker, group(), Diary::watching(&broker)).await;
        wait(SECOND / 2).await;
        let before = member.consumer.group_metadata().unwrap();
        broker.consumers().heard.clear();
        broker.fault(ApiKey::ConsumerGroupHeartbeat, Fault::Code(code));
        wait(2 * SECOND).await;
        assert_eq!(
            member.diary.read(),
            ["assigned a-0", "lost a-0", "assigned a-0"]
        );
        let again = broker.consumers().heard[1].clone();
        assert_eq!(
            (again.member_epoch, &again.member_id),
            (0, &before.member_id)
        );
        assert_eq!(again.topic_partitions, Some(Vec::new()));
        let after = member.consumer.group_metadata().unwrap();
        assert!(after.generation_id > before.generation_id);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_said_until_poll_has_given_up_what_was_lost() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.consumers().give(&[("a", 0)]);
    let consumer = connect(&broker, group()).await;
    let diary = Arc::new(Diary::watching(&broker));
    consumer
        .subscribe_with(["a"], Arc::clone(&diary) as _)
        .unwrap();
    consumer.poll(SECOND).await.unwrap();
    broker.consumers().forget_members();
    wait(2 * SECOND).await;
    let heard = broker.consumers().heard.len();
    wait(20 * SECOND).await;
    assert_eq!(broker.consumers().heard.len(), heard);
    let error = consumer.commit_offsets(&[(tp("a", 0), 1.into())]).await;
    assert!(matches!(
        error.unwrap_err(),
        ConsumerError::CommitFenced {
            code: ErrorCode::UNKNOWN_MEMBER_ID,
            ..
        }
    ));
    consumer.poll(SECOND).await.unwrap();
    assert_eq!(diary.read(), ["assigned a-0", "lost a-0", "assigned a-0"]);
}

#[tokio::test(start_paused = true)]
async fn a_poll_that_comes_too_late_has_left_and_joins_again() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.consumers().give(&[("a", 0)]);
    let consumer = connect(&broker, group().max_poll_interval_ms(10_000)).await;
    let diary = Arc::new(Diary::watching(&broker));
    consumer
        .subscribe_with(["a"], Arc::clone(&diary) as _)
        .unwrap();
    consumer.poll(SECOND).await.unwrap();
    wait(30 * SECOND).await;
    let last = broker.consumers().heard.last().unwrap().clone();
    assert_eq!(last.member_epoch, -1);
    let error = consumer.poll(SECOND).await.unwrap_err();
    assert!(
        matches!(
            error,
            ConsumerError::PollTooLate {
                limit_ms: 10_000,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(diary.read(), ["assigned a-0", "lost a-0"]);
    consumer.poll(SECOND).await.unwrap();
    assert_eq!(diary.read(), ["assigned a-0"]);
}

#[tokio::test(start_paused = true)]
async fn a_static_member_says_that_it_will_be_back_unless_it_will_not() {
    for (for_good, epoch) in [(false, -2), (true, -1)] {
        let broker = FakeBroker::new(&[("a", 1)]);
        broker.consumers().give(&[("a", 0)]);
        let builder = group().group_instance_id("i");
        let member = start(&broker, builder, Diary::watching(&broker)).await;
        wait(SECOND).await;
        match for_good {
            true => member.consumer.close_and_leave().await.unwrap(),
            false => member.consumer.close().await.unwrap(),
        }
        let last = broker.consumers().heard.last().unwrap().clone();
        assert_eq!(
            (last.member_epoch, last.instance_id.as_deref()),
            (epoch, Some("i"))
        );
        assert_eq!(member.diary.read(), ["assigned a-0", "revoked a-0"]);
        assert!(matches!(member.task.await.unwrap(), ConsumerError::Closed));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_will_not_change_is_final_and_says_what_to_do() {
    for (code, hint) in [
        (
            ErrorCode::UNRELEASED_INSTANCE_ID,
            "group.consumer.session.timeout.ms",
        ),
        (ErrorCode::FENCED_INSTANCE_ID, "taken over"),
        (ErrorCode::UNSUPPORTED_VERSION, "group.protocol=classic"),
        (ErrorCode::UNSUPPORTED_ASSIGNOR, "group.remote.assignor"),
        (ErrorCode::GROUP_ID_NOT_FOUND, "classic"),
        (ErrorCode::GROUP_MAX_SIZE_REACHED, "full"),
    ] {
        let broker = FakeBroker::new(&[("a", 1)]);
        broker.fault(ApiKey::ConsumerGroupHeartbeat, Fault::Code(code));
        let builder = group().group_instance_id("i");
        let member = start(&broker, builder, Diary::watching(&broker)).await;
        wait(10 * SECOND).await;
        let error = member.task.await.unwrap();
        assert!(
            error.is_fatal() && error.to_string().contains(hint),
            "{error}"
        );
        assert_eq!(broker.count(ApiKey::ConsumerGroupHeartbeat), 1, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_for_now_is_reported_and_the_member_stays() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.consumers().give(&[("a", 0)]);
    let consumer = connect(&broker, group()).await;
    consumer.subscribe(["a"]).unwrap();
    let code = ErrorCode::TOPIC_AUTHORIZATION_FAILED;
    broker.fault(ApiKey::ConsumerGroupHeartbeat, Fault::Code(code));
    let error = consumer.poll(SECOND).await.unwrap_err();
    assert!(error.to_string().contains(&code.to_string()), "{error}");
    consumer.poll(SECOND).await.unwrap();
    assert_eq!(consumer.assignment(), [tp("a", 0)]);
}

#[tokio::test(start_paused = true)]
async fn f3_a_commit_whose_epoch_has_passed_is_repeated_under_the_new_one() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.consumers().give(&[("a", 0)]);
    let member = start(&broker, group(), Diary::watching(&broker)).await;
    wait(SECOND / 2).await;
    // Somebody else has joined; this member's partitions stay, its epoch does not.
    broker.consumers().give(&[("a", 0)]);
    member
        .consumer
        .commit_offsets(&[(tp("a", 0), 5.into())])
        .await
        .unwrap();
    let epochs: Vec<i32> = {
        let state = broker.lock();
        state
            .commits
            .iter()
            .map(|c| c.generation_id_or_member_epoch)
            .collect()
    };
    assert_eq!((epochs[0], epochs.last()), (2, Some(&3)));
    broker.with("a", 0, |log| assert_eq!(log.committed, Some(5)));
    assert_eq!(member.consumer.group_metadata().unwrap().generation_id, 3);
}

#[tokio::test(start_paused = true)]
async fn f3_a_commit_for_a_partition_that_has_moved_is_refused_and_not_repeated() {
    let broker = FakeBroker::new(&[("a", 2)]);
    broker.consumers().give(&[("a", 0), ("a", 1)]);
    let member = start(&broker, group(), Diary::watching(&broker)).await;
    wait(SECOND / 2).await;
    broker.consumers().give(&[("a", 1)]);
    wait(3 * SECOND).await;
    broker.consumers().give(&[("a", 1)]);
    let error = member
        .consumer
        .commit_offsets(&[(tp("a", 0), 5.into())])
        .await;
    let code = ErrorCode::STALE_MEMBER_EPOCH;
    assert!(
        matches!(error, Err(ConsumerError::CommitFenced { code: c, .. }) if c == code),
        "{error:?}"
    );
    broker.with("a", 0, |log| assert_eq!(log.committed, None));
}

#[tokio::test(start_paused = true)]
async fn committed_offsets_are_asked_for_again_under_the_new_epoch() {
    let broker = FakeBroker::new(&[("a", 2)]);
    broker.consumers().give(&[("a", 0)]);
    let member = start(&broker, group(), Diary::watching(&broker)).await;
    wait(SECOND / 2).await;
    broker.with("a", 0, |log| log.committed = Some(3));
    broker.consumers().give(&[("a", 0)]);
    let committed = member.consumer.committed(&[tp("a", 0)]).await.unwrap();
    assert_eq!(committed[&tp("a", 0)].as_ref().map(|o| o.offset), Some(3));
    let fetches = broker.consumers().fetches.clone();
    assert_eq!((fetches[1], fetches.last()), (2, Some(&3)));
}

#[tokio::test(start_paused = true)]
async fn after_a_heartbeat_without_an_answer_everything_is_said_again() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.consumers().give(&[("a", 0)]);
    let member = start(&broker, group(), Diary::watching(&broker)).await;
    wait(SECOND / 2).await;
    broker.consumers().heard.clear();
    broker.fault(ApiKey::ConsumerGroupHeartbeat, Fault::Disconnect);
    wait(2 * SECOND).await;
    let next = broker.consumers().heard[0].clone();
    assert_eq!(next.member_epoch, 2);
    assert_eq!(next.subscribed_topic_names, Some(vec!["a".to_owned()]));
    assert_eq!(next.topic_partitions.map(|t| t.len()), Some(1));
    assert_eq!(member.diary.read(), ["assigned a-0"]);
}

#[tokio::test(start_paused = true)]
async fn an_expression_is_the_coordinators_and_topics_are_found_by_their_ids() {
    let broker = FakeBroker::new(&[("a1", 1), ("a2", 1)]);
    broker.consumers().give(&[("a1", 0), ("a2", 0)]);
    let consumer = connect(&broker, group()).await;
    consumer.subscribe_pattern("a.*").unwrap();
    for _ in 0..3 {
        consumer.poll(SECOND / 10).await.unwrap();
    }
    assert_eq!(consumer.assignment(), [tp("a1", 0), tp("a2", 0)]);
    let join = broker.consumers().heard[0].clone();
    assert_eq!(join.subscribed_topic_regex.as_deref(), Some("a.*"));
    // Another subscription is told at once, and takes the expression back.
    let beats = broker.consumers().heard.len();
    consumer.subscribe(["a1"]).unwrap();
    wait(SECOND / 10).await;
    let change = broker.consumers().heard[beats].clone();
    assert_eq!(change.subscribed_topic_names, Some(vec!["a1".to_owned()]));
    assert_eq!(change.subscribed_topic_regex.as_deref(), Some(""));
    let classic = connect(&broker, Consumer::builder().group_id("h")).await;
    let error = classic.subscribe_pattern("a.*").unwrap_err();
    assert!(
        error.to_string().contains("group.protocol=classic"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_unsubscribes_leaves_and_may_join_again() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.consumers().give(&[("a", 0)]);
    let consumer = connect(&broker, group()).await;
    let diary = Arc::new(Diary::watching(&broker));
    for turn in 1..3 {
        consumer
            .subscribe_with(["a"], Arc::clone(&diary) as _)
            .unwrap();
        consumer.poll(SECOND).await.unwrap();
        consumer.unsubscribe().await.unwrap();
        let heard = broker.consumers().heard.clone();
        let left = heard.iter().filter(|beat| beat.member_epoch == -1);
        assert_eq!(left.count(), turn);
        assert_eq!(diary.read(), ["assigned a-0", "revoked a-0"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_unsubscribe_that_is_dropped_while_it_waits_for_its_turn_changes_nothing() {
    let broker = FakeBroker::new(&[("a", 2)]);
    broker.consumers().give(&[("a", 0), ("a", 1)]);
    let mut diary = Diary::watching(&broker);
    diary.pause = 5 * SECOND;
    let member = start(&broker, group(), diary).await;
    wait(SECOND).await;
    broker.consumers().give(&[("a", 1)]);
    wait(2 * SECOND).await;
    let unsubscribe = tokio::time::timeout(SECOND, member.consumer.unsubscribe());
    unsubscribe.await.unwrap_err();
    broker.with("a", 1, |log| log.write(&["y"]));
    wait(10 * SECOND).await;
    assert_eq!(*member.seen.lock().unwrap(), ["y"]);
}

/// What waits for the goodbye may be dropped; the next words are heard all the same.
#[tokio::test(start_paused = true)]
async fn a_member_that_unsubscribes_again_while_it_leaves_stays_away() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.consumers().give(&[("a", 0)]);
    let consumer = connect(&broker, group()).await;
    consumer.subscribe(["a"]).unwrap();
    consumer.poll(SECOND).await.unwrap();
    let late = Fault::Delay(3 * SECOND);
    broker.fault(ApiKey::ConsumerGroupHeartbeat, late);
    let unsubscribe = tokio::time::timeout(SECOND, consumer.unsubscribe());
    unsubscribe.await.unwrap_err();
    consumer.subscribe(["a"]).unwrap();
    consumer.unsubscribe().await.unwrap();
    wait(20 * SECOND).await;
    let heard = broker.consumers().heard.clone();
    let joins = heard.iter().filter(|beat| beat.member_epoch == 0);
    assert_eq!(joins.count(), 1);
    assert_eq!(heard.last().unwrap().member_epoch, -1);
}

#[tokio::test(start_paused = true)]
async fn a_static_member_whose_polls_came_too_late_still_gives_its_place_up() {
    for (for_good, epoch) in [(false, -2), (true, -1)] {
        let broker = FakeBroker::new(&[("a", 1)]);
        broker.consumers().give(&[("a", 0)]);
        let builder = group().group_instance_id("i").max_poll_interval_ms(10_000);
        let consumer = connect(&broker, builder).await;
        consumer.subscribe(["a"]).unwrap();
        consumer.poll(SECOND).await.unwrap();
        wait(30 * SECOND).await;
        let last = || broker.consumers().heard.last().unwrap().member_epoch;
        assert_eq!(last(), -2, "it has only paused");
        match for_good {
            true => consumer.close_and_leave().await.unwrap(),
            false => consumer.close().await.unwrap(),
        }
        assert_eq!(last(), epoch);
    }
}

/// Its own join may have opened the session that holds its place; one that was never sent has not.
#[tokio::test(start_paused = true)]
async fn an_instance_id_in_use_is_waited_for_only_after_a_lost_join_and_not_for_ever() {
    let unreleased = Fault::Code(ErrorCode::UNRELEASED_INSTANCE_ID);
    for (lost, seconds) in [(true, 60..75), (false, 0..5)] {
        let broker = FakeBroker::new(&[("a", 1)]);
        let away = Fault::Code(ErrorCode::COORDINATOR_NOT_AVAILABLE);
        match lost {
            true => broker.fault(ApiKey::ConsumerGroupHeartbeat, Fault::Disconnect),
            false => (0..1_000).for_each(|_| broker.fault(ApiKey::FindCoordinator, away)),
        }
        let builder = group().group_instance_id("i");
        let member = start(&broker, builder, Diary::watching(&broker)).await;
        wait(SECOND / 100).await;
        if !lost {
            // As long as a coordinator is looked for before that counts as no answer.
            wait(35 * SECOND).await;
            broker.forget_faults();
        }
        (0..1_000).for_each(|_| broker.fault(ApiKey::ConsumerGroupHeartbeat, unreleased));
        let began = tokio::time::Instant::now();
        let ended = tokio::time::timeout(200 * SECOND, member.task).await;
        let error = ended.expect("waits for ever").unwrap();
        assert!(
            matches!(error, ConsumerError::InstanceInUse { .. }),
            "{error}"
        );
        assert!(seconds.contains(&began.elapsed().as_secs()), "{lost}");
    }
}
