//! Topics, their records and settings, in every version.
//!
//! Never: judges what an API does beyond what its versions have in common; the tests of each do.

use super::Sweep;
use crate::tests::harness::{START_MS, batch, fetch_request, produce_request, values};
use bytes::Bytes;
use millstream_protocol::messages::alter_configs;
use millstream_protocol::messages::create_partitions::CreatePartitionsTopic;
use millstream_protocol::messages::create_topics::CreatableTopic;
use millstream_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};
use millstream_protocol::messages::delete_topics::DeleteTopicState;
use millstream_protocol::messages::describe_configs::DescribeConfigsResource;
use millstream_protocol::messages::describe_topic_partitions::TopicRequest;
use millstream_protocol::messages::elect_leaders::TopicPartitions;
use millstream_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig,
};
use millstream_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use millstream_protocol::messages::metadata::MetadataRequestTopic;
use millstream_protocol::messages::offset_for_leader_epoch::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use millstream_protocol::messages::*;
use millstream_protocol::{Compression, ErrorCode, ProducerStamp, RecordBatchBuilder};

/// The number of a topic among what has settings.
const TOPIC: i8 = 2;
const SET: i8 = 0;

/// A topic's life, and that of another in each version.
pub(super) async fn sweep(sweep: &mut Sweep) {
    lives(sweep).await;
    let id = sweep.client.create_topic("t", 1).await;
    records(sweep, id).await;
    offsets(sweep).await;
    described(sweep).await;
    placed(sweep).await;
}

/// Creates, extends and deletes a topic of each version.
async fn lives(sweep: &mut Sweep) {
    let name = |version: i16| format!("life{version}");
    let request = |version| CreateTopicsRequest {
        topics: vec![CreatableTopic {
            name: name(version),
            num_partitions: 2,
            replication_factor: 1,
            ..Default::default()
        }],
        ..Default::default()
    };
    sweep
        .all(request, |version, response| {
            let made = &response.topics[0];
            let partitions = if version >= 5 { 2 } else { -1 };
            let wanted = (ErrorCode::NONE, partitions);
            let found = (made.error_code, made.num_partitions);
            assert_eq!(found, wanted, "version {version}");
        })
        .await;
    let request = |version| CreatePartitionsRequest {
        topics: vec![CreatePartitionsTopic {
            name: name(2),
            count: 3 + i32::from(version),
            assignments: None,
        }],
        ..Default::default()
    };
    sweep
        .all(request, |version, response| {
            assert_eq!(
                response.results[0].error_code,
                ErrorCode::NONE,
                "version {version}"
            );
        })
        .await;
    // Versions 1 to 6 delete what 2 to 7 have made.
    let request = |version| DeleteTopicsRequest {
        topic_names: if version < 6 {
            vec![name(version + 1)]
        } else {
            Vec::new()
        },
        topics: if version < 6 {
            Vec::new()
        } else {
            vec![DeleteTopicState {
                name: Some(name(version + 1)),
                ..Default::default()
            }]
        },
        ..Default::default()
    };
    sweep
        .all(request, |version, response| {
            assert_eq!(
                response.responses[0].error_code,
                ErrorCode::NONE,
                "version {version}"
            );
        })
        .await;
}

fn of_zstd() -> Bytes {
    let mut builder = RecordBatchBuilder::new(Compression::Zstd);
    builder.append(START_MS, None, Some(b"z"), &[]);
    builder.finish(ProducerStamp::NONE).expect("builds")
}

