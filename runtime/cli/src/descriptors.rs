//! How many files the broker may have open: one a partition, one a connection, a few more.
//!
//! Invariants: the limit is raised to what the system lets this process have, and never lowered.
//! Never: fails a start; a limit that stays low is said where it is met.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files to the hard one, as a JVM does by itself.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // Up to the hard limit nobody can refuse it.
    let _raised = setrlimit(Resource::Nofile, raised);
}
