//! The life of a member under the consumer protocol (KIP-848) as a pure machine.
//!
//! ```text
//!              subscribe           accepted            target            reconciled
//! Unsubscribed ---------> Joining ---------> Stable ---------> Reconciling ---------+
//!      ^                   ^  ^  ^             ^  ^                 ^               v
//!      |                   |  |  |             |  +--- sent --- Acknowledging <-----+
//!      |          released |  |  |             |                    | (target: Reconciling again)
//!      |                   |  |  +-------- unknown to the coordinator, from any of these: Fenced
//!      |                   +--|----- Fenced (poll gives everything up)
//!      +--- left --- Leaving  +----- Expired (poll was late; the next one resumes)
//!                       ^              | a static member gives its place up
//!                       +--------------+
//!                 refused for good -> Failed
//! ```
//!
//! A heartbeat is the only request. The coordinator answers with an epoch and, when it has changed,
//! with the partitions that the member is to have; `poll` takes them over (*Reconciling*), and the
//! heartbeat after that says so (*Acknowledging*).
//!
//! Invariants: a partition is let go of in a heartbeat only after `poll` has given it up; once the
//! coordinator does not know us, everything is lost before we join again; an event of an older
//! round changes nothing; no heartbeat is due while everything is being given up.
//! Never: clocks, I/O, async, partitions.

use millstream_protocol::ErrorCode;

/// The epoch of a heartbeat that joins.
pub(super) const JOIN: i32 = 0;
/// The epoch of a heartbeat that leaves.
pub(super) const LEAVE: i32 = -1;
/// The epoch of a heartbeat of a static member that will be back.
pub(super) const PAUSE: i32 = -2;

/// Where the member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not in a group and not asked to be.
    Unsubscribed,
    /// Heartbeats with epoch 0 until one is answered.
    Joining,
    /// Has what the coordinator wants it to have.
    Stable,
    /// `poll` is to take a target over.
    Reconciling,
    /// The next heartbeat says what `poll` has taken over.
    Acknowledging,
    /// The coordinator does not know us; `poll` is to give everything up.
    Fenced,
    /// The heartbeat that leaves is out.
    Leaving,
    /// Left because `poll` was not called in time; the next `poll` reports that and joins again.
    Expired,
    /// Nothing will be tried again.
    Failed,
}

/// What happened, without its particulars: the columns of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stimulus {
    /// There is a subscription, or a changed one.
    Subscribed,
    /// The subscription is gone.
    Unsubscribed,
    /// So it is, and the place of a static member that has only paused is to be given up.
    Discharged,
    /// A heartbeat was answered well.
    Accepted,
    /// The coordinator wants us to have other partitions than we have, or has told us for the first
    /// time.
    Targeted,
    /// `poll` has taken a target over.
    Reconciled,
    /// A heartbeat is on its way.
    Sent,
    /// The coordinator wants to be asked again later.
    Busy,
    /// No answer, or the coordinator is another broker now.
    Elsewhere,
    /// The coordinator does not know us as we are.
    Unknown,
    /// `poll` has given everything up.
    Released,
    /// The coordinator refuses us for good, or we cannot go on.
    Refused,
    /// A commit was refused because of who we are.
    CommitRefused,
    /// `poll` was not called for `max.poll.interval.ms`.
    PollLate,
    /// `poll` was called again after that.
    PollResumed,
    /// The goodbye was answered, or took too long.
    Left,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Send a heartbeat as soon as none is on its way.
    Beat,
    /// Send the next heartbeat after a pause.
    BeatLater,
    /// Look the coordinator up again before the next request.
    ForgetCoordinator,
    /// Ask `poll` to take the target over, then to say so with the machine's round.
    Reconcile,
    /// Ask `poll` to give everything up without a word, then to say so with the machine's round.
    Lose,
    /// Say goodbye.
    Leave,
    /// Tell `poll` that the deadline was missed.
    ReportLatePoll,
    /// Tell `poll`, for good, why the member cannot go on.
    ReportFailure,
}

