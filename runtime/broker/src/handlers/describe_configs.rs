//! DescribeConfigs 1–4, for topics, for this broker and for groups.
//!
//! Deviations: settings of client metrics and loggers do not exist. An answer has a budget in
//! bytes; resources beyond it are refused.
//!
//! Invariants: a topic's settings are the effective ones, each with where it comes from and, where
//! that is asked for, where it would come from otherwise.
//! Never: shows a setting that is in force otherwise than the log has it.

use super::{RESOURCE_BROKER, RESOURCE_GROUP, RESOURCE_TOPIC};
use crate::broker_settings::{self, BrokerSetting};
use crate::dispatch::RequestContext;
use crate::group_settings::{self, GroupSetting};
use crate::node::Node;
use crate::overrides::GROUPS_MAX;
use crate::refused::Refused;
use crate::topic_settings::{self, Effective, Kind, Source};
use millstream_protocol::messages::describe_configs::{
    DescribeConfigsResource, DescribeConfigsResourceResult, DescribeConfigsResult,
    DescribeConfigsSynonym,
};
use millstream_protocol::messages::{DescribeConfigsRequest, DescribeConfigsResponse};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How many resources are described before other tasks get the thread.
const SLICE: usize = 64;

/// What the settings in one answer may take. Three thousand topics with everything that can be
/// asked for are less.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Describes each resource of the request, once. What is repeated is refused, and so is more than
/// there can be: an answer is a thousand times as large as what asks for it.
pub(crate) async fn handle(
    node: &Arc<Node>,
    context: &RequestContext,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse {
    let (synonyms, documentation) = (request.include_synonyms, request.include_documentation);
    let mut results = Vec::new();
    let (mut described, mut groups) = (BTreeSet::new(), 0);
    let mut bytes = 0;
    for (count, resource) in request.resources.into_iter().enumerate() {
        if count % SLICE == SLICE - 1 {
            tokio::task::yield_now().await;
        }
        groups += usize::from(resource.resource_type == RESOURCE_GROUP);
        let asked = if !described.insert(key(&resource)) {
            let message = "the request names this resource more than once";
            Err(Refused::invalid(message))
        } else if groups > GROUPS_MAX {
            let message = format!("the request names more than {GROUPS_MAX} groups");
            Err(Refused::invalid(message))
        } else if bytes > ANSWER_BYTES_MAX {
            let message = "the answer would be too large; ask for fewer resources at once";
            Err(Refused::invalid(message))
        } else {
            Ok(())
        };
        let mut result = describe(node, context, resource, asked);
        for config in &mut result.configs {
            if !synonyms {
                config.synonyms.clear();
            }
            if !documentation {
                config.documentation = None;
            }
            bytes += size_bytes(config);
        }
        results.push(result);
    }
    DescribeConfigsResponse {
        results,
        ..Default::default()
    }
}

/// What a setting takes in an answer, about.
fn size_bytes(config: &DescribeConfigsResourceResult) -> usize {
    let of = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let synonyms = config.synonyms.iter();
    let synonyms = synonyms.map(|synonym| synonym.name.len() + of(&synonym.value) + 8);
    config.name.len() + of(&config.value) + of(&config.documentation) + synonyms.sum::<usize>() + 16
}

/// What two names of one resource have in common.
fn key(resource: &DescribeConfigsResource) -> (i8, String) {
    let (kind, name) = (resource.resource_type, &resource.resource_name);
    let number = name.parse::<i32>().ok().filter(|_| kind == RESOURCE_BROKER);
    let name = number.map_or_else(|| name.clone(), |number| number.to_string());
    (kind, name)
}

fn describe(
    node: &Node,
    context: &RequestContext,
    resource: DescribeConfigsResource,
    asked: Result<(), Refused>,
) -> DescribeConfigsResult {
    let name = &resource.resource_name;
    let found = asked.and_then(|()| match resource.resource_type {
        RESOURCE_TOPIC => topic(node, name),
        RESOURCE_BROKER => broker(node, context, name),
        RESOURCE_GROUP => group(node, name),
        other => Err(Refused::invalid(format!(
            "resources of type {other} have no settings"
        ))),
    });
    let asked = |config: &DescribeConfigsResourceResult| match &resource.configuration_keys {
        Some(keys) if !keys.is_empty() => keys.contains(&config.name),
        _ => true,
    };
    let (configs, refused) = match found {
        Ok(configs) => (configs.into_iter().filter(asked).collect(), Ok(())),
        Err(refused) => (Vec::new(), Err(refused)),
    };
    let (error_code, error_message) = Refused::parts(refused);
    DescribeConfigsResult {
        error_code,
        error_message,
        resource_type: resource.resource_type,
        resource_name: resource.resource_name,
        configs,
    }
}

type Found = Result<Vec<DescribeConfigsResourceResult>, Refused>;

fn topic(node: &Node, name: &str) -> Found {
    let entry = node.partitions.topic(name);
    let entry = entry.ok_or_else(|| Refused::unknown_topic(name))?;
    let layers = node.layers();
    let settings = topic_settings::effective(&layers, &entry.configs);
    Ok(settings.map(of_topic).collect())
}

fn of_topic(effective: Effective) -> DescribeConfigsResourceResult {
    let synonyms = effective.synonyms.into_iter();
    DescribeConfigsResourceResult {
        name: effective.setting.name.to_owned(),
        value: Some(effective.value),
        config_source: effective.source as i8,
        synonyms: synonyms
            .map(|(name, value, source)| synonym(name, Some(value), source))
            .collect(),
        config_type: effective.setting.kind as i8,
        documentation: Some(effective.setting.documentation.to_owned()),
        ..Default::default()
    }
}

/// This broker's settings; for no name those that all brokers were given while they ran.
fn broker(node: &Node, context: &RequestContext, name: &str) -> Found {
    let layers = node.layers();
    let settings = if name.is_empty() {
        broker_settings::of_all_brokers(&layers)
    } else {
        broker_settings::is_this_one(node.config.node_id, name)?;
        let (host, port) = node.advertised(context.reached_at);
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host
        };
        let listener = node.listener();
        let places = broker_settings::Places {
            directory: node.directory.path(),
            listeners: listener.map(|address| format!("PLAINTEXT://{address}")),
            advertised: listener.map(|_| format!("PLAINTEXT://{host}:{port}")),
        };
        broker_settings::settings(&layers, places)
    };
    Ok(settings.into_iter().map(of_broker).collect())
}

