//! Membership in a group: a pure machine, the task that executes it, and the mailbox between that
//! task and `poll`. There are two of the former, one a protocol; the mailbox is the same.
//!
//! ```text
//!  Consumer ── Ask ──> driver, machine, requests (classic: join, sync, heartbeat)
//!     ^               or heartbeats::{driver, machine, words} (KIP-848: heartbeat)
//!     +── Duty ────────────────+
//! ```
//!
//! Invariants: duties reach `poll` in the order in which they arose; the membership that is shown
//! to commits is never that of nobody once the member has joined, so that a commit of a lost
//! member is refused rather than taken for one from outside the group.
//! Never: calls the rebalance listener (`poll` does).

mod driver;
mod heartbeats;
mod machine;
mod requests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use millstream_protocol::{ErrorCode, TopicPartition};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::assignor::{Assignment, Assignor, RebalanceProtocol, common_protocol};
use super::config::ConsumerConfig;
use super::core::Core;
use super::error::ConsumerError;
use super::group_protocol::GroupProtocol;
use crate::group::GroupMetadata;
pub(crate) use heartbeats::Target;
pub(crate) use machine::GiveUp;
use requests::ask;

/// Something that only `poll` can do, since the listener is called for it.
#[derive(Clone, Debug)]
pub(crate) enum Duty {
    /// Give partitions up, then say so for this round.
    GiveUp { round: u64, how: GiveUp },
    /// Take an assignment over.
    Assign {
        assignor: Arc<dyn Assignor>,
        assignment: Assignment,
        group: GroupMetadata,
    },
    /// Take over what the coordinator wants the member to have (consumer protocol), then say so for
    /// this round.
    Reconcile { round: u64 },
    /// Report that polls came too late, after giving everything up.
    PollTooLate { waited_ms: u64 },
    /// Report what the coordinator refuses for now.
    Report(ConsumerError),
}

/// What the consumer asks of the task.
#[derive(Debug)]
pub(crate) enum Ask {
    Subscribe,
    Unsubscribe {
        leave_static: bool,
        done: oneshot::Sender<()>,
    },
    Prepared {
        round: u64,
    },
    /// The target is taken over.
    Reconciled {
        round: u64,
        target: Arc<Target>,
    },
    Rejoin,
    PollResumed,
    CommitRefused {
        code: ErrorCode,
        generation_id: i32,
        member_id: String,
    },
}

/// What task and consumer both see.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) group_id: String,
    pub(crate) protocol: RebalanceProtocol,
    state: Mutex<GroupState>,
    asks: mpsc::UnboundedSender<Ask>,
}

#[derive(Debug)]
pub(crate) struct GroupState {
    /// Who we are, or last were, in the group.
    pub(crate) metadata: GroupMetadata,
    pub(crate) topics: Vec<Arc<str>>,
    /// The expression by which the coordinator finds further topics (consumer protocol).
    pub(crate) pattern: Option<Arc<str>>,
    /// What the coordinator wants the member to have (consumer protocol).
    pub(crate) target: Option<Arc<Target>>,
    /// How often the membership was lost or given up (consumer protocol).
    pub(crate) lost: u64,
    /// The member is on its way to the next generation (classic protocol).
    pub(crate) rebalances: bool,
    pub(crate) duties: VecDeque<Duty>,
    /// Whether `poll` is at a duty right now.
    pub(crate) at_work: bool,
    /// Partitions that the group has given us and the listener knows of.
    pub(crate) owned: BTreeSet<TopicPartition>,
    /// How often each partition was given up, or lost.
    given_up: BTreeMap<TopicPartition, u64>,
    pub(crate) last_poll: Instant,
    pub(crate) polls_running: usize,
    /// Reported by every poll from now on.
    pub(crate) failed: Option<ConsumerError>,
}

/// How long partitions have been ours without a break: it is another one after each break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tenure {
    lost: u64,
    given_up: u64,
}

impl GroupState {
    pub(crate) fn tenure<'a>(
        &self,
        partitions: impl Iterator<Item = &'a TopicPartition>,
    ) -> Tenure {
        // Counters only grow, so the sum is the same only where each one is.
        let given_up = partitions.filter_map(|partition| self.given_up.get(partition));
        Tenure {
            lost: self.lost,
            given_up: given_up.sum(),
        }
    }

    /// Makes `partitions` what the group has given us.
    pub(crate) fn own(&mut self, partitions: BTreeSet<TopicPartition>) {
        for gone in self.owned.difference(&partitions) {
            *self.given_up.entry(gone.clone()).or_default() += 1;
        }
        self.owned = partitions;
    }
}

