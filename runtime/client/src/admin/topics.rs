//! Topics: create, enlarge, delete, list, describe.
//!
//! Invariants: a topic that is created is there when the call returns.
//! Never: deletes a topic of the broker's own.

use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_protocol::messages::create_partitions::CreatePartitionsTopic;
use millstream_protocol::messages::create_topics::{CreatableTopic, CreatableTopicConfig};
use millstream_protocol::messages::delete_topics::DeleteTopicState;
use millstream_protocol::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest,
};
use millstream_protocol::{ErrorCode, Uuid};

use super::{Admin, AdminError, check};
use crate::error::ClusterError;

/// A topic to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTopic {
    /// The name.
    pub name: String,
    /// Number of partitions; `None` for the broker's default.
    pub partitions: Option<i32>,
    /// Copies of each partition; `None` for the broker's default.
    pub replication_factor: Option<i16>,
    /// Settings by Kafka's names.
    pub configs: BTreeMap<String, String>,
}

impl NewTopic {
    /// A topic with this many partitions and the broker's defaults.
    #[must_use]
    pub fn new(name: impl Into<String>, partitions: i32) -> Self {
        Self {
            name: name.into(),
            partitions: Some(partitions),
            replication_factor: None,
            configs: BTreeMap::new(),
        }
    }

    /// Sets a setting by Kafka's name.
    #[must_use]
    pub fn config(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.configs.insert(name.into(), value.to_string());
        self
    }
}

/// A topic as the cluster describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDescription {
    /// The name.
    pub name: String,
    /// The id, which another topic of this name would not have.
    pub topic_id: Uuid,
    /// Number of partitions.
    pub partitions: i32,
    /// Whether the broker keeps it for itself.
    pub is_internal: bool,
}

impl Admin {
    /// Creates a topic.
    ///
    /// # Errors
    /// Where it exists (`TOPIC_ALREADY_EXISTS`), its name or settings are refused, or no broker
    /// answers.
    pub fn create_topic<'a>(
        &'a self,
        topic: &'a NewTopic,
    ) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            let response = self
                .ask(|| async {
                    let timeout = self.cluster.config().request_timeout;
                    let node = self.cluster.any_node()?;
                    Ok(self
                        .cluster
                        .request(node, create_request(topic), timeout)
                        .await?)
                })
                .await?;
            for result in response.topics {
                check(
                    "create topic",
                    &result.name,
                    result.error_code,
                    result.error_message,
                )?;
            }
            let name: Arc<str> = topic.name.as_str().into();
            self.cluster.refresh_metadata(&[name]).await?;
            Ok(())
        })
    }

    /// Creates a topic with this many partitions where there is none of that name; answers whether
    /// it did.
    ///
    /// # Errors
    /// As [`create_topic`](Self::create_topic).
    pub fn create_topic_if_absent<'a>(
        &'a self,
        name: &'a str,
        partitions: i32,
    ) -> BoxFuture<'a, Result<bool, AdminError>> {
        Box::pin(async move {
            match self.create_topic(&NewTopic::new(name, partitions)).await {
                Ok(()) => Ok(true),
                Err(error) if error.code() == Some(ErrorCode::TOPIC_ALREADY_EXISTS) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    /// Adds partitions to a topic until it has this many. Records of a key that are there already
    /// stay where they are, while later ones may go elsewhere.
    ///
    /// # Errors
    /// Where the topic has as many or more (`INVALID_PARTITIONS`), there is none of that name, or
    /// no broker answers.
    pub fn add_partitions<'a>(
        &'a self,
        topic: &'a str,
        total: i32,
    ) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            let asked = CreatePartitionsTopic {
                name: topic.to_owned(),
                count: total,
                assignments: None,
            };
            let request = CreatePartitionsRequest {
                topics: vec![asked],
                timeout_ms: 30_000,
                validate_only: false,
            };
            let response = self.ask_any(&request).await?;
            for result in response.results {
                let (code, message) = (result.error_code, result.error_message);
                check("add partitions to topic", topic, code, message)?;
            }
            self.cluster.refresh_metadata(&[topic.into()]).await?;
            Ok(())
        })
    }

    /// Deletes a topic with all of its records.
    ///
    /// # Errors
    /// Where there is none of that name, or no broker answers.
    pub fn delete_topic<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), AdminError>> {
        Box::pin(async move {
            let state = DeleteTopicState {
                name: Some(name.to_owned()),
                ..Default::default()
            };
            let response = self
                .ask(|| async {
                    let timeout = self.cluster.config().request_timeout;
                    let node = self.cluster.any_node()?;
                    let build = |version: i16| delete_request(&state, version);
                    Ok(self
                        .cluster
                        .request_with(node, timeout, i16::MAX, build)
                        .await?)
                })
                .await?;
            for result in response.responses {
                check(
                    "delete topic",
                    name,
                    result.error_code,
                    result.error_message,
                )?;
            }
            self.cluster.forget_topic(name);
            Ok(())
        })
    }

    /// All topics, by name.
    ///
    /// # Errors
    /// Where no broker answers.
    pub fn topics(&self) -> BoxFuture<'_, Result<Vec<TopicDescription>, AdminError>> {
        Box::pin(async move {
            let response = self.ask(|| self.cluster.all_topics()).await?;
            let mut topics: Vec<TopicDescription> = response
                .topics
                .into_iter()
                .filter(|topic| topic.error_code.is_ok())
                .map(|topic| TopicDescription {
                    name: topic.name.unwrap_or_default(),
                    topic_id: topic.topic_id,
                    partitions: i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX),
                    is_internal: topic.is_internal,
                })
                .collect();
            topics.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(topics)
        })
    }

    /// One topic, or an error that says there is none.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC_OR_PARTITION` where there is none of that name; where no broker answers.
    pub fn topic<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Result<TopicDescription, AdminError>> {
        Box::pin(async move {
            let found = self
                .topics()
                .await?
                .into_iter()
                .find(|topic| topic.name == name);
            found.ok_or_else(|| AdminError::Refused {
                call: "describe topic",
                subject: name.to_owned(),
                code: ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
                message: Some("there is no topic of that name; create it first".into()),
            })
        })
    }

    /// Number of partitions of a topic.
    ///
    /// # Errors
    /// Where no broker answers in time, or refuses the topic.
    pub fn partitions_of<'a>(&'a self, topic: &'a str) -> BoxFuture<'a, Result<i32, ClusterError>> {
        Box::pin(async move { self.cluster.partitions_of(topic).await })
    }
}

fn create_request(topic: &NewTopic) -> CreateTopicsRequest {
    let configs = topic
        .configs
        .iter()
        .map(|(name, value)| CreatableTopicConfig {
            name: name.clone(),
            value: Some(value.clone()),
        });
    CreateTopicsRequest {
        topics: vec![CreatableTopic {
            name: topic.name.clone(),
            num_partitions: topic.partitions.unwrap_or(-1),
            replication_factor: topic.replication_factor.unwrap_or(-1),
            configs: configs.collect(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn delete_request(state: &DeleteTopicState, version: i16) -> DeleteTopicsRequest {
    let mut request = DeleteTopicsRequest {
        timeout_ms: 30_000,
        ..Default::default()
    };
    if version >= 6 {
        request.topics = vec![state.clone()];
    } else {
        request.topic_names = state.name.clone().into_iter().collect();
    }
    request
}
