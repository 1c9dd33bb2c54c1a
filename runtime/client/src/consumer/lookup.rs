//! Asks leaders for offsets: ends of logs, and offsets by timestamp.
//!
//! Invariants: a partition's answer comes from its leader; the end of a log is its last stable
//! offset for readers of committed data.
//! Never: keeps anything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_protocol::messages::ListOffsetsRequest;
use millstream_protocol::messages::list_offsets::{
    ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsTopic,
};
use millstream_protocol::{ApiKey, ErrorClass, ErrorCode, ErrorContext, TopicPartition, class};
use tokio::time::Instant;

use super::error::ConsumerError;
use super::positions::Landmark;
use super::read_committed::Isolation;
use crate::cluster::{Cluster, NodeId, millis};

/// The first record at or after a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetAndTimestamp {
    /// Its offset.
    pub offset: i64,
    /// Its timestamp, in milliseconds since 1970.
    pub timestamp: i64,
    /// The epoch of the leader that wrote it, where the broker says it.
    pub leader_epoch: Option<i32>,
}

/// The number that stands for a point of the log in requests.
pub(crate) fn as_timestamp(landmark: Landmark, wall_ms: i64) -> i64 {
    match landmark {
        Landmark::Latest | Landmark::Ago(_) => -1,
        Landmark::Earliest => -2,
        Landmark::AgoElse(duration, _) => {
            let ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
            // Below zero the numbers have other meanings.
            wall_ms.saturating_sub(ms).max(0)
        }
    }
}

/// How one partition's question ended.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// `None` where no record is that young.
    Found(Option<OffsetAndTimestamp>),
    /// Ask again later.
    Later(Arc<str>),
    Refused(ErrorCode),
}

pub(crate) type Answers = Vec<(TopicPartition, Answer)>;

/// One attempt to ask all leaders, side by side.
pub(crate) async fn list_offsets_once(
    cluster: &Cluster,
    isolation: Isolation,
    questions: &[(TopicPartition, i64)],
    timeout: Duration,
) -> Answers {
    let mut by_leader: BTreeMap<NodeId, Vec<(TopicPartition, i64)>> = BTreeMap::new();
    let mut unknown = Vec::new();
    for (partition, timestamp) in questions {
        match cluster.leader(partition) {
            Some(leader) => {
                by_leader
                    .entry(leader)
                    .or_default()
                    .push((partition.clone(), *timestamp));
            }
            None => unknown.push((partition.clone(), *timestamp)),
        }
    }
    let mut answers = Vec::new();
    if !unknown.is_empty() {
        let mut topics: Vec<Arc<str>> = unknown.iter().map(|(p, _)| p.topic.clone()).collect();
        topics.dedup();
        let refreshed = tokio::time::timeout(timeout, cluster.refresh_metadata(&topics)).await;
        let reason = match refreshed {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("no metadata in time".to_owned()),
        };
        for (partition, timestamp) in unknown {
            match cluster.leader(&partition) {
                Some(leader) => {
                    by_leader
                        .entry(leader)
                        .or_default()
                        .push((partition, timestamp));
                }
                None => {
                    let reason = reason.as_deref().unwrap_or("no leader is known");
                    answers.push((partition, Answer::Later(reason.into())));
                }
            }
        }
    }
    let asked = by_leader
        .into_iter()
        .map(|(leader, questions)| ask_leader(cluster, leader, isolation, questions, timeout));
    answers.extend(futures::future::join_all(asked).await.into_iter().flatten());
    answers
}

fn request(
    cluster: &Cluster,
    isolation: Isolation,
    questions: &[(TopicPartition, i64)],
    timeout: Duration,
) -> ListOffsetsRequest {
    let mut topics: BTreeMap<Arc<str>, Vec<ListOffsetsPartition>> = BTreeMap::new();
    for (partition, timestamp) in questions {
        topics
            .entry(partition.topic.clone())
            .or_default()
            .push(ListOffsetsPartition {
                partition_index: partition.partition,
                current_leader_epoch: cluster
                    .partition(partition)
                    .map_or(-1, |known| known.leader_epoch),
                timestamp: *timestamp,
            });
    }
    ListOffsetsRequest {
        replica_id: -1,
        isolation_level: isolation.level(),
        topics: topics
            .into_iter()
            .map(|(name, partitions)| ListOffsetsTopic {
                name: name.to_string(),
                partitions,
            })
            .collect(),
        timeout_ms: i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX),
    }
}

