//! Transactions: the calls of the application, and the requests that they become.
//!
//! Invariants: one transactional call at a time; a commit that may have been sent is only ever
//! repeated as that commit; the outcome is taken from the coordinator, never assumed.
//! Never: begins new work while an outcome is open.

pub mod machine;
mod requests;

use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

use millstream_protocol::messages::{AddPartitionsToTxnResponse, EndTxnRequest};
use millstream_protocol::{ApiKey, ErrorClass, ErrorCode, ErrorContext, TopicPartition, class};
use tokio::sync::oneshot;
use tokio::time::Instant;

use self::machine::{Event, Refusal, State};
use super::Producer;
use super::idempotence::ProducerIdentity;
use super::sender::Command;
use crate::cluster::{CoordinatorKind, millis};
use crate::error::{ClusterError, TransactionError, UsageError};
use crate::group::{GroupMetadata, OffsetAndMetadata};

/// The answer to adding partitions to a transaction.
pub(super) type AddResult = Result<AddPartitionsToTxnResponse, ClusterError>;

/// How an attempt went.
enum Attempt<T> {
    Done(T),
    /// The same request again; why.
    Again(Arc<str>),
    Stop(TransactionError),
}

/// What the coordinator makes of EndTxn, finally.
enum Ended {
    /// As asked; with the next epoch, where the end brings one.
    AsAsked(Option<ProducerIdentity>),
    /// A commit in doubt that it knows nothing of any more, nor of the id; why.
    Forgotten(Arc<str>),
}

impl Producer {
    fn transactional_id(&self, call: &'static str) -> Result<Arc<str>, TransactionError> {
        self.handle
            .shared
            .transactional_id
            .clone()
            .ok_or(TransactionError::NotTransactional { call })
    }

    /// Where the transactions of this producer stand; `None` without a transactional id.
    #[must_use]
    pub fn transaction_state(&self) -> Option<State> {
        self.handle.shared.state()
    }

    /// Producer id and epoch of a transactional producer, once it is initialised.
    #[must_use]
    pub fn identity(&self) -> Option<ProducerIdentity> {
        self.handle
            .shared
            .with_machine(|machine| machine.identity)?
    }

    fn refusal(&self, refusal: Refusal, call: &'static str, id: Arc<str>) -> TransactionError {
        let known = self.handle.shared.with_machine(|machine| {
            let cause = machine.cause.clone().unwrap_or_else(|| "unknown".into());
            (cause, machine.fenced, machine.identity, machine.newer_epoch)
        });
        let (cause, fenced, identity, newer_epoch) =
            known.unwrap_or_else(|| ("unknown".into(), false, None, None));
        match refusal.state {
            State::AbortableError => TransactionError::Abortable {
                transactional_id: id,
                cause,
                code: None,
            },
            State::FatalError if fenced => TransactionError::Fenced {
                transactional_id: id,
                our_epoch: identity.map_or(-1, |identity| identity.epoch),
                newer_epoch,
            },
            State::FatalError if let Some(error) = self.handle.shared.distrusted() => {
                self.distrusted(error, &id)
            }
            State::FatalError => TransactionError::Fatal {
                transactional_id: id,
                cause,
            },
            state => TransactionError::OutOfOrder {
                transactional_id: id,
                call,
                state: state.name(),
                next_step: refusal.next_step,
            },
        }
    }

    /// Takes an event in, or says why it does not fit; a fenced producer asks who fenced it.
    async fn apply(&self, event: Event, id: &Arc<str>) -> Result<(), TransactionError> {
        let shared = &self.handle.shared;
        if shared.is_closed() && event != Event::Abort {
            let cause = "the producer is closed".into();
            return Err(TransactionError::Fatal {
                transactional_id: Arc::clone(id),
                cause,
            });
        }
        let Err(refusal) = shared.apply(event) else {
            return Ok(());
        };
        if refusal.state == State::FatalError {
            self.learn_newer_epoch(id).await;
        }
        Err(self.refusal(refusal, event.call(), Arc::clone(id)))
    }

