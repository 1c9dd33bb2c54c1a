//! A broker for tests whose answers are scripted: a small honest log behind faults on demand.
//!
//! Invariants: without a script it behaves as a single healthy Kafka broker does; a step of the
//! script is used for exactly one request of its API.
//! Never: part of the product.

mod partition;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_protocol::messages::{
    add_offsets_to_txn, add_partitions_to_txn, api_versions, describe_transactions, end_txn,
    find_coordinator, init_producer_id, metadata, produce, txn_offset_commit,
};
use millstream_protocol::{
    ApiKey, Decoder, ErrorCode, Frame, RecordBatch, Request, Uuid, decode_request_header,
    encode_response,
};
use tokio::sync::mpsc;

pub(crate) use self::partition::Partition;
use crate::security::SecurityError;
use crate::transport::{BrokerAddress, FrameConnection, Transport};

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    /// As without a script.
    Pass,
    /// Answered with this code, nothing done.
    Error(ErrorCode),
    /// Done, later, and a Produce is answered with this code all the same.
    DoneBut(Duration, ErrorCode),
    /// Done and answered, but later; what follows on the connection waits.
    Delay(Duration),
    /// The connection is lost; nothing done.
    Disconnect,
    /// Done, then the connection is lost: a lost answer.
    LoseAnswer,
    /// Nothing done, never answered.
    Swallow,
    /// Done, never answered.
    Mute,
}

/// One request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) api: ApiKey,
    pub(crate) version: i16,
    /// The batches of a Produce request, by topic and partition.
    pub(crate) batches: Vec<(String, i32, Bytes)>,
    /// The topics of a Metadata request.
    pub(crate) topics: Vec<String>,
    /// EndTxn only.
    pub(crate) committed: Option<bool>,
    /// Producer id and epoch where the request has them.
    pub(crate) producer: Option<(i64, i16)>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) topics: BTreeMap<String, Vec<Partition>>,
    pub(crate) script: BTreeMap<ApiKey, VecDeque<Step>>,
    /// What a request meets when its API's script is used up.
    pub(crate) otherwise: BTreeMap<ApiKey, Step>,
    pub(crate) received: Vec<Received>,
    pub(crate) transaction_version: i16,
    pub(crate) max_message_bytes: usize,
    pub(crate) refuse_connections: bool,
    /// What every attempt to connect ends with, as one with TLS does.
    pub(crate) distrust: Option<SecurityError>,
    /// Counts how often all topics were made again.
    generation: u8,
    /// Node and epoch that a refused batch is told to go to.
    pub(crate) moved_to: Option<(i32, i32)>,
    /// Ports that were connected to.
    pub(crate) ports: Vec<u16>,
    pub(crate) connections: usize,
    pub(crate) epochs: BTreeMap<String, (i64, i16)>,
    /// Whether a transactional id has an open transaction.
    pub(crate) ongoing: BTreeMap<String, bool>,
    /// Offsets in commits: group, topic, partition, offset.
    pub(crate) offsets: Vec<(String, String, i32, i64)>,
    /// Outcomes of ended transactions, in order.
    pub(crate) ended: Vec<(i64, i16, bool)>,
    next_producer_id: i64,
    most_in_flight: usize,
    /// What the present Produce is answered with, done as it is.
    done_but: Option<ErrorCode>,
}

/// The broker. Clones are the same broker.
#[derive(Clone, Debug)]
pub(crate) struct ScriptedBroker {
    state: Arc<Mutex<State>>,
    /// Queued frames a direction; small ones exercise backpressure.
    capacity: usize,
}

impl ScriptedBroker {
    pub(crate) fn new(topics: &[(&str, usize)]) -> Self {
        let topics = topics.iter().map(|(name, count)| {
            (
                (*name).to_owned(),
                (0..*count).map(|_| Partition::default()).collect(),
            )
        });
        let state = State {
            topics: topics.collect(),
            script: BTreeMap::new(),
            otherwise: BTreeMap::new(),
            received: Vec::new(),
            transaction_version: 2,
            max_message_bytes: 1 << 20,
            refuse_connections: false,
            distrust: None,
            generation: 0,
            moved_to: None,
            ports: Vec::new(),
            connections: 0,
            epochs: BTreeMap::new(),
            ongoing: BTreeMap::new(),
            offsets: Vec::new(),
            ended: Vec::new(),
            next_producer_id: 1000,
            most_in_flight: 0,
            done_but: None,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            capacity: 64,
        }
    }

