//! What becomes of a batch once something is known: acknowledged, sent again, split, failed.
//!
//! Invariants: only an answer decides; a lost request leaves its batches in doubt, and they are
//! sent again with the same bytes; no batch outlives `delivery.timeout.ms`.
//! Never: looks at an error code where its class will do.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_protocol::messages::produce::PartitionProduceResponse;
use millstream_protocol::messages::{InitProducerIdResponse, ProduceResponse};
use millstream_protocol::{
    ApiKey, BatchError, Compression, ErrorClass, ErrorCode, ErrorContext, ProducerStamp,
    RecordBatch, RecordBatchBuilder, Uuid, class,
};
use rustc_hash::FxHashMap;

use super::delivery::{BatchState, Outcome};
use super::idempotence::{Outstanding, ProducerIdentity, Stage, sequence_after};
use super::sender::{Entry, Sender};
use crate::cluster::millis;
use crate::error::{ClusterError, DeliveryError, RequestError};
use crate::security::SecurityError;

/// What a batch of our own may decompress to when it is split.
const SPLIT_BYTES_MAX: usize = 1 << 30;

impl Sender {
    /// Takes an answer apart.
    pub(super) fn settle(
        &mut self,
        entries: &[Entry],
        topic_ids: &BTreeMap<Uuid, Arc<str>>,
        response: &ProduceResponse,
        now_ms: i64,
    ) {
        self.adopt_leaders(topic_ids, response);
        let mut answers: FxHashMap<(&str, i32), &PartitionProduceResponse> = FxHashMap::default();
        for topic in &response.responses {
            let by_id = topic_ids
                .get(&topic.topic_id)
                .filter(|_| topic.topic_id != Uuid::ZERO);
            let name = by_id.map_or(topic.name.as_str(), |name| name);
            for partition in &topic.partition_responses {
                answers.insert((name, partition.index), partition);
            }
        }
        for entry in entries {
            match answers.get(&(&*entry.topic, entry.partition)) {
                Some(answer) if answer.error_code.is_ok() => self.finish(
                    entry.lane,
                    entry.batch_id,
                    Outcome::Acknowledged {
                        base_offset: answer.base_offset,
                        log_append_time_ms: answer.log_append_time_ms,
                    },
                ),
                Some(answer) => {
                    let message = answer.error_message.as_deref().map(Arc::from);
                    self.refused(entry, answer.error_code, message, now_ms);
                }
                None => {
                    let reason = "the answer does not mention the partition".into();
                    self.again(entry, true, reason, now_ms);
                }
            }
        }
    }

    /// A request without an answer: its batches go again, with the same bytes.
    pub(super) fn settle_lost(&mut self, entries: &[Entry], error: &RequestError, now_ms: i64) {
        let reason: Arc<str> = error.to_string().into();
        tracing::debug!(%error, "a produce request was lost");
        if let Some(refusal) = error.security() {
            for entry in entries {
                self.again(entry, false, Arc::clone(&reason), now_ms);
            }
            return self.distrust(refusal);
        }
        if !error.is_retriable() && !error.may_have_been_sent() {
            self.shared.fail_transaction(&reason);
            for entry in entries {
                self.fail(entry, |state| DeliveryError::Failed {
                    topic_partition: state.topic_partition.clone(),
                    cause: Arc::clone(&reason),
                });
            }
            return;
        }
        self.refresh_wanted = true;
        for entry in entries {
            self.again(
                entry,
                error.may_have_been_sent(),
                Arc::clone(&reason),
                now_ms,
            );
        }
    }

