//! The `accumulate` stage: records wait here, in batches by partition, until the sender takes them.
//!
//! Invariants: batches of a partition leave in the order in which their records came; the memory
//! of batches that are not resolved never exceeds `buffer.memory` (one batch is always allowed);
//! a record is in exactly one batch.
//! Never: knows sequences, producer ids or brokers; a batch is stamped when it leaves.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use millstream_protocol::{Compression, RecordBatch, RecordBatchBuilder, TopicPartition};
use rustc_hash::FxHashMap;

use super::delivery::BatchState;
use super::partitioner::{Sticky, partition_of_key};
use crate::clock::Clock;
use crate::error::UsageError;

/// Headers as the builder takes them.
pub(super) type HeaderSlice<'a> = &'a [(&'a str, Option<&'a [u8]>)];

/// A record on its way in, by reference.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming<'a> {
    pub(super) topic: &'a Arc<str>,
    pub(super) partition: Option<i32>,
    pub(super) key: Option<&'a [u8]>,
    pub(super) value: Option<&'a [u8]>,
    pub(super) headers: HeaderSlice<'a>,
    pub(super) timestamp: i64,
}

/// Where a record went.
#[derive(Debug)]
pub(super) struct Appended<'a> {
    pub(super) partition: i32,
    pub(super) batch: &'a Arc<BatchState>,
    pub(super) index: i32,
    /// Whether the sender has something new to look at.
    pub(super) wake: bool,
}

/// Why a record did not go in.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The topic's partitions are not known yet.
    UnknownTopic,
    /// The topic has fewer partitions, as far as is known.
    UnknownPartition { partitions: i32 },
    /// `buffer.memory` has not this much left.
    Full { needed_bytes: usize },
    /// The call is wrong.
    Usage(UsageError),
}

/// The numbers that the accumulator goes by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) batch_size: usize,
    pub(super) buffer_memory: usize,
    pub(super) max_request_size: usize,
    pub(super) linger_ms: i64,
    pub(super) compression: Compression,
    pub(super) seed: u64,
}

/// A batch that is not stamped yet.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) builder: RecordBatchBuilder,
    pub(super) state: Arc<BatchState>,
    pub(super) created_ms: i64,
    sealed: bool,
}

#[derive(Debug)]
struct PartitionQueue {
    topic_partition: TopicPartition,
    /// Oldest first; only the last one may still grow.
    batches: VecDeque<Batch>,
}

#[derive(Debug)]
struct TopicEntry {
    /// Indices into `Accumulator::partitions`, by partition number; kept when a topic is made again
    /// with fewer.
    partitions: Vec<usize>,
    /// How many the topic has, as far as is known; 0 where that was forgotten.
    count: i32,
    /// When a batch was begun for it, or it was first looked at.
    used_at_ms: Option<i64>,
    sticky: Sticky,
}

/// All that waits.
#[derive(Debug)]
pub(super) struct Accumulator {
    limits: Limits,
    topics: FxHashMap<Arc<str>, TopicEntry>,
    partitions: Vec<PartitionQueue>,
    /// Partitions with batches.
    active: BTreeSet<usize>,
    /// Batches that are not resolved, here or with the sender.
    incomplete: BTreeMap<u64, Arc<BatchState>>,
    next_batch_id: u64,
    memory_used: usize,
    /// Why records are refused, if they are.
    gate: Option<UsageError>,
    /// Senders of records that wait for space: batches leave without lingering then.
    pub(super) waiting_for_space: usize,
}

impl Accumulator {
    pub(super) fn new(limits: Limits, gate: Option<UsageError>) -> Self {
        Self {
            limits,
            topics: FxHashMap::default(),
            partitions: Vec::new(),
            active: BTreeSet::new(),
            incomplete: BTreeMap::new(),
            next_batch_id: 0,
            memory_used: 0,
            gate,
            waiting_for_space: 0,
        }
    }

    /// Opens the gate, or closes it with the error that senders of records get.
    pub(super) fn set_gate(&mut self, gate: Option<UsageError>) {
        self.gate = gate;
    }

    pub(super) fn gate(&self) -> Option<&UsageError> {
        self.gate.as_ref()
    }

    pub(super) fn knows(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some_and(|entry| entry.count > 0)
    }

    pub(super) fn knows_any(&self) -> bool {
        self.topics.values().any(|entry| entry.count > 0)
    }