    pub(crate) fn with_capacity(mut self, frames: usize) -> Self {
        self.capacity = frames;
        self
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn transport(&self) -> Arc<dyn Transport> {
        Arc::new(self.clone())
    }

    /// The next requests of `api` meet these steps, one each.
    pub(crate) fn script(&self, api: ApiKey, steps: &[Step]) {
        self.lock().script.entry(api).or_default().extend(steps);
    }

    /// Every request of `api` without a step of its own meets this one.
    pub(crate) fn always(&self, api: ApiKey, step: Step) {
        self.lock().otherwise.insert(api, step);
    }

    pub(crate) fn partition_errors(&self, topic: &str, partition: usize, codes: &[ErrorCode]) {
        self.lock().topics.get_mut(topic).unwrap()[partition]
            .errors
            .extend(codes);
    }

    /// The topic is deleted and made again with this number of partitions.
    pub(crate) fn make_again(&self, topic: &str, count: usize) {
        let mut state = self.lock();
        let partitions = (0..count).map(|_| Partition::default()).collect();
        state.topics.insert(topic.to_owned(), partitions);
        state.generation += 1;
    }

    pub(crate) fn received(&self, api: ApiKey) -> Vec<Received> {
        self.lock()
            .received
            .iter()
            .filter(|request| request.api == api)
            .cloned()
            .collect()
    }

    /// How many Produce requests were waiting for their answer at most.
    pub(crate) fn most_in_flight(&self) -> usize {
        self.lock().most_in_flight
    }

    /// Values in the log of a partition, as text.
    pub(crate) fn values(&self, topic: &str, partition: usize) -> Vec<String> {
        let state = self.lock();
        let batches = &state.topics[topic][partition].batches;
        let records = batches.iter().flat_map(|bytes| {
            let batch = RecordBatch::parse(bytes.clone()).unwrap();
            let records: Vec<_> = batch
                .records(1 << 26)
                .unwrap()
                .map(|r| r.unwrap())
                .collect();
            records
        });
        records
            .map(|record| String::from_utf8(record.value.unwrap_or_default().to_vec()).unwrap())
            .collect()
    }
}

#[async_trait]
impl Transport for ScriptedBroker {
    async fn connect(&self, address: &BrokerAddress) -> io::Result<FrameConnection> {
        {
            let mut state = self.lock();
            if state.refuse_connections {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            if let Some(error) = state.distrust.clone() {
                return Err(io::Error::other(error));
            }
            state.connections += 1;
            state.ports.push(address.port);
        }
        let (outgoing, requests) = mpsc::channel(self.capacity);
        let (answers, incoming) = mpsc::channel(self.capacity);
        tokio::spawn(self.clone().serve(requests, answers));
        Ok(FrameConnection::new(outgoing, incoming))
    }

    fn bootstrap(&self) -> Vec<BrokerAddress> {
        vec![BrokerAddress::new("scripted", 9092)]
    }
}

impl ScriptedBroker {
    async fn serve(self, mut requests: mpsc::Receiver<Frame>, answers: mpsc::Sender<Frame>) {
        while let Some(frame) = requests.recv().await {
            let mut decoder = Decoder::new(frame);
            let header = decode_request_header(&mut decoder).unwrap();
            let api = ApiKey::from_i16(header.api_key).unwrap();
            let step = {
                let mut state = self.lock();
                let queued = 1 + requests.len();
                if api == ApiKey::Produce {
                    state.most_in_flight = state.most_in_flight.max(queued);
                }
                let scripted = state.script.get_mut(&api).and_then(VecDeque::pop_front);
                let otherwise = state.otherwise.get(&api).copied();
                scripted.or(otherwise).unwrap_or(Step::Pass)
            };
            let forced = match step {
                Step::Error(code) => Some(code),
                Step::Disconnect => Some(ErrorCode::NETWORK_EXCEPTION),
                Step::Swallow => Some(ErrorCode::REQUEST_TIMED_OUT),
                _ => None,
            };
            if let Step::Delay(delay) | Step::DoneBut(delay, _) = step {
                tokio::time::sleep(delay).await;
            }
            let answer = {
                let mut state = self.lock();
                state.done_but = match step {
                    Step::DoneBut(_, code) => Some(code),
                    _ => None,
                };
                state.received.push(Received {
                    api,
                    version: header.api_version,
                    batches: Vec::new(),
                    topics: Vec::new(),
                    committed: None,
                    producer: None,
                });
                state.handle(
                    api,
                    header.api_version,
                    header.correlation_id,
                    &mut decoder,
                    forced,
                )
            };
            match step {
                Step::Disconnect | Step::LoseAnswer => return,
                Step::Swallow | Step::Mute => {}
                _ => {
                    if let Some(answer) = answer
                        && answers.send(answer).await.is_err()
                    {
                        return;
                    }
                }
            }
        }
    }
}

fn read<R: Request>(decoder: &mut Decoder, version: i16) -> R {
    R::decode(decoder, version).unwrap()
}

impl State {
    fn note(&mut self, change: impl FnOnce(&mut Received)) {
        change(self.received.last_mut().unwrap());
    }

