//! The requests of transactions other than EndTxn: ids and epochs, offsets, partitions.
//!
//! Invariants: each is repeated as it was until a final answer or the end of patience.
//! Never: decides what the application should do next; that is the machine's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_protocol::messages::add_partitions_to_txn::AddPartitionsToTxnTopic;
use millstream_protocol::messages::txn_offset_commit::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use millstream_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, DescribeTransactionsRequest,
    InitProducerIdRequest, TxnOffsetCommitRequest,
};
use millstream_protocol::{
    ApiKey, ErrorClass, ErrorCode, ErrorContext, Request, TopicPartition, class,
};
use tokio::time::Instant;

use super::super::Producer;
use super::super::idempotence::ProducerIdentity;
use super::super::sender::{Event, Sender};
use super::super::shared::Ticket;
use super::{AddResult, Attempt};
use crate::cluster::{CoordinatorKind, millis};
use crate::error::{ClusterError, TransactionError};
use crate::group::{GroupMetadata, OffsetAndMetadata};
use crate::security::SecurityError;

/// How long is waited for the answer that only makes an error's text better.
const FENCED_BY_PATIENCE: Duration = Duration::from_secs(2);
/// The longest pause while a previous transaction's markers are on their way.
const MARKERS_PAUSE_MS: i64 = 20;

impl Producer {
    /// One request to a coordinator, with whatever time is left.
    pub(super) async fn ask<R: Request>(
        &self,
        kind: CoordinatorKind,
        key: &str,
        started: Instant,
        cap: i16,
        build: impl FnOnce(i16) -> R + Send,
    ) -> Result<R::Response, ClusterError> {
        let patience = self.left(started).max(Duration::from_millis(1));
        self.handle
            .cluster
            .ask_coordinator(kind, key, patience, cap, build)
            .await
    }

    /// Checks that the cluster's transactions are what exactly-once needs.
    pub(super) async fn check_version(
        &self,
        id: &Arc<str>,
        started: Instant,
    ) -> Result<(), TransactionError> {
        let mut attempt = 0;
        loop {
            let last = match self.handle.cluster.feature("transaction.version").await {
                Ok(found) if found >= 2 => {
                    self.handle.shared.set_implicit_add(true);
                    return Ok(());
                }
                Ok(found) if self.handle.config.allow_transaction_version_below_2 => {
                    tracing::warn!(
                        found,
                        "transaction.version is below 2: a delayed message of one transaction can \
                         end up in the next"
                    );
                    self.handle.shared.set_implicit_add(false);
                    return Ok(());
                }
                Ok(found) => return Err(TransactionError::TransactionVersion { found }),
                Err(error @ ClusterError::NoBootstrap) => {
                    let cause = error.to_string().into();
                    let transactional_id = Arc::clone(id);
                    return Err(TransactionError::Fatal {
                        transactional_id,
                        cause,
                    });
                }
                Err(error) => match error.security() {
                    Some(refusal) => return Err(self.distrusted(refusal, id)),
                    None => error.to_string().into(),
                },
            };
            if !self.pause(attempt, started).await {
                return Err(self.timed_out("init_transactions()", id, started, last));
            }
            attempt += 1;
        }
    }

    pub(super) fn distrusted(&self, error: &Arc<SecurityError>, id: &Arc<str>) -> TransactionError {
        TransactionError::Security {
            transactional_id: Arc::clone(id),
            error: Arc::clone(error),
        }
    }

    fn timed_out(
        &self,
        call: &'static str,
        id: &Arc<str>,
        started: Instant,
        last: Arc<str>,
    ) -> TransactionError {
        let waited_ms = millis(started.elapsed());
        TransactionError::Timeout {
            transactional_id: Arc::clone(id),
            call,
            waited_ms,
            last,
        }
    }

    /// InitProducerId, until there is a final answer. What is left open by an instance before is
    /// waited out.
    pub(super) async fn initialise(
        &self,
        id: &Arc<str>,
        started: Instant,
    ) -> Result<ProducerIdentity, TransactionError> {
        let mut attempt = 0;
        loop {
            let last = match self.initialise_once(id, started).await {
                Attempt::Done(identity) => return Ok(identity),
                Attempt::Again(last) => last,
                Attempt::Stop(error) => return Err(error),
            };
            if !self.pause(attempt, started).await {
                return Err(self.timed_out("init_transactions()", id, started, last));
            }
            attempt += 1;
        }
    }

