//! The reader: the instance's one member of the group. It fetches, and hands partitions and batches
//! to the workers.
//!
//! Invariants: a partition has one worker and one session at a time; a full queue pauses the
//! partitions of its worker and of no other; a revoked partition is acknowledged when its worker
//! has committed and closed it.
//! Never: processes a record, or waits for a worker except to give a partition up.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millstream_client::OffsetAndMetadata;
use millstream_client::consumer::{
    AutoOffsetReset, Consumer, ConsumerError, ConsumerRecords, RebalanceListener,
};
use millstream_protocol::TopicPartition;
use tokio::sync::{mpsc, oneshot, watch};

use crate::commit::{Metadata, Rewind};
use crate::error::StreamsError;
use crate::worker::{Batch, Control, Handover};

/// How long a poll waits where nothing comes; requests of workers interrupt it.
const POLL_WAIT: Duration = Duration::from_millis(500);

/// How long the broker is asked for what only makes an error's text better.
const EXPLAIN_PATIENCE: Duration = Duration::from_secs(5);

/// A worker seen from the reader.
#[derive(Debug)]
pub(crate) struct WorkerHandle {
    pub(crate) control: mpsc::UnboundedSender<Control>,
    pub(crate) records: mpsc::Sender<Batch>,
}

/// What reader and rebalance listener share.
#[derive(Debug)]
struct Ownership {
    workers: Vec<mpsc::UnboundedSender<Control>>,
    state: Mutex<OwnershipState>,
}

#[derive(Debug, Default)]
struct OwnershipState {
    /// Worker and session of each partition that was handed over.
    owners: BTreeMap<TopicPartition, (usize, u64)>,
    /// Partitions that were assigned and wait to be handed over.
    assigned: Vec<TopicPartition>,
    /// Partitions whose worker asked for its last commit again, with the generation that has to be
    /// over first.
    rewinding: Vec<Rewind>,
}

impl Ownership {
    fn lock(&self) -> std::sync::MutexGuard<'_, OwnershipState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes partitions out of every list and answers the ones that workers hold, by worker.
    fn take(&self, partitions: &[TopicPartition]) -> BTreeMap<usize, Vec<TopicPartition>> {
        let mut state = self.lock();
        state
            .assigned
            .retain(|partition| !partitions.contains(partition));
        let mut by_worker: BTreeMap<usize, Vec<TopicPartition>> = BTreeMap::new();
        for partition in partitions {
            if let Some((worker, _)) = state.owners.remove(partition) {
                by_worker.entry(worker).or_default().push(partition.clone());
            }
        }
        by_worker
    }

    /// Takes what is to be handed over now: partitions that were assigned, and those that a worker
    /// asked for again and that are still in the session in which it had them. A rewind that waits
    /// for the end of a generation stays.
    fn take_ready(&self, generation: i32) -> Vec<TopicPartition> {
        let mut state = self.lock();
        let (ready, later): (Vec<_>, Vec<_>) = std::mem::take(&mut state.rewinding)
            .into_iter()
            .partition(|rewind| rewind.stale_generation != Some(generation));
        state.rewinding = later;
        let mut partitions = std::mem::take(&mut state.assigned);
        let asked = ready.into_iter().flat_map(|rewind| rewind.partitions);
        for (partition, session) in asked {
            let owner = state.owners.get(&partition);
            if owner.is_some_and(|(_, current)| *current == session) {
                partitions.push(partition);
            }
        }
        partitions
    }
}

#[async_trait]
impl RebalanceListener for Ownership {
    async fn on_assigned(&self, _: &Consumer, partitions: &[TopicPartition]) {
        self.lock().assigned.extend_from_slice(partitions);
    }

    /// Every worker commits what it has of these and closes them, side by side; then they may go to
    /// somebody else.
    async fn on_revoked(&self, _: &Consumer, partitions: &[TopicPartition]) {
        let mut answers = Vec::new();
        for (worker, partitions) in self.take(partitions) {
            let (done, answer) = oneshot::channel();
            if let Some(control) = self.workers.get(worker) {
                // A worker that is gone has closed its tasks; its error ends the instance.
                let _ = control.send(Control::Revoked { partitions, done });
                answers.push(answer);
            }
        }
        for answer in answers {
            let _ = answer.await;
        }
    }