    fn handle(
        &mut self,
        api: ApiKey,
        version: i16,
        correlation_id: i32,
        decoder: &mut Decoder,
        forced: Option<ErrorCode>,
    ) -> Option<Frame> {
        macro_rules! answer {
            ($handler:ident) => {{
                let request = read(decoder, version);
                let response = self.$handler(version, request, forced);
                Some(encode_response(api, version, correlation_id, &response).unwrap())
            }};
        }
        match api {
            ApiKey::ApiVersions => answer!(api_versions),
            ApiKey::Metadata => answer!(metadata),
            ApiKey::FindCoordinator => answer!(find_coordinator),
            ApiKey::InitProducerId => answer!(init_producer_id),
            ApiKey::Produce => {
                let request: produce::ProduceRequest = read(decoder, version);
                let acks = request.acks;
                let response = self.produce(version, request, forced);
                (acks != 0)
                    .then(|| encode_response(api, version, correlation_id, &response).unwrap())
            }
            ApiKey::EndTxn => answer!(end_txn),
            ApiKey::TxnOffsetCommit => answer!(txn_offset_commit),
            ApiKey::AddPartitionsToTxn => answer!(add_partitions),
            ApiKey::AddOffsetsToTxn => answer!(add_offsets),
            ApiKey::DescribeTransactions => answer!(describe_transactions),
            other => panic!("the scripted broker does not serve {other:?}"),
        }
    }

    fn api_versions(
        &mut self,
        _version: i16,
        _request: api_versions::ApiVersionsRequest,
        _forced: Option<ErrorCode>,
    ) -> api_versions::ApiVersionsResponse {
        let api_keys = ApiKey::ALL.iter().map(|api| api_versions::ApiVersion {
            api_key: *api as i16,
            min_version: *api.versions().start(),
            max_version: *api.versions().end(),
        });
        api_versions::ApiVersionsResponse {
            api_keys: api_keys.collect(),
            finalized_features: vec![api_versions::FinalizedFeatureKey {
                name: "transaction.version".into(),
                max_version_level: self.transaction_version,
                min_version_level: 0,
            }],
            finalized_features_epoch: 1,
            ..Default::default()
        }
    }

