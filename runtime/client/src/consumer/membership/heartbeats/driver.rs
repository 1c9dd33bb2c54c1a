//! The task of one member under the consumer protocol: sends heartbeats, finds out what the topics
//! of an assignment are called, and watches that `poll` is called.
//!
//! Invariants: one heartbeat at a time, and none behind a goodbye that is still on its way; the
//! answer to one that an older state sent is dropped; heartbeats do not depend on `poll`.
//! Never: touches positions or calls the listener.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, OptionFuture};
use millstream_protocol::messages::consumer_group_heartbeat::Assignment;
use millstream_protocol::messages::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
};
use millstream_protocol::{ErrorCode, Uuid};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::super::{Ask, Duty, GiveUp, Group, ask};
use super::machine::{Command, Event, LEAVE, Machine, PAUSE, State};
use super::member_id::new_member_id;
use super::target::{ById, Target, by_id};
use super::words::{Wishes, Words};
use crate::cluster::{CoordinatorKind, millis};
use crate::consumer::core::{Core, MemberEpoch};
use crate::consumer::error::ConsumerError;
use crate::error::{ClusterError, RequestError};

/// How long saying goodbye may take.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);
/// How often topics without a name are asked for.
const NAMELESS_TOPIC_PAUSE: Duration = Duration::from_secs(1);
/// Until the coordinator says how often it wants to hear of us.
const FIRST_INTERVAL: Duration = Duration::from_secs(3);
/// A heartbeat is given up after this many intervals, or after the least patience.
const PATIENCE_INTERVALS: u32 = 3;
const LEAST_PATIENCE: Duration = Duration::from_secs(10);
/// Whoever holds our instance id for longer than this is not ourselves: our own session, opened by
/// a join whose answer was lost, has ended by then or has let us in.
const UNRELEASED_PATIENCE: Duration = Duration::from_secs(60);

type Beaten = Result<ConsumerGroupHeartbeatResponse, ClusterError>;

struct Driver {
    core: Arc<Core>,
    group: Arc<Group>,
    machine: Machine,
    member_id: String,
    words: Words,
    heartbeat: Option<BoxFuture<'static, Beaten>>,
    goodbye: Option<BoxFuture<'static, ()>>,
    look_up: Option<BoxFuture<'static, ()>>,
    beat_at: Instant,
    interval: Duration,
    /// Heartbeats in a row that were not answered well.
    attempts: u32,
    look_up_at: Option<Instant>,
    /// What the coordinator wants us to have.
    wanted: Option<ById>,
    /// What `poll` has taken over.
    taken: Option<Arc<Target>>,
    leave_static: bool,
    /// A subscription came while we were leaving.
    subscribe_again: bool,
    /// Those who wait until we have left.
    leaving: Vec<oneshot::Sender<()>>,
    failure: Option<ConsumerError>,
    /// Since when our instance id is said to be somebody's.
    unreleased_since: Option<Instant>,
}

/// Runs until the consumer is gone.
pub(in super::super) async fn run(
    core: Arc<Core>,
    group: Arc<Group>,
    mut asks: mpsc::UnboundedReceiver<Ask>,
) {
    let now = Instant::now();
    let mut driver = Driver {
        member_id: new_member_id(&core.config).to_string(),
        core,
        group,
        machine: Machine::new(),
        words: Words::default(),
        heartbeat: None,
        goodbye: None,
        look_up: None,
        beat_at: now,
        interval: FIRST_INTERVAL,
        attempts: 0,
        look_up_at: None,
        wanted: None,
        taken: None,
        leave_static: false,
        subscribe_again: false,
        leaving: Vec::new(),
        failure: None,
        unreleased_since: None,
    };
    loop {
        let (beats, poll_at) = (driver.beats(), driver.group.poll_deadline(&driver.core));
        let look_up_at = driver.look_up_at;
        tokio::select! {
            biased;
            ask = asks.recv() => match ask {
                Some(ask) => driver.asked(ask),
                None => return,
            },
            Some(()) = OptionFuture::from(driver.goodbye.as_mut()) => {
                driver.goodbye = None;
                driver.on(Event::Left);
            }
            Some(beaten) = OptionFuture::from(driver.heartbeat.as_mut()) => {
                driver.heartbeat = None;
                driver.beaten(beaten);
            }
            Some(()) = OptionFuture::from(driver.look_up.as_mut()) => {
                driver.look_up = None;
                driver.looked_up();
            }
            () = sleep_until(look_up_at.unwrap_or(now)), if look_up_at.is_some() => {
                driver.look_up_at = None;
                driver.offer();
            }
            () = sleep_until(driver.beat_at), if beats => driver.start_heartbeat(),
            () = sleep_until(poll_at), if driver.machine.watches_poll() => {
                if driver.group.poll_is_late(&driver.core) {
                    driver.on(Event::PollLate);
                }
            }
        }
    }
}

