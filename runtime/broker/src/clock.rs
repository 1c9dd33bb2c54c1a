//! The broker's clock: wall time as a base plus tokio's elapsed time, so that virtual time moves it
//! too.
//!
//! Invariants: `now_ms` never goes backwards while the process runs; `wall_ms` is never behind it.
//! Never: lets a deadline jump with the machine's wall clock (a step of an hour aborts no
//! transaction), or a machine's sleep make the times of new records look like the future.
//!
//! What is written down is stamped with `wall_ms` and judged by it; what only this process knows
//! has `now_ms`. The two part when the machine sleeps: `Leaps` tells whom that concerns.

use tokio::time::Instant;

/// Tells wall time in milliseconds since the Unix epoch; a copy tells the same time.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    base_ms: i64,
    started: Instant,
    /// Where wall time is looked up anew; nowhere for a clock that a simulation controls.
    wall: Option<fn() -> i64>,
}

impl Clock {
    /// A clock that starts at the machine's wall time.
    pub fn system() -> Self {
        Self::starting_at(system_ms()).with_wall(system_ms)
    }

    /// A clock that shows `base_ms` now and runs with tokio's time, which a simulation controls.
    pub fn starting_at(base_ms: i64) -> Self {
        Self {
            base_ms,
            started: Instant::now(),
            wall: None,
        }
    }

    pub(crate) fn with_wall(self, wall: fn() -> i64) -> Self {
        Self {
            wall: Some(wall),
            ..self
        }
    }

    /// Milliseconds since the Unix epoch by the machine's wall clock, where that is ahead: the
    /// machine has slept since the start, or its clock was wrong then. For what records are
    /// stamped with and judged by; never for a deadline.
    pub fn wall_ms(&self) -> i64 {
        let now_ms = self.now_ms();
        self.wall.map_or(now_ms, |wall| wall().max(now_ms))
    }

    /// How far wall time is ahead of what has passed since the start.
    pub(crate) fn ahead_ms(&self) -> i64 {
        self.wall_ms().saturating_sub(self.now_ms())
    }

    /// Milliseconds since the Unix epoch, as they have passed since the start.
    pub fn now_ms(&self) -> i64 {
        let elapsed = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.base_ms.saturating_add(elapsed)
    }
}

/// Less than this between two looks is a clock that is set right, not a leap.
const LEAP_MS: i64 = 60_000;

/// Notices when wall time has left behind what has passed here: the machine has slept, or its
/// clock was set. Who was about to use something could not meanwhile, however old that is now.
#[derive(Debug)]
pub(crate) struct Leaps {
    clock: Clock,
    ahead_ms: i64,
}

impl Leaps {
    /// Counts from now on.
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            ahead_ms: clock.ahead_ms(),
        }
    }

    /// Whether there was one since the last look.
    pub(crate) fn any(&mut self) -> bool {
        let before_ms = std::mem::replace(&mut self.ahead_ms, self.clock.ahead_ms());
        self.ahead_ms.saturating_sub(before_ms) > LEAP_MS
    }
}

fn system_ms() -> i64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "the seam itself: the only look at wall time"
    )]
    let now = std::time::SystemTime::now();
    let since_epoch = now
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn virtual_time_moves_the_clock() {
        let clock = Clock::starting_at(1_000);
        tokio::time::advance(Duration::from_millis(250)).await;
        assert_eq!((clock.now_ms(), clock.wall_ms()), (1_250, 1_250));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wall_clock_that_is_ahead_counts_for_records_and_one_that_is_behind_does_not() {
        for (wall, expected_ms) in [(|| 9_000, 9_000), (|| 500, 1_000)] as [(fn() -> i64, i64); 2] {
            let clock = Clock::starting_at(1_000).with_wall(wall);
            assert_eq!((clock.now_ms(), clock.wall_ms()), (1_000, expected_ms));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_clock_of_the_system_looks_at_wall_time_anew() {
        let clock = Clock::system();
        // Virtual time stands still here; the machine's does not.
        let moved = (0..1_000_000).any(|_| clock.wall_ms() > clock.now_ms());
        assert!(moved);
    }

    #[tokio::test(start_paused = true)]
    async fn a_leap_is_told_once_and_time_that_passes_is_none() {
        static WALL_MS: AtomicI64 = AtomicI64::new(0);
        let clock = Clock::starting_at(1_000).with_wall(|| WALL_MS.load(Ordering::Relaxed));
        let mut leaps = Leaps::new(clock);
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert!(!leaps.any());
        WALL_MS.store(9_000_000, Ordering::Relaxed);
        assert!(leaps.any());
        WALL_MS.store(9_030_000, Ordering::Relaxed);
        assert!(!leaps.any(), "set right");
    }
}
