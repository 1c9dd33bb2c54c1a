//! The task of one member: executes the machine's commands, sends heartbeats, watches that `poll`
//! is called and, as leader, that the topics stay as they were.
//!
//! Invariants: one join or sync at a time, one heartbeat at a time; an answer to a question that
//! an older identity asked is dropped; heartbeats do not depend on `poll`.
//! Never: touches positions or calls the listener.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, OptionFuture};
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::JoinGroupResponse;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::super::assignor::RebalanceProtocol;
use super::super::config::ConsumerConfig;
use super::super::core::Core;
use super::super::error::ConsumerError;
use super::super::protocol_blobs::assignment_from_bytes;
use super::machine::{Command, Event, GiveUp, Identity, Machine, State};
use super::requests::{self, Synced, Watch};
use super::{Ask, Duty, Group, Leading, next_step};
use crate::cluster::{CoordinatorKind, millis};
use crate::error::ClusterError;

/// How long leaving may hold things up.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);
/// How often a leader looks for topics that do not exist yet.
const MISSING_TOPIC_PAUSE: Duration = Duration::from_secs(1);

enum Answer {
    Join(Result<JoinGroupResponse, ClusterError>),
    Sync(Synced),
}

type Beat = (Identity, Result<ErrorCode, ClusterError>);

struct Driver {
    core: Arc<Core>,
    group: Arc<Group>,
    machine: Machine,
    request: Option<BoxFuture<'static, Answer>>,
    heartbeat: Option<BoxFuture<'static, Beat>>,
    recount: Option<BoxFuture<'static, Result<Watch, ClusterError>>>,
    join_at: Option<Instant>,
    join_attempts: u32,
    beat_at: Instant,
    /// Of the join that a sync follows.
    protocol_name: Option<String>,
    leading: Option<Leading>,
    skip_assignment: bool,
    /// The assignment that came with the last sync.
    assignment: bytes::Bytes,
    watch: Option<Watch>,
    watch_at: Instant,
    leave_static: bool,
    failure: Option<ConsumerError>,
}

/// Runs until the consumer is gone.
pub(super) async fn run(
    core: Arc<Core>,
    group: Arc<Group>,
    mut asks: mpsc::UnboundedReceiver<Ask>,
) {
    let now = Instant::now();
    let mut driver = Driver {
        core,
        group,
        machine: Machine::new(),
        request: None,
        heartbeat: None,
        recount: None,
        join_at: None,
        join_attempts: 0,
        beat_at: now,
        protocol_name: None,
        leading: None,
        skip_assignment: false,
        assignment: bytes::Bytes::new(),
        watch: None,
        watch_at: now,
        leave_static: false,
        failure: None,
    };
    loop {
        let (beats, poll_at) = (driver.beats(), driver.group.poll_deadline(&driver.core));
        let watches = driver.watches();
        tokio::select! {
            biased;
            ask = asks.recv() => match ask {
                Some(ask) => driver.asked(ask).await,
                None => return,
            },
            Some(answer) = OptionFuture::from(driver.request.as_mut()) => {
                driver.request = None;
                driver.answered(answer).await;
            }
            Some((identity, beat)) = OptionFuture::from(driver.heartbeat.as_mut()) => {
                driver.heartbeat = None;
                driver.beaten(&identity, beat).await;
            }
            Some(counted) = OptionFuture::from(driver.recount.as_mut()) => {
                driver.recount = None;
                driver.recounted(counted).await;
            }
            () = sleep_until(driver.join_at.unwrap_or(now)), if driver.join_at.is_some() => {
                driver.join_at = None;
                driver.start_join();
            }
            () = sleep_until(driver.beat_at), if beats => driver.start_heartbeat(),
            () = sleep_until(driver.watch_at), if watches => driver.start_recount(),
            () = sleep_until(poll_at), if driver.machine.watches_poll() => {
                driver.check_poll().await;
            }
        }
    }
}

impl Driver {
    fn beats(&self) -> bool {
        self.machine.beats() && self.heartbeat.is_none()
    }

