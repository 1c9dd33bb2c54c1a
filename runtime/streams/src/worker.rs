//! A worker: it owns tasks, sends records through them, and commits.
//!
//! ```text
//!  reader ──control──▶ worker ──outputs──▶ producer
//!         ──records──▶   │
//!         ◀──rewind──────┘ (after an abort: back to the committed offsets)
//! ```
//!
//! Invariants: control goes before records; a batch of an older session is dropped; outputs are
//! sent after their record was processed whole; nothing of a partition is committed after it was
//! given away.
//! Never: fetches, heartbeats, or waits for anything but the producer while it holds a record.

mod output;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_client::consumer::{Consumer, PartitionRecords};
use millstream_client::{GroupMetadata, OffsetAndMetadata, Producer};
use millstream_protocol::TopicPartition;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::commit::{Open, Rewind};
use crate::config::{Guarantee, StreamsConfig};
use crate::error::StreamsError;
use crate::pace::Pace;
use crate::progress::ProgressLog;
use crate::record::SourceRecord;
use crate::task::{GlobalStores, Outcome, Task, TaskEvent, TaskId, TaskState};
use crate::topology::Topology;

pub(crate) use output::SizeLimits;

/// A partition as it is handed to a worker.
#[derive(Debug, Clone)]
pub(crate) struct Handover {
    pub(crate) partition: TopicPartition,
    /// Numbers the hand-overs of a partition; batches carry it.
    pub(crate) session: u64,
    /// Stream time of the last commit.
    pub(crate) stream_time: i64,
    /// Where the partition begins, where nothing was committed and that is not offset 0: the
    /// position itself is worth a commit then, or an emptied partition would never be caught up.
    pub(crate) begins_at: Option<i64>,
    /// Whether the group has read nothing of it yet.
    pub(crate) unread: bool,
}

/// What the reader tells a worker, ahead of any records.
#[derive(Debug)]
pub(crate) enum Control {
    /// These partitions are the worker's, under this membership.
    Assigned {
        handovers: Vec<Handover>,
        group: GroupMetadata,
    },
    /// Commit what was processed of these, then give them up and answer.
    Revoked {
        partitions: Vec<TopicPartition>,
        done: oneshot::Sender<()>,
    },
    /// These are somebody else's already: forget what was not committed.
    Lost { partitions: Vec<TopicPartition> },
    /// Commit everything and end.
    Stop,
}

/// Records of one partition, under the session in which they were fetched.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) session: u64,
    pub(crate) records: PartitionRecords,
}

struct Owned {
    session: u64,
    task: Task,
    /// As in the hand-over, until the first batch.
    unread: bool,
    /// Of the last batch.
    leader_epoch: Option<i32>,
}

pub(crate) struct Worker {
    pub(crate) config: Arc<StreamsConfig>,
    pub(crate) topology: Topology,
    pub(crate) stores: GlobalStores,
    pub(crate) producer: Producer,
    pub(crate) consumer: Consumer,
    pub(crate) control: mpsc::UnboundedReceiver<Control>,
    pub(crate) records: mpsc::Receiver<Batch>,
    pub(crate) rewinds: mpsc::UnboundedSender<Rewind>,
    pub(crate) progress: ProgressLog,
    limits: SizeLimits,
    tasks: BTreeMap<TopicPartition, Owned>,
    group: Option<GroupMetadata>,
    open: Open,
    committed_at: Instant,
    /// How many records may go into one transaction; shrinks where they do not fit into its
    /// timeout.
    records_max: u64,
    /// Rewinds since the last commit.
    rewinds_in_a_row: u32,
    /// How long the record that began the open transaction took.
    first_took: Duration,
    /// A record that alone took longer than a transaction may last.
    too_slow: Option<(TopicPartition, i64)>,
}

/// A worker that has gone back this often without a commit in between meets a fault that going back
/// does not mend.
const REWINDS_MAX: u32 = 20;

/// The channels between a worker and the reader.
pub(crate) struct Channels {
    pub(crate) control: mpsc::UnboundedReceiver<Control>,
    pub(crate) records: mpsc::Receiver<Batch>,
    pub(crate) rewinds: mpsc::UnboundedSender<Rewind>,
}

/// What a batch led to.
enum Step {
    Going,
    /// The transaction has to be given up; the tasks start again from the last commit.
    Abort(StreamsError),
}

impl Worker {
    pub(crate) fn new(
        config: Arc<StreamsConfig>,
        topology: Topology,
        stores: GlobalStores,
        (producer, consumer): (Producer, Consumer),
        channels: Channels,
        (progress, limits): (ProgressLog, SizeLimits),
    ) -> Self {
        let Channels {
            control,
            records,
            rewinds,
        } = channels;
        Self {
            config,
            topology,
            stores,
            producer,
            consumer,
            control,
            records,
            rewinds,
            progress,
            limits,
            tasks: BTreeMap::new(),
            group: None,
            open: Open::default(),
            committed_at: Instant::now(),
            records_max: u64::MAX,
            rewinds_in_a_row: 0,
            first_took: Duration::ZERO,
            too_slow: None,
        }
    }

