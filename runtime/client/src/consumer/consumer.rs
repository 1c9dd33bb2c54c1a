//! The consumer as an application holds it: assignment, positions, commits, offsets.
//!
//! Invariants: a handle is cheap to clone, clones are the same consumer; when the last one is
//! dropped, the background tasks end and nothing is committed or left in order (`close` does).
//! Never: waits for a broker in a function that is not async.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use millstream_protocol::{ErrorCode, TopicPartition};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::config::{ConsumerBuilder, ConsumerConfig};
use super::core::Core;
use super::error::ConsumerError;
use super::fetcher;
use super::listener::{RebalanceListener, Silent};
use super::lookup::{OffsetAndTimestamp, end_as_timestamp, list_offsets};
use super::membership::{Ask, Group};
use super::offsets::{self, CommitFailure};
use super::positions::{LogEnd, Position};
use super::records::ConsumerRecords;
use crate::group::{GroupMetadata, OffsetAndMetadata};
use crate::transport::IntoTransport;

/// Reads records of topics.
///
/// Either [`Consumer::assign`] names partitions, or [`Consumer::subscribe`] joins a group that
/// shares them out. Records come out of [`Consumer::poll`].
#[derive(Clone, Debug)]
pub struct Consumer {
    pub(super) inner: Arc<Inner>,
    /// Ends the tasks with the last handle of the application.
    _tasks: Option<Arc<Tasks>>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) core: Arc<Core>,
    pub(super) group: Option<Arc<Group>>,
    pub(super) mode: Mutex<Mode>,
    /// One poll at a time.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// A duty that a dropped poll left unfinished.
    pub(super) duty: Mutex<DutySlot>,
    pub(super) auto_commit_at: Mutex<Instant>,
}

/// The future of a duty.
#[derive(Default)]
pub(super) struct DutySlot(pub(super) Option<BoxFuture<'static, Result<(), ConsumerError>>>);

impl std::fmt::Debug for DutySlot {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_tuple("DutySlot")
            .field(&self.0.is_some())
            .finish()
    }
}

/// How the consumer got its partitions.
#[derive(Debug)]
pub(super) enum Mode {
    Idle,
    Assigned,
    Subscribed(Arc<dyn RebalanceListener>),
    Closed,
}

#[derive(Debug)]
struct Tasks {
    inner: Arc<Inner>,
    fetcher: tokio::task::JoinHandle<()>,
    membership: Option<tokio::task::JoinHandle<()>>,
}

impl Tasks {
    fn end(&self) {
        self.fetcher.abort();
        if let Some(membership) = &self.membership {
            membership.abort();
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.end();
        // The duty holds a handle of its own.
        let duty = std::mem::take(
            &mut *self
                .inner
                .duty
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        drop(duty);
        self.inner.core.cluster.disconnect();
        self.inner.core.hot.disconnect();
    }
}

impl ConsumerBuilder {
    /// Makes the consumer and starts its background tasks on the current tokio runtime. Brokers
    /// are connected to when they are needed, so an unreachable cluster shows in later calls.
    ///
    /// # Errors
    /// Where settings contradict each other.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn connect(self, target: &impl IntoTransport) -> Result<Consumer, ConsumerError> {
        self.config.check()?;
        tracing::debug!(config = ?self.config, "consumer settings");
        let auto_commit_at = Instant::now() + self.config.auto_commit_interval;
        let core = Arc::new(Core::new(target.into_transport(), self.config));
        let fetcher = tokio::spawn(fetcher::run(Arc::clone(&core)));
        let (group, membership) = Group::start(&core).unzip();
        let inner = Arc::new(Inner {
            core,
            group,
            mode: Mutex::new(Mode::Idle),
            turn: tokio::sync::Mutex::new(()),
            duty: Mutex::new(DutySlot::default()),
            auto_commit_at: Mutex::new(auto_commit_at),
        });
        let tasks = Tasks {
            inner: Arc::clone(&inner),
            fetcher,
            membership,
        };
        Ok(Consumer {
            inner,
            _tasks: Some(Arc::new(tasks)),
        })
    }
}

impl Consumer {
    /// Begins a consumer's settings.
    pub fn builder() -> ConsumerBuilder {
        ConsumerBuilder::default()
    }

    /// A handle that does not keep the tasks alive, for the listener's calls.
    pub(super) fn without_tasks(&self) -> Consumer {
        Consumer {
            inner: Arc::clone(&self.inner),
            _tasks: None,
        }
    }

