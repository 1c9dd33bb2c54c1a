//! The background task that keeps the buffers filled: starting points, resets, fetches.
//!
//! Each leader has two lanes. The main lane's fetch may wait in the broker for new data; while it
//! does, partitions that become fetchable go by the hot lane, whose fetches hardly wait. Once the
//! main lane is back, both are brought together again.
//!
//! Invariants: a partition is in one question at a time; answers count only under the version they
//! were asked for; partitions that are paused or have enough buffered are not fetched.
//! Never: hands out records, or fails for good; what an application must know goes to the
//! positions and comes out of `poll`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use millstream_protocol::messages::FetchResponse;
use millstream_protocol::messages::fetch::PartitionData;
use millstream_protocol::{
    ApiKey, ErrorClass, ErrorCode, ErrorContext, TopicPartition, Uuid, class,
};

use super::core::Core;
use super::error::ConsumerError;
use super::fetch_request::{FetchPlan, Lane};
use super::fetched::FetchedPartition;
use super::lookup::{Answer, Answers, end_as_timestamp, list_offsets_once};
use super::offsets::{Committed, fetch_committed_once};
use super::positions::{LogEnd, LogOffsets, Position, Target};
use crate::cluster::NodeId;
use crate::error::{ClusterError, RequestError};

/// A question that ended.
enum Done {
    Committed(
        Vec<Target>,
        Result<Vec<(TopicPartition, Committed)>, ClusterError>,
    ),
    LogEnds(Vec<Target>, Answers),
    Fetched {
        leader: NodeId,
        lane: Lane,
        targets: Vec<Target>,
        ids: Arc<BTreeMap<Uuid, Arc<str>>>,
        result: Result<FetchResponse, RequestError>,
    },
    Metadata,
}

struct Fetcher {
    core: Arc<Core>,
    under_way: FuturesUnordered<BoxFuture<'static, Done>>,
    lanes: BTreeSet<(NodeId, Lane)>,
    /// Leaders that failed in a row, for growing pauses.
    failures: BTreeMap<NodeId, u32>,
    /// Topics whose leaders are to be asked for.
    stale: BTreeSet<Arc<str>>,
    asking_metadata: bool,
    metadata_not_before_ms: i64,
    metadata_failures: u32,
}

/// Runs until it is aborted.
pub(crate) async fn run(core: Arc<Core>) {
    let mut fetcher = Fetcher {
        core,
        under_way: FuturesUnordered::new(),
        lanes: BTreeSet::new(),
        failures: BTreeMap::new(),
        stale: BTreeSet::new(),
        asking_metadata: false,
        metadata_not_before_ms: i64::MIN,
        metadata_failures: 0,
    };
    loop {
        fetcher.start();
        let core = Arc::clone(&fetcher.core);
        let pause = fetcher.pause();
        tokio::select! {
            biased;
            Some(done) = fetcher.under_way.next() => fetcher.finish(done),
            () = core.for_fetcher.notified() => {}
            () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => {}
        }
    }
}

impl Fetcher {
    /// Until something can be asked again.
    fn pause(&self) -> Option<Duration> {
        let now_ms = self.core.now_ms();
        let retry_ms = self.core.positions().next_retry_ms(now_ms);
        let metadata_ms = (!self.stale.is_empty() && !self.asking_metadata)
            .then_some(self.metadata_not_before_ms);
        let next_ms = retry_ms.into_iter().chain(metadata_ms).min()?;
        Some(Duration::from_millis(
            u64::try_from(next_ms - now_ms).unwrap_or(0).max(1),
        ))
    }

