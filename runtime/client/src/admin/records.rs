//! Records that are given up before retention would do it.
//!
//! Invariants: a partition's records go at its leader, from its beginning up to an offset.
//! Never: gives up what was not named.

use futures::future::BoxFuture;
use std::collections::BTreeMap;

use millstream_protocol::TopicPartition;
use millstream_protocol::messages::DeleteRecordsRequest;
use millstream_protocol::messages::delete_records::{DeleteRecordsPartition, DeleteRecordsTopic};

use super::offsets::by_topic;
use super::{Admin, AdminError, check};
use crate::cluster::millis;

/// On the wire: up to the high watermark.
const HIGH_WATERMARK: i64 = -1;

impl Admin {
    /// Gives up the records below an offset, or, for `None`, all that readers can see now. Answers
    /// where each partition begins from now on. There is no way back.
    ///
    /// # Errors
    /// Where an offset lies beyond the end (`OFFSET_OUT_OF_RANGE`), the topic only gives up records
    /// for newer ones (`POLICY_VIOLATION`), or a leader does not answer. What was named before has
    /// been given up by then.
    pub fn delete_records<'a>(
        &'a self,
        before: &'a BTreeMap<TopicPartition, Option<i64>>,
    ) -> BoxFuture<'a, Result<BTreeMap<TopicPartition, i64>, AdminError>> {
        Box::pin(async move {
            let call = "delete records of";
            let partitions: Vec<TopicPartition> = before.keys().cloned().collect();
            let timeout = self.cluster.config().request_timeout;
            let mut beginnings = BTreeMap::new();
            for (node, partitions) in self.by_leader(call, &partitions).await? {
                let request = request(&partitions, before, millis(timeout));
                // Records that have gone cannot go once more.
                let answer = self.ask_node(node, &request).await?;
                for topic in answer.topics {
                    for result in topic.partitions {
                        let partition =
                            TopicPartition::new(topic.name.as_str(), result.partition_index);
                        check(call, &partition.to_string(), result.error_code, None)?;
                        beginnings.insert(partition, result.low_watermark);
                    }
                }
            }
            Ok(beginnings)
        })
    }
}

fn request(
    partitions: &[TopicPartition],
    before: &BTreeMap<TopicPartition, Option<i64>>,
    timeout_ms: u64,
) -> DeleteRecordsRequest {
    let topics = by_topic(partitions).into_iter().map(|(name, numbers)| {
        let partitions = numbers.into_iter().map(|partition_index| {
            let partition = TopicPartition::new(&*name, partition_index);
            let offset = before.get(&partition).copied().flatten();
            DeleteRecordsPartition {
                partition_index,
                offset: offset.unwrap_or(HIGH_WATERMARK),
            }
        });
        DeleteRecordsTopic {
            name: name.to_string(),
            partitions: partitions.collect(),
        }
    });
    DeleteRecordsRequest {
        topics: topics.collect(),
        timeout_ms: i32::try_from(timeout_ms).unwrap_or(i32::MAX),
    }
}
