//! Offsets of partitions: where they begin and end, and where a time lies in them.
//!
//! Invariants: a partition is asked about at its leader.
//! Never: reads a record.

use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_protocol::messages::ListOffsetsRequest;
use millstream_protocol::messages::list_offsets::{ListOffsetsPartition, ListOffsetsTopic};
use millstream_protocol::{ErrorCode, TopicPartition};

use super::{Admin, AdminError, check};
use crate::cluster::{NodeId, millis};

/// Which offset of a partition is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetSpec {
    /// The first one.
    Earliest,
    /// The end, as a reader of uncommitted data sees it (the high watermark).
    Latest,
    /// The end, as a reader of committed data sees it (the last stable offset).
    LatestCommitted,
    /// The first one at or after a time in milliseconds since 1970.
    Timestamp(i64),
    /// That of the record with the largest timestamp.
    MaxTimestamp,
}

impl Admin {
    /// Offsets of partitions; `None` where the partition holds nothing at or after the time that
    /// was asked for.
    ///
    /// # Errors
    /// Where a partition has no leader, or its leader does not answer or refuses.
    pub fn list_offsets<'a>(
        &'a self,
        partitions: &'a [TopicPartition],
        spec: OffsetSpec,
    ) -> BoxFuture<'a, Result<BTreeMap<TopicPartition, Option<i64>>, AdminError>> {
        Box::pin(async move {
            let mut offsets = BTreeMap::new();
            let timeout = self.cluster.config().request_timeout;
            for (node, partitions) in self.by_leader("look up an offset of", partitions).await? {
                let request = list_request(&partitions, spec, millis(timeout));
                let answer = self.ask_node(node, &request).await?;
                for topic in answer.topics {
                    for found in topic.partitions {
                        let partition =
                            TopicPartition::new(topic.name.as_str(), found.partition_index);
                        check(
                            "look up an offset of",
                            &partition.to_string(),
                            found.error_code,
                            None,
                        )?;
                        offsets.insert(partition, Some(found.offset).filter(|offset| *offset >= 0));
                    }
                }
            }
            Ok(offsets)
        })
    }

    /// The partitions by the broker that leads them, with fresh metadata.
    pub(super) async fn by_leader(
        &self,
        call: &'static str,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<NodeId, Vec<TopicPartition>>, AdminError> {
        let topics: Vec<Arc<str>> = by_topic(partitions).into_keys().collect();
        self.ask(|| self.cluster.refresh_metadata(&topics)).await?;
        let mut leaders: BTreeMap<NodeId, Vec<TopicPartition>> = BTreeMap::new();
        for partition in partitions {
            let known = self
                .cluster
                .partition(partition)
                .ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
            let leader =
                known.and_then(|known| known.leader.ok_or(ErrorCode::LEADER_NOT_AVAILABLE));
            match leader {
                Ok(leader) => leaders.entry(leader).or_default().push(partition.clone()),
                Err(code) => check(call, &partition.to_string(), code, None)?,
            }
        }
        Ok(leaders)
    }
}

pub(super) fn by_topic(partitions: &[TopicPartition]) -> BTreeMap<Arc<str>, Vec<i32>> {
    let mut topics: BTreeMap<Arc<str>, Vec<i32>> = BTreeMap::new();
    for partition in partitions {
        topics
            .entry(Arc::clone(&partition.topic))
            .or_default()
            .push(partition.partition);
    }
    topics
}

fn list_request(
    partitions: &[TopicPartition],
    spec: OffsetSpec,
    timeout_ms: u64,
) -> ListOffsetsRequest {
    let (timestamp, isolation_level) = match spec {
        OffsetSpec::Earliest => (-2, 0),
        OffsetSpec::Latest => (-1, 0),
        OffsetSpec::LatestCommitted => (-1, 1),
        OffsetSpec::Timestamp(timestamp) => (timestamp, 0),
        OffsetSpec::MaxTimestamp => (-3, 0),
    };
    let look_up = |partition_index| ListOffsetsPartition {
        partition_index,
        timestamp,
        ..Default::default()
    };
    let topics = by_topic(partitions)
        .into_iter()
        .map(|(name, numbers)| ListOffsetsTopic {
            name: name.to_string(),
            partitions: numbers.into_iter().map(look_up).collect(),
        });
    ListOffsetsRequest {
        replica_id: -1,
        isolation_level,
        topics: topics.collect(),
        timeout_ms: i32::try_from(timeout_ms).unwrap_or(i32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::ScriptedBroker;

    #[test]
    fn the_committed_end_is_asked_for_with_the_isolation_level() {
        let partitions = [TopicPartition::new("b", 1), TopicPartition::new("a", 0)];
        let request = list_request(&partitions, OffsetSpec::LatestCommitted, 5);
        assert_eq!((request.isolation_level, request.topics.len()), (1, 2));
        assert_eq!(request.topics[1].partitions[0].timestamp, -1);
        let request = list_request(&partitions, OffsetSpec::Timestamp(7), 5);
        assert_eq!(request.topics[0].partitions[0].timestamp, 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_that_does_not_exist_is_named() {
        let broker = ScriptedBroker::new(&[("orders", 1)]);
        let admin = Admin::connect(&broker.transport()).await.unwrap();
        let partitions = [TopicPartition::new("orders", 3)];
        let error = admin
            .list_offsets(&partitions, OffsetSpec::Latest)
            .await
            .unwrap_err();
        assert!(error.to_string().contains("orders-3"), "{error}");
    }
}