    async fn on_lost(&self, _: &Consumer, partitions: &[TopicPartition]) {
        for (worker, partitions) in self.take(partitions) {
            if let Some(control) = self.workers.get(worker) {
                let _ = control.send(Control::Lost { partitions });
            }
        }
    }
}

pub(crate) struct Reader {
    consumer: Consumer,
    workers: Vec<WorkerHandle>,
    ownership: Arc<Ownership>,
    rewinds: mpsc::UnboundedReceiver<Rewind>,
    /// Batches that did not fit into their worker's queue, by worker; while there are any, its
    /// partitions are paused.
    waiting: Vec<VecDeque<Batch>>,
    /// Where partitions begin of which the group has read nothing yet.
    unread: BTreeMap<TopicPartition, i64>,
    /// Where partitions began that were handed over again for that reason.
    began: BTreeMap<TopicPartition, i64>,
    next_session: u64,
    next_worker: usize,
}

impl Reader {
    /// Subscribes to the topics; partitions arrive with the first polls.
    pub(crate) async fn subscribe(
        consumer: Consumer,
        topics: Vec<String>,
        workers: Vec<WorkerHandle>,
        rewinds: mpsc::UnboundedReceiver<Rewind>,
    ) -> Result<Self, StreamsError> {
        let ownership = Arc::new(Ownership {
            workers: workers
                .iter()
                .map(|worker| worker.control.clone())
                .collect(),
            state: Mutex::default(),
        });
        let listener = Arc::clone(&ownership);
        consumer.subscribe_with(topics, listener)?;
        let waiting = workers.iter().map(|_| VecDeque::new()).collect();
        Ok(Self {
            consumer,
            workers,
            ownership,
            rewinds,
            waiting,
            unread: BTreeMap::new(),
            began: BTreeMap::new(),
            next_session: 0,
            next_worker: 0,
        })
    }