impl Driver {
    fn beats(&self) -> bool {
        self.machine.beats() && self.heartbeat.is_none() && self.goodbye.is_none()
    }

    fn asked(&mut self, ask: Ask) {
        match ask {
            Ask::Subscribe => {
                self.group.lock().last_poll = Instant::now();
                self.subscribe_again |= self.machine.state() == State::Leaving;
                self.on(Event::Subscribed);
            }
            Ask::Unsubscribe { leave_static, done } => {
                self.leave_static = leave_static;
                self.subscribe_again = false;
                self.leaving.push(done);
                {
                    let mut state = self.group.lock();
                    state.duties.clear();
                    state.failed = None;
                }
                let for_good = leave_static && self.core.config.group_instance_id.is_some();
                self.on(Event::Unsubscribed { for_good });
            }
            Ask::Prepared { round } => self.on(Event::Released { round }),
            Ask::Reconciled { round, target } => self.reconciled(round, target),
            Ask::PollResumed => self.on(Event::PollResumed),
            // The coordinator knows better than an assignor here when to share out again.
            Ask::Rejoin => {}
            Ask::CommitRefused { .. } => self.on(Event::CommitRefused),
        }
    }

    fn reconciled(&mut self, round: u64, target: Arc<Target>) {
        if round == self.machine.round() && self.machine.state() == State::Reconciling {
            self.taken = Some(target);
            self.words.owe_owned();
            self.on(Event::Reconciled { round });
            self.offer();
        }
    }

    fn beaten(&mut self, beaten: Beaten) {
        match beaten {
            Ok(answer) if answer.error_code.is_ok() => self.accepted(answer),
            Ok(answer) => self.refused(&answer),
            Err(error) => self.unanswered(error),
        }
    }

    fn accepted(&mut self, answer: ConsumerGroupHeartbeatResponse) {
        self.attempts = 0;
        self.unreleased_since = None;
        if let Ok(interval_ms @ 1..) = u64::try_from(answer.heartbeat_interval_ms) {
            self.interval = Duration::from_millis(interval_ms);
        }
        if let Some(member_id) = answer.member_id.filter(|id| !id.is_empty()) {
            self.member_id = member_id;
        }
        let epoch = answer.member_epoch;
        if epoch < 0 {
            return;
        }
        if self.machine.epoch() != epoch {
            tracing::debug!(group = %self.group.group_id, epoch, "the member's epoch");
        }
        self.on(Event::Accepted { epoch });
        if !self.machine.is_member() {
            return;
        }
        self.core.set_member_epoch(Some(MemberEpoch {
            member_id: self.member_id.as_str().into(),
            epoch,
        }));
        {
            let mut state = self.group.lock();
            state.metadata.generation_id = epoch;
            state.metadata.member_id.clone_from(&self.member_id);
        }
        self.core.for_poll.notify_one();
        if let Some(assignment) = answer.assignment {
            self.told(assignment);
        }
        if self.words.owes(&self.wishes()) {
            self.beat_at = Instant::now();
        }
    }

    fn refused(&mut self, answer: &ConsumerGroupHeartbeatResponse) {
        let code = answer.error_code;
        let message = answer.error_message.as_deref().unwrap_or_default();
        tracing::debug!(group = %self.group.group_id, %code, message, "heartbeat refused");
        self.words.forget();
        self.failure = Some(self.refusal(code));
        if code == ErrorCode::TOPIC_AUTHORIZATION_FAILED {
            let mut state = self.group.lock();
            let told = |duty: &Duty| matches!(duty, Duty::Report(_));
            if !state.duties.iter().any(told) {
                state.duties.extend(self.failure.clone().map(Duty::Report));
            }
        }
        if code != ErrorCode::UNRELEASED_INSTANCE_ID {
            self.unreleased_since = None;
        } else if self
            .unreleased_since
            .get_or_insert_with(Instant::now)
            .elapsed()
            >= UNRELEASED_PATIENCE
        {
            self.unreleased_since = None;
            return self.on(Event::Broken);
        }
        self.on(Event::Refused { code });
    }

