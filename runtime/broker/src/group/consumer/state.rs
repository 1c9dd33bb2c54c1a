//! The tables of a consumer group: what is done in which state, how a member goes on, and which
//! member epochs are believed.
//!
//! ```text
//!            join              target computed           all members there
//!   Empty ────────▶ Assigning ────────────────▶ Reconciling ────────────▶ Stable
//!     ▲                 ▲   member gone              │  ▲                   │
//!     │                 └────────────────────────────┘  └── epoch rises ────┘
//!     └── last member gone ── any            any ── deleted ──▶ Dead
//!
//!   member:   Stable ── must give up ──▶ Unrevoked ── gave up ──▶ Stable | Unreleased
//!                └───── must wait ─────▶ Unreleased ── all there ──▶ Stable
//! ```
//!
//! Invariants: every combination has a cell.
//! Never: members or partitions; the machine acts on what the tables answer.

use millstream_protocol::ErrorCode;

/// Where a group is in its life; it follows from its members and epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GroupState {
    /// No members. Offsets may exist.
    Empty,
    /// The target is older than the group.
    Assigning,
    /// Some member has not come to the target yet.
    Reconciling,
    /// Everybody has what the target says.
    Stable,
    /// There is no such group, or there is none any more.
    Dead,
}

impl GroupState {
    /// All states, in the order of the table.
    #[cfg(test)]
    const ALL: [GroupState; 5] = [
        GroupState::Empty,
        GroupState::Assigning,
        GroupState::Reconciling,
        GroupState::Stable,
        GroupState::Dead,
    ];

    /// The name that is shown.
    pub(crate) fn name(self) -> &'static str {
        match self {
            GroupState::Empty => "Empty",
            GroupState::Assigning => "Assigning",
            GroupState::Reconciling => "Reconciling",
            GroupState::Stable => "Stable",
            GroupState::Dead => "Dead",
        }
    }
}

/// What somebody wants of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stimulus {
    /// A heartbeat with epoch 0.
    Join,
    /// A heartbeat of a member.
    Beat,
    /// A heartbeat with epoch -1, or an administrator's LeaveGroup.
    Leave,
    /// A heartbeat with epoch -2.
    Pause,
    /// A member of the classic protocol joins.
    ClassicJoin,
    /// An administrator deletes the group.
    Delete,
}

impl Stimulus {
    /// All stimuli, in the order of the table.
    #[cfg(test)]
    const ALL: [Stimulus; 6] = [
        Stimulus::Join,
        Stimulus::Beat,
        Stimulus::Leave,
        Stimulus::Pause,
        Stimulus::ClassicJoin,
        Stimulus::Delete,
    ];
}

/// What the group does about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Take the member in, or greet it again.
    Admit,
    /// Bring the member nearer to the target.
    Progress,
    /// Remove the member.
    Remove,
    /// Keep the static member's place.
    Hold,
    /// Give the group's name to a classic group.
    GiveWay,
    /// Delete the group.
    Die,
    /// Answer with this error.
    Refuse(ErrorCode),
}

/// The transition table of a group.
pub(crate) fn react(state: GroupState, stimulus: Stimulus) -> Reaction {
    match (state, stimulus) {
        (_, Stimulus::Join) => Reaction::Admit,
        (GroupState::Empty | GroupState::Dead, Stimulus::ClassicJoin) => Reaction::GiveWay,
        (GroupState::Dead, _) => Reaction::Refuse(ErrorCode::GROUP_ID_NOT_FOUND),
        (GroupState::Empty, Stimulus::Delete) => Reaction::Die,
        (GroupState::Empty, Stimulus::Beat | Stimulus::Leave | Stimulus::Pause) => {
            Reaction::Refuse(ErrorCode::UNKNOWN_MEMBER_ID)
        }
        (_, Stimulus::Beat) => Reaction::Progress,
        (_, Stimulus::Leave) => Reaction::Remove,
        (_, Stimulus::Pause) => Reaction::Hold,
        (_, Stimulus::ClassicJoin) => Reaction::Refuse(ErrorCode::INCONSISTENT_GROUP_PROTOCOL),
        (_, Stimulus::Delete) => Reaction::Refuse(ErrorCode::NON_EMPTY_GROUP),
    }
}

/// How far a member is on its way to the target. The numbers are those of the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i8)]
pub(crate) enum MemberState {
    /// It has what its epoch says.
    #[default]
    Stable = 0,
    /// It has been asked to give partitions up and has not yet.
    Unrevoked = 1,
    /// It is at the target's epoch, but others still hold some of its partitions.
    Unreleased = 2,
}

impl MemberState {
    /// All states, in the order of the table.
    #[cfg(test)]
    const ALL: [MemberState; 3] = [
        MemberState::Stable,
        MemberState::Unrevoked,
        MemberState::Unreleased,
    ];

    /// The state that a record names.
    pub(crate) fn from_i8(state: i8) -> Option<Self> {
        match state {
            0 => Some(Self::Stable),
            1 => Some(Self::Unrevoked),
            2 => Some(Self::Unreleased),
            _ => None,
        }
    }
}

