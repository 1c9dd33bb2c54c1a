//! Settings of groups: told, changed, kept, and what they do to a group that lives.
//!
//! Invariants: see the names of the tests.
//! Never: looks into the directory.

use super::configs::{APPEND, DELETE, SET, change, describe, operation};
use super::harness::*;
use crate::Broker;
use millstream_log::MemoryStorage;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::*;
use std::time::Duration;

const GROUP: i8 = 32;
const READERS: (i8, &str) = (GROUP, "readers");
const SESSION: &str = "consumer.session.timeout.ms";
const HEARTBEAT: &str = "consumer.heartbeat.interval.ms";

/// Value and source of a group's setting.
async fn told(client: &mut Client, group: &str, name: &str) -> (String, i8) {
    let found = describe(client, GROUP, group, &[name]).await;
    let config = found[0].clone();
    assert!(!config.read_only && config.documentation.is_some());
    assert_eq!(
        (config.synonyms[0].source, &config.synonyms[0].value),
        (config.config_source, &config.value)
    );
    (config.value.unwrap_or_default(), config.config_source)
}

async fn set(client: &mut Client, name: &str, value: &str) -> ErrorCode {
    change(
        client,
        READERS,
        vec![operation(name, SET, Some(value))],
        false,
    )
    .await
}

async fn groups_with_settings(client: &mut Client) -> Vec<String> {
    let request = ListConfigResourcesRequest {
        resource_types: vec![GROUP],
    };
    let answer = client.ask(1, request).await;
    assert_eq!(answer.error_code, ErrorCode::NONE);
    let resources = answer.config_resources.into_iter();
    resources.map(|resource| resource.resource_name).collect()
}

#[tokio::test(start_paused = true)]
async fn a_groups_settings_are_told_changed_listed_and_kept() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let mut client = Client::connect(&broker);
    let all = describe(&mut client, GROUP, "nobody", &[]).await;
    let names: Vec<&str> = all.iter().map(|config| config.name.as_str()).collect();
    assert_eq!(names, [HEARTBEAT, SESSION]);
    let (own, inherited) = (8, 5);
    assert_eq!(
        told(&mut client, "readers", SESSION).await,
        ("45000".to_owned(), inherited)
    );
    assert_eq!(groups_with_settings(&mut client).await, [""; 0]);
    assert_eq!(set(&mut client, SESSION, " 50000").await, ErrorCode::NONE);
    let only_validated = vec![operation(HEARTBEAT, SET, Some("6000"))];
    assert_eq!(
        change(&mut client, READERS, only_validated, true).await,
        ErrorCode::NONE
    );
    broker.halt();

    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    assert_eq!(groups_with_settings(&mut client).await, ["readers"]);
    assert_eq!(
        told(&mut client, "readers", SESSION).await,
        ("50000".to_owned(), own)
    );
    assert_eq!(
        told(&mut client, "readers", HEARTBEAT).await,
        ("5000".to_owned(), inherited)
    );
    assert_eq!(told(&mut client, "others", SESSION).await.1, inherited);
    let deleted = vec![operation(SESSION, DELETE, None)];
    assert_eq!(
        change(&mut client, READERS, deleted, false).await,
        ErrorCode::NONE
    );
    assert_eq!(
        told(&mut client, "readers", SESSION).await,
        ("45000".to_owned(), inherited)
    );
    assert_eq!(groups_with_settings(&mut client).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn settings_that_no_group_can_have_are_refused_as_a_whole() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let set = |name, value| operation(name, SET, Some(value));
    let (invalid, request) = (ErrorCode::INVALID_CONFIG, ErrorCode::INVALID_REQUEST);
    for (resource, refused, code) in [
        (READERS, set(SESSION, "44999"), invalid),
        (READERS, set(SESSION, "60001"), invalid),
        (READERS, set(HEARTBEAT, "60000"), invalid),
        (READERS, set("share.session.timeout.ms", "45000"), invalid),
        (READERS, set("retention.ms", "1"), invalid),
        (READERS, operation(SESSION, APPEND, Some("1")), invalid),
        (READERS, operation(SESSION, SET, None), request),
        ((GROUP, ""), set(SESSION, "50000"), request),
    ] {
        let configs = vec![set(HEARTBEAT, "6000"), refused.clone()];
        let configs = match refused.name == HEARTBEAT {
            true => vec![refused],
            false => configs,
        };
        let found = change(&mut client, resource, configs.clone(), false).await;
        assert_eq!(found, code, "{resource:?} {configs:?}");
    }
    assert_eq!(told(&mut client, "readers", HEARTBEAT).await.1, 5);
}

