//! Joining, leaving and being described, over frames and across crashes.
//!
//! Invariants: see the names of the tests.
//! Never: waits for real time.

use std::time::Duration;

use millstream_log::MemoryStorage;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::leave_group::MemberIdentity;
use millstream_protocol::messages::*;

use super::*;
use crate::tests::harness::{Client, broker, open};
use crate::{Broker, BrokerConfig};

/// A leader and a follower in generation 2, each on its own connection.
async fn two_members(broker: &Broker, instance: Option<&str>) -> [(Client, Member); 2] {
    let mut first = Client::connect(broker);
    let mut second = Client::connect(broker);
    let leader = join_alone(&mut first, None).await;
    let mut member_id = String::new();
    if instance.is_none() {
        let request = second.ask(9, join_request("", None)).await;
        assert_eq!(request.error_code, ErrorCode::MEMBER_ID_REQUIRED);
        member_id = request.member_id;
    }
    second.send(9, &join_request(&member_id, instance)).await;
    while heartbeat(&mut first, &leader).await.is_ok() {}
    let first_joined = first.ask(9, join_request(&leader.member_id, None)).await;
    let second_joined = second.receive::<JoinGroupRequest>(9).await;
    assert_eq!(
        (first_joined.generation_id, second_joined.generation_id),
        (2, 2)
    );
    let leader = Member {
        generation: 2,
        ..leader
    };
    let follower = Member {
        member_id: second_joined.member_id,
        instance: instance.map(str::to_owned),
        generation: 2,
    };
    second.send(5, &sync_request(&follower, &[])).await;
    let parts = [
        (&*leader.member_id, "first"),
        (&*follower.member_id, "second"),
    ];
    let synced = first.ask(5, sync_request(&leader, &parts)).await;
    assert_eq!(synced.assignment, "first");
    let synced = second.receive::<SyncGroupRequest>(5).await;
    assert_eq!(synced.assignment, "second");
    [(first, leader), (second, follower)]
}

#[tokio::test(start_paused = true)]
async fn every_key_is_coordinated_here_one_or_many_groups_and_transactions() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    for version in 0..=6 {
        for key_type in [0, 1] {
            let mut request = FindCoordinatorRequest::default();
            if version >= 1 {
                request.key_type = key_type;
            }
            if version >= 4 {
                request.coordinator_keys = vec!["a".to_owned(), "b".to_owned()];
            } else {
                request.key = "a".to_owned();
            }
            let answer = client.ask(version, request).await;
            if version >= 4 {
                let keys: Vec<&str> = answer
                    .coordinators
                    .iter()
                    .map(|found| &*found.key)
                    .collect();
                assert_eq!(keys, ["a", "b"]);
                assert!(
                    answer
                        .coordinators
                        .iter()
                        .all(|found| found.node_id == 1 && found.error_code.is_ok())
                );
            } else {
                assert_eq!((answer.node_id, answer.error_code), (1, ErrorCode::NONE));
            }
        }
    }
    let shares = FindCoordinatorRequest {
        key_type: 2,
        coordinator_keys: vec!["g:t:0".to_owned()],
        ..Default::default()
    };
    let answer = client.ask(6, shares).await;
    assert_eq!(
        answer.coordinators[0].error_code,
        ErrorCode::INVALID_REQUEST
    );
}

