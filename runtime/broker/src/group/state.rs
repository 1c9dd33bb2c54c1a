//! The states of a classic group and the table of what each stimulus does in each of them.
//!
//! Invariants: every pair of state and stimulus has a row; a row names at most one next state, and
//! that state is in `GroupState::may_become`.
//! Never: members, timers or replies; the machine acts on what the table answers.
//!
//! ```text
//!            first join                       all joined
//!   Empty ───────────────▶ PreparingRebalance ─────────▶ CompletingRebalance
//!     ▲                      │     ▲      ▲   join, leave, expiry  │
//!     │      nobody joined   │     │      └────────────────────────┤
//!     └──────────────────────┘     │ join, leave, expiry           │ leader's sync
//!                                  └──────────── Stable ◀──────────┘
//!   any ── delete / unload ──▶ Dead
//! ```

use millstream_protocol::ErrorCode;

/// Where a group is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GroupState {
    /// No members. Offsets may exist.
    Empty,
    /// A new generation is being formed: the known members are asked to join again.
    PreparingRebalance,
    /// The generation is formed; the leader's assignment is awaited.
    CompletingRebalance,
    /// Every member can have its assignment.
    Stable,
    /// Deleted; nothing leads out.
    Dead,
}

impl GroupState {
    /// All states, in the order of the table.
    #[cfg(test)]
    pub(crate) const ALL: [GroupState; 5] = [
        GroupState::Empty,
        GroupState::PreparingRebalance,
        GroupState::CompletingRebalance,
        GroupState::Stable,
        GroupState::Dead,
    ];

    /// The name that DescribeGroups and ListGroups show.
    pub(crate) fn name(self) -> &'static str {
        match self {
            GroupState::Empty => "Empty",
            GroupState::PreparingRebalance => "PreparingRebalance",
            GroupState::CompletingRebalance => "CompletingRebalance",
            GroupState::Stable => "Stable",
            GroupState::Dead => "Dead",
        }
    }

    /// Whether a group in this state may go to `next`.
    pub(crate) fn may_become(self, next: GroupState) -> bool {
        use GroupState::{CompletingRebalance, Dead, Empty, PreparingRebalance, Stable};
        match next {
            Empty => self == PreparingRebalance,
            PreparingRebalance => matches!(self, Stable | CompletingRebalance | Empty),
            CompletingRebalance => self == PreparingRebalance,
            Stable => self == CompletingRebalance,
            Dead => true,
        }
    }
}

/// What happens to a group, once the request has been found to come from who it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stimulus {
    /// A member that the group does not have yet joins.
    NewMember,
    /// A follower joins again and wants what it wanted before.
    FollowerRejoins,
    /// The leader joins again and wants what it wanted before.
    LeaderRejoins,
    /// A member joins again and wants something else.
    MemberChanges,
    /// A restarted static member takes its predecessor's place and changes nothing.
    StaticReturns,
    /// A restarted static member takes its predecessor's place and changes the group.
    StaticChanges,
    /// A follower asks for its assignment.
    FollowerSyncs,
    /// The leader brings the assignment.
    LeaderSyncs,
    /// A sign of life.
    Heartbeat,
    /// A member left or its session ended; it has been removed already.
    MemberGone,
    /// The time for joining again is over.
    JoinTimeout,
    /// The time for asking for the assignment is over.
    SyncTimeout,
    /// An administrator deletes the group.
    Delete,
}

impl Stimulus {
    /// All stimuli, in the order of the table.
    #[cfg(test)]
    pub(crate) const ALL: [Stimulus; 13] = [
        Stimulus::NewMember,
        Stimulus::FollowerRejoins,
        Stimulus::LeaderRejoins,
        Stimulus::MemberChanges,
        Stimulus::StaticReturns,
        Stimulus::StaticChanges,
        Stimulus::FollowerSyncs,
        Stimulus::LeaderSyncs,
        Stimulus::Heartbeat,
        Stimulus::MemberGone,
        Stimulus::JoinTimeout,
        Stimulus::SyncTimeout,
        Stimulus::Delete,
    ];
}

