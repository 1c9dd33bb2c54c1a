//! The client's clock: wall time as a base plus the time that tokio says has passed.
//!
//! Invariants: `now_ms` never goes backwards; under a paused tokio clock it moves only with it.
//! Never: reads the system's wall clock after it was made.

use tokio::time::Instant;

/// Wall-clock milliseconds that follow tokio's (pausable) clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    base_ms: i64,
    start: Instant,
}

impl Clock {
    /// A clock that starts at the system's wall time.
    #[must_use]
    pub fn system() -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "this is the seam: the base of the clock"
        )]
        let now = std::time::SystemTime::now();
        let base_ms = now
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |elapsed| {
                i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX)
            });
        Self::starting_at(base_ms)
    }

    /// A clock that shows `base_ms` (milliseconds since 1970) now. Simulations use it.
    #[must_use]
    pub fn starting_at(base_ms: i64) -> Self {
        Self {
            base_ms,
            start: Instant::now(),
        }
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        let elapsed = i64::try_from(self.start.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.base_ms.saturating_add(elapsed)
    }
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
}
