//! Rules of a read-process-write job over the embedded broker, in memory and in virtual time. Rows
//! are those of the statements that the product is built from; each test names the ones that it
//! shows.
//!
//! | module | what it shows |
//! |---|---|
//! | `transactions` | the order of calls, what readers see and when, time-outs, errors that an abort mends |
//! | `outages` | acknowledgements over a power cut, commits without an answer, order per key on a bad network |
//! | `loops` | a consumer's part in the loop: no commits of its own, back to the committed offsets after an abort |
//! | `programs` | the hand-written loop as it ships, and what a data directory holds |
//! | `slow` | records that take long, against the time that a transaction may last |
//!
//! Invariants: everything goes through the public interfaces.
//! Never: the real clock.

mod loops;
mod outages;
mod programs;
mod slow;
mod transactions;

use millstream::client::Producer;
use millstream::testing::TestCluster;

/// A transactional producer that is ready to begin.
async fn producer(cluster: &TestCluster, number: u64, id: &str) -> anyhow::Result<Producer> {
    let builder = Producer::transactional(id).client(cluster.client(number));
    let producer = builder
        .transaction_timeout_ms(5_000)
        .connect(cluster)
        .await?;
    producer.init_transactions().await?;
    Ok(producer)
}