    /// Works until it is told to stop.
    ///
    /// # Errors
    /// What ends the instance: fencing, a poison record under
    /// [`Fail`](crate::PoisonPolicy::Fail), a failing operator, a transaction that cannot finish
    /// within its timeout, a broker that stays away longer than the delivery timeout.
    pub(crate) async fn run(mut self) -> Result<(), StreamsError> {
        let outcome = self.work().await;
        if outcome.is_err() {
            // What is open is not committed; whoever comes next starts from the last commit.
            let _ = self.give_up().await;
        }
        outcome
    }

    async fn work(&mut self) -> Result<(), StreamsError> {
        loop {
            let due = self.committed_at + self.config.commit_interval;
            tokio::select! {
                biased;
                control = self.control.recv() => match control {
                    None | Some(Control::Stop) => return self.last_commit().await,
                    Some(control) => self.on_control(control).await?,
                },
                () = tokio::time::sleep_until(due), if self.open.is_dirty() => self.commit().await?,
                batch = self.records.recv() => match batch {
                    None => return self.last_commit().await,
                    Some(batch) => self.on_batch(batch).await?,
                },
            }
        }
    }

    /// The commit before the end. Where it is refused, what was processed is aborted, and the
    /// caller hears of it: the next start does it again.
    async fn last_commit(&mut self) -> Result<(), StreamsError> {
        let rewinds = self.rewinds_in_a_row;
        self.commit().await?;
        if self.rewinds_in_a_row > rewinds {
            return Err(StreamsError::LastCommit);
        }
        Ok(())
    }

    async fn on_control(&mut self, control: Control) -> Result<(), StreamsError> {
        match control {
            Control::Assigned { handovers, group } => {
                // A partition comes from its committed offset. What is open of it is not part of
                // that, so it must not be committed any more.
                if handovers.iter().any(|h| self.open.touches(&h.partition)) {
                    self.abort_and_rewind(None, None).await?;
                }
                self.group = Some(group);
                for handover in handovers {
                    self.take_over(handover)?;
                }
            }
            Control::Revoked { partitions, done } => {
                for partition in &partitions {
                    if let Some(owned) = self.tasks.get_mut(partition) {
                        owned.task.on(TaskEvent::Revoked)?;
                    }
                }
                self.commit().await?;
                for partition in partitions {
                    self.close(&partition)?;
                }
                // The reader may have given up waiting; the partitions are closed all the same.
                let _ = done.send(());
            }
            Control::Lost { partitions } => {
                let touched = partitions.iter().any(|p| self.open.touches(p));
                for partition in &partitions {
                    self.close(partition)?;
                }
                if touched {
                    self.abort_and_rewind(None, None).await?;
                }
            }
            Control::Stop => {}
        }
        Ok(())
    }

    fn take_over(&mut self, handover: Handover) -> Result<(), StreamsError> {
        let Handover {
            partition,
            session,
            stream_time,
            begins_at,
            unread,
        } = handover;
        // Where nothing was read yet, the partition may begin elsewhere meanwhile.
        self.close(&partition)?;
        let sources = &self.topology.inner.sources;
        let Some(subtopology) = sources.iter().position(|s| s.topic == partition.topic) else {
            return Err(StreamsError::Bug {
                what: format!("{partition} was assigned, the topology does not read it"),
            });
        };
        let Some(source) = sources.get(subtopology) else {
            return Ok(());
        };
        let chain = (source.chain)(&self.stores);
        let id = TaskId {
            subtopology,
            partition: partition.partition,
        };
        let mut task = Task::new(id, partition.clone(), chain, stream_time);
        task.on(TaskEvent::Assigned)?;
        let owned = Owned {
            session,
            task,
            unread,
            leader_epoch: None,
        };
        self.tasks.insert(partition.clone(), owned);
        match begins_at {
            Some(offset) => self.advance(&partition, offset),
            None => Ok(()),
        }
    }

    fn close(&mut self, partition: &TopicPartition) -> Result<(), StreamsError> {
        self.end_task(partition, TaskEvent::Closed)
    }

    fn end_task(&mut self, partition: &TopicPartition, how: TaskEvent) -> Result<(), StreamsError> {
        if let Some(mut owned) = self.tasks.remove(partition) {
            // A task that was drained is closed by its last commit.
            if owned.task.state() != TaskState::Closed {
                owned.task.on(how)?;
            }
        }
        Ok(())
    }

