//! The `send` stage: the task that drains the accumulator until every batch is decided.
//!
//! Invariants: it sleeps only until the next thing that time alone makes due; an event is handled
//! to its end before the next one.
//! Never: blocks senders of records, or holds the accumulator's lock while it waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use millstream_protocol::Uuid;
use millstream_protocol::messages::{InitProducerIdResponse, ProduceResponse};
use tokio::sync::{mpsc, oneshot};

use super::config::ProducerConfig;
use super::delivery::{BatchState, Outcome};
use super::idempotence::{Lane, ProducerIdentity};
use super::shared::Shared;
use crate::cluster::{Cluster, NodeId};
use crate::error::{ClusterError, RequestError};

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
    /// Of a request that the broker does not answer (`acks=0`).
    Taken {
        node: NodeId,
        entries: Vec<Entry>,
        result: Result<(), RequestError>,
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

/// What is under way with one broker.
#[derive(Debug, Default)]
pub(super) struct NodeState {
    pub(super) in_flight: usize,
    pub(super) connecting: Ask,
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

    pub(super) fn started(&mut self) {
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
    pub(super) nodes: BTreeMap<NodeId, NodeState>,
    pub(super) events: FuturesUnordered<BoxFuture<'static, Event>>,
    commands: mpsc::UnboundedReceiver<Command>,
    /// Of an idempotent producer without transactions.
    pub(super) identity: Option<ProducerIdentity>,
    pub(super) identifying: Ask,
    pub(super) refreshing: Ask,
    pub(super) refresh_wanted: bool,
    /// Up to which of the cluster's changes the numbers of partitions were taken over.
    followed: u64,
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
    pub(super) turn: usize,
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
            followed: 0,
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
            self.follow_metadata();
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

    /// What is said of a transaction's partitions counts for that one; sent after its end, the
    /// request would be refused for its epoch, or open the next.
    fn answer_quiesce(&mut self) {
        if self.quiescing.is_some()
            && !self.adding.on_its_way
            && !self.lanes.iter().any(Lane::any_in_flight)
            && let Some(done) = self.quiescing.take()
        {
            // Whoever asked may have gone.
            let _ = done.send(());
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
            Event::Taken {
                node,
                entries,
                result,
            } => {
                let state = self.nodes.entry(node).or_default();
                state.in_flight = state.in_flight.saturating_sub(1);
                match result {
                    Ok(()) => self.settle_taken(entries),
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
            if let Some(refusal) = error.security() {
                self.distrust(refusal);
            }
        }
    }

    /// Takes over how many partitions topics have, whoever asked.
    fn follow_metadata(&mut self) {
        let changes = self.cluster.metadata_changes();
        if self.followed == changes {
            return;
        }
        self.followed = changes;
        let mut accumulator = self.shared.lock();
        for topic in accumulator.topics() {
            if let Some(count) = self.cluster.known_partitions_of(&topic) {
                accumulator.set_partitions(&topic, count);
            }
        }
    }

    fn ask_for_metadata(&mut self, now_ms: i64) {
        let max_age_ms = i64::try_from(self.config.client.metadata_max_age.as_millis());
        let left_ms = max_age_ms
            .unwrap_or(i64::MAX)
            .saturating_sub(self.cluster.metadata_age_ms());
        if left_ms >= 0 && !self.refresh_wanted {
            if self.shared.lock().knows_any() {
                self.wake_at(now_ms.saturating_add(left_ms).saturating_add(1));
            }
            return;
        }
        let idle_ms = i64::try_from(self.config.client.topic_idle().as_millis());
        let topics = self
            .shared
            .lock()
            .topics_in_use(now_ms, idle_ms.unwrap_or(i64::MAX));
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
            if let Some(refusal) = error.security() {
                self.distrust(refusal);
            }
        }
        self.refreshing.ended(Some(pause_ms), now_ms);
        if result.is_ok() {
            self.refreshing.attempt = 0;
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
        // A flush that begins now still waits for the callbacks.
        state.resolve(outcome);
        self.shared.lock().release(state);
        self.shared.space.notify_waiters();
    }
}
