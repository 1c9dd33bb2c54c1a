//! Groups of the consumer protocol over frames and across crashes.
//!
//! Invariants: see the names of the tests.
//! Never: waits for real time.

use std::sync::Arc;
use std::time::Duration;

use millstream_log::MemoryStorage;
use millstream_protocol::messages::consumer_group_describe::DescribedGroup;
use millstream_protocol::messages::consumer_group_heartbeat::{Assignment, TopicPartitions};
use millstream_protocol::messages::leave_group::MemberIdentity;
use millstream_protocol::messages::offset_delete::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use millstream_protocol::messages::*;
use millstream_protocol::{ErrorCode, Uuid};

use super::transactions::{end, init, send_offsets};
use super::*;
use crate::tests::harness::{broker, config, open};
use crate::{Broker, BrokerConfig, Clock};

const PARTITIONS: i32 = 4;

fn joining(id: &str, instance: Option<&str>) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest {
        rebalance_timeout_ms: 60_000,
        subscribed_topic_names: Some(vec!["orders".to_owned()]),
        topic_partitions: Some(Vec::new()),
        ..beating(id, instance, 0)
    }
}

fn beating(id: &str, instance: Option<&str>, epoch: i32) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest {
        group_id: GROUP.to_owned(),
        member_id: id.to_owned(),
        member_epoch: epoch,
        instance_id: instance.map(str::to_owned),
        ..Default::default()
    }
}

/// One member: its connection, what it was told, and what it owns.
struct Consumer {
    client: Client,
    member: Member,
    topic_id: Uuid,
    owned: Vec<i32>,
    told: Vec<i32>,
}

impl Consumer {
    async fn join(broker: &Broker, topic_id: Uuid, id: &str, instance: Option<&str>) -> Consumer {
        let mut consumer = Consumer {
            client: Client::connect(broker),
            member: Member {
                member_id: id.to_owned(),
                instance: instance.map(str::to_owned),
                generation: 0,
            },
            topic_id,
            owned: Vec::new(),
            told: Vec::new(),
        };
        let answer = consumer.client.ask(1, joining(id, instance)).await;
        consumer.hear(answer);
        consumer
    }

    fn hear(&mut self, answer: ConsumerGroupHeartbeatResponse) {
        assert_eq!(
            answer.error_code,
            ErrorCode::NONE,
            "{:?}",
            answer.error_message
        );
        assert_eq!(answer.heartbeat_interval_ms, 5_000);
        self.member.generation = answer.member_epoch;
        if let Some(Assignment { topic_partitions }) = answer.assignment {
            let told = topic_partitions.iter().flat_map(|topic| &topic.partitions);
            self.told = told.copied().collect();
        }
    }

    /// Says what it owns, and obeys the answer.
    async fn beat(&mut self) {
        let member = &self.member;
        let owned = TopicPartitions {
            topic_id: self.topic_id,
            partitions: self.owned.clone(),
        };
        let request = ConsumerGroupHeartbeatRequest {
            topic_partitions: Some(vec![owned]),
            ..beating(
                &member.member_id,
                member.instance.as_deref(),
                member.generation,
            )
        };
        let answer = self.client.ask(1, request).await;
        self.hear(answer);
        self.owned = self.told.clone();
    }
}

/// Two members, each with half of "orders".
async fn two_consumers(broker: &Broker, instance: Option<&str>) -> [Consumer; 2] {
    let topic_id = Client::connect(broker)
        .create_topic("orders", PARTITIONS)
        .await;
    let mut first = Consumer::join(broker, topic_id, "a", instance).await;
    assert_eq!(first.told, [0, 1, 2, 3]);
    first.beat().await;
    let mut second = Consumer::join(broker, topic_id, "b", None).await;
    assert_eq!(second.told, []);
    for _ in 0..2 {
        first.beat().await;
        second.beat().await;
    }
    assert_eq!((&*first.owned, &*second.owned), (&[0, 1][..], &[2, 3][..]));
    assert_eq!((first.member.generation, second.member.generation), (2, 2));
    [first, second]
}

async fn described(client: &mut Client) -> DescribedGroup {
    let request = ConsumerGroupDescribeRequest {
        group_ids: vec![GROUP.to_owned(), "nobody".to_owned()],
        ..Default::default()
    };
    let answer = client.ask(1, request).await;
    assert_eq!(answer.groups[1].error_code, ErrorCode::GROUP_ID_NOT_FOUND);
    answer.groups[0].clone()
}

