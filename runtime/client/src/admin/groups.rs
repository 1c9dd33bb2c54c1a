//! Groups: what they have committed.
//!
//! Invariants: offsets are those of decided transactions; what is pending is not waited for.
//! Never: joins a group.

use futures::future::BoxFuture;
use std::collections::BTreeMap;

use millstream_protocol::messages::offset_fetch::OffsetFetchRequestGroup;
use millstream_protocol::messages::{OffsetFetchRequest, OffsetFetchResponse};
use millstream_protocol::{ApiKey, TopicPartition};

use super::{Admin, AdminError, check, passing};
use crate::cluster::CoordinatorKind;
use crate::error::ClusterError;
use crate::group::OffsetAndMetadata;

/// Up to here topics go by name.
const BY_NAME_VERSION: i16 = 9;

impl Admin {
    /// Everything that a group has committed; empty for a group that does not exist. Offsets of
    /// transactions that are still open do not count, and are not waited for.
    ///
    /// # Errors
    /// Where the coordinator does not answer in time, or refuses the group.
    pub fn group_offsets<'a>(
        &'a self,
        group: &'a str,
    ) -> BoxFuture<'a, Result<BTreeMap<TopicPartition, OffsetAndMetadata>, AdminError>> {
        Box::pin(async move {
            for count in 0.. {
                let response = self.ask(|| self.fetch_offsets(group)).await?;
                let (code, offsets) = read(response);
                if passing(ApiKey::OffsetFetch, code) && count < 100 {
                    self.cluster
                        .forget_coordinator(CoordinatorKind::Group, group);
                    tokio::time::sleep(self.cluster.retry_pause(count)).await;
                    continue;
                }
                check("read the offsets of group", group, code, None)?;
                return Ok(offsets);
            }
            Ok(BTreeMap::new())
        })
    }

    async fn fetch_offsets(&self, group: &str) -> Result<OffsetFetchResponse, ClusterError> {
        let build = |version: i16| {
            if version < 8 {
                return OffsetFetchRequest {
                    group_id: group.to_owned(),
                    topics: None,
                    ..Default::default()
                };
            }
            let group = OffsetFetchRequestGroup {
                group_id: group.to_owned(),
                topics: None,
                ..Default::default()
            };
            OffsetFetchRequest {
                groups: vec![group],
                ..Default::default()
            }
        };
        let (kind, patience) = (
            CoordinatorKind::Group,
            self.cluster.config().request_timeout,
        );
        self.cluster
            .ask_coordinator(kind, group, patience, BY_NAME_VERSION, build)
            .await
    }
}

type Offsets = BTreeMap<TopicPartition, OffsetAndMetadata>;

fn read(response: OffsetFetchResponse) -> (millstream_protocol::ErrorCode, Offsets) {
    let mut code = response.error_code;
    let mut offsets = Offsets::new();
    let mut put = |topic: &str, index: i32, offset: i64, epoch: i32, metadata: Option<String>| {
        if offset >= 0 {
            let value = OffsetAndMetadata {
                offset,
                leader_epoch: (epoch >= 0).then_some(epoch),
                metadata: metadata.unwrap_or_default(),
            };
            offsets.insert(TopicPartition::new(topic, index), value);
        }
    };
    for topic in response.topics {
        for p in topic.partitions {
            put(
                &topic.name,
                p.partition_index,
                p.committed_offset,
                p.committed_leader_epoch,
                p.metadata,
            );
        }
    }
    for group in response.groups {
        code = group.error_code;
        for topic in group.topics {
            for p in topic.partitions {
                let epoch = p.committed_leader_epoch;
                put(
                    &topic.name,
                    p.partition_index,
                    p.committed_offset,
                    epoch,
                    p.metadata,
                );
            }
        }
    }
    (code, offsets)
}
