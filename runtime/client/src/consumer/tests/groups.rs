//! Groups: joins, rebalances, heartbeats, static members, lost places.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use millstream_protocol::{ApiKey, ErrorCode};
use tokio::time::Instant;

use super::super::assignor::{
    Assignment, Assignor, CooperativeSticky, Member, MemberAssignment, PartitionCounts, Range,
};
use super::super::{Consumer, ConsumerBuilder, ConsumerError, RebalanceListener};
use super::broker::{FakeBroker, Fault};
use super::member::{Diary, Running, start, wait};
use super::{SECOND, connect, tp};
use crate::GroupMetadata;

fn group() -> ConsumerBuilder {
    Consumer::builder().group_id("g")
}

fn sticky() -> ConsumerBuilder {
    group().assignors(vec![Arc::new(CooperativeSticky::default())])
}

#[tokio::test(start_paused = true)]
async fn a_lone_member_gets_everything_and_reads_it() {
    let broker = FakeBroker::new(&[("a", 2)]);
    broker.with("a", 0, |log| log.write(&["x"]));
    broker.with("a", 1, |log| log.write(&["y"]));
    let member = start(&broker, group(), Diary::default()).await;
    wait(SECOND).await;
    assert_eq!(member.diary.read(), ["assigned a-0,a-1"]);
    assert_eq!(*member.seen.lock().unwrap(), ["x", "y"]);
    let who = member.consumer.group_metadata().unwrap();
    assert_eq!((who.generation_id, who.member_id.as_str()), (1, "member-1"));
    assert!(!who.auto_commit);
    member.consumer.commit().await.unwrap();
    let last = broker.lock().commits.last().unwrap().clone();
    assert_eq!(
        (last.generation_id_or_member_epoch, last.member_id.as_str()),
        (1, "member-1")
    );
    assert_eq!(member.consumer.subscription(), ["a".into()]);
}

#[tokio::test(start_paused = true)]
async fn a_second_member_makes_an_eager_group_give_up_everything_first() {
    let broker = FakeBroker::new(&[("a", 2)]);
    broker.with("a", 0, |log| log.write(&["x"]));
    let eager = || group().assignors(vec![Arc::new(Range)]);
    let diary = Diary {
        commits: true,
        pause: SECOND,
        ..Default::default()
    };
    let first = start(&broker, eager(), diary).await;
    wait(SECOND).await;
    first.diary.read();
    let second = start(&broker, eager(), Diary::default()).await;
    wait(10 * SECOND).await;
    assert_eq!(first.diary.read(), ["revoked a-0,a-1", "assigned a-0"]);
    assert_eq!(second.diary.read(), ["assigned a-1"]);
    // The commit inside the listener was made under the old membership, and counted.
    broker.with("a", 0, |log| assert_eq!(log.committed, Some(1)));
    assert_eq!(first.consumer.assignment(), [tp("a", 0)]);
    assert_eq!(first.consumer.group_metadata().unwrap().generation_id, 2);
}

#[tokio::test(start_paused = true)]
async fn a_cooperative_group_gives_up_only_what_moves_and_goes_on_reading_the_rest() {
    let broker = FakeBroker::new(&[("a", 4)]);
    let first = start(&broker, sticky(), Diary::default()).await;
    wait(SECOND).await;
    assert_eq!(first.diary.read(), ["assigned a-0,a-1,a-2,a-3"]);
    let second = start(&broker, sticky(), Diary::default()).await;
    // While the group rebalances, what is not affected is read.
    broker.with("a", 0, |log| log.write(&["during"]));
    wait(Duration::from_millis(600)).await;
    assert_eq!(*first.seen.lock().unwrap(), ["during"]);
    wait(10 * SECOND).await;
    assert_eq!(
        first.diary.read(),
        ["assigned ", "revoked a-2,a-3", "assigned ", "assigned "][1..]
    );
    assert_eq!(second.diary.read(), ["assigned ", "assigned a-2,a-3"]);
    second.consumer.close().await.unwrap();
    wait(10 * SECOND).await;
    assert_eq!(first.diary.read(), ["assigned a-2,a-3"]);
    assert_eq!(broker.group().left, ["member-2"]);
    assert!(matches!(second.task.await.unwrap(), ConsumerError::Closed));
    assert_eq!(second.diary.read(), ["revoked a-2,a-3"]);
}

