//! What AlterConfigs and IncrementalAlterConfigs share: the walk over a request's resources, and
//! how the settings of one are changed.
//!
//! Deviations: of a broker's settings, those change while it runs that hold for topics; client
//! metrics and loggers do not exist.
//!
//! Invariants: a resource changes as a whole or not at all; it is answered once it is durable, and
//! in force.
//! Never: changes anything when only validation is asked for.

use super::{RESOURCE_BROKER, RESOURCE_GROUP, RESOURCE_TOPIC};
use crate::node::Node;
use crate::overrides::{Configs, Holder};
use crate::refused::Refused;
use crate::topic_settings::{self, Kind, parts};
use crate::{broker_settings, group_settings};
use millstream_protocol::ErrorCode;
use std::collections::BTreeSet;
use std::sync::Arc;

pub(super) const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// What a request wants of one resource.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) resource_type: i8,
    pub(super) resource_name: String,
    pub(super) operations: Vec<Operation>,
    /// The older way: what is not named goes.
    pub(super) replaces: bool,
}

/// What is to become of one setting.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) name: String,
    pub(super) operation: i8,
    pub(super) value: Option<String>,
}

/// What has become of one resource.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) resource_type: i8,
    pub(super) resource_name: String,
    pub(super) error_code: ErrorCode,
    pub(super) error_message: Option<String>,
}

/// Carries out each of the changes, in their order.
pub(super) async fn carry_out(
    node: &Arc<Node>,
    changes: Vec<Change>,
    validate_only: bool,
) -> Vec<Outcome> {
    let repeated = repeated(&changes);
    let mut outcomes = Vec::with_capacity(changes.len());
    for (change, is_repeated) in changes.into_iter().zip(repeated) {
        let outcome = match is_repeated {
            true => Err(Refused::invalid(
                "the request names this resource more than once",
            )),
            false => alter(node, &change, validate_only).await,
        };
        let (error_code, error_message) = Refused::parts(outcome);
        outcomes.push(Outcome {
            resource_type: change.resource_type,
            resource_name: change.resource_name,
            error_code,
            error_message,
        });
    }
    outcomes
}

/// For each change whether the request names its resource more than once.
fn repeated(changes: &[Change]) -> Vec<bool> {
    let key = |change: &Change| (change.resource_type, change.resource_name.clone());
    let mut seen = BTreeSet::new();
    let again = changes.iter().map(key);
    let again: BTreeSet<_> = again.filter(|key| !seen.insert(key.clone())).collect();
    let is_repeated = |change| again.contains(&key(change));
    changes.iter().map(is_repeated).collect()
}

/// A resource that has settings.
#[derive(Debug, Clone, Copy)]
enum Resource<'a> {
    Topic(&'a str),
    Other(Holder<'a>),
}

async fn alter(node: &Arc<Node>, change: &Change, validate_only: bool) -> Result<(), Refused> {
    let mut seen = BTreeSet::new();
    for Operation { name, .. } in &change.operations {
        if !seen.insert(name) {
            let message = format!("the request names setting '{name}' more than once");
            return Err(Refused::invalid(message));
        }
    }
    let resource = Resource::named(
        change.resource_type,
        &change.resource_name,
        node.config.node_id,
    )?;
    let changed = |own: &Configs| {
        let mut configs = match change.replaces {
            true => Configs::new(),
            false => own.clone(),
        };
        for operation in &change.operations {
            apply(node, resource, &mut configs, operation)?;
        }
        Ok(configs)
    };
    match resource {
        Resource::Topic(name) => node.alter_topic(name, validate_only, changed).await,
        Resource::Other(holder) => node.alter_overrides(holder, validate_only, changed).await,
    }
}

impl<'a> Resource<'a> {
    fn named(kind: i8, name: &'a str, node_id: i32) -> Result<Self, Refused> {
        match (kind, name) {
            (RESOURCE_TOPIC, name) => Ok(Resource::Topic(name)),
            (RESOURCE_GROUP, "") => Err(Refused::invalid("the group's name is empty")),
            (RESOURCE_GROUP, name) => Ok(Resource::Other(Holder::Group(name))),
            (RESOURCE_BROKER, "") => Ok(Resource::Other(Holder::AllBrokers)),
            (RESOURCE_BROKER, name) => {
                broker_settings::is_this_one(node_id, name)?;
                Ok(Resource::Other(Holder::ThisBroker))
            }
            (other, _) => Err(Refused::invalid(format!(
                "resources of type {other} have no settings that could be changed"
            ))),
        }
    }

    /// The type of a setting that such a resource may have.
    fn kind_of(self, name: &str) -> Result<Kind, Refused> {
        let (kind, unknown) = match self {
            Resource::Topic(_) => (
                topic_settings::setting(name).map(|setting| setting.kind),
                format!("'{name}' is no topic setting"),
            ),
            Resource::Other(Holder::AllBrokers | Holder::ThisBroker) => {
                return broker_settings::kind_of(name);
            }
            Resource::Other(Holder::Group(_)) => (
                group_settings::setting(name).map(|_| Kind::Int),
                group_settings::unknown(name),
            ),
        };
        kind.ok_or_else(|| Refused::new(ErrorCode::INVALID_CONFIG, unknown))
    }

    /// The value of a list that the resource does not have itself.
    fn inherited(self, node: &Node, name: &str) -> String {
        let setting = match self {
            Resource::Topic(_) => topic_settings::setting(name),
            Resource::Other(_) => topic_settings::setting_of_broker(name),
        };
        let inherited = setting.map(|setting| setting.inherited(&node.layers()).0);
        inherited.unwrap_or_default()
    }
}

/// Carries out one operation on a resource's own settings.
fn apply(
    node: &Node,
    resource: Resource<'_>,
    configs: &mut Configs,
    wanted: &Operation,
) -> Result<(), Refused> {
    let name = &wanted.name;
    let value = || {
        let given = wanted.value.as_deref();
        given.ok_or_else(|| Refused::invalid(format!("setting '{name}' has no value")))
    };
    match wanted.operation {
        SET => {
            configs.insert(name.clone(), value()?.to_owned());
        }
        DELETE => {
            resource.kind_of(name)?;
            configs.remove(name);
        }
        operation @ (APPEND | SUBTRACT) => {
            let value = value()?;
            if resource.kind_of(name)? != Kind::List {
                let message = format!("'{name}' is no list that could be added to or taken from");
                return Err(Refused::new(ErrorCode::INVALID_CONFIG, message));
            }
            let current = configs.get(name).cloned();
            let current = current.unwrap_or_else(|| resource.inherited(node, name));
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
