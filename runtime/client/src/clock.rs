//! The client's clock: wall time as a base plus the time that tokio says has passed.
//!
//! Invariants: `now_ms` never goes backwards; under a paused tokio clock it moves only with it.
//! `wall_ms` is never behind it.
//! Never: lets a pause or a deadline jump with the machine's wall clock, or a machine's sleep make
//! new records look old.

use tokio::time::Instant;

/// Wall-clock milliseconds that follow tokio's (pausable) clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base_ms: i64,
    start: Instant,
    /// Where wall time is looked up anew; nowhere for a clock that a simulation controls.
    wall: Option<fn() -> i64>,
}

impl Clock {
    /// A clock that starts at the system's wall time.
    #[must_use]
    pub fn system() -> Self {
        Self {
            wall: Some(system_ms),
            ..Self::starting_at(system_ms())
        }
    }

    /// A clock that shows `base_ms` (milliseconds since 1970) now. Simulations use it.
    #[must_use]
    pub fn starting_at(base_ms: i64) -> Self {
        Self {
            base_ms,
            start: Instant::now(),
            wall: None,
        }
    }

    /// Milliseconds since 1970 by the machine's wall clock, where that is ahead: the machine has
    /// slept since the start, or its clock was wrong then. For what records are stamped with and
    /// looked up by; never for a pause or a deadline.
    #[must_use]
    pub fn wall_ms(&self) -> i64 {
        let now_ms = self.now_ms();
        self.wall.map_or(now_ms, |wall| wall().max(now_ms))
    }

    /// Milliseconds since 1970, as they have passed since the start.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        let elapsed = i64::try_from(self.start.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.base_ms.saturating_add(elapsed)
    }
}

fn system_ms() -> i64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the seam: the only look at wall time"
    )]
    let now = std::time::SystemTime::now();
    let since_epoch = now
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Clock;

    #[tokio::test(start_paused = true)]
    async fn wall_time_follows_the_paused_clock() {
        let clock = Clock::starting_at(1_000);
        assert_eq!(clock.now_ms(), 1_000);
        tokio::time::sleep(Duration::from_millis(250)).await;
        assert_eq!(clock.now_ms(), 1_250);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wall_clock_that_is_ahead_counts_for_records_and_one_that_is_behind_does_not() {
        for (wall, expected_ms) in [(|| 9_000, 9_000), (|| 500, 1_000)] as [(fn() -> i64, i64); 2] {
            let clock = Clock {
                wall: Some(wall),
                ..Clock::starting_at(1_000)
            };
            assert_eq!((clock.now_ms(), clock.wall_ms()), (1_000, expected_ms));
        }
    }
}