    fn metadata(
        &mut self,
        _version: i16,
        request: metadata::MetadataRequest,
        forced: Option<ErrorCode>,
    ) -> metadata::MetadataResponse {
        let names: Vec<String> = match request.topics {
            Some(topics) => topics.into_iter().filter_map(|topic| topic.name).collect(),
            None => self.topics.keys().cloned().collect(),
        };
        self.note(|r| r.topics.clone_from(&names));
        let topics = names.into_iter().map(|name| {
            let known = self.topics.get(&name).filter(|_| forced.is_none());
            let count = known.map_or(0, Vec::len);
            let error_code = match known {
                Some(_) => ErrorCode::NONE,
                None => forced.unwrap_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
            };
            metadata::MetadataResponseTopic {
                error_code,
                topic_id: topic_id(&name, self.generation),
                name: Some(name),
                partitions: (0..i32::try_from(count).unwrap())
                    .map(|partition_index| metadata::MetadataResponsePartition {
                        partition_index,
                        leader_id: 1,
                        leader_epoch: 0,
                        ..Default::default()
                    })
                    .collect(),
                ..Default::default()
            }
        });
        let nodes = [1].into_iter().chain(self.moved_to.map(|(node, _)| node));
        let broker = |node_id| metadata::MetadataResponseBroker {
            node_id,
            host: "scripted".into(),
            port: 9091 + node_id,
            ..Default::default()
        };
        metadata::MetadataResponse {
            topics: topics.collect(),
            brokers: nodes.map(broker).collect(),
            cluster_id: Some("scripted".into()),
            controller_id: 1,
            ..Default::default()
        }
    }

    fn find_coordinator(
        &mut self,
        _version: i16,
        request: find_coordinator::FindCoordinatorRequest,
        forced: Option<ErrorCode>,
    ) -> find_coordinator::FindCoordinatorResponse {
        let coordinators =
            request
                .coordinator_keys
                .into_iter()
                .map(|key| find_coordinator::Coordinator {
                    key,
                    node_id: 1,
                    host: "scripted".into(),
                    port: 9092,
                    error_code: forced.unwrap_or(ErrorCode::NONE),
                    ..Default::default()
                });
        find_coordinator::FindCoordinatorResponse {
            coordinators: coordinators.collect(),
            ..Default::default()
        }
    }

    fn init_producer_id(
        &mut self,
        _version: i16,
        request: init_producer_id::InitProducerIdRequest,
        forced: Option<ErrorCode>,
    ) -> init_producer_id::InitProducerIdResponse {
        self.note(|r| r.producer = Some((request.producer_id, request.producer_epoch)));
        if let Some(error_code) = forced {
            return init_producer_id::InitProducerIdResponse {
                error_code,
                ..Default::default()
            };
        }
        let fresh = (self.next_producer_id, 0);
        let (producer_id, producer_epoch) = match request.transactional_id {
            None => {
                self.next_producer_id += 1;
                fresh
            }
            Some(id) => {
                let entry = self.epochs.entry(id.clone()).or_insert((fresh.0, -1));
                if entry.1 < 0 {
                    self.next_producer_id += 1;
                }
                let known = entry.1 >= 0;
                if request.producer_id >= 0
                    && known
                    && (request.producer_id, request.producer_epoch) != *entry
                {
                    return init_producer_id::InitProducerIdResponse {
                        error_code: ErrorCode::PRODUCER_FENCED,
                        ..Default::default()
                    };
                }
                entry.1 += 1;
                if self.ongoing.insert(id, false) == Some(true) && known {
                    let (pid, epoch) = *entry;
                    self.ended.push((pid, epoch, false));
                    if self.transaction_version < 2 {
                        // The epoch is one that nobody gets to know, not even who asked.
                        return init_producer_id::InitProducerIdResponse {
                            error_code: ErrorCode::CONCURRENT_TRANSACTIONS,
                            ..Default::default()
                        };
                    }
                }
                *entry
            }
        };
        init_producer_id::InitProducerIdResponse {
            producer_id,
            producer_epoch,
            ..Default::default()
        }
    }

