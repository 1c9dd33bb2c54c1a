//! One file an API: request in, response out, on a `Node`.
//!
//! Invariants: errors are per topic and partition wherever the protocol has a place for them.
//! Never: touches a connection, except through its `RequestContext`.

pub(crate) mod add_offsets_to_txn;
pub(crate) mod add_partitions_to_txn;
pub(crate) mod alter_configs;
pub(crate) mod api_versions;
mod config_changes;
pub(crate) mod consumer_group_describe;
pub(crate) mod consumer_group_heartbeat;
pub(crate) mod create_acls;
pub(crate) mod create_partitions;
pub(crate) mod create_topics;
pub(crate) mod delete_acls;
pub(crate) mod delete_groups;
pub(crate) mod delete_records;
pub(crate) mod delete_topics;
pub(crate) mod describe_acls;
pub(crate) mod describe_cluster;
pub(crate) mod describe_configs;
pub(crate) mod describe_groups;
pub(crate) mod describe_log_dirs;
pub(crate) mod describe_producers;
pub(crate) mod describe_topic_partitions;
pub(crate) mod describe_transactions;
pub(crate) mod elect_leaders;
pub(crate) mod end_txn;
pub(crate) mod fetch;
pub(crate) mod find_coordinator;
pub(crate) mod heartbeat;
pub(crate) mod incremental_alter_configs;
pub(crate) mod init_producer_id;
pub(crate) mod join_group;
pub(crate) mod leave_group;
pub(crate) mod list_config_resources;
pub(crate) mod list_groups;
pub(crate) mod list_offsets;
pub(crate) mod list_partition_reassignments;
pub(crate) mod list_transactions;
pub(crate) mod metadata;
pub(crate) mod offset_commit;
pub(crate) mod offset_delete;
pub(crate) mod offset_fetch;
pub(crate) mod offset_for_leader_epoch;
pub(crate) mod produce;
pub(crate) mod sync_group;
pub(crate) mod txn_offset_commit;
pub(crate) mod write_txn_markers;

use millstream_protocol::ErrorCode;
use std::collections::BTreeSet;

/// What a request names more than once.
fn repeated<T: Ord + Clone>(named: impl Iterator<Item = T>) -> BTreeSet<T> {
    let mut seen = BTreeSet::new();
    named.filter(|one| !seen.insert(one.clone())).collect()
}

/// The leader epoch of every partition: there is one broker, and it never changes its mind.
pub(crate) const LEADER_EPOCH: i32 = 0;
/// Replicas of every partition.
pub(crate) const REPLICATION_FACTOR: i16 = 1;
/// What has settings, as requests number it: a topic.
pub(crate) const RESOURCE_TOPIC: i8 = 2;
/// A broker.
pub(crate) const RESOURCE_BROKER: i8 = 4;
/// A group of the consumer protocol.
pub(crate) const RESOURCE_GROUP: i8 = 32;
/// Everything that may be done to a topic, as Kafka's bits: read, write, create, delete, alter,
/// describe, describe configs, alter configs.
pub(crate) const TOPIC_OPERATIONS: i32 =
    1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11;
/// Everything that may be done to the cluster: create, alter, describe, cluster action, describe
/// configs, alter configs, idempotent write.
pub(crate) const CLUSTER_OPERATIONS: i32 =
    1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12;

/// What a request about access rules is told.
pub(crate) const NO_ACCESS_RULES: &str = "this broker has no access rules: everybody may do all";

/// Everything that may be done to a group: read, delete, describe, describe configs, alter configs.
pub(crate) const GROUP_OPERATIONS: i32 = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11;

/// Compares the leader epoch that a client believes in with ours; -1 asks for no check.
pub(crate) fn check_leader_epoch(theirs: i32) -> Result<(), ErrorCode> {
    match theirs {
        ..0 | LEADER_EPOCH => Ok(()),
        _ => Err(ErrorCode::UNKNOWN_LEADER_EPOCH),
    }
}
