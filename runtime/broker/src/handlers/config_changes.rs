//! What AlterConfigs and IncrementalAlterConfigs share: the walk over a request's resources, and
//! how the settings of one are changed.
//!
//! Deviations: of a broker's settings, those change while it runs that hold for topics; client
//! metrics and loggers do not exist.
//!
//! Invariants: a resource changes as a whole or not at all; it is answered once it is durable, and
//! in force.
//! Never: changes anything when only validation is asked for.

use super::{RESOURCE_BROKER, RESOURCE_GROUP, RESOURCE_TOPIC, repeated};
use crate::node::Node;
use crate::overrides::{self, Configs, Holder};
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

/// Carries out each of the changes: topics in their order, and then all others at once.
pub(super) async fn carry_out(
    node: &Arc<Node>,
    changes: Vec<Change>,
    validate_only: bool,
) -> Vec<Outcome> {
    let repeated = repeated(changes.iter().map(named));
    let mut outcomes: Vec<Result<(), Refused>> = Vec::with_capacity(changes.len());
    let (mut others, mut places) = (Vec::new(), Vec::new());
    for (place, change) in changes.iter().enumerate() {
        let resource = match repeated.contains(&named(change)) {
            true => Err(Refused::invalid(
                "the request names this resource more than once",
            )),
            false => Resource::of(change, node.config.node_id),
        };
        let resource = match resource {
            Ok(resource) => resource,
            Err(refused) => {
                outcomes.push(Err(refused));
                continue;
            }
        };
        let changed = move |own: &Configs| changed(resource, change, own);
        outcomes.push(match resource {
            Resource::Topic(name) => node.alter_topic(name, validate_only, changed).await,
            Resource::Other(holder) => {
                places.push(place);
                others.push((holder, Box::new(changed) as overrides::Change<'_>));
                Ok(())
            }
        });
    }
    let altered = node.alter_overrides(&others, validate_only).await;
    drop(others);
    for (place, altered) in places.into_iter().zip(altered) {
        if let Some(outcome) = outcomes.get_mut(place) {
            *outcome = altered;
        }
    }
    let outcome = |(change, outcome): (Change, _)| {
        let (error_code, error_message) = Refused::parts(outcome);
        Outcome {
            resource_type: change.resource_type,
            resource_name: change.resource_name,
            error_code,
            error_message,
        }
    };
    changes.into_iter().zip(outcomes).map(outcome).collect()
}

/// The resource that a change is about.
fn named(change: &Change) -> (i8, &str) {
    (change.resource_type, &change.resource_name)
}

/// A resource that has settings.
#[derive(Debug, Clone, Copy)]
enum Resource<'a> {
    Topic(&'a str),
    Other(Holder<'a>),
}

/// What becomes of a resource's own settings.
fn changed(resource: Resource<'_>, change: &Change, own: &Configs) -> Result<Configs, Refused> {
    let mut configs = match change.replaces {
        true => Configs::new(),
        false => own.clone(),
    };
    for operation in &change.operations {
        apply(resource, &mut configs, operation)?;
    }
    Ok(configs)
}

impl<'a> Resource<'a> {
    /// The resource of a change whose settings are named once each.
    fn of(change: &'a Change, node_id: i32) -> Result<Self, Refused> {
        let mut seen = BTreeSet::new();
        for Operation { name, .. } in &change.operations {
            if !seen.insert(name) {
                let message = format!("the request names setting '{name}' more than once");
                return Err(Refused::invalid(message));
            }
        }
        Self::named(change.resource_type, &change.resource_name, node_id)
    }

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

    /// What a list begins with that the resource does not have itself: the default, as in Kafka,
    /// whatever other layers say.
    fn default_list(self, name: &str) -> &'static str {
        let setting = match self {
            Resource::Topic(_) => topic_settings::setting(name),
            Resource::Other(_) => topic_settings::setting_of_broker(name),
        };
        setting.map_or("", |setting| setting.default)
    }
}

/// The longest value that a string of the protocol can tell of.
const VALUE_BYTES_MAX: usize = i16::MAX as usize;

/// Carries out one operation on a resource's own settings.
fn apply(resource: Resource<'_>, configs: &mut Configs, wanted: &Operation) -> Result<(), Refused> {
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
            // One that nobody has, too: it may be an earlier release's.
            configs.remove(name);
        }
        operation @ (APPEND | SUBTRACT) => {
            let value = value()?;
            if resource.kind_of(name)? != Kind::List {
                let message = format!("'{name}' is no list that could be added to or taken from");
                return Err(Refused::new(ErrorCode::INVALID_CONFIG, message));
            }
            let current = configs.get(name).map(String::as_str);
            let current = current.unwrap_or_else(|| resource.default_list(name));
            let changed = combined(current, value, operation == APPEND);
            if changed.len() > VALUE_BYTES_MAX {
                let message = format!("'{name}' would be longer than {VALUE_BYTES_MAX} bytes");
                return Err(Refused::new(ErrorCode::INVALID_CONFIG, message));
            }
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