    fn produce(
        &mut self,
        version: i16,
        request: produce::ProduceRequest,
        forced: Option<ErrorCode>,
    ) -> produce::ProduceResponse {
        let mut responses = Vec::new();
        for topic in request.topic_data {
            let name = if version >= 13 {
                let id = |name: &&String| topic_id(name, self.generation) == topic.topic_id;
                self.topics.keys().find(id).cloned().unwrap_or_default()
            } else {
                topic.name.clone()
            };
            let mut partition_responses = Vec::new();
            for data in topic.partition_data {
                let bytes = data.records.unwrap();
                self.note(|r| r.batches.push((name.clone(), data.index, bytes.clone())));
                if let Some(id) = &request.transactional_id
                    && forced.is_none()
                {
                    self.ongoing.insert(id.clone(), true);
                }
                let limit = self.max_message_bytes;
                let index = usize::try_from(data.index).unwrap();
                let partition = self
                    .topics
                    .get_mut(&name)
                    .and_then(|all| all.get_mut(index));
                let outcome = match (forced, partition) {
                    (Some(code), _) => Err(code),
                    (None, None) => Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
                    (None, Some(partition)) => partition.append(bytes, limit),
                };
                let outcome = self.done_but.map_or(outcome, Err);
                let leader = self
                    .moved_to
                    .filter(|_| outcome.is_err())
                    .unwrap_or((-1, -1));
                partition_responses.push(produce::PartitionProduceResponse {
                    index: data.index,
                    error_code: outcome.err().unwrap_or(ErrorCode::NONE),
                    base_offset: outcome.unwrap_or(-1),
                    current_leader: produce::LeaderIdAndEpoch {
                        leader_id: leader.0,
                        leader_epoch: leader.1,
                    },
                    ..Default::default()
                });
            }
            responses.push(produce::TopicProduceResponse {
                name: topic.name,
                topic_id: topic.topic_id,
                partition_responses,
            });
        }
        let endpoint = |(node_id, _)| produce::NodeEndpoint {
            node_id,
            host: "scripted".into(),
            port: 9091 + node_id,
            rack: None,
        };
        produce::ProduceResponse {
            responses,
            node_endpoints: self.moved_to.map(endpoint).into_iter().collect(),
            ..Default::default()
        }
    }

    /// As a coordinator does with an id that was idle for too long.
    pub(crate) fn forget_id(&mut self, id: &str) {
        self.epochs.remove(id);
        self.ongoing.remove(id);
    }

    fn fenced(&self, id: &str, producer: (i64, i16)) -> bool {
        self.epochs
            .get(id)
            .is_some_and(|current| *current != producer)
    }

    fn end_txn(
        &mut self,
        version: i16,
        request: end_txn::EndTxnRequest,
        forced: Option<ErrorCode>,
    ) -> end_txn::EndTxnResponse {
        let producer = (request.producer_id, request.producer_epoch);
        self.note(|r| {
            r.committed = Some(request.committed);
            r.producer = Some(producer);
        });
        let refuse = |error_code| end_txn::EndTxnResponse {
            error_code,
            ..Default::default()
        };
        if let Some(code) = forced {
            return refuse(code);
        }
        let id = request.transactional_id.clone();
        let Some(current) = self.epochs.get(&id).copied() else {
            return refuse(ErrorCode::INVALID_PRODUCER_ID_MAPPING);
        };
        let answer = |(producer_id, producer_epoch)| end_txn::EndTxnResponse {
            producer_id,
            producer_epoch,
            ..Default::default()
        };
        let retried = (current.0, current.1 - 1) == producer
            && self.ended.last() == Some(&(producer.0, producer.1, request.committed));
        if version >= 5 && retried {
            return answer(current);
        }
        if self.fenced(&id, producer) {
            return refuse(ErrorCode::PRODUCER_FENCED);
        }
        let open = self.ongoing.insert(id.clone(), false).unwrap_or(false);
        if version < 5 && !open {
            let last = self.ended.iter().rev().find(|end| end.0 == producer.0);
            return match last.is_some_and(|end| end.2 == request.committed) {
                true => answer((-1, -1)),
                false => refuse(ErrorCode::INVALID_TXN_STATE),
            };
        }
        if !open && request.committed {
            return refuse(ErrorCode::INVALID_TXN_STATE);
        }
        self.ended.push((producer.0, producer.1, request.committed));
        if version < 5 {
            return answer((-1, -1));
        }
        let next = (producer.0, producer.1 + 1);
        self.epochs.insert(id, next);
        answer(next)
    }

