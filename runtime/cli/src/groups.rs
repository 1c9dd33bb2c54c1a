//! `millstream groups`: which there are, who is in them, how far they have got, and their end.
//!
//! Invariants: lag counts to the last stable offset, the end that a reader of committed data can
//! reach; offsets of transactions that are still open do not count as committed.
//! Never: joins a group; deletes an offset of a topic that members read (the broker refuses).

use crate::connection::Connection;
use crate::output::{Output, Table};
use anyhow::Context;
use millstream::TopicPartition;
use millstream::client::{Admin, OffsetAndMetadata, OffsetSpec};
use millstream::formats::protocol::messages::consumer_protocol::ConsumerProtocolAssignment;
use millstream::formats::protocol::messages::describe_groups::DescribedGroupMember;
use serde_json::json;
use std::collections::BTreeMap;

/// Show groups, their members, committed offsets and lag; delete them.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List groups with their states
    List {
        /// Only groups in this state, as in Stable or Empty; may be repeated
        #[arg(long = "state", value_name = "STATE")]
        states: Vec<String>,
        /// Only groups of this type: classic or consumer; may be repeated
        #[arg(long = "type", value_name = "TYPE")]
        types: Vec<String>,
    },
    /// Show a group's state, members, committed offsets and lag
    Describe {
        /// Id of the group
        group: String,
    },
    /// Show a group's committed offsets, the ends (last stable offsets) and the lag between them
    Offsets {
        /// Id of the group
        group: String,
        /// Print one JSON object a partition
        #[arg(long)]
        json: bool,
    },
    /// Delete a group without members, with all of its committed offsets
    Delete {
        /// Id of the group
        group: String,
    },
    /// Delete what a group has committed for a topic that none of its members reads
    DeleteOffsets {
        /// Id of the group
        group: String,
        /// Name of the topic
        #[arg(long)]
        topic: String,
        /// For this partition only; may be repeated
        #[arg(long = "partition", value_name = "N")]
        partitions: Vec<i32>,
    },
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let admin = arguments.connection.admin()?;
    let mut output = Output::new();
    match arguments.action {
        Action::List { states, types } => list(&admin, &states, &types, &mut output).await?,
        Action::Describe { group } => describe(&admin, &group, &mut output).await?,
        Action::Offsets { group, json } => {
            let rows = progress(&admin, &group).await?;
            if json {
                for row in &rows {
                    output.line(row.to_json(&group))?;
                }
            } else {
                table_of(&rows).print(&mut output)?;
            }
        }
        Action::Delete { group } => {
            let deleted = admin.delete_group(&group).await;
            deleted.with_context(|| format!("group {group} (see `millstream groups list`)"))?;
            output.line(format_args!("deleted {group}"))?;
        }
        Action::DeleteOffsets {
            group,
            topic,
            partitions,
        } => delete_offsets(&admin, &group, &topic, partitions, &mut output).await?,
    }
    output.finish()?;
    Ok(())
}

async fn list(
    admin: &Admin,
    states: &[String],
    types: &[String],
    output: &mut Output,
) -> anyhow::Result<()> {
    let passes = |wanted: &[String], value: &str| {
        let same = |wanted: &String| wanted.eq_ignore_ascii_case(value);
        wanted.is_empty() || wanted.iter().any(same)
    };
    let mut table = Table::new(&["group", "state", "protocol", "type"]);
    for group in admin.list_groups().await? {
        if passes(states, &group.group_state) && passes(types, &group.group_type) {
            let (id, state) = (group.group_id, group.group_state);
            table.row(vec![id, state, group.protocol_type, group.group_type]);
        }
    }
    table.print(output)?;
    Ok(())
}

async fn delete_offsets(
    admin: &Admin,
    group: &str,
    topic: &str,
    partitions: Vec<i32>,
    output: &mut Output,
) -> anyhow::Result<()> {
    let committed = admin.group_offsets(group).await?;
    let wanted = |partition: &&TopicPartition| {
        let named = partitions.is_empty() || partitions.contains(&partition.partition);
        *partition.topic == *topic && named
    };
    let gone: Vec<TopicPartition> = committed.keys().filter(wanted).cloned().collect();
    anyhow::ensure!(
        !gone.is_empty(),
        "group {group} has committed nothing there (see `millstream groups offsets {group}`)"
    );
    admin.delete_group_offsets(group, &gone).await?;
    for partition in gone {
        output.line(format_args!("deleted the offset of {group} at {partition}"))?;
    }
    Ok(())
}

