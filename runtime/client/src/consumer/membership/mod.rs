//! Membership in a group: a pure machine, the task that executes it, and the mailbox between that
//! task and `poll`.
//!
//! Invariants: duties reach `poll` in the order in which they arose; the membership that is shown
//! to commits is never that of nobody once the member has joined, so that a commit of a lost
//! member is refused rather than taken for one from outside the group.
//! Never: calls the rebalance listener (`poll` does).

mod driver;
mod machine;
mod requests;

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use millstream_protocol::{ErrorCode, TopicPartition};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::assignor::{Assignment, Assignor, RebalanceProtocol, common_protocol};
use super::config::ConsumerConfig;
use super::core::Core;
use super::error::ConsumerError;
use crate::group::GroupMetadata;
pub(crate) use machine::GiveUp;

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
    /// Report that polls came too late, after giving everything up.
    PollTooLate { waited_ms: u64 },
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
    pub(crate) duties: VecDeque<Duty>,
    /// Whether `poll` is at a duty right now.
    pub(crate) at_work: bool,
    /// Partitions that the group has given us and the listener knows of.
    pub(crate) owned: BTreeSet<TopicPartition>,
    pub(crate) last_poll: Instant,
    pub(crate) polls_running: usize,
    /// Reported by every poll from now on.
    pub(crate) failed: Option<ConsumerError>,
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
                duties: VecDeque::new(),
                at_work: false,
                owned: BTreeSet::new(),
                last_poll: Instant::now(),
                polls_running: 0,
                failed: None,
            }),
            asks,
        });
        let task = tokio::spawn(driver::run(Arc::clone(core), Arc::clone(&group), receiver));
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
