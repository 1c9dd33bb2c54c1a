//! ElectLeaders 0–2: this node leads every partition already.
//!
//! Invariants: a partition that is named is answered; asked for all of them, the answer is empty,
//! as Kafka leaves out those that need no election.
//! Never: changes anything.

use crate::dispatch::RequestContext;
use crate::node::Node;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::elect_leaders::{PartitionResult, ReplicaElectionResult};
use millstream_protocol::messages::{ElectLeadersRequest, ElectLeadersResponse};
use std::sync::Arc;

/// Answers for each partition that is named.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: ElectLeadersRequest,
) -> ElectLeadersResponse {
    let topics = request.topic_partitions.unwrap_or_default().into_iter();
    let results = topics.map(|topic| ReplicaElectionResult {
        partition_result: topic
            .partitions
            .iter()
            .map(|partition| elect(node, &topic.topic, *partition))
            .collect(),
        topic: topic.topic,
    });
    ElectLeadersResponse {
        replica_election_results: results.collect(),
        ..Default::default()
    }
}

fn elect(node: &Node, topic: &str, partition_id: i32) -> PartitionResult {
    let error_code = match node.partition(topic, partition_id) {
        Some(_) => ErrorCode::ELECTION_NOT_NEEDED,
        None => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
    };
    PartitionResult {
        partition_id,
        error_code,
        error_message: Some(error_code.description().to_owned()),
    }
}