    /// Reads until `stop` turns true or something ends the instance.
    ///
    /// # Errors
    /// A membership that was fenced, offsets that cannot be read, a broker that stays away too
    /// long.
    pub(crate) async fn run(
        &mut self,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), StreamsError> {
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
                handed_over = self.hand_over() => handed_over?,
            }
            let polled = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
                rewind = self.rewinds.recv() => match rewind {
                    Some(rewind) => {
                        self.ownership.lock().rewinding.push(rewind);
                        continue;
                    }
                    None => return Ok(()),
                },
                worker = first_room(&self.workers, &self.waiting) => {
                    self.refill(worker)?;
                    continue;
                }
                polled = self.consumer.poll(POLL_WAIT) => polled,
            };
            match polled {
                Ok(polled) => self.route(polled)?,
                Err(error) if self.begins_elsewhere(&error) => {}
                Err(error) => return Err(self.explain(error).await),
            }
        }
    }

    /// Whether the error is none: the partition is still to be handed over, which says where it
    /// begins; or its log begins further on by now than when it was handed over, and nothing of it
    /// was read yet: then it is handed over again.
    fn begins_elsewhere(&mut self, error: &ConsumerError) -> bool {
        let (partition, offset) = match error {
            ConsumerError::OffsetOutOfRange {
                topic_partition,
                offset,
                ..
            } => (topic_partition, Some(offset)),
            ConsumerError::LogTruncation {
                topic_partition, ..
            } => (topic_partition, None),
            _ => return false,
        };
        if self.ownership.lock().assigned.contains(partition) {
            return true;
        }
        // Given up, or sought since: the error is of before. Several partitions fail at once, and
        // are handed over at once, but their errors come one a poll.
        let is_stuck = self.consumer.position(partition).is_none();
        if !is_stuck || !self.consumer.assignment().contains(partition) {
            return true;
        }
        let Some(offset) = offset.filter(|offset| self.unread.get(partition) == Some(offset))
        else {
            return false;
        };
        // The same place again is not in the log for another reason.
        if self.began.insert(partition.clone(), *offset) == Some(*offset) {
            return false;
        }
        tracing::info!(%partition, offset, "the log begins further on by now");
        self.ownership.lock().assigned.push(partition.clone());
        true
    }

    /// Says what the log holds where it is not the position.
    async fn explain(&self, error: ConsumerError) -> StreamsError {
        let partition = match &error {
            ConsumerError::OffsetOutOfRange {
                topic_partition, ..
            }
            | ConsumerError::LogTruncation {
                topic_partition, ..
            } => topic_partition.clone(),
            _ => return error.into(),
        };
        let asked = std::slice::from_ref(&partition);
        let both = async {
            let starts = self.consumer.beginning_offsets(asked).await?;
            Ok::<_, ConsumerError>((starts, self.consumer.end_offsets(asked).await?))
        };
        let found = tokio::time::timeout(EXPLAIN_PATIENCE, both).await;
        let (starts, ends) = found.ok().and_then(Result::ok).unwrap_or_default();
        let log_start = starts.get(&partition).copied().unwrap_or(-1);
        let log_end = ends.get(&partition).copied().unwrap_or(-1);
        match error {
            ConsumerError::OffsetOutOfRange { offset, .. } => StreamsError::OffsetOutOfRange {
                partition,
                offset,
                log_start,
                log_end,
            },
            ConsumerError::LogTruncation {
                offset,
                leader_epoch,
                divergent_offset,
                ..
            } => StreamsError::LogTruncation {
                partition,
                offset,
                leader_epoch,
                divergent_offset,
                log_end,
            },
            other => other.into(),
        }
    }

    /// Tells the workers to commit and end, and leaves the group as the membership demands.
    pub(crate) async fn close(self) -> Result<(), StreamsError> {
        self.consumer.close().await?;
        Ok(())
    }

    fn route(&mut self, polled: ConsumerRecords) -> Result<(), StreamsError> {
        for records in polled.partitions {
            let owner = self
                .ownership
                .lock()
                .owners
                .get(&records.topic_partition)
                .copied();
            // A partition that is being handed over is seeked first; what was fetched before is
            // fetched again.
            let Some((worker, session)) = owner else {
                continue;
            };
            self.unread.remove(&records.topic_partition);
            let partition = records.topic_partition.clone();
            let batch = Batch { session, records };
            let Some(queue) = self.waiting.get_mut(worker) else {
                continue;
            };
            let handle = self.workers.get(worker);
            let refused = if queue.is_empty() {
                handle.and_then(|handle| match handle.records.try_send(batch) {
                    Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => None,
                    Err(mpsc::error::TrySendError::Full(batch)) => Some(batch),
                })
            } else {
                Some(batch)
            };
            if let Some(batch) = refused {
                queue.push_back(batch);
                self.consumer.pause(&[partition])?;
            }
        }
        Ok(())
    }

    /// Moves waiting batches into the queue of a worker that has room again.
    fn refill(&mut self, worker: usize) -> Result<(), StreamsError> {
        let (Some(handle), Some(queue)) = (self.workers.get(worker), self.waiting.get_mut(worker))
        else {
            return Ok(());
        };
        while let Some(batch) = queue.pop_front() {
            match handle.records.try_send(batch) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(batch)) => {
                    queue.push_front(batch);
                    break;
                }
                Err(mpsc::error::TrySendError::Closed(_)) => queue.clear(),
            }
        }
        self.resume(worker)
    }

    fn resume(&self, worker: usize) -> Result<(), StreamsError> {
        if self.waiting.get(worker).is_some_and(VecDeque::is_empty) {
            let state = self.ownership.lock();
            let paused: Vec<TopicPartition> = state
                .owners
                .iter()
                .filter(|(_, (owner, _))| *owner == worker)
                .map(|(partition, _)| partition.clone())
                .collect();
            self.consumer.resume(&paused)?;
        }
        Ok(())
    }

    /// Hands assigned and rewound partitions to workers, from their committed offsets on.
    async fn hand_over(&mut self) -> Result<(), StreamsError> {
        let group = self.consumer.group_metadata()?;
        let partitions = self.ownership.take_ready(group.generation_id);
        if partitions.is_empty() {
            return Ok(());
        }
        // Waits until no transaction has an undecided offset there (require_stable): what the
        // predecessor of this owner had under way is decided before the first record is read.
        let committed = self.consumer.committed(&partitions).await?;
        let decode = |found: &OffsetAndMetadata| Metadata::decode(&found.metadata);
        // What was committed before anything was read only says where the log began.
        let of_records = |partition: &TopicPartition| {
            let found = committed.get(partition).and_then(Option::as_ref);
            found.filter(|found| !decode(found).is_some_and(|metadata| metadata.unread))
        };
        let unread: Vec<TopicPartition> = partitions
            .iter()
            .filter(|partition| of_records(partition).is_none())
            .cloned()
            .collect();
        let beginnings = self.beginnings(&unread, &committed).await?;
        let mut handovers: BTreeMap<usize, Vec<Handover>> = BTreeMap::new();
        for partition in partitions {
            let known = committed.get(&partition).and_then(Option::as_ref);
            let beginning = beginnings.get(&partition).copied();
            match (beginning, known) {
                (Some(offset), _) => {
                    self.consumer.seek(&partition, offset)?;
                    self.unread.insert(partition.clone(), offset);
                }
                (None, known) => {
                    let offset = known.cloned().unwrap_or_default();
                    self.consumer.seek(&partition, offset)?;
                    self.unread.remove(&partition);
                }
            }
            let stream_time = known
                .and_then(decode)
                .map_or(-1, |metadata| metadata.stream_time);
            let (worker, session) = self.own(&partition);
            handovers.entry(worker).or_default().push(Handover {
                partition,
                session,
                stream_time,
                begins_at: beginning.filter(|at| known.map_or(0, |known| known.offset) < *at),
                unread: beginning.is_some(),
            });
        }
        for (worker, handovers) in handovers {
            if let Some(queue) = self.waiting.get_mut(worker) {
                queue.retain(|batch| {
                    !handovers
                        .iter()
                        .any(|h| h.partition == batch.records.topic_partition)
                });
            }
            if let Some(handle) = self.workers.get(worker) {
                let _ = handle.control.send(Control::Assigned {
                    handovers,
                    group: group.clone(),
                });
            }
            self.resume(worker)?;
        }
        Ok(())
    }

    /// Where partitions begin of which nothing was read yet. One that was committed stays, unless
    /// the log begins further on by now.
    async fn beginnings(
        &self,
        partitions: &[TopicPartition],
        committed: &BTreeMap<TopicPartition, Option<OffsetAndMetadata>>,
    ) -> Result<BTreeMap<TopicPartition, i64>, StreamsError> {
        let consumer = &self.consumer;
        let known = |partition: &TopicPartition| {
            let found = committed.get(partition).and_then(Option::as_ref);
            found.map(|found| found.offset)
        };
        let (again, first): (Vec<_>, Vec<_>) = partitions
            .iter()
            .cloned()
            .partition(|partition| known(partition).is_some());
        let mut found = match consumer.config().auto_offset_reset {
            AutoOffsetReset::Latest => consumer.end_offsets(&first).await?,
            AutoOffsetReset::ByDuration(ago) => {
                let wall_ms = consumer.config().client.clock.wall_ms();
                let since = wall_ms - i64::try_from(ago.as_millis()).unwrap_or(wall_ms);
                let times: Vec<_> = first.iter().map(|p| (p.clone(), since.max(0))).collect();
                let mut ends = consumer.end_offsets(&first).await?;
                for (partition, young) in consumer.offsets_for_times(&times).await? {
                    ends.extend(young.map(|young| (partition, young.offset)));
                }
                ends
            }
            _ => consumer.beginning_offsets(&first).await?,
        };
        for (partition, start) in consumer.beginning_offsets(&again).await? {
            let at = known(&partition).unwrap_or(0).max(start);
            found.insert(partition, at);
        }
        Ok(found)
    }

    /// Gives the partition a new session, with its worker where it has one, else with the next in
    /// turn.
    fn own(&mut self, partition: &TopicPartition) -> (usize, u64) {
        let mut state = self.ownership.lock();
        let worker = state.owners.get(partition).map_or_else(
            || {
                let worker = self.next_worker % self.workers.len();
                self.next_worker += 1;
                worker
            },
            |(worker, _)| *worker,
        );
        self.next_session += 1;
        state
            .owners
            .insert(partition.clone(), (worker, self.next_session));
        (worker, self.next_session)
    }
}

/// Waits until a worker with waiting batches has room; for ever where no batch waits.
async fn first_room(workers: &[WorkerHandle], waiting: &[VecDeque<Batch>]) -> usize {
    let full: Vec<_> = workers
        .iter()
        .zip(waiting)
        .enumerate()
        .filter(|(_, (_, queue))| !queue.is_empty())
        .map(|(at, (worker, _))| {
            Box::pin(async move {
                // A worker that is gone takes nothing any more; its end is noticed elsewhere.
                if worker.records.reserve().await.is_err() {
                    std::future::pending::<()>().await;
                }
                at
            })
        })
        .collect();
    if full.is_empty() {
        return std::future::pending().await;
    }
    futures::future::select_all(full).await.0
}
