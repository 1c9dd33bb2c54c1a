//! DescribeLogDirs 1–5: the one data directory and how large its partitions are.
//!
//! Deviations: the size of the volume is not told.
//!
//! Invariants: a partition that does not exist is left out.
//! Never: asks the disk; the logs know their sizes.

use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::partition::Partition;
use millstream_protocol::messages::describe_log_dirs::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use millstream_protocol::messages::{DescribeLogDirsRequest, DescribeLogDirsResponse};
use std::sync::Arc;

/// Describes the partitions asked for, or all of them.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: DescribeLogDirsRequest,
) -> DescribeLogDirsResponse {
    let topics: Vec<DescribeLogDirsTopic> = match request.topics {
        None => {
            let all = node.partitions.topics().into_iter();
            all.map(|topic| described(&topic.name, topic.partitions.iter()))
                .collect()
        }
        Some(asked) => {
            let found = asked.into_iter().map(|asked| {
                let indexes = asked.partitions.iter();
                let found: Vec<_> = indexes
                    .filter_map(|index| node.partition(&asked.topic, *index))
                    .collect();
                described(&asked.topic, found.iter())
            });
            found.filter(|topic| !topic.partitions.is_empty()).collect()
        }
    };
    let result = DescribeLogDirsResult {
        log_dir: node.directory.path(),
        topics,
        ..Default::default()
    };
    DescribeLogDirsResponse {
        results: vec![result],
        ..Default::default()
    }
}

fn described<'a>(
    name: &str,
    partitions: impl Iterator<Item = &'a Arc<Partition>>,
) -> DescribeLogDirsTopic {
    let partitions = partitions.map(|partition| DescribeLogDirsPartition {
        partition_index: partition.name().partition,
        partition_size: i64::try_from(partition.log().size_bytes()).unwrap_or(i64::MAX),
        ..Default::default()
    });
    DescribeLogDirsTopic {
        name: name.to_owned(),
        partitions: partitions.collect(),
    }
}