    /// Whether a batch of this size fits.
    pub(super) fn has_room(&self, needed_bytes: usize) -> bool {
        self.memory_used == 0 || self.memory_used + needed_bytes <= self.limits.buffer_memory
    }

    pub(super) fn memory_used(&self) -> usize {
        self.memory_used
    }

    /// Takes over how many partitions a topic has: fewer than before, where it was made again.
    pub(super) fn set_partitions(&mut self, topic: &Arc<str>, count: i32) {
        let seed = self.limits.seed ^ self.topics.len() as u64;
        let entry = self
            .topics
            .entry(Arc::clone(topic))
            .or_insert_with(|| TopicEntry {
                partitions: Vec::new(),
                count: 0,
                used_at_ms: None,
                sticky: Sticky::new(seed),
            });
        entry.count = count;
        for partition in i32::try_from(entry.partitions.len()).unwrap_or(i32::MAX)..count {
            entry.partitions.push(self.partitions.len());
            self.partitions.push(PartitionQueue {
                topic_partition: TopicPartition::new(Arc::clone(topic), partition),
                batches: VecDeque::new(),
            });
        }
    }

    /// Topics whose partitions are known.
    pub(super) fn topics(&self) -> Vec<Arc<str>> {
        let known = self.topics.iter().filter(|(_, entry)| entry.count > 0);
        let mut names: Vec<_> = known.map(|(name, _)| Arc::clone(name)).collect();
        names.sort_unstable();
        names
    }

    /// Topics with records under way, or used within the last `idle_ms`. How many partitions the
    /// others have is forgotten, and asked for before the next record; the order of their sequences
    /// is not.
    pub(super) fn topics_in_use(&mut self, now_ms: i64, idle_ms: i64) -> Vec<Arc<str>> {
        let under_way: BTreeSet<&Arc<str>> = self
            .incomplete
            .values()
            .map(|batch| &batch.topic_partition.topic)
            .collect();
        for (name, entry) in &mut self.topics {
            let used_at_ms = *entry.used_at_ms.get_or_insert(now_ms);
            if now_ms.saturating_sub(used_at_ms) >= idle_ms && !under_way.contains(name) {
                entry.count = 0;
                entry.used_at_ms = None;
            }
        }
        self.topics()
    }

