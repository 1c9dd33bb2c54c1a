//! The member's transition table under the consumer protocol, cell by cell.
//!
//! Never: time or I/O; the machine has neither.

use super::*;

const STATES: [State; 9] = [
    State::Unsubscribed,
    State::Joining,
    State::Stable,
    State::Reconciling,
    State::Acknowledging,
    State::Fenced,
    State::Leaving,
    State::Expired,
    State::Failed,
];

const ROUND: u64 = 7;

/// A machine in `state`, at epoch 3 where it is a member.
fn at(state: State) -> Machine {
    let mut machine = Machine {
        state,
        epoch: JOIN,
        round: ROUND,
        join_lost: false,
    };
    if machine.is_member() {
        machine.epoch = 3;
    }
    machine
}

/// For one stimulus: the cells (state, next state, commands) that do something. All other cells
/// stay as they are and command nothing.
fn check(stimulus: Stimulus, cells: &[(State, State, &[Command])]) {
    for state in STATES {
        let (next, expected) = cells
            .iter()
            .find(|cell| cell.0 == state)
            .map_or((state, &[][..]), |cell| (cell.1, cell.2));
        assert_eq!(
            cell(state, stimulus),
            (next, expected),
            "{state:?} on {stimulus:?}"
        );
    }
}

#[test]
fn every_cell_of_the_members_table_is_what_the_protocol_says() {
    use Command as C;
    use State as S;
    let beat: &[Command] = &[C::Beat];
    let members = [S::Stable, S::Reconciling, S::Acknowledging];
    let speaking = [S::Joining, S::Stable, S::Reconciling, S::Acknowledging];
    let same = |states: &[State], commands| -> Vec<(State, State, &'static [Command])> {
        states.iter().map(|s| (*s, *s, commands)).collect()
    };
    let to = |states: &[State], next, commands| -> Vec<(State, State, &'static [Command])> {
        states.iter().map(|s| (*s, next, commands)).collect()
    };
    let subscribed = [
        vec![(S::Unsubscribed, S::Joining, beat)],
        same(&members, &[C::Beat]),
    ]
    .concat();
    check(Stimulus::Subscribed, &subscribed);
    let unsubscribed = [
        to(&speaking, S::Leaving, &[C::Leave]),
        to(&[S::Fenced, S::Expired, S::Failed], S::Unsubscribed, &[]),
    ]
    .concat();
    check(Stimulus::Unsubscribed, &unsubscribed);
    check(
        Stimulus::Discharged,
        &[(S::Expired, S::Leaving, &[C::Leave])],
    );
    check(Stimulus::Accepted, &[(S::Joining, S::Stable, &[])]);
    let reconcile: &[Command] = &[C::Reconcile];
    check(
        Stimulus::Targeted,
        &[
            (S::Stable, S::Reconciling, reconcile),
            (S::Acknowledging, S::Reconciling, reconcile),
        ],
    );
    check(
        Stimulus::Reconciled,
        &[(S::Reconciling, S::Acknowledging, beat)],
    );
    check(Stimulus::Sent, &[(S::Acknowledging, S::Stable, &[])]);
    check(Stimulus::Busy, &same(&speaking, &[C::BeatLater]));
    let elsewhere: &[Command] = &[C::ForgetCoordinator, C::BeatLater];
    check(
        Stimulus::Elsewhere,
        &speaking.map(|state| (state, state, elsewhere)),
    );
    let unknown = [
        vec![(S::Joining, S::Joining, &[C::BeatLater][..])],
        to(&members, S::Fenced, &[C::Lose]),
    ]
    .concat();
    check(Stimulus::Unknown, &unknown);
    check(Stimulus::Released, &[(S::Fenced, S::Joining, beat)]);
    check(
        Stimulus::Refused,
        &to(&speaking, S::Failed, &[C::ReportFailure]),
    );
    check(Stimulus::CommitRefused, &same(&members, &[C::Beat]));
    let late = [
        to(&speaking, S::Expired, &[C::Leave, C::ReportLatePoll]),
        to(&[S::Fenced], S::Expired, &[C::ReportLatePoll]),
    ]
    .concat();
    check(Stimulus::PollLate, &late);
    check(Stimulus::PollResumed, &[(S::Expired, S::Joining, beat)]);
    check(Stimulus::Left, &[(S::Leaving, S::Unsubscribed, &[])]);
}

