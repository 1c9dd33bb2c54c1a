//! `millstream topics`: list, create, describe, alter, enlarge, empty, delete.
//!
//! Invariants: a topic that `create` reports is there.
//! Never: shows the broker's own topics unless asked; gives up records without being told which.

use crate::connection::Connection;
use crate::output::{Output, Table};
use anyhow::{Context, anyhow};
use millstream::TopicPartition;
use millstream::client::{Admin, ConfigChange, ConfigSource, NewTopic, OffsetSpec};
use std::collections::BTreeMap;

/// List, create, describe, change and delete topics.
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
        /// Show all settings with where they come from, not just those of the topic's own
        #[arg(long)]
        configs: bool,
    },
    /// Change settings of a topic, while it is in use
    #[command(group(clap::ArgGroup::new("change").required(true).multiple(true)))]
    Alter {
        /// Name of the topic
        topic: String,
        /// Give a setting this value, by Kafka's name; may be repeated
        #[arg(long = "config", value_name = "NAME=VALUE", value_parser = setting, group = "change")]
        set: Vec<(String, String)>,
        /// Take a setting's value away, so that the broker's holds; may be repeated
        #[arg(long = "delete-config", value_name = "NAME", group = "change")]
        delete: Vec<String>,
        /// Add to a setting that is a list; may be repeated
        #[arg(long, value_name = "NAME=VALUE", value_parser = setting, group = "change")]
        append: Vec<(String, String)>,
        /// Take from a setting that is a list; may be repeated
        #[arg(long, value_name = "NAME=VALUE", value_parser = setting, group = "change")]
        subtract: Vec<(String, String)>,
    },
    /// Add partitions to a topic until it has so many
    AddPartitions {
        /// Name of the topic
        topic: String,
        /// How many partitions the topic is to have
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
        total: i32,
    },
    /// Delete the records of a topic from the beginning on, up to an offset or all of them
    #[command(group(clap::ArgGroup::new("until").required(true)))]
    DeleteRecords {
        /// Name of the topic
        topic: String,
        /// Delete the records below this offset
        #[arg(long, value_name = "OFFSET", value_parser = clap::value_parser!(i64).range(0..), group = "until")]
        before: Option<i64>,
        /// Delete all records that are there now
        #[arg(long, group = "until")]
        all: bool,
        /// In this partition only; may be repeated
        #[arg(long = "partition", value_name = "N")]
        partitions: Vec<i32>,
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
        Action::Describe { topic, configs } => {
            describe(&admin, &topic, configs, &mut output).await?;
        }
        Action::Alter {
            topic,
            set,
            delete,
            append,
            subtract,
        } => {
            let changes = changes(set, delete, append, subtract);
            alter(&admin, &topic, &changes, &mut output).await?;
        }
        Action::AddPartitions { topic, total } => {
            let added = admin.add_partitions(&topic, total).await;
            added.with_context(|| unknown(&topic))?;
            output.line(format_args!("{topic} has {total} partitions"))?;
        }
        Action::DeleteRecords {
            topic,
            before,
            partitions,
            ..
        } => delete_records(&admin, &topic, before, partitions, &mut output).await?,
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
    admin.create_topic(&topic).await?;
    let created = admin.topic(name).await?;
    output.line(format_args!(
        "created {name} with {} partitions",
        created.partitions
    ))?;
    Ok(())
}

async fn describe(
    admin: &Admin,
    topic: &str,
    all_configs: bool,
    output: &mut Output,
) -> anyhow::Result<()> {
    let description = admin.topic(topic).await.with_context(|| unknown(topic))?;
    output.line(format_args!("topic       {}", description.name))?;
    output.line(format_args!("id          {}", description.topic_id))?;
    output.line(format_args!("partitions  {}", description.partitions))?;
    output.line(format_args!("internal    {}", description.is_internal))?;
    for config in admin.describe_topic_configs(topic).await? {
        let (name, value) = (config.name, config.value.unwrap_or_default());
        match config.source {
            ConfigSource::Topic => output.line(format_args!("config      {name}={value}"))?,
            source if all_configs => {
                let source = match source {
                    ConfigSource::Broker => "the broker's",
                    _ => "default",
                };
                output.line(format_args!("config      {name}={value} ({source})"))?;
            }
            _ => {}
        }
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

/// The changes that a command line asks for.
fn changes(
    set: Vec<(String, String)>,
    delete: Vec<String>,
    append: Vec<(String, String)>,
    subtract: Vec<(String, String)>,
) -> Vec<ConfigChange> {
    let set = set
        .into_iter()
        .map(|(name, value)| ConfigChange::Set(name, value));
    let delete = delete.into_iter().map(ConfigChange::Delete);
    let append = append
        .into_iter()
        .map(|(name, value)| ConfigChange::Append(name, value));
    let subtract = subtract
        .into_iter()
        .map(|(name, value)| ConfigChange::Subtract(name, value));
    set.chain(delete).chain(append).chain(subtract).collect()
}

async fn alter(
    admin: &Admin,
    topic: &str,
    changes: &[ConfigChange],
    output: &mut Output,
) -> anyhow::Result<()> {
    let altered = admin.alter_topic_configs(topic, changes).await;
    altered.with_context(|| unknown(topic))?;
    let now = admin.topic_configs(topic).await?;
    for change in changes {
        let (ConfigChange::Set(name, _)
        | ConfigChange::Delete(name)
        | ConfigChange::Append(name, _)
        | ConfigChange::Subtract(name, _)) = change;
        let value = now.get(name).map_or("", String::as_str);
        output.line(format_args!("{topic} has {name}={value}"))?;
    }
    Ok(())
}

async fn delete_records(
    admin: &Admin,
    topic: &str,
    before: Option<i64>,
    partitions: Vec<i32>,
    output: &mut Output,
) -> anyhow::Result<()> {
    let partitions = if partitions.is_empty() {
        let known = admin.topic(topic).await.with_context(|| unknown(topic))?;
        (0..known.partitions).collect()
    } else {
        partitions
    };
    let partition = |number| (TopicPartition::new(topic, number), before);
    let asked = partitions.into_iter().map(partition).collect();
    let beginnings = admin.delete_records(&asked).await;
    let beginnings = beginnings.with_context(|| format!("cannot delete records of {topic}"))?;
    let mut table = Table::new(&["partition", "start"]);
    for (partition, start) in beginnings {
        table.row(vec![partition.partition.to_string(), start.to_string()]);
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

pub(crate) fn setting(text: &str) -> anyhow::Result<(String, String)> {
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
