//! The background task that keeps the buffers filled: starting points, resets, validations,
//! fetches.
//!
//! Each node that is fetched from, leaders and the replicas that they name to read from (KIP-392),
//! has two lanes. The main lane's fetch may wait in the broker for new data; while it
//! does, partitions that become fetchable go by the hot lane, whose fetches hardly wait. Once the
//! main lane is back, both are brought together again.
//!
//! Invariants: a partition is in one question at a time; answers count only under the version they
//! were asked for; partitions that are paused or have enough buffered are not fetched; a lane has
//! one request under way, so its session's epochs come in order.
//! Never: hands out records, or fails for good; what an application must know goes to the
//! positions and comes out of `poll`.

mod answers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use millstream_protocol::TopicPartition;
use millstream_protocol::messages::FetchResponse;

use super::core::Core;
use super::fetch_request::{FetchPlan, Lane};
use super::fetch_session::FetchSession;
use super::lookup::{Answers, as_timestamp, list_offsets_once};
use super::offsets::{Committed, fetch_committed_once};
use super::positions::{Doubt, Landmark, Leader, Target};
use super::truncation::{Verdict, ask_leader};
use crate::cluster::NodeId;
use crate::error::{ClusterError, RequestError};

/// A question that ended.
enum Done {
    Committed(
        Vec<Target>,
        Result<Vec<(TopicPartition, Committed)>, ClusterError>,
    ),
    Reset(Vec<(Target, Landmark)>, Answers),
    Validated(Vec<(Target, Doubt)>, Vec<Verdict>),
    Fetched {
        node: NodeId,
        lane: Lane,
        fetch: u64,
        result: Result<FetchResponse, RequestError>,
    },
    Metadata,
}

/// One lane to one node.
struct LaneState {
    session: FetchSession,
    busy: bool,
}

struct Fetcher {
    core: Arc<Core>,
    under_way: FuturesUnordered<BoxFuture<'static, Done>>,
    lanes: BTreeMap<(NodeId, Lane), LaneState>,
    /// The number of the last fetch.
    last_fetch: u64,
    /// Nodes that failed in a row, for growing pauses.
    failures: BTreeMap<NodeId, u32>,
    /// Topics whose leaders are to be asked for.
    stale: BTreeSet<Arc<str>>,
    /// The state of the metadata that the positions have learnt from.
    learnt: u64,
    asking_metadata: bool,
    metadata_not_before_ms: i64,
    metadata_failures: u32,
}

/// Runs until it is aborted.
pub(crate) async fn run(core: Arc<Core>) {
    let mut fetcher = Fetcher {
        core,
        under_way: FuturesUnordered::new(),
        lanes: BTreeMap::new(),
        last_fetch: 0,
        failures: BTreeMap::new(),
        stale: BTreeSet::new(),
        learnt: 0,
        asking_metadata: false,
        metadata_not_before_ms: i64::MIN,
        metadata_failures: 0,
    };
    loop {
        let started_ms = fetcher.start();
        let core = Arc::clone(&fetcher.core);
        let pause = fetcher.pause(started_ms);
        tokio::select! {
            biased;
            Some(done) = fetcher.under_way.next() => fetcher.finish(done),
            () = core.for_fetcher.notified() => {}
            () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => {}
        }
    }
}

impl Fetcher {
    /// Until something can be asked again that could not be at `started_ms`, the time of `start`:
    /// what has become due since then must not be missed.
    fn pause(&self, started_ms: i64) -> Option<Duration> {
        let retry_ms = self.core.positions().next_retry_ms(started_ms);
        let metadata_ms = (!self.stale.is_empty() && !self.asking_metadata)
            .then_some(self.metadata_not_before_ms);
        let next_ms = retry_ms.into_iter().chain(metadata_ms).min()?;
        Some(Duration::from_millis(
            u64::try_from(next_ms - self.core.now_ms())
                .unwrap_or(0)
                .max(1),
        ))
    }

    /// Puts every question on its way that can be asked now; the time that was taken for now.
    fn start(&mut self) -> i64 {
        let now_ms = self.core.now_ms();
        self.start_initial(now_ms);
        self.start_resets(now_ms);
        self.learn(now_ms);
        self.start_validations(now_ms);
        self.start_fetches(now_ms);
        self.start_metadata(now_ms);
        now_ms
    }

    fn start_initial(&mut self, now_ms: i64) {
        let targets = self.core.positions().begin_initial(now_ms);
        if targets.is_empty() {
            return;
        }
        let Some(group_id) = self.core.config.group_id.clone() else {
            let mut positions = self.core.positions();
            for target in &targets {
                match self.core.reset() {
                    Some(reset) => positions.found(target, reset),
                    None => {
                        positions.fail(target, self.core.no_offset(&target.topic_partition));
                    }
                }
            }
            drop(positions);
            self.core.for_poll.notify_one();
            return self.start_resets(now_ms);
        };
        let core = Arc::clone(&self.core);
        let partitions: Vec<TopicPartition> = targets
            .iter()
            .map(|target| target.topic_partition.clone())
            .collect();
        self.under_way.push(Box::pin(async move {
            let timeout = core.cluster.config().request_timeout;
            let (cluster, member) = (&core.cluster, core.member_epoch());
            let result =
                fetch_committed_once(cluster, &group_id, member, &partitions, timeout).await;
            Done::Committed(targets, result)
        }));
    }