    async fn initialise_once(&self, id: &Arc<str>, started: Instant) -> Attempt<ProducerIdentity> {
        let known = self.identity();
        let timeout_ms = self.handle.config.transaction_timeout.as_millis();
        let request = InitProducerIdRequest {
            transactional_id: Some(id.to_string()),
            transaction_timeout_ms: i32::try_from(timeout_ms).unwrap_or(i32::MAX),
            producer_id: known.map_or(-1, |identity| identity.producer_id),
            producer_epoch: known.map_or(-1, |identity| identity.epoch),
        };
        let cap = i16::MAX;
        let answer = self
            .ask(CoordinatorKind::Transaction, id, started, cap, |_| request)
            .await;
        let code = match answer {
            Err(error) => return self.lost(error, id),
            Ok(answer) if answer.error_code.is_ok() => {
                return Attempt::Done(ProducerIdentity {
                    producer_id: answer.producer_id,
                    epoch: answer.producer_epoch,
                });
            }
            Ok(answer) => answer.error_code,
        };
        let cause: Arc<str> = code.to_string().into();
        match class(ApiKey::InitProducerId, code, ErrorContext::Transactional) {
            ErrorClass::Retry
            | ErrorClass::RefreshMetadata
            | ErrorClass::Ambiguous
            | ErrorClass::AbortTransaction => Attempt::Again(cause),
            ErrorClass::FindCoordinator => {
                self.handle
                    .cluster
                    .forget_coordinator(CoordinatorKind::Transaction, id);
                Attempt::Again(cause)
            }
            ErrorClass::Fenced => Attempt::Stop(self.fenced(&cause, id).await),
            _ => {
                self.handle.shared.fail_producer(&cause);
                Attempt::Stop(TransactionError::Fatal {
                    transactional_id: Arc::clone(id),
                    cause,
                })
            }
        }
    }

    /// The coordinator says that a newer instance has taken over.
    pub(super) async fn fenced(&self, cause: &Arc<str>, id: &Arc<str>) -> TransactionError {
        self.handle.shared.fence(cause);
        self.learn_newer_epoch(id).await;
        let known = self.handle.shared.with_machine(|machine| {
            (
                machine.identity.map_or(-1, |identity| identity.epoch),
                machine.newer_epoch,
            )
        });
        let (our_epoch, newer_epoch) = known.unwrap_or((-1, None));
        TransactionError::Fenced {
            transactional_id: Arc::clone(id),
            our_epoch,
            newer_epoch,
        }
    }

    /// Asks the coordinator for the epoch of whoever fenced this producer, once.
    pub(super) async fn learn_newer_epoch(&self, id: &Arc<str>) {
        let unknown = self
            .handle
            .shared
            .with_machine(|machine| machine.fenced && machine.newer_epoch.is_none());
        if unknown != Some(true) {
            return;
        }
        let request = DescribeTransactionsRequest {
            transactional_ids: vec![id.to_string()],
        };
        let asked = self.handle.cluster.ask_coordinator(
            CoordinatorKind::Transaction,
            id,
            FENCED_BY_PATIENCE,
            i16::MAX,
            |_| request,
        );
        let answer = tokio::time::timeout(FENCED_BY_PATIENCE, asked).await;
        let Ok(Ok(answer)) = answer else { return };
        let found = answer
            .transaction_states
            .into_iter()
            .find(|state| state.error_code.is_ok() && state.transactional_id == **id);
        if let Some(found) = found {
            self.handle
                .shared
                .with_machine(|machine| machine.newer_epoch = Some(found.producer_epoch));
        }
    }

    pub(super) async fn send_offsets_to_coordinator(
        &self,
        id: &Arc<str>,
        offsets: &[(TopicPartition, OffsetAndMetadata)],
        group: &GroupMetadata,
    ) -> Result<(), TransactionError> {
        let started = Instant::now();
        let mut attempt = 0;
        let mut added = self.handle.shared.implicit_add();
        loop {
            let outcome = if added {
                self.commit_offsets_once(id, offsets, group, started).await
            } else {
                match self.add_offsets_once(id, group, started).await {
                    Attempt::Done(()) => {
                        added = true;
                        continue;
                    }
                    other => other,
                }
            };
            let last = match outcome {
                Attempt::Done(()) => return Ok(()),
                Attempt::Again(last) => last,
                Attempt::Stop(error) => return Err(error),
            };
            if !self.pause(attempt, started).await {
                let cause = self
                    .timed_out("send_offsets()", id, started, last)
                    .to_string();
                let transactional_id = Arc::clone(id);
                return Err(TransactionError::Abortable {
                    transactional_id,
                    cause: cause.into(),
                    code: None,
                });
            }
            attempt += 1;
        }
    }

