//! The `send` stage: takes batches when they are due, stamps them and sends one Produce request
//! per leader, again and again until every batch is decided.
//!
//! Invariants: at most `max.in.flight` Produce requests a broker; batches of a partition are sent
//! in order, and a failed one goes again before later ones; a batch that is sent again has the
//! same bytes.
//! Never: blocks senders of records, or holds the accumulator's lock while it encodes or waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use millstream_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use millstream_protocol::messages::{
    InitProducerIdRequest, InitProducerIdResponse, ProduceRequest, ProduceResponse,
};
use millstream_protocol::{ApiKey, Uuid};
use tokio::sync::{mpsc, oneshot};

use super::config::{Acks, ProducerConfig};
use super::delivery::{BatchState, Outcome};
use super::idempotence::{Lane, Next, Outstanding, ProducerIdentity, Stage};
use super::shared::{Shared, Ticket};
use crate::cluster::{Cluster, Connection, NodeId, millis};
use crate::error::{ClusterError, DeliveryError, RequestError};

/// What callers ask of the sender's task.
#[derive(Debug)]
pub(super) enum Command {
    /// Drop what was not sent and wait until nothing is on its way; then tell.
    Quiesce(oneshot::Sender<()>),
    /// Fail everything and end; then tell.
    Stop(oneshot::Sender<()>),
}

/// A batch inside a request.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) lane: usize,
    pub(super) batch_id: u64,
    pub(super) topic: Arc<str>,
    pub(super) partition: i32,
}

/// Something the sender waited for.
pub(super) enum Event {
    Produced {
        node: NodeId,
        entries: Vec<Entry>,
        topic_ids: BTreeMap<Uuid, Arc<str>>,
        result: Result<ProduceResponse, RequestError>,
    },
    Connected {
        node: NodeId,
        result: Result<(), RequestError>,
    },
    Refreshed(Result<(), ClusterError>),
    Identified(Result<InitProducerIdResponse, ClusterError>),
    PartitionsAdded {
        lanes: Vec<usize>,
        number: u64,
        result: super::transaction::AddResult,
    },
}

#[derive(Debug, Default)]
struct NodeState {
    in_flight: usize,
    connecting: Ask,
}

/// Something that is asked for again after a pause.
#[derive(Debug, Default)]
pub(super) struct Ask {
    pub(super) on_its_way: bool,
    pub(super) attempt: u32,
    pub(super) not_before_ms: i64,
}

impl Ask {
    pub(super) fn may_start(&self, now_ms: i64) -> bool {
        !self.on_its_way && self.not_before_ms <= now_ms
    }

    fn started(&mut self) {
        self.on_its_way = true;
    }

    pub(super) fn ended(&mut self, failed_pause_ms: Option<i64>, now_ms: i64) {
        self.on_its_way = false;
        match failed_pause_ms {
            Some(pause_ms) => {
                self.attempt = self.attempt.saturating_add(1);
                self.not_before_ms = now_ms + pause_ms;
            }
            None => self.attempt = 0,
        }
    }
}

/// The sender's task.
pub(super) struct Sender {
    pub(super) shared: Arc<Shared>,
    pub(super) cluster: Cluster,
    pub(super) config: Arc<ProducerConfig>,
    /// By the accumulator's partition index.
    pub(super) lanes: Vec<Lane>,
    /// Lanes with outstanding batches.
    pub(super) busy: BTreeSet<usize>,
    nodes: BTreeMap<NodeId, NodeState>,
    pub(super) events: FuturesUnordered<BoxFuture<'static, Event>>,
    commands: mpsc::UnboundedReceiver<Command>,
    /// Of an idempotent producer without transactions.
    pub(super) identity: Option<ProducerIdentity>,
    pub(super) identifying: Ask,
    pub(super) refreshing: Ask,
    pub(super) refresh_wanted: bool,
    pub(super) adding: Ask,
    /// Partitions that the open transaction has (transaction version 1).
    pub(super) added: BTreeSet<usize>,
    pub(super) added_in: u64,
    quiescing: Option<oneshot::Sender<()>>,
    /// Every handle of the producer is gone.
    abandoned: bool,
    /// When something is to be done without an event.
    wake_at_ms: Option<i64>,
    /// Why nothing goes on, for the errors of batches that were never sent.
    pub(super) last_trouble: Option<Arc<str>>,
    /// Where the round over the partitions begins; moves so that none starves.
    turn: usize,
}