/// The error, type and state with which the group is described and listed.
async fn listed(client: &mut Client) -> Vec<(String, String)> {
    let answer = client.ask(5, ListGroupsRequest::default()).await;
    let groups = answer.groups.into_iter();
    groups
        .map(|group| (group.group_type, group.group_state))
        .collect()
}

fn pair(group_type: &str, state: &str) -> Vec<(String, String)> {
    vec![(group_type.to_owned(), state.to_owned())]
}

#[tokio::test(start_paused = true)]
async fn members_are_described_with_what_they_have_and_are_to_have() {
    let broker = broker().await;
    let [mut first, _second] = two_consumers(&broker, Some("i")).await;
    let group = described(&mut first.client).await;
    assert_eq!(group.error_code, ErrorCode::NONE);
    assert_eq!((group.group_epoch, group.assignment_epoch), (2, 2));
    assert_eq!(
        (&*group.group_state, &*group.assignor_name),
        ("Stable", "uniform")
    );
    let member = &group.members[0];
    assert_eq!(
        (&*member.member_id, member.instance_id.as_deref()),
        ("a", Some("i"))
    );
    assert_eq!((member.member_epoch, member.member_type), (2, 1));
    assert_eq!(
        (&*member.client_id, &*member.client_host),
        ("tester", "test")
    );
    assert_eq!(member.subscribed_topic_names, ["orders"]);
    assert_eq!(member.assignment, member.target_assignment);
    let topic = &member.assignment.topic_partitions[0];
    assert_eq!(
        (&*topic.topic_name, &*topic.partitions),
        ("orders", &[0, 1][..])
    );

    assert_eq!(listed(&mut first.client).await, pair("Consumer", "Stable"));
    let request = ListGroupsRequest {
        types_filter: vec!["classic".to_owned()],
        ..Default::default()
    };
    assert_eq!(first.client.ask(5, request).await.groups, []);
    let request = DescribeGroupsRequest {
        groups: vec![GROUP.to_owned()],
        ..Default::default()
    };
    let classic = first.client.ask(6, request).await;
    assert_eq!(classic.groups[0].error_code, ErrorCode::GROUP_ID_NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn members_go_on_after_a_crash_at_their_epochs_with_their_partitions() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let [first, second] = two_consumers(&broker, None).await;
    broker.halt();
    let broker = open(storage.crash()).await;
    for mut consumer in [first, second] {
        consumer.client = Client::connect(&broker);
        consumer.beat().await;
        assert_eq!((consumer.member.generation, consumer.owned.len()), (2, 2));
    }
    let mut client = Client::connect(&broker);
    assert_eq!(described(&mut client).await.group_epoch, 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_to_be_given_up_is_remembered_across_a_crash() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let topic_id = Client::connect(&broker)
        .create_topic("orders", PARTITIONS)
        .await;
    let mut first = Consumer::join(&broker, topic_id, "a", None).await;
    first.beat().await;
    let mut second = Consumer::join(&broker, topic_id, "b", None).await;
    let request = beating("a", None, 1);
    let asked = first.client.ask(1, request).await;
    assert_eq!(asked.member_epoch, 1, "it is asked to give up");
    broker.halt();
    let broker = open(storage.crash()).await;
    first.client = Client::connect(&broker);
    second.client = Client::connect(&broker);
    second.beat().await;
    assert_eq!(second.told, [], "the first one still owns everything");
    first.told = vec![0, 1];
    first.beat().await;
    first.beat().await;
    second.beat().await;
    assert_eq!((&*first.owned, &*second.owned), (&[0, 1][..], &[2, 3][..]));
}

#[tokio::test(start_paused = true)]
async fn a_silent_member_loses_its_partitions_when_its_session_ends() {
    let broker = broker().await;
    let [mut first, _silent] = two_consumers(&broker, None).await;
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_secs(12)).await;
        first.beat().await;
    }
    assert_eq!(first.told, [0, 1, 2, 3]);
    assert_eq!(described(&mut first.client).await.members.len(), 1);
    tokio::time::sleep(Duration::from_secs(46)).await;
    assert_eq!(listed(&mut first.client).await, pair("Consumer", "Empty"));
}

