//! Stage `commit`: offsets and outputs of everything that a worker has open, in one transaction.
//!
//! The steps are the protocol: the producer flushes, the offsets go to the group coordinator under
//! the membership that read the records, the transaction ends. The answer to the last step comes
//! when readers see the outcome.
//!
//! Invariants: what is counted as committed was committed; an offset is sent with the outputs of
//! the records below it.
//! Never: commits offsets on their own under exactly-once; never turns an unknown outcome into new
//! work.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_client::consumer::Consumer;
use millstream_client::{GroupMetadata, OffsetAndMetadata, Producer};
use millstream_protocol::TopicPartition;
use tokio::time::Instant;

use crate::error::StreamsError;
use crate::failpoint;
use crate::poison::PoisonPolicy;
use crate::progress::CommitReport;
use crate::topology::Topology;

/// What a worker has done since its last commit.
#[derive(Debug, Default)]
pub(crate) struct Open {
    since: Option<Instant>,
    /// Records processed.
    pub(crate) records: u64,
    offsets: BTreeMap<TopicPartition, (i64, u64)>,
    written: Vec<u64>,
    dead_letters: u64,
    skipped: u64,
}

impl Open {
    /// Whether there is anything to commit.
    pub(crate) fn is_dirty(&self) -> bool {
        self.since.is_some()
    }

    pub(crate) fn begin(&mut self, now: Instant) {
        self.since = Some(now);
    }

    pub(crate) fn age(&self, now: Instant) -> Option<Duration> {
        self.since.map(|since| now.saturating_duration_since(since))
    }

    /// A record was read; `next_offset` is the one behind it.
    pub(crate) fn read(&mut self, partition: &TopicPartition, next_offset: i64) {
        self.records += 1;
        match self.offsets.get_mut(partition) {
            Some((offset, count)) => {
                *offset = next_offset;
                *count += 1;
            }
            None => {
                self.offsets.insert(partition.clone(), (next_offset, 1));
            }
        }
    }

    /// The position moved without a record.
    pub(crate) fn moved(&mut self, partition: &TopicPartition, next_offset: i64) {
        self.offsets
            .entry(partition.clone())
            .or_insert((next_offset, 0))
            .0 = next_offset;
    }

    pub(crate) fn wrote(&mut self, sink: usize) {
        if self.written.len() <= sink {
            self.written.resize(sink + 1, 0);
        }
        if let Some(count) = self.written.get_mut(sink) {
            *count += 1;
        }
    }

    pub(crate) fn wrote_dead_letter(&mut self) {
        self.dead_letters += 1;
    }

    pub(crate) fn skipped(&mut self) {
        self.skipped += 1;
    }

    pub(crate) fn touches(&self, partition: &TopicPartition) -> bool {
        self.offsets.contains_key(partition)
    }

    pub(crate) fn offsets(&self) -> impl Iterator<Item = (&TopicPartition, i64)> {
        self.offsets
            .iter()
            .map(|(partition, (offset, _))| (partition, *offset))
    }

    /// What was committed, for the progress log; afterwards nothing is open.
    pub(crate) fn take_report(
        &mut self,
        topology: &Topology,
        poison: &PoisonPolicy,
        took: Duration,
    ) -> CommitReport {
        let open = std::mem::take(self);
        let mut report = CommitReport {
            skipped: open.skipped,
            took,
            ..CommitReport::default()
        };
        for (partition, (offset, count)) in open.offsets {
            if count > 0 {
                *report.read.entry(Arc::clone(&partition.topic)).or_default() += count;
            }
            report.offsets.push((partition, offset));
        }
        for (topic, count) in topology.inner.sinks.iter().zip(open.written) {
            report.written.insert(Arc::clone(topic), count);
        }
        if let PoisonPolicy::DeadLetter(topic) = poison {
            *report.written.entry(Arc::clone(topic)).or_default() += open.dead_letters;
        }
        report
    }
}

/// What a worker wants after an abort: these partitions again, where they are still in the session
/// in which it had them. A partition that was handed over anew meanwhile needs no rewind.
#[derive(Debug)]
pub(crate) struct Rewind {
    pub(crate) partitions: Vec<(TopicPartition, u64)>,
    pub(crate) stale_generation: Option<i32>,
}

