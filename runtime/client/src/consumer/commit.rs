//! Commits, and the offsets that brokers know: committed ones and ends of logs.
//!
//! Invariants: a commit carries the membership that it is made under, or none for a consumer with
//! partitions of its own choice; a refused commit is never a success.
//! Never: moves a position.

use futures::future::BoxFuture;
use std::collections::BTreeMap;

use millstream_protocol::{ErrorCode, TopicPartition};

use super::consumer::{Consumer, Mode};
use super::error::ConsumerError;
use super::lookup::{OffsetAndTimestamp, end_as_timestamp, list_offsets};
use super::membership::Ask;
use super::offsets::{self, CommitFailure};
use super::positions::LogEnd;
use crate::group::{GroupMetadata, OffsetAndMetadata};

impl Consumer {
    /// Who this consumer is in its group, for a producer's `send_offsets`. Take it after the poll
    /// whose records are committed and before the next one.
    ///
    /// # Errors
    /// Without a group id.
    pub fn group_metadata(&self) -> Result<GroupMetadata, ConsumerError> {
        self.group("group_metadata()").map(|group| group.metadata())
    }

    /// Commits the positions of all partitions, and waits for the coordinator's answer.
    ///
    /// # Errors
    /// See [`Consumer::commit_offsets`].
    pub fn commit(&self) -> BoxFuture<'_, Result<(), ConsumerError>> {
        Box::pin(async move {
            let offsets: Vec<(TopicPartition, OffsetAndMetadata)> = self
                .positions()
                .into_iter()
                .map(|(partition, offset)| (partition, offset.into()))
                .collect();
            self.commit_offsets(&offsets).await
        })
    }

    /// Commits these offsets (each that of the next record to read), and waits for the
    /// coordinator's answer, at most for `default.api.timeout.ms`. Not part of any transaction.
    ///
    /// Dropping the future leaves it open whether the offsets are committed.
    ///
    /// # Errors
    /// [`ConsumerError::CommitFenced`] where the member has lost its place, and
    /// [`ConsumerError::CommitDuringRebalance`] while the group rebalances: nothing was committed
    /// then. [`ConsumerError::Timeout`] leaves it open. Others name what was refused.
    pub fn commit_offsets<'a>(
        &'a self,
        offsets: &'a [(TopicPartition, OffsetAndMetadata)],
    ) -> BoxFuture<'a, Result<(), ConsumerError>> {
        Box::pin(async move {
            let group = self.group("commit()")?;
            if offsets.is_empty() {
                return Ok(());
            }
            let member = group.metadata();
            let subscribed = matches!(&*self.mode(), Mode::Subscribed(_));
            let fenced = |code| ConsumerError::CommitFenced {
                group: member.group_id.clone(),
                generation: member.generation_id,
                code,
            };
            if let Some(failed) = group.lock().failed.clone() {
                return Err(failed);
            }
            if subscribed && member.generation_id < 0 {
                return Err(fenced(ErrorCode::UNKNOWN_MEMBER_ID));
            }
            let member = if subscribed {
                member.clone()
            } else {
                outside(&member)
            };
            let offsets: BTreeMap<TopicPartition, OffsetAndMetadata> =
                offsets.iter().cloned().collect();
            let patience = self.inner.core.config.default_api_timeout;
            match offsets::commit(&self.inner.core.cluster, &member, &offsets, patience).await {
                Ok(()) => Ok(()),
                Err(CommitFailure::Other(error)) => Err(error),
                Err(CommitFailure::Membership(code)) => {
                    group.ask(Ask::CommitRefused {
                        code,
                        generation_id: member.generation_id,
                        member_id: member.member_id.clone(),
                    });
                    Err(match code {
                        ErrorCode::REBALANCE_IN_PROGRESS => ConsumerError::CommitDuringRebalance {
                            group: member.group_id.clone(),
                        },
                        ErrorCode::FENCED_INSTANCE_ID => ConsumerError::InstanceFenced {
                            group: member.group_id.clone(),
                            instance: member.group_instance_id.clone().unwrap_or_default(),
                            member_id: member.member_id.clone(),
                        },
                        code => fenced(code),
                    })
                }
            }
        })
    }

    /// The group's committed offsets; `None` where there is none. Offsets that an open transaction
    /// is about to commit are waited for, at most for `default.api.timeout.ms`.
    ///
    /// # Errors
    /// Without a group id, where they stay undecided, and where the coordinator refuses.
    pub fn committed<'a>(
        &'a self,
        partitions: &'a [TopicPartition],
    ) -> BoxFuture<'a, Result<BTreeMap<TopicPartition, Option<OffsetAndMetadata>>, ConsumerError>>
    {
        Box::pin(async move {
            let group = self.group("committed(..)")?;
            let core = &self.inner.core;
            let patience = core.config.default_api_timeout;
            offsets::fetch_committed(&core.cluster, &group.group_id, partitions, patience).await
        })
    }

    async fn log_ends(
        &self,
        call: &'static str,
        partitions: &[TopicPartition],
        end: LogEnd,
    ) -> Result<BTreeMap<TopicPartition, i64>, ConsumerError> {
        let core = &self.inner.core;
        let questions = partitions
            .iter()
            .map(|p| (p.clone(), end_as_timestamp(end)))
            .collect();
        let patience = core.config.default_api_timeout;
        let found = list_offsets(
            &core.cluster,
            call,
            core.config.isolation,
            questions,
            patience,
        )
        .await?;
        Ok(found
            .into_iter()
            .map(|(partition, found)| (partition, found.map_or(0, |found| found.offset)))
            .collect())
    }

    /// Where the logs end for this consumer: the last stable offsets for a reader of committed
    /// data, else the high watermarks.
    ///
    /// # Errors
    /// Where a leader does not answer within `default.api.timeout.ms`, or refuses.
    pub fn end_offsets<'a>(
        &'a self,
        partitions: &'a [TopicPartition],
    ) -> BoxFuture<'a, Result<BTreeMap<TopicPartition, i64>, ConsumerError>> {
        Box::pin(async move {
            self.log_ends("end_offsets(..)", partitions, LogEnd::Latest)
                .await
        })
    }

    /// Where the logs begin.
    ///
    /// # Errors
    /// As [`Consumer::end_offsets`].
    pub fn beginning_offsets<'a>(
        &'a self,
        partitions: &'a [TopicPartition],
    ) -> BoxFuture<'a, Result<BTreeMap<TopicPartition, i64>, ConsumerError>> {
        Box::pin(async move {
            self.log_ends("beginning_offsets(..)", partitions, LogEnd::Earliest)
                .await
        })
    }

    /// The first record of each partition at or after a time in milliseconds since 1970; `None`
    /// where no record is that young.
    ///
    /// # Errors
    /// As [`Consumer::end_offsets`].
    pub fn offsets_for_times<'a>(
        &'a self,
        times: &'a [(TopicPartition, i64)],
    ) -> BoxFuture<'a, Result<BTreeMap<TopicPartition, Option<OffsetAndTimestamp>>, ConsumerError>>
    {
        Box::pin(async move {
            let core = &self.inner.core;
            let patience = core.config.default_api_timeout;
            let questions = times.to_vec();
            let isolation = core.config.isolation;
            list_offsets(
                &core.cluster,
                "offsets_for_times(..)",
                isolation,
                questions,
                patience,
            )
            .await
        })
    }

    /// How many partitions a topic has, asking where it is not known.
    ///
    /// # Errors
    /// Where no broker answers in time, or refuses the topic.
    pub fn partitions_of<'a>(
        &'a self,
        topic: &'a str,
    ) -> BoxFuture<'a, Result<i32, ConsumerError>> {
        Box::pin(async move { Ok(self.inner.core.cluster.partitions_of(topic).await?) })
    }
}

/// The identity of commits from outside the group's membership.
fn outside(member: &GroupMetadata) -> GroupMetadata {
    GroupMetadata::without_membership(member.group_id.clone())
}