#[tokio::test(start_paused = true)]
async fn g3_a_transaction_commits_offsets_under_the_members_epoch_across_a_crash() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let [mut first, second] = two_consumers(&broker, None).await;
    let client = &mut first.client;
    let mut producer = init(client).await;
    let passed = Member {
        generation: 1,
        ..first.member.clone()
    };
    let illegal = ErrorCode::ILLEGAL_GENERATION;
    for (member, expected) in [
        (&first.member, ErrorCode::NONE),
        (&passed, ErrorCode::NONE),
        // The partition was this member's never, and nobody's of that name.
        (
            &Member {
                generation: 1,
                ..second.member.clone()
            },
            illegal,
        ),
        (
            &Member {
                generation: 3,
                ..first.member.clone()
            },
            illegal,
        ),
        (
            &Member {
                member_id: "z".to_owned(),
                ..first.member.clone()
            },
            ErrorCode::UNKNOWN_MEMBER_ID,
        ),
    ] {
        let sent = send_offsets(client, producer, member, 7).await;
        assert_eq!(sent, expected, "{member:?}");
    }
    producer = end(client, producer, true).await;
    assert_eq!(committed(client, 0).await, 7);
    let broker = open(storage.crash()).await;
    let client = &mut Client::connect(&broker);
    // What each member has had since when survives the crash.
    assert_eq!(commit(client, &passed, 1, 8).await, ErrorCode::NONE);
    assert_eq!(
        commit(client, &passed, 3, 8).await,
        ErrorCode::STALE_MEMBER_EPOCH
    );
    assert_eq!(
        send_offsets(client, producer, &passed, 9).await,
        ErrorCode::NONE
    );
}

#[tokio::test(start_paused = true)]
async fn offsets_are_committed_and_fetched_under_the_members_epoch() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let [mut first, second] = two_consumers(&broker, None).await;
    let client = &mut first.client;
    let passed = Member {
        generation: 1,
        ..first.member.clone()
    };
    // Its own since epoch 1; the other's since epoch 2.
    assert_eq!(commit(client, &passed, 0, 4).await, ErrorCode::NONE);
    assert_eq!(
        commit(client, &passed, 2, 6).await,
        ErrorCode::STALE_MEMBER_EPOCH
    );
    assert_eq!(commit(client, &first.member, 0, 5).await, ErrorCode::NONE);
    let unknown = Member {
        member_id: "z".to_owned(),
        ..first.member.clone()
    };
    assert_eq!(
        commit(client, &unknown, 0, 6).await,
        ErrorCode::UNKNOWN_MEMBER_ID
    );
    assert_eq!(
        commit(client, &Member::none(), 0, 6).await,
        ErrorCode::UNKNOWN_MEMBER_ID
    );
    let old = commit_request(&second.member, &[("orders", 0, 6)]);
    let old = client.ask(8, old).await;
    assert_eq!(
        old.topics[0].partitions[0].error_code,
        ErrorCode::UNSUPPORTED_VERSION
    );
    assert_eq!(committed(client, 0).await, 5);

    for (member_id, member_epoch, expected) in [
        (None, -1, ErrorCode::NONE),
        (Some("a"), 2, ErrorCode::NONE),
        (Some("a"), 1, ErrorCode::STALE_MEMBER_EPOCH),
        (Some("z"), 2, ErrorCode::UNKNOWN_MEMBER_ID),
    ] {
        let mut request = fetch_request(true, Some(&[("orders", &[0])]));
        request.groups[0].member_id = member_id.map(str::to_owned);
        request.groups[0].member_epoch = member_epoch;
        let answer = client.ask(9, request).await;
        assert_eq!(
            answer.groups[0].error_code, expected,
            "{member_id:?} {member_epoch}"
        );
    }
    broker.halt();
    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    assert_eq!(committed(&mut client, 0).await, 5);
    assert_eq!(
        commit(&mut client, &first.member, 0, 7).await,
        ErrorCode::NONE
    );
}

