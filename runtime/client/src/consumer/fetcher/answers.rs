//! What the fetcher makes of answers.
//!
//! Invariants: an answer that does not count any more changes nothing; a refusal that a leader
//! change explains leads to new metadata, never to an error; any other one is reported and asked
//! again: a partition stops only where the application has to say where it goes on.
//! Never: asks anything itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_protocol::messages::FetchResponse;
use millstream_protocol::messages::fetch::{LeaderIdAndEpoch, PartitionData};
use millstream_protocol::{ApiKey, ErrorClass, ErrorCode, ErrorContext, TopicPartition, class};

use super::{Done, Fetcher, as_ms};
use crate::cluster::{LeaderHint, NodeId};
use crate::consumer::error::ConsumerError;
use crate::consumer::fetch_request::Lane;
use crate::consumer::fetched::FetchedPartition;
use crate::consumer::lookup::{Answer, Answers};
use crate::consumer::offsets::Committed;
use crate::consumer::positions::{At, Doubt, Landmark, LogOffsets, Position, Target};
use crate::consumer::truncation::Verdict;
use crate::error::{ClusterError, RequestError};
use crate::transport::BrokerAddress;

impl Fetcher {
    pub(super) fn finish(&mut self, done: Done) {
        match done {
            Done::Committed(targets, result) => self.finish_committed(&targets, result),
            Done::Reset(targets, answers) => self.finish_resets(&targets, answers),
            Done::Validated(doubts, verdicts) => self.finish_validation(doubts, verdicts),
            Done::Fetched {
                node,
                lane,
                fetch,
                result,
            } => self.finish_fetch(node, lane, fetch, result),
            Done::Metadata => self.asking_metadata = false,
        }
        self.core.for_poll.notify_one();
    }

