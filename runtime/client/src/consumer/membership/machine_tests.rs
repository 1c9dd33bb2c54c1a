//! The member's transition table, cell by cell.
//!
//! Never: time or I/O; the machine has neither.

use super::*;

const ROUND: u64 = 7;

/// A machine in `state`, member `m` of generation 3.
fn at(state: State) -> Machine {
    let identity = match state {
        State::Unjoined => Identity::NONE,
        _ => Identity {
            generation: 3,
            member_id: "m".to_owned(),
        },
    };
    Machine {
        state,
        round: ROUND,
        identity,
        again: false,
    }
}

const STATES: [State; 8] = [
    State::Unjoined,
    State::Preparing(GiveUp::Revoke),
    State::Preparing(GiveUp::Lose),
    State::Joining,
    State::Syncing,
    State::Stable,
    State::Expired,
    State::Failed,
];

const REVOKE: Command = Command::GiveUp {
    round: ROUND + 1,
    how: GiveUp::Revoke,
};
const LOSE: Command = Command::GiveUp {
    round: ROUND + 1,
    how: GiveUp::Lose,
};

/// For one event: the cells (state, next state, commands) that do something. All other cells
/// stay as they are and command nothing.
fn check(event: &Event, cells: &[(State, State, &[Command])]) {
    for state in STATES {
        let mut machine = at(state);
        let commands = machine.on(event.clone());
        let (next, expected) = cells
            .iter()
            .find(|cell| cell.0 == state)
            .map_or((state, &[][..]), |cell| (cell.1, cell.2));
        assert_eq!(machine.state(), next, "{state:?} on {event:?}");
        assert_eq!(commands, expected, "{state:?} on {event:?}");
    }
}

#[test]
fn a_subscription_starts_a_round_or_changes_the_next() {
    let revoking = State::Preparing(GiveUp::Revoke);
    check(
        &Event::Subscribed,
        &[
            (State::Unjoined, revoking, &[REVOKE]),
            (State::Stable, revoking, &[REVOKE]),
        ],
    );
    check(
        &Event::RejoinWanted,
        &[(State::Stable, revoking, &[REVOKE])],
    );
}

#[test]
fn a_subscription_that_changes_during_a_join_is_joined_with_afterwards() {
    for state in [State::Joining, State::Syncing] {
        let mut machine = at(state);
        assert!(machine.on(Event::Subscribed).is_empty());
        if state == State::Joining {
            machine.on(Event::Joined {
                generation: 4,
                member_id: "m".to_owned(),
            });
        }
        assert_eq!(machine.on(Event::Synced), [Command::Deliver, REVOKE]);
    }
}

#[test]
fn unsubscribing_leaves_the_group_from_wherever_we_are() {
    let out = State::Unjoined;
    let leave: &[Command] = &[Command::Leave];
    check(
        &Event::Unsubscribed,
        &[
            (State::Preparing(GiveUp::Revoke), out, leave),
            (State::Preparing(GiveUp::Lose), out, leave),
            (State::Joining, out, leave),
            (State::Syncing, out, leave),
            (State::Stable, out, leave),
            (State::Expired, out, &[]),
            (State::Failed, out, &[]),
        ],
    );
}

#[test]
fn only_the_present_round_lets_the_join_go() {
    for stale in [ROUND - 1, ROUND + 1] {
        check(&Event::Prepared { round: stale }, &[]);
    }
    let join: &[Command] = &[Command::Join];
    check(
        &Event::Prepared { round: ROUND },
        &[
            (State::Preparing(GiveUp::Revoke), State::Joining, join),
            (State::Preparing(GiveUp::Lose), State::Joining, join),
        ],
    );
}

#[test]
fn a_join_is_followed_by_sync_and_delivery() {
    let joined = Event::Joined {
        generation: 4,
        member_id: "n".to_owned(),
    };
    check(
        &joined,
        &[(State::Joining, State::Syncing, &[Command::Sync])],
    );
    check(
        &Event::Synced,
        &[(State::Syncing, State::Stable, &[Command::Deliver])],
    );
    let mut machine = at(State::Joining);
    machine.on(joined);
    assert_eq!(
        machine.identity(),
        &Identity {
            generation: 4,
            member_id: "n".to_owned()
        }
    );
}

fn refused(code: ErrorCode) -> Event {
    Event::JoinRefused {
        code,
        member_id: "given".to_owned(),
    }
}

#[test]
fn a_refused_join_is_repeated_found_elsewhere_or_final() {
    let stay = State::Joining;
    let again: &[Command] = &[Command::JoinLater];
    let elsewhere: &[Command] = &[Command::ForgetCoordinator, Command::JoinLater];
    let losing = State::Preparing(GiveUp::Lose);
    let cells: [(ErrorCode, State, &[Command]); 9] = [
        (ErrorCode::MEMBER_ID_REQUIRED, stay, &[Command::Join]),
        (ErrorCode::COORDINATOR_LOAD_IN_PROGRESS, stay, again),
        (ErrorCode::REBALANCE_IN_PROGRESS, stay, again),
        (ErrorCode::NOT_COORDINATOR, stay, elsewhere),
        (ErrorCode::COORDINATOR_NOT_AVAILABLE, stay, elsewhere),
        (ErrorCode::UNKNOWN_MEMBER_ID, losing, &[LOSE]),
        (ErrorCode::ILLEGAL_GENERATION, losing, &[LOSE]),
        (
            ErrorCode::FENCED_INSTANCE_ID,
            State::Failed,
            &[Command::ReportFenced],
        ),
        (
            ErrorCode::INCONSISTENT_GROUP_PROTOCOL,
            State::Failed,
            &[Command::ReportRefused(
                ErrorCode::INCONSISTENT_GROUP_PROTOCOL,
            )],
        ),
    ];
    for (code, next, commands) in cells {
        check(&refused(code), &[(State::Joining, next, commands)]);
    }
    let mut machine = at(State::Joining);
    machine.on(refused(ErrorCode::MEMBER_ID_REQUIRED));
    assert_eq!(machine.identity().member_id, "given");
    machine.on(refused(ErrorCode::UNKNOWN_MEMBER_ID));
    assert_eq!(machine.identity(), &Identity::NONE);
}