    /// Appends a record.
    pub(super) fn append(
        &mut self,
        record: &Incoming<'_>,
        clock: &Clock,
    ) -> Result<Appended<'_>, Refusal> {
        if let Some(error) = &self.gate {
            return Err(Refusal::Usage(error.clone()));
        }
        let size =
            RecordBatchBuilder::record_size_bytes_max(record.key, record.value, record.headers);
        let entry = self
            .topics
            .get_mut(record.topic)
            .filter(|entry| entry.count > 0)
            .ok_or(Refusal::UnknownTopic)?;
        let (partition, index) = entry.place(record)?;
        let queue = &mut self.partitions[index];
        let fits = queue.batches.back().is_some_and(|batch| {
            !batch.sealed && batch.builder.would_fit(size, self.limits.batch_size)
        });
        if !fits {
            self.limits.check_size(record.topic, size)?;
            let reserved = self.limits.batch_size.max(size + RecordBatch::HEADER_BYTES);
            let over = self.memory_used + reserved > self.limits.buffer_memory;
            if over && self.memory_used > 0 {
                return Err(Refusal::Full {
                    needed_bytes: reserved,
                });
            }
            if let Some(batch) = queue.batches.back_mut() {
                batch.sealed = true;
            }
            self.memory_used += reserved;
            let id = self.next_batch_id;
            self.next_batch_id += 1;
            let state = Arc::new(BatchState::new(id, queue.topic_partition.clone(), reserved));
            self.incomplete.insert(id, Arc::clone(&state));
            self.active.insert(index);
            entry.used_at_ms = Some(clock.now_ms());
            queue.batches.push_back(Batch {
                builder: RecordBatchBuilder::with_capacity(self.limits.compression, reserved),
                state,
                created_ms: clock.now_ms(),
                sealed: false,
            });
        }
        if record.partition.is_none() && record.key.is_none() {
            entry
                .sticky
                .count(size, self.limits.batch_size, entry.count);
        }
        let Some(batch) = queue.batches.back_mut() else {
            return Err(Refusal::Full { needed_bytes: 0 });
        };
        let offset =
            batch
                .builder
                .append(record.timestamp, record.key, record.value, record.headers);
        Ok(Appended {
            partition,
            batch: &batch.state,
            index: offset,
            wake: !fits,
        })
    }

    /// Partitions whose first batch may leave at `now_ms`, and when the next one may.
    pub(super) fn ready(&self, now_ms: i64) -> (Vec<usize>, Option<i64>) {
        let mut ready = Vec::new();
        let mut next: Option<i64> = None;
        for index in &self.active {
            let Some(batch) = self.partitions[*index].batches.front() else {
                continue;
            };
            let due_ms = batch.created_ms.saturating_add(self.limits.linger_ms);
            if batch.sealed || due_ms <= now_ms || self.waiting_for_space > 0 {
                ready.push(*index);
            } else {
                next = Some(next.map_or(due_ms, |next| next.min(due_ms)));
            }
        }
        (ready, next)
    }

    /// Takes the first batch of a partition, ready or not.
    pub(super) fn take(&mut self, index: usize) -> Option<Batch> {
        let queue = self.partitions.get_mut(index)?;
        let batch = queue.batches.pop_front();
        if queue.batches.is_empty() {
            self.active.remove(&index);
        }
        batch
    }

    /// Makes the first batch of a partition one that cannot be built.
    #[cfg(test)]
    pub(super) fn spoil_head(&mut self, index: usize) {
        let head = self.partitions[index].batches.front_mut();
        head.expect("a batch").builder.clear();
    }

    /// How much the first batch of a partition would take in a request.
    pub(super) fn head_size_bytes(&self, index: usize) -> usize {
        let head = self
            .partitions
            .get(index)
            .and_then(|queue| queue.batches.front());
        head.map_or(0, |batch| batch.builder.size_bytes())
    }

    pub(super) fn topic_partition(&self, index: usize) -> &TopicPartition {
        &self.partitions[index].topic_partition
    }

    pub(super) fn partition_count(&self) -> usize {
        self.partitions.len()
    }

    /// Seals every batch, so that all leave now and later records go elsewhere; gives all that is
    /// not resolved.
    pub(super) fn seal(&mut self) -> Vec<Arc<BatchState>> {
        for index in &self.active {
            if let Some(batch) = self.partitions[*index].batches.back_mut() {
                batch.sealed = true;
            }
        }
        self.incomplete.values().cloned().collect()
    }

    /// Batches that entered at or before `deadline_ms`, removed; and when the next one is due.
    pub(super) fn expire(&mut self, created_before_ms: i64) -> (Vec<Batch>, Option<i64>) {
        let mut expired = Vec::new();
        let mut oldest: Option<i64> = None;
        let active: Vec<usize> = self.active.iter().copied().collect();
        for index in active {
            loop {
                let head = self.partitions[index]
                    .batches
                    .front()
                    .map(|batch| batch.created_ms);
                let Some(created_ms) = head else { break };
                if created_ms > created_before_ms {
                    oldest = Some(oldest.map_or(created_ms, |oldest| oldest.min(created_ms)));
                    break;
                }
                expired.extend(self.take(index));
            }
        }
        (expired, oldest)
    }

    /// Removes everything that has not left.
    pub(super) fn drain_all(&mut self) -> Vec<Batch> {
        self.expire(i64::MAX).0
    }

    /// Makes the states of the parts that a batch is split into; its memory goes to the first.
    pub(super) fn split(&mut self, parent: &BatchState, parts: usize) -> Vec<Arc<BatchState>> {
        let mut states = Vec::with_capacity(parts);
        for part in 0..parts {
            let id = self.next_batch_id;
            self.next_batch_id += 1;
            let reserved = if part == 0 { parent.reserved_bytes } else { 0 };
            let topic_partition = parent.topic_partition.clone();
            let state = Arc::new(BatchState::new(id, topic_partition, reserved));
            if parent.is_uncounted() {
                state.mark_uncounted();
            }
            self.incomplete.insert(id, Arc::clone(&state));
            states.push(state);
        }
        self.incomplete.remove(&parent.id);
        states
    }

    /// Frees the memory of a batch. The caller resolves it, outside the lock.
    pub(super) fn release(&mut self, batch: &BatchState) {
        if self.incomplete.remove(&batch.id).is_some() {
            self.memory_used = self.memory_used.saturating_sub(batch.reserved_bytes);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.incomplete.is_empty()
    }
}

