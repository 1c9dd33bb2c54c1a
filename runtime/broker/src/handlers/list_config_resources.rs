//! ListConfigResources 0–1: what has settings here: the topics, this broker, and groups that were
//! given some.
//!
//! Deviations: loggers and client metrics have no settings here, so none is listed.
//!
//! Invariants: version 0, which only asks for client metrics, is answered with nothing.
//! Never: waits.

use super::{RESOURCE_BROKER, RESOURCE_GROUP, RESOURCE_TOPIC};
use crate::dispatch::RequestContext;
use crate::node::Node;
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::list_config_resources::ConfigResource;
use millstream_protocol::messages::{ListConfigResourcesRequest, ListConfigResourcesResponse};
use std::sync::Arc;

/// The types that Kafka knows: topics, brokers, their loggers, client metrics, groups.
const TYPES: [i8; 5] = [RESOURCE_TOPIC, RESOURCE_BROKER, 8, 16, RESOURCE_GROUP];

/// Lists the resources of the types asked for; all if none is named.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: ListConfigResourcesRequest,
) -> ListConfigResourcesResponse {
    let types = request.resource_types;
    if types.iter().any(|kind| !TYPES.contains(kind)) {
        return ListConfigResourcesResponse {
            error_code: ErrorCode::UNSUPPORTED_VERSION,
            ..Default::default()
        };
    }
    let wanted = |kind: i8| context.api_version > 0 && (types.is_empty() || types.contains(&kind));
    let resource = |resource_type: i8, resource_name: String| ConfigResource {
        resource_name,
        resource_type,
    };
    let mut config_resources = Vec::new();
    if wanted(RESOURCE_BROKER) {
        config_resources.push(resource(RESOURCE_BROKER, node.config.node_id.to_string()));
    }
    if wanted(RESOURCE_TOPIC) {
        let topics = node.partitions.topics().into_iter();
        config_resources
            .extend(topics.map(|topic| resource(RESOURCE_TOPIC, topic.name.to_string())));
    }
    if wanted(RESOURCE_GROUP) {
        let given = node.overrides.given();
        let groups = given.groups.keys();
        config_resources.extend(groups.map(|group| resource(RESOURCE_GROUP, group.clone())));
    }
    ListConfigResourcesResponse {
        config_resources,
        ..Default::default()
    }
}