async fn describe(admin: &Admin, group: &str, output: &mut Output) -> anyhow::Result<()> {
    let described = admin.describe_group(group).await;
    let described =
        described.with_context(|| format!("group {group} (see `millstream groups list`)"))?;
    output.line(format_args!("group     {group}"))?;
    output.line(format_args!("state     {}", described.group_state))?;
    output.line(format_args!(
        "protocol  {} {}",
        described.protocol_type, described.protocol_data
    ))?;
    output.line("")?;
    if !described.members.is_empty() {
        let mut table = Table::new(&["member", "instance", "client", "host", "partitions"]);
        for member in &described.members {
            table.row(vec![
                member.member_id.clone(),
                member
                    .group_instance_id
                    .clone()
                    .unwrap_or_else(|| "-".to_owned()),
                member.client_id.clone(),
                member.client_host.clone(),
                assigned(member, &described.protocol_type),
            ]);
        }
        table.print(output)?;
        output.line("")?;
    }
    table_of(&progress(admin, group).await?).print(output)?;
    Ok(())
}

/// The partitions of a member of a consumer group; other protocols keep theirs to themselves.
fn assigned(member: &DescribedGroupMember, protocol_type: &str) -> String {
    if protocol_type != "consumer" {
        return format!("{} bytes", member.member_assignment.len());
    }
    let assignment = ConsumerProtocolAssignment::from_bytes(member.member_assignment.clone());
    let Ok(assignment) = assignment else {
        return "not readable".to_owned();
    };
    let partitions = assignment
        .assigned_partitions
        .into_iter()
        .flat_map(|topic| {
            let name = topic.topic;
            topic
                .partitions
                .into_iter()
                .map(move |partition| format!("{name}-{partition}"))
        });
    partitions.collect::<Vec<_>>().join(",")
}

/// How far a group has got in one partition.
#[derive(Debug, PartialEq, Eq)]
struct Progress {
    partition: TopicPartition,
    committed: OffsetAndMetadata,
    /// The last stable offset; `None` where the topic has gone.
    end: Option<i64>,
}

impl Progress {
    fn lag(&self) -> Option<i64> {
        self.end.map(|end| (end - self.committed.offset).max(0))
    }

    fn to_json(&self, group: &str) -> serde_json::Value {
        json!({
            "group": group,
            "topic": &*self.partition.topic,
            "partition": self.partition.partition,
            "committed": self.committed.offset,
            "end": self.end,
            "lag": self.lag(),
            "metadata": self.committed.metadata,
        })
    }
}

async fn progress(admin: &Admin, group: &str) -> anyhow::Result<Vec<Progress>> {
    let committed = admin.group_offsets(group).await?;
    let known: BTreeMap<String, i32> = admin
        .topics()
        .await?
        .into_iter()
        .map(|topic| (topic.name, topic.partitions))
        .collect();
    let exists = |partition: &&TopicPartition| {
        known
            .get(&*partition.topic)
            .is_some_and(|count| partition.partition < *count)
    };
    let existing: Vec<TopicPartition> = committed.keys().filter(exists).cloned().collect();
    let ends = admin
        .list_offsets(&existing, OffsetSpec::LatestCommitted)
        .await?;
    let row = |(partition, committed)| {
        let end = ends.get(&partition).copied().flatten();
        Progress {
            partition,
            committed,
            end,
        }
    };
    Ok(committed.into_iter().map(row).collect())
}

fn table_of(rows: &[Progress]) -> Table {
    let mut table = Table::new(&["topic", "partition", "committed", "end", "lag", "metadata"]);
    let number =
        |value: Option<i64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    for row in rows {
        table.row(vec![
            row.partition.topic.to_string(),
            row.partition.partition.to_string(),
            row.committed.offset.to_string(),
            number(row.end),
            number(row.lag()),
            row.committed.metadata.clone(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(committed: i64, end: Option<i64>) -> Progress {
        let committed = OffsetAndMetadata {
            metadata: "m".to_owned(),
            ..OffsetAndMetadata::new(committed)
        };
        Progress {
            partition: TopicPartition::new("orders", 2),
            committed,
            end,
        }
    }

    #[test]
    fn lag_is_what_is_left_up_to_the_end_and_unknown_without_one() {
        assert_eq!(row(3, Some(10)).lag(), Some(7));
        assert_eq!(row(10, Some(3)).lag(), Some(0));
        assert_eq!(row(3, None).lag(), None);
    }

    #[test]
    fn progress_as_json_names_group_partition_and_offsets() {
        let expected = json!({"group": "g", "topic": "orders", "partition": 2,
            "committed": 3, "end": 10, "lag": 7, "metadata": "m"});
        assert_eq!(row(3, Some(10)).to_json("g"), expected);
    }
}