async fn records(sweep: &mut Sweep, id: millstream_protocol::Uuid) {
    for (topic, batch, first) in [
        ("t", batch(&["a", "b"]), 3),
        ("t", of_zstd(), 7),
        ("missing", batch(&["a"]), i16::MAX),
    ] {
        let request = |version| {
            let mut request = produce_request(topic, 0, batch.clone());
            if version >= 13 {
                request.topic_data[0].name = String::new();
                request.topic_data[0].topic_id = if topic == "t" { id } else { Default::default() };
            }
            request
        };
        sweep
            .all(request, |version, response| {
                let answer = &response.responses[0].partition_responses[0];
                let wanted = match (topic, version) {
                    ("t", _) if version >= first => ErrorCode::NONE,
                    ("t", _) => ErrorCode::UNSUPPORTED_COMPRESSION_TYPE,
                    (_, 13..) => ErrorCode::UNKNOWN_TOPIC_ID,
                    _ => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
                };
                assert_eq!(answer.error_code, wanted, "{topic} version {version}");
            })
            .await;
    }
    for topic in ["t", "missing"] {
        let request = |version| {
            let mut request = fetch_request(topic, 0, 0, 0);
            if version >= 13 {
                request.topics[0].topic = String::new();
                request.topics[0].topic_id = if topic == "t" { id } else { Default::default() };
            }
            request
        };
        sweep
            .all(request, |version, response| {
                let found = &response.responses[0].partitions[0];
                match (topic, version) {
                    ("t", _) => {
                        let found = values(found);
                        assert_eq!(found[0], (0, "a".to_owned()), "version {version}");
                        assert_eq!(found.last().map(|last| &*last.1), Some("z"));
                    }
                    (_, 13..) => assert_eq!(found.error_code, ErrorCode::UNKNOWN_TOPIC_ID),
                    _ => assert_eq!(found.error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
                }
            })
            .await;
    }
}

async fn offsets(sweep: &mut Sweep) {
    let end = sweep.client.fetch("t", 0, 0, 0).await.high_watermark;
    for (timestamp, offset) in [(-1, end), (-2, 0), (0, 0)] {
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
        sweep
            .all(request, |version, response| {
                let found = &response.topics[0].partitions[0];
                let wanted = (ErrorCode::NONE, offset);
                let said = (found.error_code, found.offset);
                assert_eq!(said, wanted, "version {version}");
                let epoch = if version >= 4 { 0 } else { -1 };
                assert_eq!(found.leader_epoch, epoch, "version {version}");
            })
            .await;
    }
    for topic in ["t", "missing"] {
        let request = |_| OffsetForLeaderEpochRequest {
            topics: vec![OffsetForLeaderTopic {
                topic: topic.to_owned(),
                partitions: vec![OffsetForLeaderPartition::default()],
            }],
            ..Default::default()
        };
        sweep
            .all(request, |version, response| {
                let found = &response.topics[0].partitions[0];
                let wanted = match topic {
                    "t" => (ErrorCode::NONE, end),
                    _ => (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, -1),
                };
                let said = (found.error_code, found.end_offset);
                assert_eq!(said, wanted, "version {version}");
            })
            .await;
    }
    let request = |version| DeleteRecordsRequest {
        topics: vec![DeleteRecordsTopic {
            name: "t".to_owned(),
            partitions: vec![DeleteRecordsPartition {
                partition_index: 0,
                offset: 2 + i64::from(version),
            }],
        }],
        ..Default::default()
    };
    sweep
        .all(request, |version, response| {
            let found = &response.topics[0].partitions[0];
            let wanted = (ErrorCode::NONE, 2 + i64::from(version));
            let said = (found.error_code, found.low_watermark);
            assert_eq!(said, wanted, "version {version}");
        })
        .await;
}

async fn described(sweep: &mut Sweep) {
    for (topic, wanted) in [
        ("t", ErrorCode::NONE),
        ("not created", ErrorCode::INVALID_TOPIC_EXCEPTION),
        ("no/name", ErrorCode::INVALID_TOPIC_EXCEPTION),
        ("nobody", ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
    ] {
        let request = |version| MetadataRequest {
            topics: Some(vec![MetadataRequestTopic {
                name: Some(topic.to_owned()),
                ..Default::default()
            }]),
            // Older ones always create.
            allow_auto_topic_creation: version < 4,
            include_topic_authorized_operations: version >= 8,
            ..Default::default()
        };
        sweep
            .all(request, |version, response| {
                assert_eq!(response.brokers.len(), 1);
                let found = response.topics[0].error_code;
                if topic != "nobody" || version >= 4 {
                    let made = topic == "nobody" && found == ErrorCode::NONE;
                    assert!(
                        made || found == wanted,
                        "{topic} version {version}: {found}"
                    );
                }
            })
            .await;
    }
    let request = |_| DescribeTopicPartitionsRequest {
        topics: vec![TopicRequest {
            name: "t".to_owned(),
        }],
        ..Default::default()
    };
    sweep
        .all(request, |_, response| {
            assert_eq!(response.topics[0].partitions[0].leader_id, 1);
        })
        .await;
}

async fn placed(sweep: &mut Sweep) {
    let request = |_| DescribeLogDirsRequest { topics: None };
    sweep
        .all(request, |version, response| {
            let topics = response.results[0].topics.iter();
            let found = topics.map(|topic| (&*topic.name, topic.partitions[0].partition_size > 0));
            let found: Vec<_> = found.filter(|(name, _)| *name == "t").collect();
            assert_eq!(found, [("t", true)], "version {version}");
        })
        .await;
    let request = |_| ElectLeadersRequest {
        topic_partitions: Some(vec![TopicPartitions {
            topic: "t".to_owned(),
            partitions: vec![0],
        }]),
        ..Default::default()
    };
    sweep
        .all(request, |version, response| {
            let found = response.replica_election_results[0].partition_result[0].error_code;
            assert_eq!(found, ErrorCode::ELECTION_NOT_NEEDED, "version {version}");
        })
        .await;
    sweep
        .all(
            |_| ListPartitionReassignmentsRequest::default(),
            |_, response| {
                let found = (response.error_code, response.topics.len());
                assert_eq!(found, (ErrorCode::NONE, 0));
            },
        )
        .await;
}

/// The settings of "t".
pub(super) async fn sweep_settings(sweep: &mut Sweep) {
    let value = |version: i16| Some((2_000_000 + i64::from(version)).to_string());
    let request = |version| AlterConfigsRequest {
        resources: vec![alter_configs::AlterConfigsResource {
            resource_type: TOPIC,
            resource_name: "t".to_owned(),
            configs: vec![alter_configs::AlterableConfig {
                name: "segment.bytes".to_owned(),
                value: value(version),
            }],
        }],
        ..Default::default()
    };
    sweep
        .all(request, |version, response| {
            let found = response.responses[0].error_code;
            assert_eq!(found, ErrorCode::NONE, "version {version}");
        })
        .await;
    let request = |version| IncrementalAlterConfigsRequest {
        resources: vec![AlterConfigsResource {
            resource_type: TOPIC,
            resource_name: "t".to_owned(),
            configs: vec![AlterableConfig {
                name: "segment.bytes".to_owned(),
                config_operation: SET,
                value: value(version),
            }],
        }],
        ..Default::default()
    };
    sweep
        .all(request, |version, response| {
            let found = response.responses[0].error_code;
            assert_eq!(found, ErrorCode::NONE, "version {version}");
        })
        .await;
    let request = |version| DescribeConfigsRequest {
        resources: vec![DescribeConfigsResource {
            resource_type: TOPIC,
            resource_name: "t".to_owned(),
            configuration_keys: Some(vec!["segment.bytes".to_owned()]),
        }],
        include_synonyms: true,
        include_documentation: version >= 3,
    };
    sweep
        .all(request, |version, response| {
            let found = &response.results[0].configs[0];
            assert_eq!(found.value, value(1), "version {version}");
            assert!(found.synonyms.len() > 1, "version {version}");
            let documented = found
                .documentation
                .as_ref()
                .is_some_and(|said| !said.is_empty());
            assert_eq!(documented, version >= 3, "version {version}");
        })
        .await;
    sweep
        .all(
            |_| ListConfigResourcesRequest::default(),
            |version, response| {
                let mut found = response.config_resources.iter();
                let has = found.any(|found| found.resource_name == "t");
                assert_eq!(has, version >= 1, "version {version}");
            },
        )
        .await;
}
