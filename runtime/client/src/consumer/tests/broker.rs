//! A tiny broker for the consumer's tests: logs in memory, long polls, one group coordinator, and
//! faults on demand. One node; a connection's requests are answered in order.
//!
//! Invariants: without faults it answers as Kafka's broker does, as far as the tests need it.
//! Never: part of the product.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_protocol::messages::{
    api_versions, fetch, find_coordinator, list_offsets, metadata, offset_commit, offset_fetch,
};
use millstream_protocol::{
    ApiKey, Compression, ControlMarker, Decoder, ErrorCode, Frame, ProducerStamp, RecordBatch,
    RecordBatchBuilder, Request, TopicPartition, Uuid, control_batch, decode_request_header,
    encode_response, patch_prefix,
};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::consumer_coordinator::ConsumerCoordinator;
use super::coordinator::Coordinator;
use super::leaders::Leadership;
use super::replicas::Replicas;
use super::sessions::Sessions;
use crate::transport::{BrokerAddress, FrameConnection, Transport};

/// What happens to one request instead of the ordinary.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// Refused with this code, partition by partition where there are any.
    Code(ErrorCode),
    /// The connection is lost, nothing is done.
    Disconnect,
    /// Done and answered, but later.
    Delay(Duration),
}

/// One request as it came.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) api: ApiKey,
    pub(super) node: i32,
    /// Of a Fetch.
    pub(super) rack: String,
    /// Partitions and offsets, of a Fetch: those of its session included.
    pub(super) fetched: Vec<(TopicPartition, i64)>,
    /// Session and epoch, of a Fetch.
    pub(super) session: (i32, i32),
    /// How many partitions a Fetch names.
    pub(super) named: usize,
    /// Size of the request.
    pub(super) bytes: usize,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) batches: Vec<RecordBatch>,
    pub(super) start: i64,
    pub(super) end: i64,
    /// The last stable offset, where it is not the end.
    pub(super) stable: Option<i64>,
    /// (producer, first offset, offset of the marker).
    aborted: Vec<(i64, i64, i64)>,
    pub(super) committed: Option<i64>,
    /// The epoch that was committed with it.
    pub(super) committed_epoch: Option<i32>,
    /// An open transaction is about to commit an offset here.
    pub(super) undecided: bool,
    pub(super) leadership: Leadership,
    pub(super) replicas: Replicas,
}

impl Log {
    pub(super) fn push(&mut self, batch: Bytes) -> i64 {
        let mut bytes = batch.to_vec();
        let mut prefix: [u8; 17] = bytes[..17].try_into().unwrap();
        patch_prefix(&mut prefix, self.end, self.leadership.epoch());
        bytes[..17].copy_from_slice(&prefix);
        let batch = RecordBatch::parse(Bytes::from(bytes)).unwrap();
        let base = self.end;
        self.end = batch.next_offset();
        self.batches.push(batch);
        base
    }

    /// Appends one batch with these values.
    pub(super) fn write(&mut self, values: &[&str]) -> i64 {
        self.write_as(values, ProducerStamp::NONE)
    }

    fn write_as(&mut self, values: &[&str], stamp: ProducerStamp) -> i64 {
        let mut builder = RecordBatchBuilder::new(Compression::None);
        for value in values {
            builder.append(7, Some(b"k"), Some(value.as_bytes()), &[]);
        }
        self.push(builder.finish(stamp).unwrap())
    }

    /// Appends a transaction of one batch and its marker.
    pub(super) fn transaction(&mut self, producer_id: i64, values: &[&str], commit: bool) {
        let stamp = ProducerStamp {
            producer_id,
            producer_epoch: 0,
            base_sequence: 0,
            transactional: true,
        };
        let first = self.write_as(values, stamp);
        let marker = self.push(control_batch(
            ControlMarker::new(commit, 0),
            producer_id,
            0,
            0,
        ));
        if !commit {
            self.aborted.push((producer_id, first, marker));
        }
    }

