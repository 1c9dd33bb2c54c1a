//! Groups as their coordinators know them: which there are, who is in them, and their end.
//!
//! Invariants: a group is asked about at its coordinator; a list covers every broker.
//! Never: joins a group.

use std::sync::Arc;

use futures::future::BoxFuture;
use millstream_protocol::messages::offset_delete::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use millstream_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerProtocolAssignment, DeleteGroupsRequest,
    DescribeGroupsRequest, ListGroupsRequest, OffsetDeleteRequest, consumer_group_describe,
    consumer_protocol, describe_groups, list_groups,
};
use millstream_protocol::{ApiKey, ErrorCode, Message, Request, TopicPartition};

use super::offsets::by_topic;
use super::{Admin, AdminError, check, passing};
use crate::cluster::CoordinatorKind;

/// How often a coordinator that is loading or moving is asked.
const ATTEMPTS_MAX: u32 = 100;
/// The state of a group that does not exist.
const DEAD: &str = "Dead";
const ASSIGNMENT_VERSION: i16 = 3;

impl Admin {
    /// The groups that the brokers coordinate, by id.
    ///
    /// # Errors
    /// Where a broker does not answer or refuses.
    pub fn list_groups(&self) -> BoxFuture<'_, Result<Vec<list_groups::ListedGroup>, AdminError>> {
        Box::pin(async move {
            self.ask(|| self.cluster.refresh_metadata(&[])).await?;
            let timeout = self.cluster.config().request_timeout;
            let mut groups = Vec::new();
            for node in self.cluster.nodes() {
                let answer = self
                    .ask(|| async {
                        let request = ListGroupsRequest::default();
                        Ok(self.cluster.request(node, request, timeout).await?)
                    })
                    .await?;
                let subject = format!("broker {node}");
                check("list the groups of", &subject, answer.error_code, None)?;
                groups.extend(answer.groups);
            }
            groups.sort_by(|a, b| a.group_id.cmp(&b.group_id));
            Ok(groups)
        })
    }

    /// A group's state and members, whichever protocol they speak; members of the consumer
    /// protocol have no metadata. A group that does not exist has the state `Dead`, or is refused,
    /// as the broker's version will have it.
    ///
    /// # Errors
    /// Where the coordinator does not answer in time, or refuses (`GROUP_ID_NOT_FOUND`).
    pub fn describe_group<'a>(
        &'a self,
        group: &'a str,
    ) -> BoxFuture<'a, Result<describe_groups::DescribedGroup, AdminError>> {
        Box::pin(async move {
            let request = DescribeGroupsRequest {
                groups: vec![group.to_owned()],
                ..Default::default()
            };
            let found = self
                .ask_group(group, request, |answer| {
                    let found = answer
                        .groups
                        .into_iter()
                        .find(|found| found.group_id == group);
                    let found = found.unwrap_or_default();
                    (found.error_code, found)
                })
                .await?;
            let is_missing = found.error_code == ErrorCode::GROUP_ID_NOT_FOUND;
            if (is_missing || found.group_state == DEAD)
                && let Ok(Some(found)) = self.describe_consumer_group(group).await
            {
                return Ok(found);
            }
            check(
                "describe group",
                group,
                found.error_code,
                found.error_message.clone(),
            )?;
            Ok(found)
        })
    }

    /// A group of the consumer protocol, if it is one, in the words of the classic one.
    async fn describe_consumer_group(
        &self,
        group: &str,
    ) -> Result<Option<describe_groups::DescribedGroup>, AdminError> {
        let request = ConsumerGroupDescribeRequest {
            group_ids: vec![group.to_owned()],
            ..Default::default()
        };
        let found = self.ask_group(group, request, |answer| {
            let mut found = answer.groups.into_iter();
            let found = found.find(|found| found.group_id == group);
            let found = found.unwrap_or_default();
            (found.error_code, found)
        });
        let found = found.await?;
        Ok(found.error_code.is_ok().then(|| as_classic(found)))
    }

    /// Deletes a group with all of its committed offsets.
    ///
    /// # Errors
    /// Where it has members (`NON_EMPTY_GROUP`), where there is none of that id
    /// (`GROUP_ID_NOT_FOUND`), or the coordinator does not answer in time.
    pub fn delete_group<'a>(&'a self, group: &'a str) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            let request = DeleteGroupsRequest {
                groups_names: vec![group.to_owned()],
            };
            let code = self
                .ask_group(group, request, |answer| {
                    let found = answer
                        .results
                        .into_iter()
                        .find(|found| found.group_id == group);
                    let code =
                        found.map_or(ErrorCode::GROUP_ID_NOT_FOUND, |found| found.error_code);
                    (code, code)
                })
                .await?;
            check("delete group", group, code, None)
        })
    }

    /// Deletes what a group has committed for these partitions.
    ///
    /// # Errors
    /// Where members of the group read one of the topics (`GROUP_SUBSCRIBED_TO_TOPIC`), there is no
    /// such group or partition, or the coordinator does not answer in time.
    pub fn delete_group_offsets<'a>(
        &'a self,
        group: &'a str,
        partitions: &'a [TopicPartition],
    ) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            let call = "delete offsets of";
            let topics = by_topic(partitions).into_iter();
            let request = OffsetDeleteRequest {
                group_id: group.to_owned(),
                topics: topics.map(offsets_of).collect(),
            };
            let (code, topics) = self
                .ask_group(group, request, |answer| {
                    (answer.error_code, (answer.error_code, answer.topics))
                })
                .await?;
            check(call, group, code, None)?;
            for topic in topics {
                for result in topic.partitions {
                    let name = topic.name.as_str();
                    let partition = TopicPartition::new(name, result.partition_index);
                    let subject = format!("{group} at {partition}");
                    check(call, &subject, result.error_code, None)?;
                }
            }
            Ok(())
        })
    }

    /// Asks a group's coordinator, and again while it says that it is loading or moving.
    async fn ask_group<R: Request + Clone, T>(
        &self,
        group: &str,
        request: R,
        read: impl Fn(R::Response) -> (ErrorCode, T),
    ) -> Result<T, AdminError> {
        let (kind, patience) = (
            CoordinatorKind::Group,
            self.cluster.config().request_timeout,
        );
        let api: ApiKey = R::API;
        let mut attempt = 0;
        loop {
            let answer = self
                .ask(|| {
                    let request = request.clone();
                    self.cluster
                        .ask_coordinator(kind, group, patience, i16::MAX, |_| request)
                })
                .await?;
            let (code, found) = read(answer);
            if !passing(api, code) || attempt >= ATTEMPTS_MAX {
                return Ok(found);
            }
            self.cluster.forget_coordinator(kind, group);
            tokio::time::sleep(self.cluster.retry_pause(attempt)).await;
            attempt += 1;
        }
    }
}

