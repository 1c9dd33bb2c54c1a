//! Fetch 4–18: the stage `fetch`.
//!
//! ```text
//! read ─enough─▶ answer
//!   └─▶ register with every partition ─▶ read again ─enough─▶ answer
//!                                            ▲  └─▶ wait ─deadline─▶ read, answer
//!                                            └── a partition moved ──┘
//! ```
//!
//! Deviations: every fetch is a full one; a client that asks for a session is given session id 0.
//!
//! Invariants: registered before the read that decides to wait, so no move is missed.
//! Invariants: nothing beyond the high watermark (or last stable offset) leaves.
//! Invariants: over a socket, many records leave only in room of `memory`, which they keep until
//! they are written; without room a fetch has one batch, or after its wait none.
//! Never: copies record data out of a single run.

use super::check_leader_epoch;
use crate::dispatch::RequestContext;
use crate::memory::{Room, SMALL_ANSWER_BYTES, holding};
use crate::node::Node;
use crate::partition::Partition;
use crate::topics::TopicEntry;
use bytes::{Bytes, BytesMut};
use millstream_log::{Isolation, LogError, ReadError, ReadRequest};
use millstream_protocol::messages::fetch::{
    AbortedTransaction, FetchPartition, FetchTopic, FetchableTopicResponse, PartitionData,
};
use millstream_protocol::messages::{FetchRequest, FetchResponse};
use millstream_protocol::{ErrorCode, Uuid};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// The most that one answer carries, whatever the client asks for: Kafka's `fetch.max.bytes` of the
/// broker.
const ANSWER_BYTES_MAX: usize = 55 << 20;
/// `isolation_level` of a reader of committed data.
const READ_COMMITTED: i8 = 1;

struct Target {
    partition: Result<Arc<Partition>, ErrorCode>,
    index: i32,
    offset: i64,
    bytes_max: usize,
}

struct TopicTargets {
    name: String,
    id: Uuid,
    targets: Vec<Target>,
}

struct Answer {
    topics: Vec<Vec<PartitionData>>,
    bytes: usize,
    failed: bool,
}

/// Reads, and waits for more while there is less than the client asked for.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: FetchRequest,
) -> FetchResponse {
    if request.session_id != 0 {
        return FetchResponse {
            error_code: ErrorCode::FETCH_SESSION_ID_NOT_FOUND,
            ..Default::default()
        };
    }
    let isolation = isolation(request.isolation_level);
    let mut bytes_max = size(request.max_bytes).min(ANSWER_BYTES_MAX);
    if context.reached_at.is_some() {
        // What finds no room later need not be read.
        bytes_max = bytes_max.min(node.memory.answer_bytes_free().max(SMALL_ANSWER_BYTES));
    }
    let bytes_min = size(request.min_bytes).min(bytes_max);
    let topics: Vec<TopicTargets> = request
        .topics
        .into_iter()
        .map(|topic| find(node, context.api_version, topic))
        .collect();
    let enough = |answer: &Answer| answer.failed || answer.bytes >= bytes_min;

    let mut answer = read(&topics, bytes_max, isolation);
    if request.max_wait_ms > 0 && !enough(&answer) && !topics.is_empty() {
        context.release_turn();
        let deadline = Instant::now() + Duration::from_millis(size(request.max_wait_ms) as u64);
        let waiter = Arc::new(Notify::new());
        let partitions = topics.iter().flat_map(|topic| &topic.targets);
        let partitions = partitions.filter_map(|target| target.partition.as_ref().ok());
        let _registrations: Vec<_> = partitions.map(|p| p.register(&waiter)).collect();
        let mut ended = false;
        loop {
            // It is read again in any case.
            answer.topics.clear();
            context.may_be_large().await;
            answer = read(&topics, bytes_max, isolation);
            if ended || enough(&answer) {
                break;
            }
            answer.topics.clear();
            tokio::select! {
                biased;
                () = waiter.notified() => {}
                () = context.ending() => ended = true,
                () = sleep_until(deadline) => ended = true,
            }
        }
    }
    if context.reached_at.is_some() && answer.bytes > SMALL_ANSWER_BYTES {
        let wait = Duration::from_millis(size(request.max_wait_ms) as u64);
        let one_batch = || read(&topics, 0, isolation);
        answer = within_room(node, context, answer, one_batch, wait).await;
    }
    FetchResponse {
        responses: topics
            .into_iter()
            .zip(answer.topics)
            .map(|(topic, partitions)| FetchableTopicResponse {
                topic: topic.name,
                topic_id: topic.id,
                partitions,
            })
            .collect(),
        ..Default::default()
    }
}

/// The answer in room of its own. Where readers do not take what they asked for, there is none:
/// then it is one batch, and no records if there is no room for that in time.
async fn within_room(
    node: &Node,
    context: &RequestContext,
    answer: Answer,
    one_batch: impl Fn() -> Answer,
    wait: Duration,
) -> Answer {
    if let Some(room) = node.memory.answer_room_now(answer.bytes) {
        return answer.holding(room);
    }
    drop(answer);
    context.release_turn();
    let deadline = Instant::now() + wait;
    let size_bytes = one_batch().bytes;
    let room = tokio::select! {
        biased;
        room = node.memory.answer_room(size_bytes) => room,
        () = context.ending() => None,
        () = sleep_until(deadline) => None,
    };
    // Read again: meanwhile records may have gone.
    let answer = one_batch();
    match room {
        Some(room) if answer.bytes <= size_bytes => answer.holding(room),
        _ => answer.without_records(),
    }
}

