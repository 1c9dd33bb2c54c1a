//! What an application is told about its partitions while its group rebalances.
//!
//! Never: called from anywhere but `poll`, `unsubscribe` and `close`.

use std::fmt::Debug;

use async_trait::async_trait;
use millstream_protocol::TopicPartition;

use super::consumer::Consumer;

/// Hears of every change of the assignment. The methods are awaited inside `poll`, which hands out
/// no records meanwhile; heartbeats go on, and the rebalance waits for `max.poll.interval.ms`.
///
/// A call is never cut short or repeated because the `poll` that made it was dropped: the next
/// `poll` goes on with it.
#[async_trait]
pub trait RebalanceListener: Send + Sync + Debug {
    /// The partitions are about to be given up, but are still this member's: drain the work, commit
    /// it (with `consumer.commit()` or a transaction under `consumer.group_metadata()`), return.
    async fn on_revoked(&self, _consumer: &Consumer, _partitions: &[TopicPartition]) {}

    /// The partitions are this member's from now on. Possibly none.
    async fn on_assigned(&self, _consumer: &Consumer, _partitions: &[TopicPartition]) {}

    /// The partitions were taken away without notice, and others may process them already: drop
    /// the work, commit nothing. Does what `on_revoked` does unless it is overridden.
    async fn on_lost(&self, consumer: &Consumer, partitions: &[TopicPartition]) {
        self.on_revoked(consumer, partitions).await;
    }
}

/// The listener of those who do not want to know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silent;

#[async_trait]
impl RebalanceListener for Silent {}