    fn finish_committed(
        &mut self,
        targets: &[Target],
        result: Result<Vec<(TopicPartition, Committed)>, ClusterError>,
    ) {
        let (again_ms, refused_again_ms) = (self.again_ms(0), self.again_ms(3));
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
                Committed::Found(Some(committed)) => {
                    let at = At {
                        offset: committed.offset,
                        epoch: committed.leader_epoch,
                    };
                    positions.found(target, Position::At(at));
                }
                Committed::Found(None) => match self.core.reset() {
                    Some(reset) => positions.found(target, reset),
                    None => positions.fail(target, self.core.no_offset(&partition)),
                },
                Committed::Later(code) => {
                    tracing::debug!(%partition, %code, "committed offset not decided yet");
                    positions.release(target, again_ms);
                }
                Committed::Refused(code) => {
                    let error = ConsumerError::Refused {
                        call: "poll (committed offset)",
                        code,
                        topic_partition: Some(partition),
                    };
                    positions.report(target, error);
                    positions.release(target, refused_again_ms);
                }
            }
        }
    }

    fn finish_resets(&mut self, targets: &[(Target, Landmark)], answers: Answers) {
        let (again_ms, refused_again_ms) = (self.again_ms(0), self.again_ms(3));
        let mut positions = self.core.positions();
        let answers: BTreeMap<TopicPartition, Answer> = answers.into_iter().collect();
        for (target, to) in targets {
            let partition = &target.topic_partition;
            match answers.get(partition) {
                Some(Answer::Found(Some(found))) => {
                    let offset = found.offset;
                    tracing::debug!(%partition, offset, ?to, "position reset");
                    let position = match to {
                        Landmark::Ago(age) => Position::Resetting(Landmark::AgoElse(*age, offset)),
                        // Without the epoch: the leader itself has just said it.
                        _ => Position::At(offset.into()),
                    };
                    positions.found(target, position);
                }
                Some(Answer::Refused(code)) => {
                    let error = ConsumerError::Refused {
                        call: "poll (offset reset)",
                        code: *code,
                        topic_partition: Some(partition.clone()),
                    };
                    positions.report(target, error);
                    positions.release(target, refused_again_ms);
                }
                Some(Answer::Later(reason)) => {
                    tracing::debug!(%partition, %reason, "position not reset yet");
                    positions.release(target, again_ms);
                }
                Some(Answer::Found(None)) => match to {
                    // Nothing is that young: what came after the end was asked for is.
                    Landmark::AgoElse(_, end) => {
                        positions.found(target, Position::At((*end).into()));
                    }
                    _ => positions.release(target, again_ms),
                },
                None => positions.release(target, again_ms),
            }
        }
    }

    fn finish_validation(&mut self, doubts: Vec<(Target, Doubt)>, verdicts: Vec<Verdict>) {
        let again_ms = self.again_ms(0);
        let mut positions = self.core.positions();
        let reset = self.core.reset();
        let reset = reset.filter(|_| !self.core.config.out_of_range_fails);
        for ((target, doubt), verdict) in doubts.iter().zip(verdicts) {
            let partition = &target.topic_partition;
            let at = doubt.at;
            let lost = |divergent: Option<At>| ConsumerError::LogTruncation {
                topic_partition: partition.clone(),
                offset: at.offset,
                leader_epoch: doubt.epoch,
                divergent_offset: divergent.map(|at| at.offset),
            };
            match (verdict, reset) {
                (Verdict::Intact, _) => positions.validated(target, at),
                (Verdict::Diverged(to), Some(_)) => {
                    let (from, to_offset) = (at.offset, to.offset);
                    tracing::warn!(%partition, from, to = to_offset, "the log lost what was read");
                    positions.validated(target, to);
                }
                (Verdict::Lost, Some(reset)) => {
                    let offset = at.offset;
                    tracing::warn!(%partition, offset, ?reset, "the log lost what was read");
                    positions.found(target, reset);
                }
                (Verdict::Diverged(to), None) => positions.fail(target, lost(Some(to))),
                (Verdict::Lost, None) => positions.fail(target, lost(None)),
                (Verdict::Later(reason), _) => {
                    tracing::debug!(%partition, %reason, "position not validated yet");
                    self.stale.insert(Arc::clone(&partition.topic));
                    positions.release(target, again_ms);
                }
                (Verdict::Refused(code), _) => {
                    let error = ConsumerError::Refused {
                        call: "poll (validation of the position)",
                        code,
                        topic_partition: Some(partition.clone()),
                    };
                    positions.report(target, error);
                    positions.release(target, again_ms);
                }
            }
        }
    }

    fn finish_fetch(
        &mut self,
        node: NodeId,
        lane: Lane,
        fetch: u64,
        result: Result<FetchResponse, RequestError>,
    ) {
        if let Some(state) = self.lanes.get_mut(&(node, lane)) {
            let before = state.session.open_id();
            state.busy = false;
            match &result {
                Ok(response) => state.session.answered(response),
                Err(_) => state.session.unanswered(),
            }
            let now = state.session.open_id();
            if before != now {
                let mut sessions = self.core.sessions();
                match now {
                    Some(id) => sessions.insert(node, id),
                    None => sessions.remove(&node),
                };
            }
        }
        match result {
            Ok(response) if response.error_code.is_ok() => {
                self.take_answer(node, lane, fetch, response);
            }
            Ok(response) => self.all_refused(node, fetch, response.error_code),
            Err(error) => self.fetch_failed(node, fetch, &error),
        }
    }

    fn fetch_failed(&mut self, node: NodeId, fetch: u64, error: &RequestError) {
        tracing::debug!(%node, %error, "fetch not answered");
        let again_ms = self.failed_again_ms(node);
        let mut positions = self.core.positions();
        for (index, target) in positions.all_in_fetch(fetch).iter().enumerate() {
            self.stale.insert(Arc::clone(&target.topic_partition.topic));
            positions.leave_replica(target, node);
            if !error.is_retriable() && index == 0 {
                positions.report(target, error.clone().into());
            }
        }
        positions.end_fetch(fetch, again_ms);
    }

    /// Counts a failure of the node; when to ask it again.
    fn failed_again_ms(&mut self, node: NodeId) -> i64 {
        let failures = self.failures.entry(node).or_default();
        let attempt = *failures;
        *failures = failures.saturating_add(1);
        self.again_ms(attempt)
    }

    /// The broker refuses the request as a whole.
    fn all_refused(&mut self, node: NodeId, fetch: u64, code: ErrorCode) {
        let of_session = matches!(
            code,
            ErrorCode::FETCH_SESSION_ID_NOT_FOUND
                | ErrorCode::INVALID_FETCH_SESSION_EPOCH
                | ErrorCode::FETCH_SESSION_TOPIC_ID_ERROR
        );
        if of_session {
            let first = !self.failures.contains_key(&node);
            let again_ms = self.failed_again_ms(node);
            tracing::debug!(%node, %code, "the fetch session begins anew");
            let again_ms = if first { i64::MIN } else { again_ms };
            self.core.positions().end_fetch(fetch, again_ms);
            return;
        }
        let again_ms = self.again_ms(0);
        let targets = self.core.positions().all_in_fetch(fetch);
        for target in targets {
            self.part_refused(node, &target, code, None, again_ms);
        }
    }

    fn take_answer(&mut self, node: NodeId, lane: Lane, fetch: u64, response: FetchResponse) {
        self.failures.remove(&node);
        self.metadata_failures = 0;
        let again_ms = self.again_ms(0);
        let adopted = self.adopt_leaders(node, lane, &response);
        for mut topic in response.responses {
            for part in std::mem::take(&mut topic.partitions) {
                let Some(lane) = self.lanes.get(&(node, lane)) else {
                    continue;
                };
                let found = lane.session.find(&topic, part.partition_index);
                let target = found.and_then(|(partition, asked)| {
                    let positions = self.core.positions();
                    positions.in_fetch(partition, fetch, asked.offset)
                });
                let Some(target) = target else {
                    continue;
                };
                if part.error_code.is_ok() {
                    self.take_part(node, &target, part, again_ms);
                } else {
                    // The answer itself named the new leader: no reason to wait.
                    let named = adopted && part.current_leader.leader_epoch >= 0;
                    let again_ms = if named { i64::MIN } else { again_ms };
                    self.part_refused(node, &target, part.error_code, Some(part), again_ms);
                }
            }
        }
        // The rest has nothing new, or the answer was full before its turn came.
        self.core.positions().end_fetch(fetch, i64::MIN);
    }

    /// Takes over what the answer says about leaders that have moved (KIP-951); whether that was
    /// news.
    fn adopt_leaders(&mut self, node: NodeId, lane: Lane, response: &FetchResponse) -> bool {
        let mut hints = Vec::new();
        for topic in &response.responses {
            for part in &topic.partitions {
                let moved = matches!(
                    part.error_code,
                    ErrorCode::NOT_LEADER_OR_FOLLOWER | ErrorCode::FENCED_LEADER_EPOCH
                );
                if moved
                    && let Some(lane) = self.lanes.get(&(node, lane))
                    && let Some((partition, _)) = lane.session.find(topic, part.partition_index)
                    && let Some(hint) = hint(partition, &part.current_leader)
                {
                    hints.push(hint);
                }
            }
        }
        if hints.is_empty() {
            return false;
        }
        let nodes = response.node_endpoints.iter().filter_map(|node| {
            let port = u16::try_from(node.port).ok()?;
            let address = BrokerAddress::new(node.host.clone(), port);
            Some((NodeId(node.node_id), address))
        });
        self.core.cluster.adopt_leaders(&hints, nodes.collect()) > 0
    }

    fn take_part(&mut self, node: NodeId, target: &Target, part: PartitionData, again_ms: i64) {
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
        let named = Some(NodeId(part.preferred_read_replica)).filter(|named| named.0 >= 0);
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
        drop(positions);
        if let Some(named) = named.filter(|named| *named != node) {
            self.go_to_replica(target, named, again_ms);
        }
    }

    /// The leader names a replica to read from, and has sent no record.
    fn go_to_replica(&mut self, target: &Target, replica: NodeId, again_ms: i64) {
        let partition = &target.topic_partition;
        let mut positions = self.core.positions();
        if self.core.cluster.has_replica(partition, replica) {
            tracing::debug!(%partition, %replica, "reading from a replica");
            let age_ms = as_ms(self.core.config.client.metadata_max_age);
            positions.prefer(target, replica, self.core.now_ms().saturating_add(age_ms));
        } else {
            // The metadata is behind.
            self.stale.insert(Arc::clone(&partition.topic));
            positions.release(target, again_ms);
        }
    }

    fn part_refused(
        &mut self,
        node: NodeId,
        target: &Target,
        code: ErrorCode,
        part: Option<PartitionData>,
        again_ms: i64,
    ) {
        let partition = &target.topic_partition;
        tracing::debug!(%partition, offset = target.offset, %code, "fetch refused");
        let mut positions = self.core.positions();
        let of_replica = positions.leave_replica(target, node);
        match class(ApiKey::Fetch, code, ErrorContext::Plain) {
            // It may hold less than the leader, whose word counts.
            ErrorClass::ResetPosition if of_replica => positions.release(target, again_ms),
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

fn hint(partition: &TopicPartition, leader: &LeaderIdAndEpoch) -> Option<LeaderHint> {
    (leader.leader_id >= 0 && leader.leader_epoch >= 0).then(|| LeaderHint {
        partition: partition.clone(),
        leader: NodeId(leader.leader_id),
        epoch: leader.leader_epoch,
    })
}