fn of_broker(setting: BrokerSetting) -> DescribeConfigsResourceResult {
    let layers = setting.layers.iter();
    let synonyms =
        layers.map(|(source, value)| synonym(setting.name, Some(value.clone()), *source));
    DescribeConfigsResourceResult {
        name: setting.name.to_owned(),
        value: setting.value(),
        read_only: setting.read_only,
        config_source: setting.source() as i8,
        synonyms: synonyms.collect(),
        config_type: setting.kind as i8,
        documentation: Some(setting.documentation.to_owned()),
        ..Default::default()
    }
}

/// A group's settings, whether there is such a group or not.
fn group(node: &Node, name: &str) -> Found {
    if name.is_empty() {
        return Err(Refused::invalid("the group's name is empty"));
    }
    let own = node.overrides.given().groups.get(name).cloned();
    let own = own.unwrap_or_default();
    let of_group = |setting: &GroupSetting| {
        let (value, is_own) = setting.effective(&own, &node.config);
        let source = match is_own {
            true => Source::Group,
            false => Source::Default,
        };
        DescribeConfigsResourceResult {
            name: setting.name.to_owned(),
            value: Some(value.clone()),
            config_source: source as i8,
            synonyms: vec![synonym(setting.name, Some(value), source)],
            config_type: Kind::Int as i8,
            documentation: Some(setting.documentation.to_owned()),
            ..Default::default()
        }
    };
    Ok(group_settings::SETTINGS.iter().map(of_group).collect())
}

fn synonym(name: &str, value: Option<String>, source: Source) -> DescribeConfigsSynonym {
    DescribeConfigsSynonym {
        name: name.to_owned(),
        value,
        source: source as i8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_of_a_setting_counts() {
        let text = || "x".repeat(1_000);
        let of = DescribeConfigsResourceResult::default;
        let synonym = |name, value| DescribeConfigsSynonym {
            name,
            value,
            ..Default::default()
        };
        let (mut named, mut valued, mut documented) = (of(), of(), of());
        named.name = text();
        valued.value = Some(text());
        documented.documentation = Some(text());
        let (mut synonym_named, mut synonym_valued) = (of(), of());
        synonym_named.synonyms = vec![synonym(text(), None)];
        synonym_valued.synonyms = vec![synonym(String::new(), Some(text()))];
        for config in [named, valued, documented, synonym_named, synonym_valued] {
            assert!(size_bytes(&config) >= 1_000, "{config:?}");
        }
    }
}