    fn txn_offset_commit(
        &mut self,
        version: i16,
        request: txn_offset_commit::TxnOffsetCommitRequest,
        forced: Option<ErrorCode>,
    ) -> txn_offset_commit::TxnOffsetCommitResponse {
        let producer = (request.producer_id, request.producer_epoch);
        self.note(|r| r.producer = Some(producer));
        let fenced = self.fenced(&request.transactional_id, producer);
        let code = match forced {
            Some(code) => code,
            None if fenced => ErrorCode::INVALID_PRODUCER_EPOCH,
            None => ErrorCode::NONE,
        };
        if code.is_ok() && version >= 5 {
            self.ongoing.insert(request.transactional_id.clone(), true);
        }
        let mut topics = Vec::new();
        for topic in request.topics {
            let mut partitions = Vec::new();
            for partition in topic.partitions {
                if code.is_ok() {
                    let (index, offset) = (partition.partition_index, partition.committed_offset);
                    let group = request.group_id.clone();
                    self.offsets
                        .push((group, topic.name.clone(), index, offset));
                }
                partitions.push(txn_offset_commit::TxnOffsetCommitResponsePartition {
                    partition_index: partition.partition_index,
                    error_code: code,
                });
            }
            topics.push(txn_offset_commit::TxnOffsetCommitResponseTopic {
                name: topic.name,
                partitions,
            });
        }
        txn_offset_commit::TxnOffsetCommitResponse {
            topics,
            ..Default::default()
        }
    }

    fn add_partitions(
        &mut self,
        _version: i16,
        request: add_partitions_to_txn::AddPartitionsToTxnRequest,
        forced: Option<ErrorCode>,
    ) -> add_partitions_to_txn::AddPartitionsToTxnResponse {
        use add_partitions_to_txn as messages;
        let id = request.v3_and_below_transactional_id;
        let producer = (
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
        );
        let code = match forced {
            Some(code) => code,
            None if self.fenced(&id, producer) => ErrorCode::PRODUCER_FENCED,
            None => ErrorCode::NONE,
        };
        if code.is_ok() {
            self.ongoing.insert(id, true);
        }
        let topics = request.v3_and_below_topics.into_iter().map(|topic| {
            messages::AddPartitionsToTxnTopicResult {
                name: topic.name,
                results_by_partition: topic
                    .partitions
                    .into_iter()
                    .map(
                        |partition_index| messages::AddPartitionsToTxnPartitionResult {
                            partition_index,
                            partition_error_code: code,
                        },
                    )
                    .collect(),
            }
        });
        messages::AddPartitionsToTxnResponse {
            results_by_topic_v3_and_below: topics.collect(),
            ..Default::default()
        }
    }

    fn add_offsets(
        &mut self,
        _version: i16,
        request: add_offsets_to_txn::AddOffsetsToTxnRequest,
        forced: Option<ErrorCode>,
    ) -> add_offsets_to_txn::AddOffsetsToTxnResponse {
        let error_code = forced.unwrap_or(ErrorCode::NONE);
        if error_code.is_ok() {
            self.ongoing.insert(request.transactional_id, true);
        }
        add_offsets_to_txn::AddOffsetsToTxnResponse {
            error_code,
            ..Default::default()
        }
    }

    fn describe_transactions(
        &mut self,
        _version: i16,
        request: describe_transactions::DescribeTransactionsRequest,
        forced: Option<ErrorCode>,
    ) -> describe_transactions::DescribeTransactionsResponse {
        let states = request.transactional_ids.into_iter().map(|id| {
            let (producer_id, producer_epoch) = self.epochs.get(&id).copied().unwrap_or((-1, -1));
            describe_transactions::TransactionState {
                error_code: forced.unwrap_or(ErrorCode::NONE),
                transactional_id: id,
                producer_id,
                producer_epoch,
                ..Default::default()
            }
        });
        describe_transactions::DescribeTransactionsResponse {
            transaction_states: states.collect(),
            ..Default::default()
        }
    }
}

fn topic_id(name: &str, generation: u8) -> Uuid {
    let mut id = [7 + generation; 16];
    for (to, from) in id.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    Uuid(id)
}