#[tokio::test(start_paused = true)]
async fn a_group_changes_its_protocol_only_while_it_is_empty() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let [mut first, mut second] = two_consumers(&broker, None).await;
    let client = &mut first.client;
    assert_eq!(commit(client, &first.member, 0, 5).await, ErrorCode::NONE);
    let refused = client.ask(9, join_request("", None)).await;
    assert_eq!(refused.error_code, ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
    let unknown = heartbeat(client, &first.member).await;
    assert_eq!(unknown, ErrorCode::UNKNOWN_MEMBER_ID);
    for id in ["a", "b"] {
        let answer = second.client.ask(1, beating(id, None, -1)).await;
        assert_eq!(
            (answer.error_code, answer.member_epoch),
            (ErrorCode::NONE, -1)
        );
    }
    assert_eq!(listed(&mut second.client).await, pair("Consumer", "Empty"));

    let classic = join_alone(&mut second.client, None).await;
    assert_eq!(listed(&mut second.client).await, pair("Classic", "Stable"));
    let refused = second.client.ask(1, joining("c", None)).await;
    assert_eq!(refused.error_code, ErrorCode::GROUP_ID_NOT_FOUND);
    broker.halt();
    let storage = storage.crash();
    let broker = open(storage.clone()).await;
    let mut client = Client::connect(&broker);
    assert_eq!(listed(&mut client).await, pair("Classic", "Stable"));
    let request = LeaveGroupRequest {
        group_id: GROUP.to_owned(),
        members: vec![MemberIdentity {
            member_id: classic.member_id,
            ..Default::default()
        }],
        ..Default::default()
    };
    assert_eq!(client.ask(5, request).await.error_code, ErrorCode::NONE);
    let joined = client.ask(1, joining("c", None)).await;
    assert_eq!(
        (joined.error_code, joined.member_epoch),
        (ErrorCode::NONE, 1)
    );
    assert_eq!(
        committed(&mut client, 0).await,
        5,
        "offsets stay with the name"
    );
    broker.halt();
    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    assert_eq!(listed(&mut client).await, pair("Consumer", "Stable"));
}

/// Deletes one offset of "orders".
async fn delete_offset(client: &mut Client) -> ErrorCode {
    let partitions = vec![OffsetDeleteRequestPartition { partition_index: 1 }];
    let name = "orders".to_owned();
    let request = OffsetDeleteRequest {
        group_id: GROUP.to_owned(),
        topics: vec![OffsetDeleteRequestTopic { name, partitions }],
    };
    let answer = client.ask(0, request).await;
    answer.topics[0].partitions[0].error_code
}

#[tokio::test(start_paused = true)]
async fn a_group_with_members_is_not_deleted_and_one_without_is_gone_for_good() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let [mut first, _second] = two_consumers(&broker, Some("i")).await;
    let client = &mut first.client;
    assert_eq!(commit(client, &first.member, 0, 5).await, ErrorCode::NONE);
    let delete = || DeleteGroupsRequest {
        groups_names: vec![GROUP.to_owned()],
    };
    let refused = client.ask(2, delete()).await;
    assert_eq!(refused.results[0].error_code, ErrorCode::NON_EMPTY_GROUP);
    let in_use = ErrorCode::GROUP_SUBSCRIBED_TO_TOPIC;
    assert_eq!(delete_offset(client).await, in_use);
    let member = |member_id: &str, instance: Option<&str>| MemberIdentity {
        member_id: member_id.to_owned(),
        group_instance_id: instance.map(str::to_owned),
        ..Default::default()
    };
    let request = LeaveGroupRequest {
        group_id: GROUP.to_owned(),
        members: vec![member("", Some("i")), member("b", None), member("c", None)],
        ..Default::default()
    };
    let answer = client.ask(5, request).await;
    let errors: Vec<ErrorCode> = answer.members.iter().map(|m| m.error_code).collect();
    let unknown = ErrorCode::UNKNOWN_MEMBER_ID;
    assert_eq!(errors, [ErrorCode::NONE, ErrorCode::NONE, unknown]);
    assert_eq!(delete_offset(client).await, ErrorCode::NONE);
    let deleted = client.ask(2, delete()).await;
    assert_eq!(deleted.results[0].error_code, ErrorCode::NONE);
    broker.halt();
    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    assert_eq!(listed(&mut client).await, []);
    assert_eq!(committed(&mut client, 0).await, -1);
}