impl Answer {
    /// The same records, which keep the room until they are dropped.
    fn holding(mut self, room: Room) -> Self {
        let room = Arc::new(room);
        for data in self.topics.iter_mut().flatten() {
            data.records = data.records.take().map(|bytes| holding(bytes, &room));
        }
        self
    }

    fn without_records(mut self) -> Self {
        for data in self.topics.iter_mut().flatten() {
            data.records = Some(Bytes::new());
        }
        self
    }
}

fn isolation(level: i8) -> Isolation {
    match level {
        READ_COMMITTED => Isolation::LastStable,
        _ => Isolation::HighWatermark,
    }
}

fn size(wire: i32) -> usize {
    usize::try_from(wire).unwrap_or(0)
}

fn find(node: &Node, version: i16, topic: FetchTopic) -> TopicTargets {
    let entry = if version >= 13 {
        node.partitions
            .topic_by_id(topic.topic_id)
            .ok_or(ErrorCode::UNKNOWN_TOPIC_ID)
    } else {
        node.partitions
            .topic(&topic.topic)
            .ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
    };
    let targets = topic.partitions.iter().map(|asked| Target {
        partition: find_partition(entry.as_deref(), asked),
        index: asked.partition,
        offset: asked.fetch_offset,
        bytes_max: size(asked.partition_max_bytes),
    });
    TopicTargets {
        targets: targets.collect(),
        name: topic.topic,
        id: topic.topic_id,
    }
}

fn find_partition(
    entry: Result<&TopicEntry, &ErrorCode>,
    asked: &FetchPartition,
) -> Result<Arc<Partition>, ErrorCode> {
    let found = entry.map_err(|code| *code)?.partition(asked.partition);
    let partition = found.ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    check_leader_epoch(asked.current_leader_epoch)?;
    Ok(partition.clone())
}

/// Reads every partition once. The first data found may exceed the limits by one batch, so that a
/// reader with small limits gets on.
fn read(topics: &[TopicTargets], bytes_max: usize, isolation: Isolation) -> Answer {
    let mut answer = Answer {
        topics: Vec::with_capacity(topics.len()),
        bytes: 0,
        failed: false,
    };
    for topic in topics {
        let mut partitions = Vec::with_capacity(topic.targets.len());
        for target in &topic.targets {
            let budget = target.bytes_max.min(bytes_max.saturating_sub(answer.bytes));
            let data = read_partition(target, budget, answer.bytes == 0, isolation);
            answer.failed |= !data.error_code.is_ok();
            answer.bytes += data.records.as_ref().map_or(0, Bytes::len);
            partitions.push(data);
        }
        answer.topics.push(partitions);
    }
    answer
}

fn read_partition(
    target: &Target,
    max_bytes: usize,
    at_least_one: bool,
    isolation: Isolation,
) -> PartitionData {
    let partition = match &target.partition {
        Ok(partition) => partition,
        Err(code) => return failed(target.index, *code),
    };
    let request = ReadRequest {
        offset: target.offset,
        max_bytes,
        isolation,
        at_least_one,
    };
    match partition.log().read(request) {
        Ok(found) => PartitionData {
            partition_index: target.index,
            high_watermark: found.offsets.high_watermark,
            last_stable_offset: found.offsets.last_stable,
            log_start_offset: found.offsets.log_start,
            aborted_transactions: (isolation == Isolation::LastStable).then(|| {
                let aborted = found.aborted.iter().map(|aborted| AbortedTransaction {
                    producer_id: aborted.producer_id,
                    first_offset: aborted.first_offset,
                });
                aborted.collect()
            }),
            records: Some(join(found.batches)),
            ..Default::default()
        },
        Err(error) => {
            let code = error.error_code();
            if matches!(error, ReadError::Storage(LogError::Closed)) {
                tracing::debug!(partition = %partition.name(), "read of a deleted topic");
            } else if code != ErrorCode::OFFSET_OUT_OF_RANGE {
                tracing::error!(partition = %partition.name(), %error, "read failed");
            }
            let offsets = partition.offsets();
            PartitionData {
                high_watermark: offsets.high_watermark,
                last_stable_offset: offsets.last_stable,
                log_start_offset: offsets.log_start,
                ..failed(target.index, code)
            }
        }
    }
}

/// One run of bytes from the log's runs; a single run is passed on as it is.
fn join(mut runs: Vec<Bytes>) -> Bytes {
    if runs.len() <= 1 {
        return runs.pop().unwrap_or_default();
    }
    let mut joined = BytesMut::with_capacity(runs.iter().map(Bytes::len).sum());
    for run in runs {
        joined.extend_from_slice(&run);
    }
    joined.freeze()
}

fn failed(partition_index: i32, error_code: ErrorCode) -> PartitionData {
    PartitionData {
        partition_index,
        error_code,
        high_watermark: -1,
        aborted_transactions: None,
        records: Some(Bytes::new()),
        ..Default::default()
    }
}
