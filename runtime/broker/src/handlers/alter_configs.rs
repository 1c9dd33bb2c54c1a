//! AlterConfigs 0–2: the older way, in which a topic's settings are replaced as a whole; and what
//! it shares with the newer one.
//!
//! Deviations: a broker's settings are fixed while it runs; group settings and client metrics do
//! not exist.
//!
//! Invariants: a resource changes as a whole or not at all; it is answered once it is durable, and
//! in force.
//! Never: changes anything when `validate_only` is set.

use super::{RESOURCE_BROKER, RESOURCE_TOPIC};
use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::refused::Refused;
use millstream_protocol::messages::alter_configs::{
    AlterConfigsResource, AlterConfigsResourceResponse,
};
use millstream_protocol::messages::{AlterConfigsRequest, AlterConfigsResponse};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Gives each resource of the request its new settings.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: AlterConfigsRequest,
) -> AlterConfigsResponse {
    let resources = request.resources.iter();
    let repeated = repeated_resources(
        resources.map(|resource| (resource.resource_type, resource.resource_name.as_str())),
    );
    let mut responses = Vec::with_capacity(request.resources.len());
    for (resource, repeated) in request.resources.iter().zip(repeated) {
        let outcome = match repeated {
            Some(refused) => Err(refused),
            None => replace(node, resource, request.validate_only).await,
        };
        let (error_code, error_message) = Refused::parts(outcome);
        responses.push(AlterConfigsResourceResponse {
            error_code,
            error_message,
            resource_type: resource.resource_type,
            resource_name: resource.resource_name.clone(),
        });
    }
    AlterConfigsResponse {
        responses,
        ..Default::default()
    }
}

async fn replace(
    node: &Arc<Node>,
    resource: &AlterConfigsResource,
    validate_only: bool,
) -> Result<(), Refused> {
    let names = resource.configs.iter().map(|config| config.name.as_str());
    let (kind, name) = (resource.resource_type, resource.resource_name.as_str());
    alter(node, (kind, name), names, validate_only, |_| {
        let mut configs = BTreeMap::new();
        for config in &resource.configs {
            let value = config.value.clone().ok_or_else(|| {
                Refused::invalid(format!("setting '{}' has no value", config.name))
            })?;
            configs.insert(config.name.clone(), value);
        }
        Ok(configs)
    })
    .await
}

/// For each resource the refusal it gets if the request names it more than once.
pub(super) fn repeated_resources<'a>(
    resources: impl Iterator<Item = (i8, &'a str)> + Clone,
) -> Vec<Option<Refused>> {
    let mut seen = BTreeSet::new();
    let repeated: BTreeSet<_> = resources
        .clone()
        .filter(|resource| !seen.insert(*resource))
        .collect();
    let refused = || Refused::invalid("the request names this resource more than once");
    resources
        .map(|resource| repeated.contains(&resource).then(refused))
        .collect()
}

/// Changes the settings of a resource, a type and a name.
pub(super) async fn alter(
    node: &Arc<Node>,
    resource: (i8, &str),
    names: impl Iterator<Item = &str>,
    validate_only: bool,
    change: impl FnOnce(&BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Refused>,
) -> Result<(), Refused> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            let message = format!("the request names setting '{name}' more than once");
            return Err(Refused::invalid(message));
        }
    }
    match resource {
        (RESOURCE_TOPIC, name) => node.alter_topic(name, validate_only, change).await,
        (RESOURCE_BROKER, _) => Err(Refused::invalid(
            "the settings of a broker are fixed while it runs: give them when it starts",
        )),
        (other, _) => Err(Refused::invalid(format!(
            "resources of type {other} have no settings that could be changed"
        ))),
    }
}
