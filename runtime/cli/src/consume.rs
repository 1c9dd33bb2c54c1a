//! `millstream consume`: records of a topic, to the end or on and on.
//!
//! Invariants: without `--follow` it prints exactly the records below the end offsets that it saw
//! at start, and ends when its positions have passed them (a log may end in markers and aborted
//! records, which never show).
//! Never: joins a group or commits an offset.

use crate::connection::{Connection, client_config};
use crate::output::Output;
use crate::signals::Signals;
use crate::text::{bytes_to_json, headers_to_json};
use crate::topics::{partitions_of, unknown};
use anyhow::{Context, bail};
use millstream::TopicPartition;
use millstream::client::Consumer;
use millstream::client::consumer::{AutoOffsetReset, ConsumerRecord, ConsumerRecords, Isolation};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

/// How long one poll waits for records.
const POLL_WAIT: Duration = Duration::from_millis(500);
/// Records of one poll.
const POLL_RECORDS_MAX: usize = 5_000;

/// Print the records of a topic.
///
/// From the beginning up to the end offsets seen at start, unless --follow is given. Partitions
/// come one beside the other; within a partition the order is that of the log.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    connection: Connection,
    /// The topic
    topic: String,
    /// Print one JSON object a record (topic, partition, offset, timestamp, key, value, headers),
    /// instead of values only. What is not UTF-8 is {"base64": "…"}
    #[arg(long)]
    json: bool,
    /// Print keys too, with this text between key and value (\t is a tab)
    #[arg(long, value_name = "TEXT", conflicts_with = "json")]
    key_separator: Option<String>,
    /// Go on with new records until SIGINT or SIGTERM
    #[arg(long)]
    follow: bool,
    /// Where to begin
    #[arg(long, value_enum, default_value_t = Start::Beginning)]
    from: Start,
    /// What may be seen: read_committed leaves out what is aborted or not decided yet
    #[arg(long, value_enum, default_value_t = Visible::ReadCommitted)]
    isolation: Visible,
    /// Read this partition only; may be repeated
    #[arg(long = "partition", value_name = "N")]
    partitions: Vec<i32>,
    /// Stop after this many records
    #[arg(long, value_name = "N")]
    max_records: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Start {
    Beginning,
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Visible {
    #[value(name = "read_committed")]
    ReadCommitted,
    #[value(name = "read_uncommitted")]
    ReadUncommitted,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut signals = if arguments.follow {
        Some(Signals::new()?)
    } else {
        None
    };
    let admin = arguments.connection.admin()?;
    let topic = arguments.topic.as_str();
    let known = admin.topic(topic).await.with_context(|| unknown(topic))?;
    let partitions = chosen(topic, known.partitions, &arguments.partitions)?;
    let isolation = match arguments.isolation {
        Visible::ReadCommitted => Isolation::ReadCommitted,
        Visible::ReadUncommitted => Isolation::ReadUncommitted,
    };
    let consumer = Consumer::builder()
        .client(client_config())
        .isolation(isolation)
        .auto_offset_reset(match arguments.from {
            Start::Beginning => AutoOffsetReset::Earliest,
            Start::End => AutoOffsetReset::Latest,
        })
        .max_poll_records(POLL_RECORDS_MAX)
        .connect(&arguments.connection.transport()?)
        .await?;
    let mut progress = Progress::new(arguments.max_records);
    if !arguments.follow {
        let starts = consumer.beginning_offsets(&partitions).await?;
        let ends = consumer.end_offsets(&partitions).await?;
        let from = if arguments.from == Start::End {
            &ends
        } else {
            &starts
        };
        progress.until(from, &ends);
    }
    let mut output = Output::new();
    consumer.assign(partitions)?;
    while !progress.is_done() {
        let records = tokio::select! {
            biased;
            () = interrupted(&mut signals) => break,
            records = consumer.poll(POLL_WAIT) => records?,
        };
        for record in progress.take(&records) {
            print(record, &arguments, &mut output)?;
        }
        output.flush()?;
    }
    output.finish()?;
    consumer.close().await?;
    Ok(())
}

/// How far reading has got, and when it ends.
#[derive(Debug)]
struct Progress {
    /// Partitions that have not reached their end; `None` when there is no end.
    ends: Option<BTreeMap<TopicPartition, i64>>,
    records_left: Option<u64>,
}

impl Progress {
    fn new(records_max: Option<u64>) -> Progress {
        Progress {
            ends: None,
            records_left: records_max,
        }
    }

    /// Reading ends at `ends`; what begins there has nothing to read.
    fn until(
        &mut self,
        starts: &BTreeMap<TopicPartition, i64>,
        ends: &BTreeMap<TopicPartition, i64>,
    ) {
        let open = ends
            .iter()
            .filter(|(partition, end)| starts.get(*partition).is_none_or(|start| start < *end));
        self.ends = Some(
            open.map(|(partition, end)| (partition.clone(), *end))
                .collect(),
        );
    }

    fn is_done(&self) -> bool {
        self.records_left == Some(0) || self.ends.as_ref().is_some_and(BTreeMap::is_empty)
    }

    /// The records of a poll that are to be shown; moves on past all of it.
    fn take<'a>(&mut self, polled: &'a ConsumerRecords) -> Vec<&'a ConsumerRecord> {
        let mut shown = Vec::new();
        for partition in &polled.partitions {
            let end = match &self.ends {
                None => i64::MAX,
                Some(ends) => ends
                    .get(&partition.topic_partition)
                    .copied()
                    .unwrap_or(i64::MIN),
            };
            for record in partition
                .records
                .iter()
                .take_while(|record| record.offset < end)
            {
                if self.records_left == Some(0) {
                    return shown;
                }
                self.records_left = self.records_left.map(|left| left - 1);
                shown.push(record);
            }
            if partition.next_offset >= end
                && let Some(ends) = &mut self.ends
            {
                ends.remove(&partition.topic_partition);
            }
        }
        shown
    }
}