#[tokio::test(start_paused = true)]
async fn an_empty_group_expires_with_its_offsets() {
    let config = BrokerConfig {
        offsets_retention_ms: 60_000,
        offsets_retention_check_interval_ms: 10_000,
        ..config()
    };
    let broker = Broker::open(Arc::new(MemoryStorage::new()), config);
    let broker = broker.await.expect("opens");
    let [mut first, mut second] = two_consumers(&broker, None).await;
    let client = &mut first.client;
    assert_eq!(commit(client, &first.member, 0, 5).await, ErrorCode::NONE);
    client.ask(1, beating("a", None, -1)).await;
    second.client.ask(1, beating("b", None, -1)).await;
    assert_eq!(listed(client).await, pair("Consumer", "Empty"));
    tokio::time::sleep(Duration::from_secs(80)).await;
    assert_eq!(listed(client).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_was_in_use_keeps_its_offsets_for_the_retention_time_from_its_end() {
    let storage = MemoryStorage::new();
    let retention = || BrokerConfig {
        offsets_retention_ms: 60_000,
        offsets_retention_check_interval_ms: 1_000,
        ..config()
    };
    let broker = Broker::open(Arc::new(storage.clone()), retention());
    let broker = broker.await.expect("opens");
    let topic_id = Client::connect(&broker)
        .create_topic("orders", PARTITIONS)
        .await;
    let mut consumer = Consumer::join(&broker, topic_id, "a", None).await;
    consumer.beat().await;
    let (client, member) = (&mut consumer.client, &consumer.member);
    assert_eq!(commit(client, member, 0, 5).await, ErrorCode::NONE);
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(9)).await;
        consumer.beat().await;
    }
    let client = &mut consumer.client;
    client.ask(1, beating("a", None, -1)).await;
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(
        committed(client, 0).await,
        5,
        "empty for less than a minute"
    );
    // A restart does not begin that anew.
    let now_ms = broker.node().now_ms();
    broker.close().await.expect("closes");
    let restarted = BrokerConfig {
        clock: Clock::starting_at(now_ms),
        ..retention()
    };
    let broker = Broker::open(Arc::new(storage), restarted);
    let broker = broker.await.expect("opens");
    let mut client = Client::connect(&broker);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(committed(&mut client, 0).await, 5);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(committed(&mut client, 0).await, -1);
}

#[tokio::test(start_paused = true)]
async fn a_member_of_version_0_may_be_given_its_id() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", PARTITIONS).await;
    let given = client.ask(0, joining("", None)).await;
    assert_eq!(given.error_code, ErrorCode::NONE);
    let id = given.member_id.expect("an id");
    assert_eq!(
        client.ask(0, beating(&id, None, 1)).await.error_code,
        ErrorCode::NONE
    );
    let refused = client.ask(1, joining("", None)).await;
    assert_eq!(refused.error_code, ErrorCode::INVALID_REQUEST);
}

#[tokio::test(start_paused = true)]
async fn requests_that_cannot_be_meant_are_refused_and_leave_no_group() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let with = |change: fn(&mut ConsumerGroupHeartbeatRequest)| {
        let mut request = joining("a", None);
        change(&mut request);
        request
    };
    let invalid = ErrorCode::INVALID_REQUEST;
    let assignor = ErrorCode::UNSUPPORTED_ASSIGNOR;
    let regex = ErrorCode::INVALID_REGULAR_EXPRESSION;
    let missing = ErrorCode::GROUP_ID_NOT_FOUND;
    let cases = [
        (with(|r| r.group_id.clear()), invalid),
        (with(|r| r.rebalance_timeout_ms = -1), invalid),
        (with(|r| r.topic_partitions = None), invalid),
        (with(|r| r.subscribed_topic_names = None), invalid),
        (with(|r| r.instance_id = Some(String::new())), invalid),
        (with(|r| r.rack_id = Some(String::new())), invalid),
        (beating("a", None, -2), invalid),
        (beating("a", None, -3), invalid),
        (beating("", None, 1), invalid),
        (
            with(|r| r.server_assignor = Some("sticky".to_owned())),
            assignor,
        ),
        (
            with(|r| r.subscribed_topic_regex = Some("[ab".to_owned())),
            regex,
        ),
        (beating("a", None, 1), missing),
        (beating("a", None, -1), missing),
    ];
    for (request, expected) in cases {
        let answer = client.ask(1, request.clone()).await;
        assert_eq!(answer.error_code, expected, "{request:?}");
        assert!(answer.error_message.is_some());
    }
    assert_eq!(listed(&mut client).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_regular_expression_is_matched_here_and_follows_the_topics() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let first = client.create_topic("orders-01", 1).await;
    client.create_topic("orders-x1", 1).await;
    let with_regex = |regex: &str, request| ConsumerGroupHeartbeatRequest {
        subscribed_topic_names: None,
        subscribed_topic_regex: Some(regex.to_owned()),
        ..request
    };
    let told = |answer: ConsumerGroupHeartbeatResponse| {
        assert_eq!(answer.error_code, ErrorCode::NONE);
        let topics = answer.assignment.expect("it is told").topic_partitions;
        let topics: Vec<Uuid> = topics.into_iter().map(|topic| topic.topic_id).collect();
        topics
    };
    let request = with_regex("(orders|payments)-[0-9]{2}", joining("a", None));
    assert_eq!(told(client.ask(1, request).await), [first]);
    let second = client.create_topic("payments-07", 1).await;
    let both = told(client.ask(1, beating("a", None, 1)).await);
    assert_eq!(both.len(), 2);
    assert!(both.contains(&second));
    // The coordinators' topics are topics, too.
    let request = with_regex("_.*[st]", joining("b", None));
    assert_eq!(told(client.ask(1, request).await).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn offsets_are_deleted_by_what_expressions_match_also_when_that_was_forgotten() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", PARTITIONS).await;
    let in_use = ErrorCode::GROUP_SUBSCRIBED_TO_TOPIC;
    for (regex, expected) in [("payments.*", ErrorCode::NONE), ("ord.*", in_use)] {
        let answer = client.ask(1, reading(regex, regex)).await;
        assert_eq!(answer.error_code, ErrorCode::NONE);
        broker.node().partitions.resolutions.forget();
        assert_eq!(delete_offset(&mut client).await, expected);
    }
}

fn reading(regex: &str, id: &str) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest {
        subscribed_topic_names: None,
        subscribed_topic_regex: Some(regex.to_owned()),
        ..joining(id, None)
    }
}