    /// Client and broker do not trust each other: all that waits fails, and so does the producer.
    pub(super) fn distrust(&mut self, refusal: &Arc<SecurityError>) {
        self.shared.distrust(refusal);
        let error = |state: &BatchState, in_doubt| DeliveryError::Security {
            topic_partition: state.topic_partition.clone(),
            error: Arc::clone(refusal),
            in_doubt,
        };
        let unsent = self.shared.lock().drain_all();
        for batch in unsent {
            let failed = error(&batch.state, false);
            self.resolve(&batch.state, Outcome::Failed(failed));
        }
        for index in self.busy.clone() {
            let waiting: Vec<(u64, bool)> = self.lanes.get(index).map_or_else(Vec::new, |lane| {
                let waits = |batch: &&Outstanding| batch.stage != Stage::InFlight;
                let waiting = lane.outstanding.iter().filter(waits);
                waiting
                    .map(|batch| (batch.state.id, batch.in_doubt))
                    .collect()
            });
            for (batch_id, in_doubt) in waiting {
                if let Some(batch) = self.remove(index, batch_id, true) {
                    let failed = error(&batch.state, in_doubt);
                    self.resolve(&batch.state, Outcome::Failed(failed));
                }
            }
        }
    }

    fn context(&self) -> ErrorContext {
        if self.config.transactional_id.is_some() {
            ErrorContext::Transactional
        } else if self.config.idempotence {
            ErrorContext::Idempotent
        } else {
            ErrorContext::Plain
        }
    }

    fn refused(&mut self, entry: &Entry, code: ErrorCode, message: Option<Arc<str>>, now_ms: i64) {
        let Some((position, batch)) = self.find(entry) else {
            return;
        };
        // What a broker says that does not know what went wrong.
        batch.in_doubt |= code == ErrorCode::UNKNOWN_SERVER_ERROR;
        let records = batch.record_count;
        if code == ErrorCode::DUPLICATE_SEQUENCE_NUMBER {
            let outcome = Outcome::Acknowledged {
                base_offset: -1,
                log_append_time_ms: -1,
            };
            return self.finish(entry.lane, entry.batch_id, outcome);
        }
        let reason: Arc<str> = match &message {
            Some(message) => format!("{code}: {message}").into(),
            None => code.to_string().into(),
        };
        let out_of_order = code == ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER;
        if out_of_order && position > 0 {
            // An earlier batch is missing, or not decided: this one waits for it.
            return self.not_next(entry, position, reason, now_ms);
        }
        match class(ApiKey::Produce, code, self.context()) {
            ErrorClass::Retry | ErrorClass::FindCoordinator => {
                self.again(entry, !precedes_append(code), reason, now_ms);
            }
            ErrorClass::RefreshMetadata => {
                self.refresh_wanted = true;
                // A leader that appends and is deposed before the others have the batch says this
                // of a batch that the next leader may have.
                self.again(entry, true, reason, now_ms);
            }
            ErrorClass::Ambiguous => self.again(entry, true, reason, now_ms),
            ErrorClass::BumpEpoch => {
                self.log_parted((entry, position), code, message, reason, now_ms);
            }
            ErrorClass::Reject if code == ErrorCode::MESSAGE_TOO_LARGE && records > 1 => {
                self.split(entry, code, message, now_ms);
            }
            ErrorClass::AbortTransaction => {
                self.shared.note_refusal(code);
                self.reject(entry, code, message);
            }
            ErrorClass::Fenced => {
                self.shared.fence(&reason);
                self.reject(entry, code, message);
            }
            ErrorClass::Fatal if self.config.transactional_id.is_some() => {
                self.shared.fail_producer(&reason);
                self.reject(entry, code, message);
            }
            _ => self.reject(entry, code, message),
        }
    }

    /// The log does not take the batch, and no earlier one is open: batches before it are gone, or
    /// it is in the log and the broker has forgotten it.
    fn log_parted(
        &mut self,
        (entry, position): (&Entry, usize),
        code: ErrorCode,
        message: Option<Arc<str>>,
        reason: Arc<str>,
        now_ms: i64,
    ) {
        let Some(lane) = self.lanes.get_mut(entry.lane) else {
            return;
        };
        lane.broken = true;
        if !lane.is_proved_absent(position) {
            tracing::error!(
                topic = %entry.topic, partition = entry.partition, %code,
                "the log does not continue where this producer left it, and whether it has the \
                 records of an attempt without an answer cannot be known: they are not sent again"
            );
            return self.reject(entry, code, message);
        }
        tracing::error!(
            topic = %entry.topic, partition = entry.partition, %code,
            "the log does not continue where this producer left it: acknowledged records \
             may have been lost; going on with a new epoch"
        );
        self.undone(entry, reason, now_ms);
    }

