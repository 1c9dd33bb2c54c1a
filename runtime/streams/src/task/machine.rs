//! The states of a task, as a table.
//!
//! ```text
//! Created ──assign──▶ Running ──revoke──▶ Draining ──committed──▶ Closed
//!    │                   │                   │
//!    └──────close────────┴──abort/close──────┴──▶ Closed
//! ```
//!
//! Invariants: records are processed in `Running` only; `Closed` is left by nothing.
//! Never: an event that the table does not know changes the state.

/// Where a task is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskState {
    /// Its operators exist, its position is known, nothing was processed.
    Created,
    /// It takes records.
    Running,
    /// It takes no more records; what it has processed waits for the commit.
    Draining,
    /// It is over; whatever it had not committed is forgotten.
    Closed,
}

/// What happens to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskEvent {
    /// Its partition was assigned to this worker.
    Assigned,
    /// Its partition is about to go to somebody else, or the instance stops.
    Revoked,
    /// Its work was committed.
    Committed,
    /// Its transaction was aborted.
    Aborted,
    /// It is given up without a commit.
    Closed,
}

/// The machine: a state and its table.
#[derive(Debug)]
pub(crate) struct TaskMachine {
    state: TaskState,
}

/// An event that is not legal in the state that the task is in.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a task that is {state:?} cannot be {event:?}")]
pub(crate) struct IllegalTransition {
    state: TaskState,
    event: TaskEvent,
}

impl TaskMachine {
    pub(crate) fn new() -> Self {
        Self {
            state: TaskState::Created,
        }
    }

    pub(crate) fn state(&self) -> TaskState {
        self.state
    }

    pub(crate) fn on(&mut self, event: TaskEvent) -> Result<TaskState, IllegalTransition> {
        let next = Self::next(self.state, event).ok_or(IllegalTransition {
            state: self.state,
            event,
        })?;
        self.state = next;
        Ok(next)
    }

    fn next(state: TaskState, event: TaskEvent) -> Option<TaskState> {
        use TaskEvent as E;
        use TaskState as S;
        match (state, event) {
            (S::Created, E::Assigned) | (S::Running, E::Committed) => Some(S::Running),
            (S::Created | S::Running, E::Revoked) => Some(S::Draining),
            (S::Draining, E::Committed) => Some(S::Closed),
            (S::Running | S::Draining, E::Aborted) => Some(S::Closed),
            (S::Created | S::Running | S::Draining, E::Closed) => Some(S::Closed),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_of_the_table() {
        use TaskEvent as E;
        use TaskState as S;
        let events = [E::Assigned, E::Revoked, E::Committed, E::Aborted, E::Closed];
        let table = [
            (
                S::Created,
                [
                    Some(S::Running),
                    Some(S::Draining),
                    None,
                    None,
                    Some(S::Closed),
                ],
            ),
            (
                S::Running,
                [
                    None,
                    Some(S::Draining),
                    Some(S::Running),
                    Some(S::Closed),
                    Some(S::Closed),
                ],
            ),
            (
                S::Draining,
                [
                    None,
                    None,
                    Some(S::Closed),
                    Some(S::Closed),
                    Some(S::Closed),
                ],
            ),
            (S::Closed, [None, None, None, None, None]),
        ];
        for (state, row) in table {
            for (event, expected) in events.into_iter().zip(row) {
                let mut machine = TaskMachine { state };
                let outcome = machine.on(event);
                assert_eq!(outcome.ok(), expected, "{state:?} on {event:?}");
                assert_eq!(machine.state(), expected.unwrap_or(state));
            }
        }
    }
}
