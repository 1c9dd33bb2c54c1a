//! OffsetFetch 1–10: how far a group has come, in the partitions asked for or in all of them.
//!
//! Deviations: a reader that asks for stable offsets of everything also hears of partitions whose
//! only offset is that of an open transaction.
//!
//! Invariants: with `require_stable`, a partition whose offset an open transaction may still
//! change is answered UNSTABLE_OFFSET_COMMIT and nothing else.
//! Invariants: what is told is durable.
//! Invariants: a member of the consumer protocol names its epoch (9 and later), and hears
//! STALE_MEMBER_EPOCH if it has another one.
//! Never: tells of another topic's offset under the same name.

use crate::dispatch::RequestContext;
use crate::group::FetchedOffset;
use crate::node::Node;
use millstream_protocol::messages::offset_fetch::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics, OffsetFetchResponseGroup,
    OffsetFetchResponsePartition, OffsetFetchResponsePartitions, OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
};
use millstream_protocol::messages::{OffsetFetchRequest, OffsetFetchResponse};
use millstream_protocol::{ErrorCode, Uuid};
use std::sync::Arc;

/// The first version that asks for several groups at once.
const BATCH_VERSION: i16 = 8;
/// The first version that names topics by id.
const TOPIC_ID_VERSION: i16 = 10;
const NO_OFFSET: i64 = -1;

/// Fetches the offsets of every group of the request.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: OffsetFetchRequest,
) -> OffsetFetchResponse {
    let by_id = context.api_version >= TOPIC_ID_VERSION;
    let require_stable = request.require_stable;
    if context.api_version >= BATCH_VERSION {
        let mut groups = Vec::with_capacity(request.groups.len());
        for group in request.groups {
            groups.push(fetch_group(node, group, by_id, require_stable).await);
        }
        return OffsetFetchResponse {
            groups,
            ..Default::default()
        };
    }
    let topics = request.topics.map(|topics| {
        let topics = topics.into_iter().map(|topic| OffsetFetchRequestTopics {
            name: topic.name,
            partition_indexes: topic.partition_indexes,
            ..Default::default()
        });
        topics.collect()
    });
    let group_id = request.group_id;
    let group = OffsetFetchRequestGroup {
        group_id,
        topics,
        ..Default::default()
    };
    into_single(
        fetch_group(node, group, false, require_stable).await,
        context.api_version,
    )
}

async fn fetch_group(
    node: &Node,
    group: OffsetFetchRequestGroup,
    by_id: bool,
    require_stable: bool,
) -> OffsetFetchResponseGroup {
    let OffsetFetchRequestGroup {
        group_id,
        member_id,
        member_epoch,
        topics,
    } = group;
    let may = node
        .groups
        .may_fetch(&group_id, member_id.as_deref(), member_epoch);
    let fetched = may.and_then(|()| match topics {
        None => fetch_all(node, &group_id, by_id, require_stable),
        Some(topics) => fetch_some(node, &group_id, topics, by_id, require_stable),
    });
    let durable = match fetched {
        Ok((topics, position)) => node.groups.durable(node, position).await.map(|()| topics),
        Err(error) => Err(error),
    };
    match durable {
        Ok(topics) => OffsetFetchResponseGroup {
            group_id,
            topics,
            error_code: ErrorCode::NONE,
        },
        Err(error_code) => OffsetFetchResponseGroup {
            group_id,
            topics: Vec::new(),
            error_code,
        },
    }
}

/// Topics of an answer, and the journal position that must be durable before it.
type Fetched = (Vec<OffsetFetchResponseTopics>, u64);

fn fetch_all(
    node: &Node,
    group_id: &str,
    by_id: bool,
    require_stable: bool,
) -> Result<Fetched, ErrorCode> {
    let (known, position) = node.groups.fetch_all(group_id, require_stable)?;
    let mut topics = Vec::with_capacity(known.len());
    for (name, partitions) in known {
        let topic_id = current_id(node, &name);
        if by_id && topic_id == Uuid::ZERO {
            // A topic that is gone has no id to be named by.
            continue;
        }
        let partitions = partitions
            .into_iter()
            .filter(|(_, offset)| !offset.is_of_another(topic_id))
            .map(|(index, offset)| answer(index, offset));
        topics.push(OffsetFetchResponseTopics {
            name,
            topic_id,
            partitions: partitions.collect(),
        });
    }
    Ok((topics, position))
}