    /// Not the next one of its log, while earlier batches are open.
    fn not_next(&mut self, entry: &Entry, position: usize, reason: Arc<str>, now_ms: i64) {
        let lane = self.lanes.get(entry.lane);
        if lane.is_some_and(|lane| lane.is_proved_absent(position)) {
            self.undone(entry, reason, now_ms);
        } else {
            self.wait(entry, 0, reason, now_ms);
        }
    }

    fn find(&mut self, entry: &Entry) -> Option<(usize, &mut Outstanding)> {
        let lane = self.lanes.get_mut(entry.lane)?;
        let position = lane.position(entry.batch_id)?;
        lane.outstanding
            .get_mut(position)
            .map(|batch| (position, batch))
    }

    /// The batch waits and goes again.
    fn again(&mut self, entry: &Entry, in_doubt: bool, reason: Arc<str>, now_ms: i64) {
        let retries = self.config.retries;
        let Some((_, batch)) = self.find(entry) else {
            return;
        };
        batch.in_doubt |= in_doubt;
        let attempt = batch.attempts.saturating_sub(1);
        if attempt >= retries && !batch.state.is_resolved() {
            let in_doubt = batch.in_doubt;
            return self.give_up(entry, retries, reason, in_doubt);
        }
        self.wait(entry, attempt, reason, now_ms);
    }

    fn give_up(&mut self, entry: &Entry, retries: u32, last: Arc<str>, in_doubt: bool) {
        let cause = format!(
            "{}-{}: retries={retries} are used up ({last})",
            entry.topic, entry.partition
        );
        self.shared.fail_transaction(&cause.into());
        self.fail(entry, |state| DeliveryError::RetriesExhausted {
            topic_partition: state.topic_partition.clone(),
            retries,
            last: Arc::clone(&last),
            in_doubt,
        });
    }

    /// The answer proves that the batch is not in the log.
    fn undone(&mut self, entry: &Entry, reason: Arc<str>, now_ms: i64) {
        let Some((_, batch)) = self.find(entry) else {
            return;
        };
        batch.in_doubt = false;
        self.wait(entry, 0, reason, now_ms);
    }

    fn wait(&mut self, entry: &Entry, attempt: u32, reason: Arc<str>, now_ms: i64) {
        let pause_ms = self.pause_ms(attempt);
        let Some((_, batch)) = self.find(entry) else {
            return;
        };
        batch.stage = Stage::Waiting {
            not_before_ms: now_ms + pause_ms,
        };
        batch.last = reason;
        self.dropped(entry);
    }

    /// Drops a batch that is not to be sent again: its time was over while it was on its way, or
    /// its transaction is being given up, and nothing of that may be left for the next one.
    fn dropped(&mut self, entry: &Entry) -> bool {
        let given_up = self.shared.transaction_has_failed() || self.shared.is_ending();
        let Some((_, batch)) = self.find(entry) else {
            return true;
        };
        if batch.state.is_resolved() {
            self.remove(entry.lane, entry.batch_id, true);
            return true;
        }
        if given_up {
            self.fail(entry, |state| DeliveryError::Aborted {
                topic_partition: state.topic_partition.clone(),
            });
        }
        given_up
    }

    /// The batch fails with the broker's code, and its transaction with it.
    fn reject(&mut self, entry: &Entry, code: ErrorCode, message: Option<Arc<str>>) {
        let cause: Arc<str> = format!("{}-{}: {code}", entry.topic, entry.partition).into();
        self.shared.fail_transaction(&cause);
        let in_doubt = self.find(entry).is_some_and(|(_, batch)| batch.in_doubt);
        self.fail(entry, |state| DeliveryError::Rejected {
            topic_partition: state.topic_partition.clone(),
            code,
            message: message.clone(),
            in_doubt,
        });
    }