    /// Registers the transactional id with its coordinator: gets producer id and epoch, fences the
    /// previous instance, and waits until what that left open is decided. To be called once, and
    /// again where it timed out or a commit is in doubt. Waits at most `max.block.ms`.
    ///
    /// After a commit in doubt the outcome is decided when this returns: read the committed
    /// offsets to learn it.
    ///
    /// # Errors
    /// Where the order of calls is wrong, the cluster's transactions are too old, the coordinator
    /// does not answer in time (call again), or this producer was fenced.
    pub fn init_transactions(&self) -> BoxFuture<'_, Result<(), TransactionError>> {
        Box::pin(async move {
            let id = self.transactional_id("init_transactions()")?;
            let _operation = self.handle.operation.lock().await;
            let started = Instant::now();
            if self.in_doubt() && !self.handle.shared.implicit_add() {
                // Before transaction version 2 a coordinator that is asked for an epoch while the
                // transaction is open takes the asker for its own successor. So the commit is
                // decided first.
                if let Ended::Forgotten(cause) = self.ended(true, &id, started).await? {
                    // Nothing is left to decide there; the id is taken in anew, or a successor has
                    // it.
                    tracing::warn!(
                        transactional_id = %id, %cause,
                        "the coordinator has forgotten what became of a commit in doubt"
                    );
                }
                self.handle
                    .shared
                    .with_machine(|machine| machine.in_doubt = false);
            }
            self.apply(Event::Initialise, &id).await?;
            self.check_version(&id, started).await?;
            let identity = self.initialise(&id, started).await?;
            self.initialised(identity, Event::Initialised, &id).await
        })
    }

    async fn initialised(
        &self,
        identity: ProducerIdentity,
        event: Event,
        id: &Arc<str>,
    ) -> Result<(), TransactionError> {
        tracing::info!(
            transactional_id = %id, producer_id = identity.producer_id, epoch = identity.epoch,
            "transactions initialised"
        );
        self.handle
            .shared
            .with_machine(|machine| machine.identity = Some(identity));
        self.apply(event, id).await
    }

    /// Begins a transaction. Sends nothing by itself.
    ///
    /// # Errors
    /// Where the order of calls is wrong.
    pub fn begin_transaction(&self) -> Result<(), TransactionError> {
        let id = self.transactional_id("begin_transaction()")?;
        if self.handle.shared.is_closed() {
            let cause = "the producer is closed".into();
            return Err(TransactionError::Fatal {
                transactional_id: id,
                cause,
            });
        }
        self.handle
            .shared
            .apply(Event::Begin)
            .map_err(|refusal| self.refusal(refusal, Event::Begin.call(), id))
    }

    /// Short for [`Producer::begin_transaction`].
    ///
    /// # Errors
    /// As there.
    pub fn begin(&self) -> Result<(), TransactionError> {
        self.begin_transaction()
    }

    /// Makes a consumer's positions part of the transaction: they count once it commits. Returns
    /// when the group's coordinator has them. `offsets` are the next offsets to read;
    /// `group` comes from `Consumer::group_metadata`, so that a consumer which lost its membership
    /// cannot commit. Waits at most `max.block.ms`.
    ///
    /// Dropped early it leaves a transaction that can only be aborted.
    ///
    /// # Errors
    /// Where the order of calls is wrong, the metadata would break exactly-once, or the
    /// coordinator refuses: the transaction has failed then.
    pub fn send_offsets<'a>(
        &'a self,
        offsets: &'a [(TopicPartition, OffsetAndMetadata)],
        group: &'a GroupMetadata,
    ) -> BoxFuture<'a, Result<(), TransactionError>> {
        Box::pin(async move {
            let id = self.transactional_id("send_offsets()")?;
            check_group(group)?;
            let _operation = self.handle.operation.lock().await;
            self.apply(Event::SendOffsets, &id).await?;
            if offsets.is_empty() {
                return Ok(());
            }
            self.handle.shared.with_machine(|machine| {
                machine.sent = true;
                machine.offsets_pending = true;
            });
            let result = self.send_offsets_to_coordinator(&id, offsets, group).await;
            match result {
                Ok(()) => {
                    self.handle
                        .shared
                        .with_machine(|machine| machine.offsets_pending = false);
                    Ok(())
                }
                Err(error) => {
                    // Outputs without their offsets must not be committed.
                    self.handle
                        .shared
                        .fail_transaction(&error.to_string().into());
                    Err(error)
                }
            }
        })
    }

    /// Commits: waits for the acknowledgement of every record of the transaction, then asks the
    /// coordinator to commit, for at most `max.block.ms`. With Millstream's broker a reader of
    /// committed data sees the transaction when this returns.
    ///
    /// Dropped early, or in doubt, it may have been committed: call it again.
    ///
    /// # Errors
    /// [`TransactionError::Abortable`] where a record or the offsets failed: nothing was committed,
    /// abort. [`TransactionError::CommitInDoubt`] where the answer did not come.
    pub fn commit(&self) -> BoxFuture<'_, Result<(), TransactionError>> {
        Box::pin(async move {
            let id = self.transactional_id("commit()")?;
            let _operation = self.handle.operation.lock().await;
            if self.handle.shared.state() == Some(State::InTransaction) {
                self.flush_for_commit(&id).await;
            }
            self.apply(Event::Commit, &id).await?;
            let sent = self
                .handle
                .shared
                .with_machine(|machine| machine.sent)
                .unwrap_or(false);
            if !sent {
                return self.apply(Event::Committed, &id).await;
            }
            self.end(true, &id).await
        })
    }

    async fn flush_for_commit(&self, id: &Arc<str>) {
        let shared = &self.handle.shared;
        let waited_for = {
            let mut accumulator = shared.lock();
            if accumulator.gate().is_none() {
                accumulator.set_gate(Some(UsageError::NoTransaction {
                    transactional_id: Arc::clone(id),
                    state: State::Committing.name(),
                }));
            }
            accumulator.seal()
        };
        shared.wake.notify_one();
        for batch in waited_for {
            super::delivery::settled(batch).await;
        }
        if let Some(error) = shared.take_uncounted() {
            shared.fail_transaction(&error.to_string().into());
        }
        if shared.with_machine(|machine| machine.offsets_pending) == Some(true) {
            shared.fail_transaction(&"send_offsets() did not complete".into());
        }
    }

    /// Aborts: drops what was not sent, waits for what is on its way, then asks the coordinator to
    /// abort, for at most `max.block.ms`. Afterwards the consumer has to go back to its committed
    /// offsets.
    ///
    /// # Errors
    /// Where the order of calls is wrong (above all after a commit in doubt), the coordinator does
    /// not answer in time (call again), or this producer was fenced.
    pub fn abort(&self) -> BoxFuture<'_, Result<(), TransactionError>> {
        Box::pin(async move {
            let id = self.transactional_id("abort()")?;
            let _operation = self.handle.operation.lock().await;
            self.apply(Event::Abort, &id).await?;
            let (done, quiet) = oneshot::channel();
            if self.handle.commands.send(Command::Quiesce(done)).is_ok() {
                // Where the sender's task has ended, nothing is on its way.
                let _ = quiet.await;
            }
            // Errors of this transaction are of no interest any more.
            let _ = self.handle.shared.take_uncounted();
            let (sent, renew) = self
                .handle
                .shared
                .with_machine(|machine| (machine.sent, machine.needs_new_epoch))
                .unwrap_or((false, false));
            let ends_first = sent && !self.handle.shared.implicit_add();
            if renew && !ends_first {
                return self.renew(&id, Instant::now()).await;
            }
            if !sent {
                return self.apply(Event::Aborted, &id).await;
            }
            self.end(false, &id).await
        })
    }

    /// Ends a transaction by asking for a new epoch. Under transaction version 2 that aborts it;
    /// before, nothing may be open any more.
    async fn renew(&self, id: &Arc<str>, started: Instant) -> Result<(), TransactionError> {
        let identity = self.initialise(id, started).await?;
        self.apply(Event::Renew, id).await?;
        self.initialised(identity, Event::Initialised, id).await
    }

    pub(super) async fn abort_on_close(&self) {
        let open = matches!(
            self.handle.shared.state(),
            Some(State::InTransaction | State::AbortableError)
        );
        if open && let Err(error) = self.abort().await {
            tracing::warn!(%error, "the open transaction could not be aborted before the close");
        }
    }

    /// Ends the transaction, and takes the outcome over.
    async fn end(&self, committed: bool, id: &Arc<str>) -> Result<(), TransactionError> {
        let started = Instant::now();
        let ended = match self.ended(committed, id, started).await {
            Ok(Ended::AsAsked(next)) => Ok(next),
            Ok(Ended::Forgotten(cause)) => {
                Err(self.out_of_time(call_of(committed), id, started, cause))
            }
            Err(error) => Err(error),
        };
        let shared = &self.handle.shared;
        let renew = shared.with_machine(|machine| {
            if let Ok(Some(identity)) = &ended {
                machine.identity = Some(*identity);
            }
            machine.needs_new_epoch
        });
        match ended {
            Err(TransactionError::Abortable { .. }) if !committed => self.renew(id, started).await,
            Err(error) => Err(error),
            Ok(_) if !committed && renew == Some(true) => self.renew(id, started).await,
            Ok(_) => {
                let event = if committed {
                    Event::Committed
                } else {
                    Event::Aborted
                };
                let noted = self.apply(event, id).await;
                // Committed is committed, whatever has become of the producer meanwhile: the next
                // call says that.
                if committed { Ok(()) } else { noted }
            }
        }
    }

    /// EndTxn, until there is a final answer or `max.block.ms` is over.
    async fn ended(
        &self,
        committed: bool,
        id: &Arc<str>,
        started: Instant,
    ) -> Result<Ended, TransactionError> {
        let call = call_of(committed);
        let mut attempt = 0;
        loop {
            let last = match self.end_once(committed, id, started).await {
                Attempt::Done(ended) => return Ok(ended),
                Attempt::Again(last) => last,
                Attempt::Stop(TransactionError::Security { error, .. }) if self.in_doubt() => {
                    return Err(self.out_of_time(call, id, started, error.to_string().into()));
                }
                Attempt::Stop(error) => return Err(error),
            };
            if !self.pause(attempt, started).await {
                return Err(self.out_of_time(call, id, started, last));
            }
            attempt += 1;
        }
    }

    async fn end_once(&self, committed: bool, id: &Arc<str>, started: Instant) -> Attempt<Ended> {
        let shared = &self.handle.shared;
        // In doubt from before the request until a final answer, also if this future is dropped.
        let (identity, was_in_doubt) = shared
            .with_machine(|machine| {
                let was_in_doubt = machine.in_doubt;
                machine.in_doubt |= committed;
                (machine.identity, was_in_doubt)
            })
            .unwrap_or((None, false));
        let identity = identity.unwrap_or(ProducerIdentity {
            producer_id: -1,
            epoch: -1,
        });
        let request = EndTxnRequest {
            transactional_id: id.to_string(),
            producer_id: identity.producer_id,
            producer_epoch: identity.epoch,
            committed,
        };
        let cap = if shared.implicit_add() { 5 } else { 4 };
        let answer = self
            .ask(CoordinatorKind::Transaction, id, started, cap, |_| request)
            .await;
        let code = match answer {
            Err(error) => {
                if !may_have_been_sent(&error) {
                    shared.with_machine(|machine| machine.in_doubt = was_in_doubt);
                }
                return self.lost(error, id);
            }
            Ok(answer) if answer.error_code.is_ok() => {
                let next = ProducerIdentity {
                    producer_id: answer.producer_id,
                    epoch: answer.producer_epoch,
                };
                let next = Some(next).filter(|next| next.producer_id >= 0);
                return Attempt::Done(Ended::AsAsked(next));
            }
            Ok(answer) => answer.error_code,
        };
        self.end_refused(code, (committed, was_in_doubt), id).await
    }

    /// What a refusal of EndTxn means.
    async fn end_refused(
        &self,
        code: ErrorCode,
        (committed, was_in_doubt): (bool, bool),
        id: &Arc<str>,
    ) -> Attempt<Ended> {
        let shared = &self.handle.shared;
        let cause: Arc<str> = code.to_string().into();
        let transactional_id = Arc::clone(id);
        match class(ApiKey::EndTxn, code, ErrorContext::Transactional) {
            ErrorClass::Retry | ErrorClass::RefreshMetadata | ErrorClass::Ambiguous => {
                Attempt::Again(cause)
            }
            ErrorClass::FindCoordinator => {
                self.handle
                    .cluster
                    .forget_coordinator(CoordinatorKind::Transaction, id);
                Attempt::Again(cause)
            }
            // The coordinator has forgotten the id. What became of a commit that it did not answer
            // before, it has forgotten as well: that stays in doubt.
            _ if code == ErrorCode::INVALID_PRODUCER_ID_MAPPING && was_in_doubt => {
                Attempt::Done(Ended::Forgotten(cause))
            }
            _ if code == ErrorCode::INVALID_PRODUCER_ID_MAPPING => {
                self.fenced_or_forgotten(code, was_in_doubt, id).await
            }
            ErrorClass::AbortTransaction => {
                if was_in_doubt {
                    // An earlier attempt may have committed: only InitProducerId may follow.
                    shared.need_new_epoch();
                }
                shared.fail_transaction(&cause);
                Attempt::Stop(TransactionError::Abortable {
                    transactional_id,
                    cause,
                    code: Some(code),
                })
            }
            ErrorClass::Fenced => self.fenced_or_forgotten(code, was_in_doubt, id).await,
            // Apache Kafka's word for a commit that comes after the coordinator's own abort, or
            // while that is being written. One that was carried out is never answered so, which
            // leaves no doubt: it can be aborted, and that brings the next epoch.
            _ if committed && code == ErrorCode::INVALID_TXN_STATE => {
                Attempt::Stop(self.ended_by_coordinator(code, id))
            }
            // Before transaction version 2: there is nothing to abort, since no partition got into
            // the transaction, or an earlier attempt to commit it was carried out. The next epoch
            // keeps what is on its way out of the next transaction.
            _ if code == ErrorCode::INVALID_TXN_STATE && !shared.implicit_add() => {
                shared.need_new_epoch();
                Attempt::Stop(TransactionError::Abortable {
                    transactional_id,
                    cause,
                    code: Some(code),
                })
            }
            _ => {
                shared.fail_producer(&cause);
                Attempt::Stop(TransactionError::Fatal {
                    transactional_id,
                    cause,
                })
            }
        }
    }

    /// The coordinator has another epoch than ours, or none: a successor's, one of its own after it
    /// aborted a transaction that was open for too long, or it has forgotten the id since. Asking
    /// for an epoch tells them apart: a producer with a successor is refused, one that was only
    /// slow gets its next epoch.
    async fn fenced_or_forgotten<T>(
        &self,
        code: ErrorCode,
        was_in_doubt: bool,
        id: &Arc<str>,
    ) -> Attempt<T> {
        let shared = &self.handle.shared;
        // A commit that was refused is not in doubt by that, also where no epoch comes now.
        shared.with_machine(|machine| machine.in_doubt = was_in_doubt);
        let identity = match self.initialise(id, Instant::now()).await {
            Ok(identity) => identity,
            Err(error) => return Attempt::Stop(error),
        };
        shared.with_machine(|machine| {
            machine.identity = Some(identity);
            // Nothing of this transaction is left at the coordinator.
            machine.sent = false;
            machine.in_doubt = false;
            machine.needs_new_epoch = false;
        });
        Attempt::Stop(self.ended_by_coordinator(code, id))
    }

    fn ended_by_coordinator(&self, code: ErrorCode, id: &Arc<str>) -> TransactionError {
        let cause: Arc<str> = if code == ErrorCode::INVALID_PRODUCER_ID_MAPPING {
            format!(
                "{code}: the coordinator has forgotten the id, which was idle for longer than the \
                 broker's transactional.id.expiration.ms"
            )
        } else {
            let timeout_ms = millis(self.handle.config.transaction_timeout);
            format!(
                "{code}: the coordinator has aborted it, open for longer than \
                 transaction.timeout.ms={timeout_ms}"
            )
        }
        .into();
        self.handle.shared.fail_transaction(&cause);
        TransactionError::Abortable {
            transactional_id: Arc::clone(id),
            cause,
            code: Some(code),
        }
    }

    /// Time is over: what that means for the call.
    fn out_of_time(
        &self,
        call: &'static str,
        id: &Arc<str>,
        started: Instant,
        last: Arc<str>,
    ) -> TransactionError {
        let transactional_id = Arc::clone(id);
        let waited_ms = millis(started.elapsed());
        if self.in_doubt() {
            TransactionError::CommitInDoubt {
                transactional_id,
                waited_ms,
                last,
            }
        } else {
            TransactionError::Timeout {
                transactional_id,
                call,
                waited_ms,
                last,
            }
        }
    }

    /// Whether a commit was sent and its answer is missing.
    fn in_doubt(&self) -> bool {
        let in_doubt = self.handle.shared.with_machine(|machine| machine.in_doubt);
        in_doubt == Some(true)
    }

    fn left(&self, started: Instant) -> Duration {
        self.handle
            .config
            .max_block
            .saturating_sub(started.elapsed())
    }

    /// Waits before the next attempt; false where there is no time for one.
    async fn pause(&self, attempt: u32, started: Instant) -> bool {
        let pause = self.handle.cluster.retry_pause(attempt);
        if self.left(started) <= pause {
            return false;
        }
        tokio::time::sleep(pause).await;
        true
    }

    /// What a request without an answer means: again, unless it can never work.
    fn lost<T>(&self, error: ClusterError, id: &Arc<str>) -> Attempt<T> {
        let cause: Arc<str> = error.to_string().into();
        if let Some(refusal) = error.security() {
            // A commit that was sent may have happened, whatever became of the trust since.
            if !self.in_doubt() {
                self.handle.shared.distrust(refusal);
            }
            return Attempt::Stop(self.distrusted(refusal, id));
        }
        let again = match &error {
            ClusterError::Request(error) => error.is_retriable() || error.may_have_been_sent(),
            ClusterError::CoordinatorTimeout { .. } => true,
            _ => false,
        };
        if again {
            return Attempt::Again(cause);
        }
        self.handle.shared.fail_producer(&cause);
        Attempt::Stop(TransactionError::Fatal {
            transactional_id: Arc::clone(id),
            cause,
        })
    }
}

fn call_of(committed: bool) -> &'static str {
    if committed { "commit()" } else { "abort()" }
}

fn may_have_been_sent(error: &ClusterError) -> bool {
    matches!(error, ClusterError::Request(error) if error.may_have_been_sent())
}

fn check_group(group: &GroupMetadata) -> Result<(), TransactionError> {
    let reason = if group.auto_commit {
        "the consumer commits by itself (enable.auto.commit=true), so its offsets would move \
         without the outputs; build the consumer without auto-commit"
    } else if group.group_id.is_empty() {
        "the group id is empty; build the consumer with group_id(..)"
    } else if group.generation_id >= 0 && group.member_id.is_empty() {
        "a generation without a member id cannot be fenced; use Consumer::group_metadata()"
    } else {
        return Ok(());
    };
    Err(TransactionError::GroupMetadata {
        group_id: group.group_id.clone(),
        reason,
    })
}