    async fn on_batch(&mut self, batch: Batch) -> Result<(), StreamsError> {
        let partition = batch.records.topic_partition.clone();
        let current = self
            .tasks
            .get(&partition)
            .is_some_and(|owned| owned.session == batch.session);
        if !current {
            return Ok(());
        }
        match self.process(&partition, batch.records).await? {
            Step::Going => {}
            Step::Abort(cause) => {
                tracing::warn!(%partition, %cause, "transaction given up, going back to the last commit");
                self.abort_and_rewind(None, Some(cause)).await?;
            }
        }
        if self.config.placement == crate::Placement::Runtime {
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Sends a batch through its task, committing on the way where the interval or the
    /// transaction's size asks for it.
    async fn process(
        &mut self,
        partition: &TopicPartition,
        batch: PartitionRecords,
    ) -> Result<Step, StreamsError> {
        let PartitionRecords {
            records,
            next_offset,
            leader_epoch,
            ..
        } = batch;
        if let Some(owned) = self.tasks.get_mut(partition) {
            owned.unread = false;
            owned.leader_epoch = leader_epoch;
        }
        let mut pace = Pace::new();
        for record in records {
            let offset = record.offset;
            let record = SourceRecord {
                offset,
                timestamp: record.timestamp,
                key: record.key,
                value: record.value,
                headers: record.headers,
            };
            if let Err(cause) = self.process_one(partition, record).await {
                return Ok(Step::Abort(recoverable(cause)?));
            }
            if pace.is_check_due(self.open.records >= self.records_max) {
                let now = Instant::now();
                pace.checked(now);
                self.check_timeout(partition, offset, now)?;
                let full = self.open.records >= self.records_max;
                if full || now >= self.committed_at + self.config.commit_interval {
                    self.commit().await?;
                    let kept = self
                        .tasks
                        .get(partition)
                        .is_some_and(|o| o.task.next_offset.is_some());
                    if !kept {
                        // The commit failed and the task was rewound; the rest of the batch comes
                        // again.
                        return Ok(Step::Going);
                    }
                }
            }
        }
        self.advance(partition, next_offset)?;
        Ok(Step::Going)
    }

    async fn process_one(
        &mut self,
        partition: &TopicPartition,
        record: SourceRecord,
    ) -> Result<(), StreamsError> {
        let began = if self.open.is_dirty() {
            None
        } else {
            Some(self.begin()?)
        };
        let Some(owned) = self.tasks.get_mut(partition) else {
            return Ok(());
        };
        let mut outcome = owned.task.process(&record)?;
        if let Some(began) = began {
            self.first_took = began.elapsed();
        }
        owned.task.next_offset = Some(record.offset + 1);
        self.open.read(partition, record.offset + 1);
        if let Some(oversize) = self.oversize_output(partition).await {
            outcome = oversize;
        }
        match outcome {
            Outcome::Processed => self.send_collected(partition).await,
            Outcome::Poison { operator, cause } => {
                self.on_poison(partition, record, &operator, cause).await
            }
        }
    }

    /// Begins a transaction: a note in the producer, no request.
    fn begin(&mut self) -> Result<Instant, StreamsError> {
        if self.config.guarantee == Guarantee::ExactlyOnce {
            self.producer.begin()?;
        }
        let now = Instant::now();
        self.first_took = Duration::ZERO;
        self.open.begin(now);
        Ok(now)
    }

    /// Control and aborted records at the end of a batch move the position as well: a job that
    /// stopped at the last data record would never be seen to reach the end of its input.
    fn advance(
        &mut self,
        partition: &TopicPartition,
        next_offset: i64,
    ) -> Result<(), StreamsError> {
        let Some(owned) = self.tasks.get_mut(partition) else {
            return Ok(());
        };
        if owned.task.next_offset.is_none_or(|next| next < next_offset) {
            owned.task.next_offset = Some(next_offset);
            if !self.open.is_dirty() {
                self.begin()?;
            }
            self.open.moved(partition, next_offset);
        }
        Ok(())
    }

    /// A transaction that outlives its timeout is aborted by the coordinator and would be tried for
    /// ever. So records are committed in smaller pieces, and one that alone takes too long is an
    /// error that names both numbers.
    fn check_timeout(
        &mut self,
        partition: &TopicPartition,
        offset: i64,
        now: Instant,
    ) -> Result<(), StreamsError> {
        let Some(age) = self.open.age(now) else {
            return Ok(());
        };
        let timeout = self.config.transaction_timeout;
        if self.config.guarantee != Guarantee::ExactlyOnce || age < timeout {
            return Ok(());
        }
        // Whatever else took the time, the broker or a stall, is no fault of the record. Also its
        // own processing may have been stopped half-way, the first time: a record that is alone in
        // its transaction and too slow again is too slow by itself.
        let took = self.first_took;
        let alone = self.open.records <= 1 && took >= timeout;
        let suspect = Some((partition.clone(), offset));
        if alone && self.too_slow == suspect {
            let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            return Err(StreamsError::TransactionTooLong {
                partition: partition.clone(),
                offset,
                took_ms: ms(took),
                timeout_ms: ms(timeout),
            });
        }
        if alone {
            self.too_slow = suspect;
        }
        self.records_max = (self.open.records / 2).max(1);
        Ok(())
    }

    /// Stage `commit`; see [`crate::commit`].
    async fn commit(&mut self) -> Result<(), StreamsError> {
        let began = Instant::now();
        self.committed_at = began;
        if !self.open.is_dirty() {
            return Ok(());
        }
        let offsets = self.offsets_to_commit();
        let Some(group) = &self.group else {
            return Err(StreamsError::Bug {
                what: "a commit without a membership".to_owned(),
            });
        };
        let committed = match self.config.guarantee {
            Guarantee::ExactlyOnce => {
                crate::commit::transaction(&self.producer, group, &offsets).await
            }
            Guarantee::AtLeastOnce => {
                crate::commit::flush_then_offsets(&self.producer, &self.consumer, &offsets).await
            }
        };
        let ended = Instant::now();
        // The interval begins here: counted from the start of a commit that takes longer than it,
        // the next one would be due at the next record.
        self.committed_at = ended;
        match committed {
            Ok(()) => {
                let took = ended - began;
                let age = self.open.age(ended).unwrap_or_default();
                let report = self
                    .open
                    .take_report(&self.topology, &self.config.poison, took);
                self.progress.committed(report);
                self.rewinds_in_a_row = 0;
                if age < self.config.transaction_timeout / 4 {
                    self.records_max = self.records_max.saturating_mul(2);
                }
                for owned in self.tasks.values_mut() {
                    owned.task.on(TaskEvent::Committed)?;
                }
                Ok(())
            }
            Err(cause) => {
                let stale = crate::commit::stale_generation(&cause, self.group.as_ref());
                let cause = recoverable(cause)?;
                tracing::warn!(%cause, "commit refused, going back to the last commit");
                self.abort_and_rewind(stale, Some(cause)).await
            }
        }
    }

    fn offsets_to_commit(&self) -> Vec<(TopicPartition, OffsetAndMetadata)> {
        let workers = self.config.threads;
        let offsets = self.open.offsets().map(|(partition, offset)| {
            let owned = self.tasks.get(partition);
            let metadata = crate::commit::Metadata {
                workers,
                stream_time: owned.map_or(-1, |owned| owned.task.stream_time()),
                unread: owned.is_some_and(|owned| owned.unread),
            };
            let committed = OffsetAndMetadata {
                offset,
                leader_epoch: owned.and_then(|owned| owned.leader_epoch),
                metadata: metadata.encode(),
            };
            (partition.clone(), committed)
        });
        offsets.collect()
    }

    /// Aborts what is open and starts all tasks again from their last commit. With
    /// `stale_generation` the reader hands the partitions over when the group has moved past that
    /// generation.
    async fn abort_and_rewind(
        &mut self,
        stale_generation: Option<i32>,
        cause: Option<StreamsError>,
    ) -> Result<(), StreamsError> {
        self.give_up().await?;
        self.rewinds_in_a_row += 1;
        if let Some(cause) = cause.filter(|_| self.rewinds_in_a_row > REWINDS_MAX) {
            return Err(cause);
        }
        if self.rewinds_in_a_row > 1 {
            // A topic that takes less than it did refuses the same batch for ever.
            self.limits.refresh_soon().await;
        }
        let pause = Duration::from_millis(5) * self.rewinds_in_a_row.pow(2);
        tokio::time::sleep(pause).await;
        self.progress.rewound();
        let partitions: Vec<(TopicPartition, u64)> = self
            .tasks
            .iter()
            .map(|(partition, owned)| (partition.clone(), owned.session))
            .collect();
        for (partition, _) in &partitions {
            self.end_task(partition, TaskEvent::Aborted)?;
        }
        // Where the reader is gone the instance is stopping, and nothing is to be handed over any
        // more.
        let _ = self.rewinds.send(Rewind {
            partitions,
            stale_generation,
        });
        Ok(())
    }

    async fn give_up(&mut self) -> Result<(), StreamsError> {
        let was_open = self.open.is_dirty();
        self.open = Open::default();
        if was_open && self.config.guarantee == Guarantee::ExactlyOnce {
            self.producer.abort().await?;
        }
        Ok(())
    }
}

/// An error that an abort and another try can mend is passed on as a value, any other ends the
/// worker.
fn recoverable(cause: StreamsError) -> Result<StreamsError, StreamsError> {
    if cause.is_abortable() {
        Ok(cause)
    } else {
        Err(cause)
    }
}
