//! The states of one transactional id, and which may follow which.
//!
//! Invariants: a transition happens only where `State::can_follow` holds.
//! Invariants: `Dead` and `PrepareEpochFence` are never written to the log.
//! Never: says when or why a transition happens; that is the machine's part.
//!
//! ```text
//!   Empty ──add──► Ongoing ──end──► PrepareCommit ──markers──► CompleteCommit ─┐
//!     ▲  └─abort──┐   └─fence─► PrepareEpochFence                              │
//!     │           ▼                 │                                          │
//!     │        PrepareAbort ◄───────┘ ──markers──► CompleteAbort ──────────────┤
//!     └──────────────── init ◄─────────────────────── add, abort ◄─────────────┘
//!   Empty, CompleteCommit, CompleteAbort ──expiry──► Dead
//! ```

/// Where a transactional id stands between two transactions or within one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum State {
    /// A producer has been initialised and has added nothing yet.
    Empty,
    /// Partitions have been added; the transaction is open.
    Ongoing,
    /// The outcome is commit and logged; markers are being written.
    PrepareCommit,
    /// The outcome is abort and logged; markers are being written.
    PrepareAbort,
    /// All commit markers are written.
    CompleteCommit,
    /// All abort markers are written.
    CompleteAbort,
    /// The id has expired and is being forgotten. Never logged.
    Dead,
    /// An open transaction is being fenced, on its way to `PrepareAbort`. Never logged.
    PrepareEpochFence,
}

impl State {
    /// Every state, in the order of its number in the log.
    pub(crate) const ALL: [State; 8] = [
        State::Empty,
        State::Ongoing,
        State::PrepareCommit,
        State::PrepareAbort,
        State::CompleteCommit,
        State::CompleteAbort,
        State::Dead,
        State::PrepareEpochFence,
    ];

    /// The number that stands for the state in the log.
    pub(crate) fn id(self) -> i8 {
        self as i8
    }

    /// The state of a number from the log.
    pub(crate) fn from_id(id: i8) -> Option<State> {
        usize::try_from(id)
            .ok()
            .and_then(|index| State::ALL.get(index).copied())
    }

    /// The name that Kafka's tools show and filter by.
    pub(crate) fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::Ongoing => "Ongoing",
            State::PrepareCommit => "PrepareCommit",
            State::PrepareAbort => "PrepareAbort",
            State::CompleteCommit => "CompleteCommit",
            State::CompleteAbort => "CompleteAbort",
            State::Dead => "Dead",
            State::PrepareEpochFence => "PrepareEpochFence",
        }
    }

    /// The state that Kafka's tools call by this name.
    pub(crate) fn from_name(name: &str) -> Option<State> {
        State::ALL.into_iter().find(|state| state.name() == name)
    }

    /// The states that this one may be entered from.
    pub(crate) fn valid_predecessors(self) -> &'static [State] {
        use State::{
            CompleteAbort, CompleteCommit, Empty, Ongoing, PrepareAbort, PrepareCommit,
            PrepareEpochFence,
        };
        match self {
            Empty | State::Dead => &[Empty, CompleteCommit, CompleteAbort],
            Ongoing => &[Ongoing, Empty, CompleteCommit, CompleteAbort],
            PrepareCommit | PrepareEpochFence => &[Ongoing],
            PrepareAbort => &[
                Ongoing,
                PrepareEpochFence,
                Empty,
                CompleteCommit,
                CompleteAbort,
            ],
            CompleteCommit => &[PrepareCommit],
            CompleteAbort => &[PrepareAbort],
        }
    }

    /// Whether this state may be entered from `from`.
    pub(crate) fn can_follow(self, from: State) -> bool {
        self.valid_predecessors().contains(&from)
    }

    /// Whether an outcome is decided and markers may still be missing.
    pub(crate) fn is_prepared(self) -> bool {
        matches!(self, State::PrepareCommit | State::PrepareAbort)
    }

    /// Whether no transaction is under way, so that the id may expire.
    pub(crate) fn is_idle(self) -> bool {
        matches!(
            self,
            State::Empty | State::CompleteCommit | State::CompleteAbort
        )
    }
}

#[cfg(test)]
mod tests {
    use super::State::{self, *};

    #[test]
    fn every_cell_of_the_transition_table_is_as_kafka_has_it() {
        // Rows: from. Columns: to, in the order of `State::ALL`.
        let table: [(State, [bool; 8]); 8] = [
            //                    Empty  Ongoing PrepC  PrepA  CompC  CompA  Dead   Fence
            (Empty, [true, true, false, true, false, false, true, false]),
            (
                Ongoing,
                [false, true, true, true, false, false, false, true],
            ),
            (
                PrepareCommit,
                [false, false, false, false, true, false, false, false],
            ),
            (
                PrepareAbort,
                [false, false, false, false, false, true, false, false],
            ),
            (
                CompleteCommit,
                [true, true, false, true, false, false, true, false],
            ),
            (
                CompleteAbort,
                [true, true, false, true, false, false, true, false],
            ),
            (Dead, [false; 8]),
            (
                PrepareEpochFence,
                [false, false, false, true, false, false, false, false],
            ),
        ];
        for (from, allowed) in table {
            for (to, allowed) in State::ALL.into_iter().zip(allowed) {
                assert_eq!(to.can_follow(from), allowed, "{from:?} -> {to:?}");
            }
        }
    }

    #[test]
    fn numbers_and_names_are_kafkas_and_read_back() {
        for (id, state) in State::ALL.into_iter().enumerate() {
            assert_eq!(usize::try_from(state.id()).ok(), Some(id));
            assert_eq!(State::from_id(state.id()), Some(state));
            assert_eq!(State::from_name(state.name()), Some(state));
        }
        assert_eq!(State::from_id(8), None);
        assert_eq!(State::from_id(-1), None);
        assert_eq!(PrepareEpochFence.id(), 7);
    }
}