    /// Puts every question on its way that can be asked now.
    fn start(&mut self) {
        let now_ms = self.core.now_ms();
        self.start_initial(now_ms);
        for end in [LogEnd::Earliest, LogEnd::Latest] {
            let targets = self.core.positions().begin_reset(now_ms, end);
            self.start_log_ends(targets, end);
        }
        self.start_fetches(now_ms);
        self.start_metadata(now_ms);
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
            self.core.for_poll.notify_one();
            return;
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

    fn start_log_ends(&mut self, targets: Vec<Target>, end: LogEnd) {
        if targets.is_empty() {
            return;
        }
        let core = Arc::clone(&self.core);
        self.under_way.push(Box::pin(async move {
            let questions: Vec<(TopicPartition, i64)> = targets
                .iter()
                .map(|target| (target.topic_partition.clone(), end_as_timestamp(end)))
                .collect();
            let timeout = core.cluster.config().request_timeout;
            let isolation = core.config.isolation;
            let answers = list_offsets_once(&core.cluster, isolation, &questions, timeout).await;
            Done::LogEnds(targets, answers)
        }));
    }

    fn start_fetches(&mut self, now_ms: i64) {
        let mut by_leader: BTreeMap<NodeId, Vec<Target>> = BTreeMap::new();
        {
            let (cluster, lanes, stale) = (&self.core.cluster, &self.lanes, &mut self.stale);
            let targets = self.core.positions().begin_fetch(now_ms, |partition| {
                match cluster.leader(partition) {
                    Some(leader) => lane(lanes, leader).is_some(),
                    None => {
                        stale.insert(Arc::clone(&partition.topic));
                        false
                    }
                }
            });
            for target in targets {
                if let Some(leader) = cluster.leader(&target.topic_partition) {
                    by_leader.entry(leader).or_default().push(target);
                }
            }
        }
        for (leader, targets) in by_leader {
            if let Some(lane) = lane(&self.lanes, leader) {
                self.start_fetch(leader, lane, targets);
            }
        }
    }

    fn start_fetch(&mut self, leader: NodeId, lane: Lane, targets: Vec<Target>) {
        self.lanes.insert((leader, lane));
        let plan = FetchPlan::new(&self.core, lane, &targets);
        let ids = Arc::clone(&plan.ids);
        let core = Arc::clone(&self.core);
        self.under_way.push(Box::pin(async move {
            let result = plan.send(&core, leader, lane).await;
            Done::Fetched {
                leader,
                lane,
                targets,
                ids,
                result,
            }
        }));
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

    fn finish(&mut self, done: Done) {
        match done {
            Done::Committed(targets, result) => self.finish_committed(&targets, result),
            Done::LogEnds(targets, answers) => self.finish_log_ends(&targets, answers),
            Done::Fetched {
                leader,
                lane,
                targets,
                ids,
                result,
            } => {
                self.lanes.remove(&(leader, lane));
                match result {
                    Ok(response) => self.finish_fetch(leader, targets, &ids, response),
                    Err(error) => self.fetch_failed(leader, &targets, error),
                }
            }
            Done::Metadata => self.asking_metadata = false,
        }
        self.core.for_poll.notify_one();
    }

    fn again_ms(&self, attempt: u32) -> i64 {
        self.core
            .now_ms()
            .saturating_add(as_ms(self.core.cluster.retry_pause(attempt)))
    }

    fn finish_committed(
        &mut self,
        targets: &[Target],
        result: Result<Vec<(TopicPartition, Committed)>, ClusterError>,
    ) {
        let again_ms = self.again_ms(0);
        let mut positions = self.core.positions();
        let answers = match result {
            Ok(answers) => answers,
            Err(error) => {
                tracing::debug!(%error, "committed offsets not known yet");
                let final_error = matches!(&error, ClusterError::Coordinator { .. });
                for (index, target) in targets.iter().enumerate() {
                    if final_error && index == 0 {
                        positions.report(target, error.clone().into());
                    }
                    positions.release(target, self.core.now_ms().max(again_ms));
                }
                return;
            }
        };
        for (target, (partition, answer)) in targets.iter().zip(answers) {
            match answer {
                Committed::Found(Some(offset)) => {
                    positions.found(target, Position::At(offset.offset));
                }
                Committed::Found(None) => match self.core.reset() {
                    Some(reset) => positions.found(target, reset),
                    None => positions.fail(target, self.core.no_offset(&partition)),
                },
                Committed::Later(code) => {
                    tracing::debug!(%partition, %code, "committed offset not decided yet");
                    positions.release(target, again_ms);
                }
                Committed::Refused(code) => positions.fail(
                    target,
                    ConsumerError::Refused {
                        call: "poll (committed offset)",
                        code,
                        topic_partition: Some(partition),
                    },
                ),
            }
        }
    }

    fn finish_log_ends(&mut self, targets: &[Target], answers: Answers) {
        let again_ms = self.again_ms(0);
        let mut positions = self.core.positions();
        let answers: BTreeMap<TopicPartition, Answer> = answers.into_iter().collect();
        for target in targets {
            let partition = &target.topic_partition;
            match answers.get(partition) {
                Some(Answer::Found(Some(found))) => {
                    tracing::debug!(%partition, offset = found.offset, "position reset");
                    positions.found(target, Position::At(found.offset));
                }
                Some(Answer::Refused(code)) => {
                    let error = ConsumerError::Refused {
                        call: "poll (offset reset)",
                        code: *code,
                        topic_partition: Some(partition.clone()),
                    };
                    positions.fail(target, error);
                }
                Some(Answer::Later(reason)) => {
                    tracing::debug!(%partition, %reason, "position not reset yet");
                    positions.release(target, again_ms);
                }
                Some(Answer::Found(None)) | None => positions.release(target, again_ms),
            }
        }
    }

    fn fetch_failed(&mut self, leader: NodeId, targets: &[Target], error: RequestError) {
        tracing::debug!(%leader, %error, "fetch not answered");
        let failures = self.failures.entry(leader).or_default();
        let attempt = *failures;
        *failures = failures.saturating_add(1);
        let again_ms = self.again_ms(attempt);
        let mut positions = self.core.positions();
        for (index, target) in targets.iter().enumerate() {
            self.stale.insert(Arc::clone(&target.topic_partition.topic));
            if !error.is_retriable() && index == 0 {
                positions.report(target, error.clone().into());
            }
            positions.release(target, again_ms);
        }
    }

    fn finish_fetch(
        &mut self,
        leader: NodeId,
        targets: Vec<Target>,
        ids: &BTreeMap<Uuid, Arc<str>>,
        response: FetchResponse,
    ) {
        self.failures.remove(&leader);
        self.metadata_failures = 0;
        let again_ms = self.again_ms(0);
        let mut parts: BTreeMap<TopicPartition, PartitionData> = BTreeMap::new();
        for topic in response.responses {
            let name = match ids.get(&topic.topic_id) {
                Some(name) => Arc::clone(name),
                None => topic.topic.into(),
            };
            for part in topic.partitions {
                parts.insert(
                    TopicPartition::new(Arc::clone(&name), part.partition_index),
                    part,
                );
            }
        }
        for target in targets {
            let part = parts.remove(&target.topic_partition);
            let code = if response.error_code.is_ok() {
                part.as_ref()
                    .map_or(ErrorCode::NONE, |part| part.error_code)
            } else {
                response.error_code
            };
            match part {
                Some(part) if code.is_ok() => self.take_part(&target, part, again_ms),
                // The answer was full before this partition's turn came.
                None if code.is_ok() => self.core.positions().release(&target, i64::MIN),
                part => self.part_refused(&target, code, part, again_ms),
            }
        }
    }

    fn take_part(&mut self, target: &Target, part: PartitionData, again_ms: i64) {
        let offsets = LogOffsets {
            log_start: part.log_start_offset,
            last_stable: part.last_stable_offset,
            high_watermark: part.high_watermark,
        };
        let aborted = part
            .aborted_transactions
            .unwrap_or_default()
            .into_iter()
            .map(|aborted| (aborted.producer_id, aborted.first_offset));
        let answer = FetchedPartition::new(
            target.topic_partition.clone(),
            target.offset,
            part.records.unwrap_or_default(),
            aborted,
            self.core.decoding(),
        );
        let mut positions = self.core.positions();
        match answer {
            Ok(answer) => positions.fetched(target, answer, offsets),
            Err(wrong) => {
                let error = ConsumerError::Damaged {
                    topic_partition: target.topic_partition.clone(),
                    offset: wrong.offset,
                    cause: wrong.cause,
                };
                positions.report(target, error);
                positions.release(target, again_ms);
            }
        }
    }

    fn part_refused(
        &mut self,
        target: &Target,
        code: ErrorCode,
        part: Option<PartitionData>,
        again_ms: i64,
    ) {
        let partition = &target.topic_partition;
        tracing::debug!(%partition, offset = target.offset, %code, "fetch refused");
        let mut positions = self.core.positions();
        match class(ApiKey::Fetch, code, ErrorContext::Plain) {
            ErrorClass::ResetPosition => {
                // Out of range counts for the position; what is buffered is handed out first.
                if positions.position(partition) != Some(target.offset) {
                    positions.release(target, again_ms);
                    return;
                }
                let reset = self.core.reset();
                match reset.filter(|_| !self.core.config.out_of_range_fails) {
                    Some(reset) => {
                        let offset = target.offset;
                        tracing::warn!(%partition, offset, ?reset, "the log does not hold it");
                        positions.found(target, reset);
                    }
                    None => positions.fail(
                        target,
                        ConsumerError::OffsetOutOfRange {
                            topic_partition: partition.clone(),
                            offset: target.offset,
                            log_start_offset: part.map_or(-1, |part| part.log_start_offset),
                        },
                    ),
                }
            }
            ErrorClass::Retry
            | ErrorClass::RefreshMetadata
            | ErrorClass::FindCoordinator
            | ErrorClass::Ambiguous => {
                self.stale.insert(Arc::clone(&partition.topic));
                positions.release(target, again_ms);
            }
            _ => {
                let error = ConsumerError::FetchRefused {
                    topic_partition: partition.clone(),
                    offset: target.offset,
                    code,
                    client_id: self.core.config.client.client_id.clone(),
                };
                positions.report(target, error);
                positions.release(target, again_ms.max(self.again_ms(3)));
            }
        }
    }
}

/// The lane to use for a leader now, if any.
fn lane(lanes: &BTreeSet<(NodeId, Lane)>, leader: NodeId) -> Option<Lane> {
    match (
        lanes.contains(&(leader, Lane::Main)),
        lanes.contains(&(leader, Lane::Hot)),
    ) {
        (false, false) => Some(Lane::Main),
        (true, false) => Some(Lane::Hot),
        // Back within the hot wait; then all go together again.
        (_, true) => None,
    }
}

fn as_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
