//! Every version of the APIs that older clients use gets an answer, for what exists and for what
//! does not.
//!
//! Invariants: a field that a version lacks is never set in its answer; such an answer could not be
//! encoded, and its client would see a connection that closes.
//! Never: judges the contents beyond the error codes; the tests of each API do.

use super::harness::{Client, batch, broker, fetch_request, produce_request};
use millstream_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use millstream_protocol::messages::metadata::MetadataRequestTopic;
use millstream_protocol::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic,
};
use millstream_protocol::messages::offset_for_leader_epoch::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use millstream_protocol::messages::*;
use millstream_protocol::{ErrorCode, Request};

/// Asks in every version; the request may depend on it.
async fn sweep<R: Request>(
    client: &mut Client,
    request: impl Fn(i16) -> R,
    check: impl Fn(i16, &R::Response),
) {
    for version in R::API.versions() {
        let response = client.ask(version, request(version)).await;
        check(version, &response);
    }
}

#[tokio::test(start_paused = true)]
async fn list_offsets_answers_in_every_version() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("t", 1).await;
    client.produce("t", 0, batch(&["a", "b"])).await;
    for (timestamp, offset) in [(-1, 2), (-2, 0), (0, 0)] {
        let request = |_| ListOffsetsRequest {
            replica_id: -1,
            topics: vec![ListOffsetsTopic {
                name: "t".to_owned(),
                partitions: vec![ListOffsetsPartition {
                    timestamp,
                    ..Default::default()
                }],
            }],
            ..Default::default()
        };
        sweep(&mut client, request, |version, response| {
            let found = &response.topics[0].partitions[0];
            let wanted = (ErrorCode::NONE, offset);
            assert_eq!(
                (found.error_code, found.offset),
                wanted,
                "version {version}"
            );
            let epoch = if version >= 4 { 0 } else { -1 };
            assert_eq!(found.leader_epoch, epoch, "version {version}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn produce_and_fetch_answer_in_every_version() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let id = client.create_topic("t", 1).await;
    for topic in ["t", "missing"] {
        let request = |version| {
            let mut request = produce_request(topic, 0, batch(&["a"]));
            if version >= 13 {
                request.topic_data[0].name = String::new();
                request.topic_data[0].topic_id = id;
            }
            request
        };
        sweep(&mut client, request, |_, _| ()).await;
        let request = |version| {
            let mut request = fetch_request(topic, 0, 0, 0);
            if version >= 13 {
                request.topics[0].topic = String::new();
                request.topics[0].topic_id = id;
            }
            request
        };
        sweep(&mut client, request, |_, _| ()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn metadata_and_epochs_answer_in_every_version() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    client.create_topic("t", 1).await;
    for topic in ["t", "not created", "no/name"] {
        let request = |version| MetadataRequest {
            topics: Some(vec![MetadataRequestTopic {
                name: Some(topic.to_owned()),
                ..Default::default()
            }]),
            allow_auto_topic_creation: version < 4,
            include_topic_authorized_operations: version >= 8,
            ..Default::default()
        };
        sweep(&mut client, request, |_, response| {
            assert_eq!(response.brokers.len(), 1);
        })
        .await;
        let request = |_| OffsetForLeaderEpochRequest {
            topics: vec![OffsetForLeaderTopic {
                topic: topic.to_owned(),
                partitions: vec![OffsetForLeaderPartition::default()],
            }],
            ..Default::default()
        };
        sweep(&mut client, request, |_, _| ()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn group_apis_answer_in_every_version() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    let request = |version| FindCoordinatorRequest {
        key: if version < 4 { "g" } else { "" }.to_owned(),
        coordinator_keys: if version < 4 {
            Vec::new()
        } else {
            vec!["g".to_owned()]
        },
        ..Default::default()
    };
    sweep(&mut client, request, |_, _| ()).await;
    let request = |_| DescribeGroupsRequest {
        groups: vec!["missing".to_owned()],
        ..Default::default()
    };
    sweep(&mut client, request, |_, response| {
        assert_eq!(response.groups[0].group_state, "Dead");
    })
    .await;
    let request = |version| {
        let topics = vec![OffsetFetchRequestTopic {
            name: "t".to_owned(),
            partition_indexes: vec![0],
        }];
        match version {
            ..=7 => OffsetFetchRequest {
                group_id: "g".to_owned(),
                topics: Some(topics),
                ..Default::default()
            },
            _ => OffsetFetchRequest {
                groups: vec![OffsetFetchRequestGroup {
                    group_id: "g".to_owned(),
                    topics: None,
                    ..Default::default()
                }],
                ..Default::default()
            },
        }
    };
    sweep(&mut client, request, |_, _| ()).await;
    sweep(&mut client, |_| LeaveGroupRequest::default(), |_, _| ()).await;
    sweep(&mut client, |_| HeartbeatRequest::default(), |_, _| ()).await;
    sweep(&mut client, |_| SyncGroupRequest::default(), |_, _| ()).await;
    sweep(&mut client, |_| JoinGroupRequest::default(), |_, _| ()).await;
    sweep(&mut client, |_| ListGroupsRequest::default(), |_, _| ()).await;
    sweep(&mut client, |_| OffsetCommitRequest::default(), |_, _| ()).await;
}

#[tokio::test(start_paused = true)]
async fn the_rest_answers_in_every_version() {
    let broker = broker().await;
    let mut client = Client::connect(&broker);
    macro_rules! answers {
        ($($request:ty,)*) => {
            $(sweep(&mut client, |_| <$request>::default(), |_, _| ()).await;)*
        };
    }
    answers! {
        ApiVersionsRequest, CreateTopicsRequest, DeleteTopicsRequest, DeleteRecordsRequest,
        DescribeClusterRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest,
        AlterConfigsRequest, CreatePartitionsRequest, DescribeLogDirsRequest, ElectLeadersRequest,
        ListPartitionReassignmentsRequest, ListConfigResourcesRequest, DeleteGroupsRequest,
        OffsetDeleteRequest, InitProducerIdRequest, AddPartitionsToTxnRequest,
        AddOffsetsToTxnRequest, EndTxnRequest, WriteTxnMarkersRequest, TxnOffsetCommitRequest,
        DescribeProducersRequest, DescribeTransactionsRequest, ListTransactionsRequest,
        DescribeTopicPartitionsRequest, DescribeAclsRequest,
    }
}
