//! The life of a group member as a pure machine: what happened in, what to do out.
//!
//! ```text
//!            subscribe                prepared            joined             synced
//! Unjoined ------------> Preparing ------------> Joining --------> Syncing ---------> Stable
//!    ^                    ^  ^  ^                  |  ^              |  |               |
//!    |                    |  |  +--- id lost ------+  +-- rebalance -+  |               |
//!    |                    |  +------ id lost ---------------------------+               |
//!    |                    +--------- rebalance, id lost, rejoin ------------------------+
//!    +-- unsubscribe, from anywhere;  poll too late -> Expired -(poll)-> Preparing
//!    instance id taken over, or refused for good -> Failed
//! ```
//!
//! *Preparing* is where the application gives partitions up: `poll` runs the listener and answers
//! with [`Event::Prepared`]. Heartbeats go on meanwhile, so a slow listener loses nothing.
//!
//! Invariants: a join is sent only after partitions that must go have been given up; once the
//! coordinator has forgotten us, what we own is lost before we join again; an event of an older
//! round changes nothing; a member id stays known until the coordinator says that it is unknown.
//! Never: clocks, I/O, async, assignments' contents.

use millstream_protocol::ErrorCode;

/// Where the member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Not in a group and not asked to be.
    Unjoined,
    /// Waiting for `poll` to give up partitions, before a join.
    Preparing(GiveUp),
    /// JoinGroup is out, or waits for its next attempt.
    Joining,
    /// SyncGroup is out.
    Syncing,
    /// Member of a generation.
    Stable,
    /// Left because `poll` was not called in time; the next `poll` reports that and joins again.
    Expired,
    /// Nothing will be tried again.
    Failed,
}

/// What has to be given up before a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveUp {
    /// Orderly: everything (eager) or what is no longer subscribed to (cooperative).
    Revoke,
    /// The membership is gone and others may own it all already.
    Lose,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// There is a subscription, or a changed one.
    Subscribed,
    /// The subscription is gone.
    Unsubscribed,
    /// `poll` has given up what round `round` asked for.
    Prepared { round: u64 },
    /// The answer to JoinGroup.
    Joined { generation: i32, member_id: String },
    /// JoinGroup failed. A member id comes with MEMBER_ID_REQUIRED.
    JoinRefused { code: ErrorCode, member_id: String },
    /// The assignment arrived.
    Synced,
    /// SyncGroup failed.
    SyncRefused { code: ErrorCode },
    /// A heartbeat was answered.
    Heartbeat { code: ErrorCode },
    /// No answer: the connection is gone or time is over.
    Unanswered,
    /// A commit was refused because of who we are.
    CommitRefused { code: ErrorCode },
    /// The group should be joined again (revoked partitions, changed topics).
    RejoinWanted,
    /// `poll` was not called for `max.poll.interval.ms`.
    PollLate,
    /// `poll` was called again after that.
    PollResumed,
    /// This member cannot go on (its assignor failed, its answer made no sense).
    Broken,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Ask `poll` to give up partitions, then to answer [`Event::Prepared`] with this round.
    GiveUp { round: u64, how: GiveUp },
    /// Send JoinGroup at once.
    Join,
    /// Send JoinGroup after a pause.
    JoinLater,
    /// Look the coordinator up again before the next request.
    ForgetCoordinator,
    /// Send SyncGroup (with the assignments, if we lead).
    Sync,
    /// Hand the assignment to `poll`.
    Deliver,
    /// Send LeaveGroup, unless the member is static.
    Leave,
    /// Tell `poll` that the deadline was missed.
    ReportLatePoll,
    /// Tell `poll`, for good, that the instance id was taken over.
    ReportFenced,
    /// Tell `poll`, for good, that the coordinator refuses us.
    ReportRefused(ErrorCode),
}

/// Identity within the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) generation: i32,
    pub(crate) member_id: String,
}

impl Identity {
    const NONE: Identity = Identity {
        generation: -1,
        member_id: String::new(),
    };
}

/// The machine.
#[derive(Debug)]
pub(crate) struct Machine {
    state: State,
    round: u64,
    identity: Identity,
    /// A rebalance or rejoin was asked for while the present round was under way.
    again: bool,
}

