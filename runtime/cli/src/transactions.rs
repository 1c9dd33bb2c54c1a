//! `millstream transactions`: what is open, since when, and the end of what hangs.
//!
//! Invariants: an abort names what it ends; an id is aborted through its coordinator, which fences
//! the present holder; a marker past the coordinator is written only for a transaction that the
//! partition's leader says is open.
//! Never: commits.

use crate::connection::{Connection, client_config};
use crate::hanging;
use crate::output::{Output, Table};
use anyhow::{Context, anyhow, bail};
use millstream::TopicPartition;
use millstream::client::{Admin, Producer};
use millstream::formats::protocol::messages::describe_producers::ProducerState;
use std::time::Duration;

/// List, describe and abort transactions.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List transactional ids with their producers and states
    List,
    /// Show the state of a transactional id: producer, timeout, start and partitions
    Describe {
        /// The transactional id
        transactional_id: String,
    },
    /// List the producers that a partition knows, and where their open transactions begin
    Producers {
        /// Name of the topic
        topic: String,
        /// Number of the partition
        partition: i32,
    },
    /// List transactions that are open in a partition and that no coordinator knows of
    ///
    /// Readers of committed records wait at them for ever; `transactions abort-hanging` ends one.
    /// It takes a principal that may describe every transactional id: brokers leave out the
    /// others without a word.
    FindHanging {
        /// Only in this topic
        #[arg(long, value_name = "NAME")]
        topic: Option<String>,
        /// Only of producers whose last record is older than this
        #[arg(long, value_name = "MINUTES", default_value_t = SILENT_MINUTES)]
        max_transaction_timeout: u32,
    },
    /// Abort the open transaction of a transactional id. Its present holder is fenced and stops
    /// with an error
    Abort {
        /// The transactional id
        transactional_id: String,
    },
    /// Abort a transaction that hangs in one partition because its coordinator has forgotten it
    ///
    /// `transactions find-hanging` lists them, and where they begin. The marker goes past the
    /// coordinator, so one that `find-hanging` does not list is not aborted, unless --force is
    /// given.
    AbortHanging {
        /// Name of the topic
        topic: String,
        /// Number of the partition
        partition: i32,
        /// Offset of the transaction's first record in this partition
        #[arg(long, value_name = "OFFSET")]
        start_offset: i64,
        /// Abort it although a coordinator may know of it, or its producer may be at work: that
        /// tears a transaction in two
        #[arg(long)]
        force: bool,
    },
}

/// The longest that brokers let a transaction be open, unless they are told otherwise
/// (`transaction.max.timeout.ms`).
const SILENT_MINUTES: u32 = 15;

/// The time before which a producer's last record has to be.
fn minutes_ago(minutes: u32) -> i64 {
    client_config().clock.now_ms() - i64::from(minutes) * 60_000
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let admin = arguments.connection.admin()?;
    let mut output = Output::new();
    match arguments.action {
        Action::List => list(&admin, &mut output).await?,
        Action::Describe { transactional_id } => {
            describe(&admin, &transactional_id, &mut output).await?;
        }
        Action::Producers { topic, partition } => {
            producers(&admin, &TopicPartition::new(topic, partition), &mut output).await?;
        }
        Action::FindHanging {
            topic,
            max_transaction_timeout,
        } => {
            let since = minutes_ago(max_transaction_timeout);
            find_hanging(&admin, topic.as_deref(), since, &mut output).await?;
        }
        Action::Abort { transactional_id } => {
            abort(
                &arguments.connection,
                &admin,
                &transactional_id,
                &mut output,
            )
            .await?;
        }
        Action::AbortHanging {
            topic,
            partition,
            start_offset,
            force,
        } => {
            let partition = TopicPartition::new(topic, partition);
            if !force {
                hangs(&admin, &partition, start_offset).await?;
            }
            abort_hanging(&admin, &partition, start_offset, &mut output).await?;
        }
    }
    output.finish()?;
    Ok(())
}

async fn list(admin: &Admin, output: &mut Output) -> anyhow::Result<()> {
    let mut table = Table::new(&["transactional id", "producer id", "state"]);
    for found in admin.list_transactions().await? {
        let producer_id = found.producer_id.to_string();
        table.row(vec![
            found.transactional_id,
            producer_id,
            found.transaction_state,
        ]);
    }
    table.print(output)?;
    Ok(())
}

fn unknown(transactional_id: &str) -> String {
    format!("transactional id {transactional_id} (see `millstream transactions list`)")
}

async fn describe(admin: &Admin, id: &str, output: &mut Output) -> anyhow::Result<()> {
    let found = admin
        .describe_transaction(id)
        .await
        .with_context(|| unknown(id))?;
    output.line(format_args!("transactional id  {id}"))?;
    output.line(format_args!(
        "state             {}",
        found.transaction_state
    ))?;
    output.line(format_args!("producer id       {}", found.producer_id))?;
    output.line(format_args!("producer epoch    {}", found.producer_epoch))?;
    output.line(format_args!(
        "timeout ms        {}",
        found.transaction_timeout_ms
    ))?;
    if found.transaction_start_time_ms >= 0 {
        output.line(format_args!(
            "started at ms     {}",
            found.transaction_start_time_ms
        ))?;
    }
    for topic in found.topics {
        for partition in topic.partitions {
            output.line(format_args!(
                "partition         {}-{partition}",
                topic.topic
            ))?;
        }
    }
    Ok(())
}