    fn refusal(&self, code: ErrorCode) -> ConsumerError {
        let group = self.group.group_id.clone();
        let instance = self.core.config.group_instance_id.clone();
        match code {
            ErrorCode::FENCED_INSTANCE_ID => ConsumerError::InstanceFenced {
                group,
                instance: instance.unwrap_or_default(),
                member_id: self.member_id.clone(),
            },
            ErrorCode::UNRELEASED_INSTANCE_ID => ConsumerError::InstanceInUse {
                group,
                instance: instance.unwrap_or_default(),
            },
            code => ConsumerError::JoinRefused {
                group,
                code,
                next_step: super::super::next_step(code),
            },
        }
    }

    fn unanswered(&mut self, error: ClusterError) {
        tracing::debug!(group = %self.group.group_id, %error, "no answer from the coordinator");
        self.words.forget();
        let lasting = match &error {
            ClusterError::Request(request) => !request.is_retriable(),
            ClusterError::CoordinatorTimeout { .. } | ClusterError::NoBootstrap => false,
            _ => true,
        };
        if !lasting {
            let sent = match &error {
                ClusterError::Request(request) => request.may_have_been_sent(),
                _ => false,
            };
            self.on(Event::Unanswered { sent });
            return;
        }
        self.failure = Some(match error {
            ClusterError::Request(RequestError::UnsupportedVersion { .. }) => {
                self.refusal(ErrorCode::UNSUPPORTED_VERSION)
            }
            error => error.into(),
        });
        self.on(Event::Broken);
    }

    fn told(&mut self, assignment: Assignment) {
        let wanted = by_id(assignment);
        if self.wanted.as_ref() != Some(&wanted) {
            self.wanted = Some(wanted);
            self.look_up_at = None;
            self.offer();
        }
    }

    /// Hands what the coordinator wants to `poll`, once the names of its topics are known.
    fn offer(&mut self) {
        if self.nameless().is_empty() {
            self.hand_over();
        } else if self.look_up.is_none() {
            self.start_look_up();
        }
    }

    fn nameless(&self) -> Vec<Uuid> {
        let wanted = self.wanted.iter().flatten();
        let wanted = wanted.map(|(topic, partitions)| (*topic, partitions.clone()));
        Target::named(&self.core.cluster, self.taken.as_deref(), &wanted.collect()).1
    }

    /// What has a name is handed over; the rest is asked for again.
    fn looked_up(&mut self) {
        if !self.nameless().is_empty() {
            self.look_up_at = Some(Instant::now() + NAMELESS_TOPIC_PAUSE);
        }
        self.hand_over();
    }

    fn hand_over(&mut self) {
        let Some(wanted) = &self.wanted else { return };
        let (target, _) = Target::named(&self.core.cluster, self.taken.as_deref(), wanted);
        let differs = self.taken.as_deref() != Some(&target);
        self.group.lock().target = Some(Arc::new(target));
        if differs {
            self.on(Event::Targeted);
        }
    }

    fn wishes(&self) -> Wishes {
        let state = self.group.lock();
        Wishes {
            topics: state.topics.clone(),
            pattern: state.pattern.clone(),
        }
    }

