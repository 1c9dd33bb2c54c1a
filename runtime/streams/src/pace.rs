//! How often a worker looks at the clock while it processes.
//!
//! Invariants: every record where records are slow, every 64th where they are fast.
//! Never: reads the clock itself.

use std::time::Duration;

use tokio::time::Instant;

/// Counts records between two looks at the clock.
pub(crate) struct Pace {
    stride: u32,
    since: u32,
    last: Option<Instant>,
}

impl Pace {
    const STRIDE_MAX: u32 = 64;
    const FAST: Duration = Duration::from_millis(1);

    pub(crate) fn new() -> Self {
        Self {
            stride: 1,
            since: 0,
            last: None,
        }
    }

    pub(crate) fn is_check_due(&mut self, forced: bool) -> bool {
        self.since += 1;
        forced || self.since >= self.stride
    }

    pub(crate) fn checked(&mut self, now: Instant) {
        let fast = self.last.is_some_and(|last| now - last < Self::FAST);
        self.stride = if fast {
            (self.stride * 2).min(Self::STRIDE_MAX)
        } else {
            1
        };
        self.since = 0;
        self.last = Some(now);
    }
}