/// What a commit says beside the offset: how many workers the instance had (a start with fewer
/// fences the ids of the surplus ones), the stream time of the task, and whether nothing was read
/// yet: such an offset only says where the log began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Metadata {
    pub(crate) workers: usize,
    pub(crate) stream_time: i64,
    pub(crate) unread: bool,
}

impl Metadata {
    pub(crate) fn encode(self) -> String {
        let unread = if self.unread { " unread" } else { "" };
        format!(
            "millstream/1 workers={} stream-time={}{unread}",
            self.workers, self.stream_time
        )
    }

    /// Reads what a commit of ours says; anything else says nothing.
    pub(crate) fn decode(text: &str) -> Option<Self> {
        let mut fields = text.strip_prefix("millstream/1 ")?.split(' ');
        let workers = fields.next()?.strip_prefix("workers=")?.parse().ok()?;
        let stream_time = fields.next()?.strip_prefix("stream-time=")?.parse().ok()?;
        Some(Self {
            workers,
            stream_time,
            unread: fields.next() == Some("unread"),
        })
    }
}

/// Ends the producer's open transaction with these offsets inside it.
///
/// An answer that does not come leaves the outcome unknown. Then the producer asks for the same
/// commit again until its `max.block.ms`, which is the delivery timeout, is over (rows 123 and
/// 127): the records may be committed already, so they are neither aborted nor sent again.
pub(crate) async fn transaction(
    producer: &Producer,
    group: &GroupMetadata,
    offsets: &[(TopicPartition, OffsetAndMetadata)],
) -> Result<(), StreamsError> {
    // Offsets do not wait for the outputs, nor these for them: only the end of the transaction
    // waits for both.
    failpoint::hit("streams.before-flush");
    let flush = async {
        let flushed = producer.flush().await;
        failpoint::hit("streams.after-flush");
        flushed
    };
    let send = async {
        failpoint::hit("streams.before-offsets");
        let sent = producer.send_offsets(offsets, group).await;
        failpoint::hit("streams.after-offsets");
        sent
    };
    let (flushed, sent) = futures::join!(flush, send);
    sent?;
    flushed?;
    failpoint::hit("streams.before-end");
    producer.commit().await?;
    failpoint::hit("streams.after-end");
    Ok(())
}

/// At least once: outputs first, and the offsets once they are acknowledged.
pub(crate) async fn flush_then_offsets(
    producer: &Producer,
    consumer: &Consumer,
    offsets: &[(TopicPartition, OffsetAndMetadata)],
) -> Result<(), StreamsError> {
    producer.flush().await?;
    consumer.commit_offsets(offsets).await?;
    Ok(())
}

/// The generation under which a commit was refused because the group has moved on.
pub(crate) fn stale_generation(cause: &StreamsError, group: Option<&GroupMetadata>) -> Option<i32> {
    if cause.is_stale_membership() {
        group.map(|group| group.generation_id)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_metadata_round_trips_and_foreign_metadata_says_nothing() {
        for unread in [false, true] {
            let metadata = Metadata {
                workers: 3,
                stream_time: -1,
                unread,
            };
            assert_eq!(Metadata::decode(&metadata.encode()), Some(metadata));
        }
        for foreign in [
            "",
            "AgAAAZ==",
            "millstream/2 workers=1",
            "millstream/1 workers=x",
        ] {
            assert_eq!(Metadata::decode(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_report_counts_records_by_topic_and_moves_by_partition() {
        let mut open = Open::default();
        assert!(!open.is_dirty());
        let (a, b) = (TopicPartition::new("in", 0), TopicPartition::new("in", 1));
        open.begin(Instant::now());
        open.read(&a, 1);
        open.read(&a, 2);
        open.moved(&a, 3);
        open.moved(&b, 9);
        open.skipped();
        let topology = {
            let builder = crate::StreamsBuilder::new();
            builder
                .stream("in", crate::strings())
                .to("out", crate::strings());
            builder.build().expect("sound")
        };
        open.wrote(0);
        let report = open.take_report(&topology, &PoisonPolicy::Skip, Duration::ZERO);
        assert_eq!(report.offsets, [(a, 3), (b, 9)]);
        assert_eq!(report.read, BTreeMap::from([(Arc::from("in"), 2)]));
        assert_eq!(report.written, BTreeMap::from([(Arc::from("out"), 1)]));
        assert_eq!(report.skipped, 1);
        assert!(!open.is_dirty());
    }
}