    /// The settings in force.
    #[must_use]
    pub fn config(&self) -> &ConsumerConfig {
        &self.inner.core.config
    }

    pub(super) fn mode(&self) -> std::sync::MutexGuard<'_, Mode> {
        self.inner
            .mode
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, call: &'static str, new: Mode) -> Result<(), ConsumerError> {
        let mut mode = self.mode();
        let present = match (&*mode, &new) {
            (Mode::Closed, _) => return Err(ConsumerError::Closed),
            (Mode::Assigned, Mode::Subscribed(_)) => Some("assign(..)"),
            (Mode::Subscribed(_), Mode::Assigned) => Some("subscribe(..)"),
            _ => None,
        };
        match present {
            Some(present) => Err(ConsumerError::MixedSubscription { call, present }),
            None => {
                *mode = new;
                Ok(())
            }
        }
    }

    /// Reads these partitions from now on, and no others. No group shares them out; with a group
    /// id, its committed offsets are where reading begins. Partitions that were assigned before
    /// keep their positions.
    ///
    /// # Errors
    /// After `subscribe` without `unsubscribe`, and after `close`.
    pub fn assign(&self, partitions: Vec<TopicPartition>) -> Result<(), ConsumerError> {
        self.enter("assign(..)", Mode::Assigned)?;
        self.inner
            .core
            .positions()
            .assign(&partitions.into_iter().collect());
        self.inner.core.for_fetcher.notify_one();
        self.inner.core.for_poll.notify_one();
        Ok(())
    }

    /// Joins the group for these topics; partitions come with later polls. Called again, it
    /// changes the topics.
    ///
    /// # Errors
    /// Without a group id, after `assign` without `unsubscribe`, and after `close`.
    pub fn subscribe<T: Into<Arc<str>>>(
        &self,
        topics: impl IntoIterator<Item = T>,
    ) -> Result<(), ConsumerError> {
        self.subscribe_with(topics, Arc::new(Silent))
    }

    /// As [`Consumer::subscribe`]; `listener` hears of every change of the assignment.
    ///
    /// # Errors
    /// As [`Consumer::subscribe`].
    pub fn subscribe_with<T: Into<Arc<str>>>(
        &self,
        topics: impl IntoIterator<Item = T>,
        listener: Arc<dyn RebalanceListener>,
    ) -> Result<(), ConsumerError> {
        let group = self.group("subscribe(..)")?;
        self.enter("subscribe(..)", Mode::Subscribed(listener))?;
        let topics: BTreeSet<Arc<str>> = topics.into_iter().map(Into::into).collect();
        group.lock().topics = topics.into_iter().collect();
        group.ask(Ask::Subscribe);
        Ok(())
    }

    pub(super) fn group(&self, call: &'static str) -> Result<&Arc<Group>, ConsumerError> {
        self.inner
            .group
            .as_ref()
            .ok_or(ConsumerError::NoGroup { call })
    }

    /// Gives all partitions up (the listener hears of it first) and leaves the group. A static
    /// member's place is kept for it until its session ends.
    ///
    /// Waits for the listener and, for at most five seconds, for the coordinator.
    ///
    /// # Errors
    /// After `close`.
    pub async fn unsubscribe(&self) -> Result<(), ConsumerError> {
        self.leave(false).await
    }

    async fn leave(&self, leave_static: bool) -> Result<(), ConsumerError> {
        let listener = match &*self.mode() {
            Mode::Closed => return Err(ConsumerError::Closed),
            Mode::Subscribed(listener) => Some(Arc::clone(listener)),
            _ => None,
        };
        if let (Some(listener), Some(group)) = (listener, &self.inner.group) {
            let _turn = self.inner.turn.lock().await;
            self.finish_duty(group).await;
            let owned: Vec<TopicPartition> = group.lock().owned.iter().cloned().collect();
            if !owned.is_empty() {
                let lost = group.lock().failed.is_some();
                if lost {
                    listener.on_lost(&self.without_tasks(), &owned).await;
                } else {
                    listener.on_revoked(&self.without_tasks(), &owned).await;
                }
                group.lock().owned.clear();
            }
            let (done, left) = oneshot::channel();
            group.ask(Ask::Unsubscribe { leave_static, done });
            // The task is gone only when the consumer is.
            let _ = left.await;
        }
        self.inner.core.positions().assign(&BTreeSet::new());
        *self.mode() = Mode::Idle;
        self.inner.core.for_fetcher.notify_one();
        Ok(())
    }