    fn fail(&mut self, entry: &Entry, error: impl FnOnce(&BatchState) -> DeliveryError) {
        let Some(batch) = self.remove(entry.lane, entry.batch_id, true) else {
            return;
        };
        let error = error(&batch.state);
        tracing::debug!(%error, "a batch failed");
        self.resolve(&batch.state, Outcome::Failed(error));
    }

    /// The batch is in the log.
    pub(super) fn finish(&mut self, lane: usize, batch_id: u64, outcome: Outcome) {
        if let Some(batch) = self.remove(lane, batch_id, false) {
            self.resolve(&batch.state, outcome);
        }
    }

    /// Takes a batch out of its lane; a batch that failed leaves a gap in the sequences.
    fn remove(&mut self, lane: usize, batch_id: u64, failed: bool) -> Option<Outstanding> {
        let index = lane;
        let lane = self.lanes.get_mut(index)?;
        let batch = lane.take(batch_id, failed)?;
        if failed {
            self.shared.need_new_epoch_before_version_2();
        }
        if lane.outstanding.is_empty() && !lane.broken {
            self.busy.remove(&index);
        }
        Some(batch)
    }

    /// A new epoch for one partition; false where a new producer id has to be waited for.
    pub(super) fn bump(&mut self, index: usize) -> bool {
        let Some(current) = self.identity else {
            return false;
        };
        let Some(lane) = self.lanes.get_mut(index) else {
            return false;
        };
        let identity = if lane.identity == Some(current) {
            if current.epoch == i16::MAX {
                // Epochs have run out: the next producer id begins at 0.
                self.identity = None;
                return false;
            }
            ProducerIdentity {
                epoch: current.epoch + 1,
                ..current
            }
        } else {
            current
        };
        self.identity = Some(identity);
        let renumbered = lane.renumber(identity);
        if lane.outstanding.is_empty() {
            self.busy.remove(&index);
        }
        if let Err(error) = renumbered {
            tracing::error!(%error, "a batch of this producer could not be numbered anew");
            return false;
        }
        true
    }

    pub(super) fn identified(
        &mut self,
        result: Result<InitProducerIdResponse, ClusterError>,
        now_ms: i64,
    ) {
        let failed = match result {
            Ok(answer) if answer.error_code.is_ok() => {
                self.identity = Some(ProducerIdentity {
                    producer_id: answer.producer_id,
                    epoch: answer.producer_epoch,
                });
                self.identifying.ended(None, now_ms);
                return;
            }
            Ok(answer) => {
                let code = answer.error_code;
                let fatal = matches!(
                    class(ApiKey::InitProducerId, code, ErrorContext::Idempotent),
                    ErrorClass::Fatal | ErrorClass::Fenced | ErrorClass::Reject
                );
                (format!("no producer id: {code}"), fatal)
            }
            Err(ClusterError::Request(error)) if error.is_retriable() => {
                (format!("no producer id: {error}"), false)
            }
            Err(error) => {
                if let Some(refusal) = error.security() {
                    self.identifying.ended(None, now_ms);
                    return self.distrust(refusal);
                }
                (format!("no producer id: {error}"), true)
            }
        };
        let (reason, fatal) = failed;
        let reason: Arc<str> = reason.into();
        tracing::debug!(%reason, fatal, "InitProducerId failed");
        let pause_ms = self.pause_ms(self.identifying.attempt);
        self.identifying.ended(Some(pause_ms), now_ms);
        self.note_last(&reason);
        if fatal {
            self.shared.fail_producer(&reason);
            let cause = |state: &BatchState| DeliveryError::Failed {
                topic_partition: state.topic_partition.clone(),
                cause: Arc::clone(&reason),
            };
            let unsent = self.shared.lock().drain_all();
            for batch in unsent {
                let error = cause(&batch.state);
                self.resolve(&batch.state, Outcome::Failed(error));
            }
        }
    }

    /// Remembers why nothing goes on, for the error of those whose time runs out.
    pub(super) fn note_last(&mut self, reason: &Arc<str>) {
        self.last_trouble = Some(Arc::clone(reason));
    }