/// The transition table: the next state, and what to do.
pub(super) fn cell(state: State, stimulus: Stimulus) -> (State, &'static [Command]) {
    use Command as C;
    use State as S;
    use Stimulus as E;
    match (state, stimulus) {
        (S::Unsubscribed, E::Subscribed) => (S::Joining, &[C::Beat]),

        (S::Joining, E::Accepted) => (S::Stable, &[]),
        // Whoever we were before is in the way until its session ends.
        (S::Joining, E::Unknown) => (S::Joining, &[C::BeatLater]),

        (S::Stable | S::Acknowledging, E::Targeted) => (S::Reconciling, &[C::Reconcile]),
        (S::Reconciling, E::Reconciled) => (S::Acknowledging, &[C::Beat]),
        (S::Acknowledging, E::Sent) => (S::Stable, &[]),
        (S::Stable | S::Reconciling | S::Acknowledging, E::Subscribed | E::CommitRefused) => {
            (state, &[C::Beat])
        }
        (S::Stable | S::Reconciling | S::Acknowledging, E::Unknown) => (S::Fenced, &[C::Lose]),

        (S::Joining | S::Stable | S::Reconciling | S::Acknowledging, E::Busy) => {
            (state, &[C::BeatLater])
        }
        (S::Joining | S::Stable | S::Reconciling | S::Acknowledging, E::Elsewhere) => {
            (state, &[C::ForgetCoordinator, C::BeatLater])
        }
        (S::Joining | S::Stable | S::Reconciling | S::Acknowledging, E::Refused) => {
            (S::Failed, &[C::ReportFailure])
        }
        (S::Joining | S::Stable | S::Reconciling | S::Acknowledging, E::Unsubscribed) => {
            (S::Leaving, &[C::Leave])
        }
        (S::Joining | S::Stable | S::Reconciling | S::Acknowledging, E::PollLate) => {
            (S::Expired, &[C::Leave, C::ReportLatePoll])
        }

        (S::Fenced, E::Released) => (S::Joining, &[C::Beat]),
        (S::Fenced, E::PollLate) => (S::Expired, &[C::ReportLatePoll]),
        (S::Expired, E::PollResumed) => (S::Joining, &[C::Beat]),
        (S::Expired, E::Discharged) => (S::Leaving, &[C::Leave]),
        (S::Leaving, E::Left) => (S::Unsubscribed, &[]),
        (S::Fenced | S::Expired | S::Failed, E::Unsubscribed) => (S::Unsubscribed, &[]),

        (state, _) => (state, &[]),
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Subscribed,
    /// `for_good` where a static member gives its place up.
    Unsubscribed {
        for_good: bool,
    },
    /// A heartbeat was answered well, with this epoch.
    Accepted {
        epoch: i32,
    },
    Targeted,
    /// `poll` has taken over what round `round` asked for.
    Reconciled {
        round: u64,
    },
    Sent,
    /// A heartbeat was refused.
    Refused {
        code: ErrorCode,
    },
    /// No answer: the connection is gone or time is over.
    Unanswered {
        /// The coordinator may have heard it.
        sent: bool,
    },
    /// `poll` has given up what round `round` asked for.
    Released {
        round: u64,
    },
    CommitRefused,
    PollLate,
    PollResumed,
    Left,
    /// The request cannot be made, or its answer not be read.
    Broken,
}

/// The machine.
#[derive(Debug)]
pub(super) struct Machine {
    state: State,
    epoch: i32,
    round: u64,
    /// A heartbeat that joins was not answered: the coordinator may have let us in.
    join_lost: bool,
}

impl Machine {
    pub(super) fn new() -> Machine {
        Machine {
            state: State::Unsubscribed,
            epoch: JOIN,
            round: 0,
            join_lost: false,
        }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    /// The epoch that the next heartbeat names.
    pub(super) fn epoch(&self) -> i32 {
        self.epoch
    }

    /// The number of what was last asked of `poll`.
    pub(super) fn round(&self) -> u64 {
        self.round
    }

    /// Whether heartbeats are due in this state.
    pub(super) fn beats(&self) -> bool {
        self.state == State::Joining || self.is_member()
    }

    /// Whether the coordinator counts us in, as far as we know.
    pub(super) fn is_member(&self) -> bool {
        matches!(
            self.state,
            State::Stable | State::Reconciling | State::Acknowledging
        )
    }

    /// Whether being late with `poll` matters in this state.
    pub(super) fn watches_poll(&self) -> bool {
        self.beats() || self.state == State::Fenced
    }

    pub(super) fn on(&mut self, event: &Event) -> &'static [Command] {
        let Some(stimulus) = self.stimulus(event) else {
            return &[];
        };
        let before = self.state;
        let (state, commands) = cell(before, stimulus);
        self.state = state;
        match event {
            Event::Accepted { epoch } if self.is_member() => {
                self.epoch = *epoch;
                self.join_lost = false;
            }
            Event::Unanswered { sent: true } if state == State::Joining => self.join_lost = true,
            _ => {}
        }
        if state != before {
            self.enter();
        }
        commands
    }

    fn enter(&mut self) {
        match self.state {
            State::Joining => {
                self.epoch = JOIN;
                self.join_lost = false;
            }
            State::Stable | State::Acknowledging => {}
            // What was asked of `poll` before is void.
            _ => self.round += 1,
        }
    }

    /// The column of an event; `None` for an older round's.
    fn stimulus(&self, event: &Event) -> Option<Stimulus> {
        Some(match event {
            Event::Subscribed => Stimulus::Subscribed,
            Event::Unsubscribed { for_good: true } if self.state == State::Expired => {
                Stimulus::Discharged
            }
            Event::Unsubscribed { .. } => Stimulus::Unsubscribed,
            Event::Accepted { .. } => Stimulus::Accepted,
            Event::Targeted => Stimulus::Targeted,
            Event::Reconciled { round } if *round == self.round => Stimulus::Reconciled,
            Event::Released { round } if *round == self.round => Stimulus::Released,
            Event::Reconciled { .. } | Event::Released { .. } => return None,
            Event::Sent => Stimulus::Sent,
            Event::Refused { code } => self.refusal(*code),
            Event::Unanswered { .. } => Stimulus::Elsewhere,
            Event::CommitRefused => Stimulus::CommitRefused,
            Event::PollLate => Stimulus::PollLate,
            Event::PollResumed => Stimulus::PollResumed,
            Event::Left => Stimulus::Left,
            Event::Broken => Stimulus::Refused,
        })
    }

    fn refusal(&self, code: ErrorCode) -> Stimulus {
        match code {
            ErrorCode::NOT_COORDINATOR | ErrorCode::COORDINATOR_NOT_AVAILABLE => {
                Stimulus::Elsewhere
            }
            // The member stays what it is: the right may be given later.
            ErrorCode::COORDINATOR_LOAD_IN_PROGRESS | ErrorCode::TOPIC_AUTHORIZATION_FAILED => {
                Stimulus::Busy
            }
            ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::FENCED_MEMBER_EPOCH => Stimulus::Unknown,
            // The group was deleted while we were in it. A join that hears this is refused.
            ErrorCode::GROUP_ID_NOT_FOUND if self.is_member() => Stimulus::Unknown,
            // The one that holds our instance id is ourselves, let in without our knowing.
            ErrorCode::UNRELEASED_INSTANCE_ID if self.join_lost => Stimulus::Busy,
            _ => Stimulus::Refused,
        }
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