    /// Leaves the group (a static member does not), commits positions first where
    /// `enable_auto_commit` is set, and ends the background tasks. Nothing else is committed.
    ///
    /// # Errors
    /// Where the last automatic commit failed; the consumer is closed all the same.
    pub async fn close(&self) -> Result<(), ConsumerError> {
        self.close_with(false).await
    }

    /// As [`Consumer::close`], but a static member leaves as well, so that its partitions go to
    /// others at once: for an instance that will not come back.
    ///
    /// # Errors
    /// As [`Consumer::close`].
    pub async fn close_and_leave(&self) -> Result<(), ConsumerError> {
        self.close_with(true).await
    }

    async fn close_with(&self, leave_static: bool) -> Result<(), ConsumerError> {
        if matches!(&*self.mode(), Mode::Closed) {
            return Ok(());
        }
        let committed = if self.inner.core.config.enable_auto_commit {
            self.commit().await
        } else {
            Ok(())
        };
        self.leave(leave_static).await?;
        *self.mode() = Mode::Closed;
        if let Some(tasks) = &self._tasks {
            tasks.end();
        }
        self.inner.core.cluster.disconnect();
        self.inner.core.hot.disconnect();
        self.inner.core.for_poll.notify_one();
        committed
    }

    /// The partitions that are read now.
    #[must_use]
    pub fn assignment(&self) -> Vec<TopicPartition> {
        self.inner.core.positions().assigned().cloned().collect()
    }

    /// The topics that are subscribed to.
    #[must_use]
    pub fn subscription(&self) -> Vec<Arc<str>> {
        match (&*self.mode(), &self.inner.group) {
            (Mode::Subscribed(_), Some(group)) => group.lock().topics.clone(),
            _ => Vec::new(),
        }
    }

    /// The offset of the next record that `poll` will hand out. `None` while it is being looked
    /// up, and for a partition that is not assigned.
    #[must_use]
    pub fn position(&self, partition: &TopicPartition) -> Option<i64> {
        self.inner.core.positions().position(partition)
    }

    /// All known positions: what [`Consumer::commit`] would commit.
    #[must_use]
    pub fn positions(&self) -> Vec<(TopicPartition, i64)> {
        self.inner.core.positions().all()
    }

    /// How far the partition's end is ahead, as the last fetch saw it: the last stable offset for
    /// readers of committed data, else the high watermark. `None` before the first fetch.
    #[must_use]
    pub fn lag(&self, partition: &TopicPartition) -> Option<i64> {
        let positions = self.inner.core.positions();
        let offsets = positions.offsets(partition)?;
        let end = match self.inner.core.config.isolation {
            super::Isolation::ReadCommitted => offsets.last_stable,
            super::Isolation::ReadUncommitted => offsets.high_watermark,
        };
        Some((end - positions.position(partition)?).max(0))
    }

    fn restart(&self, partition: &TopicPartition, to: Position) -> Result<(), ConsumerError> {
        if !self.inner.core.positions().restart(partition, to) {
            return Err(ConsumerError::NotAssigned {
                topic_partition: partition.clone(),
            });
        }
        self.inner.core.for_fetcher.notify_one();
        Ok(())
    }

    /// Goes on at `offset`. Records that were fetched already are dropped.
    ///
    /// # Errors
    /// Where the partition is not assigned.
    pub fn seek(&self, partition: &TopicPartition, offset: i64) -> Result<(), ConsumerError> {
        self.restart(partition, Position::At(offset.max(0)))
    }

    /// Goes on at the first record of the log.
    ///
    /// # Errors
    /// Where the partition is not assigned.
    pub fn seek_to_beginning(&self, partition: &TopicPartition) -> Result<(), ConsumerError> {
        self.restart(partition, Position::Resetting(LogEnd::Earliest))
    }

    /// Goes on behind the last record that may be seen.
    ///
    /// # Errors
    /// Where the partition is not assigned.
    pub fn seek_to_end(&self, partition: &TopicPartition) -> Result<(), ConsumerError> {
        self.restart(partition, Position::Resetting(LogEnd::Latest))
    }

