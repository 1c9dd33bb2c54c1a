//! A member of a consumer group that prints what happens to it as JSON lines, in the words of
//! Kafka's VerifiableConsumer; with `--copy-to` it copies what it reads in transactions.
//!
//! Invariants: one line an event, in the order in which things happen; records are printed before
//! their offsets are committed; SIGTERM closes the member in order.
//! Never: decides whether what it saw is right; the suite that starts it does.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use async_trait::async_trait;
use millstream_client::clock::Clock;
use millstream_client::consumer::{ConsumerRecords, RebalanceListener};
use millstream_client::{Consumer, OffsetAndMetadata, Producer, ProducerRecord};
use millstream_protocol::TopicPartition;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "usage: group_member --bootstrap-server HOST:PORT --group-id G \
    (--topic T | --pattern P) [--set NAME=VALUE]... [--copy-to T --transactional-id ID]";
const POLL: Duration = Duration::from_millis(200);

#[tokio::main]
#[expect(clippy::print_stderr, reason = "this is the program's output")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, Default)]
struct Options {
    bootstrap: String,
    group: String,
    topic: Option<String>,
    pattern: Option<String>,
    settings: Vec<(String, String)>,
    copy_to: Option<String>,
    transactional_id: Option<String>,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Option<Options> {
        let mut options = Options::default();
        while let Some(word) = words.next() {
            let value = words.next()?;
            match word.as_str() {
                "--bootstrap-server" => options.bootstrap = value,
                "--group-id" => options.group = value,
                "--topic" => options.topic = Some(value),
                "--pattern" => options.pattern = Some(value),
                "--set" => {
                    let (name, value) = value.split_once('=')?;
                    options.settings.push((name.to_owned(), value.to_owned()));
                }
                "--copy-to" => options.copy_to = Some(value),
                "--transactional-id" => options.transactional_id = Some(value),
                _ => return None,
            }
        }
        let whole = !options.bootstrap.is_empty() && !options.group.is_empty();
        whole.then_some(options)
    }
}

/// Prints events.
#[derive(Debug)]
struct Diary {
    clock: Clock,
}

impl Diary {
    #[expect(clippy::print_stdout, reason = "this is the program's output")]
    fn note(&self, name: &str, what: Value) {
        let mut event = json!({ "timestamp": self.clock.now_ms(), "name": name });
        if let (Some(event), Value::Object(what)) = (event.as_object_mut(), what) {
            event.extend(what);
        }
        println!("{event}");
    }

    fn note_partitions(&self, name: &str, partitions: &[TopicPartition]) {
        let partitions: Vec<Value> = partitions
            .iter()
            .map(|p| json!({ "topic": &*p.topic, "partition": p.partition }))
            .collect();
        self.note(name, json!({ "partitions": partitions }));
    }

    fn note_records(&self, records: &ConsumerRecords) {
        let text = |bytes: &Option<bytes::Bytes>| {
            let text = bytes.as_ref().map(|bytes| String::from_utf8_lossy(bytes));
            text.map(|text| text.into_owned())
        };
        for record in records.iter() {
            let what = json!({
                "topic": &*record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "key": text(&record.key),
                "value": text(&record.value),
            });
            self.note("record_data", what);
        }
    }
}

#[async_trait]
impl RebalanceListener for Diary {
    async fn on_revoked(&self, _consumer: &Consumer, partitions: &[TopicPartition]) {
        self.note_partitions("partitions_revoked", partitions);
    }

    async fn on_assigned(&self, _consumer: &Consumer, partitions: &[TopicPartition]) {
        self.note_partitions("partitions_assigned", partitions);
    }

    async fn on_lost(&self, _consumer: &Consumer, partitions: &[TopicPartition]) {
        self.note_partitions("partitions_lost", partitions);
    }
}

