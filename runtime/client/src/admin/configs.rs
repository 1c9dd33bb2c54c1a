//! Settings of topics, as the broker applies them.
//!
//! Invariants: every setting comes with its effective value, defaults included.
//! Never: changes one.

use futures::future::BoxFuture;
use std::collections::BTreeMap;

use millstream_protocol::messages::DescribeConfigsRequest;
use millstream_protocol::messages::describe_configs::DescribeConfigsResource;

use super::{Admin, AdminError, check};

/// The wire's number for topics among the kinds of resources.
const TOPIC: i8 = 2;

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
            let resource = DescribeConfigsResource {
                resource_type: TOPIC,
                resource_name: topic.to_owned(),
                configuration_keys: None,
            };
            let request = DescribeConfigsRequest {
                resources: vec![resource],
                ..Default::default()
            };
            let response = self
                .ask(|| async {
                    let timeout = self.cluster.config().request_timeout;
                    let node = self.cluster.any_node()?;
                    Ok(self.cluster.request(node, request.clone(), timeout).await?)
                })
                .await?;
            let mut configs = BTreeMap::new();
            for result in response.results {
                check(
                    "topic_configs()",
                    topic,
                    result.error_code,
                    result.error_message,
                )?;
                let settings = result.configs.into_iter();
                configs.extend(settings.filter_map(|config| Some((config.name, config.value?))));
            }
            Ok(configs)
        })
    }
}