impl Machine {
    pub(crate) fn new() -> Machine {
        Machine {
            state: State::Unjoined,
            round: 0,
            identity: Identity::NONE,
            again: false,
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Whether heartbeats are due in this state.
    pub(crate) fn beats(&self) -> bool {
        matches!(self.state, State::Stable | State::Preparing(GiveUp::Revoke))
            && self.identity.generation >= 0
    }

    /// Whether the member is on its way to the next generation, with what it owns.
    pub(crate) fn rebalances(&self) -> bool {
        matches!(self.state, State::Joining | State::Syncing) && self.identity.generation >= 0
    }

    /// Whether being late with `poll` matters in this state.
    pub(crate) fn watches_poll(&self) -> bool {
        !matches!(self.state, State::Unjoined | State::Expired | State::Failed)
    }

    pub(crate) fn on(&mut self, event: Event) -> Vec<Command> {
        if self.state == State::Failed && event != Event::Unsubscribed {
            return Vec::new();
        }
        match event {
            Event::Subscribed => self.subscribed(),
            Event::Unsubscribed => self.unsubscribed(),
            Event::Prepared { round } => self.prepared(round),
            Event::Joined {
                generation,
                member_id,
            } => self.joined(generation, member_id),
            Event::JoinRefused { code, member_id } => self.join_refused(code, member_id),
            Event::Synced => self.synced(),
            Event::SyncRefused { code } => self.sync_refused(code),
            Event::Heartbeat { code } => self.heartbeat(code),
            Event::Unanswered => self.unanswered(),
            Event::CommitRefused { code } => self.commit_refused(code),
            Event::RejoinWanted => self.rejoin(),
            Event::PollLate => self.poll_late(),
            Event::PollResumed => self.poll_resumed(),
            Event::Broken => self.fail(vec![Command::Leave]),
        }
    }

    fn prepare(&mut self, how: GiveUp) -> Vec<Command> {
        self.round += 1;
        self.again = false;
        self.state = State::Preparing(how);
        vec![Command::GiveUp {
            round: self.round,
            how,
        }]
    }

    fn fail(&mut self, commands: Vec<Command>) -> Vec<Command> {
        self.state = State::Failed;
        commands
    }

    fn subscribed(&mut self) -> Vec<Command> {
        match self.state {
            State::Unjoined => self.prepare(GiveUp::Revoke),
            _ => self.rejoin(),
        }
    }

    fn rejoin(&mut self) -> Vec<Command> {
        match self.state {
            State::Stable => self.prepare(GiveUp::Revoke),
            State::Joining | State::Syncing => {
                self.again = true;
                Vec::new()
            }
            // The join that follows carries the latest subscription anyhow.
            _ => Vec::new(),
        }
    }

    fn unsubscribed(&mut self) -> Vec<Command> {
        let member = !self.identity.member_id.is_empty();
        let gone = matches!(self.state, State::Unjoined | State::Expired | State::Failed);
        self.state = State::Unjoined;
        self.round += 1;
        self.again = false;
        if member && !gone {
            vec![Command::Leave]
        } else {
            Vec::new()
        }
    }

    /// Called once LeaveGroup is out (or is not to be sent): the ids are nobody's any more.
    pub(crate) fn forget_identity(&mut self) {
        self.identity = Identity::NONE;
    }

    fn prepared(&mut self, round: u64) -> Vec<Command> {
        if round != self.round || !matches!(self.state, State::Preparing(_)) {
            return Vec::new();
        }
        self.state = State::Joining;
        vec![Command::Join]
    }

    fn joined(&mut self, generation: i32, member_id: String) -> Vec<Command> {
        if self.state != State::Joining {
            return Vec::new();
        }
        self.identity = Identity {
            generation,
            member_id,
        };
        self.state = State::Syncing;
        vec![Command::Sync]
    }

    fn join_refused(&mut self, code: ErrorCode, member_id: String) -> Vec<Command> {
        if self.state != State::Joining {
            return Vec::new();
        }
        match code {
            ErrorCode::MEMBER_ID_REQUIRED => {
                self.identity.member_id = member_id;
                vec![Command::Join]
            }
            ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::ILLEGAL_GENERATION => self.lost(code),
            ErrorCode::REBALANCE_IN_PROGRESS | ErrorCode::COORDINATOR_LOAD_IN_PROGRESS => {
                vec![Command::JoinLater]
            }
            ErrorCode::COORDINATOR_NOT_AVAILABLE | ErrorCode::NOT_COORDINATOR => {
                vec![Command::ForgetCoordinator, Command::JoinLater]
            }
            _ => self.refused(code),
        }
    }

    fn refused(&mut self, code: ErrorCode) -> Vec<Command> {
        match code {
            ErrorCode::FENCED_INSTANCE_ID => self.fail(vec![Command::ReportFenced]),
            _ => self.fail(vec![Command::ReportRefused(code)]),
        }
    }

    /// The coordinator does not know us as we are.
    fn lost(&mut self, code: ErrorCode) -> Vec<Command> {
        self.identity.generation = -1;
        if code == ErrorCode::UNKNOWN_MEMBER_ID {
            self.identity.member_id.clear();
        }
        self.prepare(GiveUp::Lose)
    }

    fn synced(&mut self) -> Vec<Command> {
        if self.state != State::Syncing {
            return Vec::new();
        }
        self.state = State::Stable;
        let mut commands = vec![Command::Deliver];
        if self.again {
            commands.extend(self.prepare(GiveUp::Revoke));
        }
        commands
    }

    fn sync_refused(&mut self, code: ErrorCode) -> Vec<Command> {
        if self.state != State::Syncing {
            return Vec::new();
        }
        match code {
            ErrorCode::REBALANCE_IN_PROGRESS | ErrorCode::COORDINATOR_LOAD_IN_PROGRESS => {
                self.state = State::Joining;
                self.again = false;
                vec![Command::Join]
            }
            ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::ILLEGAL_GENERATION => self.lost(code),
            ErrorCode::COORDINATOR_NOT_AVAILABLE | ErrorCode::NOT_COORDINATOR => {
                self.state = State::Joining;
                vec![Command::ForgetCoordinator, Command::JoinLater]
            }
            _ => self.refused(code),
        }
    }

    fn heartbeat(&mut self, code: ErrorCode) -> Vec<Command> {
        let stable = self.state == State::Stable;
        if !stable && self.state != State::Preparing(GiveUp::Revoke) {
            return Vec::new();
        }
        match code {
            ErrorCode::NONE | ErrorCode::COORDINATOR_LOAD_IN_PROGRESS => Vec::new(),
            ErrorCode::REBALANCE_IN_PROGRESS if stable => self.prepare(GiveUp::Revoke),
            ErrorCode::REBALANCE_IN_PROGRESS => Vec::new(),
            ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::ILLEGAL_GENERATION => self.lost(code),
            ErrorCode::COORDINATOR_NOT_AVAILABLE | ErrorCode::NOT_COORDINATOR => {
                vec![Command::ForgetCoordinator]
            }
            _ => self.refused(code),
        }
    }

    fn unanswered(&mut self) -> Vec<Command> {
        match self.state {
            State::Joining | State::Syncing => {
                self.state = State::Joining;
                vec![Command::ForgetCoordinator, Command::JoinLater]
            }
            State::Stable | State::Preparing(_) => vec![Command::ForgetCoordinator],
            State::Unjoined | State::Expired | State::Failed => Vec::new(),
        }
    }

    fn commit_refused(&mut self, code: ErrorCode) -> Vec<Command> {
        match (self.state, code) {
            (State::Stable | State::Preparing(GiveUp::Revoke), _)
                if matches!(
                    code,
                    ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::ILLEGAL_GENERATION
                ) =>
            {
                self.lost(code)
            }
            (State::Stable, ErrorCode::REBALANCE_IN_PROGRESS) => self.prepare(GiveUp::Revoke),
            (_, ErrorCode::FENCED_INSTANCE_ID) if self.state != State::Unjoined => {
                self.refused(code)
            }
            _ => Vec::new(),
        }
    }

    fn poll_late(&mut self) -> Vec<Command> {
        if !self.watches_poll() {
            return Vec::new();
        }
        self.state = State::Expired;
        self.round += 1;
        self.again = false;
        vec![Command::Leave, Command::ReportLatePoll]
    }

    fn poll_resumed(&mut self) -> Vec<Command> {
        if self.state == State::Expired {
            self.prepare(GiveUp::Lose)
        } else {
            Vec::new()
        }
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
