//! ListPartitionReassignments 0: nothing moves, as there is nowhere to move to.
//!
//! Invariants: always empty.
//! Never: an error; Kafka's tools ask before they describe a topic.

use crate::dispatch::RequestContext;
use crate::node::Node;
use millstream_protocol::messages::{
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse,
};
use std::sync::Arc;

/// Answers with none.
pub(crate) async fn handle(
    _node: &Arc<Node>,
    _context: &RequestContext,
    _request: ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsResponse {
    ListPartitionReassignmentsResponse {
        error_message: None,
        ..Default::default()
    }
}