    /// Halves a batch that the broker finds too large. The halves have its sequences.
    fn split(&mut self, entry: &Entry, code: ErrorCode, message: Option<Arc<str>>, now_ms: i64) {
        if self.dropped(entry) {
            return;
        }
        let compression = self.config.compression;
        let transactional = self.config.transactional_id.is_some();
        let Some((position, batch)) = self.find(entry) else {
            return;
        };
        let halves = match halves(batch, compression, transactional) {
            Ok(halves) => halves,
            Err(error) => {
                tracing::error!(%error, "a batch that is too large could not be split");
                return self.reject(entry, code, message);
            }
        };
        let Some(whole) = self
            .lanes
            .get_mut(entry.lane)
            .and_then(|l| l.outstanding.remove(position))
        else {
            return;
        };
        let states = self.shared.lock().split(&whole.state, halves.len());
        let mut parts = Vec::with_capacity(halves.len());
        for (offset, ((bytes, count, base_sequence), state)) in
            halves.into_iter().zip(states).enumerate()
        {
            parts.push((count, Arc::clone(&state)));
            if let Some(lane) = self.lanes.get_mut(entry.lane) {
                lane.outstanding.insert(
                    position + offset,
                    Outstanding {
                        state,
                        bytes,
                        base_sequence,
                        record_count: count,
                        created_ms: whole.created_ms,
                        attempts: whole.attempts,
                        // Where the log has the whole batch, it takes neither half.
                        in_doubt: whole.in_doubt,
                        node: whole.node,
                        stage: Stage::Waiting {
                            not_before_ms: now_ms,
                        },
                        last: code.to_string().into(),
                    },
                );
            }
        }
        whole.state.resolve(Outcome::Split(parts.into()));
    }

    /// Fails what has used up its time.
    pub(super) fn expire(&mut self, now_ms: i64) {
        let budget_ms = i64::try_from(self.config.delivery_timeout.as_millis()).unwrap_or(i64::MAX);
        let (unsent, oldest) = self.shared.lock().expire(now_ms.saturating_sub(budget_ms));
        if let Some(created_ms) = oldest {
            self.wake_at(created_ms.saturating_add(budget_ms));
        }
        let trouble = self.last_trouble.clone();
        for batch in unsent {
            let last = trouble
                .clone()
                .unwrap_or_else(|| "the leader is not known".into());
            let error = self.timeout(&batch.state, 0, last, false);
            self.shared.fail_transaction(&error.to_string().into());
            self.resolve(&batch.state, Outcome::Failed(error));
        }
        let busy: Vec<usize> = self.busy.iter().copied().collect();
        for index in busy {
            self.expire_lane(index, now_ms, budget_ms);
        }
    }

    fn expire_lane(&mut self, index: usize, now_ms: i64, budget_ms: i64) {
        let Some(lane) = self.lanes.get(index) else {
            return;
        };
        let mut overdue = Vec::new();
        let mut wake_at_ms = None;
        for batch in &lane.outstanding {
            let due_ms = batch.created_ms.saturating_add(budget_ms);
            if due_ms > now_ms {
                wake_at_ms = Some(due_ms);
                break;
            }
            if !batch.state.is_resolved() {
                let in_flight = batch.stage == Stage::InFlight;
                let in_doubt = batch.in_doubt || in_flight;
                let last = Arc::clone(&batch.last);
                overdue.push((
                    Arc::clone(&batch.state),
                    batch.attempts,
                    last,
                    in_doubt,
                    in_flight,
                ));
            }
        }
        if let Some(at_ms) = wake_at_ms {
            self.wake_at(at_ms);
        }
        for (state, attempts, last, in_doubt, in_flight) in overdue {
            let error = self.timeout(&state, attempts, last, in_doubt);
            self.shared.fail_transaction(&error.to_string().into());
            if !in_flight {
                self.remove(index, state.id, true);
            }
            // One that is in flight stays in its lane until its fate is known: a new epoch must
            // wait for that.
            self.resolve(&state, Outcome::Failed(error));
        }
    }

