//! The broker's clock: wall time as a base plus tokio's elapsed time, so that virtual time moves it
//! too.
//!
//! Invariants: never goes backwards while the process runs.
//! Never: jumps with the machine's wall clock (a step of an hour aborts no transaction).

use tokio::time::Instant;

/// Tells wall time in milliseconds since the Unix epoch; a copy tells the same time.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    base_ms: i64,
    started: Instant,
}

impl Clock {
    /// A clock that starts at the machine's wall time.
    pub fn system() -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "the seam itself: the only look at wall time"
        )]
        let now = std::time::SystemTime::now();
        let since_epoch = now
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        Self::starting_at(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
    }

    /// A clock that shows `base_ms` now and runs with tokio's time, which a simulation controls.
    pub fn starting_at(base_ms: i64) -> Self {
        Self {
            base_ms,
            started: Instant::now(),
        }
    }

    /// Milliseconds since the Unix epoch.
    pub fn now_ms(&self) -> i64 {
        let elapsed = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.base_ms.saturating_add(elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn virtual_time_moves_the_clock() {
        let clock = Clock::starting_at(1_000);
        tokio::time::advance(Duration::from_millis(250)).await;
        assert_eq!(clock.now_ms(), 1_250);
    }
}