    /// Goes back to the committed offset, or to where the reset policy says: what an aborted
    /// transaction asks for.
    ///
    /// # Errors
    /// Where the partition is not assigned.
    pub fn seek_to_committed(&self, partition: &TopicPartition) -> Result<(), ConsumerError> {
        self.restart(partition, Position::Unset)
    }

    /// Holds the partitions back: `poll` hands out none of their records and nothing more is
    /// fetched. What is fetched already stays ready. Cheap: takes one lock.
    ///
    /// # Errors
    /// Where a partition is not assigned; those before it are paused.
    pub fn pause(&self, partitions: &[TopicPartition]) -> Result<(), ConsumerError> {
        self.set_paused(partitions, true)
    }

    /// Lets paused partitions go on.
    ///
    /// # Errors
    /// Where a partition is not assigned; those before it go on.
    pub fn resume(&self, partitions: &[TopicPartition]) -> Result<(), ConsumerError> {
        self.set_paused(partitions, false)?;
        self.inner.core.for_poll.notify_one();
        self.inner.core.for_fetcher.notify_one();
        Ok(())
    }

    fn set_paused(&self, partitions: &[TopicPartition], paused: bool) -> Result<(), ConsumerError> {
        let mut positions = self.inner.core.positions();
        for partition in partitions {
            if !positions.set_paused(partition, paused) {
                return Err(ConsumerError::NotAssigned {
                    topic_partition: partition.clone(),
                });
            }
        }
        Ok(())
    }

    /// The partitions that are held back.
    #[must_use]
    pub fn paused(&self) -> Vec<TopicPartition> {
        self.inner.core.positions().paused().cloned().collect()
    }

    /// Who this consumer is in its group, for [`Producer::send_offsets`]. Take it after the poll
    /// whose records are committed and before the next one.
    ///
    /// # Errors
    /// Without a group id.
    ///
    /// [`Producer::send_offsets`]: crate
    pub fn group_metadata(&self) -> Result<GroupMetadata, ConsumerError> {
        self.group("group_metadata()").map(|group| group.metadata())
    }

    /// Commits the positions of all partitions, and waits for the coordinator's answer.
    ///
    /// # Errors
    /// See [`Consumer::commit_offsets`].
    pub async fn commit(&self) -> Result<(), ConsumerError> {
        let offsets: Vec<(TopicPartition, OffsetAndMetadata)> = self
            .positions()
            .into_iter()
            .map(|(partition, offset)| (partition, offset.into()))
            .collect();
        self.commit_offsets(&offsets).await
    }

    /// Commits these offsets (each that of the next record to read), and waits for the
    /// coordinator's answer, at most for `default.api.timeout.ms`. Not part of any transaction.
    ///
    /// Dropping the future leaves it open whether the offsets are committed.
    ///
    /// # Errors
    /// [`ConsumerError::CommitFenced`] where the member has lost its place, and
    /// [`ConsumerError::CommitDuringRebalance`] while the group rebalances: nothing was committed
    /// then. [`ConsumerError::Timeout`] leaves it open. Others name what was refused.
    pub async fn commit_offsets(
        &self,
        offsets: &[(TopicPartition, OffsetAndMetadata)],
    ) -> Result<(), ConsumerError> {
        let group = self.group("commit()")?;
        if offsets.is_empty() {
            return Ok(());
        }
        let member = group.metadata();
        let subscribed = matches!(&*self.mode(), Mode::Subscribed(_));
        let fenced = |code| ConsumerError::CommitFenced {
            group: member.group_id.clone(),
            generation: member.generation_id,
            code,
        };
        if let Some(failed) = group.lock().failed.clone() {
            return Err(failed);
        }
        if subscribed && member.generation_id < 0 {
            return Err(fenced(ErrorCode::UNKNOWN_MEMBER_ID));
        }
        let member = if subscribed {
            member.clone()
        } else {
            outside(&member)
        };
        let offsets: BTreeMap<TopicPartition, OffsetAndMetadata> =
            offsets.iter().cloned().collect();
        let patience = self.inner.core.config.default_api_timeout;
        match offsets::commit(&self.inner.core.cluster, &member, &offsets, patience).await {
            Ok(()) => Ok(()),
            Err(CommitFailure::Other(error)) => Err(error),
            Err(CommitFailure::Membership(code)) => {
                group.ask(Ask::CommitRefused {
                    code,
                    generation_id: member.generation_id,
                    member_id: member.member_id.clone(),
                });
                Err(match code {
                    ErrorCode::REBALANCE_IN_PROGRESS => ConsumerError::CommitDuringRebalance {
                        group: member.group_id.clone(),
                    },
                    ErrorCode::FENCED_INSTANCE_ID => ConsumerError::InstanceFenced {
                        group: member.group_id.clone(),
                        instance: member.group_instance_id.clone().unwrap_or_default(),
                        member_id: member.member_id.clone(),
                    },
                    code => fenced(code),
                })
            }
        }
    }

