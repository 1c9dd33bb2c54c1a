//! Single offsets of a group, deleted.
//!
//! Invariants: see the names of the tests.
//! Never: waits for real time.

use millstream_log::MemoryStorage;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::offset_delete::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use millstream_protocol::messages::*;

use super::*;
use crate::tests::harness::{Client, broker, open};

fn delete_request(group: &str, partitions: &[(&str, i32)]) -> OffsetDeleteRequest {
    let topic = |(name, partition_index): &(&str, i32)| OffsetDeleteRequestTopic {
        name: (*name).to_owned(),
        partitions: vec![OffsetDeleteRequestPartition {
            partition_index: *partition_index,
        }],
    };
    OffsetDeleteRequest {
        group_id: group.to_owned(),
        topics: partitions.iter().map(topic).collect(),
    }
}

async fn delete(client: &mut Client, partitions: &[(&str, i32)]) -> Vec<ErrorCode> {
    let answer = client.ask(0, delete_request(GROUP, partitions)).await;
    assert_eq!(answer.error_code, ErrorCode::NONE);
    let topics = answer.topics.iter();
    topics.map(|topic| topic.partitions[0].error_code).collect()
}

#[tokio::test(start_paused = true)]
async fn deleted_offsets_stay_deleted_and_others_stay() {
    let storage = MemoryStorage::new();
    let broker = open(storage.clone()).await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 4).await;
    let request = commit_request(&Member::none(), &[("orders", 1, 10), ("orders", 2, 20)]);
    client.ask(9, request).await;
    let asked = [("orders", 1), ("orders", 3), ("orders", 9), ("nowhere", 0)];
    let unknown = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
    let codes = delete(&mut client, &asked).await;
    assert_eq!(codes, [ErrorCode::NONE, ErrorCode::NONE, unknown, unknown]);
    broker.halt();

    let broker = open(storage.crash()).await;
    let mut client = Client::connect(&broker);
    let gone = fetch_answer(&mut client, 1, false).await;
    assert_eq!(gone.committed_offset, -1);
    let kept = fetch_answer(&mut client, 2, false).await;
    assert_eq!(kept.committed_offset, 20);
}

#[tokio::test(start_paused = true)]
async fn offsets_of_topics_that_members_read_are_kept() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 4).await;
    client.create_topic("customers", 4).await;
    let request = commit_request(&Member::none(), &[("orders", 1, 10)]);
    client.ask(9, request).await;
    let member = join_alone(&mut client, None).await;
    client.ask(5, sync_request(&member, &[])).await;
    let codes = delete(&mut client, &[("orders", 1), ("customers", 1)]).await;
    assert_eq!(
        codes,
        [ErrorCode::GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode::NONE]
    );
    let kept = fetch_answer(&mut client, 1, false).await;
    assert_eq!(kept.committed_offset, 10);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_not_there_has_no_offsets_to_delete() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("orders", 1).await;
    for (group, code) in [
        ("nobody", ErrorCode::GROUP_ID_NOT_FOUND),
        ("", ErrorCode::INVALID_GROUP_ID),
    ] {
        let answer = client.ask(0, delete_request(group, &[("orders", 0)])).await;
        assert_eq!(answer.error_code, code);
    }
}