fn fetch_some(
    node: &Node,
    group_id: &str,
    topics: Vec<OffsetFetchRequestTopics>,
    by_id: bool,
    require_stable: bool,
) -> Result<Fetched, ErrorCode> {
    let mut answers = Vec::with_capacity(topics.len());
    let mut position = 0;
    for topic in topics {
        let OffsetFetchRequestTopics {
            name,
            topic_id,
            partition_indexes,
        } = topic;
        let entry = by_id.then(|| node.partitions.topic_by_id(topic_id));
        let stored_as = match &entry {
            None => Some(name.as_str()),
            Some(entry) => entry.as_ref().map(|entry| &*entry.name),
        };
        let partitions = match stored_as {
            None => partition_indexes
                .into_iter()
                .map(|index| failed(index, ErrorCode::UNKNOWN_TOPIC_ID))
                .collect(),
            Some(stored_as) => {
                let wanted = partition_indexes.iter();
                let current_id = match by_id {
                    true => topic_id,
                    false => current_id(node, stored_as),
                };
                let wanted = wanted.map(|index| (stored_as.to_owned(), current_id, *index));
                let (fetched, reached) = node.groups.fetch(group_id, wanted, require_stable)?;
                position = position.max(reached);
                let fetched = partition_indexes.into_iter().zip(fetched);
                fetched
                    .map(|(index, offset)| answer(index, offset))
                    .collect()
            }
        };
        answers.push(OffsetFetchResponseTopics {
            name,
            topic_id,
            partitions,
        });
    }
    Ok((answers, position))
}

/// The id that the name stands for now; zero for none.
fn current_id(node: &Node, name: &str) -> Uuid {
    let entry = node.partitions.topic(name);
    entry.map_or(Uuid::ZERO, |entry| entry.id)
}

fn answer(partition_index: i32, offset: FetchedOffset) -> OffsetFetchResponsePartitions {
    match offset {
        FetchedOffset::None => failed(partition_index, ErrorCode::NONE),
        FetchedOffset::Unstable => failed(partition_index, ErrorCode::UNSTABLE_OFFSET_COMMIT),
        FetchedOffset::Committed(offset) => OffsetFetchResponsePartitions {
            partition_index,
            committed_offset: offset.offset,
            committed_leader_epoch: offset.leader_epoch,
            metadata: Some(offset.metadata),
            error_code: ErrorCode::NONE,
        },
    }
}

fn failed(partition_index: i32, error_code: ErrorCode) -> OffsetFetchResponsePartitions {
    let committed_offset = NO_OFFSET;
    OffsetFetchResponsePartitions {
        partition_index,
        committed_offset,
        error_code,
        ..Default::default()
    }
}

/// The form of the answer up to version 7. Version 1 has no error of the group's own, so its
/// partitions carry it; there are none if the group could not be looked at.
fn into_single(group: OffsetFetchResponseGroup, version: i16) -> OffsetFetchResponse {
    let partition = |partition: OffsetFetchResponsePartitions| OffsetFetchResponsePartition {
        partition_index: partition.partition_index,
        committed_offset: partition.committed_offset,
        committed_leader_epoch: partition.committed_leader_epoch,
        metadata: partition.metadata,
        error_code: partition.error_code,
    };
    let topics = group
        .topics
        .into_iter()
        .map(|topic| OffsetFetchResponseTopic {
            name: topic.name,
            partitions: topic.partitions.into_iter().map(partition).collect(),
        });
    let error_code = if version >= 2 {
        group.error_code
    } else {
        ErrorCode::NONE
    };
    OffsetFetchResponse {
        topics: topics.collect(),
        error_code,
        ..Default::default()
    }
}