    fn watches(&self) -> bool {
        self.machine.state() == State::Stable && self.watch.is_some() && self.recount.is_none()
    }

    async fn check_poll(&mut self) {
        if self.group.poll_is_late(&self.core) {
            self.on(Event::PollLate).await;
        }
    }

    async fn asked(&mut self, ask: Ask) {
        match ask {
            Ask::Subscribe => {
                self.group.lock().last_poll = Instant::now();
                self.on(Event::Subscribed).await;
            }
            Ask::Unsubscribe { leave_static, done } => {
                self.leave_static = leave_static;
                self.on(Event::Unsubscribed).await;
                self.machine.forget_identity();
                self.request = None;
                self.heartbeat = None;
                self.join_at = None;
                self.watch = None;
                {
                    let mut state = self.group.lock();
                    state.duties.clear();
                    state.failed = None;
                }
                let _ = done.send(());
            }
            Ask::Prepared { round } => self.on(Event::Prepared { round }).await,
            // Nobody is asked to reconcile under this protocol.
            Ask::Reconciled { .. } => {}
            Ask::Rejoin => self.on(Event::RejoinWanted).await,
            Ask::PollResumed => self.on(Event::PollResumed).await,
            Ask::CommitRefused {
                code,
                generation_id,
                member_id,
            } => {
                let current = self.machine.identity();
                if current.generation == generation_id && current.member_id == member_id {
                    self.on(Event::CommitRefused { code }).await;
                }
            }
        }
    }

    async fn answered(&mut self, answer: Answer) {
        match answer {
            Answer::Join(Ok(response)) if response.error_code.is_ok() => {
                self.joined(response).await;
            }
            Answer::Join(Ok(response)) => {
                let code = response.error_code;
                self.on(Event::JoinRefused {
                    code,
                    member_id: response.member_id,
                })
                .await;
            }
            Answer::Sync(Synced::Answered(response, watch)) => {
                if response.error_code.is_ok() {
                    self.join_attempts = 0;
                    self.assignment = response.assignment;
                    self.watch(watch);
                    self.beat_at = Instant::now() + self.core.config.heartbeat_interval;
                    self.on(Event::Synced).await;
                } else {
                    self.on(Event::SyncRefused {
                        code: response.error_code,
                    })
                    .await;
                }
            }
            Answer::Sync(Synced::Broken(reason)) => {
                let assignor = self.protocol_name.clone().unwrap_or_default();
                let group = self.group.group_id.clone();
                self.failure = Some(ConsumerError::Assignor {
                    group,
                    assignor,
                    reason,
                });
                self.on(Event::Broken).await;
            }
            Answer::Join(Err(error)) | Answer::Sync(Synced::Unanswered(error)) => {
                self.unanswered(error).await;
            }
        }
    }

    async fn unanswered(&mut self, error: ClusterError) {
        tracing::debug!(group = %self.group.group_id, %error, "no answer from the coordinator");
        let lasting = match &error {
            ClusterError::Request(request) => !request.is_retriable(),
            ClusterError::CoordinatorTimeout { .. } | ClusterError::NoBootstrap => false,
            _ => true,
        };
        if lasting {
            self.failure = Some(error.into());
            self.on(Event::Broken).await;
        } else {
            self.on(Event::Unanswered).await;
        }
    }

    async fn joined(&mut self, response: JoinGroupResponse) {
        let name = response.protocol_name.clone().unwrap_or_default();
        let assignor = self
            .core
            .config
            .assignors
            .iter()
            .find(|a| a.name() == name)
            .cloned();
        let Some(assignor) = assignor else {
            let group = self.group.group_id.clone();
            let reason = "the coordinator chose an assignor that this member does not have".into();
            self.failure = Some(ConsumerError::Assignor {
                group,
                assignor: name,
                reason,
            });
            self.on(Event::Broken).await;
            return;
        };
        let leads = response.leader == response.member_id;
        self.leading = leads.then(|| Leading {
            assignor,
            members: response
                .members
                .into_iter()
                .map(|member| (member.member_id, member.group_instance_id, member.metadata))
                .collect(),
        });
        self.skip_assignment = response.skip_assignment;
        self.protocol_name = Some(name);
        let (generation, member_id) = (response.generation_id, response.member_id);
        tracing::debug!(group = %self.group.group_id, generation, %member_id, leads, "joined");
        if self.machine.state() == State::Joining {
            let mut state = self.group.lock();
            state.metadata.generation_id = generation;
            state.metadata.member_id.clone_from(&member_id);
        }
        self.on(Event::Joined {
            generation,
            member_id,
        })
        .await;
    }

