//! IncrementalAlterConfigs 0–1: single settings of topics are set, deleted, appended to, subtracted
//! from.
//!
//! Deviations: a broker's settings are fixed while it runs; group settings and client metrics do
//! not exist.
//!
//! Invariants: a resource changes as a whole or not at all; it is answered once it is durable, and
//! in force.
//! Never: changes anything when `validate_only` is set.

use super::alter_configs::{alter, repeated_resources};
use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::refused::Refused;
use crate::topic_settings::{Kind, parts, setting};
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterConfigsResourceResponse, AlterableConfig,
};
use millstream_protocol::messages::{
    IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
};
use std::collections::BTreeMap;
use std::sync::Arc;

const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// Changes each resource of the request.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let resources = request.resources.iter();
    let repeated = repeated_resources(
        resources.map(|resource| (resource.resource_type, resource.resource_name.as_str())),
    );
    let mut responses = Vec::with_capacity(request.resources.len());
    for (resource, repeated) in request.resources.iter().zip(repeated) {
        let outcome = match repeated {
            Some(refused) => Err(refused),
            None => change(node, resource, request.validate_only).await,
        };
        let (error_code, error_message) = Refused::parts(outcome);
        responses.push(AlterConfigsResourceResponse {
            error_code,
            error_message,
            resource_type: resource.resource_type,
            resource_name: resource.resource_name.clone(),
        });
    }
    IncrementalAlterConfigsResponse {
        responses,
        ..Default::default()
    }
}

async fn change(
    node: &Arc<Node>,
    resource: &AlterConfigsResource,
    validate_only: bool,
) -> Result<(), Refused> {
    let names = resource.configs.iter().map(|config| config.name.as_str());
    let (kind, name) = (resource.resource_type, resource.resource_name.as_str());
    alter(node, (kind, name), names, validate_only, |own| {
        let mut configs = own.clone();
        for config in &resource.configs {
            apply(node, &mut configs, config)?;
        }
        Ok(configs)
    })
    .await
}

/// Carries out one operation on a topic's own settings.
fn apply(
    node: &Node,
    configs: &mut BTreeMap<String, String>,
    config: &AlterableConfig,
) -> Result<(), Refused> {
    let name = &config.name;
    let value = || {
        let given = config.value.as_deref();
        given.ok_or_else(|| Refused::invalid(format!("setting '{name}' has no value")))
    };
    match config.config_operation {
        SET => {
            configs.insert(name.clone(), value()?.to_owned());
        }
        DELETE => {
            if setting(name).is_none() {
                let message = format!("'{name}' is no topic setting");
                return Err(Refused::new(ErrorCode::INVALID_CONFIG, message));
            }
            configs.remove(name);
        }
        operation @ (APPEND | SUBTRACT) => {
            let value = value()?;
            let list = setting(name).filter(|setting| setting.kind == Kind::List);
            let list = list.ok_or_else(|| {
                let message = format!("'{name}' is no list that could be added to or taken from");
                Refused::new(ErrorCode::INVALID_CONFIG, message)
            })?;
            let current = configs.get(name).cloned();
            let current = current.unwrap_or_else(|| list.inherited(&node.config).0);
            let changed = combined(&current, value, operation == APPEND);
            configs.insert(name.clone(), changed);
        }
        operation => {
            let message = format!("there is no operation {operation}: give 0 to 3");
            return Err(Refused::invalid(message));
        }
    }
    Ok(())
}

/// A list with elements added that it has not, or with elements taken away.
fn combined(current: &str, value: &str, append: bool) -> String {
    let mut elements = parts(current);
    for element in parts(value) {
        let place = elements.iter().position(|known| *known == element);
        match (append, place) {
            (true, None) => elements.push(element),
            (false, Some(place)) => {
                elements.remove(place);
            }
            _ => {}
        }
    }
    elements.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_grow_by_what_they_lack_and_shrink_by_what_they_have() {
        assert_eq!(combined("delete", "compact,delete", true), "delete,compact");
        assert_eq!(combined("delete,compact", "delete, x", false), "compact");
        assert_eq!(combined("", "compact", true), "compact");
        assert_eq!(combined("compact", "compact", false), "");
    }
}