#[test]
fn a_refused_sync_joins_again() {
    let losing = State::Preparing(GiveUp::Lose);
    let elsewhere: &[Command] = &[Command::ForgetCoordinator, Command::JoinLater];
    let cells: [(ErrorCode, State, &[Command]); 5] = [
        (
            ErrorCode::REBALANCE_IN_PROGRESS,
            State::Joining,
            &[Command::Join],
        ),
        (ErrorCode::ILLEGAL_GENERATION, losing, &[LOSE]),
        (ErrorCode::UNKNOWN_MEMBER_ID, losing, &[LOSE]),
        (ErrorCode::NOT_COORDINATOR, State::Joining, elsewhere),
        (
            ErrorCode::FENCED_INSTANCE_ID,
            State::Failed,
            &[Command::ReportFenced],
        ),
    ];
    for (code, next, commands) in cells {
        check(
            &Event::SyncRefused { code },
            &[(State::Syncing, next, commands)],
        );
    }
}

#[test]
fn a_heartbeat_tells_of_rebalances_and_losses() {
    let revoking = State::Preparing(GiveUp::Revoke);
    let losing = State::Preparing(GiveUp::Lose);
    check(
        &Event::Heartbeat {
            code: ErrorCode::NONE,
        },
        &[],
    );
    check(
        &Event::Heartbeat {
            code: ErrorCode::REBALANCE_IN_PROGRESS,
        },
        &[(State::Stable, revoking, &[REVOKE])],
    );
    for code in [ErrorCode::UNKNOWN_MEMBER_ID, ErrorCode::ILLEGAL_GENERATION] {
        check(
            &Event::Heartbeat { code },
            &[
                (State::Stable, losing, &[LOSE]),
                (revoking, losing, &[LOSE]),
            ],
        );
    }
    let forget: &[Command] = &[Command::ForgetCoordinator];
    check(
        &Event::Heartbeat {
            code: ErrorCode::NOT_COORDINATOR,
        },
        &[
            (State::Stable, State::Stable, forget),
            (revoking, revoking, forget),
        ],
    );
    let fenced: &[Command] = &[Command::ReportFenced];
    check(
        &Event::Heartbeat {
            code: ErrorCode::FENCED_INSTANCE_ID,
        },
        &[
            (State::Stable, State::Failed, fenced),
            (revoking, State::Failed, fenced),
        ],
    );
}

#[test]
fn silence_looks_for_the_coordinator_again() {
    let forget: &[Command] = &[Command::ForgetCoordinator];
    let join: &[Command] = &[Command::ForgetCoordinator, Command::JoinLater];
    let revoking = State::Preparing(GiveUp::Revoke);
    let losing = State::Preparing(GiveUp::Lose);
    check(
        &Event::Unanswered,
        &[
            (State::Joining, State::Joining, join),
            (State::Syncing, State::Joining, join),
            (State::Stable, State::Stable, forget),
            (revoking, revoking, forget),
            (losing, losing, forget),
        ],
    );
}

#[test]
fn a_refused_commit_counts_like_a_heartbeat() {
    let revoking = State::Preparing(GiveUp::Revoke);
    let losing = State::Preparing(GiveUp::Lose);
    for code in [ErrorCode::UNKNOWN_MEMBER_ID, ErrorCode::ILLEGAL_GENERATION] {
        check(
            &Event::CommitRefused { code },
            &[
                (State::Stable, losing, &[LOSE]),
                (revoking, losing, &[LOSE]),
            ],
        );
    }
    check(
        &Event::CommitRefused {
            code: ErrorCode::REBALANCE_IN_PROGRESS,
        },
        &[(State::Stable, revoking, &[REVOKE])],
    );
    let mut machine = at(State::Stable);
    let fenced = machine.on(Event::CommitRefused {
        code: ErrorCode::FENCED_INSTANCE_ID,
    });
    assert_eq!(fenced, [Command::ReportFenced]);
}

#[test]
fn a_late_poll_leaves_and_the_next_one_loses_everything_and_joins_again() {
    let out: &[Command] = &[Command::Leave, Command::ReportLatePoll];
    check(
        &Event::PollLate,
        &[
            (State::Preparing(GiveUp::Revoke), State::Expired, out),
            (State::Preparing(GiveUp::Lose), State::Expired, out),
            (State::Joining, State::Expired, out),
            (State::Syncing, State::Expired, out),
            (State::Stable, State::Expired, out),
        ],
    );
    let losing = State::Preparing(GiveUp::Lose);
    check(&Event::PollResumed, &[(State::Expired, losing, &[LOSE])]);
}

#[test]
fn a_member_that_failed_stays_so_until_it_unsubscribes() {
    for event in [
        Event::Subscribed,
        Event::Synced,
        Event::PollLate,
        Event::RejoinWanted,
    ] {
        let mut machine = at(State::Failed);
        assert!(machine.on(event).is_empty());
        assert_eq!(machine.state(), State::Failed);
    }
}

#[test]
fn heartbeats_are_due_while_a_generation_holds() {
    for state in STATES {
        let expected = matches!(state, State::Stable | State::Preparing(GiveUp::Revoke));
        assert_eq!(at(state).beats(), expected, "{state:?}");
    }
    let mut fresh = Machine::new();
    fresh.on(Event::Subscribed);
    assert!(!fresh.beats());
}