    fn start_resets(&mut self, now_ms: i64) {
        let targets = self.core.positions().begin_reset(now_ms);
        if targets.is_empty() {
            return;
        }
        let core = Arc::clone(&self.core);
        let wall_ms = core.cluster.clock().wall_ms();
        self.under_way.push(Box::pin(async move {
            let questions: Vec<(TopicPartition, i64)> = targets
                .iter()
                .map(|(target, to)| (target.topic_partition.clone(), as_timestamp(*to, wall_ms)))
                .collect();
            let timeout = core.cluster.config().request_timeout;
            let isolation = core.config.isolation;
            let answers = list_offsets_once(&core.cluster, isolation, &questions, timeout).await;
            Done::Reset(targets, answers)
        }));
    }

    /// Tells the positions of new leaders.
    fn learn(&mut self, now_ms: i64) {
        let cluster = &self.core.cluster;
        let changes = cluster.metadata_changes();
        let mut positions = self.core.positions();
        if changes == self.learnt && !positions.is_leaderless() {
            return;
        }
        self.learnt = changes;
        let look_up = |partition: &TopicPartition| {
            let known = cluster.partition(partition)?;
            Some(Leader {
                node: known.leader?,
                epoch: known.leader_epoch,
                topic_id: cluster.topic_id(&partition.topic),
            })
        };
        positions.learn(now_ms, look_up, &mut self.stale);
        positions.leave_absent_replicas(|partition, node| cluster.has_replica(partition, node));
    }

    fn start_validations(&mut self, now_ms: i64) {
        let mut by_leader: BTreeMap<NodeId, Vec<(Target, Doubt)>> = BTreeMap::new();
        for (target, doubt) in self.core.positions().begin_validation(now_ms) {
            let of_leader = by_leader.entry(doubt.leader.node).or_default();
            of_leader.push((target, doubt));
        }
        for (leader, doubts) in by_leader {
            let core = Arc::clone(&self.core);
            self.under_way.push(Box::pin(async move {
                let timeout = core.cluster.config().request_timeout;
                let verdicts = ask_leader(&core.cluster, leader, &doubts, timeout).await;
                Done::Validated(doubts, verdicts)
            }));
        }
    }

    fn start_fetches(&mut self, now_ms: i64) {
        let core = Arc::clone(&self.core);
        let mut positions = core.positions();
        if !positions.has_room() {
            return;
        }
        for place in 0.. {
            let Some(node) = positions.nodes().get(place).copied() else {
                break;
            };
            let Some(lane) = self.free_lane(node) else {
                continue;
            };
            if !positions.wants(now_ms, node) {
                continue;
            }
            self.last_fetch += 1;
            let fetch = self.last_fetch;
            let state = self.lanes.entry((node, lane)).or_insert_with(|| LaneState {
                session: match lane {
                    Lane::Main => FetchSession::new(),
                    Lane::Hot => FetchSession::none(),
                },
                busy: false,
            });
            state.busy = true;
            let wanted = positions.begin_fetch(now_ms, node, fetch);
            let plan = FetchPlan::new(&core, lane, state.session.plan(wanted));
            let core = Arc::clone(&core);
            self.under_way.push(Box::pin(async move {
                let result = plan.send(&core, node).await;
                Done::Fetched {
                    node,
                    lane,
                    fetch,
                    result,
                }
            }));
        }
    }

    /// The lane to use for a node now, if any.
    fn free_lane(&self, node: NodeId) -> Option<Lane> {
        let busy = |lane| self.lanes.get(&(node, lane)).is_some_and(|lane| lane.busy);
        match (busy(Lane::Main), busy(Lane::Hot)) {
            (false, false) => Some(Lane::Main),
            (true, false) => Some(Lane::Hot),
            // Back within the hot wait; then all go together again.
            (_, true) => None,
        }
    }

    fn start_metadata(&mut self, now_ms: i64) {
        if self.asking_metadata || self.stale.is_empty() || now_ms < self.metadata_not_before_ms {
            return;
        }
        let topics: Vec<Arc<str>> = std::mem::take(&mut self.stale).into_iter().collect();
        let pause = self.core.cluster.retry_pause(self.metadata_failures);
        self.metadata_failures = self.metadata_failures.saturating_add(1);
        self.metadata_not_before_ms = now_ms.saturating_add(as_ms(pause));
        self.asking_metadata = true;
        let core = Arc::clone(&self.core);
        self.under_way.push(Box::pin(async move {
            if let Err(error) = core.cluster.refresh_metadata(&topics).await {
                tracing::debug!(%error, "no metadata for the consumer's topics");
            }
            Done::Metadata
        }));
    }

    fn again_ms(&self, attempt: u32) -> i64 {
        self.core
            .now_ms()
            .saturating_add(as_ms(self.core.cluster.retry_pause(attempt)))
    }
}

fn as_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
