//! What a job comes back from, and what ends it, each with its reason.
//!
//! | module | what it shows |
//! |---|---|
//! | `rewinds` | a partition that changes hands while its old transaction fails |
//! | `outages` | a broker that is away, at the worst moments, for as long as a record may wait |
//! | `sizes` | records, outputs and dead letters that are too large |
//! | `positions` | partitions without records, and offsets that the log does not hold |
//! | `endings` | why an instance ended: a successor, a last commit that was refused |
//! | `stalls` | time that passes without anybody's fault, and transactions that it costs |
//! | `idle` | jobs that had nothing to do for longer than the broker remembers them |
//!
//! Invariants: whatever happened on the way, each record is there once, or the job has said why
//! not.
//! Never: the real clock where the broker is ours, but for the one test that needs threads and
//! sockets.

mod endings;
mod idle;
mod outages;
mod positions;
mod rewinds;
mod sizes;
mod stalls;

use std::time::Duration;

use millstream::streams::RunningStreams;
use tests::copying;
use tests::under_test::BrokerUnderTest;

/// Long enough for everything that is expected to happen.
const PATIENCE: Duration = Duration::from_secs(600);

/// Waits until the job is at the ends of its input.
async fn caught_up(cluster: &BrokerUnderTest, running: &mut RunningStreams) -> anyhow::Result<()> {
    copying::caught_up(cluster, running, PATIENCE).await
}
