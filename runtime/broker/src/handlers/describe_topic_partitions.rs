//! DescribeTopicPartitions 0: topics in the order of their names, page by page.
//!
//! Invariants: pages follow each other without a gap and without a repetition; each has at least
//! one partition unless there is none left.
//! Never: more partitions in an answer than the client, or Kafka's 2,000, allow.

use super::{LEADER_EPOCH, TOPIC_OPERATIONS};
use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::topics::{TopicEntry, invalid_topic_name, is_internal};
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::describe_topic_partitions::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use millstream_protocol::messages::{
    DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// `max.request.partition.size.limit`.
const PARTITIONS_MAX: i32 = 2_000;

/// Answers with a page of the topics asked for, or of all of them.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    let asked = request.topics.into_iter().map(|topic| topic.name);
    let asked: BTreeSet<String> = asked.collect();
    let misplaced = request.cursor.as_ref().is_some_and(|cursor| {
        cursor.partition_index < 0 || !(asked.is_empty() || asked.contains(&cursor.topic_name))
    });
    if misplaced {
        let refused = |name| missing(name, ErrorCode::INVALID_REQUEST);
        return DescribeTopicPartitionsResponse {
            topics: asked.into_iter().map(refused).collect(),
            ..Default::default()
        };
    }
    let all = asked.is_empty();
    let names = if all {
        let topics = node.partitions.topics().into_iter();
        topics.map(|topic| topic.name.to_string()).collect()
    } else {
        asked
    };
    let limit = request.response_partition_limit.clamp(1, PARTITIONS_MAX);
    page(
        node,
        names,
        all,
        request.cursor,
        limit.unsigned_abs() as usize,
    )
}

/// The topics from the cursor on, up to a number of partitions.
fn page(
    node: &Node,
    names: BTreeSet<String>,
    all: bool,
    cursor: Option<Cursor>,
    limit: usize,
) -> DescribeTopicPartitionsResponse {
    let (first, from) = match cursor {
        Some(cursor) => (
            cursor.topic_name,
            cursor.partition_index.unsigned_abs() as usize,
        ),
        None => (String::new(), 0),
    };
    let mut response = DescribeTopicPartitionsResponse::default();
    let mut room = limit;
    for name in names.into_iter().filter(|name| *name >= first) {
        let from = if name == first { from } else { 0 };
        if room == 0 {
            response.next_cursor = Some(cursor_at(name, from));
            break;
        }
        let Some(entry) = node.partitions.topic(&name) else {
            // One that was deleted meanwhile was not asked for.
            if !all {
                let code = match invalid_topic_name(&name) {
                    Some(_) => ErrorCode::INVALID_TOPIC_EXCEPTION,
                    None => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
                };
                response.topics.push(missing(name, code));
            }
            continue;
        };
        let described = describe(node, &entry, from, room);
        let next = from + described.partitions.len();
        room -= described.partitions.len();
        response.topics.push(described);
        if next < entry.partitions.len() {
            response.next_cursor = Some(cursor_at(name, next));
            break;
        }
    }
    response
}

fn cursor_at(topic_name: String, partition: usize) -> Cursor {
    Cursor {
        topic_name,
        partition_index: i32::try_from(partition).unwrap_or(i32::MAX),
    }
}

fn describe(
    node: &Node,
    entry: &TopicEntry,
    from: usize,
    room: usize,
) -> DescribeTopicPartitionsResponseTopic {
    let this = vec![node.config.node_id];
    let partitions = entry.partitions.iter().skip(from).take(room);
    let partitions = partitions.map(|partition| DescribeTopicPartitionsResponsePartition {
        error_code: ErrorCode::NONE,
        partition_index: partition.name().partition,
        leader_id: node.config.node_id,
        leader_epoch: LEADER_EPOCH,
        replica_nodes: this.clone(),
        isr_nodes: this.clone(),
        eligible_leader_replicas: Some(Vec::new()),
        last_known_elr: Some(Vec::new()),
        offline_replicas: Vec::new(),
    });
    DescribeTopicPartitionsResponseTopic {
        error_code: ErrorCode::NONE,
        name: Some(entry.name.to_string()),
        topic_id: entry.id,
        is_internal: entry.is_internal(),
        partitions: partitions.collect(),
        topic_authorized_operations: TOPIC_OPERATIONS,
    }
}

fn missing(name: String, error_code: ErrorCode) -> DescribeTopicPartitionsResponseTopic {
    DescribeTopicPartitionsResponseTopic {
        error_code,
        is_internal: is_internal(&name),
        name: Some(name),
        ..Default::default()
    }
}