async fn run() -> anyhow::Result<()> {
    let options = Options::parse(std::env::args().skip(1)).context(USAGE)?;
    let diary = Arc::new(Diary {
        clock: Clock::system(),
    });
    let mut builder = Consumer::builder()
        .group_id(options.group.as_str())
        .set("auto.offset.reset", "earliest");
    for (name, value) in &options.settings {
        builder = builder.set(name, value);
    }
    let consumer = builder.connect(&options.bootstrap.as_str()).await?;
    let producer = match &options.transactional_id {
        Some(id) => {
            let producer = Producer::transactional(id.as_str());
            let producer = producer.connect(&options.bootstrap.as_str()).await?;
            producer.init_transactions().await?;
            Some(producer)
        }
        None => None,
    };
    diary.note("startup_complete", json!({}));
    let listener = Arc::clone(&diary) as Arc<dyn RebalanceListener>;
    match (&options.topic, &options.pattern) {
        (Some(topic), None) => consumer.subscribe_with([topic.as_str()], listener)?,
        (None, Some(pattern)) => consumer.subscribe_pattern_with(pattern.as_str(), listener)?,
        _ => bail!(USAGE),
    }
    let mut terminated = signal(SignalKind::terminate())?;
    loop {
        let records = tokio::select! {
            biased;
            _ = terminated.recv() => break,
            records = consumer.poll(POLL) => records?,
        };
        if records.partitions.is_empty() {
            continue;
        }
        diary.note_records(&records);
        match (&producer, &options.copy_to) {
            (Some(producer), Some(sink)) => {
                copy(&diary, producer, &consumer, sink, records).await?
            }
            _ => commit(&diary, &consumer, &records).await,
        }
    }
    consumer.close().await?;
    diary.note("shutdown_complete", json!({}));
    Ok(())
}

fn next_offsets(records: &ConsumerRecords) -> Vec<(TopicPartition, OffsetAndMetadata)> {
    let read = records.partitions.iter();
    read.map(|read| (read.topic_partition.clone(), read.next_offset.into()))
        .collect()
}

async fn commit(diary: &Diary, consumer: &Consumer, records: &ConsumerRecords) {
    let offsets = next_offsets(records);
    let done = consumer.commit_offsets(&offsets).await;
    let offsets: Vec<Value> = offsets
        .iter()
        .map(|(p, o)| json!({ "topic": &*p.topic, "partition": p.partition, "offset": o.offset }))
        .collect();
    let what = match done {
        Ok(()) => json!({ "success": true, "offsets": offsets }),
        Err(error) => {
            json!({ "success": false, "error": error.to_string(), "offsets": offsets })
        }
    };
    diary.note("offsets_committed", what);
}

/// One transaction: records and offsets. Where it is refused, it is aborted and reading goes back
/// to what is committed.
async fn copy(
    diary: &Diary,
    producer: &Producer,
    consumer: &Consumer,
    sink: &str,
    records: ConsumerRecords,
) -> anyhow::Result<()> {
    let read: Vec<TopicPartition> = records
        .partitions
        .iter()
        .map(|read| read.topic_partition.clone())
        .collect();
    match transact(producer, consumer, sink, records).await {
        Ok(()) => diary.note("transaction_committed", json!({})),
        Err(error) => {
            diary.note(
                "transaction_aborted",
                json!({ "error": format!("{error:#}") }),
            );
            producer.abort().await?;
            for partition in read {
                // A partition that is gone meanwhile is read from there by somebody else.
                let _ = consumer.seek_to_committed(&partition);
            }
        }
    }
    Ok(())
}

async fn transact(
    producer: &Producer,
    consumer: &Consumer,
    sink: &str,
    records: ConsumerRecords,
) -> anyhow::Result<()> {
    let offsets = next_offsets(&records);
    producer.begin()?;
    for record in records.iter() {
        let value = record.value.clone().unwrap_or_default();
        drop(
            producer
                .send(ProducerRecord::new(sink).value(value))
                .await?,
        );
    }
    let group = consumer.group_metadata()?;
    producer.send_offsets(&offsets, &group).await?;
    producer.commit().await?;
    Ok(())
}
