//! DescribeConfigs 1–4, for topics and for this broker.
//!
//! Deviations: no synonyms and no documentation; a broker's settings are its main ones, all
//! read-only.
//!
//! Invariants: a topic's settings are the effective ones, each with where it comes from.
//! Never: lists a setting that has no effect as if it had been set.

use crate::BrokerConfig;
use crate::dispatch::RequestContext;
use crate::node::Node;
use crate::topic_settings::{Kind, SETTINGS};
use millstream_protocol::ErrorCode;
use millstream_protocol::messages::describe_configs::{
    DescribeConfigsResource, DescribeConfigsResourceResult, DescribeConfigsResult,
};
use millstream_protocol::messages::{DescribeConfigsRequest, DescribeConfigsResponse};
use std::sync::Arc;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
/// `config_source`: given for the topic, given to this broker, or nobody's choice.
const SOURCE_TOPIC: i8 = 1;
const SOURCE_BROKER: i8 = 4;
const SOURCE_DEFAULT: i8 = 5;

/// Describes each resource of the request.
pub(crate) async fn handle(
    node: &Arc<Node>,
    _context: &RequestContext,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResponse {
    let describe = |resource| describe(node, resource);
    let results = request.resources.into_iter().map(describe).collect();
    DescribeConfigsResponse {
        results,
        ..Default::default()
    }
}

fn describe(node: &Node, resource: DescribeConfigsResource) -> DescribeConfigsResult {
    let name = &resource.resource_name;
    let found = match resource.resource_type {
        TOPIC => topic(node, name),
        BROKER => broker(node, name),
        other => Err((
            ErrorCode::INVALID_REQUEST,
            format!("no resource has type {other}"),
        )),
    };
    let asked = |config: &DescribeConfigsResourceResult| match &resource.configuration_keys {
        Some(keys) if !keys.is_empty() => keys.contains(&config.name),
        _ => true,
    };
    let (error_code, error_message, configs) = match found {
        Ok(configs) => (
            ErrorCode::NONE,
            None,
            configs.into_iter().filter(asked).collect(),
        ),
        Err((code, message)) => (code, Some(message), Vec::new()),
    };
    DescribeConfigsResult {
        error_code,
        error_message,
        resource_type: resource.resource_type,
        resource_name: resource.resource_name,
        configs,
    }
}

type Found = Result<Vec<DescribeConfigsResourceResult>, (ErrorCode, String)>;

fn topic(node: &Node, name: &str) -> Found {
    let entry = node.partitions.topic(name).ok_or_else(|| {
        (
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            format!("topic '{name}' does not exist"),
        )
    })?;
    let message_max_bytes = node.config.message_max_bytes.to_string();
    let settings = SETTINGS.iter().map(|setting| {
        let (value, source) = match entry.configs.get(setting.name) {
            Some(value) => (value.as_str(), SOURCE_TOPIC),
            None if setting.name == "max.message.bytes" => {
                (message_max_bytes.as_str(), SOURCE_BROKER)
            }
            None => (setting.default, SOURCE_DEFAULT),
        };
        result(setting.name, value.to_owned(), setting.kind, source, false)
    });
    Ok(settings.collect())
}

fn broker(node: &Node, name: &str) -> Found {
    let config = &node.config;
    if !name.is_empty() && name.parse() != Ok(config.node_id) {
        let message = format!(
            "broker '{name}' is not this one, which is {}",
            config.node_id
        );
        return Err((ErrorCode::INVALID_REQUEST, message));
    }
    let settings = log_settings(config)
        .into_iter()
        .chain(coordinator_settings(config));
    Ok(settings
        .map(|(name, value, kind)| result(name, value, kind, SOURCE_BROKER, true))
        .collect())
}

/// A setting's name, value and type.
type Setting = (&'static str, String, Kind);

fn log_settings(config: &BrokerConfig) -> Vec<Setting> {
    let int = Kind::Int;
    vec![
        ("node.id", config.node_id.to_string(), int),
        ("broker.id", config.node_id.to_string(), int),
        ("durability", config.durability.to_string(), Kind::String),
        (
            "auto.create.topics.enable",
            config.auto_create_topics_enable.to_string(),
            Kind::Boolean,
        ),
        ("num.partitions", config.num_partitions.to_string(), int),
        ("default.replication.factor", "1".to_owned(), int),
        ("min.insync.replicas", "1".to_owned(), int),
        (
            "message.max.bytes",
            config.message_max_bytes.to_string(),
            int,
        ),
        (
            "socket.request.max.bytes",
            config.socket_request_max_bytes.to_string(),
            int,
        ),
        (
            "producer.id.expiration.ms",
            config.producer_id_expiration_ms.to_string(),
            int,
        ),
    ]
}

fn coordinator_settings(config: &BrokerConfig) -> Vec<Setting> {
    let (int, long) = (Kind::Int, Kind::Long);
    vec![
        (
            "transaction.state.log.num.partitions",
            config.transaction_state_log_num_partitions.to_string(),
            int,
        ),
        (
            "transaction.state.log.replication.factor",
            "1".to_owned(),
            int,
        ),
        (
            "transaction.max.timeout.ms",
            config.transaction_max_timeout_ms.to_string(),
            int,
        ),
        (
            "transactional.id.expiration.ms",
            config.transactional_id_expiration_ms.to_string(),
            long,
        ),
        (
            "offsets.topic.num.partitions",
            config.offsets_topic_num_partitions.to_string(),
            int,
        ),
        ("offsets.topic.replication.factor", "1".to_owned(), int),
        (
            "offset.metadata.max.bytes",
            config.offset_metadata_max_bytes.to_string(),
            int,
        ),
        (
            "group.min.session.timeout.ms",
            config.group_min_session_timeout_ms.to_string(),
            int,
        ),
        (
            "group.max.session.timeout.ms",
            config.group_max_session_timeout_ms.to_string(),
            int,
        ),
        (
            "group.initial.rebalance.delay.ms",
            config.group_initial_rebalance_delay_ms.to_string(),
            int,
        ),
    ]
}

fn result(
    name: &str,
    value: String,
    kind: Kind,
    config_source: i8,
    read_only: bool,
) -> DescribeConfigsResourceResult {
    DescribeConfigsResourceResult {
        name: name.to_owned(),
        value: Some(value),
        read_only,
        config_source,
        config_type: kind as i8,
        documentation: None,
        ..Default::default()
    }
}