    /// Transaction version 1: the group's offsets become part of the transaction.
    async fn add_offsets_once(
        &self,
        id: &Arc<str>,
        group: &GroupMetadata,
        started: Instant,
    ) -> Attempt<()> {
        let identity = self.identity().unwrap_or(ProducerIdentity {
            producer_id: -1,
            epoch: -1,
        });
        let request = AddOffsetsToTxnRequest {
            transactional_id: id.to_string(),
            producer_id: identity.producer_id,
            producer_epoch: identity.epoch,
            group_id: group.group_id.clone(),
        };
        let kind = CoordinatorKind::Transaction;
        match self.ask(kind, id, started, i16::MAX, |_| request).await {
            Err(error) => self.lost(error, id),
            Ok(answer) => {
                let key: &str = id;
                self.judge(ApiKey::AddOffsetsToTxn, answer.error_code, kind, key, id)
                    .await
            }
        }
    }

    async fn commit_offsets_once(
        &self,
        id: &Arc<str>,
        offsets: &[(TopicPartition, OffsetAndMetadata)],
        group: &GroupMetadata,
        started: Instant,
    ) -> Attempt<()> {
        let identity = self.identity().unwrap_or(ProducerIdentity {
            producer_id: -1,
            epoch: -1,
        });
        let request = TxnOffsetCommitRequest {
            transactional_id: id.to_string(),
            group_id: group.group_id.clone(),
            producer_id: identity.producer_id,
            producer_epoch: identity.epoch,
            generation_id: group.generation_id,
            member_id: group.member_id.clone(),
            group_instance_id: group.group_instance_id.clone(),
            topics: offset_topics(offsets),
        };
        // From version 5 on the broker adds the offsets to the transaction by itself.
        let cap = if self.handle.shared.implicit_add() {
            5
        } else {
            4
        };
        let kind = CoordinatorKind::Group;
        let answer = match self
            .ask(kind, &group.group_id, started, cap, |_| request)
            .await
        {
            Err(error) => return self.lost(error, id),
            Ok(answer) => answer,
        };
        let codes = answer.topics.iter().flat_map(|topic| {
            topic
                .partitions
                .iter()
                .map(|partition| partition.error_code)
        });
        let refused: Vec<ErrorCode> = codes.filter(|code| !code.is_ok()).collect();
        // A refusal that ends the transaction counts more than one that passes.
        let retriable = |code: &ErrorCode| {
            matches!(
                class(ApiKey::TxnOffsetCommit, *code, ErrorContext::Transactional),
                ErrorClass::Retry | ErrorClass::RefreshMetadata | ErrorClass::FindCoordinator
            )
        };
        let worst = refused
            .iter()
            .find(|code| !retriable(code))
            .or(refused.first());
        let code = worst.copied().unwrap_or(ErrorCode::NONE);
        self.judge(ApiKey::TxnOffsetCommit, code, kind, &group.group_id, id)
            .await
    }

    /// What an answer means for the open transaction.
    async fn judge(
        &self,
        api: ApiKey,
        code: ErrorCode,
        kind: CoordinatorKind,
        key: &str,
        id: &Arc<str>,
    ) -> Attempt<()> {
        if code.is_ok() {
            return Attempt::Done(());
        }
        let cause: Arc<str> = format!("{api:?}: {code}").into();
        let transactional_id = Arc::clone(id);
        let abortable = match class(api, code, ErrorContext::Transactional) {
            ErrorClass::Retry | ErrorClass::RefreshMetadata | ErrorClass::Ambiguous => {
                return Attempt::Again(cause);
            }
            ErrorClass::FindCoordinator => {
                self.handle.cluster.forget_coordinator(kind, key);
                return Attempt::Again(cause);
            }
            // The group's log saw an old epoch; whether a newer producer is to blame, the
            // transaction coordinator says when it is asked to abort, or for a new one.
            ErrorClass::Fenced if code == ErrorCode::INVALID_PRODUCER_EPOCH => true,
            // The consumer was replaced, not the producer.
            ErrorClass::Fenced => code == ErrorCode::FENCED_INSTANCE_ID,
            class => class == ErrorClass::AbortTransaction,
        };
        if abortable {
            self.handle.shared.note_refusal(code);
            self.handle.shared.fail_transaction(&cause);
            return Attempt::Stop(TransactionError::Abortable {
                transactional_id,
                cause,
                code: Some(code),
            });
        }
        if class(api, code, ErrorContext::Transactional) == ErrorClass::Fenced {
            return Attempt::Stop(self.fenced(&cause, id).await);
        }
        self.handle.shared.fail_producer(&cause);
        Attempt::Stop(TransactionError::Fatal {
            transactional_id,
            cause,
        })
    }
}

