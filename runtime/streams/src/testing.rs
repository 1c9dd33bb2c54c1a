//! [`TopologyTestDriver`]: a topology without any broker, one record at a time, for unit tests of a
//! job.
//!
//! Invariants: the same operators, serdes and poison policy as in the runtime; nothing is
//! asynchronous.
//! Never: shows what takes a broker: transactions, rebalances, restarts. The embedded broker is for
//! those.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use millstream_protocol::{Headers, TopicPartition};
use millstream_state::WriteBatch;

use crate::error::StreamsError;
use crate::poison::{HEADER_BYTES_MAX, PoisonPolicy, error_headers};
use crate::record::SourceRecord;
use crate::serde::{Presence, Serdes};
use crate::task::{GlobalStores, Outcome, Task, TaskEvent, TaskId};
use crate::topology::Topology;

/// An output record as it would be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestRecord<K, V> {
    /// The key.
    pub key: K,
    /// The value.
    pub value: V,
    /// Milliseconds since the epoch.
    pub timestamp: i64,
    /// Headers in order.
    pub headers: Vec<(String, Option<Bytes>)>,
}

/// Drives a topology from a test. Unlike Kafka's it has as many partitions as a test pipes records
/// into.
///
/// ```
/// use millstream_streams::{StreamsBuilder, TopologyTestDriver, strings};
///
/// let builder = StreamsBuilder::new();
/// builder.stream("in", strings()).map_values(|_, v| v.to_uppercase()).to("out", strings());
/// let mut driver = TopologyTestDriver::new(builder.build()?);
/// driver.pipe("in", &strings(), "k".to_owned(), "hello".to_owned(), 1_000)?;
/// let out = driver.read("out", &strings())?.expect("one record");
/// assert_eq!(out.value, "HELLO");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TopologyTestDriver {
    topology: Topology,
    poison: PoisonPolicy,
    stores: GlobalStores,
    tasks: BTreeMap<TopicPartition, Task>,
    next_offsets: BTreeMap<TopicPartition, i64>,
    outputs: BTreeMap<Arc<str>, VecDeque<RawOutput>>,
}

#[derive(Debug)]
struct RawOutput {
    key: Option<Bytes>,
    value: Option<Bytes>,
    timestamp: i64,
    headers: Vec<(String, Option<Bytes>)>,
}

impl TopologyTestDriver {
    /// A driver with the default poison policy, which is to fail.
    #[must_use]
    pub fn new(topology: Topology) -> Self {
        let stores = topology.global_stores();
        Self {
            topology,
            poison: PoisonPolicy::Fail,
            stores,
            tasks: BTreeMap::new(),
            next_offsets: BTreeMap::new(),
            outputs: BTreeMap::new(),
        }
    }

    /// Sets the poison policy.
    #[must_use]
    pub fn poison(mut self, policy: PoisonPolicy) -> Self {
        self.poison = policy;
        self
    }

    /// Pipes a typed record into partition 0 of `topic`.
    ///
    /// # Errors
    /// As [`pipe_raw`](Self::pipe_raw), or where the serdes cannot write the record.
    pub fn pipe<K, V>(
        &mut self,
        topic: &str,
        serdes: &Serdes<K, V>,
        key: K,
        value: V,
        timestamp: i64,
    ) -> Result<(), StreamsError> {
        let write = |presence: Presence, bytes: Vec<u8>| {
            (presence == Presence::Present).then(|| Bytes::from(bytes))
        };
        let failed = |error: crate::serde::SerdeError| StreamsError::Test {
            what: error.to_string(),
        };
        let mut bytes = Vec::new();
        let presence = serdes.key.serialize(&key, &mut bytes).map_err(failed)?;
        let key = write(presence, bytes);
        let mut bytes = Vec::new();
        let presence = serdes.value.serialize(&value, &mut bytes).map_err(failed)?;
        let value = write(presence, bytes);
        self.pipe_raw(topic, 0, key, value, timestamp)
    }

    /// Pipes raw bytes into a partition of a source or global table topic.
    ///
    /// # Errors
    /// Where the topic is not read by the topology, an operator fails, or a poison record meets
    /// [`PoisonPolicy::Fail`].
    pub fn pipe_raw(
        &mut self,
        topic: &str,
        partition: i32,
        key: Option<Bytes>,
        value: Option<Bytes>,
        timestamp: i64,
    ) -> Result<(), StreamsError> {
        let partition = TopicPartition::new(topic, partition);
        let next = self.next_offsets.entry(partition.clone()).or_insert(0);
        let offset = *next;
        *next += 1;
        let headers = Headers::default();
        let record = SourceRecord {
            offset,
            timestamp,
            key,
            value,
            headers,
        };
        if let Some(index) = self
            .topology
            .global_topics()
            .iter()
            .position(|t| *t == topic)
        {
            return self.update_table(index, partition, record);
        }
        self.process(partition, &record)
    }