    /// The group's committed offsets; `None` where there is none. Offsets that an open transaction
    /// is about to commit are waited for, at most for `default.api.timeout.ms`.
    ///
    /// # Errors
    /// Without a group id, where they stay undecided, and where the coordinator refuses.
    pub async fn committed(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, Option<OffsetAndMetadata>>, ConsumerError> {
        let group = self.group("committed(..)")?;
        let core = &self.inner.core;
        let patience = core.config.default_api_timeout;
        offsets::fetch_committed(&core.cluster, &group.group_id, partitions, patience).await
    }

    async fn log_ends(
        &self,
        call: &'static str,
        partitions: &[TopicPartition],
        end: LogEnd,
    ) -> Result<BTreeMap<TopicPartition, i64>, ConsumerError> {
        let core = &self.inner.core;
        let questions = partitions
            .iter()
            .map(|p| (p.clone(), end_as_timestamp(end)))
            .collect();
        let patience = core.config.default_api_timeout;
        let found = list_offsets(
            &core.cluster,
            call,
            core.config.isolation,
            questions,
            patience,
        )
        .await?;
        Ok(found
            .into_iter()
            .map(|(partition, found)| (partition, found.map_or(0, |found| found.offset)))
            .collect())
    }

    /// Where the logs end for this consumer: the last stable offsets for a reader of committed
    /// data, else the high watermarks.
    ///
    /// # Errors
    /// Where a leader does not answer within `default.api.timeout.ms`, or refuses.
    pub async fn end_offsets(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, i64>, ConsumerError> {
        self.log_ends("end_offsets(..)", partitions, LogEnd::Latest)
            .await
    }

    /// Where the logs begin.
    ///
    /// # Errors
    /// As [`Consumer::end_offsets`].
    pub async fn beginning_offsets(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, i64>, ConsumerError> {
        self.log_ends("beginning_offsets(..)", partitions, LogEnd::Earliest)
            .await
    }

    /// The first record of each partition at or after a time in milliseconds since 1970; `None`
    /// where no record is that young.
    ///
    /// # Errors
    /// As [`Consumer::end_offsets`].
    pub async fn offsets_for_times(
        &self,
        times: &[(TopicPartition, i64)],
    ) -> Result<BTreeMap<TopicPartition, Option<OffsetAndTimestamp>>, ConsumerError> {
        let core = &self.inner.core;
        let patience = core.config.default_api_timeout;
        let questions = times.to_vec();
        let isolation = core.config.isolation;
        list_offsets(
            &core.cluster,
            "offsets_for_times(..)",
            isolation,
            questions,
            patience,
        )
        .await
    }

    /// How many partitions a topic has, asking where it is not known.
    ///
    /// # Errors
    /// Where no broker answers in time, or refuses the topic.
    pub async fn partitions_of(&self, topic: &str) -> Result<i32, ConsumerError> {
        Ok(self.inner.core.cluster.partitions_of(topic).await?)
    }

    /// Waits at most `max_wait` for records and hands out at most `max.poll.records` of them. May
    /// return earlier without a record: where partitions moved over control or aborted records
    /// only (`partitions` says how far).
    ///
    /// Serves the group meanwhile: a member must call this at least every `max.poll.interval.ms`.
    /// Dropping the future loses no record and no duty.
    ///
    /// # Errors
    /// What the application must know: no position and no policy, a damaged batch, lost
    /// membership. Unless [`ConsumerError::is_fatal`], the next poll goes on.
    pub async fn poll(&self, max_wait: Duration) -> Result<ConsumerRecords, ConsumerError> {
        self.poll_until(Instant::now() + max_wait).await
    }
}

/// The identity of commits from outside the group's membership.
fn outside(member: &GroupMetadata) -> GroupMetadata {
    GroupMetadata::without_membership(member.group_id.clone())
}
