//! `millstream topics`: list, create, describe, delete.
//!
//! Invariants: a topic that `create` reports is there.
//! Never: shows the broker's own topics unless asked.

use crate::connection::Connection;
use crate::output::{Output, Table};
use anyhow::{Context, anyhow};
use millstream::TopicPartition;
use millstream::client::{Admin, NewTopic, OffsetSpec};
use std::collections::BTreeMap;

/// List, create, describe and delete topics.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List topics and how many partitions each has
    List {
        /// List the broker's own topics as well
        #[arg(long)]
        internal: bool,
    },
    /// Create a topic
    Create {
        /// Name of the topic: letters, digits, dot, underscore and dash
        topic: String,
        /// Number of partitions [default: the broker's]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
        partitions: Option<i32>,
        /// A setting by Kafka's name, as in retention.ms=60000; may be repeated
        #[arg(long = "config", value_name = "NAME=VALUE", value_parser = setting)]
        configs: Vec<(String, String)>,
        /// Succeed where the topic exists already
        #[arg(long)]
        if_not_exists: bool,
    },
    /// Show a topic's id, settings and partitions with their offsets
    Describe {
        /// Name of the topic
        topic: String,
    },
    /// Delete a topic and all of its records
    Delete {
        /// Name of the topic
        topic: String,
    },
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let admin = arguments.connection.admin()?;
    let mut output = Output::new();
    match arguments.action {
        Action::List { internal } => list(&admin, internal, &mut output).await?,
        Action::Create {
            topic,
            partitions,
            configs,
            if_not_exists,
        } => {
            let configs = configs.into_iter().collect();
            let topic = NewTopic {
                name: topic,
                partitions,
                replication_factor: None,
                configs,
            };
            create(&admin, topic, if_not_exists, &mut output).await?;
        }
        Action::Describe { topic } => describe(&admin, &topic, &mut output).await?,
        Action::Delete { topic } => {
            admin
                .delete_topic(&topic)
                .await
                .with_context(|| unknown(&topic))?;
            output.line(format_args!("deleted {topic}"))?;
        }
    }
    output.finish()?;
    Ok(())
}

async fn list(admin: &Admin, internal: bool, output: &mut Output) -> anyhow::Result<()> {
    let mut table = Table::new(&["topic", "partitions"]);
    for topic in admin.topics().await? {
        if internal || !topic.is_internal {
            table.row(vec![topic.name, topic.partitions.to_string()]);
        }
    }
    table.print(output)?;
    Ok(())
}

async fn create(
    admin: &Admin,
    topic: NewTopic,
    if_not_exists: bool,
    output: &mut Output,
) -> anyhow::Result<()> {
    let name = &topic.name;
    if if_not_exists {
        let known = admin.topics().await?;
        if let Some(known) = known.into_iter().find(|known| known.name == *name) {
            output.line(format_args!(
                "{name} exists with {} partitions",
                known.partitions
            ))?;
            return Ok(());
        }
    }
    admin
        .create_topic(&topic)
        .await
        .with_context(|| format!("cannot create topic {name}"))?;
    let created = admin.topic(name).await?;
    output.line(format_args!(
        "created {name} with {} partitions",
        created.partitions
    ))?;
    Ok(())
}

async fn describe(admin: &Admin, topic: &str, output: &mut Output) -> anyhow::Result<()> {
    let description = admin.topic(topic).await.with_context(|| unknown(topic))?;
    output.line(format_args!("topic       {}", description.name))?;
    output.line(format_args!("id          {}", description.topic_id))?;
    output.line(format_args!("partitions  {}", description.partitions))?;
    output.line(format_args!("internal    {}", description.is_internal))?;
    for (name, value) in admin.topic_configs(topic).await? {
        output.line(format_args!("config      {name}={value}"))?;
    }
    output.line("")?;
    let partitions = partitions_of(topic, description.partitions);
    let start = admin
        .list_offsets(&partitions, OffsetSpec::Earliest)
        .await?;
    let stable = admin
        .list_offsets(&partitions, OffsetSpec::LatestCommitted)
        .await?;
    let end = admin.list_offsets(&partitions, OffsetSpec::Latest).await?;
    let mut table = Table::new(&["partition", "start", "committed end", "end"]);
    for partition in &partitions {
        table.row(vec![
            partition.partition.to_string(),
            offset_of(&start, partition),
            offset_of(&stable, partition),
            offset_of(&end, partition),
        ]);
    }
    table.print(output)?;
    Ok(())
}

/// All partitions of a topic.
pub(crate) fn partitions_of(topic: &str, count: i32) -> Vec<TopicPartition> {
    (0..count)
        .map(|partition| TopicPartition::new(topic, partition))
        .collect()
}

fn offset_of(
    offsets: &BTreeMap<TopicPartition, Option<i64>>,
    partition: &TopicPartition,
) -> String {
    let offset = offsets.get(partition).copied().flatten();
    offset.map_or_else(|| "-".to_owned(), |offset| offset.to_string())
}

pub(crate) fn unknown(topic: &str) -> String {
    format!("topic {topic} (see `millstream topics list`)")
}

fn setting(text: &str) -> anyhow::Result<(String, String)> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| anyhow!("give NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_split_at_its_first_equals_sign() {
        assert_eq!(
            setting("a=b=c").unwrap(),
            ("a".to_owned(), "b=c".to_owned())
        );
        assert!(setting("retention.ms").is_err());
    }
}