#[tokio::test(start_paused = true)]
async fn two_members_share_a_group_and_are_described() {
    let broker = broker().await;
    let [(mut first, leader), (_second, follower)] = two_members(&broker, None).await;
    assert_eq!(heartbeat(&mut first, &leader).await, ErrorCode::NONE);
    let request = DescribeGroupsRequest {
        groups: vec![GROUP.to_owned(), "nobody".to_owned()],
        ..Default::default()
    };
    let described = first.ask(6, request.clone()).await;
    let group = &described.groups[0];
    assert_eq!(
        (&*group.group_state, &*group.protocol_data),
        ("Stable", "range")
    );
    assert_eq!(group.members.len(), 2);
    let member = group
        .members
        .iter()
        .find(|m| m.member_id == follower.member_id);
    let member = member.expect("the follower is described");
    assert_eq!(
        (&*member.client_id, &*member.client_host),
        ("tester", "test")
    );
    assert_eq!(member.member_assignment, "second");
    assert_eq!(member.member_metadata, subscription(&["orders"], b""));
    assert_eq!(
        described.groups[1].error_code,
        ErrorCode::GROUP_ID_NOT_FOUND
    );
    let older = first.ask(5, request).await;
    assert_eq!(
        (
            &*older.groups[1].group_state,
            older.groups[1].error_code.is_ok()
        ),
        ("Dead", true)
    );
}

#[tokio::test(start_paused = true)]
async fn members_go_on_after_a_crash_without_a_rebalance() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let [(_, leader), (_, follower)] = two_members(&broker, Some("i-2")).await;
    broker.halt();
    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    assert_eq!(heartbeat(&mut client, &leader).await, ErrorCode::NONE);
    assert_eq!(heartbeat(&mut client, &follower).await, ErrorCode::NONE);
    let synced = client.ask(5, sync_request(&follower, &[])).await;
    assert_eq!(synced.assignment, "second");
}

#[tokio::test(start_paused = true)]
async fn a_restarted_static_member_takes_over_even_across_a_crash_of_the_broker() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let [(_, leader), (_, before)] = two_members(&broker, Some("i-2")).await;
    let mut client = Client::connect(&broker);
    let joined = client.ask(9, join_request("", Some("i-2"))).await;
    assert_eq!(
        (joined.error_code, joined.generation_id),
        (ErrorCode::NONE, 2)
    );
    broker.halt();
    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    let fenced = heartbeat(&mut client, &before).await;
    assert_eq!(
        fenced,
        ErrorCode::FENCED_INSTANCE_ID,
        "the new id was durable before it was told"
    );
    let now = Member {
        member_id: joined.member_id,
        ..before
    };
    let synced = client.ask(5, sync_request(&now, &[])).await;
    assert_eq!(synced.assignment, "second");
    assert_eq!(heartbeat(&mut client, &leader).await, ErrorCode::NONE);
}