    /// The last batch as it is.
    pub(super) fn take_last(&self) -> Bytes {
        self.batches.last().unwrap().bytes().clone()
    }

    fn read(&self, from: i64, isolation: i8, max_bytes: usize) -> Bytes {
        let limit = if isolation == 1 {
            self.stable.unwrap_or(self.end)
        } else {
            self.end
        };
        let mut out = Vec::new();
        for batch in &self.batches {
            if batch.last_offset() >= from && batch.base_offset() < limit {
                if !out.is_empty() && out.len() + batch.size_bytes() > max_bytes {
                    break;
                }
                out.extend_from_slice(batch.bytes());
            }
        }
        Bytes::from(out)
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) topics: BTreeMap<String, Vec<Log>>,
    faults: BTreeMap<ApiKey, VecDeque<Fault>>,
    pub(super) seen: Vec<Seen>,
    pub(super) commits: Vec<offset_commit::OffsetCommitRequest>,
    pub(super) sessions: Sessions,
    /// Nodes that do not run.
    pub(super) away: BTreeSet<i32>,
    /// How often nodes have moved to another port.
    pub(super) moves: BTreeMap<i32, i32>,
}

/// The broker. Clones are the same one.
#[derive(Clone, Debug)]
pub(super) struct FakeBroker {
    state: Arc<Mutex<State>>,
    pub(super) coordinator: Arc<Mutex<Coordinator>>,
    pub(super) consumer_coordinator: Arc<Mutex<ConsumerCoordinator>>,
    pub(super) changed: Arc<Notify>,
    refuses: Arc<AtomicBool>,
}

pub(super) fn id_of(topic: &str) -> Uuid {
    let mut id = [1; 16];
    for (slot, byte) in id.iter_mut().zip(topic.bytes()) {
        *slot = byte;
    }
    Uuid(id)
}

impl FakeBroker {
    pub(super) fn new(topics: &[(&str, usize)]) -> Self {
        let topics = topics
            .iter()
            .map(|(name, count)| {
                (
                    (*name).to_owned(),
                    (0..*count).map(|_| Log::default()).collect(),
                )
            })
            .collect();
        FakeBroker {
            state: Arc::new(Mutex::new(State {
                topics,
                ..Default::default()
            })),
            coordinator: Arc::default(),
            consumer_coordinator: Arc::default(),
            changed: Arc::default(),
            refuses: Arc::default(),
        }
    }

