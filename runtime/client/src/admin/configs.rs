//! Settings of topics: as the broker applies them, and changes to them.
//!
//! Invariants: every setting comes with its effective value, defaults included; a change of several
//! settings is carried out as a whole or not at all.
//! Never: changes a setting that a call does not name.

use futures::future::BoxFuture;
use std::collections::BTreeMap;

use millstream_protocol::messages::describe_configs::{
    DescribeConfigsResource, DescribeConfigsResourceResult,
};
use millstream_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig,
};
use millstream_protocol::messages::{DescribeConfigsRequest, IncrementalAlterConfigsRequest};

use super::{Admin, AdminError, check};

/// The wire's number for topics among the kinds of resources.
const TOPIC: i8 = 2;

/// A setting of a topic as it is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigEntry {
    /// Kafka's name.
    pub name: String,
    /// The value; `None` is null.
    pub value: Option<String>,
    /// Where the value comes from.
    pub source: ConfigSource,
    /// What the broker says about the setting.
    pub documentation: Option<String>,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigSource {
    /// It was given for the topic.
    Topic,
    /// It was given to the broker, when it started or since.
    Broker,
    /// Nobody's choice.
    Default,
}

/// A change of one setting, by Kafka's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigChange {
    /// Gives it this value.
    Set(String, String),
    /// Takes its value away, so that the broker's holds.
    Delete(String),
    /// Adds to a list what it has not.
    Append(String, String),
    /// Takes from a list.
    Subtract(String, String),
}

impl Admin {
    /// The settings of a topic by Kafka's names. Null values are left out.
    ///
    /// # Errors
    /// Where there is no such topic, or no broker answers.
    pub fn topic_configs<'a>(
        &'a self,
        topic: &'a str,
    ) -> BoxFuture<'a, Result<BTreeMap<String, String>, AdminError>> {
        Box::pin(async move {
            let entries = self.describe_topic_configs(topic).await?.into_iter();
            let named = entries.filter_map(|entry| Some((entry.name, entry.value?)));
            Ok(named.collect())
        })
    }

    /// The settings of a topic, each with where it comes from and what it is for, by name.
    ///
    /// # Errors
    /// Where there is no such topic, or no broker answers.
    pub fn describe_topic_configs<'a>(
        &'a self,
        topic: &'a str,
    ) -> BoxFuture<'a, Result<Vec<ConfigEntry>, AdminError>> {
        Box::pin(async move {
            let response = self
                .ask(|| async {
                    let timeout = self.cluster.config().request_timeout;
                    let node = self.cluster.any_node()?;
                    let build = |version| describe_request(topic, version);
                    Ok(self
                        .cluster
                        .request_with(node, timeout, i16::MAX, build)
                        .await?)
                })
                .await?;
            let mut entries = Vec::new();
            for result in response.results {
                let (code, message) = (result.error_code, result.error_message);
                check("read the settings of topic", topic, code, message)?;
                entries.extend(result.configs.into_iter().map(ConfigEntry::from));
            }
            entries.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(entries)
        })
    }

    /// Changes settings of a topic, while it is in use: all of these, or none.
    ///
    /// # Errors
    /// Where there is no such topic, a setting or its value is refused (`INVALID_CONFIG`), or no
    /// broker answers.
    pub fn alter_topic_configs<'a>(
        &'a self,
        topic: &'a str,
        changes: &'a [ConfigChange],
    ) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            let resource = AlterConfigsResource {
                resource_type: TOPIC,
                resource_name: topic.to_owned(),
                configs: changes.iter().map(AlterableConfig::from).collect(),
            };
            let request = IncrementalAlterConfigsRequest {
                resources: vec![resource],
                validate_only: false,
            };
            // Each of these changes may be carried out twice.
            let response = self.ask_any(&request).await?;
            for result in response.responses {
                let (code, message) = (result.error_code, result.error_message);
                check("change the settings of topic", topic, code, message)?;
            }
            Ok(())
        })
    }
}

fn describe_request(topic: &str, version: i16) -> DescribeConfigsRequest {
    let resource = DescribeConfigsResource {
        resource_type: TOPIC,
        resource_name: topic.to_owned(),
        configuration_keys: None,
    };
    DescribeConfigsRequest {
        resources: vec![resource],
        include_synonyms: false,
        include_documentation: version >= 3,
    }
}

impl From<DescribeConfigsResourceResult> for ConfigEntry {
    fn from(found: DescribeConfigsResourceResult) -> Self {
        ConfigEntry {
            name: found.name,
            value: found.value,
            source: match found.config_source {
                1 => ConfigSource::Topic,
                5 => ConfigSource::Default,
                _ => ConfigSource::Broker,
            },
            documentation: found.documentation.filter(|text| !text.is_empty()),
        }
    }
}

impl From<&ConfigChange> for AlterableConfig {
    fn from(change: &ConfigChange) -> Self {
        let (config_operation, name, value) = match change {
            ConfigChange::Set(name, value) => (0, name, Some(value)),
            ConfigChange::Delete(name) => (1, name, None),
            ConfigChange::Append(name, value) => (2, name, Some(value)),
            ConfigChange::Subtract(name, value) => (3, name, Some(value)),
        };
        AlterableConfig {
            name: name.clone(),
            config_operation,
            value: value.cloned(),
        }
    }
}