    fn on(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let before = (self.machine.state(), self.machine.is_member());
            let commands = self.machine.on(&event);
            let after = self.machine.state();
            if before.0 != after {
                tracing::trace!(group = %self.group.group_id, ?before, ?after, ?event, "member");
                self.entered(before.1);
            }
            for command in commands {
                events.extend(self.execute(*command));
            }
            if after == State::Unsubscribed {
                self.has_left();
                if std::mem::take(&mut self.subscribe_again) {
                    events.push_back(Event::Subscribed);
                }
            }
        }
        self.core.for_poll.notify_one();
    }

    /// What an older state has asked, or was told, is void.
    fn entered(&mut self, was_member: bool) {
        if !self.machine.beats() {
            self.heartbeat = None;
        }
        if self.machine.is_member() {
            return;
        }
        self.words.forget();
        self.core.set_member_epoch(None);
        (self.wanted, self.taken) = (None, None);
        (self.look_up, self.look_up_at) = (None, None);
        let mut state = self.group.lock();
        state.target = None;
        if was_member {
            state.lost += 1;
        }
    }

    fn has_left(&mut self) {
        for done in self.leaving.drain(..) {
            let _ = done.send(());
        }
    }

    fn execute(&mut self, command: Command) -> Option<Event> {
        match command {
            Command::Beat => self.beat_at = Instant::now(),
            Command::BeatLater => {
                let pause = self.core.cluster.retry_pause(self.attempts);
                self.attempts = self.attempts.saturating_add(1);
                self.beat_at = Instant::now() + pause;
            }
            Command::ForgetCoordinator => {
                let kind = CoordinatorKind::Group;
                self.core
                    .cluster
                    .forget_coordinator(kind, &self.group.group_id);
            }
            Command::Reconcile => {
                let round = self.machine.round();
                let mut state = self.group.lock();
                state.duties.push_back(Duty::Reconcile { round });
            }
            Command::Lose => return self.lose(),
            Command::Leave => self.start_goodbye(),
            Command::ReportLatePoll => {
                let mut state = self.group.lock();
                let waited_ms = millis(state.last_poll.elapsed());
                state.duties.clear();
                state.duties.push_back(Duty::PollTooLate { waited_ms });
            }
            Command::ReportFailure => {
                if let Some(error) = self.failure.take() {
                    tracing::warn!(group = %self.group.group_id, %error, "the member has failed");
                    let mut state = self.group.lock();
                    state.duties.clear();
                    state.failed = Some(error);
                }
            }
        }
        None
    }

    fn lose(&mut self) -> Option<Event> {
        let round = self.machine.round();
        let mut state = self.group.lock();
        // What was asked of a member that is gone is void.
        state.duties.clear();
        if !state.at_work && state.owned.is_empty() {
            return Some(Event::Released { round });
        }
        let how = GiveUp::Lose;
        state.duties.push_back(Duty::GiveUp { round, how });
        None
    }

    fn start_heartbeat(&mut self) {
        self.beat_at = Instant::now() + self.interval;
        let nothing = ById::new();
        let owned = self.taken.as_ref().map_or(&nothing, |taken| &taken.ids);
        let (epoch, wishes) = (self.machine.epoch(), self.wishes());
        let request = self.words.say(&self.core.config, epoch, wishes, owned);
        let patience = LEAST_PATIENCE.max(self.interval * PATIENCE_INTERVALS);
        self.heartbeat = Some(self.send(request, patience));
        self.on(Event::Sent);
    }

    fn start_goodbye(&mut self) {
        let is_static = self.core.config.group_instance_id.is_some();
        let for_good = !is_static || self.leave_static;
        let request = ConsumerGroupHeartbeatRequest {
            member_epoch: if for_good { LEAVE } else { PAUSE },
            instance_id: self.core.config.group_instance_id.clone(),
            ..Default::default()
        };
        let (asked, group) = (self.send(request, LEAVE_PATIENCE), Arc::clone(&self.group));
        self.goodbye = Some(Box::pin(async move {
            match tokio::time::timeout(LEAVE_PATIENCE, asked).await {
                Ok(Ok(answer)) => {
                    let code = answer.error_code;
                    tracing::debug!(group = %group.group_id, %code, "left the group");
                }
                Ok(Err(error)) => {
                    tracing::debug!(group = %group.group_id, %error, "leaving was not answered");
                }
                Err(_) => tracing::debug!(group = %group.group_id, "leaving took too long"),
            }
        }));
    }

    fn send(
        &self,
        mut request: ConsumerGroupHeartbeatRequest,
        patience: Duration,
    ) -> BoxFuture<'static, Beaten> {
        request.group_id.clone_from(&self.group.group_id);
        request.member_id.clone_from(&self.member_id);
        let (core, group) = (Arc::clone(&self.core), Arc::clone(&self.group));
        let timeout = core.config.client.request_timeout.min(patience);
        Box::pin(async move { ask(&core, &group.group_id, timeout, |_| request).await })
    }

    fn start_look_up(&mut self) {
        let core = Arc::clone(&self.core);
        let (nameless, wishes) = (self.nameless(), self.wishes());
        self.look_up = Some(Box::pin(async move {
            // By name where the names are known: brokers of before 2.8 know no other way.
            let asked = match wishes.pattern {
                None => core.cluster.refresh_metadata(&wishes.topics).await,
                Some(_) => core.cluster.refresh_topics_by_id(&nameless).await,
            };
            if let Err(error) = asked {
                tracing::debug!(%error, "no names for the assigned topics");
            }
        }));
    }
}
