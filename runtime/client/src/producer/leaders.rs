//! Leaders that a broker names while it refuses a batch (KIP-951).
//!
//! Invariants: only refusals that a leader change explains are believed.
//! Never: sends anything; the batch goes again in its turn, to whoever leads then.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_protocol::messages::ProduceResponse;
use millstream_protocol::{ErrorCode, TopicPartition, Uuid};

use super::sender::Sender;
use crate::cluster::{LeaderHint, NodeId};
use crate::transport::BrokerAddress;

impl Sender {
    /// Takes over what the answer says about leaders that have moved.
    pub(super) fn adopt_leaders(
        &mut self,
        topic_ids: &BTreeMap<Uuid, Arc<str>>,
        response: &ProduceResponse,
    ) {
        let mut hints = Vec::new();
        for topic in &response.responses {
            for part in &topic.partition_responses {
                let leader = &part.current_leader;
                let moved = matches!(
                    part.error_code,
                    ErrorCode::NOT_LEADER_OR_FOLLOWER | ErrorCode::FENCED_LEADER_EPOCH
                );
                if !moved || leader.leader_id < 0 || leader.leader_epoch < 0 {
                    continue;
                }
                let by_id = topic_ids.get(&topic.topic_id).map(Arc::clone);
                let name = by_id.unwrap_or_else(|| topic.name.as_str().into());
                hints.push(LeaderHint {
                    partition: TopicPartition::new(name, part.index),
                    leader: NodeId(leader.leader_id),
                    epoch: leader.leader_epoch,
                });
            }
        }
        if hints.is_empty() {
            return;
        }
        let nodes = response.node_endpoints.iter().filter_map(|node| {
            let port = u16::try_from(node.port).ok()?;
            let address = BrokerAddress::new(node.host.clone(), port);
            Some((NodeId(node.node_id), address))
        });
        self.cluster.adopt_leaders(&hints, nodes.collect());
    }
}
