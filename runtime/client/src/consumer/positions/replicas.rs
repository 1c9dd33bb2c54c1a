//! Replicas to read from instead of the leader, as leaders name them to a client that says where
//! it stands (KIP-392).
//!
//! Invariants: a partition has one at most, until its time is over, its leader changes, it refuses
//! or does not answer, or the metadata has it no more; then the leader is asked again, and may name
//! another.
//! Never: decides who is near; the brokers do.

use millstream_protocol::TopicPartition;

use super::{PartitionState, Positions, Target};
use crate::cluster::NodeId;

/// A replica, and how long it counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replica {
    node: NodeId,
    until_ms: i64,
}

impl PartitionState {
    /// The node to read from at `now_ms`.
    pub(super) fn source(&self, now_ms: i64) -> Option<NodeId> {
        let leader = self.leader?.node;
        let replica = self.replica.filter(|replica| now_ms <= replica.until_ms);
        Some(replica.map_or(leader, |replica| replica.node))
    }

    /// The replica that was named, in time or not.
    pub(super) fn replica(&self) -> Option<NodeId> {
        self.replica.map(|replica| replica.node)
    }
}

impl Positions {
    /// The leader has named a replica to read from until `until_ms`.
    pub(crate) fn prefer(&mut self, target: &Target, node: NodeId, until_ms: i64) {
        let Some(state) = self.current(target) else {
            return;
        };
        state.replica = Some(Replica { node, until_ms });
        if !self.nodes.contains(&node) {
            self.nodes.push(node);
        }
    }

    /// `node` has refused the partition, or has not answered: from now on the leader is asked.
    /// Whether it was not surely the leader: while none is known, nobody speaks for it.
    pub(crate) fn leave_replica(&mut self, target: &Target, node: NodeId) -> bool {
        let Some(state) = self.current(target) else {
            return false;
        };
        if state.replica() == Some(node) {
            state.replica = None;
        }
        state.leader.is_none_or(|leader| leader.node != node)
    }

    /// Leaves replicas that the metadata has no more.
    pub(crate) fn leave_absent_replicas(
        &mut self,
        has_replica: impl Fn(&TopicPartition, NodeId) -> bool,
    ) {
        for (partition, state) in &mut self.partitions {
            if let Some(node) = state.replica()
                && !has_replica(partition, node)
            {
                tracing::debug!(%partition, %node, "the replica is gone");
                state.replica = None;
            }
        }
    }
}
