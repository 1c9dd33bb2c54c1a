//! Commits, and the offsets that brokers know: committed ones and ends of logs.
//!
//! Invariants: a commit carries the membership that it is made under, or none for a consumer with
//! partitions of its own choice; a refused commit is never a success.
//! Never: moves a position.

use futures::future::BoxFuture;
use std::collections::BTreeMap;

use millstream_protocol::{ErrorCode, TopicPartition};
use tokio::time::Instant;

use super::consumer::{Consumer, Mode};
use super::error::ConsumerError;
use super::lookup::{OffsetAndTimestamp, as_timestamp, list_offsets};
use super::membership::{Ask, Group, Tenure};
use super::offsets::{self, Attempts, CommitFailure};
use super::positions::Landmark;
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
        Box::pin(async move { self.commit_offsets(&self.offsets_to_commit()).await })
    }

    /// What [`Consumer::commit`] would commit: the positions of all partitions, each with the
    /// epoch of the leader that wrote the record before it.
    #[must_use]
    pub fn offsets_to_commit(&self) -> Vec<(TopicPartition, OffsetAndMetadata)> {
        let positions = self.inner.core.positions();
        let all = positions.all().map(|(partition, at)| {
            let offset = OffsetAndMetadata {
                offset: at.offset,
                leader_epoch: at.epoch,
                ..Default::default()
            };
            (partition.clone(), offset)
        });
        all.collect()
    }

    /// Commits these offsets (each that of the next record to read), and waits for the
    /// coordinator's answer, at most for `default.api.timeout.ms`. Not part of any transaction.
    ///
    /// Dropping the future leaves it open whether the offsets are committed.
    ///
    /// # Errors
    /// [`ConsumerError::CommitFenced`] where the member has lost its place, and
    /// [`ConsumerError::CommitDuringRebalance`] while the group rebalances: nothing was committed
    /// then. [`ConsumerError::Timeout`] leaves it open. After `close`, [`ConsumerError::Closed`].
    /// Others name what was refused.
    pub fn commit_offsets<'a>(
        &'a self,
        offsets: &'a [(TopicPartition, OffsetAndMetadata)],
    ) -> BoxFuture<'a, Result<(), ConsumerError>> {
        Box::pin(async move {
            self.end_automatic_commit().await;
            self.commit_within(offsets, None, Attempts::UntilAnswered)
                .await
        })
    }

    /// As [`Consumer::commit_offsets`], as long as the tenure of the partitions lasts, where one is
    /// given: that at the time at which the offsets were read.
    pub(super) async fn commit_within(
        &self,
        offsets: &[(TopicPartition, OffsetAndMetadata)],
        tenure: Option<Tenure>,
        attempts: Attempts,
    ) -> Result<(), ConsumerError> {
        let group = self.group("commit()")?;
        if offsets.is_empty() {
            return Ok(());
        }
        let subscribed = match &*self.mode() {
            // It would connect again, and commit as nobody's member.
            Mode::Closed => return Err(ConsumerError::Closed),
            mode => matches!(mode, Mode::Subscribed(_)),
        };
        let offsets: BTreeMap<TopicPartition, OffsetAndMetadata> =
            offsets.iter().cloned().collect();
        match subscribed {
            true => {
                self.commit_as_member(group, &offsets, tenure, attempts)
                    .await
            }
            false => {
                let nobody = GroupMetadata::without_membership(group.group_id.clone());
                let core = &self.inner.core;
                let patience = core.config.default_api_timeout;
                let (cluster, of) = (&core.cluster, &offsets);
                let done = offsets::commit(cluster, &nobody, of, patience, attempts).await;
                done.map_err(|failure| refused(&nobody, failure))
            }
        }
    }

    /// Commits under the membership. A member epoch that has passed meanwhile (consumer protocol)
    /// is no reason to refuse: as long as all partitions have been ours without a break, the commit
    /// is repeated under the epoch that there is now.
    async fn commit_as_member(
        &self,
        group: &Group,
        offsets: &BTreeMap<TopicPartition, OffsetAndMetadata>,
        tenure: Option<Tenure>,
        attempts: Attempts,
    ) -> Result<(), ConsumerError> {
        let (core, started) = (&self.inner.core, Instant::now());
        let patience = core.config.default_api_timeout;
        let tenure = tenure.unwrap_or_else(|| group.lock().tenure(offsets.keys()));
        let mut attempt = 0;
        loop {
            let (member, lasts) = {
                let state = group.lock();
                (
                    state.metadata.clone(),
                    state.tenure(offsets.keys()) == tenure,
                )
            };
            if !lasts {
                // Under the newest epoch it would be taken, over what another member has done.
                let stale = CommitFailure::Membership(ErrorCode::STALE_MEMBER_EPOCH);
                return Err(refused(&member, stale));
            }
            if let Some(failed) = group.lock().failed.clone() {
                return Err(failed);
            }
            if member.generation_id < 0 {
                let unknown = CommitFailure::Membership(ErrorCode::UNKNOWN_MEMBER_ID);
                return Err(refused(&member, unknown));
            }
            let left = patience.saturating_sub(started.elapsed());
            let done = offsets::commit(&core.cluster, &member, offsets, left, attempts).await;
            let failure = match done {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            let CommitFailure::Membership(code) = &failure else {
                return Err(refused(&member, failure));
            };
            group.ask(Ask::CommitRefused {
                code: *code,
                generation_id: member.generation_id,
                member_id: member.member_id.clone(),
            });
            let ours = offsets.keys().all(|p| group.lock().owned.contains(p));
            let pause = core.cluster.retry_pause(attempt);
            let late = started.elapsed() + pause >= patience || attempts == Attempts::One;
            let now = group.metadata();
            let overtaken = *code == ErrorCode::ILLEGAL_GENERATION
                && now.member_id == member.member_id
                && (now.generation_id > member.generation_id || group.lock().rebalances);
            if overtaken {
                // The member has gone on to the next generation meanwhile, or is about to.
                return Err(ConsumerError::CommitDuringRebalance {
                    group: member.group_id,
                });
            }
            if *code != ErrorCode::STALE_MEMBER_EPOCH || !ours || late {
                return Err(refused(&member, failure));
            }
            if group.metadata().generation_id == member.generation_id {
                // The heartbeat that brings the new epoch is on its way.
                attempt += 1;
                tokio::time::sleep(pause).await;
            }
        }
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
            offsets::fetch_committed(core, &group.group_id, partitions, patience).await
        })
    }

    async fn log_ends(
        &self,
        call: &'static str,
        partitions: &[TopicPartition],
        end: Landmark,
    ) -> Result<BTreeMap<TopicPartition, i64>, ConsumerError> {
        let core = &self.inner.core;
        let questions = partitions
            .iter()
            .map(|p| (p.clone(), as_timestamp(end, core.cluster.clock().wall_ms())))
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
            self.log_ends("end_offsets(..)", partitions, Landmark::Latest)
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
            self.log_ends("beginning_offsets(..)", partitions, Landmark::Earliest)
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

/// What a refused commit is to the application.
fn refused(member: &GroupMetadata, failure: CommitFailure) -> ConsumerError {
    let group = member.group_id.clone();
    match failure {
        CommitFailure::Other(error) => error,
        CommitFailure::Membership(ErrorCode::REBALANCE_IN_PROGRESS) => {
            ConsumerError::CommitDuringRebalance { group }
        }
        CommitFailure::Membership(ErrorCode::FENCED_INSTANCE_ID) => ConsumerError::InstanceFenced {
            group,
            instance: member.group_instance_id.clone().unwrap_or_default(),
            member_id: member.member_id.clone(),
        },
        CommitFailure::Membership(code) => ConsumerError::CommitFenced {
            group,
            generation: member.generation_id,
            code,
        },
    }
}