async fn producers_of(
    admin: &Admin,
    partition: &TopicPartition,
) -> anyhow::Result<Vec<ProducerState>> {
    let found = admin
        .describe_producers(std::slice::from_ref(partition))
        .await;
    let mut found = found.with_context(|| format!("{partition} (see `millstream topics list`)"))?;
    Ok(found.remove(partition).unwrap_or_default())
}

async fn producers(
    admin: &Admin,
    partition: &TopicPartition,
    output: &mut Output,
) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        "producer id",
        "epoch",
        "last sequence",
        "last timestamp",
        "open since offset",
    ]);
    for producer in producers_of(admin, partition).await? {
        let open = producer.current_txn_start_offset;
        table.row(vec![
            producer.producer_id.to_string(),
            producer.producer_epoch.to_string(),
            producer.last_sequence.to_string(),
            producer.last_timestamp.to_string(),
            if open < 0 {
                "-".to_owned()
            } else {
                open.to_string()
            },
        ]);
    }
    table.print(output)?;
    Ok(())
}

async fn abort(
    connection: &Connection,
    admin: &Admin,
    id: &str,
    output: &mut Output,
) -> anyhow::Result<()> {
    let before = admin
        .describe_transaction(id)
        .await
        .with_context(|| unknown(id))?;
    if before.transaction_state != "Ongoing" {
        bail!(
            "{id} has no open transaction (state {}); nothing was done",
            before.transaction_state
        );
    }
    // Keeps the holder's timeout: it is stored with the id.
    let timeout_ms = u64::try_from(before.transaction_timeout_ms)
        .unwrap_or(60_000)
        .max(1);
    let producer = Producer::transactional(id)
        .client(client_config())
        .transaction_timeout_ms(timeout_ms)
        .connect(&connection.transport()?)
        .await?;
    let fenced = producer.init_transactions().await;
    producer.close(Duration::from_secs(1)).await;
    fenced.with_context(|| format!("cannot abort the transaction of {id}"))?;
    output.line(format_args!(
        "aborted the transaction of {id}; producer {} epoch {} is fenced",
        before.producer_id, before.producer_epoch
    ))?;
    Ok(())
}

async fn find_hanging(
    admin: &Admin,
    topic: Option<&str>,
    silent_since_ms: i64,
    output: &mut Output,
) -> anyhow::Result<()> {
    let partitions = hanging::partitions(admin, topic).await?;
    let mut table = Table::new(&[
        "topic",
        "partition",
        "start offset",
        "producer id",
        "epoch",
        "last timestamp",
    ]);
    for found in hanging::find(admin, &partitions, silent_since_ms).await? {
        table.row(vec![
            found.partition.topic.to_string(),
            found.partition.partition.to_string(),
            found.start_offset.to_string(),
            found.producer_id.to_string(),
            found.producer_epoch.to_string(),
            found.last_timestamp.to_string(),
        ]);
    }
    table.print(output)?;
    Ok(())
}

/// Complains of a transaction that is not known to hang.
async fn hangs(admin: &Admin, partition: &TopicPartition, start_offset: i64) -> anyhow::Result<()> {
    let since = minutes_ago(SILENT_MINUTES);
    let found = hanging::find(admin, std::slice::from_ref(partition), since).await?;
    if found.iter().any(|found| found.start_offset == start_offset) {
        return Ok(());
    }
    bail!(
        "no transaction that hangs in {partition} begins at {start_offset}: a coordinator knows of \
         it, or its producer wrote within {SILENT_MINUTES} minutes; see `millstream transactions \
         find-hanging` and `producers`, or give --force"
    )
}

async fn abort_hanging(
    admin: &Admin,
    partition: &TopicPartition,
    start_offset: i64,
    output: &mut Output,
) -> anyhow::Result<()> {
    let producers = producers_of(admin, partition).await?;
    let found = producers
        .into_iter()
        .find(|found| found.current_txn_start_offset == start_offset);
    let found = found
        .filter(|found| found.current_txn_start_offset >= 0)
        .ok_or_else(|| {
            anyhow!(
                "no transaction that is open in {partition} begins at {start_offset}; see \
             `millstream transactions producers {} {}`",
                partition.topic,
                partition.partition
            )
        })?;
    let epoch = i16::try_from(found.producer_epoch)
        .with_context(|| format!("producer epoch {}", found.producer_epoch))?;
    admin
        .abort_hanging_transaction(partition, found.producer_id, epoch, found.coordinator_epoch)
        .await
        .with_context(|| format!("cannot abort in {partition}"))?;
    output.line(format_args!(
        "aborted in {partition} what producer {} began at {start_offset}",
        found.producer_id
    ))?;
    Ok(())
}