#[test]
fn codes_of_the_coordinator_have_their_column() {
    let refusals = [
        (ErrorCode::NOT_COORDINATOR, Stimulus::Elsewhere),
        (ErrorCode::COORDINATOR_NOT_AVAILABLE, Stimulus::Elsewhere),
        (ErrorCode::COORDINATOR_LOAD_IN_PROGRESS, Stimulus::Busy),
        (ErrorCode::TOPIC_AUTHORIZATION_FAILED, Stimulus::Busy),
        (ErrorCode::UNKNOWN_MEMBER_ID, Stimulus::Unknown),
        (ErrorCode::FENCED_MEMBER_EPOCH, Stimulus::Unknown),
        (ErrorCode::GROUP_ID_NOT_FOUND, Stimulus::Unknown),
        (ErrorCode::UNRELEASED_INSTANCE_ID, Stimulus::Refused),
        (ErrorCode::FENCED_INSTANCE_ID, Stimulus::Refused),
        (ErrorCode::GROUP_MAX_SIZE_REACHED, Stimulus::Refused),
        (ErrorCode::UNSUPPORTED_ASSIGNOR, Stimulus::Refused),
        (ErrorCode::INVALID_REGULAR_EXPRESSION, Stimulus::Refused),
        (ErrorCode::GROUP_AUTHORIZATION_FAILED, Stimulus::Refused),
        (ErrorCode::INVALID_REQUEST, Stimulus::Refused),
        (ErrorCode::UNSUPPORTED_VERSION, Stimulus::Refused),
    ];
    for (code, stimulus) in refusals {
        assert_eq!(at(State::Stable).refusal(code), stimulus, "{code}");
    }
    let joining = at(State::Joining);
    assert_eq!(
        joining.refusal(ErrorCode::GROUP_ID_NOT_FOUND),
        Stimulus::Refused
    );
}

#[test]
fn a_static_member_whose_join_was_not_answered_waits_for_its_own_place() {
    let mut machine = at(State::Joining);
    machine.on(&Event::Unanswered { sent: true });
    let code = ErrorCode::UNRELEASED_INSTANCE_ID;
    assert_eq!(machine.on(&Event::Refused { code }), [Command::BeatLater]);
    // Without that, somebody else has it.
    let mut machine = at(State::Joining);
    machine.on(&Event::Unanswered { sent: false });
    assert_eq!(
        machine.on(&Event::Refused { code }),
        [Command::ReportFailure]
    );
}

#[test]
fn a_static_member_that_has_paused_still_gives_its_place_up() {
    let mut machine = at(State::Expired);
    let for_good = Event::Unsubscribed { for_good: true };
    assert_eq!(machine.on(&for_good), [Command::Leave]);
    assert_eq!(machine.state(), State::Leaving);
    let mut machine = at(State::Expired);
    assert!(
        machine
            .on(&Event::Unsubscribed { for_good: false })
            .is_empty()
    );
    assert_eq!(machine.state(), State::Unsubscribed);
    let mut machine = at(State::Stable);
    assert_eq!(machine.on(&for_good), [Command::Leave]);
}

#[test]
fn the_epoch_is_the_coordinators_until_the_member_joins_anew() {
    let mut machine = Machine::new();
    machine.on(&Event::Subscribed);
    assert_eq!(machine.epoch(), JOIN);
    machine.on(&Event::Accepted { epoch: 4 });
    assert_eq!((machine.state(), machine.epoch()), (State::Stable, 4));
    machine.on(&Event::Accepted { epoch: 6 });
    assert_eq!(machine.epoch(), 6);
    let code = ErrorCode::FENCED_MEMBER_EPOCH;
    machine.on(&Event::Refused { code });
    // An answer that was on its way changes nothing.
    machine.on(&Event::Accepted { epoch: 7 });
    assert_eq!((machine.state(), machine.epoch()), (State::Fenced, 6));
    let round = machine.round();
    assert_eq!(machine.on(&Event::Released { round }), [Command::Beat]);
    assert_eq!(machine.epoch(), JOIN);
}

#[test]
fn only_the_present_round_counts() {
    for stale in [ROUND - 1, ROUND + 1] {
        let mut machine = at(State::Reconciling);
        assert!(machine.on(&Event::Reconciled { round: stale }).is_empty());
        let mut machine = at(State::Fenced);
        assert!(machine.on(&Event::Released { round: stale }).is_empty());
    }
    // A target that was being taken over when the member was fenced is not acknowledged.
    let mut machine = at(State::Reconciling);
    let before = machine.round();
    machine.on(&Event::Refused {
        code: ErrorCode::UNKNOWN_MEMBER_ID,
    });
    assert!(machine.on(&Event::Reconciled { round: before }).is_empty());
    assert!(machine.on(&Event::Released { round: before }).is_empty());
    assert_eq!(machine.state(), State::Fenced);
}

#[test]
fn heartbeats_are_due_while_the_member_joins_or_is_one() {
    for state in STATES {
        let expected = matches!(
            state,
            State::Joining | State::Stable | State::Reconciling | State::Acknowledging
        );
        assert_eq!(at(state).beats(), expected, "{state:?}");
        let watched = expected || state == State::Fenced;
        assert_eq!(at(state).watches_poll(), watched, "{state:?}");
    }
}