/// What the group does about a stimulus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Nothing.
    Ignore,
    /// Answer with this error.
    Refuse(ErrorCode),
    /// Answer that all is well.
    Acknowledge,
    /// Begin to form a new generation; a join is parked until it exists.
    StartRebalance,
    /// Park the join, if there is one, and form the generation if nobody is missing now.
    AwaitOthers,
    /// Form the generation with whoever has joined.
    CompleteJoin,
    /// Answer the join with the generation that exists.
    AnswerGeneration,
    /// Answer the join with the generation that exists and keep the predecessor's assignment.
    KeepAssignment,
    /// Park the sync until the leader brings the assignment.
    AwaitAssignment,
    /// Take the assignment, write it down, answer every parked sync.
    StoreAssignment,
    /// Answer the sync with the assignment that exists.
    AnswerAssignment,
    /// Remove the members that have not asked for their assignment, then form a new generation.
    DropSilent,
    /// Delete the group.
    Die,
}

/// The transition table.
pub(crate) fn react(state: GroupState, stimulus: Stimulus) -> Reaction {
    match state {
        GroupState::Empty => react_empty(stimulus),
        GroupState::PreparingRebalance => react_preparing(stimulus),
        GroupState::CompletingRebalance => react_completing(stimulus),
        GroupState::Stable => react_stable(stimulus),
        GroupState::Dead => react_dead(stimulus),
    }
}

fn react_empty(stimulus: Stimulus) -> Reaction {
    match stimulus {
        Stimulus::NewMember => Reaction::StartRebalance,
        Stimulus::FollowerRejoins
        | Stimulus::LeaderRejoins
        | Stimulus::MemberChanges
        | Stimulus::StaticReturns
        | Stimulus::StaticChanges
        | Stimulus::FollowerSyncs
        | Stimulus::LeaderSyncs
        | Stimulus::Heartbeat => Reaction::Refuse(ErrorCode::UNKNOWN_MEMBER_ID),
        Stimulus::MemberGone | Stimulus::JoinTimeout | Stimulus::SyncTimeout => Reaction::Ignore,
        Stimulus::Delete => Reaction::Die,
    }
}

fn react_preparing(stimulus: Stimulus) -> Reaction {
    match stimulus {
        Stimulus::NewMember
        | Stimulus::FollowerRejoins
        | Stimulus::LeaderRejoins
        | Stimulus::MemberChanges
        | Stimulus::StaticReturns
        | Stimulus::StaticChanges
        | Stimulus::MemberGone => Reaction::AwaitOthers,
        Stimulus::FollowerSyncs | Stimulus::LeaderSyncs | Stimulus::Heartbeat => {
            Reaction::Refuse(ErrorCode::REBALANCE_IN_PROGRESS)
        }
        Stimulus::JoinTimeout => Reaction::CompleteJoin,
        Stimulus::SyncTimeout => Reaction::Ignore,
        Stimulus::Delete => Reaction::Refuse(ErrorCode::NON_EMPTY_GROUP),
    }
}

fn react_completing(stimulus: Stimulus) -> Reaction {
    match stimulus {
        // A static member that returns may be in the leader's plan under its old id.
        Stimulus::NewMember
        | Stimulus::MemberChanges
        | Stimulus::StaticReturns
        | Stimulus::StaticChanges
        | Stimulus::MemberGone => Reaction::StartRebalance,
        // The first answer may have been lost on its way.
        Stimulus::FollowerRejoins | Stimulus::LeaderRejoins => Reaction::AnswerGeneration,
        Stimulus::FollowerSyncs => Reaction::AwaitAssignment,
        Stimulus::LeaderSyncs => Reaction::StoreAssignment,
        Stimulus::Heartbeat => Reaction::Acknowledge,
        Stimulus::JoinTimeout => Reaction::Ignore,
        Stimulus::SyncTimeout => Reaction::DropSilent,
        Stimulus::Delete => Reaction::Refuse(ErrorCode::NON_EMPTY_GROUP),
    }
}

fn react_stable(stimulus: Stimulus) -> Reaction {
    match stimulus {
        // A leader joins again when what it assigns from has changed: new partitions, new topics.
        Stimulus::NewMember
        | Stimulus::MemberChanges
        | Stimulus::LeaderRejoins
        | Stimulus::StaticChanges
        | Stimulus::MemberGone => Reaction::StartRebalance,
        Stimulus::FollowerRejoins => Reaction::AnswerGeneration,
        Stimulus::StaticReturns => Reaction::KeepAssignment,
        Stimulus::FollowerSyncs | Stimulus::LeaderSyncs => Reaction::AnswerAssignment,
        Stimulus::Heartbeat => Reaction::Acknowledge,
        Stimulus::JoinTimeout => Reaction::Ignore,
        Stimulus::SyncTimeout => Reaction::DropSilent,
        Stimulus::Delete => Reaction::Refuse(ErrorCode::NON_EMPTY_GROUP),
    }
}

