//! One poll: duties of the membership first, then records.
//!
//! Invariants: no record is handed out between the start and the end of a duty; a duty is done
//! once, by however many polls that takes; a failed member gives everything up before it reports.
//! Never: fetches; it waits for the fetcher's bell.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use futures::future::BoxFuture;
use millstream_protocol::TopicPartition;
use tokio::time::Instant;

use super::assignor::RebalanceProtocol;
use super::consumer::{AutomaticCommits, Consumer, DutySlot, Mode};
use super::error::ConsumerError;
use super::listener::RebalanceListener;
use super::membership::{Ask, Duty, GiveUp, Group};
use super::offsets::Attempts;
use super::records::ConsumerRecords;

type Work = BoxFuture<'static, Result<(), ConsumerError>>;

/// Puts an unfinished duty back when its poll is dropped.
struct Unfinished<'a> {
    consumer: &'a Consumer,
    work: Option<Work>,
}

/// Ends the poll that has the turn, until this is dropped.
struct Interrupt<'a>(&'a AtomicBool);

impl Drop for Interrupt<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.consumer.duty_slot().0 = Some(work);
        }
    }
}

impl Consumer {
    fn duty_slot(&self) -> std::sync::MutexGuard<'_, DutySlot> {
        self.inner
            .duty
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn poll_until(
        &self,
        deadline: Instant,
    ) -> Result<ConsumerRecords, ConsumerError> {
        let core = &self.inner.core;
        // Taken before the turn, so that the wait for another poll counts as polling too.
        let _polling = self.inner.group.as_ref().map(Group::polling);
        let Ok(_turn) = tokio::time::timeout_at(deadline, self.inner.turn.lock()).await else {
            return Ok(ConsumerRecords::default());
        };
        loop {
            if self.inner.interrupt.load(Ordering::Relaxed) {
                return Ok(ConsumerRecords::default());
            }
            let listener = match &*self.mode() {
                Mode::Closed => return Err(ConsumerError::Closed),
                Mode::Idle => return Err(ConsumerError::NoPartitions),
                Mode::Assigned => None,
                Mode::Subscribed(listener) => Some(Arc::clone(listener)),
            };
            if let (Some(listener), Some(group)) = (listener, &self.inner.group) {
                self.serve(group, &listener).await?;
            }
            self.commit_if_due();
            let taken = core.positions().take(core.config.max_poll_records);
            if !matches!(&taken, Ok(records) if records.partitions.is_empty()) {
                core.for_fetcher.notify_one();
                return taken;
            }
            if let Some(refusal) = core.take_refusal() {
                return Err(refusal.into());
            }
            let rung = core.for_poll.notified();
            if tokio::time::timeout_at(deadline, rung).await.is_err() {
                // A poll that may not wait still lets the background tasks run.
                tokio::task::yield_now().await;
                // What only a seek helps is told as long as nothing else comes.
                let stuck = core.positions().stuck();
                return stuck.map_or_else(|| Ok(ConsumerRecords::default()), Err);
            }
        }
    }

    /// Waits for the turn, ending the poll that has it.
    pub(super) async fn take_turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.inner.interrupt.store(true, Ordering::Relaxed);
        // Polls go on also where the wait is dropped.
        let _interrupt = Interrupt(&self.inner.interrupt);
        self.inner.core.for_poll.notify_one();
        self.inner.turn.lock().await
    }

    /// Brings to its end what a dropped poll has begun.
    pub(super) async fn finish_duty(&self, group: &Arc<Group>) {
        let unfinished = self.duty_slot().0.take();
        if let Some(work) = unfinished {
            // What it reports is for polls, and there will be none.
            let _ = work.await;
            group.lock().at_work = false;
        }
    }

    /// Does what the membership asks for, until there is nothing more.
    async fn serve(
        &self,
        group: &Arc<Group>,
        listener: &Arc<dyn RebalanceListener>,
    ) -> Result<(), ConsumerError> {
        loop {
            let unfinished = self.duty_slot().0.take();
            let work = match unfinished {
                Some(work) => work,
                None => match self.next_work(group, listener)? {
                    Some(work) => work,
                    None => return Ok(()),
                },
            };
            let mut running = Unfinished {
                consumer: self,
                work: Some(work),
            };
            let result = match running.work.as_mut() {
                Some(work) => work.await,
                None => Ok(()),
            };
            running.work = None;
            group.lock().at_work = false;
            result?;
        }
    }

    fn next_work(
        &self,
        group: &Arc<Group>,
        listener: &Arc<dyn RebalanceListener>,
    ) -> Result<Option<Work>, ConsumerError> {
        let mut state = group.lock();
        let task = Task {
            consumer: self.without_tasks(),
            group: Arc::clone(group),
            listener: Arc::clone(listener),
        };
        if let Some(failed) = state.failed.clone() {
            if state.owned.is_empty() {
                return Err(failed);
            }
            state.at_work = true;
            return Ok(Some(Box::pin(async move {
                task.lose_all().await;
                Err(failed)
            })));
        }
        let Some(duty) = state.duties.pop_front() else {
            return Ok(None);
        };
        state.at_work = true;
        Ok(Some(Box::pin(async move { task.perform(duty).await })))
    }

    /// Starts an automatic commit where its time has come and none is under way. One that fails is
    /// logged and not repeated: the next one, which is newer, follows soon.
    pub(super) fn commit_if_due(&self) {
        if !self.inner.core.config.enable_auto_commit {
            return;
        }
        let mut automatic = self.automatic_commits();
        let under_way = automatic.under_way.as_ref();
        if automatic.due > Instant::now() || under_way.is_some_and(|task| !task.is_finished()) {
            return;
        }
        automatic.due = Instant::now() + self.inner.core.config.auto_commit_interval;
        let (consumer, offsets) = (self.without_tasks(), self.offsets_to_commit());
        let group = self.inner.group.as_ref();
        let tenure = group.map(|group| group.lock().tenure(offsets.iter().map(|(p, _)| p)));
        let task = tokio::spawn(async move {
            let done = consumer
                .commit_within(&offsets, tenure, Attempts::One)
                .await;
            if let Err(error) = done {
                tracing::warn!(%error, "automatic commit failed");
                let soon = Instant::now() + consumer.config().client.retry_backoff_max;
                let mut automatic = consumer.automatic_commits();
                automatic.due = automatic.due.min(soon);
            }
        });
        automatic.under_way = Some(task);
    }

    fn automatic_commits(&self) -> std::sync::MutexGuard<'_, AutomaticCommits> {
        let automatic = self.inner.automatic_commits.lock();
        automatic.unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing of an automatic commit is sent any more once this has ended: what it would commit is
    /// older than what comes now.
    pub(super) async fn end_automatic_commit(&self) {
        let under_way = self.automatic_commits().under_way.take();
        if let Some(task) = under_way {
            task.abort();
            // It has ended, one way or the other.
            let _ = task.await;
        }
    }
}

