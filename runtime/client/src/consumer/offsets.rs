//! Committed offsets: reads and writes them at the group's coordinator.
//!
//! Invariants: an offset that a transaction has yet to decide is waited for, never guessed
//! (`require_stable`); a commit carries the membership it was made under; a commit without an
//! answer is repeated as it was, which changes nothing if it had arrived.
//! Never: rejoins a group or moves a position; the caller does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_protocol::messages::offset_commit::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use millstream_protocol::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use millstream_protocol::messages::{OffsetCommitRequest, OffsetFetchRequest, OffsetFetchResponse};
use millstream_protocol::{ApiKey, ErrorClass, ErrorCode, ErrorContext, TopicPartition, class};
use tokio::time::Instant;

use super::core::{Core, MemberEpoch};
use super::error::ConsumerError;
use crate::cluster::{Cluster, CoordinatorKind, millis};
use crate::error::ClusterError;
use crate::group::{GroupMetadata, OffsetAndMetadata};

/// Up to here topics go by name.
const BY_NAME_VERSION: i16 = 9;

/// How one partition's look-up ended.
#[derive(Clone, Debug)]
pub(crate) enum Committed {
    /// `None` where nothing is committed.
    Found(Option<OffsetAndMetadata>),
    /// Undecided, or to be asked elsewhere: ask again.
    Later(ErrorCode),
    Refused(ErrorCode),
}

/// One attempt to read committed offsets.
pub(crate) async fn fetch_committed_once(
    cluster: &Cluster,
    group_id: &str,
    member: Option<MemberEpoch>,
    partitions: &[TopicPartition],
    timeout: Duration,
) -> Result<Vec<(TopicPartition, Committed)>, ClusterError> {
    let mut topics: BTreeMap<&Arc<str>, Vec<i32>> = BTreeMap::new();
    for partition in partitions {
        topics
            .entry(&partition.topic)
            .or_default()
            .push(partition.partition);
    }
    let build = |version: i16| fetch_request(group_id, member, &topics, version);
    let kind = CoordinatorKind::Group;
    let response = cluster
        .ask_coordinator(kind, group_id, timeout, BY_NAME_VERSION, build)
        .await?;
    let mut found = read_fetch(response);
    let answers: Vec<(TopicPartition, Committed)> = partitions
        .iter()
        .map(|partition| {
            let answer = found.partitions.remove(partition);
            let (code, committed) = answer.unwrap_or((ErrorCode::UNKNOWN_SERVER_ERROR, None));
            let code = if found.code.is_ok() { code } else { found.code };
            (
                partition.clone(),
                judge_fetch(cluster, group_id, code, committed),
            )
        })
        .collect();
    Ok(answers)
}

fn fetch_request(
    group_id: &str,
    member: Option<MemberEpoch>,
    topics: &BTreeMap<&Arc<str>, Vec<i32>>,
    version: i16,
) -> OffsetFetchRequest {
    let mut request = OffsetFetchRequest {
        require_stable: version >= 7,
        ..Default::default()
    };
    if version >= 8 {
        let topics = topics
            .iter()
            .map(|(name, indexes)| OffsetFetchRequestTopics {
                name: name.to_string(),
                partition_indexes: indexes.clone(),
                ..Default::default()
            });
        request.groups = vec![OffsetFetchRequestGroup {
            group_id: group_id.to_owned(),
            member_id: member.as_ref().map(|member| member.member_id.to_string()),
            member_epoch: member.map_or(-1, |member| member.epoch),
            topics: Some(topics.collect()),
        }];
    } else {
        group_id.clone_into(&mut request.group_id);
        let topics = topics
            .iter()
            .map(|(name, indexes)| OffsetFetchRequestTopic {
                name: name.to_string(),
                partition_indexes: indexes.clone(),
            });
        request.topics = Some(topics.collect());
    }
    request
}

struct FetchAnswer {
    code: ErrorCode,
    partitions: BTreeMap<TopicPartition, (ErrorCode, Option<OffsetAndMetadata>)>,
}

fn read_fetch(response: OffsetFetchResponse) -> FetchAnswer {
    let mut answer = FetchAnswer {
        code: response.error_code,
        partitions: BTreeMap::new(),
    };
    let mut put = |topic: &str, index: i32, code, offset: i64, epoch: i32, text: Option<String>| {
        let committed = (offset >= 0).then(|| OffsetAndMetadata {
            offset,
            leader_epoch: (epoch >= 0).then_some(epoch),
            metadata: text.unwrap_or_default(),
        });
        answer
            .partitions
            .insert(TopicPartition::new(topic, index), (code, committed));
    };
    for topic in response.topics {
        for p in topic.partitions {
            let epoch = p.committed_leader_epoch;
            let index = p.partition_index;
            put(
                &topic.name,
                index,
                p.error_code,
                p.committed_offset,
                epoch,
                p.metadata,
            );
        }
    }
    if let Some(group) = response.groups.into_iter().next() {
        for topic in group.topics {
            for p in topic.partitions {
                let epoch = p.committed_leader_epoch;
                let index = p.partition_index;
                put(
                    &topic.name,
                    index,
                    p.error_code,
                    p.committed_offset,
                    epoch,
                    p.metadata,
                );
            }
        }
        answer.code = group.error_code;
    }
    answer
}