    /// Takes the oldest unread output of `topic`.
    ///
    /// # Errors
    /// Where the serdes cannot read it.
    pub fn read<K, V>(
        &mut self,
        topic: &str,
        serdes: &Serdes<K, V>,
    ) -> Result<Option<TestRecord<K, V>>, StreamsError> {
        let Some(raw) = self.outputs.get_mut(topic).and_then(VecDeque::pop_front) else {
            return Ok(None);
        };
        let failed = |error: crate::serde::SerdeError| StreamsError::Test {
            what: error.to_string(),
        };
        let key = serdes.key.deserialize(raw.key.as_ref()).map_err(failed)?;
        let value = serdes
            .value
            .deserialize(raw.value.as_ref())
            .map_err(failed)?;
        Ok(Some(TestRecord {
            key,
            value,
            timestamp: raw.timestamp,
            headers: raw.headers,
        }))
    }

    fn update_table(
        &mut self,
        index: usize,
        partition: TopicPartition,
        record: SourceRecord,
    ) -> Result<(), StreamsError> {
        let mut batch = WriteBatch::new();
        if let Some(key) = record.key {
            match record.value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        batch.set_offset(partition, record.offset + 1);
        Ok(self.stores.store(index).apply(batch)?)
    }

    fn process(
        &mut self,
        partition: TopicPartition,
        record: &SourceRecord,
    ) -> Result<(), StreamsError> {
        if !self.tasks.contains_key(&partition) {
            let sources = &self.topology.inner.sources;
            let Some(subtopology) = sources.iter().position(|s| s.topic == partition.topic) else {
                return Err(StreamsError::Test {
                    what: format!("the topology does not read topic {}", partition.topic),
                });
            };
            let chain = sources
                .get(subtopology)
                .map(|source| (source.chain)(&self.stores));
            let chain = chain.expect("the position was found in this list");
            let id = TaskId {
                subtopology,
                partition: partition.partition,
            };
            let mut task = Task::new(id, partition.clone(), chain, -1);
            task.on(TaskEvent::Assigned)?;
            self.tasks.insert(partition.clone(), task);
        }
        let task = self
            .tasks
            .get_mut(&partition)
            .expect("the task was just inserted");
        match task.process(record)? {
            Outcome::Processed => {
                let collector = task.collector();
                for index in 0..collector.len() {
                    let Some(output) = collector.get(index) else {
                        break;
                    };
                    let sink = self.topology.inner.sinks.get(output.sink);
                    let sink = sink.expect("a collected output names a sink of its topology");
                    let bytes = |slice: Option<&[u8]>| slice.map(Bytes::copy_from_slice);
                    self.outputs
                        .entry(Arc::clone(sink))
                        .or_default()
                        .push_back(RawOutput {
                            key: bytes(output.key),
                            value: bytes(output.value),
                            timestamp: output.timestamp,
                            headers: owned_headers(output.headers),
                        });
                }
                Ok(())
            }
            Outcome::Poison { operator, cause } => {
                self.poisoned(&partition, record, &operator, cause)
            }
        }
    }

    fn poisoned(
        &mut self,
        partition: &TopicPartition,
        record: &SourceRecord,
        operator: &str,
        cause: crate::error::BoxError,
    ) -> Result<(), StreamsError> {
        let topic = match &self.poison {
            PoisonPolicy::Skip => return Ok(()),
            PoisonPolicy::DeadLetter(topic) => Arc::clone(topic),
            PoisonPolicy::Fail => {
                return Err(StreamsError::Poison {
                    operator: operator.to_owned(),
                    partition: partition.clone(),
                    offset: record.offset,
                    cause,
                });
            }
        };
        let mut headers = owned_headers(&record.headers);
        let place = (&*partition.topic, partition.partition, record.offset);
        let errors = error_headers(operator, cause.as_ref(), place, HEADER_BYTES_MAX);
        headers.extend(
            errors
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value)),
        );
        self.outputs.entry(topic).or_default().push_back(RawOutput {
            key: record.key.clone(),
            value: record.value.clone(),
            timestamp: record.timestamp,
            headers,
        });
        Ok(())
    }
}

fn owned_headers(headers: &Headers) -> Vec<(String, Option<Bytes>)> {
    headers
        .iter()
        .map(|(key, value)| (key.into_owned(), value.map(Bytes::copy_from_slice)))
        .collect()
}
