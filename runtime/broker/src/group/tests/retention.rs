//! How long committed offsets are kept when nobody is there.
//!
//! Invariants: see the names of the tests.
//! Never: waits for real time.

use std::sync::Arc;
use std::time::Duration;

use millstream_log::MemoryStorage;
use millstream_protocol::messages::leave_group::MemberIdentity;

use super::*;
use crate::tests::harness::{START_MS, config, open};
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

/// What a group has left behind in a broker that was stopped with it.
async fn left_behind(by_a_member: bool) -> MemoryStorage {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
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
        let later = BrokerConfig {
            clock: Clock::starting_at(START_MS + 8 * DAY_MS),
            ..config()
        };
        let storage = left_behind(by_a_member).await;
        let broker = Broker::open(Arc::new(storage), later);
        let broker = broker.await.expect("opens");
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