    pub(super) fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.clone())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Changes one partition and wakes long polls.
    pub(super) fn with<T>(
        &self,
        topic: &str,
        partition: usize,
        change: impl FnOnce(&mut Log) -> T,
    ) -> T {
        let result = change(&mut self.lock().topics.get_mut(topic).unwrap()[partition]);
        self.changed.notify_waiters();
        result
    }

    pub(super) fn fault(&self, api: ApiKey, fault: Fault) {
        self.lock().faults.entry(api).or_default().push_back(fault);
    }

    pub(super) fn forget_faults(&self) {
        self.lock().faults.clear();
    }

    /// How many requests of an API came so far.
    pub(super) fn count(&self, api: ApiKey) -> usize {
        self.lock()
            .seen
            .iter()
            .filter(|seen| seen.api == api)
            .count()
    }

    async fn serve(
        self,
        node: i32,
        mut requests: mpsc::Receiver<Frame>,
        answers: mpsc::Sender<Frame>,
    ) {
        let moves = self.lock().moves_of(node);
        loop {
            let frame = tokio::select! {
                biased;
                () = self.gone(node, moves) => return,
                frame = requests.recv() => match frame {
                    Some(frame) => frame,
                    None => return,
                },
            };
            let bytes = frame.segments().iter().map(Bytes::len).sum();
            let mut decoder = Decoder::new(frame);
            let header = decode_request_header(&mut decoder).unwrap();
            let api = ApiKey::from_i16(header.api_key).unwrap();
            let fault = {
                let mut state = self.lock();
                state.seen.push(Seen {
                    api,
                    node,
                    bytes,
                    rack: String::new(),
                    fetched: Vec::new(),
                    session: (0, -1),
                    named: 0,
                });
                state.faults.get_mut(&api).and_then(VecDeque::pop_front)
            };
            let mut code = None;
            match fault {
                Some(Fault::Disconnect) => return,
                Some(Fault::Delay(delay)) => tokio::time::sleep(delay).await,
                Some(Fault::Code(forced)) => code = Some(forced),
                None => {}
            }
            let call = Call {
                api,
                version: header.api_version,
                id: header.correlation_id,
                code,
                node,
            };
            // A lost connection ends the wait of whatever is asked on it.
            let answer = tokio::select! {
                biased;
                () = self.gone(node, moves) => return,
                answer = self.answer(call, &mut decoder) => answer,
                () = answers.closed() => return,
            };
            if answers.send(answer).await.is_err() {
                return;
            }
        }
    }

    async fn answer(&self, call: Call, decoder: &mut Decoder) -> Frame {
        let code = call.code;
        match call.api {
            ApiKey::ApiVersions => call.reply(&api_versions()),
            ApiKey::Metadata => call.reply(&self.metadata(call.read(decoder), code)),
            ApiKey::FindCoordinator => call.reply(&coordinator(&call.read(decoder), code)),
            ApiKey::Fetch => call.reply(&self.fetch(call.read(decoder), call).await),
            ApiKey::ListOffsets => call.reply(&self.list_offsets(call.read(decoder), call)),
            ApiKey::OffsetForLeaderEpoch => {
                call.reply(&self.ends_of_epochs(call.read(decoder), call.node, code))
            }
            ApiKey::OffsetCommit => call.reply(&self.offset_commit(call.read(decoder), code)),
            ApiKey::OffsetFetch => call.reply(&self.offset_fetch(&call.read(decoder), code)),
            ApiKey::JoinGroup => call.reply(&self.join(call.read(decoder), code).await),
            ApiKey::SyncGroup => call.reply(&self.sync(call.read(decoder), code).await),
            ApiKey::Heartbeat => call.reply(&self.heartbeat(&call.read(decoder), code)),
            ApiKey::ConsumerGroupHeartbeat => call.reply(&self.beat(call.read(decoder), code)),
            ApiKey::LeaveGroup => call.reply(&self.leave(&call.read(decoder), code)),
            other => panic!("the fake broker does not serve {other:?}"),
        }
    }

    fn metadata(
        &self,
        request: metadata::MetadataRequest,
        code: Option<ErrorCode>,
    ) -> metadata::MetadataResponse {
        let state = self.lock();
        let topics = request.topics.unwrap_or_default().into_iter().map(|topic| {
            let name = topic
                .name
                .unwrap_or_else(|| state.name_by_id(topic.topic_id));
            let known = state.topics.get(&name).filter(|_| code.is_none());
            let partitions =
                (0..known.map_or(0, Vec::len)).map(|index| metadata::MetadataResponsePartition {
                    partition_index: index as i32,
                    leader_id: known.map_or(1, |logs| logs[index].leadership.node()),
                    leader_epoch: known.map_or(0, |logs| logs[index].leadership.epoch()),
                    replica_nodes: known.map_or_else(Vec::new, |logs| logs[index].holders()),
                    offline_replicas: state.away.iter().copied().collect(),
                    ..Default::default()
                });
            let unknown = code.unwrap_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
            metadata::MetadataResponseTopic {
                error_code: if known.is_some() {
                    ErrorCode::NONE
                } else {
                    unknown
                },
                topic_id: id_of(&name),
                name: Some(name),
                partitions: partitions.collect(),
                ..Default::default()
            }
        });
        metadata::MetadataResponse {
            topics: topics.collect(),
            brokers: state
                .nodes()
                .into_iter()
                .map(|node_id| metadata::MetadataResponseBroker {
                    node_id,
                    host: "fake".into(),
                    port: state.port_of(node_id),
                    ..Default::default()
                })
                .collect(),
            controller_id: 1,
            ..Default::default()
        }
    }

    async fn fetch(&self, request: fetch::FetchRequest, call: Call) -> fetch::FetchResponse {
        let deadline = Instant::now() + Duration::from_millis(request.max_wait_ms as u64);
        let (session, named) = ((request.session_id, request.session_epoch), &request.topics);
        let named = named.iter().map(|topic| topic.partitions.len()).sum();
        let resolved = self.lock().sessions.resolve(&request);
        let continued = match resolved {
            Ok(continued) => continued,
            Err(error_code) => {
                self.note_fetch(&request, session, named);
                return fetch::FetchResponse {
                    error_code,
                    ..Default::default()
                };
            }
        };
        let request = fetch::FetchRequest {
            topics: continued.topics.clone(),
            ..request
        };
        self.note_fetch(&request, session, named);
        loop {
            let changed = self.changed.notified();
            let (response, ready) = self.read(&request, call);
            if ready || Instant::now() >= deadline {
                return self.lock().sessions.thin(&continued, response);
            }
            let _ = tokio::time::timeout_at(deadline, changed).await;
        }
    }

    fn note_fetch(&self, request: &fetch::FetchRequest, session: (i32, i32), named: usize) {
        let mut state = self.lock();
        let fetched = request.topics.iter().flat_map(|topic| {
            let name = state.name_of(topic);
            topic.partitions.iter().map(move |p| {
                (
                    TopicPartition::new(name.as_str(), p.partition),
                    p.fetch_offset,
                )
            })
        });
        let fetched = fetched.collect();
        if let Some(seen) = state
            .seen
            .iter_mut()
            .rev()
            .find(|seen| seen.api == ApiKey::Fetch)
        {
            seen.fetched = fetched;
            (seen.session, seen.named) = (session, named);
            seen.rack.clone_from(&request.rack_id);
        }
    }

    fn read(&self, request: &fetch::FetchRequest, call: Call) -> (fetch::FetchResponse, bool) {
        let (state, code) = (self.lock(), call.code);
        let mut ready = false;
        let topics = request.topics.iter().map(|topic| {
            let name = state.name_of(topic);
            let logs = state.topics.get(&name).unwrap();
            let partitions =
                topic.partitions.iter().map(|p| {
                    let log = &logs[p.partition as usize];
                    let stable = log.stable.unwrap_or(log.end);
                    let mut part = fetch::PartitionData {
                        partition_index: p.partition,
                        high_watermark: log.end,
                        last_stable_offset: stable,
                        log_start_offset: log.start,
                        ..Default::default()
                    };
                    let end = log.end_at(call.node);
                    let outside = p.fetch_offset < log.start || p.fetch_offset > end;
                    let refused = log.refuses_fetch(call.node, p.current_leader_epoch);
                    let outside = outside.then_some(ErrorCode::OFFSET_OUT_OF_RANGE);
                    if let Some(code) = code.or(refused).or(outside) {
                        part.error_code = code;
                        part.current_leader.leader_id = log.leadership.node();
                        part.current_leader.leader_epoch = log.leadership.epoch();
                        ready = true;
                        return part;
                    }
                    if let Some(near) = log.names(call.node, &request.rack_id) {
                        part.preferred_read_replica = near;
                        ready = true;
                        return part;
                    }
                    let max = p.partition_max_bytes as usize;
                    let records = log.read(p.fetch_offset, request.isolation_level, max);
                    ready |= !records.is_empty();
                    let overlaps = |a: &&(i64, i64, i64)| a.2 >= p.fetch_offset && a.1 < stable;
                    let aborted = log.aborted.iter().filter(overlaps).rev().map(|a| {
                        fetch::AbortedTransaction {
                            producer_id: a.0,
                            first_offset: a.1,
                        }
                    });
                    part.aborted_transactions = Some(aborted.collect());
                    part.records = Some(records);
                    part
                });
            fetch::FetchableTopicResponse {
                topic: topic.topic.clone(),
                topic_id: topic.topic_id,
                partitions: partitions.collect(),
            }
        });
        let responses = topics.collect();
        (
            fetch::FetchResponse {
                responses,
                node_endpoints: state.endpoints(),
                ..Default::default()
            },
            ready,
        )
    }

    fn list_offsets(
        &self,
        request: list_offsets::ListOffsetsRequest,
        call: Call,
    ) -> list_offsets::ListOffsetsResponse {
        let state = self.lock();
        let topics = request.topics.into_iter().map(|topic| {
            let logs = state.topics.get(&topic.name).unwrap();
            let partitions = topic.partitions.into_iter().map(|p| {
                let log = &logs[p.partition_index as usize];
                let refused = log.leadership.refuses(call.node, p.current_leader_epoch);
                let code = call.code.or(refused);
                let offset = match p.timestamp {
                    -2 => log.start,
                    -1 if request.isolation_level == 1 => log.stable.unwrap_or(log.end),
                    -1 => log.end,
                    // All test records are from millisecond 7.
                    ms if ms <= 7 && log.end > log.start => log.start,
                    _ => -1,
                };
                list_offsets::ListOffsetsPartitionResponse {
                    partition_index: p.partition_index,
                    error_code: code.unwrap_or(ErrorCode::NONE),
                    timestamp: if p.timestamp >= 0 && offset >= 0 {
                        7
                    } else {
                        -1
                    },
                    offset: if code.is_some() { -1 } else { offset },
                    ..Default::default()
                }
            });
            list_offsets::ListOffsetsTopicResponse {
                name: topic.name,
                partitions: partitions.collect(),
            }
        });
        list_offsets::ListOffsetsResponse {
            topics: topics.collect(),
            ..Default::default()
        }
    }

    fn offset_commit(
        &self,
        request: offset_commit::OffsetCommitRequest,
        code: Option<ErrorCode>,
    ) -> offset_commit::OffsetCommitResponse {
        let (epoch, member) = (request.generation_id_or_member_epoch, &request.member_id);
        let refused = match self.consumers().refuses(epoch, member) {
            Some(refused) => refused,
            None => self.group().refuses_commit(epoch, member),
        };
        let code = code.or(refused).unwrap_or(ErrorCode::NONE);
        let mut state = self.lock();
        state.commits.push(request.clone());
        let topics = request.topics.into_iter().map(|topic| {
            let logs = state.topics.get_mut(&topic.name).unwrap();
            let partitions = topic.partitions.into_iter().map(|p| {
                if code.is_ok() {
                    let log = &mut logs[p.partition_index as usize];
                    log.committed = Some(p.committed_offset);
                    log.committed_epoch = Some(p.committed_leader_epoch).filter(|e| *e >= 0);
                }
                offset_commit::OffsetCommitResponsePartition {
                    partition_index: p.partition_index,
                    error_code: code,
                }
            });
            offset_commit::OffsetCommitResponseTopic {
                name: topic.name.clone(),
                partitions: partitions.collect(),
                ..Default::default()
            }
        });
        let topics = topics.collect();
        offset_commit::OffsetCommitResponse {
            topics,
            ..Default::default()
        }
    }

    fn offset_fetch(
        &self,
        request: &offset_fetch::OffsetFetchRequest,
        code: Option<ErrorCode>,
    ) -> offset_fetch::OffsetFetchResponse {
        assert!(request.require_stable);
        let state = self.lock();
        let group = &request.groups[0];
        let code = code.or(self.consumers().refuses_fetch(group));
        let topics = group.topics.iter().flatten().map(|topic| {
            let partitions = topic.partition_indexes.iter().map(|index| {
                let log = &state.topics.get(&topic.name).unwrap()[*index as usize];
                let undecided = log.undecided.then_some(ErrorCode::UNSTABLE_OFFSET_COMMIT);
                offset_fetch::OffsetFetchResponsePartitions {
                    partition_index: *index,
                    committed_offset: log.committed.unwrap_or(-1),
                    committed_leader_epoch: log.committed_epoch.unwrap_or(-1),
                    error_code: undecided.unwrap_or(ErrorCode::NONE),
                    ..Default::default()
                }
            });
            offset_fetch::OffsetFetchResponseTopics {
                name: topic.name.clone(),
                partitions: partitions.collect(),
                ..Default::default()
            }
        });
        let group = offset_fetch::OffsetFetchResponseGroup {
            group_id: group.group_id.clone(),
            topics: topics.collect(),
            error_code: code.unwrap_or(ErrorCode::NONE),
        };
        offset_fetch::OffsetFetchResponse {
            groups: vec![group],
            ..Default::default()
        }
    }
}