    fn watch(&mut self, watch: Option<Watch>) {
        let missing = watch
            .as_ref()
            .is_some_and(|w| w.counts.len() < w.topics.len());
        let pause = if missing {
            MISSING_TOPIC_PAUSE
        } else {
            self.core.config.client.metadata_max_age
        };
        self.watch_at = Instant::now() + pause;
        self.watch = watch;
    }

    async fn recounted(&mut self, counted: Result<Watch, ClusterError>) {
        let Some(before) = self.watch.take() else {
            return;
        };
        match counted {
            Ok(now) if now.counts != before.counts => {
                tracing::debug!(group = %self.group.group_id, "topics changed, joining again");
                self.watch(Some(now));
                self.on(Event::RejoinWanted).await;
            }
            _ => self.watch(Some(before)),
        }
    }

    async fn beaten(&mut self, identity: &Identity, beat: Result<ErrorCode, ClusterError>) {
        if identity != self.machine.identity() || !self.machine.beats() {
            return;
        }
        match beat {
            Ok(code) => self.on(Event::Heartbeat { code }).await,
            Err(error) => self.unanswered(error).await,
        }
    }

    async fn on(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let before = self.machine.state();
            let identity = self.machine.identity().clone();
            let commands = self.machine.on(event.clone());
            let after = self.machine.state();
            if before != after {
                tracing::trace!(group = %self.group.group_id, ?before, ?after, ?event, "member");
            }
            if after != State::Joining && after != State::Syncing {
                // Whatever is still on its way was asked by a state that is gone.
                self.request = None;
                self.join_at = None;
            }
            for command in commands {
                events.extend(self.execute(command, &identity).await);
            }
        }
        self.group.lock().rebalances = self.machine.rebalances();
        self.core.for_poll.notify_one();
    }

    async fn execute(&mut self, command: Command, identity: &Identity) -> Option<Event> {
        match command {
            Command::GiveUp { round, how } => return self.give_up(round, how),
            Command::Join => self.start_join(),
            Command::JoinLater => {
                let pause = self.core.cluster.retry_pause(self.join_attempts);
                self.join_attempts = self.join_attempts.saturating_add(1);
                self.join_at = Some(Instant::now() + pause);
            }
            Command::ForgetCoordinator => {
                let kind = CoordinatorKind::Group;
                self.core
                    .cluster
                    .forget_coordinator(kind, &self.group.group_id);
            }
            Command::Sync => self.start_sync(),
            Command::Deliver => return self.deliver(),
            Command::Leave => self.leave(identity).await,
            Command::ReportLatePoll => {
                let mut state = self.group.lock();
                let waited_ms = millis(state.last_poll.elapsed());
                state.duties.clear();
                state.duties.push_back(Duty::PollTooLate { waited_ms });
            }
            Command::ReportFenced => {
                self.fail(|group, config, identity| ConsumerError::InstanceFenced {
                    group,
                    instance: config.group_instance_id.clone().unwrap_or_default(),
                    member_id: identity.member_id.clone(),
                })
            }
            Command::ReportRefused(code) => self.fail(|group, _, _| ConsumerError::JoinRefused {
                group,
                code,
                next_step: next_step(code),
            }),
        }
        if self.machine.state() == State::Failed
            && let Some(failure) = self.failure.take()
        {
            self.fail(|_, _, _| failure);
        }
        None
    }

    fn fail(&mut self, error: impl FnOnce(String, &ConsumerConfig, &Identity) -> ConsumerError) {
        let group = self.group.group_id.clone();
        let error = error(group, &self.core.config, self.machine.identity());
        tracing::warn!(group = %self.group.group_id, %error, "the member has failed");
        let mut state = self.group.lock();
        state.duties.clear();
        state.failed = Some(error);
    }

    fn give_up(&mut self, round: u64, how: GiveUp) -> Option<Event> {
        let mut state = self.group.lock();
        if how == GiveUp::Lose {
            // What was asked of a member that is gone is void.
            state.duties.clear();
        }
        let idle = state.duties.is_empty() && !state.at_work;
        let keeps_all = how == GiveUp::Revoke
            && self.group.protocol == RebalanceProtocol::Cooperative
            && state
                .owned
                .iter()
                .all(|partition| state.topics.contains(&partition.topic));
        if idle && (keeps_all || state.owned.is_empty()) {
            return Some(Event::Prepared { round });
        }
        state.duties.push_back(Duty::GiveUp { round, how });
        None
    }

    fn deliver(&mut self) -> Option<Event> {
        let assignment = match assignment_from_bytes(self.assignment.clone()) {
            Ok(assignment) => assignment,
            Err(error) => {
                self.failure = Some(ConsumerError::Assignor {
                    group: self.group.group_id.clone(),
                    assignor: self.protocol_name.clone().unwrap_or_default(),
                    reason: format!("the leader sent an assignment that cannot be read: {error}"),
                });
                return Some(Event::Broken);
            }
        };
        let name = self.protocol_name.as_deref().unwrap_or_default();
        let assignor = self
            .core
            .config
            .assignors
            .iter()
            .find(|a| a.name() == name)
            .cloned()?;
        let mut state = self.group.lock();
        let known = |topic: &Arc<str>| state.topics.contains(topic);
        if !assignment
            .partitions
            .iter()
            .all(|partition| known(&partition.topic))
        {
            return Some(Event::RejoinWanted);
        }
        let group = state.metadata.clone();
        state.duties.push_back(Duty::Assign {
            assignor,
            assignment,
            group,
        });
        None
    }

    async fn leave(&mut self, identity: &Identity) {
        let is_static = self.core.config.group_instance_id.is_some();
        if (!is_static || self.leave_static) && !identity.member_id.is_empty() {
            // Requests under way would make the broker answer them before it hears of this.
            self.request = None;
            requests::leave(&self.core, &self.group, identity, LEAVE_PATIENCE).await;
        }
        self.machine.forget_identity();
    }

    fn start_join(&mut self) {
        let (core, group) = (Arc::clone(&self.core), Arc::clone(&self.group));
        let identity = self.machine.identity().clone();
        self.request = Some(Box::pin(async {
            Answer::Join(requests::join(core, group, identity).await)
        }));
    }

    fn start_sync(&mut self) {
        let (core, group) = (Arc::clone(&self.core), Arc::clone(&self.group));
        let identity = self.machine.identity().clone();
        let (name, leading) = (self.protocol_name.clone(), self.leading.take());
        let skip = self.skip_assignment;
        self.request = Some(Box::pin(async move {
            Answer::Sync(requests::sync(core, group, identity, name, leading, skip).await)
        }));
    }

    fn start_heartbeat(&mut self) {
        self.beat_at = Instant::now() + self.core.config.heartbeat_interval;
        let (core, group) = (Arc::clone(&self.core), Arc::clone(&self.group));
        let identity = self.machine.identity().clone();
        self.heartbeat = Some(Box::pin(async move {
            let beat = requests::heartbeat(core, group, identity.clone()).await;
            (identity, beat)
        }));
    }

    fn start_recount(&mut self) {
        let Some(watch) = &self.watch else { return };
        let (core, topics) = (Arc::clone(&self.core), watch.topics.clone());
        self.recount = Some(Box::pin(
            async move { requests::recount(&core, topics).await },
        ));
    }
}