/// A member's heartbeat: how often it is to be heard of, or the error.
async fn beat(client: &mut Client, member: &str, epoch: i32) -> Result<i32, ErrorCode> {
    let joins = epoch == 0;
    let request = ConsumerGroupHeartbeatRequest {
        group_id: "readers".to_owned(),
        member_id: member.to_owned(),
        member_epoch: epoch,
        rebalance_timeout_ms: if joins { 60_000 } else { -1 },
        subscribed_topic_names: joins.then(|| vec!["orders".to_owned()]),
        topic_partitions: joins.then(Vec::new),
        ..Default::default()
    };
    let answer = client.ask(1, request).await;
    match answer.error_code {
        ErrorCode::NONE => Ok(answer.heartbeat_interval_ms),
        error => Err(error),
    }
}

/// A broker over the storage, and a client of it.
async fn served(storage: MemoryStorage) -> (Broker, Client) {
    let broker = open(storage).await;
    let client = Client::connect(&broker);
    (broker, client)
}

#[tokio::test(start_paused = true)]
async fn a_group_that_lives_follows_its_settings_from_the_next_heartbeat_on() {
    let storage = MemoryStorage::new();
    let (broker, mut client) = served(storage.clone()).await;
    client.create_topic("orders", 1).await;
    assert_eq!(beat(&mut client, "a", 0).await, Ok(5_000));
    for (name, value) in [(HEARTBEAT, "9000"), (SESSION, "60000")] {
        assert_eq!(set(&mut client, name, value).await, ErrorCode::NONE);
    }
    assert_eq!(beat(&mut client, "a", 1).await, Ok(9_000));
    // Longer than the broker's 45 s, which the session before was to end with.
    tokio::time::sleep(Duration::from_secs(55)).await;
    assert_eq!(beat(&mut client, "a", 1).await, Ok(9_000));
    broker.halt();

    let (_broker, mut client) = served(storage.crash()).await;
    tokio::time::sleep(Duration::from_secs(55)).await;
    assert_eq!(
        beat(&mut client, "a", 1).await,
        Ok(9_000),
        "a session begins anew with the group's timeout"
    );
    tokio::time::sleep(Duration::from_secs(61)).await;
    let gone = Err(ErrorCode::UNKNOWN_MEMBER_ID);
    assert_eq!(beat(&mut client, "a", 1).await, gone);
}

/// Many groups' settings in one request.
async fn set_all(client: &mut Client, groups: &[String]) -> Vec<ErrorCode> {
    use incremental_alter_configs::AlterConfigsResource;
    let resource = |group: &String| AlterConfigsResource {
        resource_type: GROUP,
        resource_name: group.clone(),
        configs: vec![operation(SESSION, SET, Some("50000"))],
    };
    let request = IncrementalAlterConfigsRequest {
        resources: groups.iter().map(resource).collect(),
        validate_only: false,
    };
    let answer = client.ask(1, request).await;
    let codes = answer.responses.iter().map(|answer| answer.error_code);
    codes.collect()
}

#[tokio::test(start_paused = true)]
async fn groups_with_settings_are_limited_and_a_request_is_stored_at_once() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let groups: Vec<String> = (0..10_001).map(|number| format!("g{number}")).collect();
    let codes = set_all(&mut client, &groups).await;
    assert_eq!(codes[..10_000], [ErrorCode::NONE; 10_000]);
    assert_eq!(codes[10_000..], [ErrorCode::POLICY_VIOLATION]);
    // One that has settings may change them, and one that goes makes room.
    let again = set(&mut client, SESSION, "50000").await;
    assert_eq!(again, ErrorCode::POLICY_VIOLATION);
    let gone = vec![operation(SESSION, DELETE, None)];
    let code = change(&mut client, (GROUP, "g7"), gone, false).await;
    assert_eq!(code, ErrorCode::NONE);
    assert_eq!(set(&mut client, SESSION, "50000").await, ErrorCode::NONE);
    assert_eq!(set(&mut client, SESSION, "51000").await, ErrorCode::NONE);
}

#[tokio::test(start_paused = true)]
async fn the_names_of_groups_with_settings_are_limited_all_together() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let long: Vec<String> = (0..150).map(|n| format!("{n:032000}")).collect();
    let codes = set_all(&mut client, &long).await;
    let taken = codes
        .iter()
        .filter(|code| **code == ErrorCode::NONE)
        .count();
    assert_eq!(taken, (4 << 20) / 32_000);
    assert_eq!(codes[149], ErrorCode::POLICY_VIOLATION);
}

