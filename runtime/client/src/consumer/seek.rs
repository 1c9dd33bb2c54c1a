//! Positions, seeks and pauses of a consumer: all local, none waits.
//!
//! Invariants: a seek makes everything fetched before it void.
//! Never: asks a broker; what has to be asked for is left to the fetcher.

use millstream_protocol::TopicPartition;

use super::consumer::Consumer;
use super::error::ConsumerError;
use super::positions::{At, Landmark, Position};
use super::read_committed::Isolation;
use crate::group::OffsetAndMetadata;

impl Consumer {
    /// The offset of the next record that `poll` will hand out. `None` while it is being looked
    /// up, and for a partition that is not assigned.
    #[must_use]
    pub fn position(&self, partition: &TopicPartition) -> Option<i64> {
        self.inner.core.positions().position(partition)
    }

    /// All known positions: what [`Consumer::commit`] would commit.
    #[must_use]
    pub fn positions(&self) -> Vec<(TopicPartition, i64)> {
        self.inner
            .core
            .positions()
            .all()
            .map(|(partition, at)| (partition.clone(), at.offset))
            .collect()
    }

    /// How far the partition's end is ahead, as the last fetch saw it: the last stable offset for
    /// readers of committed data, else the high watermark. `None` before the first fetch.
    #[must_use]
    pub fn lag(&self, partition: &TopicPartition) -> Option<i64> {
        let positions = self.inner.core.positions();
        let offsets = positions.offsets(partition)?;
        let end = match self.inner.core.config.isolation {
            Isolation::ReadCommitted => offsets.last_stable,
            Isolation::ReadUncommitted => offsets.high_watermark,
        };
        Some((end - positions.position(partition)?).max(0))
    }

    fn restart(&self, partition: &TopicPartition, to: Position) -> Result<(), ConsumerError> {
        if !self.inner.core.positions().restart(partition, to) {
            return Err(ConsumerError::NotAssigned {
                topic_partition: partition.clone(),
            });
        }
        self.inner.core.for_fetcher.notify_one();
        Ok(())
    }

    /// Goes on at `offset`: a number, or what was committed. Records that were fetched already are
    /// dropped. Where the epoch of the record before it is given, the log is asked first whether it
    /// still holds that record.
    ///
    /// # Errors
    /// Where the partition is not assigned.
    pub fn seek(
        &self,
        partition: &TopicPartition,
        offset: impl Into<OffsetAndMetadata>,
    ) -> Result<(), ConsumerError> {
        let to = offset.into();
        let at = At {
            offset: to.offset.max(0),
            epoch: to.leader_epoch,
        };
        self.restart(partition, Position::At(at))
    }

    /// Goes on at the first record of the log.
    ///
    /// # Errors
    /// Where the partition is not assigned.
    pub fn seek_to_beginning(&self, partition: &TopicPartition) -> Result<(), ConsumerError> {
        self.restart(partition, Position::Resetting(Landmark::Earliest))
    }

    /// Goes on behind the last record that may be seen.
    ///
    /// # Errors
    /// Where the partition is not assigned.
    pub fn seek_to_end(&self, partition: &TopicPartition) -> Result<(), ConsumerError> {
        self.restart(partition, Position::Resetting(Landmark::Latest))
    }

    /// Goes back to the committed offset, or to where the reset policy says: what an aborted
    /// transaction asks for.
    ///
    /// # Errors
    /// Where the partition is not assigned.
    pub fn seek_to_committed(&self, partition: &TopicPartition) -> Result<(), ConsumerError> {
        self.restart(partition, Position::Unset)
    }

    /// Holds the partitions back: `poll` hands out none of their records and nothing more is
    /// fetched. What is fetched already stays ready. Cheap: takes one lock.
    ///
    /// # Errors
    /// Where a partition is not assigned; those before it are paused.
    pub fn pause(&self, partitions: &[TopicPartition]) -> Result<(), ConsumerError> {
        let done = self.set_paused(partitions, true);
        // What they have buffered counts no more, so others may be fetched.
        self.inner.core.for_fetcher.notify_one();
        done
    }

    /// Lets paused partitions go on.
    ///
    /// # Errors
    /// Where a partition is not assigned; those before it go on.
    pub fn resume(&self, partitions: &[TopicPartition]) -> Result<(), ConsumerError> {
        let done = self.set_paused(partitions, false);
        self.inner.core.for_poll.notify_one();
        self.inner.core.for_fetcher.notify_one();
        done
    }

    fn set_paused(&self, partitions: &[TopicPartition], paused: bool) -> Result<(), ConsumerError> {
        let mut positions = self.inner.core.positions();
        for partition in partitions {
            if !positions.set_paused(partition, paused) {
                return Err(ConsumerError::NotAssigned {
                    topic_partition: partition.clone(),
                });
            }
        }
        Ok(())
    }

    /// The partitions that are held back.
    #[must_use]
    pub fn paused(&self) -> Vec<TopicPartition> {
        self.inner.core.positions().paused().cloned().collect()
    }
}
