//! What a producer and a consumer are set to where nothing was said, as they themselves tell it.
//!
//! Invariants: where both have a name, the producer's value is told; the rest is the consumer's
//! alone. The other clients of `tests/compat` do the same.

use millstream::client::Producer;
use millstream::client::consumer::ConsumerConfig;

use crate::say;

/// Prints them as `name=value`.
pub(crate) fn print() -> anyhow::Result<()> {
    let mut all = ConsumerConfig::default().effective();
    all.extend(Producer::builder().build()?.effective());
    for (name, value) in all {
        say(&format!("{name}={value}"));
    }
    Ok(())
}