#[tokio::test(start_paused = true)]
async fn an_expression_that_takes_long_keeps_nobody_else_of_the_groups_waiting() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let request = reading("orders2?", "a");
    let answer = client.ask(1, request).await;
    assert_eq!(answer.error_code, ErrorCode::NONE);

    let busy = broker.node().partitions.resolutions.hold().await;
    let mut other = Client::connect(&broker);
    other.send(1, &reading("o.*", "b")).await;
    // Members of the very group go on, and are given what has come since.
    let quiet = client.ask(1, beating("a", None, 1)).await;
    assert_eq!(
        (quiet.error_code, quiet.assignment),
        (ErrorCode::NONE, None)
    );
    client.create_topic("orders2", 1).await;
    let more = client.ask(1, beating("a", None, 1)).await;
    let topics = more.assignment.map(|given| given.topic_partitions.len());
    assert_eq!((more.member_epoch, topics), (2, Some(2)));
    let names = Consumer::join(&broker, Uuid::ZERO, "c", None).await;
    assert_eq!(names.member.generation, 3);

    drop(busy);
    let answer = other.receive::<ConsumerGroupHeartbeatRequest>(1).await;
    assert_eq!(
        (answer.error_code, answer.member_epoch),
        (ErrorCode::NONE, 4)
    );
}

#[tokio::test(start_paused = true)]
async fn groups_look_again_when_topics_come_grow_and_go_and_not_when_settings_change() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let table = &broker.node().partitions;
    let versions = || (table.version(), table.names_version());
    let (all, names) = versions();
    client.create_topic("orders", 1).await;
    assert_eq!(versions(), (all + 1, names + 1));
    let node = broker.node();
    let altered = node.alter_topic("orders", false, |_| {
        Ok([("retention.ms".to_owned(), "5".to_owned())].into())
    });
    assert!(altered.await.is_ok());
    assert_eq!(versions(), (all + 1, names + 1));
    node.grow_topics(vec![("orders".to_owned(), 2)]).await;
    assert_eq!(versions(), (all + 2, names + 1));
    node.delete_topics(vec![("orders".to_owned(), None)]).await;
    assert_eq!(versions(), (all + 3, names + 2));
}

#[tokio::test(start_paused = true)]
async fn a_group_has_a_hundred_different_expressions_at_most() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let mut last_epoch = 0;
    for count in 0..100 {
        let request = reading(&format!("orders-{count}"), &format!("m{count}"));
        let answer = client.ask(1, request).await;
        assert_eq!(answer.error_code, ErrorCode::NONE, "{count}");
        last_epoch = answer.member_epoch;
    }
    // In place of its own a member may bring another.
    let instead = ConsumerGroupHeartbeatRequest {
        member_epoch: last_epoch,
        ..reading("orders-99-new", "m99")
    };
    let answer = client.ask(1, instead).await;
    assert_eq!(answer.error_code, ErrorCode::NONE);
    let answer = client.ask(1, reading("orders-new", "n")).await;
    assert_eq!(answer.error_code, ErrorCode::INVALID_REQUEST);
    let answer = client.ask(1, reading("orders-7", "n")).await;
    assert_eq!(answer.error_code, ErrorCode::NONE);
}