fn react_dead(stimulus: Stimulus) -> Reaction {
    match stimulus {
        Stimulus::MemberGone | Stimulus::JoinTimeout | Stimulus::SyncTimeout => Reaction::Ignore,
        Stimulus::Delete => Reaction::Refuse(ErrorCode::GROUP_ID_NOT_FOUND),
        _ => Reaction::Refuse(ErrorCode::COORDINATOR_NOT_AVAILABLE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row a state, one cell a stimulus, in the order of `Stimulus::ALL`, written down a second
    /// time by hand so that a change to the table has to be meant twice.
    #[test]
    fn every_cell_of_the_table_is_what_the_design_says() {
        use Reaction::{
            Acknowledge as Ack, AnswerAssignment as Asgn, AnswerGeneration as Gen, AwaitAssignment,
            AwaitOthers as Wait, CompleteJoin, Die, DropSilent as Drop, Ignore as Ign,
            KeepAssignment as Keep, StartRebalance as Reb, StoreAssignment as Store,
        };
        let unknown = Reaction::Refuse(ErrorCode::UNKNOWN_MEMBER_ID);
        let busy = Reaction::Refuse(ErrorCode::REBALANCE_IN_PROGRESS);
        let full = Reaction::Refuse(ErrorCode::NON_EMPTY_GROUP);
        let gone = Reaction::Refuse(ErrorCode::COORDINATOR_NOT_AVAILABLE);
        let missing = Reaction::Refuse(ErrorCode::GROUP_ID_NOT_FOUND);
        let u = unknown;
        let g = gone;
        let table: [[Reaction; 13]; 5] = [
            [Reb, u, u, u, u, u, u, u, u, Ign, Ign, Ign, Die],
            [
                Wait,
                Wait,
                Wait,
                Wait,
                Wait,
                Wait,
                busy,
                busy,
                busy,
                Wait,
                CompleteJoin,
                Ign,
                full,
            ],
            [
                Reb,
                Gen,
                Gen,
                Reb,
                Reb,
                Reb,
                AwaitAssignment,
                Store,
                Ack,
                Reb,
                Ign,
                Drop,
                full,
            ],
            [
                Reb, Gen, Reb, Reb, Keep, Reb, Asgn, Asgn, Ack, Reb, Ign, Drop, full,
            ],
            [g, g, g, g, g, g, g, g, g, Ign, Ign, Ign, missing],
        ];
        for (state, row) in GroupState::ALL.iter().zip(table) {
            for (stimulus, expected) in Stimulus::ALL.iter().zip(row) {
                assert_eq!(
                    react(*state, *stimulus),
                    expected,
                    "{state:?} / {stimulus:?}"
                );
            }
        }
    }

    #[test]
    fn a_state_is_reached_only_from_its_predecessors() {
        let allowed: [[bool; 5]; 5] = [
            // to:  Empty  Preparing Completing Stable Dead      from:
            [false, true, false, false, true],  // Empty
            [true, false, true, false, true],   // PreparingRebalance
            [false, true, false, true, true],   // CompletingRebalance
            [false, true, false, false, true],  // Stable
            [false, false, false, false, true], // Dead
        ];
        for (from, row) in GroupState::ALL.iter().zip(allowed) {
            for (to, expected) in GroupState::ALL.iter().zip(row) {
                assert_eq!(from.may_become(*to), expected, "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn a_reaction_never_asks_for_a_transition_that_is_not_allowed() {
        for state in GroupState::ALL {
            for stimulus in Stimulus::ALL {
                let next = match react(state, stimulus) {
                    Reaction::StartRebalance | Reaction::DropSilent => {
                        Some(GroupState::PreparingRebalance)
                    }
                    Reaction::StoreAssignment => Some(GroupState::Stable),
                    Reaction::CompleteJoin => Some(GroupState::CompletingRebalance),
                    Reaction::Die => Some(GroupState::Dead),
                    _ => None,
                };
                if let Some(next) = next {
                    assert!(state.may_become(next), "{state:?} / {stimulus:?}");
                }
            }
        }
    }
}