fn offset_topics(
    offsets: &[(TopicPartition, OffsetAndMetadata)],
) -> Vec<TxnOffsetCommitRequestTopic> {
    let mut topics: BTreeMap<&str, Vec<TxnOffsetCommitRequestPartition>> = BTreeMap::new();
    for (partition, position) in offsets {
        topics
            .entry(&partition.topic)
            .or_default()
            .push(TxnOffsetCommitRequestPartition {
                partition_index: partition.partition,
                committed_offset: position.offset,
                committed_leader_epoch: position.leader_epoch.unwrap_or(-1),
                committed_metadata: Some(position.metadata.clone()),
            });
    }
    topics
        .into_iter()
        .map(|(name, partitions)| TxnOffsetCommitRequestTopic {
            name: name.to_owned(),
            partitions,
        })
        .collect()
}

impl Sender {
    /// Transaction version 1: partitions become part of the transaction before they are written.
    pub(in super::super) fn add_partitions(
        &mut self,
        lanes: Vec<usize>,
        ticket: &Ticket,
        now_ms: i64,
    ) {
        let Some(id) = self.config.transactional_id.clone() else {
            return;
        };
        let lanes: Vec<usize> = lanes
            .into_iter()
            .filter(|lane| !self.added.contains(lane))
            .collect();
        if lanes.is_empty() {
            return;
        }
        if !self.adding.may_start(now_ms) {
            if !self.adding.on_its_way {
                self.wake_at(self.adding.not_before_ms);
            }
            return;
        }
        self.adding.on_its_way = true;
        self.shared.note_sent();
        let mut topics: BTreeMap<Arc<str>, Vec<i32>> = BTreeMap::new();
        {
            let accumulator = self.shared.lock();
            for lane in &lanes {
                let partition = accumulator.topic_partition(*lane);
                topics
                    .entry(Arc::clone(&partition.topic))
                    .or_default()
                    .push(partition.partition);
            }
        }
        let topics = topics
            .into_iter()
            .map(|(name, partitions)| AddPartitionsToTxnTopic {
                name: name.to_string(),
                partitions,
            });
        let request = AddPartitionsToTxnRequest {
            v3_and_below_transactional_id: id.to_string(),
            v3_and_below_producer_id: ticket.identity.producer_id,
            v3_and_below_producer_epoch: ticket.identity.epoch,
            v3_and_below_topics: topics.collect(),
            ..Default::default()
        };
        let number = ticket.number;
        let cluster = self.cluster.clone();
        let patience = self.config.max_block;
        self.events.push(Box::pin(async move {
            let kind = CoordinatorKind::Transaction;
            // Version 4 and above are between brokers.
            let result = cluster
                .ask_coordinator(kind, &id, patience, 3, |_| request)
                .await;
            Event::PartitionsAdded {
                lanes,
                number,
                result,
            }
        }));
    }

    pub(in super::super) fn partitions_added(
        &mut self,
        lanes: Vec<usize>,
        number: u64,
        result: AddResult,
        now_ms: i64,
    ) {
        let code = match &result {
            Ok(answer) => {
                let topics = answer.results_by_topic_v3_and_below.iter();
                let codes = topics.flat_map(|topic| &topic.results_by_partition);
                codes
                    .map(|partition| partition.partition_error_code)
                    .find(|code| !code.is_ok())
                    .unwrap_or(ErrorCode::NONE)
            }
            Err(_) => ErrorCode::NETWORK_EXCEPTION,
        };
        if code.is_ok() {
            self.adding.ended(None, now_ms);
            if number == self.added_in {
                self.added.extend(lanes);
            }
            return;
        }
        let mut pause_ms = self.pause_ms(self.adding.attempt);
        if code == ErrorCode::CONCURRENT_TRANSACTIONS {
            pause_ms = pause_ms.min(MARKERS_PAUSE_MS);
        }
        self.adding.ended(Some(pause_ms), now_ms);
        let cause: Arc<str> = match &result {
            Err(error) => format!("AddPartitionsToTxn: {error}").into(),
            Ok(_) => format!("AddPartitionsToTxn: {code}").into(),
        };
        self.note_last(&cause);
        match class(
            ApiKey::AddPartitionsToTxn,
            code,
            ErrorContext::Transactional,
        ) {
            ErrorClass::Retry | ErrorClass::RefreshMetadata | ErrorClass::Ambiguous => {}
            ErrorClass::FindCoordinator => {
                if let Some(id) = &self.config.transactional_id {
                    self.cluster
                        .forget_coordinator(CoordinatorKind::Transaction, id);
                }
            }
            ErrorClass::AbortTransaction => {
                self.shared.note_refusal(code);
                self.shared.fail_transaction(&cause);
            }
            ErrorClass::Fenced => self.shared.fence(&cause),
            _ => self.shared.fail_producer(&cause),
        }
    }
}