#[tokio::test(start_paused = true)]
async fn sessions_begin_anew_after_a_crash_and_end_by_themselves() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let [(_, leader), (_, follower)] = two_members(&broker, None).await;
    broker.halt();
    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(heartbeat(&mut client, &leader).await, ErrorCode::NONE);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let busy = heartbeat(&mut client, &leader).await;
    assert_eq!(busy, ErrorCode::REBALANCE_IN_PROGRESS);
    let gone = heartbeat(&mut client, &follower).await;
    assert_eq!(gone, ErrorCode::UNKNOWN_MEMBER_ID);
    let joined = client.ask(9, join_request(&leader.member_id, None)).await;
    assert_eq!((joined.generation_id, joined.members.len()), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_goes_while_its_join_waits_holds_up_nobody() {
    let broker = broker().await;
    let [(mut first, leader), (mut second, follower)] = two_members(&broker, None).await;
    let mut third = Client::connect(&broker);
    let third_id = third.ask(9, join_request("", None)).await.member_id;
    third.send(9, &join_request(&third_id, None)).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    drop(third);
    first.send(9, &join_request(&leader.member_id, None)).await;
    let joined = second.ask(9, join_request(&follower.member_id, None)).await;
    assert_eq!(joined.generation_id, 3);
    let led = first.receive::<JoinGroupRequest>(9).await;
    assert_eq!(led.members.len(), 3, "its session decides about it");
}

#[tokio::test(start_paused = true)]
async fn a_parked_join_is_sent_away_when_the_broker_closes() {
    let broker = broker().await;
    let [_leader, (_second, _follower)] = two_members(&broker, None).await;
    let mut third = Client::connect(&broker);
    let third_id = third.ask(9, join_request("", None)).await.member_id;
    third.send(9, &join_request(&third_id, None)).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(!third.has_answer());
    let started = tokio::time::Instant::now();
    broker.close().await.expect("closes");
    assert!(started.elapsed() < Duration::from_secs(1), "nobody waits");
    let answer = third.receive::<JoinGroupRequest>(9).await;
    assert_eq!(answer.error_code, ErrorCode::NOT_COORDINATOR);
}

#[tokio::test(start_paused = true)]
async fn leaving_in_every_version_and_a_group_is_deleted_when_it_is_empty() {
    let broker = broker().await;
    let [(mut first, leader), (mut second, follower)] = two_members(&broker, Some("i-2")).await;
    let delete = DeleteGroupsRequest {
        groups_names: vec![GROUP.to_owned(), "nobody".to_owned()],
    };
    let refused = first.ask(2, delete.clone()).await;
    assert_eq!(refused.results[0].error_code, ErrorCode::NON_EMPTY_GROUP);
    assert_eq!(refused.results[1].error_code, ErrorCode::GROUP_ID_NOT_FOUND);
    let by_instance = LeaveGroupRequest {
        group_id: GROUP.to_owned(),
        members: vec![
            MemberIdentity {
                group_instance_id: Some("i-2".to_owned()),
                ..Default::default()
            },
            MemberIdentity {
                member_id: "nobody".to_owned(),
                ..Default::default()
            },
        ],
        ..Default::default()
    };
    let left = second.ask(5, by_instance).await;
    let errors: Vec<ErrorCode> = left
        .members
        .iter()
        .map(|member| member.error_code)
        .collect();
    assert_eq!(errors, [ErrorCode::NONE, ErrorCode::UNKNOWN_MEMBER_ID]);
    assert_eq!(left.error_code, ErrorCode::NONE);
    let gone = heartbeat(&mut second, &follower).await;
    assert_eq!(gone, ErrorCode::UNKNOWN_MEMBER_ID);
    let alone = LeaveGroupRequest {
        group_id: GROUP.to_owned(),
        member_id: leader.member_id.clone(),
        ..Default::default()
    };
    assert_eq!(
        first.ask(2, alone.clone()).await.error_code,
        ErrorCode::NONE
    );
    assert_eq!(
        first.ask(2, alone).await.error_code,
        ErrorCode::UNKNOWN_MEMBER_ID
    );
    let listed = first.ask(5, ListGroupsRequest::default()).await;
    let group = &listed.groups[0];
    assert_eq!(
        (
            &*group.group_state,
            &*group.protocol_type,
            &*group.group_type
        ),
        ("Empty", "consumer", "Classic")
    );
    let deleted = first.ask(2, delete).await;
    assert_eq!(deleted.results[0].error_code, ErrorCode::NONE);
    let listed = first.ask(5, ListGroupsRequest::default()).await;
    assert!(listed.groups.is_empty());
}

#[tokio::test(start_paused = true)]
async fn groups_are_listed_by_state_and_type() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    join_alone(&mut client, None).await;
    for (states, types, count) in [
        (vec![], vec![], 1),
        (vec!["stable"], vec![], 1),
        (vec!["Empty", "Dead"], vec![], 0),
        (vec![], vec!["classic"], 1),
        (vec![], vec!["consumer"], 0),
    ] {
        let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
        let request = ListGroupsRequest {
            states_filter: owned(states),
            types_filter: owned(types),
        };
        assert_eq!(client.ask(5, request).await.groups.len(), count);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_cannot_be_right_is_refused() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let nameless = JoinGroupRequest {
        group_id: String::new(),
        ..join_request("", None)
    };
    let answer = client.ask(9, nameless).await;
    assert_eq!(answer.error_code, ErrorCode::INVALID_GROUP_ID);
    for session_timeout_ms in [0, 5_999, 1_800_001] {
        let request = JoinGroupRequest {
            session_timeout_ms,
            ..join_request("", None)
        };
        let answer = client.ask(9, request).await;
        assert_eq!(answer.error_code, ErrorCode::INVALID_SESSION_TIMEOUT);
    }
    let unnamed = SyncGroupRequest {
        protocol_name: None,
        ..sync_request(&Member::none(), &[])
    };
    let answer = client.ask(5, unnamed).await;
    assert_eq!(answer.error_code, ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
    let lost = heartbeat(&mut client, &Member::none()).await;
    assert_eq!(lost, ErrorCode::UNKNOWN_MEMBER_ID);
    let listed = client.ask(5, ListGroupsRequest::default()).await;
    assert!(listed.groups.is_empty(), "nothing of it is remembered");
}

#[tokio::test(start_paused = true)]
async fn an_old_client_joins_in_one_step_and_hears_no_null() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let request = JoinGroupRequest {
        rebalance_timeout_ms: -1,
        ..join_request("", None)
    };
    let joined = client.ask(0, request).await;
    assert_eq!(joined.error_code, ErrorCode::NONE);
    assert_eq!(joined.protocol_name.as_deref(), Some("range"));
    let unknown = client.ask(0, join_request("nobody", None)).await;
    assert_eq!(unknown.error_code, ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(unknown.protocol_name.as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn an_empty_group_that_nobody_uses_is_forgotten() {
    let storage = MemoryStorage::new();
    let config = BrokerConfig {
        offsets_retention_ms: 1_000,
        offsets_retention_check_interval_ms: 1_000,
        ..crate::tests::harness::config()
    };
    let broker = Broker::open(std::sync::Arc::new(storage.clone()), config)
        .await
        .expect("opens");
    let mut client = Client::connect(&broker);
    let member = join_alone(&mut client, None).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(heartbeat(&mut client, &member).await, ErrorCode::NONE);
    tokio::time::sleep(Duration::from_secs(12)).await;
    let listed = client.ask(5, ListGroupsRequest::default()).await;
    assert!(
        listed.groups.is_empty(),
        "its session ended, and it has no offsets"
    );
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_comes_up_and_passes_in_one_tick_is_kept() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    join_alone(&mut client, None).await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    // Somebody is given an id and does not come back with it.
    let announced = client.ask(9, join_request("", None)).await;
    assert_eq!(announced.error_code, ErrorCode::MEMBER_ID_REQUIRED);
    // The only member's session ends, and with it, at once, the rebalance that this begins.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let listed = client.ask(5, ListGroupsRequest::default()).await;
    assert_eq!(listed.groups[0].group_state, "Empty");
}

#[tokio::test(start_paused = true)]
async fn a_member_keeps_no_frame_and_no_more_than_a_member_may_say() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let mut request = join_request("", None);
    request.protocols.push(JoinGroupRequestProtocol {
        name: "other".to_owned(),
        metadata: Bytes::from(vec![7; 1 << 20]),
    });
    let frame = client.send_in_one_piece(3, &request).await;
    let joined = client.receive::<JoinGroupRequest>(3).await;
    assert_eq!(joined.error_code, ErrorCode::NONE);
    assert!(frame.is_unique(), "nothing refers to it any more");
    let member = Member {
        member_id: joined.member_id.clone(),
        instance: None,
        generation: joined.generation_id,
    };
    let sync = sync_request(&member, &[(&member.member_id, "all")]);
    let frame = client.send_in_one_piece(3, &sync).await;
    let synced = client.receive::<SyncGroupRequest>(3).await;
    assert_eq!(&synced.assignment[..], b"all");
    drop(synced);
    assert!(frame.is_unique(), "nothing refers to it any more");

    request.member_id = member.member_id;
    request.protocols[1].metadata = Bytes::from(vec![7; 4 << 20]);
    let refused = client.ask(3, request).await;
    assert_eq!(refused.error_code, ErrorCode::INVALID_REQUEST);
}