fn as_classic(group: consumer_group_describe::DescribedGroup) -> describe_groups::DescribedGroup {
    let members = group.members.into_iter().map(|member| {
        let topics = member.assignment.topic_partitions.into_iter();
        let assigned_partitions = topics.map(|topic| consumer_protocol::TopicPartitions {
            topic: topic.topic_name,
            partitions: topic.partitions,
        });
        let assignment = ConsumerProtocolAssignment {
            assigned_partitions: assigned_partitions.collect(),
            user_data: None,
        };
        let assignment = assignment.to_versioned_bytes(ASSIGNMENT_VERSION);
        describe_groups::DescribedGroupMember {
            member_id: member.member_id,
            group_instance_id: member.instance_id,
            client_id: member.client_id,
            client_host: member.client_host,
            // Every assignment has a form.
            member_assignment: assignment.unwrap_or_default(),
            ..Default::default()
        }
    });
    describe_groups::DescribedGroup {
        group_id: group.group_id,
        group_state: group.group_state,
        protocol_type: "consumer".to_owned(),
        protocol_data: group.assignor_name,
        members: members.collect(),
        authorized_operations: group.authorized_operations,
        ..Default::default()
    }
}

fn offsets_of((name, partitions): (Arc<str>, Vec<i32>)) -> OffsetDeleteRequestTopic {
    let partitions = partitions.into_iter();
    OffsetDeleteRequestTopic {
        name: name.to_string(),
        partitions: partitions
            .map(|partition_index| OffsetDeleteRequestPartition { partition_index })
            .collect(),
    }
}