/// What goes into one request.
#[derive(Default)]
struct Plan {
    entries: Vec<(usize, Next)>,
    size_bytes: usize,
}

impl Sender {
    pub(super) fn new(
        shared: Arc<Shared>,
        cluster: Cluster,
        config: Arc<ProducerConfig>,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> Self {
        Self {
            shared,
            cluster,
            config,
            lanes: Vec::new(),
            busy: BTreeSet::new(),
            nodes: BTreeMap::new(),
            events: FuturesUnordered::new(),
            commands,
            identity: None,
            identifying: Ask::default(),
            refreshing: Ask::default(),
            refresh_wanted: false,
            adding: Ask::default(),
            added: BTreeSet::new(),
            added_in: 0,
            quiescing: None,
            abandoned: false,
            wake_at_ms: None,
            last_trouble: None,
            turn: 0,
        }
    }

    pub(super) fn now_ms(&self) -> i64 {
        self.cluster.clock().now_ms()
    }

    /// Runs until the producer is closed, or all its handles are gone and all batches decided.
    pub(super) async fn run(mut self) {
        loop {
            let now_ms = self.now_ms();
            self.wake_at_ms = None;
            if self.shared.transaction_has_failed() {
                self.drop_unsent();
            }
            self.expire(now_ms);
            while self.send_round(now_ms) {}
            self.ask_for_metadata(now_ms);
            self.answer_quiesce();
            if self.abandoned && self.is_done() {
                return;
            }
            let pause = self
                .wake_at_ms
                .map_or(3_600_000, |at_ms| (at_ms - now_ms).max(1));
            let pause = Duration::from_millis(u64::try_from(pause).unwrap_or(1));
            tokio::select! {
                biased;
                command = self.commands.recv(), if !self.abandoned => match command {
                    Some(Command::Quiesce(done)) => {
                        self.quiescing = Some(done);
                        self.drop_unsent();
                    }
                    Some(Command::Stop(done)) => {
                        self.stop();
                        // Whoever asked may have gone.
                        let _ = done.send(());
                        return;
                    }
                    None => {
                        self.abandoned = true;
                        self.shared.lock().seal();
                        if self.config.transactional_id.is_some() {
                            self.drop_unsent();
                        }
                    }
                },
                Some(event) = self.events.next(), if !self.events.is_empty() => self.handle(event),
                () = self.shared.wake.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
            while let Some(Some(event)) = self.events.next().now_or_never() {
                self.handle(event);
            }
        }
    }

    fn is_done(&self) -> bool {
        self.shared.lock().is_empty() && self.lanes.iter().all(|lane| lane.outstanding.is_empty())
    }

    pub(super) fn wake_at(&mut self, at_ms: i64) {
        self.wake_at_ms = Some(self.wake_at_ms.map_or(at_ms, |wake| wake.min(at_ms)));
    }

    fn answer_quiesce(&mut self) {
        if self.quiescing.is_some()
            && !self.lanes.iter().any(Lane::any_in_flight)
            && let Some(done) = self.quiescing.take()
        {
            // Whoever asked may have gone.
            let _ = done.send(());
        }
    }

    /// Sends what may be sent; true where another round may find more.
    fn send_round(&mut self, now_ms: i64) -> bool {
        let ticket = self.shared.ticket();
        if self.config.transactional_id.is_some() && ticket.is_none() {
            return false;
        }
        let mut partitions = self.due(now_ms);
        if partitions.is_empty() {
            return false;
        }
        if !self.identify(ticket.as_ref(), now_ms) {
            return false;
        }
        let start = self.turn % partitions.len();
        partitions.rotate_left(start);
        self.turn = self.turn.wrapping_add(1);
        let plans = self.plan(&partitions, ticket.as_ref(), now_ms);
        let mut progress = false;
        for (node, plan) in plans {
            progress |= self.send_plan(node, plan, ticket.as_ref(), now_ms);
        }
        progress
    }

    /// Partitions with something that may be sent at this time.
    fn due(&mut self, now_ms: i64) -> Vec<usize> {
        let (mut due, next_ms, count) = {
            let accumulator = self.shared.lock();
            let (due, next_ms) = accumulator.ready(now_ms);
            (due, next_ms, accumulator.partition_count())
        };
        if self.lanes.len() < count {
            self.lanes.resize_with(count, Lane::default);
        }
        if let Some(next_ms) = next_ms {
            self.wake_at(next_ms);
        }
        due.extend(self.busy.iter().copied());
        due.sort_unstable();
        due.dedup();
        due
    }

    /// Whether the producer has the identity it needs; else asks for one.
    fn identify(&mut self, ticket: Option<&Ticket>, now_ms: i64) -> bool {
        if !self.config.idempotence || ticket.is_some() || self.identity.is_some() {
            return true;
        }
        if !self.identifying.may_start(now_ms) {
            if !self.identifying.on_its_way {
                self.wake_at(self.identifying.not_before_ms);
            }
            return false;
        }
        self.identifying.started();
        let cluster = self.cluster.clone();
        self.events.push(Box::pin(async move {
            let request = InitProducerIdRequest {
                transactional_id: None,
                transaction_timeout_ms: i32::MAX,
                ..Default::default()
            };
            let timeout = cluster.config().request_timeout;
            let answer = match cluster.any_node() {
                Ok(node) => cluster
                    .request(node, request, timeout)
                    .await
                    .map_err(Into::into),
                Err(error) => Err(error),
            };
            Event::Identified(answer)
        }));
        false
    }

    /// Which partitions go into which broker's request.
    fn plan(
        &mut self,
        partitions: &[usize],
        ticket: Option<&Ticket>,
        now_ms: i64,
    ) -> BTreeMap<NodeId, Plan> {
        if let Some(ticket) = ticket
            && self.added_in != ticket.number
        {
            self.added_in = ticket.number;
            self.added.clear();
        }
        let mut plans: BTreeMap<NodeId, Plan> = BTreeMap::new();
        let mut to_add = Vec::new();
        let identity = ticket.map(|ticket| ticket.identity).or(self.identity);
        let ready: BTreeSet<usize> = self.shared.lock().ready(now_ms).0.into_iter().collect();
        for index in partitions.iter().copied() {
            let Some(lane) = self.lanes.get_mut(index) else {
                continue;
            };
            lane.adopt(identity);
            let mut next = lane.next(now_ms);
            if next == Next::Bump {
                if ticket.is_some() || !self.bump(index) {
                    continue;
                }
                next = self
                    .lanes
                    .get(index)
                    .map_or(Next::New, |lane| lane.next(now_ms));
            }
            match next {
                Next::Nothing {
                    until_ms: Some(until_ms),
                } => {
                    self.wake_at(until_ms);
                    continue;
                }
                Next::Nothing { until_ms: None } | Next::Bump => continue,
                Next::New if !ready.contains(&index) => continue,
                Next::New | Next::Retry(_) => {}
            }
            let topic_partition = self.shared.lock().topic_partition(index).clone();
            let Some(leader) = self.cluster.leader(&topic_partition) else {
                self.refresh_wanted = true;
                continue;
            };
            if ticket.is_some_and(|ticket| !ticket.implicit_add) && !self.added.contains(&index) {
                to_add.push(index);
                continue;
            }
            if !self.has_room(leader, now_ms) {
                continue;
            }
            let size_bytes = match next {
                Next::Retry(at) => self
                    .lanes
                    .get(index)
                    .and_then(|lane| lane.outstanding.get(at))
                    .map_or(0, |batch| batch.bytes.len()),
                _ => self.shared.lock().head_size_bytes(index),
            };
            let plan = plans.entry(leader).or_default();
            let fits = plan.size_bytes + size_bytes <= self.config.max_request_size;
            if plan.entries.is_empty() || fits {
                plan.entries.push((index, next));
                plan.size_bytes += size_bytes;
            }
        }
        if let Some(ticket) = ticket {
            self.add_partitions(to_add, ticket, now_ms);
        }
        plans
    }

    /// Whether a request may be sent to a broker now; connects where needed.
    fn has_room(&mut self, node: NodeId, now_ms: i64) -> bool {
        let state = self.nodes.entry(node).or_default();
        if state.connecting.on_its_way || state.in_flight >= self.config.max_in_flight {
            return false;
        }
        if self
            .cluster
            .open_connection(node, ApiKey::Produce)
            .is_some()
        {
            return true;
        }
        if !state.connecting.may_start(now_ms) {
            let at_ms = state.connecting.not_before_ms;
            self.wake_at(at_ms);
            return false;
        }
        state.connecting.started();
        let cluster = self.cluster.clone();
        self.events.push(Box::pin(async move {
            let timeout = cluster.config().request_timeout;
            let result = cluster
                .connection(node, ApiKey::Produce, timeout)
                .await
                .map(drop);
            Event::Connected { node, result }
        }));
        false
    }

    fn send_plan(
        &mut self,
        node: NodeId,
        plan: Plan,
        ticket: Option<&Ticket>,
        now_ms: i64,
    ) -> bool {
        let Some(connection) = self.cluster.open_connection(node, ApiKey::Produce) else {
            return false;
        };
        let mut entries = Vec::with_capacity(plan.entries.len());
        let mut topics: BTreeMap<Arc<str>, Vec<PartitionProduceData>> = BTreeMap::new();
        for (index, next) in plan.entries {
            let position = match next {
                Next::Retry(position) => Some(position),
                _ => self.stamp(index, ticket.is_some()),
            };
            let Some(lane) = self.lanes.get_mut(index) else {
                continue;
            };
            let batch = position.and_then(|position| lane.outstanding.get_mut(position));
            let Some(batch) = batch else { continue };
            batch.stage = Stage::InFlight;
            batch.attempts += 1;
            let topic_partition = batch.state.topic_partition.clone();
            topics
                .entry(Arc::clone(&topic_partition.topic))
                .or_default()
                .push(PartitionProduceData {
                    index: topic_partition.partition,
                    records: Some(batch.bytes.clone()),
                });
            entries.push(Entry {
                lane: index,
                batch_id: batch.state.id,
                topic: topic_partition.topic,
                partition: topic_partition.partition,
            });
            self.busy.insert(index);
        }
        if entries.is_empty() {
            return false;
        }
        if ticket.is_some() {
            self.shared.note_sent();
        }
        self.send_request(node, &connection, entries, topics, ticket, now_ms);
        true
    }

    fn send_request(
        &mut self,
        node: NodeId,
        connection: &Connection,
        entries: Vec<Entry>,
        topics: BTreeMap<Arc<str>, Vec<PartitionProduceData>>,
        ticket: Option<&Ticket>,
        now_ms: i64,
    ) {
        let mut topic_ids = BTreeMap::new();
        let mut all_ids = true;
        let mut topic_data = Vec::with_capacity(topics.len());
        for (topic, partition_data) in topics {
            let topic_id = self.cluster.topic_id(&topic);
            all_ids &= topic_id != Uuid::ZERO;
            topic_data.push(TopicProduceData {
                name: topic.to_string(),
                topic_id,
                partition_data,
            });
            topic_ids.insert(topic_id, topic);
        }
        // Version 12 adds partitions to the transaction by itself, 13 names topics by id.
        let cap = match ticket {
            Some(ticket) if !ticket.implicit_add => 11,
            _ if all_ids => 13,
            _ => 12,
        };
        let request = ProduceRequest {
            transactional_id: self
                .config
                .transactional_id
                .as_ref()
                .map(ToString::to_string),
            acks: self.config.acks.wire(),
            timeout_ms: i32::try_from(millis(self.config.client.request_timeout))
                .unwrap_or(i32::MAX),
            topic_data,
        };
        let started = connection
            .version(ApiKey::Produce, cap)
            .and_then(|version| {
                if self.config.acks == Acks::None {
                    connection
                        .start_unanswered(version, &request)
                        .map(|()| None)
                } else {
                    connection.start_at(version, &request).map(Some)
                }
            });
        match started {
            Ok(Some(pending)) => {
                self.nodes.entry(node).or_default().in_flight += 1;
                let timeout = self.config.client.request_timeout;
                self.events.push(Box::pin(async move {
                    let result = pending.response::<ProduceRequest>(timeout).await;
                    Event::Produced {
                        node,
                        entries,
                        topic_ids,
                        result,
                    }
                }));
            }
            Ok(None) => {
                for entry in entries {
                    let outcome = Outcome::Acknowledged {
                        base_offset: -1,
                        log_append_time_ms: -1,
                    };
                    self.finish(entry.lane, entry.batch_id, outcome);
                }
            }
            Err(error) => self.settle_lost(&entries, &error, now_ms),
        }
    }

    /// Takes the next batch of a partition out of the accumulator and stamps it; its place.
    fn stamp(&mut self, index: usize, transactional: bool) -> Option<usize> {
        let mut batch = self.shared.lock().take(index)?;
        let lane = self.lanes.get_mut(index)?;
        let record_count = batch.builder.record_count();
        let stamp = lane.stamp(record_count, transactional);
        match batch.builder.finish(stamp) {
            Ok(bytes) => {
                lane.outstanding.push_back(Outstanding {
                    state: batch.state,
                    bytes,
                    base_sequence: stamp.base_sequence,
                    record_count,
                    created_ms: batch.created_ms,
                    attempts: 0,
                    in_doubt: false,
                    stage: Stage::Waiting { not_before_ms: 0 },
                    last: "not sent".into(),
                });
                Some(lane.outstanding.len() - 1)
            }
            Err(error) => {
                // The sequences are used up and nothing carries them.
                lane.broken = true;
                let cause = Arc::from(error.to_string());
                let topic_partition = batch.state.topic_partition.clone();
                self.shared.fail_transaction(&Arc::clone(&cause));
                self.resolve(
                    &batch.state,
                    Outcome::Failed(DeliveryError::Failed {
                        topic_partition,
                        cause,
                    }),
                );
                None
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let now_ms = self.now_ms();
        match event {
            Event::Produced {
                node,
                entries,
                topic_ids,
                result,
            } => {
                let state = self.nodes.entry(node).or_default();
                state.in_flight = state.in_flight.saturating_sub(1);
                match result {
                    Ok(response) => self.settle(&entries, &topic_ids, &response, now_ms),
                    Err(error) => self.settle_lost(&entries, &error, now_ms),
                }
            }
            Event::Connected { node, result } => {
                self.connected(node, result, now_ms);
            }
            Event::Refreshed(result) => self.refreshed(result, now_ms),
            Event::Identified(result) => self.identified(result, now_ms),
            Event::PartitionsAdded {
                lanes,
                number,
                result,
            } => {
                self.partitions_added(lanes, number, result, now_ms);
            }
        }
    }

    fn connected(&mut self, node: NodeId, result: Result<(), RequestError>, now_ms: i64) {
        let attempt = self.nodes.entry(node).or_default().connecting.attempt;
        let pause_ms = result.is_err().then(|| self.pause_ms(attempt));
        let state = self.nodes.entry(node).or_default();
        state.connecting.ended(pause_ms, now_ms);
        if let Err(error) = result {
            tracing::debug!(%node, %error, "the leader cannot be reached");
            self.note_last(&error.to_string().into());
            self.refresh_wanted = true;
        }
    }

    fn ask_for_metadata(&mut self, now_ms: i64) {
        let max_age_ms = i64::try_from(self.config.client.metadata_max_age.as_millis());
        let topics = if self.refresh_wanted
            || self.cluster.metadata_age_ms() > max_age_ms.unwrap_or(i64::MAX)
        {
            self.shared.lock().topics()
        } else {
            return;
        };
        if topics.is_empty() {
            return;
        }
        if !self.refreshing.may_start(now_ms) {
            if !self.refreshing.on_its_way {
                self.wake_at(self.refreshing.not_before_ms);
            }
            return;
        }
        self.refreshing.started();
        self.refresh_wanted = false;
        let cluster = self.cluster.clone();
        self.events.push(Box::pin(async move {
            Event::Refreshed(cluster.refresh_metadata(&topics).await)
        }));
    }

    fn refreshed(&mut self, result: Result<(), ClusterError>, now_ms: i64) {
        // Asked for again at the earliest after a pause, success or not: a leader may be missing
        // for a while.
        let pause_ms = self.pause_ms(self.refreshing.attempt);
        if let Err(error) = &result {
            tracing::debug!(%error, "metadata could not be refreshed");
            self.refresh_wanted = true;
        }
        self.refreshing.ended(Some(pause_ms), now_ms);
        if result.is_ok() {
            self.refreshing.attempt = 0;
            let mut accumulator = self.shared.lock();
            for topic in accumulator.topics() {
                if let Some(count) = self.cluster.known_partitions_of(&topic) {
                    accumulator.set_partitions(&topic, count);
                }
            }
        }
    }

    pub(super) fn pause_ms(&self, attempt: u32) -> i64 {
        i64::try_from(self.cluster.retry_pause(attempt).as_millis()).unwrap_or(i64::MAX)
    }

    /// Settles a batch that is no longer in a lane and frees its memory.
    pub(super) fn resolve(&self, state: &Arc<BatchState>, outcome: Outcome) {
        if let Outcome::Failed(error) = &outcome
            && state.is_uncounted()
            && !state.is_resolved()
        {
            self.shared.note_uncounted(error);
        }
        self.shared.lock().release(state);
        state.resolve(outcome);
        self.shared.space.notify_waiters();
    }
}