impl State {
    pub(super) fn name_of(&self, topic: &fetch::FetchTopic) -> String {
        if !topic.topic.is_empty() {
            return topic.topic.clone();
        }
        self.name_by_id(topic.topic_id)
    }

    fn name_by_id(&self, topic_id: Uuid) -> String {
        let mut names = self.topics.keys();
        names.find(|name| id_of(name) == topic_id).unwrap().clone()
    }
}

#[derive(Clone, Copy, Debug)]
struct Call {
    api: ApiKey,
    version: i16,
    id: i32,
    code: Option<ErrorCode>,
    node: i32,
}

impl Call {
    fn read<R: Request>(self, decoder: &mut Decoder) -> R {
        R::decode(decoder, self.version).unwrap()
    }

    fn reply<M: millstream_protocol::Message>(self, response: &M) -> Frame {
        encode_response(self.api, self.version, self.id, response).unwrap()
    }
}

fn api_versions() -> api_versions::ApiVersionsResponse {
    let api_keys = ApiKey::ALL.iter().map(|api| api_versions::ApiVersion {
        api_key: *api as i16,
        min_version: *api.versions().start(),
        max_version: *api.versions().end(),
    });
    api_versions::ApiVersionsResponse {
        api_keys: api_keys.collect(),
        ..Default::default()
    }
}