#[tokio::test(start_paused = true)]
async fn no_partition_ever_has_two_owners_while_members_come_and_go() {
    let broker = FakeBroker::new(&[("a", 6)]);
    let mut members = Vec::new();
    for round in 0..8 {
        if round % 3 == 2 {
            let gone: Running = members.remove(0);
            gone.consumer.close().await.unwrap();
        } else {
            members.push(start(&broker, sticky(), Diary::default()).await);
        }
        for _ in 0..40 {
            wait(Duration::from_millis(250)).await;
            let mut seen = BTreeSet::new();
            for member in &members {
                for partition in member.consumer.assignment() {
                    assert!(seen.insert(partition.clone()), "{partition} has two owners");
                }
            }
        }
        let owned: usize = members.iter().map(|m| m.consumer.assignment().len()).sum();
        assert_eq!(owned, 6, "round {round}");
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_go_on_while_the_application_is_slow() {
    let broker = FakeBroker::new(&[("a", 1)]);
    let consumer = connect(&broker, group()).await;
    consumer.subscribe(["a"]).unwrap();
    consumer.poll(SECOND).await.unwrap();
    let before = broker.count(ApiKey::Heartbeat);
    wait(120 * SECOND).await;
    let beats = broker.count(ApiKey::Heartbeat) - before;
    assert!(
        (39..=41).contains(&beats),
        "{beats} heartbeats in two minutes"
    );
    consumer.poll(SECOND).await.unwrap();
    assert_eq!(consumer.assignment(), [tp("a", 0)]);
}

#[tokio::test(start_paused = true)]
async fn a_poll_that_comes_too_late_finds_itself_out_of_the_group_and_joins_again() {
    let broker = FakeBroker::new(&[("a", 1)]);
    let consumer = connect(&broker, group().max_poll_interval_ms(10_000)).await;
    let diary = Arc::new(Diary::default());
    consumer
        .subscribe_with(["a"], Arc::clone(&diary) as _)
        .unwrap();
    consumer.poll(SECOND).await.unwrap();
    let before = consumer.group_metadata().unwrap();
    wait(11 * SECOND).await;
    assert_eq!(broker.group().left, ["member-1"]);
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
    assert!(
        error.to_string().contains("max.poll.interval.ms"),
        "{error}"
    );
    assert_eq!(diary.read(), ["assigned a-0", "lost a-0"]);
    // What the application still holds can not be committed: the ids are those of before.
    assert_eq!(consumer.group_metadata().unwrap(), before);
    consumer.poll(SECOND).await.unwrap();
    assert_eq!(diary.read(), ["assigned a-0"]);
    assert_eq!(consumer.group_metadata().unwrap().member_id, "member-2");
}

#[tokio::test(start_paused = true)]
async fn a_long_listener_does_not_count_as_a_late_poll() {
    let broker = FakeBroker::new(&[("a", 2)]);
    let builder = || group().max_poll_interval_ms(5_000);
    let diary = Diary {
        pause: 20 * SECOND,
        ..Default::default()
    };
    let first = start(&broker, builder(), diary).await;
    wait(SECOND).await;
    let second = start(&broker, builder(), Diary::default()).await;
    wait(60 * SECOND).await;
    assert_eq!(first.diary.read()[1..], ["revoked a-0,a-1", "assigned a-0"]);
    assert_eq!(second.diary.read(), ["assigned a-1"]);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_the_coordinator_forgot_loses_everything_and_joins_again() {
    let broker = FakeBroker::new(&[("a", 1)]);
    let member = start(&broker, group(), Diary::default()).await;
    wait(SECOND).await;
    broker.group().drop_member("member-1");
    wait(10 * SECOND).await;
    assert_eq!(
        member.diary.read(),
        ["assigned a-0", "lost a-0", "assigned a-0"]
    );
    assert_eq!(
        member.consumer.group_metadata().unwrap().member_id,
        "member-2"
    );
}

#[tokio::test(start_paused = true)]
async fn f3_a_commit_of_a_lost_member_is_refused_and_sends_it_back_to_join() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.with("a", 0, |log| log.write(&["x"]));
    let consumer = connect(&broker, group()).await;
    let diary = Arc::new(Diary::default());
    consumer
        .subscribe_with(["a"], Arc::clone(&diary) as _)
        .unwrap();
    while consumer.poll(SECOND).await.unwrap().is_empty() {}
    broker.group().drop_member("member-1");
    let error = consumer.commit().await.unwrap_err();
    assert!(
        matches!(error, ConsumerError::CommitFenced { generation: 1, .. }),
        "{error}"
    );
    broker.with("a", 0, |log| assert_eq!(log.committed, None));
    while !consumer.poll(SECOND).await.unwrap().is_empty() {}
    assert_eq!(diary.read(), ["assigned a-0", "lost a-0", "assigned a-0"]);
    consumer.poll(SECOND).await.unwrap();
    consumer.commit().await.unwrap();
    broker.with("a", 0, |log| assert_eq!(log.committed, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn g1_a_commit_during_a_rebalance_says_so_and_works_after_the_next_poll() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.with("a", 0, |log| log.write(&["x"]));
    let consumer = connect(&broker, group()).await;
    consumer.subscribe(["a"]).unwrap();
    while consumer.poll(SECOND).await.unwrap().is_empty() {}
    broker.fault(
        ApiKey::OffsetCommit,
        Fault::Code(ErrorCode::REBALANCE_IN_PROGRESS),
    );
    let error = consumer.commit().await.unwrap_err();
    assert!(
        matches!(error, ConsumerError::CommitDuringRebalance { .. }),
        "{error}"
    );
    while consumer.poll(SECOND).await.unwrap().is_empty() {}
    consumer.commit().await.unwrap();
    broker.with("a", 0, |log| assert_eq!(log.committed, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_a_rebalance_overtakes_is_no_loss_of_the_membership() {
    let broker = FakeBroker::new(&[("a", 2)]);
    let first = start(&broker, sticky(), Diary::default()).await;
    wait(SECOND).await;
    broker.fault(ApiKey::OffsetCommit, Fault::Delay(8 * SECOND));
    let offsets = [(tp("a", 0), 1.into())];
    let commit = first.consumer.commit_offsets(&offsets);
    let joins = start(&broker, sticky(), Diary::default());
    let (done, second) = tokio::join!(commit, joins);
    let during = matches!(done, Err(ConsumerError::CommitDuringRebalance { .. }));
    assert!(during, "{done:?}");
    assert!(first.consumer.group_metadata().unwrap().generation_id > 1);
    first.consumer.commit_offsets(&offsets).await.unwrap();
    // The next generation has begun, but its answer to the member's join is still on its way.
    second.task.abort();
    drop(second);
    broker.group().rebalance();
    wait(4 * SECOND).await;
    let code = ErrorCode::ILLEGAL_GENERATION;
    broker.fault(ApiKey::OffsetCommit, Fault::Code(code));
    let done = first.consumer.commit_offsets(&offsets).await;
    let during = matches!(done, Err(ConsumerError::CommitDuringRebalance { .. }));
    assert!(during, "{done:?}");
}

#[tokio::test(start_paused = true)]
async fn a_static_member_that_restarts_takes_its_place_at_once_and_the_old_one_is_fenced() {
    let broker = FakeBroker::new(&[("a", 2)]);
    let builder = || group().group_instance_id("i1");
    let first = start(&broker, builder(), Diary::default()).await;
    wait(SECOND).await;
    let second = start(&broker, builder(), Diary::default()).await;
    let began = Instant::now();
    while second.consumer.assignment().is_empty() {
        wait(Duration::from_millis(10)).await;
    }
    assert!(began.elapsed() < SECOND);
    let error = tokio::time::timeout(10 * SECOND, first.task)
        .await
        .unwrap()
        .unwrap();
    assert!(
        matches!(error, ConsumerError::InstanceFenced { .. }),
        "{error}"
    );
    assert!(
        error.to_string().contains("\"i1\"") && error.is_fatal(),
        "{error}"
    );
    assert_eq!(first.diary.read(), ["assigned a-0,a-1", "lost a-0,a-1"]);
    // It stays so: no poll, no commit.
    assert!(matches!(
        first.consumer.poll(SECOND).await,
        Err(ConsumerError::InstanceFenced { .. })
    ));
    let offsets = [(tp("a", 0), 1.into())];
    assert!(first.consumer.commit_offsets(&offsets).await.is_err());
    assert_eq!(second.consumer.assignment().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_static_member_leaves_only_if_it_is_told_to() {
    let broker = FakeBroker::new(&[("a", 1)]);
    for leaves in [false, true] {
        let member = start(&broker, group().group_instance_id("i1"), Diary::default()).await;
        wait(SECOND).await;
        if leaves {
            member.consumer.close_and_leave().await.unwrap();
        } else {
            member.consumer.close().await.unwrap();
        }
        assert_eq!(broker.group().left.len(), usize::from(leaves));
    }
}

#[tokio::test(start_paused = true)]
async fn a_moved_or_silent_coordinator_is_found_again_without_a_rebalance() {
    let broker = FakeBroker::new(&[("a", 1)]);
    for code in [
        ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode::NOT_COORDINATOR,
    ] {
        broker.fault(ApiKey::JoinGroup, Fault::Code(code));
    }
    broker.fault(ApiKey::JoinGroup, Fault::Disconnect);
    let member = start(&broker, group(), Diary::default()).await;
    wait(10 * SECOND).await;
    assert_eq!(member.diary.read(), ["assigned a-0"]);
    let joins = broker.count(ApiKey::JoinGroup);
    for fault in [
        Fault::Code(ErrorCode::NOT_COORDINATOR),
        Fault::Disconnect,
        Fault::Code(ErrorCode::COORDINATOR_NOT_AVAILABLE),
    ] {
        broker.fault(ApiKey::Heartbeat, fault);
    }
    wait(30 * SECOND).await;
    assert_eq!(broker.count(ApiKey::JoinGroup), joins);
    assert!(member.diary.read().is_empty());
    assert!(broker.count(ApiKey::FindCoordinator) >= 4);
}

#[tokio::test(start_paused = true)]
async fn a_sync_that_is_refused_or_lost_joins_again() {
    for fault in [
        Fault::Code(ErrorCode::REBALANCE_IN_PROGRESS),
        Fault::Code(ErrorCode::UNKNOWN_MEMBER_ID),
        Fault::Code(ErrorCode::ILLEGAL_GENERATION),
        Fault::Code(ErrorCode::NOT_COORDINATOR),
        Fault::Disconnect,
    ] {
        let broker = FakeBroker::new(&[("a", 1)]);
        broker.fault(ApiKey::SyncGroup, fault);
        let member = start(&broker, group(), Diary::default()).await;
        wait(30 * SECOND).await;
        assert_eq!(member.consumer.assignment(), [tp("a", 0)], "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_will_not_change_is_final_and_says_what_to_do() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.fault(
        ApiKey::JoinGroup,
        Fault::Code(ErrorCode::INCONSISTENT_GROUP_PROTOCOL),
    );
    let member = start(&broker, group(), Diary::default()).await;
    let error = tokio::time::timeout(10 * SECOND, member.task)
        .await
        .unwrap()
        .unwrap();
    let text = error.to_string();
    assert!(
        error.is_fatal() && text.contains("INCONSISTENT_GROUP_PROTOCOL"),
        "{text}"
    );
    assert!(text.contains("assignor"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_changed_subscription_is_joined_with_and_new_topics_are_noticed() {
    let broker = FakeBroker::new(&[("a", 1), ("b", 1)]);
    let member = start(&broker, sticky(), Diary::default()).await;
    wait(SECOND).await;
    assert_eq!(member.diary.read(), ["assigned a-0"]);
    let diary = Arc::clone(&member.diary) as Arc<dyn RebalanceListener>;
    member
        .consumer
        .subscribe_with(["b", "later"], diary)
        .unwrap();
    wait(5 * SECOND).await;
    assert_eq!(member.diary.read(), ["revoked a-0", "assigned b-0"]);
    broker
        .lock()
        .topics
        .insert("later".into(), vec![super::broker::Log::default()]);
    wait(5 * SECOND).await;
    assert_eq!(member.diary.read(), ["assigned later-0"]);
    member.consumer.unsubscribe().await.unwrap();
    assert_eq!(member.diary.read(), ["revoked b-0,later-0"]);
    assert!(member.consumer.assignment().is_empty());
    assert_eq!(broker.group().left.len(), 1);
}

/// A protocol of one's own, with user data both ways.
#[derive(Debug)]
struct Own {
    told: Mutex<Vec<(Option<Bytes>, i32)>>,
    fails: bool,
}

impl Assignor for Own {
    fn name(&self) -> &str {
        "own"
    }

    fn user_data(&self, topics: &[Arc<str>]) -> Option<Bytes> {
        Some(Bytes::from(format!("v1 {}", topics.len())))
    }

    fn assign(
        &self,
        partitions: &PartitionCounts,
        members: &[Member],
    ) -> Result<Vec<MemberAssignment>, String> {
        if self.fails {
            return Err("cannot count to three".to_owned());
        }
        let all = (0..partitions["a"]).map(|p| tp("a", p)).collect();
        Ok(vec![MemberAssignment {
            member_id: members[0].member_id.clone(),
            partitions: all,
            user_data: members[0].user_data.clone(),
        }])
    }

    fn on_assignment(&self, assignment: &Assignment, group: &GroupMetadata) {
        self.told
            .lock()
            .unwrap()
            .push((assignment.user_data.clone(), group.generation_id));
    }
}

#[tokio::test(start_paused = true)]
async fn an_assignor_of_ones_own_exchanges_user_data() {
    let broker = FakeBroker::new(&[("a", 3)]);
    let own = Arc::new(Own {
        told: Mutex::default(),
        fails: false,
    });
    let builder = group().assignors(vec![Arc::clone(&own) as Arc<dyn Assignor>]);
    let member = start(&broker, builder, Diary::default()).await;
    wait(SECOND).await;
    assert_eq!(member.diary.read(), ["assigned a-0,a-1,a-2"]);
    assert_eq!(
        *own.told.lock().unwrap(),
        [(Some(Bytes::from_static(b"v1 1")), 1)]
    );
}

#[tokio::test(start_paused = true)]
async fn an_assignor_that_fails_ends_the_member_and_not_the_group() {
    let broker = FakeBroker::new(&[("a", 3)]);
    let own = Arc::new(Own {
        told: Mutex::default(),
        fails: true,
    });
    let member = start(&broker, group().assignors(vec![own]), Diary::default()).await;
    let error = tokio::time::timeout(10 * SECOND, member.task)
        .await
        .unwrap()
        .unwrap();
    assert!(
        error.to_string().contains("cannot count to three"),
        "{error}"
    );
    assert_eq!(broker.group().left, ["member-1"]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_poll_neither_repeats_nor_loses_a_call_of_the_listener() {
    let broker = FakeBroker::new(&[("a", 2)]);
    let consumer = connect(&broker, group()).await;
    let diary = Arc::new(Diary {
        pause: 10 * SECOND,
        ..Default::default()
    });
    consumer
        .subscribe_with(["a"], Arc::clone(&diary) as _)
        .unwrap();
    consumer.poll(SECOND).await.unwrap();
    diary.read();
    let second = start(&broker, group(), Diary::default()).await;
    for _ in 0..40 {
        // Each of these is cut short in the middle of the listener's ten seconds.
        let _ = tokio::time::timeout(SECOND, consumer.poll(60 * SECOND)).await;
    }
    assert_eq!(diary.read(), ["revoked a-0,a-1", "assigned a-0"]);
    assert_eq!(second.diary.read(), ["assigned a-1"]);
}

#[tokio::test(start_paused = true)]
async fn automatic_commits_follow_the_clock_and_come_before_a_revocation() {
    let broker = FakeBroker::new(&[("a", 1)]);
    broker.with("a", 0, |log| log.write(&["x"]));
    let builder = group().enable_auto_commit(true);
    let member = start(&broker, builder, Diary::default()).await;
    wait(4 * SECOND).await;
    assert!(broker.lock().commits.is_empty());
    wait(3 * SECOND).await;
    broker.with("a", 0, |log| assert_eq!(log.committed, Some(1)));
    assert!(member.consumer.group_metadata().unwrap().auto_commit);
    broker.with("a", 0, |log| log.write(&["y"]));
    wait(Duration::from_millis(100)).await;
    member.consumer.close().await.unwrap();
    broker.with("a", 0, |log| assert_eq!(log.committed, Some(2)));
}

#[tokio::test(start_paused = true)]
async fn partitions_added_to_a_topic_reach_the_group_when_metadata_is_refreshed() {
    let broker = FakeBroker::new(&[("a", 1)]);
    let member = start(&broker, group(), Diary::default()).await;
    wait(SECOND).await;
    member.diary.read();
    broker
        .lock()
        .topics
        .get_mut("a")
        .unwrap()
        .push(super::broker::Log::default());
    wait(301 * SECOND).await;
    assert_eq!(member.diary.read(), ["revoked a-0", "assigned a-0,a-1"]);
}
