//! Fetch 4–18: the stage `fetch`.
//!
//! ```text
//! read ─enough─▶ answer
//!   └─▶ register with every partition ─▶ look at what is new ─enough─▶ read, answer
//!                                            ▲  └─▶ wait ─deadline─▶ read, answer
//!                                            └── a partition moved ──┘
//! ```
//!
//! What is read is all that the request names, or all that its session holds
//! (`fetch_sessions`); then what the client knows already is left out.
//!
//! Deviations: all sessions together hold 64 MiB; beyond, fetches are full ones. A session in use
//! is never evicted for a larger one.
//!
//! Invariants: registered before the read that decides to wait, so no move is missed.
//! Invariants: nothing beyond the high watermark (or last stable offset) leaves.
//! Invariants: over a socket, many records leave only in room of `memory`, which they keep until
//! they are written; without room a fetch has one batch, or after its wait none.
//! Invariants: what is answered, its session is told; what is left out, the client was told.
//! Never: keeps what it has read while it waits; copies record data out of a single run.

use super::check_leader_epoch;
use crate::dispatch::RequestContext;
use crate::fetch_sessions::{
    Asked, FetchSessions, Kind, NO_SESSION, Place, Session, Told, TopicKey,
};
use crate::memory::{Room, SMALL_ANSWER_BYTES, holding};
use crate::node::Node;
use crate::partition::Partition;
use crate::topics::TopicEntry;
use bytes::{Bytes, BytesMut};
use millstream_log::{Isolation, LogError, ReadError, ReadRequest};
use millstream_protocol::messages::fetch::{
    AbortedTransaction, FetchTopic, FetchableTopicResponse, PartitionData,
};
use millstream_protocol::messages::{FetchRequest, FetchResponse};
use millstream_protocol::{ErrorCode, Uuid};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

mod seen;

use seen::Seen;

/// The most that one answer carries, whatever the client asks for: Kafka's `fetch.max.bytes` of the
/// broker.
const ANSWER_BYTES_MAX: usize = 55 << 20;
/// `isolation_level` of a reader of committed data.
const READ_COMMITTED: i8 = 1;

struct Target {
    partition: Result<Arc<Partition>, ErrorCode>,
    /// Its place among the topics.
    topic: usize,
    index: i32,
    asked: Asked,
    /// Where it stands in the session, and what the client knows of it.
    known: Option<(Place, Told)>,
}

/// What is to be read, in its order; the partitions of a topic that stand together share it.
struct Targets {
    topics: Vec<TopicKey>,
    all: Vec<Target>,
}

#[derive(Default)]
struct Answer {
    /// Places among the targets, and what was read there.
    parts: Vec<(usize, PartitionData)>,
    bytes: usize,
    failed: bool,
}

/// Reads, and waits for more while there is less than the client asked for.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: FetchRequest,
) -> FetchResponse {
    let by_id = context.api_version >= 13;
    let kind = match FetchSessions::begin(node, &request, by_id) {
        Ok(kind) => kind,
        Err(error_code) => {
            return FetchResponse {
                error_code,
                ..Default::default()
            };
        }
    };
    let isolation = match request.isolation_level {
        READ_COMMITTED => Isolation::LastStable,
        _ => Isolation::HighWatermark,
    };
    let mut bytes_max = size(request.max_bytes).min(ANSWER_BYTES_MAX);
    if context.reached_at.is_some() {
        // What finds no room later need not be read.
        bytes_max = bytes_max.min(node.memory.answer_bytes_free().max(SMALL_ANSWER_BYTES));
    }
    let bytes_min = size(request.min_bytes).min(bytes_max);
    let targets = match &kind {
        Kind::Incremental(taken) => Targets::of_session(node, taken.session()),
        Kind::Initial | Kind::Sessionless => Targets::of_request(node, by_id, &request.topics),
    };
    let enough = |answer: &Answer| answer.failed || answer.bytes >= bytes_min;

    let mut answer = read(&targets, bytes_max, isolation);
    if request.max_wait_ms > 0 && !enough(&answer) && !targets.all.is_empty() {
        drop(answer);
        context.release_turn();
        let deadline = Instant::now() + Duration::from_millis(size(request.max_wait_ms) as u64);
        let waiter = Arc::new(Notify::new());
        let partitions = targets.all.iter();
        let partitions = partitions.filter_map(|target| target.partition.as_ref().ok());
        let _registrations: Vec<_> = partitions.map(|p| p.register(&waiter)).collect();
        let mut ended = false;
        let mut seen = Seen::new(&targets);
        answer = loop {
            context.may_be_large().await;
            seen.look(&targets, isolation, bytes_min);
            if ended || seen.is_enough(bytes_min) {
                break read(&targets, bytes_max, isolation);
            }
            tokio::select! {
                biased;
                () = waiter.notified() => {}
                () = context.ending() => ended = true,
                () = sleep_until(deadline) => ended = true,
            }
        };
    }
    if context.reached_at.is_some() && answer.bytes > SMALL_ANSWER_BYTES {
        let wait = Duration::from_millis(size(request.max_wait_ms) as u64);
        let one_batch = || read(&targets, 0, isolation);
        answer = within_room(node, context, answer, one_batch, wait).await;
    }
    let session_id = go_on(node, kind, by_id, &targets, &answer);
    FetchResponse {
        session_id,
        responses: answer.by_topic(&targets),
        ..Default::default()
    }
}