    fn timeout(
        &self,
        state: &BatchState,
        attempts: u32,
        last: Arc<str>,
        in_doubt: bool,
    ) -> DeliveryError {
        DeliveryError::Timeout {
            topic_partition: state.topic_partition.clone(),
            timeout_ms: millis(self.config.delivery_timeout),
            attempts,
            last,
            in_doubt,
        }
    }

    /// Fails what waits; what is on its way is left to its answer.
    pub(super) fn drop_unsent(&mut self) {
        let unsent = self.shared.lock().drain_all();
        for batch in unsent {
            let topic_partition = batch.state.topic_partition.clone();
            self.resolve(
                &batch.state,
                Outcome::Failed(DeliveryError::Aborted { topic_partition }),
            );
        }
        let busy: Vec<usize> = self.busy.iter().copied().collect();
        for index in busy {
            let Some(lane) = self.lanes.get(index) else {
                continue;
            };
            let waiting: Vec<u64> = lane
                .outstanding
                .iter()
                .filter(|batch| batch.stage != Stage::InFlight)
                .map(|batch| batch.state.id)
                .collect();
            for batch_id in waiting {
                if let Some(batch) = self.remove(index, batch_id, true) {
                    let topic_partition = batch.state.topic_partition.clone();
                    let error = DeliveryError::Aborted { topic_partition };
                    self.resolve(&batch.state, Outcome::Failed(error));
                }
            }
        }
    }

    /// Fails everything, sent or not.
    pub(super) fn stop(&mut self) {
        let unsent = self.shared.lock().drain_all();
        let closed = |state: &BatchState, in_doubt| {
            let topic_partition = state.topic_partition.clone();
            Outcome::Failed(DeliveryError::Closed {
                topic_partition,
                in_doubt,
            })
        };
        for batch in unsent {
            self.resolve(&batch.state, closed(&batch.state, false));
        }
        let lanes = std::mem::take(&mut self.lanes);
        for batch in lanes.into_iter().flat_map(|lane| lane.outstanding) {
            let in_doubt = batch.in_doubt || batch.stage == Stage::InFlight;
            self.resolve(&batch.state, closed(&batch.state, in_doubt));
        }
        self.busy.clear();
    }
}

/// Whether a broker says this before it appends anything. What is not listed, it may also say, or
/// find out, while the batch waits for the other replicas.
fn precedes_append(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::NOT_ENOUGH_REPLICAS
            | ErrorCode::CORRUPT_MESSAGE
            | ErrorCode::CONCURRENT_TRANSACTIONS
            | ErrorCode::COORDINATOR_LOAD_IN_PROGRESS
            | ErrorCode::COORDINATOR_NOT_AVAILABLE
            | ErrorCode::NOT_COORDINATOR
    )
}

/// Both halves of a batch: bytes, number of records, first sequence.
fn halves(
    batch: &Outstanding,
    compression: Compression,
    transactional: bool,
) -> Result<Vec<(bytes::Bytes, i32, i32)>, BatchError> {
    let parsed = RecordBatch::parse(batch.bytes.clone())?;
    let first_count = batch.record_count / 2;
    let mut halves = Vec::with_capacity(2);
    let mut builder = RecordBatchBuilder::with_capacity(compression, batch.bytes.len());
    let mut base_sequence = parsed.base_sequence();
    for record in parsed.records(SPLIT_BYTES_MAX)? {
        let record = record?;
        builder.append_with(
            record.timestamp,
            record.key.as_deref(),
            record.value.as_deref(),
            &record.headers,
        );
        let count = builder.record_count();
        let full = if halves.is_empty() {
            first_count
        } else {
            batch.record_count - first_count
        };
        if count == full {
            let stamp = ProducerStamp {
                producer_id: parsed.producer_id(),
                producer_epoch: parsed.producer_epoch(),
                base_sequence,
                transactional,
            };
            halves.push((builder.finish(stamp)?, count, base_sequence));
            if base_sequence >= 0 {
                base_sequence = sequence_after(base_sequence, count);
            }
        }
    }
    Ok(halves)
}