async fn ask_leader(
    cluster: &Cluster,
    leader: NodeId,
    isolation: Isolation,
    questions: Vec<(TopicPartition, i64)>,
    timeout: Duration,
) -> Answers {
    let request = request(cluster, isolation, &questions, timeout);
    let response = match cluster.request(leader, request, timeout).await {
        Ok(response) => response,
        Err(error) => {
            let reason: Arc<str> = error.to_string().into();
            let mut topics: Vec<Arc<str>> =
                questions.iter().map(|(p, _)| p.topic.clone()).collect();
            topics.dedup();
            // The leader may have gone for good; without an answer the next attempt asks again.
            let _ = tokio::time::timeout(timeout, cluster.refresh_metadata(&topics)).await;
            return questions
                .into_iter()
                .map(|(partition, _)| (partition, Answer::Later(reason.clone())))
                .collect();
        }
    };
    let mut found: BTreeMap<TopicPartition, Answer> = BTreeMap::new();
    let mut stale = Vec::new();
    for topic in response.topics {
        let name: Arc<str> = topic.name.into();
        for answer in topic.partitions {
            let partition = TopicPartition::new(name.clone(), answer.partition_index);
            let outcome = outcome(&answer);
            if matches!(outcome, Answer::Later(_)) {
                stale.push(name.clone());
            }
            found.insert(partition, outcome);
        }
    }
    if !stale.is_empty() {
        stale.dedup();
        let _ = tokio::time::timeout(timeout, cluster.refresh_metadata(&stale)).await;
    }
    questions
        .into_iter()
        .map(|(partition, _)| {
            let answer = found
                .remove(&partition)
                .unwrap_or_else(|| Answer::Later("the answer leaves the partition out".into()));
            (partition, answer)
        })
        .collect()
}

fn outcome(answer: &ListOffsetsPartitionResponse) -> Answer {
    let code = answer.error_code;
    if code.is_ok() {
        let found = (answer.offset >= 0).then_some(OffsetAndTimestamp {
            offset: answer.offset,
            timestamp: answer.timestamp,
            leader_epoch: Some(answer.leader_epoch).filter(|epoch| *epoch >= 0),
        });
        return Answer::Found(found);
    }
    match class(ApiKey::ListOffsets, code, ErrorContext::Plain) {
        // It says nothing of the next attempt.
        _ if code == ErrorCode::UNKNOWN_SERVER_ERROR => Answer::Later(code.to_string().into()),
        ErrorClass::Retry
        | ErrorClass::RefreshMetadata
        | ErrorClass::FindCoordinator
        | ErrorClass::Ambiguous => Answer::Later(code.to_string().into()),
        _ => Answer::Refused(code),
    }
}

/// Asks until every partition has an answer, or `patience` is over.
pub(crate) async fn list_offsets(
    cluster: &Cluster,
    call: &'static str,
    isolation: Isolation,
    questions: Vec<(TopicPartition, i64)>,
    patience: Duration,
) -> Result<BTreeMap<TopicPartition, Option<OffsetAndTimestamp>>, ConsumerError> {
    let started = Instant::now();
    let mut open = questions;
    let mut found = BTreeMap::new();
    let mut attempt = 0;
    loop {
        let left = patience.saturating_sub(started.elapsed());
        let timeout = left.min(cluster.config().request_timeout);
        let answers = list_offsets_once(cluster, isolation, &open, timeout).await;
        let mut again = Vec::new();
        let mut last: Arc<str> = "no answer".into();
        for (partition, answer) in answers {
            match answer {
                Answer::Found(offset) => {
                    found.insert(partition, offset);
                }
                Answer::Later(reason) => {
                    last = reason;
                    again.push(partition);
                }
                Answer::Refused(code) => {
                    return Err(ConsumerError::Refused {
                        call,
                        code,
                        topic_partition: Some(partition),
                    });
                }
            }
        }
        open.retain(|(partition, _)| again.contains(partition));
        if open.is_empty() {
            return Ok(found);
        }
        if let Some(refusal) = cluster.take_refusal() {
            return Err(refusal.into());
        }
        let pause = cluster.retry_pause(attempt);
        if started.elapsed() + pause >= patience {
            return Err(ConsumerError::Timeout {
                call,
                waited_ms: millis(started.elapsed()),
                last,
            });
        }
        attempt += 1;
        tokio::time::sleep(pause).await;
    }
}