/// Tells the session what is answered. The id with which the client goes on.
fn go_on(node: &Node, kind: Kind, by_id: bool, targets: &Targets, answer: &Answer) -> i32 {
    match kind {
        Kind::Sessionless => NO_SESSION,
        Kind::Initial => {
            let mut session = Session::new(by_id);
            let all = targets.all.iter();
            let places: Vec<_> = all
                .map(|target| session.ask(targets.topic(target), target.index, target.asked))
                .collect();
            for (target, data) in &answer.parts {
                session.answered(places[*target], data);
            }
            FetchSessions::keep(node, session)
        }
        Kind::Incremental(mut taken) => {
            if let Some(session) = taken.session_mut() {
                for (target, data) in &answer.parts {
                    if let Some((place, _)) = targets.all[*target].known {
                        session.answered(place, data);
                    }
                }
            }
            taken.give_back()
        }
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
        for (_, data) in &mut self.parts {
            data.records = data.records.take().map(|bytes| holding(bytes, &room));
        }
        self
    }

    fn without_records(mut self) -> Self {
        for (_, data) in &mut self.parts {
            data.records = Some(Bytes::new());
        }
        self
    }

    /// As it is sent. A topic comes again where another one stands between its partitions.
    fn by_topic(self, targets: &Targets) -> Vec<FetchableTopicResponse> {
        let mut topics: Vec<FetchableTopicResponse> = Vec::new();
        let mut last = None;
        for (target, data) in self.parts {
            let target = &targets.all[target];
            if last != Some(target.topic) {
                last = Some(target.topic);
                let (topic, topic_id) = match targets.topic(target) {
                    TopicKey::Name(name) => (name.to_string(), Uuid::ZERO),
                    TopicKey::Id(id) => (String::new(), *id),
                };
                topics.push(FetchableTopicResponse {
                    topic,
                    topic_id,
                    partitions: Vec::new(),
                });
            }
            if let Some(topic) = topics.last_mut() {
                topic.partitions.push(data);
            }
        }
        topics
    }
}

fn size(wire: i32) -> usize {
    usize::try_from(wire).unwrap_or(0)
}

impl Targets {
    fn of_request(node: &Node, by_id: bool, topics: &[FetchTopic]) -> Self {
        let mut targets = Self::none(topics.iter().map(|topic| topic.partitions.len()).sum());
        for topic in topics {
            let key = TopicKey::of(by_id, &topic.topic, topic.topic_id);
            let entry = find(node, &key);
            for partition in &topic.partitions {
                let asked = Asked::by(partition);
                targets.add(&entry, partition.partition, asked, None);
            }
            targets.topics.push(key);
        }
        targets
    }

    fn of_session(node: &Node, session: Option<&Session>) -> Self {
        let mut targets = Self::none(session.map_or(0, Session::len));
        let mut entry = Err(ErrorCode::UNKNOWN_TOPIC_ID);
        let mut last: Option<&TopicKey> = None;
        for (place, part) in session.into_iter().flat_map(Session::parts) {
            if last != Some(&part.topic) {
                targets.topics.extend(last.replace(&part.topic).cloned());
                entry = find(node, &part.topic);
            }
            targets.add(&entry, part.index, part.asked, Some((place, part.told)));
        }
        targets.topics.extend(last.cloned());
        targets
    }

    fn none(capacity: usize) -> Self {
        Self {
            topics: Vec::new(),
            all: Vec::with_capacity(capacity),
        }
    }

    /// A partition of the topic that comes next.
    fn add(
        &mut self,
        entry: &Result<Arc<TopicEntry>, ErrorCode>,
        index: i32,
        asked: Asked,
        known: Option<(Place, Told)>,
    ) {
        self.all.push(Target {
            partition: find_partition(entry.as_deref(), index, asked.leader_epoch),
            topic: self.topics.len(),
            index,
            asked,
            known,
        });
    }

    fn topic(&self, target: &Target) -> &TopicKey {
        &self.topics[target.topic]
    }
}

fn find(node: &Node, topic: &TopicKey) -> Result<Arc<TopicEntry>, ErrorCode> {
    match topic {
        TopicKey::Name(name) => node
            .partitions
            .topic(name)
            .ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
        TopicKey::Id(id) => node
            .partitions
            .topic_by_id(*id)
            .ok_or(ErrorCode::UNKNOWN_TOPIC_ID),
    }
}

fn find_partition(
    entry: Result<&TopicEntry, &ErrorCode>,
    index: i32,
    leader_epoch: i32,
) -> Result<Arc<Partition>, ErrorCode> {
    let found = entry.map_err(|code| *code)?.partition(index);
    let partition = found.ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    check_leader_epoch(leader_epoch)?;
    Ok(partition.clone())
}

/// Reads every partition once, and leaves out what the client knows. The first data found may
/// exceed the limits by one batch, so that a reader with small limits gets on.
fn read(targets: &Targets, bytes_max: usize, isolation: Isolation) -> Answer {
    let mut answer = Answer::default();
    for (place, target) in targets.all.iter().enumerate() {
        let rest = bytes_max.saturating_sub(answer.bytes);
        let budget = size(target.asked.bytes_max).min(rest);
        let data = read_partition(target, budget, answer.bytes == 0, isolation);
        if target.known.is_some_and(|(_, told)| told.knows(&data)) {
            continue;
        }
        answer.failed |= !data.error_code.is_ok();
        answer.bytes += data.records.as_ref().map_or(0, Bytes::len);
        answer.parts.push((place, data));
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
        offset: target.asked.offset,
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