impl TopicEntry {
    /// Where a record goes: the partition, and its index in the accumulator.
    fn place(&mut self, record: &Incoming<'_>) -> Result<(i32, usize), Refusal> {
        let partitions = self.count;
        let partition = match (record.partition, record.key) {
            (Some(partition), _) => partition,
            (None, Some(key)) => partition_of_key(key, partitions),
            (None, None) => self.sticky.partition(partitions),
        };
        usize::try_from(partition)
            .ok()
            .filter(|_| partition < partitions)
            .and_then(|index| self.partitions.get(index).copied())
            .map(|index| (partition, index))
            .ok_or(Refusal::UnknownPartition { partitions })
    }
}

impl Limits {
    fn check_size(&self, topic: &Arc<str>, size: usize) -> Result<(), Refusal> {
        let size_bytes = size + RecordBatch::HEADER_BYTES;
        let (limit_bytes, setting) = if size_bytes > self.max_request_size {
            (self.max_request_size, "max.request.size")
        } else if size_bytes > self.buffer_memory {
            (self.buffer_memory, "buffer.memory")
        } else {
            return Ok(());
        };
        let topic = Arc::clone(topic);
        Err(Refusal::Usage(UsageError::RecordTooLarge {
            topic,
            size_bytes,
            limit_bytes,
            setting,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accumulator(batch_size: usize, buffer_memory: usize) -> (Accumulator, Arc<str>) {
        let limits = Limits {
            batch_size,
            buffer_memory,
            max_request_size: 1 << 20,
            linger_ms: 5,
            compression: Compression::None,
            seed: 1,
        };
        let mut accumulator = Accumulator::new(limits, None);
        let topic: Arc<str> = "orders".into();
        accumulator.set_partitions(&topic, 2);
        (accumulator, topic)
    }

    fn record<'a>(topic: &'a Arc<str>, value: &'a [u8]) -> Incoming<'a> {
        let partition = Some(1);
        Incoming {
            topic,
            partition,
            key: None,
            value: Some(value),
            headers: &[],
            timestamp: 1,
        }
    }

    // Rows 72 and 84.
    #[tokio::test(start_paused = true)]
    async fn a_batch_leaves_when_it_is_full_or_linger_is_over() {
        let (mut accumulator, topic) = accumulator(1000, 10_000);
        let clock = Clock::starting_at(100);
        let record = record(&topic, &[7; 300]);
        assert!(accumulator.append(&record, &clock).unwrap().wake);
        assert!(!accumulator.append(&record, &clock).unwrap().wake);
        assert_eq!(accumulator.ready(104), (vec![], Some(105)));
        assert_eq!(accumulator.ready(105).0, [1], "linger is over");
        while !accumulator.append(&record, &clock).unwrap().wake {}
        assert_eq!(accumulator.ready(100).0, [1], "the first batch is full");
        assert_eq!(accumulator.memory_used(), 2000);
        let first = accumulator.take(1).unwrap();
        assert!(first.builder.size_bytes() <= 1000);
        accumulator.release(&first.state);
        assert_eq!(accumulator.memory_used(), 1000);
        assert_eq!(
            accumulator.ready(100),
            (vec![], Some(105)),
            "the second still grows"
        );
        accumulator.seal();
        assert_eq!(accumulator.ready(100).0, [1]);
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded_and_a_record_that_can_never_fit_is_a_usage_error() {
        let (mut accumulator, topic) = accumulator(1000, 2000);
        let clock = Clock::starting_at(0);
        let large = record(&topic, &[7; 900]);
        accumulator.append(&large, &clock).unwrap();
        accumulator.append(&large, &clock).unwrap();
        assert!(matches!(
            accumulator.append(&large, &clock),
            Err(Refusal::Full { .. })
        ));
        let batch = accumulator.take(1).unwrap();
        assert!(
            matches!(
                accumulator.append(&large, &clock),
                Err(Refusal::Full { .. })
            ),
            "in flight"
        );
        accumulator.release(&batch.state);
        accumulator.append(&large, &clock).unwrap();
        let huge = vec![7; 3000];
        let refusal = accumulator
            .append(&record(&topic, &huge), &clock)
            .unwrap_err();
        let Refusal::Usage(error) = refusal else {
            panic!("{refusal:?}")
        };
        assert!(error.to_string().contains("buffer.memory=2000"), "{error}");
    }
}