#[tokio::test(start_paused = true)]
async fn stored_settings_that_are_none_any_longer_do_not_keep_a_broker_from_opening() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let of = |pairs: &[(&str, &str)]| {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    };
    let key = |kind: &str, name: &str| (kind.to_owned(), name.to_owned());
    let earlier = [
        (
            key("broker", "1"),
            of(&[
                ("log.retention.ms", "sometimes"),
                ("log.old.setting", "1"),
                ("log.segment.bytes", "2097152"),
            ]),
        ),
        (
            key("group", "readers"),
            of(&[(SESSION, "1"), (HEARTBEAT, "6000")]),
        ),
    ];
    let directory = &broker.node().directory;
    directory
        .store_settings(earlier.into(), None)
        .expect("stored");
    broker.halt();

    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let segment = super::configs::setting(&mut client, "orders", "segment.bytes").await;
    assert_eq!((segment.0.as_str(), segment.1), ("2097152", 2));
    assert_eq!(told(&mut client, "readers", SESSION).await.1, 5);
    assert_eq!(told(&mut client, "readers", HEARTBEAT).await.1, 8);
    // The holder changes as ever, and what nobody knows is deleted.
    let unknown = vec![operation("log.old.setting", DELETE, None)];
    let this = (super::configs::BROKER, "1");
    let code = change(&mut client, this, unknown, false).await;
    assert_eq!(code, ErrorCode::NONE);
    assert_eq!(set(&mut client, SESSION, "50000").await, ErrorCode::NONE);
}

#[tokio::test(start_paused = true)]
async fn what_a_request_repeats_is_described_once() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    let resource = |(kind, name): (i8, &str)| describe_configs::DescribeConfigsResource {
        resource_type: kind,
        resource_name: name.to_owned(),
        configuration_keys: None,
    };
    let one = [(2, "orders"), (4, "1"), (4, ""), (GROUP, "a"), (GROUP, "b")];
    let again = [
        (2, "orders"),
        (4, "1"),
        (4, "01"),
        (4, "+1"),
        (4, ""),
        (GROUP, "a"),
    ];
    let request = DescribeConfigsRequest {
        resources: one.into_iter().chain(again).map(resource).collect(),
        ..Default::default()
    };
    let answer = client.ask(4, request).await;
    let (told, repeated) = answer.results.split_at(one.len());
    assert!(told.iter().all(|told| !told.configs.is_empty()));
    for told in repeated {
        assert_eq!(told.error_code, ErrorCode::INVALID_REQUEST);
        assert!(told.configs.is_empty());
    }
    let names: Vec<String> = (0..10_001).map(|number| format!("g{number}")).collect();
    let request = DescribeConfigsRequest {
        resources: names.iter().map(|name| resource((GROUP, name))).collect(),
        ..Default::default()
    };
    let answer = client.ask(4, request).await;
    let told = answer
        .results
        .iter()
        .filter(|told| !told.configs.is_empty());
    assert_eq!(told.count(), 10_000);
}

#[tokio::test(start_paused = true)]
async fn a_description_has_a_bound_in_bytes_behind_which_resources_are_refused() {
    const LARGE: [&str; 2] = [
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
    ];
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let value = format!("0:{}1", "0".repeat(32_000));
    let names: Vec<String> = (0..600).map(|number| format!("t{number:03}")).collect();
    let config = |name: &str| create_topics::CreatableTopicConfig {
        name: name.to_owned(),
        value: Some(value.clone()),
    };
    let topic = |name: &String| create_topics::CreatableTopic {
        name: name.clone(),
        num_partitions: 1,
        replication_factor: -1,
        configs: LARGE.map(config).to_vec(),
        ..Default::default()
    };
    let create = CreateTopicsRequest {
        topics: names.iter().map(topic).collect(),
        ..Default::default()
    };
    let created = client.ask(7, create).await.topics;
    assert!(created.iter().all(|topic| topic.error_code.is_ok()));
    let resource = |name: &String| describe_configs::DescribeConfigsResource {
        resource_type: 2,
        resource_name: name.clone(),
        configuration_keys: Some(LARGE.map(str::to_owned).to_vec()),
    };
    let mut request = DescribeConfigsRequest {
        resources: names.iter().map(resource).collect(),
        ..Default::default()
    };
    let answer = client.ask(4, request.clone()).await;
    assert!(answer.results.iter().all(|told| told.error_code.is_ok()));
    request.include_synonyms = true;
    let answer = client.ask(4, request).await;
    let told = answer.results.iter().filter(|told| told.error_code.is_ok());
    // Each takes its two values twice: as such, and among their synonyms.
    let count = told.count() * 4 * value.len();
    assert!(((64 << 20) - 200_000..=(64 << 20) + 200_000).contains(&count));
    let last = answer.results.last().expect("an answer for each");
    assert_eq!(last.error_code, ErrorCode::INVALID_REQUEST);
}
