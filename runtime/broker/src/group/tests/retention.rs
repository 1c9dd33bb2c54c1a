//! How long committed offsets are kept when nobody is there.
//!
//! Invariants: see the names of the tests.
//! Never: waits for real time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use millstream_log::MemoryStorage;
use millstream_protocol::messages::leave_group::MemberIdentity;

use super::*;
use crate::tests::harness::{START_MS, config};
use crate::{Broker, BrokerConfig, Clock};

const DAY_MS: i64 = 86_400_000;

async fn leave(client: &mut Client, member: &Member) {
    let request = LeaveGroupRequest {
        group_id: GROUP.to_owned(),
        members: vec![MemberIdentity {
            member_id: member.member_id.clone(),
            ..Default::default()
        }],
        ..Default::default()
    };
    let left = client.ask(5, request).await;
    assert_eq!(left.members[0].error_code, ErrorCode::NONE);
}

async fn opened(storage: &MemoryStorage, clock: Clock) -> Broker {
    let config = BrokerConfig { clock, ..config() };
    let broker = Broker::open(Arc::new(storage.clone()), config);
    broker.await.expect("opens")
}

/// What a group has left behind in a broker that was stopped with it.
async fn left_behind(by_a_member: bool, clock: Clock) -> MemoryStorage {
    let storage = MemoryStorage::new();
    let broker = opened(&storage, clock).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    if by_a_member {
        let member = join_alone(&mut client, None).await;
        assert_eq!(commit(&mut client, &member, 0, 5).await, ErrorCode::NONE);
        leave(&mut client, &member).await;
    } else {
        let nobody = Member::none();
        assert_eq!(commit(&mut client, &nobody, 0, 5).await, ErrorCode::NONE);
    }
    broker.close().await.expect("closes");
    storage
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_with_the_broker_after_the_retention_time_finds_its_offsets() {
    for by_a_member in [true, false] {
        let storage = left_behind(by_a_member, Clock::starting_at(START_MS)).await;
        let broker = opened(&storage, Clock::starting_at(START_MS + 8 * DAY_MS)).await;
        let mut client = Client::connect(&broker);
        // It takes its time to start.
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(committed(&mut client, 0).await, 5);
        if by_a_member {
            let member = join_alone(&mut client, None).await;
            for _ in 0..300 {
                tokio::time::sleep(Duration::from_secs(9)).await;
                assert_eq!(heartbeat(&mut client, &member).await, ErrorCode::NONE);
            }
            assert_eq!(committed(&mut client, 0).await, 5, "it is there again");
        } else {
            tokio::time::sleep(Duration::from_secs(600)).await;
            assert_eq!(committed(&mut client, 0).await, -1, "nobody came back");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_committed_after_the_machine_slept_is_as_young_as_it_looks_after_a_restart() {
    for by_a_member in [true, false] {
        let slept = Clock::starting_at(START_MS).with_wall(|| START_MS + 8 * DAY_MS);
        let storage = left_behind(by_a_member, slept).await;
        let broker = opened(&storage, Clock::starting_at(START_MS + 8 * DAY_MS)).await;
        let mut client = Client::connect(&broker);
        tokio::time::sleep(Duration::from_secs(1_300)).await;
        assert_eq!(committed(&mut client, 0).await, 5, "{by_a_member}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_slept_with_the_machine_has_an_interval_to_come_back() {
    static WALL_MS: AtomicI64 = AtomicI64::new(START_MS);
    let clock = Clock::starting_at(START_MS).with_wall(|| WALL_MS.load(Ordering::Relaxed));
    let broker = opened(&MemoryStorage::new(), clock).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let nobody = Member::none();
    assert_eq!(commit(&mut client, &nobody, 0, 5).await, ErrorCode::NONE);
    WALL_MS.store(START_MS + 8 * DAY_MS, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(900)).await;
    assert_eq!(committed(&mut client, 0).await, 5);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(committed(&mut client, 0).await, -1, "nobody came back");
}