impl Group {
    /// Starts the task of a member that has not been asked to join yet. `None` without a group id.
    pub(crate) fn start(core: &Arc<Core>) -> Option<(Arc<Group>, tokio::task::JoinHandle<()>)> {
        let config: &ConsumerConfig = &core.config;
        let group_id = config.group_id.clone()?;
        let (asks, receiver) = mpsc::unbounded_channel();
        let metadata = GroupMetadata {
            group_instance_id: config.group_instance_id.clone(),
            auto_commit: config.enable_auto_commit,
            ..GroupMetadata::without_membership(group_id.clone())
        };
        let group = Arc::new(Group {
            group_id,
            protocol: common_protocol(&config.assignors).unwrap_or(RebalanceProtocol::Eager),
            state: Mutex::new(GroupState {
                metadata,
                topics: Vec::new(),
                pattern: None,
                target: None,
                lost: 0,
                rebalances: false,
                duties: VecDeque::new(),
                at_work: false,
                owned: BTreeSet::new(),
                given_up: BTreeMap::new(),
                last_poll: Instant::now(),
                polls_running: 0,
                failed: None,
            }),
            asks,
        });
        let (core, member) = (Arc::clone(core), Arc::clone(&group));
        let task = match core.config.group_protocol {
            GroupProtocol::Classic => tokio::spawn(driver::run(core, member, receiver)),
            GroupProtocol::Consumer => tokio::spawn(heartbeats::run(core, member, receiver)),
        };
        Some((group, task))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, GroupState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the task. It is gone only while the consumer is being dropped.
    pub(crate) fn ask(&self, ask: Ask) {
        let _ = self.asks.send(ask);
    }

    pub(crate) fn metadata(&self) -> GroupMetadata {
        self.lock().metadata.clone()
    }

    /// When `poll` is late, as far as can be said now.
    fn poll_deadline(&self, core: &Core) -> Instant {
        let state = self.lock();
        let from = if state.polls_running > 0 {
            Instant::now()
        } else {
            state.last_poll
        };
        from + core.config.max_poll_interval
    }

    fn poll_is_late(&self, core: &Core) -> bool {
        let state = self.lock();
        let waited = state.last_poll.elapsed();
        state.polls_running == 0 && waited >= core.config.max_poll_interval
    }

    /// Marks a poll as running until the guard is dropped.
    pub(crate) fn polling(self: &Arc<Self>) -> Polling {
        self.lock().polls_running += 1;
        Polling {
            group: Arc::clone(self),
        }
    }
}

/// A poll that is running; its end counts as the last poll.
#[derive(Debug)]
pub(crate) struct Polling {
    group: Arc<Group>,
}

impl Drop for Polling {
    fn drop(&mut self) {
        let mut state = self.group.lock();
        state.polls_running = state.polls_running.saturating_sub(1);
        state.last_poll = Instant::now();
    }
}

/// What a leader needs in order to assign.
#[derive(Debug)]
pub(crate) struct Leading {
    pub(crate) assignor: Arc<dyn Assignor>,
    /// (member id, instance id, subscription).
    pub(crate) members: Vec<(String, Option<String>, Bytes)>,
}

/// What an application is to do about a code that keeps its member out.
fn next_step(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::INCONSISTENT_GROUP_PROTOCOL => {
            "the other members use other assignors: give all members one in common, or use a \
             group.id of your own"
        }
        ErrorCode::INVALID_SESSION_TIMEOUT => {
            "set session.timeout.ms within the broker's group.min/max.session.timeout.ms"
        }
        ErrorCode::INVALID_GROUP_ID => "choose another group.id",
        ErrorCode::GROUP_AUTHORIZATION_FAILED => "let this user read the group",
        ErrorCode::GROUP_MAX_SIZE_REACHED => "the group is full: stop a member, or raise the limit",
        ErrorCode::UNSUPPORTED_ASSIGNOR => {
            "set group.remote.assignor to one of the broker's group.consumer.assignors"
        }
        ErrorCode::INVALID_REGULAR_EXPRESSION => "give subscribe_pattern(..) another expression",
        ErrorCode::GROUP_ID_NOT_FOUND => {
            "the group has members of the classic protocol: wait until they have left, or set \
             group.protocol=classic"
        }
        ErrorCode::UNSUPPORTED_VERSION => {
            "the cluster does not support the consumer protocol: set group.protocol=classic"
        }
        _ => "close the consumer and look into the broker's log",
    }
}
