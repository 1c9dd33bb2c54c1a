//! Pauses between attempts: exponential, bounded, with seeded jitter.
//!
//! Invariants: a pause lies within 20 % of min(base·2ⁿ, max).
//! Never: sleeps by itself, or decides whether to retry.

use std::time::Duration;

/// The pause before attempt `attempt` (0 = the first repetition). `random` lies in 0.0..1.0.
#[must_use]
pub fn backoff(base: Duration, max: Duration, attempt: u32, random: f64) -> Duration {
    let factor = 1_u32.checked_shl(attempt.min(31)).unwrap_or(u32::MAX);
    let pause = base.saturating_mul(factor).min(max);
    pause.mul_f64(0.8 + 0.4 * random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum_and_stay_within_the_jitter() {
        let (base, max) = (Duration::from_millis(100), Duration::from_secs(1));
        for (attempt, middle) in [(0, 100), (1, 200), (3, 800), (4, 1000), (u32::MAX, 1000)] {
            for random in [0.0, 0.5, 1.0] {
                let pause = backoff(base, max, attempt, random).as_secs_f64() * 1000.0;
                let expected = f64::from(middle) * (0.8 + 0.4 * random);
                assert!((pause - expected).abs() < 1.0, "attempt {attempt}: {pause}");
            }
        }
    }
}