/// One duty's surroundings.
struct Task {
    consumer: Consumer,
    group: Arc<Group>,
    listener: Arc<dyn RebalanceListener>,
}

impl Task {
    async fn perform(&self, duty: Duty) -> Result<(), ConsumerError> {
        match duty {
            Duty::GiveUp { round, how } => {
                match how {
                    GiveUp::Revoke => self.revoke_before_join().await,
                    GiveUp::Lose => self.lose_all().await,
                }
                self.group.ask(Ask::Prepared { round });
                Ok(())
            }
            Duty::Assign {
                assignor,
                assignment,
                group,
            } => {
                let new: BTreeSet<TopicPartition> = assignment.partitions.iter().cloned().collect();
                let owned = self.group.lock().owned.clone();
                let revoked: Vec<TopicPartition> = owned.difference(&new).cloned().collect();
                if !revoked.is_empty() {
                    self.revoke(&revoked).await;
                }
                assignor.on_assignment(&assignment, &group);
                let added: Vec<TopicPartition> = new.difference(&owned).cloned().collect();
                self.own(new);
                self.listener.on_assigned(&self.consumer, &added).await;
                if !revoked.is_empty() {
                    // Others wait for what was just given up.
                    self.group.ask(Ask::Rejoin);
                }
                Ok(())
            }
            Duty::Reconcile { round } => {
                self.reconcile(round).await;
                Ok(())
            }
            Duty::Report(error) => Err(error),
            Duty::PollTooLate { waited_ms } => {
                self.lose_all().await;
                self.group.ask(Ask::PollResumed);
                let limit_ms = self.consumer.config().max_poll_interval.as_millis();
                Err(ConsumerError::PollTooLate {
                    group: self.group.group_id.clone(),
                    waited_ms,
                    limit_ms: u64::try_from(limit_ms).unwrap_or(u64::MAX),
                })
            }
        }
    }

    /// Takes over the latest target of the coordinator: gives up first, then takes, then says so.
    async fn reconcile(&self, round: u64) {
        let (target, owned, lost) = {
            let state = self.group.lock();
            (state.target.clone(), state.owned.clone(), state.lost)
        };
        let Some(target) = target else {
            return;
        };
        let new = &target.partitions;
        let revoked: Vec<TopicPartition> = owned.difference(new).cloned().collect();
        if !revoked.is_empty() {
            self.revoke(&revoked).await;
        }
        if self.group.lock().lost != lost {
            // Nothing of this holds any more; what remains is lost by the next duty.
            return;
        }
        let added: Vec<TopicPartition> = new.difference(&owned).cloned().collect();
        self.own(new.clone());
        self.listener.on_assigned(&self.consumer, &added).await;
        self.group.ask(Ask::Reconciled { round, target });
    }

    /// Makes `partitions` the assignment.
    fn own(&self, partitions: BTreeSet<TopicPartition>) {
        let core = &self.consumer.inner.core;
        core.positions().assign(&partitions);
        self.group.lock().own(partitions);
        core.for_fetcher.notify_one();
    }

    async fn revoke_before_join(&self) {
        let revoked: Vec<TopicPartition> = {
            let state = self.group.lock();
            let all = self.group.protocol == RebalanceProtocol::Eager;
            let goes = |p: &&TopicPartition| all || !state.topics.contains(&p.topic);
            state.owned.iter().filter(goes).cloned().collect()
        };
        if !revoked.is_empty() {
            self.revoke(&revoked).await;
        }
    }

    async fn revoke(&self, partitions: &[TopicPartition]) {
        if self.consumer.config().enable_auto_commit
            && let Err(error) = self.consumer.commit().await
        {
            tracing::warn!(%error, "automatic commit before the rebalance failed");
        }
        self.listener.on_revoked(&self.consumer, partitions).await;
        let mut owned = self.group.lock().owned.clone();
        for partition in partitions {
            owned.remove(partition);
        }
        self.own(owned);
    }

    async fn lose_all(&self) {
        let lost: Vec<TopicPartition> = self.group.lock().owned.iter().cloned().collect();
        if !lost.is_empty() {
            self.listener.on_lost(&self.consumer, &lost).await;
            self.own(BTreeSet::new());
        }
    }
}