/// Waits for a signal where signals are waited for.
async fn interrupted(signals: &mut Option<Signals>) {
    match signals {
        Some(signals) => signals.any().await,
        None => std::future::pending().await,
    }
}

fn chosen(topic: &str, count: i32, wanted: &[i32]) -> anyhow::Result<Vec<TopicPartition>> {
    if let Some(unknown) = wanted
        .iter()
        .find(|partition| !(0..count).contains(*partition))
    {
        bail!("topic {topic} has {count} partitions; there is no partition {unknown}");
    }
    let mut partitions = partitions_of(topic, count);
    partitions.retain(|known| wanted.is_empty() || wanted.contains(&known.partition));
    Ok(partitions)
}

/// The record as one line, its fields in the order of the contract.
fn to_json(record: &ConsumerRecord) -> String {
    let fields = [
        ("topic", json!(&*record.topic)),
        ("partition", json!(record.partition)),
        ("offset", json!(record.offset)),
        ("timestamp", json!(record.timestamp)),
        ("key", bytes_to_json(record.key.as_deref())),
        ("value", bytes_to_json(record.value.as_deref())),
        ("headers", headers_to_json(record.headers.iter_bytes())),
    ];
    let fields = fields.map(|(name, value)| format!("\"{name}\":{value}"));
    format!("{{{}}}", fields.join(","))
}

fn print(record: &ConsumerRecord, arguments: &Arguments, output: &mut Output) -> io::Result<()> {
    if arguments.json {
        return output.line(to_json(record));
    }
    if let Some(separator) = &arguments.key_separator {
        output.write_all(record.key.as_deref().unwrap_or_default())?;
        output.write_all(separator.replace("\\t", "\t").as_bytes())?;
    }
    output.write_all(record.value.as_deref().unwrap_or_default())?;
    output.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use millstream::client::consumer::PartitionRecords;

    fn record(offset: i64) -> ConsumerRecord {
        ConsumerRecord {
            topic: "orders".into(),
            partition: 0,
            offset,
            timestamp: 5,
            key: None,
            value: Some(Bytes::from_static(&[0xff])),
            headers: [("h", Some("1")), ("h", None)].into_iter().collect(),
        }
    }

    fn polled(offsets: std::ops::Range<i64>, next_offset: i64) -> ConsumerRecords {
        ConsumerRecords {
            partitions: vec![PartitionRecords {
                topic_partition: TopicPartition::new("orders", 0),
                records: offsets.map(record).collect(),
                next_offset,
                leader_epoch: None,
            }],
        }
    }

    fn offsets(offset: i64) -> BTreeMap<TopicPartition, i64> {
        BTreeMap::from([(TopicPartition::new("orders", 0), offset)])
    }

    #[test]
    fn a_record_as_json_has_the_seven_fields_of_the_contract() {
        let line = r#"{"topic":"orders","partition":0,"offset":7,"timestamp":5,"key":null,"#
            .to_owned()
            + r#""value":{"base64":"/w=="},"headers":[["h","1"],["h",null]]}"#;
        assert_eq!(to_json(&record(7)), line);
    }

    #[test]
    fn reading_ends_where_the_position_has_passed_the_end_even_if_the_last_offsets_never_show() {
        let mut progress = Progress::new(None);
        progress.until(&offsets(0), &offsets(5));
        assert_eq!(progress.take(&polled(0..3, 3)).len(), 3);
        assert!(!progress.is_done());
        assert!(progress.take(&polled(3..3, 5)).is_empty());
        assert!(progress.is_done());
    }

    #[test]
    fn records_beyond_the_end_seen_at_start_are_left_out() {
        let mut progress = Progress::new(None);
        progress.until(&offsets(0), &offsets(2));
        let polled = polled(0..4, 4);
        let shown: Vec<i64> = progress
            .take(&polled)
            .iter()
            .map(|record| record.offset)
            .collect();
        assert_eq!(shown, [0, 1]);
        assert!(progress.is_done());
    }

    #[test]
    fn an_empty_partition_is_done_at_once() {
        let mut progress = Progress::new(None);
        progress.until(&offsets(9), &offsets(9));
        assert!(progress.is_done());
    }

    #[test]
    fn a_number_of_records_ends_reading_too() {
        let mut progress = Progress::new(Some(2));
        assert_eq!(progress.take(&polled(0..4, 4)).len(), 2);
        assert!(progress.is_done());
    }

    #[test]
    fn a_partition_that_does_not_exist_is_named() {
        assert_eq!(chosen("orders", 4, &[]).unwrap().len(), 4);
        assert_eq!(
            chosen("orders", 4, &[3]).unwrap(),
            [TopicPartition::new("orders", 3)]
        );
        assert!(
            chosen("orders", 4, &[4])
                .unwrap_err()
                .to_string()
                .contains("no partition 4")
        );
    }
}
