//! DescribeCluster 0–2: the one broker.
//!
//! Deviations: endpoint type 2 (controllers) is refused; there are none.
//!
//! Invariants: the same host and port as Metadata on this connection.
//! Never: waits.

use super::CLUSTER_OPERATIONS;
use crate::dispatch::RequestContext;
use crate::node::Node;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::describe_cluster::DescribeClusterBroker;
use millstream_protocol::messages::{DescribeClusterRequest, DescribeClusterResponse};
use std::sync::Arc;

const ENDPOINT_BROKERS: i8 = 1;
const ENDPOINT_CONTROLLERS: i8 = 2;

/// Answers with this node.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: DescribeClusterRequest,
) -> DescribeClusterResponse {
    if request.endpoint_type != ENDPOINT_BROKERS {
        let error_code = match request.endpoint_type {
            ENDPOINT_CONTROLLERS => ErrorCode::MISMATCHED_ENDPOINT_TYPE,
            _ => ErrorCode::UNSUPPORTED_ENDPOINT_TYPE,
        };
        return DescribeClusterResponse {
            error_code,
            error_message: Some("this is a broker; it has no controller endpoints".to_owned()),
            ..Default::default()
        };
    }
    let (host, port) = node.advertised(context.reached_at);
    DescribeClusterResponse {
        cluster_id: node.directory.cluster_id().to_owned(),
        controller_id: node.config.node_id,
        brokers: vec![DescribeClusterBroker {
            broker_id: node.config.node_id,
            host,
            port,
            rack: None,
            is_fenced: false,
        }],
        cluster_authorized_operations: if request.include_cluster_authorized_operations {
            CLUSTER_OPERATIONS
        } else {
            i32::MIN
        },
        ..Default::default()
    }
}
