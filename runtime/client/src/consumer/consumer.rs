//! The consumer as an application holds it: assignment, positions, commits, offsets.
//!
//! Invariants: a handle is cheap to clone, clones are the same consumer; when the last one is
//! dropped, the background tasks end and nothing is committed or left in order (`close` does).
//! Never: waits for a broker in a function that is not async.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use millstream_protocol::TopicPartition;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::config::{ConsumerBuilder, ConsumerConfig};
use super::core::Core;
use super::error::ConsumerError;
use super::fetch_request::close_sessions;
use super::fetcher;
use super::group_protocol::{self, GroupProtocol};
use super::listener::{RebalanceListener, Silent};
use super::membership::{Ask, Duty, GiveUp, Group};
use super::records::ConsumerRecords;
use crate::error::ConfigError;
use crate::transport::{IntoTransport, Transport};

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
    /// Set while somebody wants the turn for good: polls end early.
    pub(super) interrupt: AtomicBool,
    /// A duty that a dropped poll left unfinished.
    pub(super) duty: Mutex<DutySlot>,
    pub(super) automatic_commits: Mutex<AutomaticCommits>,
}

/// Automatic commits: one at a time.
#[derive(Debug)]
pub(super) struct AutomaticCommits {
    /// When the next one may begin.
    pub(super) due: Instant,
    pub(super) under_way: Option<tokio::task::JoinHandle<()>>,
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
    #[expect(
        clippy::unused_async,
        reason = "a later version may look before it leaps"
    )]
    pub async fn connect<T: IntoTransport + ?Sized>(
        self,
        target: &T,
    ) -> Result<Consumer, ConsumerError> {
        self.start(target.into_transport())
    }

    fn start(self, transport: Arc<dyn Transport>) -> Result<Consumer, ConsumerError> {
        if let Some(mistake) = self.mistake {
            return Err(mistake.into());
        }
        self.config.check()?;
        group_protocol::check(&self.config, &self.given)?;
        tracing::debug!(config = ?self.config, "consumer settings");
        let automatic_commits = AutomaticCommits {
            due: Instant::now() + self.config.auto_commit_interval,
            under_way: None,
        };
        let core = Arc::new(Core::new(transport, self.config));
        core.cluster.remember_topics_of(core.as_reader());
        let fetcher = tokio::spawn(fetcher::run(Arc::clone(&core)));
        let (group, membership) = Group::start(&core).unzip();
        let inner = Arc::new(Inner {
            core,
            group,
            mode: Mutex::new(Mode::Idle),
            turn: tokio::sync::Mutex::new(()),
            interrupt: AtomicBool::new(false),
            duty: Mutex::new(DutySlot::default()),
            automatic_commits: Mutex::new(automatic_commits),
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
        {
            let mut state = group.lock();
            state.topics = topics.into_iter().collect();
            state.pattern = None;
        }
        group.ask(Ask::Subscribe);
        Ok(())
    }

    /// Joins the group for the topics whose names match an expression, those that will be created
    /// included. The coordinator does the matching: the expression is RE2's, the whole name has to
    /// match, and so may the coordinators' own topics.
    ///
    /// # Errors
    /// As [`Consumer::subscribe`], and unless `group.protocol=consumer`.
    pub fn subscribe_pattern(&self, expression: impl Into<Arc<str>>) -> Result<(), ConsumerError> {
        self.subscribe_pattern_with(expression, Arc::new(Silent))
    }

    /// As [`Consumer::subscribe_pattern`]; `listener` hears of every change of the assignment.
    ///
    /// # Errors
    /// As [`Consumer::subscribe_pattern`].
    pub fn subscribe_pattern_with(
        &self,
        expression: impl Into<Arc<str>>,
        listener: Arc<dyn RebalanceListener>,
    ) -> Result<(), ConsumerError> {
        let group = self.group("subscribe_pattern(..)")?;
        if self.config().group_protocol != GroupProtocol::Consumer {
            return Err(ConsumerError::Config(ConfigError::Contradiction {
                first: "subscribe_pattern(..)".to_owned(),
                second: "group.protocol=classic".to_owned(),
                reason: "only a coordinator of the consumer protocol matches expressions",
            }));
        }
        self.enter("subscribe_pattern(..)", Mode::Subscribed(listener))?;
        {
            let mut state = group.lock();
            state.topics = Vec::new();
            state.pattern = Some(expression.into());
        }
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
    pub fn unsubscribe(&self) -> BoxFuture<'_, Result<(), ConsumerError>> {
        Box::pin(async move { self.leave(false).await })
    }

    async fn leave(&self, leave_static: bool) -> Result<(), ConsumerError> {
        let listener = match &*self.mode() {
            Mode::Closed => return Err(ConsumerError::Closed),
            Mode::Subscribed(listener) => Some(Arc::clone(listener)),
            _ => None,
        };
        let mut leaving = None;
        if let (Some(listener), Some(group)) = (listener, &self.inner.group) {
            let turn = self.take_turn().await;
            // Not before: a poll that ends a duty meanwhile may begin another one.
            self.end_automatic_commit().await;
            self.finish_duty(group).await;
            let owned: Vec<TopicPartition> = group.lock().owned.iter().cloned().collect();
            if !owned.is_empty() {
                let lost = Self::is_lost(group);
                if lost {
                    listener.on_lost(&self.without_tasks(), &owned).await;
                } else {
                    listener.on_revoked(&self.without_tasks(), &owned).await;
                }
                group.lock().own(BTreeSet::new());
            }
            let (done, left) = oneshot::channel();
            group.ask(Ask::Unsubscribe { leave_static, done });
            leaving = Some((turn, left));
        } else {
            self.end_automatic_commit().await;
        }
        // Before the wait, which may be dropped: nothing is handed out of what others have now.
        self.inner.core.positions().assign(&BTreeSet::new());
        *self.mode() = Mode::Idle;
        self.inner.core.for_fetcher.notify_one();
        if let Some((_turn, left)) = leaving {
            // The task is gone only when the consumer is.
            let _ = left.await;
        }
        Ok(())
    }

    /// Whether what the member has may be others' already.
    fn is_lost(group: &Group) -> bool {
        let state = group.lock();
        let lost = |duty: &Duty| {
            let how = GiveUp::Lose;
            matches!(duty, Duty::PollTooLate { .. })
                || matches!(duty, Duty::GiveUp { how: this, .. } if *this == how)
        };
        state.failed.is_some() || state.duties.iter().any(lost)
    }

    /// Leaves the group (a static member does not), commits positions first where
    /// `enable_auto_commit` is set, and ends the background tasks. Nothing else is committed.
    ///
    /// # Errors
    /// Where the last automatic commit failed; the consumer is closed all the same.
    pub fn close(&self) -> BoxFuture<'_, Result<(), ConsumerError>> {
        Box::pin(async move { self.close_with(false).await })
    }

    /// As [`Consumer::close`], but a static member leaves as well, so that its partitions go to
    /// others at once: for an instance that will not come back.
    ///
    /// # Errors
    /// As [`Consumer::close`].
    pub fn close_and_leave(&self) -> BoxFuture<'_, Result<(), ConsumerError>> {
        Box::pin(async move { self.close_with(true).await })
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
        close_sessions(&self.inner.core).await;
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

    /// Waits at most `max_wait` for records and hands out at most `max.poll.records` of them. May
    /// return earlier without a record: where partitions moved over control or aborted records
    /// only (`partitions` says how far).
    ///
    /// Serves the group meanwhile: a member must call this at least every `max.poll.interval.ms`.
    /// Dropping the future loses no record and no duty.
    ///
    /// # Errors
    /// What the application must know: no position and no policy, a damaged batch, lost
    /// membership. Unless [`ConsumerError::is_fatal`], the next poll goes on; what only a seek
    /// helps is told again by every poll that has nothing else.
    pub fn poll(
        &self,
        max_wait: Duration,
    ) -> BoxFuture<'_, Result<ConsumerRecords, ConsumerError>> {
        Box::pin(async move { self.poll_until(Instant::now() + max_wait).await })
    }
}