fn coordinator(
    request: &find_coordinator::FindCoordinatorRequest,
    code: Option<ErrorCode>,
) -> find_coordinator::FindCoordinatorResponse {
    let found = request
        .coordinator_keys
        .iter()
        .map(|key| find_coordinator::Coordinator {
            key: key.clone(),
            node_id: 1,
            host: "fake".into(),
            port: 9092,
            error_code: code.unwrap_or(ErrorCode::NONE),
            ..Default::default()
        });
    find_coordinator::FindCoordinatorResponse {
        coordinators: found.collect(),
        ..Default::default()
    }
}

#[async_trait]
impl Transport for FakeBroker {
    async fn connect(&self, address: &BrokerAddress) -> io::Result<FrameConnection> {
        let node = (i32::from(address.port) - 9091) % 100;
        let there = {
            let state = self.lock();
            state.port_of(node) == i32::from(address.port) && !state.away.contains(&node)
        };
        if self.refuses.load(Ordering::Relaxed) || !there {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (outgoing, requests) = mpsc::channel(16);
        let (answers, incoming) = mpsc::channel(16);
        tokio::spawn(self.clone().serve(node, requests, answers));
        Ok(FrameConnection::new(outgoing, incoming))
    }

    fn bootstrap(&self) -> Vec<BrokerAddress> {
        vec![BrokerAddress::new("fake", 9092)]
    }
}