/// What a heartbeat finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The target has another epoch than the member.
    pub(super) behind: bool,
    /// The member still owns what it is to give up, or does not say.
    pub(super) holds: bool,
    /// Its subscription has just changed.
    pub(super) changed: bool,
}

/// How a member goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing to do.
    Keep,
    /// Wait on, and give up also what is not subscribed any more.
    Shrink,
    /// Towards the target.
    Advance,
    /// To the next epoch, and from there towards the target.
    AdvanceOneEpoch,
}

/// The transition table of a member, first half: what to do.
pub(super) fn progress(state: MemberState, found: Found) -> Progress {
    match (state, found) {
        (MemberState::Stable, found) if !found.behind && !found.changed => Progress::Keep,
        (MemberState::Stable | MemberState::Unreleased, _) => Progress::Advance,
        (MemberState::Unrevoked, found) if !found.holds => Progress::AdvanceOneEpoch,
        (MemberState::Unrevoked, found) if found.changed => Progress::Shrink,
        (MemberState::Unrevoked, _) => Progress::Keep,
    }
}

/// The transition table of a member, second half: the state that it is in afterwards.
pub(super) fn settle(must_give_up: bool, must_wait: bool) -> MemberState {
    match (must_give_up, must_wait) {
        (true, _) => MemberState::Unrevoked,
        (false, true) => MemberState::Unreleased,
        (false, false) => MemberState::Stable,
    }
}

/// The epoch that a member names, against the ones that are known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// It begins anew, without partitions.
    Zero,
    /// The current one.
    Current,
    /// The one before: the answer with the current one may have been lost.
    Previous,
    /// Any other.
    Other,
}

/// Whether a member with that epoch is believed. `owns_its_own`: it says what it owns, and all of
/// that is assigned to it.
pub(super) fn believed(named: Named, owns_its_own: bool) -> bool {
    match named {
        Named::Zero | Named::Current => true,
        Named::Previous => owns_its_own,
        Named::Other => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row a state, one cell a stimulus, written down a second time by hand.
    #[test]
    fn every_cell_of_the_group_table_is_what_the_design_says() {
        use Reaction::{Admit, Die, GiveWay, Hold, Progress, Remove};
        let unknown = Reaction::Refuse(ErrorCode::UNKNOWN_MEMBER_ID);
        let other = Reaction::Refuse(ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
        let full = Reaction::Refuse(ErrorCode::NON_EMPTY_GROUP);
        let gone = Reaction::Refuse(ErrorCode::GROUP_ID_NOT_FOUND);
        let table = [
            [Admit, unknown, unknown, unknown, GiveWay, Die],
            [Admit, Progress, Remove, Hold, other, full],
            [Admit, Progress, Remove, Hold, other, full],
            [Admit, Progress, Remove, Hold, other, full],
            [Admit, gone, gone, gone, GiveWay, gone],
        ];
        for (state, row) in GroupState::ALL.into_iter().zip(table) {
            for (stimulus, expected) in Stimulus::ALL.into_iter().zip(row) {
                assert_eq!(react(state, stimulus), expected, "{state:?} / {stimulus:?}");
            }
        }
    }

    #[test]
    fn every_cell_of_the_member_table_is_what_the_design_says() {
        use Progress::{Advance, AdvanceOneEpoch as One, Keep, Shrink};
        // behind, holds, changed: ---, --c, -h-, -hc, b--, b-c, bh-, bhc
        let table = [
            [
                Keep, Advance, Keep, Advance, Advance, Advance, Advance, Advance,
            ],
            [One, One, Keep, Shrink, One, One, Keep, Shrink],
            [Advance; 8],
        ];
        for (state, row) in MemberState::ALL.into_iter().zip(table) {
            for (bits, expected) in row.into_iter().enumerate() {
                let found = Found {
                    behind: bits & 4 != 0,
                    holds: bits & 2 != 0,
                    changed: bits & 1 != 0,
                };
                assert_eq!(progress(state, found), expected, "{state:?} / {found:?}");
            }
        }
        assert_eq!(settle(true, true), MemberState::Unrevoked);
        assert_eq!(settle(true, false), MemberState::Unrevoked);
        assert_eq!(settle(false, true), MemberState::Unreleased);
        assert_eq!(settle(false, false), MemberState::Stable);
    }

    #[test]
    fn every_cell_of_the_epoch_table_is_what_the_design_says() {
        let table = [
            (Named::Zero, [true, true]),
            (Named::Current, [true, true]),
            (Named::Previous, [false, true]),
            (Named::Other, [false, false]),
        ];
        for (named, row) in table {
            for (owns_its_own, expected) in [false, true].into_iter().zip(row) {
                assert_eq!(believed(named, owns_its_own), expected, "{named:?}");
            }
        }
    }

    #[test]
    fn states_of_members_have_the_numbers_of_the_records() {
        for state in MemberState::ALL {
            assert_eq!(MemberState::from_i8(state as i8), Some(state));
        }
        assert_eq!(MemberState::from_i8(127), None);
    }
}