fn judge_fetch(
    cluster: &Cluster,
    group_id: &str,
    code: ErrorCode,
    committed: Option<OffsetAndMetadata>,
) -> Committed {
    if code.is_ok() {
        return Committed::Found(committed);
    }
    match class(ApiKey::OffsetFetch, code, ErrorContext::Plain) {
        // It says nothing of the next attempt; nor does an answer that leaves the partition out.
        _ if code == ErrorCode::UNKNOWN_SERVER_ERROR => Committed::Later(code),
        // Asked under an epoch that has passed: the next attempt has the new one, or none.
        ErrorClass::Rejoin => Committed::Later(code),
        ErrorClass::Retry | ErrorClass::RefreshMetadata | ErrorClass::Ambiguous => {
            Committed::Later(code)
        }
        ErrorClass::FindCoordinator => {
            cluster.forget_coordinator(CoordinatorKind::Group, group_id);
            Committed::Later(code)
        }
        _ => Committed::Refused(code),
    }
}

/// Reads committed offsets until all are decided, or `patience` is over.
pub(crate) async fn fetch_committed(
    core: &Core,
    group_id: &str,
    partitions: &[TopicPartition],
    patience: Duration,
) -> Result<BTreeMap<TopicPartition, Option<OffsetAndMetadata>>, ConsumerError> {
    let (cluster, started) = (&core.cluster, Instant::now());
    let mut open: Vec<TopicPartition> = partitions.to_vec();
    let mut found = BTreeMap::new();
    let mut attempt = 0;
    while !open.is_empty() {
        let left = patience.saturating_sub(started.elapsed());
        let member = core.member_epoch();
        let asked = fetch_committed_once(cluster, group_id, member, &open, left).await;
        let last: Arc<str> = match asked {
            Ok(answers) => {
                open.clear();
                let mut last: Arc<str> = "".into();
                for (partition, answer) in answers {
                    match answer {
                        Committed::Found(offset) => {
                            found.insert(partition, offset);
                        }
                        Committed::Later(code) => {
                            last = undecided(&partition, code);
                            open.push(partition);
                        }
                        Committed::Refused(code) => {
                            return Err(ConsumerError::Refused {
                                call: "committed",
                                code,
                                topic_partition: Some(partition),
                            });
                        }
                    }
                }
                last
            }
            Err(error) => retriable(error)?,
        };
        if open.is_empty() {
            break;
        }
        pause(cluster, "committed", started, patience, &mut attempt, last).await?;
    }
    Ok(found)
}

/// What is not known yet, and why. An offset that a transaction holds is decided when that has
/// ended, at its `transaction.timeout.ms` at the latest; unless its coordinator has lost it.
fn undecided(partition: &TopicPartition, code: ErrorCode) -> Arc<str> {
    let why = if code == ErrorCode::UNSTABLE_OFFSET_COMMIT {
        ": a transaction that commits this offset has not ended; if it outlives its \
         transaction.timeout.ms, it hangs and has to be aborted by hand \
         (`millstream transactions find-hanging`)"
    } else {
        ""
    };
    format!("{partition}: {code}{why}").into()
}

/// The text of an error after which the same request may be sent again; other errors pass.
fn retriable(error: ClusterError) -> Result<Arc<str>, ConsumerError> {
    match &error {
        ClusterError::Request(request) if request.is_retriable() => Ok(error.to_string().into()),
        ClusterError::CoordinatorTimeout { .. } => Ok(error.to_string().into()),
        _ => Err(error.into()),
    }
}

async fn pause(
    cluster: &Cluster,
    call: &'static str,
    started: Instant,
    patience: Duration,
    attempt: &mut u32,
    last: Arc<str>,
) -> Result<(), ConsumerError> {
    let pause = cluster.retry_pause(*attempt);
    if started.elapsed() + pause >= patience {
        return Err(ConsumerError::Timeout {
            call,
            waited_ms: millis(started.elapsed()),
            last,
        });
    }
    *attempt += 1;
    tokio::time::sleep(pause).await;
    Ok(())
}

/// Why a commit ended without success.
#[derive(Debug)]
pub(crate) enum CommitFailure {
    /// The coordinator refuses the membership that the commit was made under.
    Membership(ErrorCode),
    Other(ConsumerError),
}

