//! Draining: which batches leave now, stamped, in one Produce request per leader.
//!
//! Invariants: at most `max.in.flight` Produce requests a broker; batches of a partition are sent
//! in order, and a failed one goes again before later ones; a batch that is sent again has the
//! same bytes.
//! Never: holds the accumulator's lock while it compresses or encodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use millstream_protocol::messages::produce::{PartitionProduceData, TopicProduceData};
use millstream_protocol::messages::{InitProducerIdRequest, ProduceRequest};
use millstream_protocol::{ApiKey, Uuid};

use super::config::Acks;
use super::delivery::Outcome;
use super::idempotence::{Lane, Next, Outstanding, Stage};
use super::sender::{Entry, Event, Sender};
use super::shared::Ticket;
use crate::cluster::{Connection, NodeId, Unanswered, millis};
use crate::error::{DeliveryError, RequestError};

/// What goes into one request.
#[derive(Default)]
struct Plan {
    entries: Vec<(usize, Next)>,
    size_bytes: usize,
}

impl Sender {
    /// Sends what may be sent; true where another round may find more.
    pub(super) fn send_round(&mut self, now_ms: i64) -> bool {
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
            if let Some(lane) = self.lanes.get_mut(index) {
                lane.adopt(identity);
            }
            let Some(next) = self.next_of(index, ready.contains(&index), ticket, now_ms) else {
                continue;
            };
            let topic_partition = self.shared.lock().topic_partition(index).clone();
            let Some(leader) = self.cluster.leader(&topic_partition) else {
                self.refresh_wanted = true;
                continue;
            };
            let lane = self.lanes.get(index);
            if next == Next::New && lane.is_some_and(|lane| lane.is_under_way_elsewhere(leader)) {
                continue;
            }
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

    /// Which batch of a partition may be sent now, if any: a new one or one of the lane's.
    fn next_of(
        &mut self,
        index: usize,
        ready: bool,
        ticket: Option<&Ticket>,
        now_ms: i64,
    ) -> Option<Next> {
        let mut next = self.lanes.get(index)?.next(now_ms);
        if next == Next::Bump {
            // In a transaction the abort brings the new epoch.
            if ticket.is_some() || !self.bump(index) {
                return None;
            }
            next = self.lanes.get(index)?.next(now_ms);
        }
        match next {
            Next::Nothing { until_ms } => {
                if let Some(until_ms) = until_ms {
                    self.wake_at(until_ms);
                }
                None
            }
            Next::Bump => None,
            Next::New => ready.then_some(next),
            Next::Retry(_) => Some(next),
        }
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
            batch.node = Some(node);
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
        let (request, topic_ids, cap) = self.request(topics, ticket);
        let version = connection.version(ApiKey::Produce, cap);
        if self.config.acks == Acks::None {
            let started =
                version.and_then(|version| connection.start_unanswered(version, &request));
            return self.wait_until_taken(node, entries, started, now_ms);
        }
        match version.and_then(|version| connection.start_at(version, &request)) {
            Ok(pending) => {
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
            Err(error) => self.settle_lost(&entries, &error, now_ms),
        }
    }

    /// With `acks=0` a batch is done, and its memory free, when the transport takes its request.
    fn wait_until_taken(
        &mut self,
        node: NodeId,
        entries: Vec<Entry>,
        started: Result<Unanswered, RequestError>,
        now_ms: i64,
    ) {
        match started {
            Ok(mut unanswered) => {
                if unanswered.is_taken() {
                    return self.settle_taken(entries);
                }
                self.nodes.entry(node).or_default().in_flight += 1;
                self.events.push(Box::pin(async move {
                    Event::Taken {
                        node,
                        entries,
                        result: unanswered.taken().await,
                    }
                }));
            }
            Err(error) => self.settle_lost(&entries, &error, now_ms),
        }
    }

    /// Nothing more will be known of these batches.
    pub(super) fn settle_taken(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            let outcome = Outcome::Acknowledged {
                base_offset: -1,
                log_append_time_ms: -1,
            };
            self.finish(entry.lane, entry.batch_id, outcome);
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
                    node: None,
                    last: "not sent".into(),
                });
                Some(lane.outstanding.len() - 1)
            }
            Err(error) => {
                // Nothing carries these sequences, so the next batch has them.
                lane.take_back(stamp);
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

    /// The request for these batches, the topics by id, and the highest version that fits.
    fn request(
        &self,
        topics: BTreeMap<Arc<str>, Vec<PartitionProduceData>>,
        ticket: Option<&Ticket>,
    ) -> (ProduceRequest, BTreeMap<Uuid, Arc<str>>, i16) {
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
        (request, topic_ids, cap)
    }
}
