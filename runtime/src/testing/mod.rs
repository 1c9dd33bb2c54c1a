//! For tests: [`TopologyTestDriver`] runs a topology record by record without any broker;
//! [`TestCluster`] is a broker that can crash behind a network that delays and fails, both from one
//! seed.
//!
//! On a current-thread runtime with tokio's paused clock (`#[tokio::test(start_paused = true)]`) a
//! test that uses these and nothing else that is random runs the same way every time: the same seed
//! gives the same [`Trace`]. The paused clock takes tokio's feature `test-util` among the
//! dev-dependencies. A job lives in virtual time where it is told to:
//! `.client(cluster.client(2))` and [`.placement(Placement::Runtime)`](crate::streams::Placement).
//!
//! ```
//! use millstream::prelude::*;
//! use millstream::testing::TestCluster;
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> millstream::Result<()> {
//! let cluster = TestCluster::start(42).await?;
//! let producer = Producer::idempotent().client(cluster.client(1)).connect(&cluster).await?;
//! let sent = producer.send(ProducerRecord::new("words").value("hello")).await?;
//! assert_eq!(sent.await?.offset, 0);
//! cluster.crash().await?; // a power cut: what was acknowledged is still there
//! # Ok(())
//! # }
//! ```

mod cluster;
mod network;
mod trace;

pub use crate::streams::{TestRecord, TopologyTestDriver};
pub use cluster::TestCluster;
pub use network::{Direction, FrameEvent, NetworkCounts, NetworkFaults, SimulatedNetwork};
pub use trace::Trace;

/// What becomes of unsynced data in a power cut.
pub use millstream_log::storage::Unsynced;
