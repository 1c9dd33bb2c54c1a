//! What happened, in order: a running hash and a count, cheap enough to always be on.
//!
//! Invariants: two runs of one seed have equal traces, or something in them was not decided by the
//! seed.
//! Never: holds the events themselves.

use std::sync::{Arc, Mutex, PoisonError};

/// A hash over everything that was noted, in order.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    hash: u64,
    events: u64,
}

impl Default for State {
    fn default() -> Self {
        // FNV-1a, 64 bits: offset basis.
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            events: 0,
        }
    }
}

impl Trace {
    /// Notes an event.
    pub fn note(&self, event: &[u8]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.events += 1;
        for byte in event {
            state.hash = (state.hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// The hash so far, and how many events it is of.
    #[must_use]
    pub fn digest(&self) -> (u64, u64) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.hash, state.events)
    }
}