/// How often a commit is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempts {
    /// For what a newer commit will follow.
    One,
    UntilAnswered,
}

/// Commits `offsets` as `member` until there is a final answer, or `patience` or `attempts` are
/// over.
pub(crate) async fn commit(
    cluster: &Cluster,
    member: &GroupMetadata,
    offsets: &BTreeMap<TopicPartition, OffsetAndMetadata>,
    patience: Duration,
    attempts: Attempts,
) -> Result<(), CommitFailure> {
    let started = Instant::now();
    let mut open = offsets.clone();
    let mut attempt = 0;
    loop {
        let left = patience.saturating_sub(started.elapsed());
        let build = |version: i16| commit_request(member, &open, version);
        let asked = cluster
            .ask_coordinator(
                CoordinatorKind::Group,
                &member.group_id,
                left,
                BY_NAME_VERSION,
                build,
            )
            .await;
        let last: Arc<str> = match asked {
            Ok(response) => {
                let mut codes = BTreeMap::new();
                for topic in response.topics {
                    let name: Arc<str> = topic.name.into();
                    for p in topic.partitions {
                        let partition = TopicPartition::new(name.clone(), p.partition_index);
                        codes.insert(partition, p.error_code);
                    }
                }
                match judge_commit(cluster, member, &mut open, &codes)? {
                    Some(code) => code.to_string().into(),
                    None => return Ok(()),
                }
            }
            Err(error) => retriable(error).map_err(CommitFailure::Other)?,
        };
        let patience = match attempts {
            Attempts::One => Duration::ZERO,
            Attempts::UntilAnswered => patience,
        };
        pause(cluster, "commit", started, patience, &mut attempt, last)
            .await
            .map_err(CommitFailure::Other)?;
    }
}

fn commit_request(
    member: &GroupMetadata,
    offsets: &BTreeMap<TopicPartition, OffsetAndMetadata>,
    version: i16,
) -> OffsetCommitRequest {
    let mut topics: BTreeMap<&Arc<str>, Vec<OffsetCommitRequestPartition>> = BTreeMap::new();
    for (partition, offset) in offsets {
        topics
            .entry(&partition.topic)
            .or_default()
            .push(OffsetCommitRequestPartition {
                partition_index: partition.partition,
                committed_offset: offset.offset,
                committed_leader_epoch: offset.leader_epoch.unwrap_or(-1),
                committed_metadata: Some(offset.metadata.clone()),
            });
    }
    OffsetCommitRequest {
        group_id: member.group_id.clone(),
        generation_id_or_member_epoch: member.generation_id,
        member_id: member.member_id.clone(),
        group_instance_id: member.group_instance_id.clone().filter(|_| version >= 7),
        topics: topics
            .into_iter()
            .map(|(name, partitions)| OffsetCommitRequestTopic {
                name: name.to_string(),
                partitions,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}

/// Drops from `open` what is committed; the code to try again for, if any.
fn judge_commit(
    cluster: &Cluster,
    member: &GroupMetadata,
    open: &mut BTreeMap<TopicPartition, OffsetAndMetadata>,
    codes: &BTreeMap<TopicPartition, ErrorCode>,
) -> Result<Option<ErrorCode>, CommitFailure> {
    let mut again = None;
    let asked: Vec<(TopicPartition, i64)> = open
        .iter()
        .map(|(partition, offset)| (partition.clone(), offset.offset))
        .collect();
    for (partition, offset) in asked {
        let code = codes
            .get(&partition)
            .copied()
            .unwrap_or(ErrorCode::UNKNOWN_SERVER_ERROR);
        if code.is_ok() {
            open.remove(&partition);
            continue;
        }
        match code {
            ErrorCode::UNKNOWN_MEMBER_ID
            | ErrorCode::ILLEGAL_GENERATION
            | ErrorCode::STALE_MEMBER_EPOCH
            | ErrorCode::FENCED_INSTANCE_ID
            | ErrorCode::REBALANCE_IN_PROGRESS => return Err(CommitFailure::Membership(code)),
            _ => {}
        }
        match class(ApiKey::OffsetCommit, code, ErrorContext::Plain) {
            ErrorClass::Retry | ErrorClass::RefreshMetadata | ErrorClass::Ambiguous => {
                again = Some(code);
            }
            ErrorClass::FindCoordinator => {
                cluster.forget_coordinator(CoordinatorKind::Group, &member.group_id);
                again = Some(code);
            }
            _ => {
                return Err(CommitFailure::Other(ConsumerError::CommitRejected {
                    topic_partition: partition,
                    offset,
                    code,
                }));
            }
        }
    }
    Ok(again)
}
