//! Rules of a read-process-write job over the broker under test: ours in virtual time, or an Apache
//! Kafka. Rows are those of the statements that the product is built from; each test names the ones
//! that it shows.
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
//! Never: the real clock, where the broker is ours.

mod loops;
mod outages;
mod programs;
mod slow;
mod transactions;

use millstream::client::Producer;
use tests::under_test::BrokerUnderTest;

/// A transactional producer that is ready to begin. On a Kafka, whose time is real, its
/// transactions may take longer.
async fn producer(cluster: &BrokerUnderTest, number: u64, id: &str) -> anyhow::Result<Producer> {
    let timeout_ms = if cluster.is_kafka() { 60_000 } else { 5_000 };
    producer_with(cluster, number, id, timeout_ms).await
}

async fn producer_with(
    cluster: &BrokerUnderTest,
    number: u64,
    id: &str,
    timeout_ms: u64,
) -> anyhow::Result<Producer> {
    let builder = Producer::transactional(cluster.name(id)).client(cluster.client(number));
    let producer = builder
        .transaction_timeout_ms(timeout_ms)
        .connect(cluster)
        .await?;
    producer.init_transactions().await?;
    Ok(producer)
}
