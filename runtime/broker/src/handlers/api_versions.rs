//! ApiVersions 0–4: what this broker serves, and its feature levels.
//!
//! Deviations: none of Kafka's other features is announced (there is no metadata quorum to
//! upgrade).
//!
//! Invariants: announces exactly what `dispatch` has a handler for, but for the Produce versions
//! below those that are served ([`PRODUCE_FROM`]).
//! Never: lists a feature below version 4 whose lowest level is 0 (older clients refuse that).

use crate::dispatch::{RequestContext, SERVED};
use crate::node::Node;
use millstream_protocol::messages::api_versions::{
    ApiVersion, FinalizedFeatureKey, SupportedFeatureKey,
};
use millstream_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};
use millstream_protocol::{ApiKey, ErrorCode};
use std::sync::Arc;

/// The lowest Produce version that is announced; like Kafka, the broker closes a connection that
/// asks for one below 3. librdkafka before 2.11.1 compresses with gzip, snappy or lz4 only where 0
/// is announced, and otherwise sends its batches uncompressed without a word (KAFKA-18659).
const PRODUCE_FROM: i16 = 0;

/// Features and their levels: groups of the consumer protocol, transactions of version 2.
const FEATURES: [(&str, i16); 2] = [("group.version", 1), ("transaction.version", 2)];

/// Answers with versions and features.
pub(crate) async fn handle(
    _node: &Arc<Node>,
    context: &RequestContext,
    request: ApiVersionsRequest,
) -> ApiVersionsResponse {
    let named = is_software_name(&request.client_software_name)
        && is_software_name(&request.client_software_version);
    if context.api_version >= 3 && !named {
        let error_code = ErrorCode::INVALID_REQUEST;
        return ApiVersionsResponse {
            error_code,
            ..Default::default()
        };
    }
    let supported = |(name, level): (&str, i16)| SupportedFeatureKey {
        name: name.to_owned(),
        min_version: 0,
        max_version: level,
    };
    let finalized = |(name, level): (&str, i16)| FinalizedFeatureKey {
        name: name.to_owned(),
        max_version_level: level,
        min_version_level: level,
    };
    let supported = FEATURES.into_iter().map(supported);
    let supported_features = match context.api_version {
        4.. => supported.collect(),
        _ => Vec::new(),
    };
    ApiVersionsResponse {
        api_keys: SERVED.iter().copied().map(range_of).collect(),
        supported_features,
        finalized_features_epoch: 0,
        finalized_features: FEATURES.into_iter().map(finalized).collect(),
        ..Default::default()
    }
}

/// The answer, in version 0, to a version that is too new: it tells which ones would do.
pub(crate) fn unsupported_version() -> ApiVersionsResponse {
    ApiVersionsResponse {
        error_code: ErrorCode::UNSUPPORTED_VERSION,
        api_keys: vec![range_of(ApiKey::ApiVersions)],
        ..Default::default()
    }
}

fn range_of(api: ApiKey) -> ApiVersion {
    let versions = api.versions();
    let min_version = match api {
        ApiKey::Produce => PRODUCE_FROM,
        _ => *versions.start(),
    };
    ApiVersion {
        api_key: api as i16,
        min_version,
        max_version: *versions.end(),
    }
}

/// Letters, digits, '-' and '.', with a letter or digit at both ends.
fn is_software_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    bytes
        .iter()
        .all(|b| b.is_ascii_alphanumeric() || b"-.".contains(b))
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
}
